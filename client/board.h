/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boards: what a rank publishes of a lane, and how it is read (PROTOCOL.md,
 * "Publication" and "Readers"). A board is K records and a version; only its rank's
 * owner writes it.
 *
 * Orders, by label:
 *
 * P1, board_publish(): release fence before a record's words, so that the version before
 * is visible before them. Pairs with S2.
 *
 * P2, board_publish(): release store of the version, so that the record and all rows are
 * visible before it. Pairs with S1.
 *
 * P3, board_notify(): full fence between the event and the second look at the flag. Pairs
 * with W1 (wait.c); and, between a record and the next claims, with H4 (cut.c) and R2
 * (view.c).
 *
 * P4, board_wake(): a pass or read word before the look at the flag. Only the compiler is
 * held here, for a full fence would cost an update some percent. Pairs with W4, by which the
 * waiter makes this process execute one.
 *
 * P5, board_notify() and board_wake(): locked add to the event, after what it tells of. Pairs
 * with W2 (wait.c).
 *
 * S1, read_record(): acquire load of a version. Pairs with P2.
 *
 * S2, read_record(): acquire fence between the record's words and the second look at the
 * version. Pairs with P1.
 */
#ifndef KVW_CLIENT_BOARD_H
#define KVW_CLIENT_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "client/cache.h"
#include "proto/rules.h"

/* A record in the process's own memory, all of it. */
struct record {
    uint64_t step;
    uint64_t era;
    uint64_t rewinds; /* never goes down; see REWIND and DROP */
    struct kvw_group_record group[KVW_GROUPS_MAX];
    uint64_t floor[]; /* of every layer */
};

/* What `rewinds` counts: in its low half the times that rows may be written anew in
 * place (truncate, reset, recovery), in its high half the kept ranges that were
 * dropped, whose extents may be used again. A pin holds an extent, so only unpinned
 * views ask for those. */
#define REWIND 1ull
#define DROP (1ull << 32)
#define REWIND_MASK (DROP - 1)

/* The part of a record that says where a rank stands. */
struct board_head {
    uint64_t version;
    uint64_t step;
    uint64_t era;
    uint64_t rewinds;
};

/* Places in a board; calls of the fast path ask for them several times each. */

/** Board of a rank and lane. */
static inline struct kvw_board *board_of(const struct kvw_cache *cache, uint32_t rank,
                                         uint32_t lane)
{
    return layout_board(cache->control, &cache->layout, cache->geometry.n_lanes, rank,
                        lane);
}

/** Claim words of a group. */
static inline struct kvw_board_claim *
board_claim(const struct kvw_cache *cache, struct kvw_board *board, uint32_t group)
{
    return (struct kvw_board_claim *)(void *)((char *)board +
                                              cache->layout.claims_offset) +
           group;
}

/** The word claim << 32 | rows written of a layer. */
static inline shared_u64 *board_staged(const struct kvw_cache *cache,
                                       struct kvw_board *board, uint32_t layer)
{
    return (shared_u64 *)(void *)((char *)board + cache->layout.staged_offset) + layer;
}

/** The word claim << 32 | passes << 1 | being written of a layer. */
static inline shared_u64 *board_pass(const struct kvw_cache *cache,
                                     struct kvw_board *board, uint32_t layer)
{
    return (shared_u64 *)(void *)((char *)board + cache->layout.pass_offset) + layer;
}

/** The word claim << 32 | passes of others that were read, of a layer. */
static inline shared_u64 *board_read(const struct kvw_cache *cache,
                                     struct kvw_board *board, uint32_t layer)
{
    return (shared_u64 *)(void *)((char *)board + cache->layout.read_offset) + layer;
}

/** A record in this process for any record of the cache; NULL if there is no memory. */
struct record *record_new(const struct kvw_cache *cache);

/** Copy one record over another of the same cache. */
void record_copy(const struct kvw_cache *cache, struct record *to,
                 const struct record *from);

/**
 * Read where a rank stands: its newest record.
 * @return 0; -KVW_EGONE (wiped), -EAGAIN (lost KVW_RETRIES_MAX times to a fast writer).
 */
KVW_NODISCARD int board_read_head(const struct kvw_cache *cache, uint32_t rank,
                                  uint32_t lane, struct board_head *head);

/* One group of a record. */
struct board_group {
    uint32_t group; /* in */
    uint32_t layer; /* in: whose floor to read, or UINT32_MAX */
    struct board_head head;
    struct kvw_group_record record;
    uint64_t floor; /* of that layer, else 0 */
};

/**
 * Read a group of the record at `version`, or of the newest one with version = 0.
 *
 * @return 0; -EAGAIN (that record has been overwritten, or as above); -KVW_EGONE.
 */
KVW_NODISCARD int board_read_group(const struct kvw_cache *cache, uint32_t rank,
                                   uint32_t lane, uint64_t version,
                                   struct board_group *read);

/** Read a whole record, as board_read_group(). */
KVW_NODISCARD int board_read_record(const struct kvw_cache *cache, uint32_t rank,
                                    uint32_t lane, uint64_t version,
                                    struct board_head *head, struct record *record);

/**
 * Find a rank's newest record of a step.
 * @return 0 with *version; -ENOENT (not, or no longer, in its log); -EAGAIN;
 * -KVW_EGONE.
 */
KVW_NODISCARD int board_find_step(const struct kvw_cache *cache, uint32_t rank,
                                  uint32_t lane, uint64_t step, uint64_t *version);

/** Publish a record on an own board: the one store that makes everything in it visible.
 *  Wakes sleepers, if there are any. The record becomes lane->record. */
void board_publish(struct kvw_cache *cache, uint32_t lane, const struct record *record);

/**
 * Raise an own board's event and wake whoever sleeps on it.
 *
 * @param was_raised  The flag as it stood when it was taken down before the change.
 */
void board_notify(struct kvw_cache *cache, uint32_t lane, uint32_t was_raised);

/** Take down the flag of an own board before a change. @return what it was. */
uint32_t board_take_flag(struct kvw_cache *cache, uint32_t lane);

/** After a change of an own board's pass or read words: wake whoever sleeps on it. */
void board_wake(struct kvw_cache *cache, uint32_t lane);

/** The set of ranks without the own one: those whose boards count as peers. */
static inline uint64_t board_peers(const struct kvw_cache *cache, uint64_t ranks)
{
    return cache->rank == KVW_READER ? ranks : ranks & ~(1ull << cache->rank);
}

/** For each rank of a set. */
#define FOR_EACH_RANK(rank, set)                                                    \
    for (uint64_t left_##rank = (set), rank = 0;                                    \
         left_##rank != 0 && (rank = (uint64_t)__builtin_ctzll(left_##rank), true); \
         left_##rank &= left_##rank - 1)

#endif
