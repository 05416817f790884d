/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small helpers for model families over the calls of kvwheel.h, header only. docs/families.md
 * says for each family which calls it needs; here is what takes more than one call, and the
 * arithmetic that goes with it. The Python package has the same in kvwheel.families.
 *
 * Nothing here keeps state: it is all in the cache, for whoever attaches to it. A call that
 * fails after its first step says which step failed (kvw_last_error()) and may be made again.
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

/*
 * Absolute positions where a row's number is not its position (a prompt switch that runs
 * the window again, a jump between shots): a group `positions` of one layer goes along with
 * the group of K and V. Its rows say where that group's rows of the same numbers are (plane
 * `position`, u32), and its epoch, which every step publishes with its rows, where the next
 * row is. kvw_truncate(), kvw_evict(), kvw_keep() and kvw_reset() name both groups.
 */

/**
 * Add the group `positions` that goes along with a group that is there and complete, and
 * rolls. Where heads are split over ranks, do that after it (kvw_spec_split_heads()).
 * @return the group, or NULL as kvw_spec_add_group().
 */
static inline struct kvw_spec_group *
kvw_spec_add_positions(struct kvw_spec *spec, const struct kvw_spec_group *of,
                       uint32_t n_ranks)
{
    struct kvw_spec_group *group = kvw_spec_add_group(spec, "positions", 1, NULL);

    if (group == NULL || kvw_spec_add_plane(group, "position", KVW_U32, 1) == NULL)
        return NULL;
    group->n_heads = n_ranks;
    group->window_rows = of->window_rows;
    group->sink_rows = of->sink_rows;
    group->chunk_rows_max = of->chunk_rows_max;
    group->keep_rows = of->keep_rows;
    group->slack_chunks = of->slack_chunks;
    group->window_kind = of->window_kind;
    group->positions = of->positions;
    group->is_contiguous = of->is_contiguous;
    return group;
}

/** The absolute position of the next row. @return 0, or as kvw_state(); -EINVAL. */
static inline int kvw_position_next(struct kvw_cache *cache, uint32_t lane,
                                    uint32_t positions, uint64_t *position)
{
    struct kvw_lane_state state;

    int error = kvw_state(cache, lane, kvw_cache_rank(cache), &state);
    if (error != 0)
        return error;
    if (positions >= state.n_groups)
        return -EINVAL;
    *position = state.group[positions].epoch;
    return 0;
}

/** Let the rows to come be `n_rows` later (LongLive 2: a phase for each shot).
 *  @return as kvw_position_next() and kvw_truncate(). */
static inline int kvw_position_jump(struct kvw_cache *cache, uint32_t lane,
                                    uint32_t positions, uint64_t n_rows)
{
    struct kvw_lane_state state;

    int error = kvw_state(cache, lane, kvw_cache_rank(cache), &state);
    if (error != 0)
        return error;
    if (positions >= state.n_groups)
        return -EINVAL;
    const struct kvw_group_state *of = &state.group[positions];
    const struct kvw_item item = {positions, 1, of->rows, 0, of->epoch + n_rows};
    return kvw_truncate(cache, lane, &item, 1); /* none goes; the epoch is published */
}

/* The layer of group `positions`, in all layers. */
static inline struct kvw_layer kvw_position_layer(const struct kvw_cache *cache,
                                                  uint32_t positions)
{
    const struct kvw_spec *spec = kvw_cache_spec(cache);
    struct kvw_layer layer = {0};

    for (uint32_t g = 0; g < positions; g++)
        layer.index += spec->group[g].n_layers;
    return layer;
}

/**
 * kvw_begin() of `items` and, along with the first of them, of group `positions`, whose rows
 * are written: the chunk's first row is at `position`.
 *
 * @param items  fewer than KVW_SPEC_GROUPS_MAX.
 * @param begun  [out] one for each item; may be NULL.
 * @return as kvw_begin() and kvw_slots(); -E2BIG.
 */
static inline int kvw_begin_at(struct kvw_cache *cache, uint32_t lane,
                               const struct kvw_item *items, uint32_t n_items,
                               uint32_t positions, uint64_t position,
                               struct kvw_begun *begun)
{
    const struct kvw_layer layer = kvw_position_layer(cache, positions);
    struct kvw_item all[KVW_SPEC_GROUPS_MAX];
    struct kvw_begun all_begun[KVW_SPEC_GROUPS_MAX];
    struct kvw_slots slots;

    if (n_items == 0 || n_items >= KVW_SPEC_GROUPS_MAX)
        return -E2BIG;
    for (uint32_t i = 0; i < n_items; i++)
        all[i] = items[i];
    const uint64_t n = items[0].n;
    const struct kvw_item along = {positions, 1, items[0].row, n, position + n};
    all[n_items] = along;
    int error = kvw_begin(cache, lane, all, n_items + 1, all_begun);
    if (error == 0)
        error = kvw_slots(cache, lane, layer, 0, n, &slots);
    if (error != 0)
        return error;
    for (uint32_t i = 0; i < n_items && begun != NULL; i++)
        begun[i] = all_begun[i];
    for (uint32_t p = 0; p < slots.n_pieces; p++) {
        for (uint32_t row = 0; row < slots.piece[p].n_rows; row++, position++) {
            char *at = kvw_piece_at(&slots.plane[0], &slots.piece[p], 0);
            *(uint32_t *)(void *)(at + row * slots.plane[0].row_bytes) =
                (uint32_t)position;
        }
    }
    return kvw_written(cache, lane, layer, 0, n);
}

/**
 * Leave the sink and the last `n_rows` rows (infinity-RoPE's flush) of groups that go
 * along: those of the first.
 * @return as kvw_state() and kvw_evict(); -E2BIG, -EINVAL.
 */
static inline int kvw_evict_to_last(struct kvw_cache *cache, uint32_t lane,
                                    const uint32_t *groups, uint32_t n_groups,
                                    uint64_t n_rows)
{
    struct kvw_item items[KVW_SPEC_GROUPS_MAX];
    struct kvw_lane_state state;

    int error = kvw_state(cache, lane, kvw_cache_rank(cache), &state);
    if (error != 0)
        return error;
    if (n_groups == 0 || n_groups > KVW_SPEC_GROUPS_MAX)
        return -E2BIG;
    if (groups[0] >= state.n_groups)
        return -EINVAL;
    const uint64_t rows = state.group[groups[0]].rows;
    for (uint32_t i = 0; i < n_groups; i++) {
        const struct kvw_item item = {groups[i], 0, rows > n_rows ? rows - n_rows : 0,
                                      0, 0};
        items[i] = item;
    }
    return kvw_evict(cache, lane, items, n_groups);
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
    uint32_t positions_group;
    uint32_t sink;         /* enum kvw_sink_policy */
    uint64_t epoch;        /* of the new prompt */
    uint64_t context_rows; /* run again in place of the window; 0: the window stays */
};

/* What is to be run again under the new prompt, in this order, by chunks: each begun by
 * kvw_begin_at() at its position, written by one clean pass, and committed. Absolute
 * positions, first <= p < end. */
struct kvw_again {
    uint32_t n;
    uint64_t first[2];
    uint64_t end[2];
};

/* What is to be run again, `now` rows after the beginning. */
static inline void kvw_switch_plan(const struct kvw_switch *how, uint64_t sink_rows,
                                   uint64_t now, struct kvw_again *again)
{
    const uint64_t head = how->sink == KVW_SINK_DROP ? 0 : sink_rows;
    uint64_t first = now > how->context_rows ? now - how->context_rows : 0;

    first = first > head ? first : head;
    if (how->sink == KVW_SINK_RECOMPUTE && now > 0 && head > 0) {
        again->first[again->n] = 0;
        again->end[again->n++] = head < now ? head : now;
    }
    if (first < now) {
        again->first[again->n] = first;
        again->end[again->n++] = now;
    }
}

/**
 * A new prompt: K and V of the old one's text go, and what `how` says.
 *
 * Frames keep their absolute positions when they are run again: `again` has them.
 *
 * @param again  [out] What to run again; n = 0 where the window stays.
 * @return 0; -EINVAL (a policy that is none; a window that stays without its sink; a group
 *         that is none); as kvw_state(), kvw_reset() and kvw_truncate().
 */
static inline int kvw_switch_prompt(struct kvw_cache *cache, uint32_t lane,
                                    const struct kvw_switch *how,
                                    struct kvw_again *again)
{
    const struct kvw_spec *spec = kvw_cache_spec(cache);
    const struct kvw_item cross = {how->cross_group, 1, 0, 0, how->epoch};
    struct kvw_lane_state state;

    again->n = 0;
    if (how->sink < KVW_SINK_KEEP || how->sink > KVW_SINK_RECOMPUTE ||
        how->self_group >= spec->n_groups || how->cross_group >= spec->n_groups ||
        how->positions_group >= spec->n_groups ||
        (how->context_rows == 0 && how->sink != KVW_SINK_KEEP))
        return -EINVAL;
    int error = kvw_state(cache, lane, kvw_cache_rank(cache), &state);
    if (error == 0)
        error = kvw_reset(cache, lane, &cross, 1);
    if (error != 0 || how->context_rows == 0)
        return error;
    const uint64_t sink_rows = spec->group[how->self_group].sink_rows;
    const uint64_t rows = state.group[how->self_group].rows;
    const uint64_t now = state.group[how->positions_group].epoch;
    kvw_switch_plan(how, sink_rows, now, again);
    const uint64_t next = again->n > 0 ? again->first[again->n - 1] : now;
    struct kvw_item items[2] = {{how->self_group, 1, 0, 0, how->epoch},
                                {how->positions_group, 1, 0, 0, next}};
    if (how->sink != KVW_SINK_KEEP)
        return kvw_reset(cache, lane, items, 2);
    items[0].row = items[1].row = rows < sink_rows ? rows : sink_rows;
    return kvw_truncate(cache, lane, items, 2);
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
