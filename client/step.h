/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps: begin, commit, abort, and the steps that change what is committed
 * (PROTOCOL.md, "The holder test and begin"). Validate first, then mutate: a refused
 * call has changed nothing that anyone can see.
 *
 * Orders, by label:
 *
 * B1, kvw_begin(): full fence after `want`, before pins and peers' records are looked at.
 * Pairs with H1 (pin.c): pin, full fence, want.
 *
 * B2, H2 to H4: see pin.h.
 *
 * B3, open_chunks(): full fence after `hi`, before rows are written. Pairs with R1 (view.c):
 * rows, acquire fence, hi; and with X8 (staged.h).
 *
 * X5: see staged.h.
 */
#ifndef KVW_CLIENT_STEP_H
#define KVW_CLIENT_STEP_H

#include <stdint.h>

#include "client/cache.h"
#include "proto/rules.h"

/** An own lane; it must be one that the rank holds. */
static inline struct lane *lane_of(const struct kvw_cache *cache, uint32_t lane)
{
    return &cache->lanes[lane - cache->held_lanes.begin];
}

/** 0, or -EACCES (a reader) or -ERANGE (not a lane of this rank), in words. */
KVW_NODISCARD int step_check_lane(const struct kvw_cache *cache, const char *call,
                                  uint32_t lane);

/** 0, or -KVW_EGONE (removed, wiped) or -ESTALE (another owner, a recovery under way).
 */
KVW_NODISCARD int step_check_live(const struct kvw_cache *cache, const char *call,
                                  uint32_t lane);

/** Forget what is open in a lane; the claims stay, for the rows may be gone. */
void step_forget_open(struct kvw_cache *cache, uint32_t lane);

/** Rows of the open chunk that a layer has so far: a prefix, complete in all planes.
 * Rows of other ranks count as written where rows are split. */
uint64_t step_written(const struct kvw_cache *cache, uint32_t lane, uint32_t layer);

/** Runs of rows of the open chunk, counted from its start, that are this rank's own.
 * @return how many; at most KVW_PIECES_MAX. */
uint32_t step_own_runs(const struct kvw_cache *cache, uint32_t lane, uint32_t group,
                       uint64_t row_first, uint64_t n_rows, struct kvw_run *runs);

#endif
