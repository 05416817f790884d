/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvw_verify() and its parts. Whoever may write a cache may write while it is looked at, so
 * each part looks twice: a contradiction counts only if nothing was published meanwhile.
 */
#ifndef KVW_CLIENT_VERIFY_H
#define KVW_CLIENT_VERIFY_H

#include "client/board.h"

/* A look under way. */
struct verify {
    struct kvw_cache *cache;
    kvw_damage_fn *tell;
    void *context;
    struct kvw_verified counts;
    struct record *record; /* of the board that is looked at */
    struct record *before; /* the one published before it */
};

/** Count and tell a finding. */
void verify_report(struct verify *verify, const struct kvw_damage *damage);

/** A finding that is about no rows; `rank` and `lane` may be UINT32_MAX. */
void verify_tell(struct verify *verify, uint32_t kind, uint32_t rank, uint32_t lane,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));

/** Look at the board of a rank and lane. */
void verify_board(struct verify *verify, uint32_t rank, uint32_t lane);

/** Compare the rows that a rank shows in all its lanes and layers with their checksums. */
void verify_rows(struct verify *verify, uint32_t rank);

#endif
