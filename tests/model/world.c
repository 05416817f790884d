/* SPDX-License-Identifier: Apache-2.0 */
/* Segments, attachments, the daemon's part, and contents derived from a stamp. */
#include "tests/model/world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/align.h"

void world_geometry(struct kvw_geometry *geometry, uint32_t n_layers, uint32_t n_heads)
{
    struct kvw_geometry_group *group = &geometry->group[0];

    memset(geometry, 0, sizeof *geometry);
    geometry->n_groups = geometry->n_lanes = geometry->n_ranks = 1;
    geometry->n_layers = n_layers;
    geometry->partition = (struct kvw_geometry_partition){
        .head_parts = 1, .layer_parts = 1, .lane_parts = 1, .row_parts = 1};
    *group = (struct kvw_geometry_group){.n_layers = n_layers,
                                         .n_heads = n_heads,
                                         .policy = KVW_GEOMETRY_ROLL,
                                         .kind = KVW_GEOMETRY_CHUNK,
                                         .positions = KVW_GEOMETRY_ABSOLUTE,
                                         .name = "self"};
    for (uint32_t layer = 0; layer < n_layers; layer++)
        geometry->model_layer[layer] = (uint16_t)layer;
}

static int new_segment(char **segment, uint64_t n_bytes, int byte)
{
    void *base;

    if (posix_memalign(&base, KVW_PAGE, n_bytes) != 0)
        return -ENOMEM;
    memset(base, byte, n_bytes);
    *segment = base;
    return 0;
}

int world_init(struct world *world, const struct kvw_geometry *geometry)
{
    static const uint8_t uuid[16] = {1};
    struct kvw_refusal refusal;

    *world = (struct world){.geometry = *geometry};
    int error = layout_of(geometry, &world->layout, &refusal);
    if (error == 0)
        error = new_segment(&world->control, world->layout.control_bytes, 0);
    if (error == 0)
        error = new_segment(&world->data, world->layout.data_bytes, WORLD_POISON);
    if (error == 0) {
        /* Large and hardly used: left to the kernel to clear. */
        world->pins = calloc(1, world->layout.pins_bytes + KVW_CACHELINE);
        error = world->pins == NULL ? -ENOMEM : 0;
    }
    if (error != 0) {
        world_fini(world);
        return error;
    }
    layout_control_init(world->control, &world->layout, geometry, "model", uuid);
    struct kvw_control_header *header =
        (struct kvw_control_header *)(void *)world->control;
    store_relaxed(&header->attachments_high, WORLD_SLOTS);
    return 0;
}

void world_fini(struct world *world)
{
    for (uint32_t i = 0; i < world->n_graves; i++)
        cache_free(world->grave[i]);
    for (uint32_t i = 0; i < WORLD_SEATS_MAX; i++)
        cache_free(world->seat[i]);
    free(world->control);
    free(world->pins);
    free(world->data);
    *world = (struct world){0};
}

static char *aligned_pins(const struct world *world)
{
    uintptr_t base = (uintptr_t)world->pins;
    return world->pins + (align_up(base, KVW_CACHELINE) - base);
}

static struct kvw_seat *seat_of(const struct world *world, uint32_t seat)
{
    return layout_seat(world->control, &world->layout, seat);
}

static struct kvw_board *board_at(const struct world *world, uint32_t rank,
                                  uint32_t lane)
{
    return layout_board(world->control, &world->layout, world->geometry.n_lanes, rank,
                        lane);
}

int world_attach(struct world *world, uint32_t seat)
{
    const bool is_rank = seat < WORLD_RANKS_MAX;
    uint32_t slot = 0;

    while (slot < WORLD_SLOTS && world->is_slot_used[slot])
        slot++;
    if (slot == WORLD_SLOTS)
        return -EMFILE;
    if (is_rank) {
        struct kvw_seat *of = seat_of(world, seat);
        store_relaxed(&of->owner, slot + 100);
        store_relaxed(&of->incarnation, load_relaxed(&of->incarnation) + 1);
        store_relaxed(&of->pid, 1);
        store_relaxed(&of->state, KVW_SEAT_OWNED);
    }
    const struct cache_segments segments = {
        {world->control, aligned_pins(world), world->data},
        {world->layout.control_bytes, world->layout.pins_bytes,
         world->layout.data_bytes}};
    int error =
        cache_new(&segments, is_rank ? seat : KVW_READER, slot, &world->seat[seat]);
    if (error != 0)
        return error;
    world->is_slot_used[slot] = true;
    world->seat[seat]->attachment = slot + 100;
    world->seat[seat]->options.timeout_ns = 1;
    world->seat[seat]->options.spin_us = 0;
    world->seat[seat]->options.pin_policy = KVW_PIN_ANSWER;
    return 0;
}

/* What the daemon does with the seat and the pins of a process that is gone. */
static void vacate(struct world *world, uint32_t seat, uint32_t slot, uint32_t state)
{
    if (seat < WORLD_RANKS_MAX) {
        struct kvw_seat *of = seat_of(world, seat);
        store_relaxed(&of->state, state);
        if (state == KVW_SEAT_FREE)
            store_relaxed(&of->owner, 0);
        for (uint32_t lane = 0; lane < world->geometry.n_lanes; lane++)
            add_seq_cst(&board_at(world, seat, lane)->event, 1);
    }
    for (uint32_t i = 0; i < KVW_PINS_PER_ATTACHMENT; i++) {
        struct kvw_pin *pin = layout_pin(aligned_pins(world), &world->layout, slot, i);
        store_relaxed(&pin->lo_plus_1, 0);
    }
    world->is_slot_used[slot] = false;
    world->seat[seat] = NULL;
}

void world_kill(struct world *world, uint32_t seat)
{
    uint32_t slot = world->seat[seat]->slot;

    KVW_CHECK(world->n_graves < WORLD_GRAVES_MAX);
    world->grave[world->n_graves++] = world->seat[seat];
    vacate(world, seat, slot, KVW_SEAT_DEAD);
}

void world_detach(struct world *world, uint32_t seat)
{
    uint32_t slot = world->seat[seat]->slot;

    cache_free(world->seat[seat]);
    vacate(world, seat, slot, KVW_SEAT_FREE);
}

static const struct kvw_board_claim *claim_at(const struct world *world, uint32_t rank,
                                              uint32_t lane, uint32_t group)
{
    const char *board = (const char *)board_at(world, rank, lane);
    return (const struct kvw_board_claim *)(const void *)(board +
                                                          world->layout.claims_offset) +
           group;
}

uint64_t world_hi(const struct world *world, uint32_t rank, uint32_t lane,
                  uint32_t group)
{
    return load_relaxed(&claim_at(world, rank, lane, group)->hi);
}

uint64_t world_want(const struct world *world, uint32_t rank, uint32_t lane,
                    uint32_t group)
{
    return load_relaxed(&claim_at(world, rank, lane, group)->want);
}

uint64_t world_ask(const struct world *world, uint32_t rank, uint32_t lane)
{
    return load_relaxed(&board_at(world, rank, lane)->ask);
}

uint64_t world_record(const struct world *world, uint32_t rank, uint32_t lane,
                      uint32_t index)
{
    struct kvw_board *board = board_at(world, rank, lane);
    uint64_t version = load_relaxed(&board->version);
    shared_u64 *record =
        (shared_u64 *)(void *)((char *)board + world->layout.records_offset +
                               version % KVW_RECORDS * world->layout.record_bytes);
    return load_relaxed(&record[index]);
}

struct kvw_pin *world_pin(const struct world *world, uint32_t seat, uint32_t index)
{
    return layout_pin(aligned_pins(world), &world->layout, world->seat[seat]->slot,
                      index);
}

char *world_row(const struct world *world, uint32_t layer, uint32_t plane,
                uint32_t lane, uint32_t head, uint64_t slot)
{
    uint32_t group = geometry_group_of(&world->geometry, layer);
    uint32_t in_group = layer - world->geometry.group[group].layer_first;

    return world->data +
           layout_row_offset(&world->layout, group, in_group, plane, lane, head, slot);
}

uint64_t world_mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ull + b * 0xbf58476d1ce4e5b9ull +
                 c * 0x94d049bb133111ebull;
    x ^= x >> 29;
    x *= 0xff51afd7ed558ccdull;
    return x ^ (x >> 32);
}

static uint64_t element(uint64_t stamp, uint32_t plane, uint32_t head, uint32_t elem)
{
    return world_mix(stamp, ((uint64_t)plane << 32) + head + 1, elem + 1);
}

void world_fill(char *to, const struct kvw_geometry_plane *plane, uint32_t plane_index,
                uint32_t head, uint64_t stamp)
{
    const uint32_t elem_bytes = geometry_elem_bytes(plane->type);

    for (uint32_t i = 0; i < plane->elems; i++) {
        uint64_t value = element(stamp, plane_index, head, i);
        memcpy(to + (size_t)i * elem_bytes, &value, elem_bytes);
    }
}

bool world_is_filled(const char *at, const struct kvw_geometry_plane *plane,
                     uint32_t plane_index, uint32_t head, uint64_t stamp)
{
    const uint32_t elem_bytes = geometry_elem_bytes(plane->type);

    for (uint32_t i = 0; i < plane->elems; i++) {
        uint64_t value = element(stamp, plane_index, head, i);
        if (memcmp(at + (size_t)i * elem_bytes, &value, elem_bytes) != 0)
            return false;
    }
    return true;
}

uint64_t world_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
