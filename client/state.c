/* SPDX-License-Identifier: Apache-2.0 */
/* Where a lane stands, for programs and people that look on. */
#include <errno.h>
#include <stdbool.h>

#include "client/client.h"
#include "client/cut.h"
#include "proto/base/align.h"

static void describe_group(const struct kvw_cache *cache, uint32_t lane, uint64_t ranks,
                           uint32_t g, const struct kvw_group_record *record,
                           struct kvw_group_state *state)
{
    *state = (struct kvw_group_state){
        .rows = record->rows,
        .evicted = record->evicted,
        .generation = record->generation,
        .epoch = record->epoch,
        .first = rules_window_first(&cache->geometry.group[g], record->rows,
                                    record->evicted),
    };
    FOR_EACH_RANK(rank, ranks)
    {
        struct kvw_board *board = board_of(cache, (uint32_t)rank, lane);
        state->open =
            max_u64(state->open, load_relaxed(&board_claim(cache, board, g)->open));
    }
}

int kvw_state(struct kvw_cache *cache, uint32_t lane, uint32_t rank,
              struct kvw_lane_state *state)
{
    if (lane >= cache->geometry.n_lanes)
        return fail(-ERANGE, "state '%s': lane: need less than %u, have %u",
                    cache->name, cache->geometry.n_lanes, lane);
    uint64_t ranks = cache->lane_ranks[lane];
    if (rank != KVW_ALL_RANKS) {
        if (rank >= cache->geometry.n_ranks || (ranks >> rank & 1) == 0)
            return fail(-ERANGE, "state '%s': rank %u does not hold lane %u",
                        cache->name, rank, lane);
        ranks = 1ull << rank;
    }

    /* Group by group, until all of them were seen at one step. */
    for (uint32_t tries = 0; tries < KVW_RETRIES_MAX; tries++) {
        struct cut cut = {0};
        bool is_mixed = false;
        for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
            const struct cut_of of = {
                .lane = lane,
                .group = g,
                .layer = UINT32_MAX,
                .ranks = ranks,
                .is_here = rank != KVW_ALL_RANKS,
            };
            int error = cut_take(cache, &of, &cut);
            if (error != 0)
                return error;
            is_mixed = is_mixed ||
                       (g > 0 && (cut.step != state->step || cut.era != state->era));
            state->step = cut.step;
            state->era = cut.era;
            describe_group(cache, lane, ranks, g, &cut.group, &state->group[g]);
        }
        if (is_mixed)
            continue;
        state->n_groups = cache->geometry.n_groups;
        state->is_owned = 1;
        FOR_EACH_RANK(each, ranks)
        {
            struct kvw_seat *seat =
                layout_seat(cache->control, &cache->layout, (uint32_t)each);
            if (load_relaxed(&seat->state) != KVW_SEAT_OWNED)
                state->is_owned = 0;
        }
        return 0;
    }
    return fail(-EAGAIN, "state '%s': lane %u: published %u times while it was read",
                cache->name, lane, KVW_RETRIES_MAX);
}
