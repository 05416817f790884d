/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Poison mode, over three windows and more: after a begin each row that it opened reads as
 * NaN (or bytes 0x7f) in every type until it is written, whatever was there before; every
 * committed row that is shown stays as it was; rows of other ranks are not touched. Without
 * the variable begin writes nothing.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/world.h"

enum { LAYERS = 2, HEADS = 2, PLANES = 6, SINK = 2, WINDOW = 11, CHUNK = 3, RANKS = 2 };

#define RING ((WINDOW - SINK + CHUNK + 3) / 4 * 4) /* whole periods of the partition */

struct run {
    struct world world;
    uint64_t rows; /* committed */
    uint64_t n_poisoned;
    uint64_t n_kept;
};

/* Two ranks that share the rows in blocks of two, so that each has rows of the other
 * beside its own. */
static void make_geometry(struct kvw_geometry *geometry)
{
    struct kvw_geometry_group *group = &geometry->group[0];

    world_geometry(geometry, LAYERS, HEADS);
    geometry->n_ranks = RANKS;
    geometry->partition.row_parts = RANKS;
    geometry->partition.row_block = 2;
    group->window_rows = WINDOW;
    group->sink_rows = SINK;
    group->chunk_rows_max = CHUNK;
    group->slack_chunks = 1;
    group->n_planes = PLANES;
    for (uint32_t p = 0; p < PLANES; p++) {
        struct kvw_geometry_plane *plane = &group->plane[p];
        *plane = (struct kvw_geometry_plane){.elems = 3 + p, .type = (uint8_t)(1 + p)};
        plane->name[0] = (char)('a' + p);
    }
}

static bool fail(const char *what, uint64_t number)
{
    printf("poison: %s: %" PRIu64 " (%s)\n", what, number, kvw_last_error());
    return false;
}

static uint64_t slot_of(uint64_t row)
{
    return row < SINK ? row : SINK + (row - SINK) % RING;
}

static uint32_t rank_of(const struct run *run, uint64_t row)
{
    return (uint32_t)(row / 2 % run->world.geometry.n_ranks);
}

static uint64_t stamp_of(uint64_t row, uint32_t layer)
{
    return world_mix(row, layer, 7);
}

/* An element that no computation takes for a value, and that no arithmetic made: its
 * quiet bit is clear. */
static bool is_poison(const char *at, uint8_t type)
{
    uint32_t f32 = 0;
    uint16_t half = 0;

    memcpy(&f32, at, geometry_elem_bytes(type));
    memcpy(&half, at, geometry_elem_bytes(type) < 2 ? 1 : 2);
    switch (type) {
    case KVW_GEOMETRY_F32:
        return (f32 & 0x7f800000u) == 0x7f800000u && (f32 & 0x7fffffu) != 0 &&
               (f32 & 0x400000u) == 0;
    case KVW_GEOMETRY_BF16:
        return (half & 0x7f80u) == 0x7f80u && (half & 0x7fu) != 0 &&
               (half & 0x40u) == 0;
    case KVW_GEOMETRY_F16:
        return (half & 0x7c00u) == 0x7c00u && (half & 0x3ffu) != 0 &&
               (half & 0x200u) == 0;
    case KVW_GEOMETRY_U32:
        return f32 == 0x7f7f7f7fu;
    default:
        return half == 0x7f;
    }
}

typedef bool row_fn(struct run *run, const char *at,
                    const struct kvw_geometry_plane *plane, uint32_t p, uint32_t head,
                    uint64_t stamp);

static bool is_unwritten(struct run *run, const char *at,
                         const struct kvw_geometry_plane *plane, uint32_t p,
                         uint32_t head, uint64_t stamp)
{
    (void)p, (void)head, (void)stamp;
    for (uint32_t i = 0; i < plane->elems; i++) {
        if (!is_poison(at + (size_t)i * geometry_elem_bytes(plane->type), plane->type))
            return false;
    }
    run->n_poisoned++;
    return true;
}

static bool is_written(struct run *run, const char *at,
                       const struct kvw_geometry_plane *plane, uint32_t p,
                       uint32_t head, uint64_t stamp)
{
    run->n_kept++;
    return world_is_filled(at, plane, p, head, stamp);
}

/* All bytes of a row. */
static bool check_row(struct run *run, uint64_t row, row_fn *is_right)
{
    const struct kvw_geometry_group *group = &run->world.geometry.group[0];

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t p = 0; p < PLANES; p++) {
            for (uint32_t head = 0; head < HEADS; head++) {
                const char *at =
                    world_row(&run->world, layer, p, 0, head, slot_of(row));
                if (!is_right(run, at, &group->plane[p], p, head, stamp_of(row, layer)))
                    return false;
            }
        }
    }
    return true;
}

/* The sink and the window. */
static bool check_committed(struct run *run)
{
    const uint64_t first = run->rows > WINDOW ? run->rows - (WINDOW - SINK) : 0;

    for (uint64_t row = 0; row < run->rows; row++) {
        if ((row < SINK || row >= first) && !check_row(run, row, is_written))
            return fail("a committed row has changed", row);
    }
    return true;
}

static bool write_rows(struct run *run, uint32_t rank, uint64_t n_rows)
{
    const struct kvw_geometry_group *group = &run->world.geometry.group[0];
    struct kvw_cache *cache = run->world.seat[rank];

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint64_t row = run->rows; row < run->rows + n_rows; row++) {
            for (uint32_t p = 0; p < PLANES && rank_of(run, row) == rank; p++) {
                for (uint32_t head = 0; head < HEADS; head++)
                    world_fill(world_row(&run->world, layer, p, 0, head, slot_of(row)),
                               &group->plane[p], p, head, stamp_of(row, layer));
            }
        }
        int error = kvw_written(cache, 0, (struct kvw_layer){layer}, 0, n_rows);
        if (error != 0)
            return fail("written", layer);
    }
    return true;
}

/* One rank's half of a chunk; those after it have not begun theirs. */
static bool add_half(struct run *run, uint32_t rank, uint64_t n_rows, bool is_on)
{
    const struct kvw_item item = {.row = run->rows, .n = n_rows};
    struct kvw_cache *cache = run->world.seat[rank];
    static char before[1 << 16];

    if (run->world.layout.data_bytes > sizeof before)
        return fail("data", run->world.layout.data_bytes);
    memcpy(before, run->world.data, run->world.layout.data_bytes);
    if (kvw_begin(cache, 0, &item, 1, NULL) != 0)
        return fail("begin at", run->rows);
    if (!is_on)
        return memcmp(before, run->world.data, run->world.layout.data_bytes) == 0 ||
               fail("a begin wrote rows at", run->rows);
    for (uint64_t row = run->rows; row < run->rows + n_rows; row++) {
        if (rank_of(run, row) == rank && !check_row(run, row, is_unwritten))
            return fail("an open row is not poisoned", row);
    }
    if (!check_committed(run) || !write_rows(run, rank, n_rows))
        return false;
    /* The same begin again is no begin: what was written stays. */
    if (kvw_begin(cache, 0, &item, 1, NULL) != 0)
        return fail("begin again at", run->rows);
    return kvw_commit(cache, 0, NULL, 0) == 0 || fail("commit at", run->rows);
}

static bool roll(struct run *run)
{
    for (uint32_t i = 0; run->rows < 3 * WINDOW + SINK; i++) {
        const uint64_t n_rows = i % 3 == 1 ? 1 : CHUNK;
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            if (!add_half(run, rank, n_rows, true))
                return false;
        }
        run->rows += n_rows;
        if (!check_committed(run))
            return false;
        if (i % 4 == 3) { /* what is dropped is poisoned when it is opened again */
            const struct kvw_item item = {.row = run->rows - 1};
            for (uint32_t rank = 0; rank < RANKS; rank++) {
                if (kvw_truncate(run->world.seat[rank], 0, &item, 1) != 0)
                    return fail("truncate to", item.row);
            }
            run->rows--;
        }
    }
    return true;
}

static bool attach_all(struct run *run)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (run->world.seat[rank] != NULL)
            world_detach(&run->world, rank);
        if (world_attach(&run->world, rank) != 0)
            return fail("attach", rank);
    }
    return true;
}

/* A reader's view of staged rows is void when a begin poisons them. */
static bool spoil_staged(void)
{
    static struct run run;
    const struct kvw_item items[2] = {{.n = CHUNK}, {.n = 1}};
    struct kvw_geometry geometry;
    struct kvw_view view;

    make_geometry(&geometry);
    geometry.n_ranks = geometry.partition.row_parts = 1;
    geometry.partition.row_block = 0;
    if (world_init(&run.world, &geometry) != 0 || world_attach(&run.world, 0) != 0 ||
        world_attach(&run.world, WORLD_RANKS_MAX) != 0)
        return fail("attach", 0);
    struct kvw_cache *reader = run.world.seat[WORLD_RANKS_MAX];
    struct kvw_cache *rank = run.world.seat[0];
    if (kvw_begin(rank, 0, &items[0], 1, NULL) != 0 || !write_rows(&run, 0, CHUNK) ||
        kvw_get(reader, 0, (struct kvw_layer){1}, KVW_STAGED, &view) != 0 ||
        view.n_rows != CHUNK)
        return fail("a reader's view of the chunk has rows", view.n_rows);
    if (kvw_begin(rank, 0, &items[1], 1, NULL) != 0)
        return fail("begin with fewer rows", 1);
    if (kvw_release(reader, &view) != -KVW_EOVERRUN)
        return fail("a view of poisoned rows was released as good", 0);
    if (kvw_get(reader, 0, (struct kvw_layer){1}, KVW_STAGED, &view) != 0 ||
        view.n_rows != 0 || kvw_release(reader, &view) != 0)
        return fail("poisoned rows are shown", view.n_rows);
    world_fini(&run.world);
    return true;
}

int main(void)
{
    static struct run run;
    struct kvw_geometry geometry;
    struct kvw_refusal refusal;

    make_geometry(&geometry);
    if (geometry_check(&geometry, &refusal) != 0 ||
        world_init(&run.world, &geometry) != 0) {
        printf("poison: %s\n", refusal.text);
        return 1;
    }
    bool is_ok = setenv("KVWHEEL_POISON", "1", 1) == 0 && attach_all(&run) &&
                 run.world.layout.group[0].ring_rows == RING && roll(&run) &&
                 spoil_staged();
    is_ok = is_ok && setenv("KVWHEEL_POISON", "0", 1) == 0 && attach_all(&run) &&
            add_half(&run, 0, CHUNK, false);
    is_ok = is_ok && unsetenv("KVWHEEL_POISON") == 0 && attach_all(&run) &&
            add_half(&run, 0, CHUNK, false);
    printf("%" PRIu64 " rows (window %d), %" PRIu64
           " times a row was poisoned, %" PRIu64
           " times a committed one was looked at\n",
           run.rows, WINDOW, run.n_poisoned, run.n_kept);
    world_fini(&run.world);
    return is_ok && run.n_poisoned > 0 ? 0 : 1;
}
