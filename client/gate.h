/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step must wait for: ranks that lag, pins that hold, a recovery that is under
 * way (PROTOCOL.md, "The holder test and begin", tests 2, 4 and 5).
 */
#ifndef KVW_CLIENT_GATE_H
#define KVW_CLIENT_GATE_H

#include <stdint.h>

#include "client/cache.h"

struct record;

/* Rows that a step is about to claim or to use, group by group. */
struct claims {
    uint32_t n_groups;
    struct {
        uint32_t group;
        uint64_t at;  /* first row written */
        uint64_t end; /* claim_end: hi' */
    } claim[KVW_GROUPS_MAX];
    /* Keep-extent rows that are about to be written; equal = none. One group only. */
    uint32_t extent_group;
    uint64_t extent_first;
    uint64_t extent_end;
};

/**
 * Wait until every rank of the lane is in this era, none lags so far that its record
 * would be lost, and no record from the slowest rank's step to the own one needs rows
 * that `claims` names.
 *
 * @return 0; -ETIMEDOUT, -EOWNERDEAD, -ESTALE, -EAGAIN (ranks on other nodes),
 * -KVW_EGONE.
 */
KVW_NODISCARD int gate_ranks(struct kvw_cache *cache, uint32_t lane, const char *call,
                             const struct claims *claims, uint64_t deadline_ns);

/**
 * Deal with pins that the claims would hurt, by the attachment's policy. The claim is
 * stored and fenced. @return 0; -EBUSY with the reader's name.
 */
KVW_NODISCARD int gate_pins(struct kvw_cache *cache, uint32_t lane, const char *call,
                            const struct claims *claims, uint64_t deadline_ns);

/**
 * Compare with what peers that are ahead have published since this rank's step.
 *
 * @param next    The record about to be published; of a begin: that of its commit if
 * all its rows are kept.
 * @param claims  Of a begin, else NULL. A peer may have committed fewer of its rows;
 * but no peer may have gone back to a window that the claims would overwrite here.
 * @return 0; -KVW_EDIVERGED names rank, step and both.
 */
KVW_NODISCARD int gate_agree(struct kvw_cache *cache, uint32_t lane, const char *call,
                             const struct record *next, const struct claims *claims);

#endif
