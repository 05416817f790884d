/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing rows of an open chunk: copied in (update) or in place (slots, written).
 * Coverage is a prefix of the chunk, complete in all planes, in one word per layer
 * beside the number of the begin, so that a successor has nothing to clear. The pass
 * word, beside it, changes around each writing, for those who look on (staged.h).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "client/board.h"
#include "client/client.h"
#include "client/step.h"
#include "proto/base/align.h"

/* Arguments common to all three calls. `call` is its name in the text. */
static int check_rows(const struct kvw_cache *cache, const char *call,
                      uint32_t lane_number, struct kvw_layer layer, uint64_t row_first,
                      uint64_t n_rows)
{
    int error = step_check_lane(cache, call, lane_number);
    if (error != 0)
        return error;
    if (layer.index >= cache->geometry.n_layers || !cache->layers[layer.index].is_held)
        return fail(-ERANGE, "%s '%s': rank %u does not hold layer %u of %u", call,
                    cache->name, cache->rank, layer.index, cache->geometry.n_layers);
    const uint32_t g = cache->layers[layer.index].group;
    const uint64_t open = lane_of(cache, lane_number)->open[g].n;
    if (n_rows > open || row_first > open - n_rows)
        return fail(-EINVAL,
                    "%s '%s': group '%s': need rows of the %" PRIu64
                    " begun, have %" PRIu64 " from %" PRIu64 "%s",
                    call, cache->name, cache->geometry.group[g].name, open, n_rows,
                    row_first, open == 0 ? " (no chunk is open)" : "");
    return 0;
}

static int check_gap(const struct kvw_cache *cache, const char *call, uint32_t lane,
                     struct kvw_layer layer, uint64_t row_first)
{
    uint64_t written = step_written(cache, lane, layer.index);
    if (row_first > written)
        return fail(-EINVAL,
                    "%s '%s': layer %u: rows of the chunk before that one are not "
                    "written yet: need a first row up to %" PRIu64 ", have %" PRIu64,
                    call, cache->name, layer.index, written, row_first);
    return 0;
}

/* The pass word of a layer while it is written: odd, of this claim. What an earlier chunk
 * left, or a dead owner, is void. */
static uint64_t word_of_writing(const struct kvw_cache *cache, uint32_t lane_number,
                                struct kvw_layer layer)
{
    const uint64_t claim = lane_of(cache, lane_number)->claim & UINT32_MAX;
    struct kvw_board *board = board_of(cache, cache->rank, lane_number);
    uint64_t word = load_relaxed(board_pass(cache, board, layer.index));

    return (word >> 32 == claim ? word : claim << 32) | 1;
}

/* From here on rows of the layer change: views of others that show them are void. */
static void set_writing(struct kvw_cache *cache, uint32_t lane_number,
                        struct kvw_layer layer)
{
    struct kvw_board *board = board_of(cache, cache->rank, lane_number);

    store_relaxed(board_pass(cache, board, layer.index),
                  word_of_writing(cache, lane_number, layer));
    fence_streamed();
    fence_release(); /* X1, pairs with R1 and X4: the word before the rows */
}

static void set_written(struct kvw_cache *cache, uint32_t lane_number,
                        struct kvw_layer layer, uint64_t rows)
{
    const struct lane *lane = lane_of(cache, lane_number);
    struct kvw_board *board = board_of(cache, cache->rank, lane_number);

    rows = max_u64(rows, step_written(cache, lane_number, layer.index));
    /* X2, pairs with X3. */
    store_release(board_staged(cache, board, layer.index),
                  (lane->claim & UINT32_MAX) << 32 | rows);
    /* X2, pairs with X3. */
    store_release(board_pass(cache, board, layer.index),
                  word_of_writing(cache, lane_number, layer) + 1);
    board_wake(cache, lane_number);
}

/* Copy n_blocks blocks from one stride to another. A decoder's row is many short
 * copies: the loop around them must stay a handful of instructions. */
static void copy_blocks(char *to, uint64_t to_stride, const char *from,
                        int64_t from_stride, uint64_t n_blocks, uint64_t n_bytes)
{
    for (uint64_t i = 0; i < n_blocks; i++) {
        memcpy(to, from, n_bytes);
        to += to_stride;
        from += from_stride;
    }
}

/* One plane of one run. */
static void copy_run(char *to, const struct kvw_layout_plane *plane, const char *from,
                     const struct kvw_source *source, uint32_t n_heads, uint64_t n_rows)
{
    if (n_rows == 1 || source->row_bytes == (int64_t)plane->row_bytes) {
        copy_blocks(to, plane->head_bytes, from, source->head_bytes, n_heads,
                    n_rows * plane->row_bytes);
        return;
    }
    for (uint32_t h = 0; h < n_heads; h++)
        copy_blocks(to + h * plane->head_bytes, plane->row_bytes,
                    from + h * source->head_bytes, source->row_bytes, n_rows,
                    plane->row_bytes);
}

int kvw_update(struct kvw_cache *cache, uint32_t lane, struct kvw_layer layer,
               uint64_t row_first, uint64_t n_rows, const struct kvw_source *sources)
{
    struct kvw_run runs[KVW_PIECES_MAX];

    int error = check_rows(cache, "update", lane, layer, row_first, n_rows);
    if (error == 0)
        error = check_gap(cache, "update", lane, layer, row_first);
    if (error != 0)
        return error;
    const struct layer_place *place = &cache->layers[layer.index];
    const uint32_t g = place->group;
    const uint64_t chunk_row = lane_of(cache, lane)->record->group[g].rows;
    const struct kvw_interval heads = cache->heads[g];
    const uint32_t n_runs = step_own_runs(cache, lane, g, row_first, n_rows, runs);

    set_writing(cache, lane, layer);
    for (uint32_t p = 0; p < cache->geometry.group[g].n_planes; p++) {
        const struct kvw_layout_plane *plane = &cache->layout.group[g].plane[p];
        const struct kvw_source *source = &sources[p];
        char *base = cache->data + layout_row_offset(&cache->layout, g, place->in_group,
                                                     p, lane, heads.begin, 0);
        for (uint32_t r = 0; r < n_runs; r++) {
            const struct kvw_run *run = &runs[r];
            const char *from =
                (const char *)source->data +
                (int64_t)(run->row - chunk_row - row_first) * source->row_bytes;
            copy_run(base + run->slot * plane->row_bytes, plane, from, source,
                     heads.end - heads.begin, run->n);
        }
    }
    set_written(cache, lane, layer, row_first + n_rows);
    return 0;
}

int kvw_slots(struct kvw_cache *cache, uint32_t lane, struct kvw_layer layer,
              uint64_t row_first, uint64_t n_rows, struct kvw_slots *slots)
{
    struct kvw_run runs[KVW_PIECES_MAX];

    int error = check_rows(cache, "slots", lane, layer, row_first, n_rows);
    if (error != 0)
        return error;
    const struct layer_place *place = &cache->layers[layer.index];
    const struct kvw_geometry_group *group = &cache->geometry.group[place->group];
    const struct kvw_group_record *record =
        &lane_of(cache, lane)->record->group[place->group];
    const uint64_t position =
        rules_chunk_position(group, record, lane_of(cache, lane)->open[place->group].n);
    slots->n_pieces = step_own_runs(cache, lane, place->group, row_first, n_rows, runs);
    slots->n_planes = group->n_planes;
    slots->head_first = cache->heads[place->group].begin;
    slots->n_heads = cache->heads[place->group].end - slots->head_first;
    cache_planes(cache, layer.index, lane, slots->head_first, slots->plane);
    for (uint32_t r = 0; r < slots->n_pieces; r++)
        slots->piece[r] = (struct kvw_piece){
            .row = runs[r].row,
            .position = position + (runs[r].row - record->rows),
            .n_rows = (uint32_t)runs[r].n,
            .slot = (uint32_t)runs[r].slot,
            .piece_class = KVW_PIECE_CURRENT,
        };
    set_writing(cache, lane, layer);
    return 0;
}

int kvw_written(struct kvw_cache *cache, uint32_t lane, struct kvw_layer layer,
                uint64_t row_first, uint64_t n_rows)
{
    int error = check_rows(cache, "written", lane, layer, row_first, n_rows);
    if (error == 0)
        error = check_gap(cache, "written", lane, layer, row_first);
    if (error == 0) {
        fence_streamed(); /* rows may have been written by non-temporal stores */
        set_written(cache, lane, layer, row_first + n_rows);
    }
    return error;
}
