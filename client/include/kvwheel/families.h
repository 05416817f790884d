/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small helpers for model families over the calls of kvwheel.h, header only. docs/families.md
 * says for each family which calls it needs; here is what takes more than one call, and the
 * arithmetic that goes with it. The Python package has the same in kvwheel.families.
 *
 * Nothing here keeps state but struct kvw_offsets, which is the caller's. A call that fails
 * after its first step says which step failed (kvw_last_error()) and may be made again.
 */
#ifndef KVWHEEL_FAMILIES_H
#define KVWHEEL_FAMILIES_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include <kvwheel/kvwheel.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVW_OFFSETS_MAX 64 /* switches and jumps since the last reset */

/*
 * Absolute positions where a row's number is not its position: rows from `row[i]` on are
 * at their number + offset[i]. Ascending; zero-initialised: position = number.
 */
struct kvw_offsets {
    uint32_t n;
    uint64_t row[KVW_OFFSETS_MAX];
    int64_t offset[KVW_OFFSETS_MAX];
};

/** The absolute position of a row. */
static inline uint64_t kvw_offsets_position(const struct kvw_offsets *offsets,
                                            uint64_t row)
{
    for (uint32_t i = offsets->n; i > 0; i--) {
        if (offsets->row[i - 1] <= row)
            return row + (uint64_t)offsets->offset[i - 1];
    }
    return row;
}

/** Rows from `row` on are at `position` and after. @return 0, or -ENOSPC. */
static inline int kvw_offsets_set(struct kvw_offsets *offsets, uint64_t row,
                                  uint64_t position)
{
    uint32_t n = offsets->n;

    while (n > 0 && offsets->row[n - 1] >= row)
        n--;
    if (n == KVW_OFFSETS_MAX)
        return -ENOSPC;
    offsets->row[n] = row;
    offsets->offset[n] = (int64_t)(position - row);
    offsets->n = n + 1;
    return 0;
}

/**
 * Leave the sink and the last `n_rows` rows of a group (infinity-RoPE's flush).
 * @return as kvw_state() and kvw_evict().
 */
static inline int kvw_evict_to_last(struct kvw_cache *cache, uint32_t lane,
                                    uint32_t group, uint64_t n_rows)
{
    struct kvw_lane_state state;

    int error = kvw_state(cache, lane, kvw_cache_rank(cache), &state);
    if (error != 0)
        return error;
    if (group >= state.n_groups)
        return -EINVAL;
    const uint64_t rows = state.group[group].rows;
    const struct kvw_item item = {group, 0, rows > n_rows ? rows - n_rows : 0, 0, 0};
    return kvw_evict(cache, lane, &item, 1);
}

/* What becomes of the sink, whose rows are of the old prompt. */
enum kvw_sink_policy {
    KVW_SINK_KEEP = 1,      /* it stays */
    KVW_SINK_DROP = 2,      /* it goes: the rows run again are the sink */
    KVW_SINK_RECOMPUTE = 3, /* it is run again under the new prompt */
};

/* A new prompt. */
struct kvw_switch {
    uint32_t self_group;
    uint32_t cross_group;
    uint64_t epoch;        /* of the new prompt */
    uint64_t context_rows; /* run again in place of the window; 0: the window stays */
    uint32_t sink;         /* enum kvw_sink_policy */
};

/* What is to be run again under the new prompt, in this order, by chunks: each begun,
 * written by one clean pass, and committed. Absolute positions, first <= p < end. */
struct kvw_again {
    uint32_t n;
    uint64_t first[2];
    uint64_t end[2];
};

/* The steps in group self, and where its next rows are: at `first`, if not in the sink. */
static inline int kvw_switch_self(struct kvw_cache *cache, uint32_t lane,
                                  const struct kvw_switch *how, uint64_t rows,
                                  uint64_t first, struct kvw_offsets *offsets)
{
    const uint64_t sink_rows = kvw_cache_spec(cache)->group[how->self_group].sink_rows;
    struct kvw_item item = {how->self_group, 1, 0, 0, how->epoch};

    if (how->sink == KVW_SINK_KEEP) {
        item.row = rows < sink_rows ? rows : sink_rows;
        int error = kvw_truncate(cache, lane, &item, 1);
        return error != 0 ? error : kvw_offsets_set(offsets, item.row, first);
    }
    int error = kvw_reset(cache, lane, &item, 1);
    if (error != 0)
        return error;
    offsets->n = 0;
    if (how->sink == KVW_SINK_DROP)
        return kvw_offsets_set(offsets, 0, first);
    return first > sink_rows ? kvw_offsets_set(offsets, sink_rows, first) : 0;
}

/**
 * A new prompt: K and V of the old one's text go, and what `how` says.
 *
 * Frames keep their absolute positions when they are run again: offsets are brought up to
 * date. (Keys stored raw, with positions within the window, need none.) Whoever attaches
 * anew after a switch has to know the offsets, or to switch again.
 *
 * @param again  [out] What to run again; n = 0 where the window stays.
 * @return 0; -EINVAL (a policy that is none; a window that stays without its sink); as
 *         kvw_reset() and kvw_truncate(); -ENOSPC (KVW_OFFSETS_MAX).
 */
static inline int kvw_switch_prompt(struct kvw_cache *cache, uint32_t lane,
                                    const struct kvw_switch *how,
                                    struct kvw_offsets *offsets,
                                    struct kvw_again *again)
{
    const struct kvw_spec *spec = kvw_cache_spec(cache);
    const struct kvw_item cross = {how->cross_group, 1, 0, 0, how->epoch};
    struct kvw_lane_state state;

    again->n = 0;
    if (how->sink < KVW_SINK_KEEP || how->sink > KVW_SINK_RECOMPUTE ||
        how->self_group >= spec->n_groups || how->cross_group >= spec->n_groups ||
        (how->context_rows == 0 && how->sink != KVW_SINK_KEEP))
        return -EINVAL;
    int error = kvw_state(cache, lane, kvw_cache_rank(cache), &state);
    if (error == 0)
        error = kvw_reset(cache, lane, &cross, 1);
    if (error != 0 || how->context_rows == 0)
        return error;
    const uint64_t sink_rows = spec->group[how->self_group].sink_rows;
    const uint64_t rows = state.group[how->self_group].rows;
    const uint64_t now = kvw_offsets_position(offsets, rows);
    const uint64_t head = how->sink == KVW_SINK_DROP ? 0 : sink_rows;
    uint64_t first = now > how->context_rows ? now - how->context_rows : 0;
    first = first > head ? first : head;
    first = first < now ? first : now;
    if (how->sink == KVW_SINK_RECOMPUTE && now > 0 && head > 0) {
        again->first[again->n] = 0;
        again->end[again->n++] = head < now ? head : now;
    }
    if (first < now) {
        again->first[again->n] = first;
        again->end[again->n++] = now;
    }
    return kvw_switch_self(cache, lane, how, rows, first, offsets);
}

/**
 * Add up the committed rows of an f32 plane of a view, oldest first (linear attention: the
 * sums of the chunks before the open one).
 *
 * @param sum  [out] f32 [n_heads, elems], packed.
 * @return how many rows; -EINVAL if there is no such plane, or of another type.
 */
static inline int64_t kvw_sum_past(const struct kvw_view *view, uint32_t plane_number,
                                   float *sum)
{
    if (plane_number >= view->n_planes || view->plane[plane_number].type != KVW_F32)
        return -EINVAL;
    const struct kvw_plane *plane = &view->plane[plane_number];
    int64_t n_rows = 0;

    for (size_t i = 0; i < (size_t)view->n_heads * plane->elems; i++)
        sum[i] = 0;
    for (uint32_t p = 0; p < view->n_pieces; p++) {
        if (view->piece[p].piece_class == KVW_PIECE_CURRENT)
            continue;
        for (uint32_t row = 0; row < view->piece[p].n_rows; row++, n_rows++) {
            for (uint32_t head = 0; head < view->n_heads; head++) {
                const char *at = kvw_piece_at(plane, &view->piece[p], head);
                const float *from =
                    (const float *)(const void *)(at + row * plane->row_bytes);
                for (uint32_t e = 0; e < plane->elems; e++)
                    sum[(size_t)head * plane->elems + e] += from[e];
            }
        }
    }
    return n_rows;
}

#ifdef __cplusplus
}
#endif

#endif
