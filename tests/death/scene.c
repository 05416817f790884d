/* SPDX-License-Identifier: Apache-2.0 */
/* See scene.h. */
#include "tests/death/scene.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/client.h"
#include "proto/base/align.h"

/* ------------------------------------------------------ failures ---------- */

static struct {
    const char *call;
    const char *phase;
    uint64_t instruction;
    uint32_t n_failures;
} place = {.call = "", .phase = ""};

void test_place(const char *call, const char *phase, uint64_t instruction)
{
    place.call = call;
    place.phase = phase;
    place.instruction = instruction;
}

void test_fail(const char *file, int line, const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "%s:%d: %s, instruction %" PRIu64 ", %s: ", file, line, place.call,
            place.instruction, place.phase);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    if (++place.n_failures >= 10) {
        fputs("too many failures\n", stderr);
        exit(1);
    }
}

uint32_t test_failures(void)
{
    return place.n_failures;
}

uint64_t test_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* ------------------------------------------------------ segments ---------- */

static char *map(uint64_t n_bytes)
{
    void *base =
        mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return base;
}

static void map_stage(struct stage *stage)
{
    stage->control = map(stage->layout.control_bytes);
    stage->pins = map(stage->layout.pins_bytes);
    stage->data = map(stage->layout.data_bytes);
}

static void unmap_stage(struct stage *stage)
{
    (void)munmap(stage->control, stage->layout.control_bytes);
    (void)munmap(stage->pins, stage->layout.pins_bytes);
    (void)munmap(stage->data, stage->layout.data_bytes);
}

void scene_init(struct scene *scene, uint32_t n_ranks)
{
    static const uint8_t uuid[16] = {1};
    struct kvw_geometry geometry;
    struct kvw_refusal refusal;

    memset(scene, 0, sizeof *scene);
    model_geometry(n_ranks, &geometry);
    model_init(&scene->lane, n_ranks);
    OK(layout_of(&geometry, &scene->live.layout, &refusal));
    scene->copy.layout = scene->live.layout;
    map_stage(&scene->live);
    map_stage(&scene->copy);
    memset(scene->live.data, 0xff, scene->live.layout.data_bytes);
    layout_control_init(scene->live.control, &scene->live.layout, &geometry, "death",
                        uuid);
    struct kvw_control_header *header =
        (struct kvw_control_header *)(void *)scene->live.control;
    store_relaxed(&header->attachments_high, SLOTS);
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        stage_admit(&scene->live, rank);
        scene->worker[rank] = stage_attach(&scene->live, rank, rank);
    }
}

void scene_fini(struct scene *scene)
{
    for (uint32_t rank = 0; rank < RANKS_MAX; rank++)
        cache_free(scene->worker[rank]);
    cache_free(scene->reader);
    cache_free(scene->dead);
    cache_free(scene->held.reader);
    cache_free(scene->witness.reader);
    unmap_stage(&scene->live);
    unmap_stage(&scene->copy);
}

uint64_t stage_pins_used(const struct stage *stage)
{
    return stage->layout.pins_offset +
           SLOTS * (uint64_t)KVW_PINS_PER_ATTACHMENT * sizeof(struct kvw_pin);
}

void scene_copy(struct scene *scene)
{
    memcpy(scene->copy.control, scene->live.control, scene->live.layout.control_bytes);
    memcpy(scene->copy.pins, scene->live.pins, stage_pins_used(&scene->live));
    memcpy(scene->copy.data, scene->live.data, scene->live.layout.data_bytes);
}

/* ---------------------------------------------------- the daemon ---------- */

void stage_admit(const struct stage *stage, uint32_t rank)
{
    if (rank == KVW_READER)
        return;
    struct kvw_seat *seat = layout_seat(stage->control, &stage->layout, rank);
    store_relaxed(&seat->owner, rank + 100);
    store_relaxed(&seat->incarnation, load_relaxed(&seat->incarnation) + 1);
    store_relaxed(&seat->pid, 1);
    store_relaxed(&seat->state, KVW_SEAT_OWNED);
}

struct cache_segments stage_segments(const struct stage *stage)
{
    return (struct cache_segments){{stage->control, stage->pins, stage->data},
                                   {stage->layout.control_bytes,
                                    stage->layout.pins_bytes,
                                    stage->layout.data_bytes}};
}

struct kvw_cache *stage_attach(const struct stage *stage, uint32_t rank, uint32_t slot)
{
    const struct cache_segments segments = stage_segments(stage);
    struct kvw_cache *cache = NULL;

    OK(cache_new(&segments, rank, slot, &cache));
    if (cache == NULL)
        exit(1);
    cache->attachment = slot + 100;
    cache->options.timeout_ns = 1;
    cache->options.spin_us = 0;
    cache->options.pin_policy = KVW_PIN_ANSWER;
    return cache;
}

void stage_clear_pins(const struct stage *stage, uint32_t slot)
{
    for (uint32_t i = 0; i < KVW_PINS_PER_ATTACHMENT; i++)
        store_relaxed(&layout_pin(stage->pins, &stage->layout, slot, i)->lo_plus_1, 0);
}

void stage_bury(const struct stage *stage, uint32_t rank)
{
    struct kvw_seat *seat = layout_seat(stage->control, &stage->layout, rank);
    struct kvw_board *board = layout_board(stage->control, &stage->layout, 1, rank, 0);

    store_relaxed(&seat->state, KVW_SEAT_DEAD);
    stage_clear_pins(stage, rank);
    add_seq_cst(&board->event, 1);
}

/* ---------------------------------------------------------- acts ---------- */

static struct kvw_part part_of(const struct kvw_cache *cache, uint32_t layer)
{
    struct kvw_part part = {0};

    OK(kvw_cache_part(cache, layer / LAYERS_OF_GROUP, cache->rank, &part));
    return part;
}

static const struct kvw_item *item_of(const struct act *act, uint32_t layer)
{
    for (uint32_t i = 0; i < act->n_items; i++) {
        if (act->item[i].group == layer / LAYERS_OF_GROUP)
            return &act->item[i];
    }
    return NULL;
}

uint64_t act_rows(const struct act *act, uint32_t layer)
{
    const struct kvw_item *item = item_of(act, layer);
    return item == NULL ? 0 : item->n;
}

void scene_fill(struct scene *scene, const struct kvw_cache *cache,
                const struct m_record *from, const struct act *act, uint32_t layer)
{
    const struct kvw_part part = part_of(cache, layer);
    const uint64_t first = from->group[layer / LAYERS_OF_GROUP].rows;

    for (uint32_t p = 0; p < PLANES; p++) {
        for (uint64_t r = 0; r < act_rows(act, layer); r++)
            for (uint32_t h = 0; h < part.n_heads; h++)
                model_fill(scene->rows[p][r][h], act->stamp, first + r, layer, p,
                           part.head_first + h);
        scene->source[p] =
            (struct kvw_source){scene->rows[p], HEADS * ROW_BYTES_MAX, ROW_BYTES_MAX};
    }
}

int act_begin(struct kvw_cache *cache, const struct act *act)
{
    return kvw_begin(cache, 0, act->item, act->n_items, NULL);
}

static void write_in_place(struct kvw_cache *cache, const struct act *act,
                           uint32_t layer, uint64_t n)
{
    struct kvw_slots slots;

    OK(kvw_slots(cache, 0, (struct kvw_layer){layer}, 0, n, &slots));
    for (uint32_t p = 0; p < slots.n_planes; p++)
        for (uint32_t i = 0; i < slots.n_pieces; i++)
            for (uint32_t h = 0; h < slots.n_heads; h++)
                for (uint32_t r = 0; r < slots.piece[i].n_rows; r++)
                    model_fill(kvw_piece_at(&slots.plane[p], &slots.piece[i], h) +
                                   r * slots.plane[p].row_bytes,
                               act->stamp, slots.piece[i].row + r, layer, p,
                               slots.head_first + h);
    OK(kvw_written(cache, 0, (struct kvw_layer){layer}, 0, n));
}

/* Layers are written in place, or copied in one row and then the rest. */
static void write_layer(struct scene *scene, struct kvw_cache *cache,
                        const struct m_record *from, const struct act *act,
                        uint32_t layer, uint64_t n)
{
    if (layer % LAYERS_OF_GROUP == 1) {
        write_in_place(cache, act, layer, n);
        return;
    }
    scene_fill(scene, cache, from, act, layer);
    OK(kvw_update(cache, 0, (struct kvw_layer){layer}, 0, 1, scene->source));
    if (n == 1)
        return;
    for (uint32_t p = 0; p < PLANES; p++)
        scene->source[p].data = scene->rows[p][1];
    OK(kvw_update(cache, 0, (struct kvw_layer){layer}, 1, n - 1, scene->source));
}

void act_write(struct scene *scene, struct kvw_cache *cache,
               const struct m_record *from, const struct act *act, uint64_t n)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const uint64_t begun = act_rows(act, layer);
        if (begun > 0)
            write_layer(scene, cache, from, act, layer, n < begun ? n : begun);
    }
}

int act_commit(struct kvw_cache *cache, const struct act *act)
{
    struct kvw_item publish[GROUPS];
    bool is_whole = true;

    for (uint32_t i = 0; i < act->n_items; i++) {
        publish[i] =
            (struct kvw_item){.group = act->item[i].group, .n = act->publish[i]};
        is_whole = is_whole && act->publish[i] == act->item[i].n;
    }
    return kvw_commit(cache, 0, is_whole ? NULL : publish, is_whole ? 0 : act->n_items);
}

/* What the own rank sees of its open chunk, of which `n` rows a layer are written. */
static void check_staged(struct kvw_cache *cache, const struct m_record *from,
                         const struct act *act, uint64_t n)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct kvw_view view;
        struct kvw_lane_state state;
        const struct kvw_item *item = item_of(act, layer);
        const uint64_t open = item == NULL ? 0 : item->n;

        OK(kvw_state(cache, 0, cache->rank, &state));
        OK(kvw_get(cache, 0, (struct kvw_layer){layer}, KVW_STAGED, &view));
        const char *wrong = model_check_view(from, &view, state.step, open,
                                             n < open ? n : open, act->stamp);
        EXPECT(wrong == NULL, "staged view: %s", wrong);
        OK(kvw_release(cache, &view));
    }
}

/* A chunk of one row is written, to be replaced; not where a peer ahead forbids it. */
static int begin_another(struct scene *scene, struct kvw_cache *cache,
                         const struct m_record *from, const struct act *act)
{
    struct act other = *act;

    other.stamp = model_stamp();
    for (uint32_t i = 0; i < other.n_items; i++)
        other.item[i].n = 1;
    int error = act_begin(cache, &other);
    if (error == 0)
        act_write(scene, cache, from, &other, 1);
    return error == -KVW_EDIVERGED ? 0 : error;
}

static int run_chunk(struct scene *scene, struct kvw_cache *cache,
                     const struct m_record *from, const struct act *act,
                     bool is_checked)
{
    int error = is_checked ? begin_another(scene, cache, from, act) : 0;
    if (error == 0)
        error = act_begin(cache, act);
    if (error != 0)
        return error;
    if (is_checked && (act_rows(act, 0) > 1 || act_rows(act, LAYERS - 1) > 1)) {
        /* Nothing that a dead owner wrote, or of another chunk, counts or is shown. */
        check_staged(cache, from, act, 0);
        error = kvw_commit(cache, 0, NULL, 0);
        EXPECT(error == -KVW_EINCOMPLETE, "commit of nothing written: %d", error);
    }
    act_write(scene, cache, from, act, UINT64_MAX);
    if (is_checked)
        check_staged(cache, from, act, UINT64_MAX);
    return act_commit(cache, act);
}

int act_run(struct scene *scene, struct kvw_cache *cache, const struct m_record *from,
            const struct act *act, bool is_checked)
{
    switch (act->kind) {
    case ACT_CHUNK:
        return run_chunk(scene, cache, from, act, is_checked);
    case ACT_TRUNCATE:
        return kvw_truncate(cache, 0, act->item, act->n_items);
    case ACT_EVICT:
        return kvw_evict(cache, 0, act->item, act->n_items);
    case ACT_KEEP:
        return kvw_keep(cache, 0, act->item, act->n_items);
    case ACT_RESET:
        return kvw_reset(cache, 0, act->item, act->n_items);
    case ACT_RESET_LAYER:
        return kvw_reset_layer(cache, 0, (struct kvw_layer){act->layer});
    }
    return -1;
}

void scene_run(struct scene *scene, uint32_t first, uint32_t end, const struct act *act)
{
    for (uint32_t rank = first; rank < end; rank++) {
        const uint64_t at = scene->lane.at[rank]++;
        model_apply(&scene->lane.record[at], act, &scene->lane.record[at + 1]);
        OK(act_run(scene, scene->worker[rank], &scene->lane.record[at], act, true));
    }
}

void scene_roll(struct scene *scene, uint64_t n_rows, uint64_t *random)
{
    struct m_lane *lane = &scene->lane;
    const uint64_t end0 = lane->record[lane->at[0]].group[0].rows + n_rows;
    const uint64_t end1 = lane->record[lane->at[0]].group[1].rows + n_rows;

    while (lane->record[lane->at[0]].group[0].rows < end0 ||
           lane->record[lane->at[0]].group[1].rows < end1) {
        struct act act = model_chunk_act(&lane->record[lane->at[0]],
                                         1 + test_random(random) % model_chunk(0),
                                         1 + test_random(random) % model_chunk(1));
        scene_run(scene, 0, lane->n_ranks, &act);
    }
}

void scene_hold(struct scene *scene)
{
    struct held *held = &scene->held;

    held->reader = stage_attach(&scene->live, KVW_READER, SLOT_HELD);
    held->record = scene->lane.record[model_common(&scene->lane)];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        OK(kvw_get(held->reader, 0, (struct kvw_layer){layer}, KVW_COMMITTED,
                   &held->view[layer]));
}

void scene_witness(struct scene *scene)
{
    struct held *witness = &scene->witness;

    witness->reader = stage_attach(&scene->live, KVW_READER, SLOT_LOOK);
    witness->record = scene->lane.record[scene->lane.at[0]];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        OK(kvw_cut(witness->reader, 0, (struct kvw_layer){layer}, 1, KVW_UNPINNED,
                   &witness->view[layer]));
    onlooker_look(witness->reader, &scene->onlooker);
}
