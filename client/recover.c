/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Back to one common step without a decider (PROTOCOL.md, "Recovery"). Each rank
 * promises to publish and claim nothing more in its era; when all have promised, nobody
 * moves, so all compute the same minimum. The promise lies in the board and holds after
 * death as well.
 *
 * Its order: V1, a release store of the promise; V2, an acquire load of it before that rank's
 * step is looked at.
 */
#include <errno.h>
#include <inttypes.h>

#include "client/board.h"
#include "client/client.h"
#include "client/step.h"
#include "client/wait.h"
#include "proto/base/align.h"

static int has_promised(struct kvw_cache *cache, uint32_t rank, uint32_t lane,
                        const void *context)
{
    const uint64_t *era = context;
    /* V2, pairs with V1: what that rank published before it promised is visible. */
    return load_acquire(&board_of(cache, rank, lane)->ask) >= *era;
}

/* The lowest step and era of the lane, over all boards and what each of them knows of ranks
 * on other nodes. */
static int find_lowest(struct kvw_cache *cache, uint32_t lane, uint64_t ranks,
                       uint64_t *step, uint64_t *era)
{
    *step = UINT64_MAX;
    *era = UINT64_MAX;
    FOR_EACH_RANK(rank, ranks)
    {
        struct kvw_board *board = board_of(cache, (uint32_t)rank, lane);
        struct board_head head;
        int error = board_read_head(cache, (uint32_t)rank, lane, &head);
        if (error != 0)
            return fail(error,
                        "recover '%s': rank %u, lane %u: its board cannot be read",
                        cache->name, (uint32_t)rank, lane);
        *step = min_u64(*step, head.step);
        *step = min_u64(*step, load_relaxed(&board->outside));
        *era = min_u64(*era, head.era);
    }
    return 0;
}

/* Publish the record of `step` again, in the next era. */
static int go_back(struct kvw_cache *cache, uint32_t lane_number, uint64_t step)
{
    struct lane *lane = lane_of(cache, lane_number);
    struct board_head head;
    uint64_t version;

    int error = board_find_step(cache, cache->rank, lane_number, step, &version);
    if (error == 0)
        error = board_read_record(cache, cache->rank, lane_number, version, &head,
                                  cache->scratch);
    if (error != 0)
        return fail(error == -ENOENT ? -KVW_EGONE : error,
                    "recover '%s': rank %u, lane %u: no record of step %" PRIu64
                    " is left; it stands at %" PRIu64,
                    cache->name, cache->rank, lane_number, step, lane->record->step);
    step_forget_open(cache, lane_number);
    cache->scratch->era = lane->record->era + 1;
    /* On from the newest value: the old one would let a reader of the lost branch
     * validate after its rows were written anew. */
    cache->scratch->rewinds = lane->record->rewinds + REWIND;
    board_publish(cache, lane_number, cache->scratch);
    return 0;
}

int kvw_recover(struct kvw_cache *cache, uint32_t lane_number, uint64_t timeout_ns,
                uint64_t *step)
{
    uint64_t era;
    uint64_t common;

    int error = step_check_lane(cache, "recover", lane_number);
    if (error != 0)
        return error;
    struct lane *lane = lane_of(cache, lane_number);
    struct kvw_board *board = board_of(cache, cache->rank, lane_number);
    error = find_lowest(cache, lane_number, lane->ranks, &common, &era);
    if (error != 0)
        return error;
    if (era < lane->record->era) {
        /* This rank is in the new era already: it called twice, or died after it
         * published. The others are on their way, and begin waits for them. */
        step_forget_open(cache, lane_number);
        if (step != NULL)
            *step = lane->record->step;
        return 0;
    }

    const uint64_t next = lane->record->era + 1;
    uint32_t was_raised = board_take_flag(cache, lane_number);
    store_release(&board->ask, next); /* V1, pairs with V2 */
    board_notify(cache, lane_number, was_raised);
    const uint64_t deadline_ns = wait_deadline_ns(timeout_ns);
    FOR_EACH_RANK(rank, board_peers(cache, lane->ranks))
    {
        const struct wait_for wait = {.rank = (uint32_t)rank,
                                      .lane = lane_number,
                                      .condition = has_promised,
                                      .context = &next,
                                      .what = "its recovery",
                                      .deadline_ns = deadline_ns};
        error = wait_until(cache, &wait);
        if (error != 0)
            return error;
    }
    error = find_lowest(cache, lane_number, lane->ranks, &common, &era);
    if (error == 0)
        error = go_back(cache, lane_number, common);
    if (error == 0 && step != NULL)
        *step = common;
    return error;
}

int kvw_outside(struct kvw_cache *cache, uint32_t lane, uint64_t step)
{
    int error = step_check_lane(cache, "outside", lane);
    if (error == 0) /* a recovery counts on what was said before it */
        error = step_check_live(cache, "outside", lane);
    if (error == 0)
        store_relaxed(&board_of(cache, cache->rank, lane)->outside, step);
    return error;
}
