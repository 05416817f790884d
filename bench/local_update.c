/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Update of one row of a layer: 64 copies of 256 bytes, to as many places of the cache.
 * Its floor is those copies alone, to the same places; beside them, one copy of 16 KiB.
 * Every variant rolls on through the window, which is larger than the CPU's caches, so
 * that each copy finds its target in memory; and once more, where the row was written
 * just before (a denoising pass that overwrites the last).
 */
#include "bench/local.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FLAT_BYTES ((size_t)LOCAL_RING_ROWS * LOCAL_LAYERS * 2 * LOCAL_PLANE_BYTES)

#define CHUNKS_PER_ROUND 4

struct update {
    struct local *local;
    bool is_again; /* the row was written just before */
    char *flat;    /* memory for rows that lie in a row */
};

/* All copies of one row, the way anyone would write them. */
static void copy_heads(const struct kvw_slots *slots, const struct kvw_source *sources)
{
    for (uint32_t p = 0; p < slots->n_planes; p++) {
        const struct kvw_plane *plane = &slots->plane[p];
        const char *from = sources[p].data;
        char *to = kvw_piece_at(plane, &slots->piece[0], 0);
        for (uint32_t h = 0; h < slots->n_heads; h++) {
            memcpy(to, from, plane->row_bytes);
            to += plane->head_bytes;
            from += sources[p].head_bytes;
        }
    }
}

static int update_layer(const struct update *update, struct kvw_layer layer,
                        struct bench_samples *samples)
{
    const struct local *local = update->local;

    uint64_t begun = bench_now_ns();
    int error = kvw_update(local->writer, 0, layer, 0, 1, local->sources);
    bench_add(samples, bench_now_ns() - begun, 1);
    return error;
}

static int copy_layer(const struct update *update, struct kvw_layer layer,
                      struct bench_samples *samples)
{
    const struct local *local = update->local;
    struct kvw_slots slots;

    int error = kvw_slots(local->writer, 0, layer, 0, 1, &slots);
    if (error != 0)
        return error;
    uint64_t begun = bench_now_ns();
    copy_heads(&slots, local->sources);
    bench_add(samples, bench_now_ns() - begun, 1);
    return kvw_written(local->writer, 0, layer, 0, 1);
}

static int copy_flat(const struct update *update, struct kvw_layer layer,
                     struct bench_samples *samples)
{
    const struct local *local = update->local;
    const size_t row_bytes = 2 * LOCAL_PLANE_BYTES;
    const size_t row = local->rows % LOCAL_RING_ROWS * LOCAL_LAYERS + layer.index;
    char *to = update->flat + row * row_bytes;

    if (update->is_again)
        memcpy(to, local->row, row_bytes);
    uint64_t begun = bench_now_ns();
    memcpy(to, local->row, row_bytes);
    bench_touch(to);
    bench_add(samples, bench_now_ns() - begun, 1);
    return update->is_again ? 0
                            : kvw_update(local->writer, 0, layer, 0, 1, local->sources);
}

typedef int layer_fn(const struct update *update, struct kvw_layer layer,
                     struct bench_samples *samples);

/* One chunk through all layers: 32 samples. */
static int roll_once(const struct update *update, layer_fn *measure,
                     struct bench_samples *samples)
{
    struct local *local = update->local;

    int error = local_begin(local);
    if (error == 0)
        error = local_write(local, LOCAL_LAYERS);
    for (uint32_t i = 0; i < LOCAL_LAYERS && error == 0; i++) {
        const struct kvw_layer layer = {i};
        if (update->is_again)
            error = kvw_update(local->writer, 0, layer, 0, 1, local->sources);
        if (error == 0)
            error = measure(update, layer, samples);
    }
    return error == 0 ? local_commit(local) : error;
}

static int roll(const struct update *update, layer_fn *measure,
                struct bench_samples *samples)
{
    int error = 0;

    for (int i = 0; i < CHUNKS_PER_ROUND && error == 0; i++)
        error = roll_once(update, measure, samples);
    return error;
}

static int roll_update(void *context, struct bench_samples *samples)
{
    return roll(context, update_layer, samples);
}

static int roll_copies(void *context, struct bench_samples *samples)
{
    return roll(context, copy_layer, samples);
}

static int roll_flat(void *context, struct bench_samples *samples)
{
    return roll(context, copy_flat, samples);
}

static int compare(const char *group, struct update *update)
{
    const struct bench_variant variants[] = {
        {.name = "kvw_update",
         .floor = {"memcpy of each head", "one memcpy of 16 KiB"},
         .each = roll_update,
         .context = update},
        {.name = "memcpy of each head",
         .floor = {"one memcpy of 16 KiB"},
         .each = roll_copies,
         .context = update},
        {.name = "one memcpy of 16 KiB", .each = roll_flat, .context = update},
    };

    return bench_compare(update->local->bench, group, variants, 3);
}

int local_update(struct local *local)
{
    struct update update = {.local = local, .flat = malloc(FLAT_BYTES)};

    if (update.flat == NULL)
        return -ENOMEM;
    memset(update.flat, 1, FLAT_BYTES);
    int error = compare("update of a row, 16 KiB in 64 heads", &update);
    update.is_again = true;
    if (error == 0)
        error = compare("the same, of a row just written", &update);
    free(update.flat);
    return error;
}
