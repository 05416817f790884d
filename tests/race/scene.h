/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caches for the interleaving tests: segments in the explorer's memory, attachments made
 * by the real cache_new(), and the part of the daemon that meets the data path: its real
 * seats, pins and wake-ups (daemon/attachment.c, daemon/cache.c).
 *
 * A row is one 64-bit word per head: scene_stamp(). One lane.
 */
#ifndef KVW_TESTS_RACE_SCENE_H
#define KVW_TESTS_RACE_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/board.h"
#include "client/cache.h"
#include "tests/race/explore.h"
#include "tests/race/shim_calls.h"

enum { SCENE_READERS_MAX = 3, SCENE_RANKS_MAX = 3 };

struct scene_shape {
    uint64_t window_rows;
    uint64_t sink_rows;
    uint64_t keep_rows;
    uint32_t slack_chunks;
    uint32_t n_groups; /* each of one layer */
    uint32_t n_ranks;  /* each holds one head */
    uint32_t n_readers;
    uint32_t pin_policy;
    uint64_t timeout_ns; /* of steps */
};

struct scene {
    struct scene_shape shape;
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    char *control;
    char *pins;
    char *data;
    struct kvw_cache *rank[SCENE_RANKS_MAX]; /* of who lives now */
    struct kvw_cache *reader[SCENE_READERS_MAX];
};

extern struct scene scene_here;

/** Build segments, attach everybody. For a scene's setup(). */
void scene_build(const struct scene_shape *shape);

/** Build a scene of ranks with a window of two rows, all of them at a step. */
void scene_build_ranks(uint32_t n_ranks, uint32_t n_readers, uint32_t slack,
                       uint64_t first_step);

/** Add a rank's task, mortal if it has a successor; its context is the rank's number. */
void scene_add_rank(uint32_t rank, explore_fn *run, explore_fn *successor);

/** Context of a task: points to a small number. */
void *scene_number(uint32_t number);

/** Step of a rank, as it knows it. */
uint64_t scene_step_of(const struct kvw_cache *cache);

/** A new process attaches to a rank whose seat the daemon has emptied. */
void scene_enter_rank(uint32_t rank);

/** The daemon has seen a rank's owner dead; a new process attaches to the rank. */
void scene_replace_rank(uint32_t rank);

/** Only the first half of it. */
void scene_bury_rank(uint32_t rank);

/** The same for a reader: its pins are cleared, its slot is given to another. */
void scene_replace_reader(uint32_t reader);
void scene_bury_reader(uint32_t reader);

/** What a row of a rank contains: row and branch (what an era or a step adds) show. */
uint64_t scene_stamp(uint64_t branch, uint64_t row);

/** Write one row of a group's open chunk. */
KVW_NODISCARD int scene_write(struct kvw_cache *cache, uint32_t group, uint64_t stamp);

/** begin, write, commit one row in every group. @return the first failure. */
KVW_NODISCARD int scene_step(struct kvw_cache *cache, uint64_t branch);

/** A step without rows: evict to where eviction stands, with an epoch. */
KVW_NODISCARD int scene_mark(struct kvw_cache *cache, uint64_t epoch);

/** Fail unless a call returned 0. */
void scene_must(int error, const char *what);

/** The word of a row. */
uint64_t scene_read(const struct kvw_view *view, uint32_t piece, uint64_t row,
                    uint32_t head);

/** Newest record of a rank as it lies in memory; for finish(). */
const struct record *scene_record(uint32_t rank);

/** explore_settle() with all that a rank keeps beside its stack. */
void scene_settle(const struct kvw_cache *cache, uint64_t digest);

#endif
