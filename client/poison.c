/* SPDX-License-Identifier: Apache-2.0 */
/* A signalling NaN where a type has one; the largest byte with a sign where not. */
#include "client/poison.h"

#include <string.h>

#include "client/board.h"
#include "client/step.h"

#define POISON_F32 0x7fa00000u /* quiet bit (22) clear */
#define POISON_BF16 0x7fa0u    /* quiet bit (6) clear */
#define POISON_F16 0x7d00u     /* quiet bit (9) clear */
#define POISON_BYTE 0x7f       /* i8, u8, u32: 0x7f7f7f7f is no token of any model */

static void fill(char *to, uint8_t type, uint64_t n_bytes)
{
    const uint32_t f32 = POISON_F32;
    const uint16_t half = type == KVW_GEOMETRY_BF16 ? POISON_BF16 : POISON_F16;

    switch (type) {
    case KVW_GEOMETRY_F32:
        for (uint64_t i = 0; i < n_bytes; i += sizeof f32)
            memcpy(to + i, &f32, sizeof f32);
        break;
    case KVW_GEOMETRY_BF16:
    case KVW_GEOMETRY_F16:
        for (uint64_t i = 0; i < n_bytes; i += sizeof half)
            memcpy(to + i, &half, sizeof half);
        break;
    default:
        memset(to, POISON_BYTE, n_bytes);
        break;
    }
}

static void fill_layer(struct kvw_cache *cache, uint32_t lane, uint32_t g,
                       uint32_t in_group, const struct kvw_run *run)
{
    const struct kvw_geometry_group *group = &cache->geometry.group[g];

    for (uint32_t p = 0; p < group->n_planes; p++) {
        for (uint32_t h = cache->heads[g].begin; h < cache->heads[g].end; h++)
            fill(cache->data + layout_row_offset(&cache->layout, g, in_group, p, lane,
                                                 h, run->slot),
                 group->plane[p].type,
                 run->n * cache->layout.group[g].plane[p].row_bytes);
    }
}

/* Views of others that show what was staged here before are void, and nothing is staged
 * now: no row, no pass. */
static void void_layer(struct kvw_cache *cache, uint32_t lane_number, uint32_t layer)
{
    struct kvw_board *board = board_of(cache, cache->rank, lane_number);
    const uint64_t claim = lane_of(cache, lane_number)->claim & UINT32_MAX;

    store_relaxed(board_staged(cache, board, layer), claim << 32);
    /* X2, pairs with X3. */
    store_release(board_pass(cache, board, layer), claim << 32);
    fence_release(); /* X1, pairs with R1 and X4: the word before the rows */
}

void poison_open_rows(struct kvw_cache *cache, uint32_t lane)
{
    struct kvw_run runs[KVW_PIECES_MAX];

    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        const struct kvw_geometry_group *group = &cache->geometry.group[g];
        const uint64_t open = lane_of(cache, lane)->open[g].n;
        const uint32_t n_runs = step_own_runs(cache, lane, g, 0, open, runs);
        for (uint32_t l = 0; l < group->n_layers; l++) {
            if (open == 0 || !cache->layers[group->layer_first + l].is_held)
                continue;
            void_layer(cache, lane, group->layer_first + l);
            for (uint32_t r = 0; r < n_runs; r++)
                fill_layer(cache, lane, g, l, &runs[r]);
        }
    }
}
