/* SPDX-License-Identifier: Apache-2.0 */
/* See attn_tile.h. */
#include "kernels/attn_tile.h"

#include <math.h>
#include <string.h>

#include "kernels/rows.h"

#define LOG2_E 1.4426950408889634
/* Rows to ask for before they are read: fewer are those that are read at the same time, and
 * more would not stay in the L1 cache. Rows of int8 are short: 8 KiB of them. */
#define AHEAD 32
#define AHEAD_I8 64

/* What slots without a row read as: a row of any type. */
static const float zeros[KVW_HEAD_DIM_MAX];

static bool is_numbered(const struct kvw_attn_args *args,
                        const struct kvw_attn_piece *piece)
{
    return args->mask != KVW_ATTN_NONE && (piece->flags & KVW_ATTN_ALWAYS) == 0;
}

struct attn_place attn_cursor_place(struct attn_cursor *cursor,
                                    const struct kvw_attn_args *args, uint32_t n_slots)
{
    while (cursor->piece < args->n_pieces) {
        const struct kvw_attn_piece *p = &args->pieces[cursor->piece];
        if (cursor->row < p->n_rows && !isinf(p->bias)) {
            const bool has_numbers = is_numbered(args, p);
            if (has_numbers)
                cursor->count = 0;
            const uint64_t at =
                has_numbers ? p->first_row + cursor->row : cursor->count;
            return (struct attn_place){.index = at / n_slots,
                                       .is_numbered = has_numbers};
        }
        cursor->piece++;
        cursor->row = 0;
    }
    return (struct attn_place){.is_end = true};
}

bool attn_places_share_part(const struct attn_place *a, const struct attn_place *b,
                            uint32_t n_slots)
{
    const uint32_t n_tiles = ATTN_PART / n_slots;

    return !b->is_end && a->is_numbered == b->is_numbered &&
           a->index / n_tiles == b->index / n_tiles;
}

static void tile_clear(struct attn_tile *tile, const struct attn_place *place,
                       const struct attn_shape *shape)
{
    const uint32_t n = shape->n_slots;

    for (uint32_t i = 0; i < n; i++) {
        tile->k[i] = zeros;
        tile->v[i] = zeros;
    }
    memset(tile->filled, 0, sizeof(tile->filled));
    if (shape->kv_type == KVW_NUM_I8) {
        memset(tile->k_scale, 0, n * sizeof(tile->k_scale[0]));
        memset(tile->v_scale, 0, n * sizeof(tile->v_scale[0]));
    }
    tile->first_row = place->index * n;
    tile->begin = n;
    tile->end = 0;
    tile->is_numbered = place->is_numbered;
    tile->has_bias = false;
    tile->has_raw = false;
}

static void bits_set(uint64_t words[ATTN_WORDS], uint32_t begin, uint32_t end)
{
    for (uint32_t w = 0; w < ATTN_WORDS; w++) {
        const uint32_t first = w * 64;
        const uint32_t from = begin > first ? begin - first : 0;
        const uint32_t to = end > first ? end - first : 0;
        if (from >= 64 || to <= from)
            continue;
        words[w] |=
            (to >= 64 ? UINT64_MAX : ((uint64_t)1 << to) - 1) & (UINT64_MAX << from);
    }
}

static void fill_some(float *to, const char *from, ptrdiff_t stride, uint32_t n)
{
    if (stride == sizeof(*to)) {
        memcpy(to, from, n * sizeof(*to));
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        to[i] = *(const float *)(const void *)from;
        from += stride;
    }
}

static void fill_scales(struct attn_tile *tile, uint32_t slot, uint32_t n,
                        const struct kvw_attn_piece *p, uint64_t row, uint32_t kv_head)
{
    const char *k = row_in(p->k_scales, row, p->k_scales_row_stride, kv_head,
                           p->k_scales_head_stride);
    const char *v = row_in(p->v_scales, row, p->v_scales_row_stride, kv_head,
                           p->v_scales_head_stride);

    fill_some(&tile->k_scale[slot], k, p->k_scales_row_stride, n);
    fill_some(&tile->v_scale[slot], v, p->v_scales_row_stride, n);
}

/* Slots without their own bias or position have none, from the first time one has. */
static void fill_extras(struct attn_tile *tile, uint32_t slot, uint32_t n,
                        const struct kvw_attn_piece *p, uint64_t row)
{
    const bool is_raw = (p->flags & KVW_ATTN_RAW_KEYS) != 0;

    if (p->bias != 0 && !tile->has_bias) {
        memset(tile->bias, 0, sizeof(tile->bias));
        tile->has_bias = true;
    }
    if (is_raw && !tile->has_raw) {
        memset(tile->position, 0xff, sizeof(tile->position));
        tile->has_raw = true;
    }
    for (uint32_t i = 0; i < n && tile->has_bias; i++)
        tile->bias[slot + i] = (float)((double)p->bias * LOG2_E);
    for (uint32_t i = 0; i < n && is_raw; i++)
        tile->position[slot + i] = p->pos_base + row + i;
}

static void fill_rows(struct attn_tile *tile, uint32_t slot, uint32_t n,
                      const struct kvw_attn_piece *p, uint64_t row, uint32_t kv_head)
{
    const char *k = row_in(p->k, row, p->k_row_stride, kv_head, p->k_head_stride);
    const char *v = row_in(p->v, row, p->v_row_stride, kv_head, p->v_head_stride);

    for (uint32_t i = 0; i < n; i++) {
        tile->k[slot + i] = k + (ptrdiff_t)i * p->k_row_stride;
        tile->v[slot + i] = v + (ptrdiff_t)i * p->v_row_stride;
    }
    const ptrdiff_t ahead = p->k_scales != NULL ? AHEAD_I8 : AHEAD;
    tile->k_ahead = ahead * p->k_row_stride;
    tile->v_ahead = ahead * p->v_row_stride;
    bits_set(tile->filled, slot, slot + n);
    if (slot < tile->begin)
        tile->begin = slot;
    if (slot + n > tile->end)
        tile->end = slot + n;
}

void attn_cursor_take(struct attn_cursor *cursor, const struct kvw_attn_args *args,
                      const struct attn_shape *shape, uint32_t kv_head,
                      struct attn_tile *tile)
{
    const uint32_t n_slots = shape->n_slots;
    const struct attn_place here = attn_cursor_place(cursor, args, n_slots);
    struct attn_place place = here;

    if (tile != NULL)
        tile_clear(tile, &here, shape);
    while (!place.is_end && place.is_numbered == here.is_numbered &&
           place.index == here.index) {
        const struct kvw_attn_piece *p = &args->pieces[cursor->piece];
        const uint64_t at =
            here.is_numbered ? p->first_row + cursor->row : cursor->count;
        const uint32_t slot = (uint32_t)(at % n_slots);
        const uint64_t left = p->n_rows - cursor->row;
        const uint32_t n = left < n_slots - slot ? (uint32_t)left : n_slots - slot;
        if (tile != NULL) {
            fill_rows(tile, slot, n, p, cursor->row, kv_head);
            fill_extras(tile, slot, n, p, cursor->row);
            if (shape->kv_type == KVW_NUM_I8)
                fill_scales(tile, slot, n, p, cursor->row, kv_head);
        }
        cursor->row += n;
        cursor->count += n;
        place = attn_cursor_place(cursor, args, n_slots);
    }
}

struct attn_sight attn_sight_of(const struct kvw_attn_args *args, uint32_t query)
{
    const uint64_t row = args->q_first_row + query;
    struct attn_sight s = {.end = row + 1, .lo = 0};

    if (args->mask == KVW_ATTN_NONE)
        return (struct attn_sight){.end = UINT64_MAX};
    if (args->mask == KVW_ATTN_BLOCK_CAUSAL) {
        const uint64_t first = args->block_first_row;
        s.end = first;
        if (row >= first)
            s.end = row - (row - first) % args->block_rows + args->block_rows;
    }
    if (args->window_rows != 0) {
        const uint64_t recent = args->window_rows - args->sink_rows;
        s.lo = s.end > recent ? s.end - recent : 0;
    }
    return s;
}

/* Where a row number lies in a tile: 0 if before, n_max if behind. */
static uint32_t slot_of(uint64_t row, uint64_t first_row)
{
    const uint64_t at = row > first_row ? row - first_row : 0;

    return at < ATTN_TILE ? (uint32_t)at : ATTN_TILE;
}

void attn_tile_seen(uint64_t seen[ATTN_WORDS], const struct attn_tile *tile,
                    const struct attn_sight *sight, uint64_t sink_rows)
{
    if (!tile->is_numbered) {
        memcpy(seen, tile->filled, sizeof(tile->filled));
        return;
    }

    const uint32_t end = slot_of(sight->end, tile->first_row);
    const uint32_t lo = slot_of(sight->lo, tile->first_row);
    const uint32_t sink = slot_of(sink_rows, tile->first_row);
    memset(seen, 0, sizeof(tile->filled));
    bits_set(seen, 0, sink < end ? sink : end);
    bits_set(seen, lo, end);
    for (uint32_t w = 0; w < ATTN_WORDS; w++)
        seen[w] &= tile->filled[w];
}
