/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cut: the same step on every rank of a set, the newest that all of them have
 * (PROTOCOL.md, "Readers"). It never waits; it is taken again only when a rank
 * published meanwhile, and gives up after KVW_RETRIES_MAX times.
 */
#ifndef KVW_CLIENT_CUT_H
#define KVW_CLIENT_CUT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/board.h"

struct cut {
    uint64_t step;
    uint64_t era;
    uint64_t rewinds; /* sum over the ranks' newest records: changes when any rewinds */
    struct kvw_group_record group;
    uint64_t floor; /* of the layer asked for */
};

/* What to take a cut of. */
struct cut_of {
    uint32_t lane;
    uint32_t group;
    uint32_t layer; /* whose floor to read, or UINT32_MAX */
    uint64_t ranks; /* a set that is not empty */
    bool is_here;   /* whatever ranks on other nodes have */
};

/** Take a cut of one group. @return 0; -EAGAIN, -KVW_EGONE, -KVW_EDIVERGED, in words.
 */
KVW_NODISCARD int cut_take(const struct kvw_cache *cache, const struct cut_of *of,
                           struct cut *cut);

/**
 * After the rows of a cut are held: did the hold come in time? It did when every rank's
 * claims leave the ring rows from `low` on alone and no rank has gone back since: until
 * then nobody can have written over them, and from then on the hold is seen.
 *
 * @return 1 yes, 0 no (take the cut again), negative as cut_take().
 */
KVW_NODISCARD int cut_is_held(const struct kvw_cache *cache, const struct cut_of *of,
                              const struct cut *cut, uint64_t low);

#endif
