/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that work on the pages of caches while the loop goes on: as many as there are
 * NUMA nodes, at most CREW_MAX, each for its own nodes, so that all of them are filled at
 * once. They start with the first job, have low priority, and take the jobs by turns, a
 * slice of each.
 *
 * A job has all that it needs, a descriptor of the segment included: its cache may go
 * before it ends. The loop alone makes jobs, and frees them.
 */
#ifndef KVW_DAEMON_CREW_H
#define KVW_DAEMON_CREW_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/pages.h"
#include "daemon/topology.h"
#include "proto/base/atomic.h"
#include "proto/placement.h"

#define CREW_MAX 8u
#define CREW_JOBS_MAX 256u /* beside creations */

struct crew;

enum crew_purpose { /* who is told when it is done */
                    CREW_CREATE = 0,
                    CREW_COUNT = 1,  /* a client waits */
                    CREW_MOVE = 2,   /* a client waits */
                    CREW_FOLLOW = 3, /* a worker runs elsewhere */
                    CREW_SETTLE =
                        4, /* what the daemon before may have left half done */
};

struct crew_job {
    /* The loop writes, before it is handed over. */
    uint64_t id; /* given by crew_begin() */
    enum crew_purpose purpose;
    enum pages_work work;
    uint64_t cache; /* id */
    uint32_t rank;  /* only its part; KVW_RANK_READER = all */
    int fd;         /* owned */
    uint8_t kind;   /* enum kvw_geometry_pages */
    bool can_bind;
    bool can_ask;
    bool can_move;
    uint32_t n_numbers;
    uint32_t number[KVW_NODES_MAX]; /* of the plan's nodes */
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    struct kvw_plan *plan; /* owned */

    /* Anybody. */
    shared_u64 done_bytes;
    shared_u32 is_cancelled;

    /* The crew, under its lock; the loop, once it is done. */
    struct crew_job *next;
    uint32_t workers_left; /* bit w */
    uint64_t cursor[CREW_MAX];
    bool has_bound[CREW_MAX]; /* a move binds all of its part, and then begins */
    int error;
    struct pages_tally tally;
};

/** A job with copies of all that it needs; `fd` is duplicated. NULL: no memory, or no
 * descriptor. */
struct crew_job *crew_job_new(int fd, const struct kvw_geometry *geometry,
                              const struct kvw_layout *layout,
                              const struct kvw_plan *plan,
                              const struct topology *topology);

void crew_job_free(struct crew_job *job);

/** Start the threads. @return 0 or -errno. */
KVW_NODISCARD int crew_open(struct crew **crew, const struct topology *topology);

/** The descriptor that becomes readable when something has been done. */
int crew_descriptor(const struct crew *crew);

/** Hand a job over. */
void crew_begin(struct crew *crew, struct crew_job *job);

/** Jobs that are not done. */
uint32_t crew_jobs(const struct crew *crew);

/** End early those of a cache (0: of any), with an id (0: any). */
void crew_cancel(struct crew *crew, uint64_t cache, uint64_t id);

/** A job that goes on with that id, for its done_bytes; or NULL. */
const struct crew_job *crew_find(struct crew *crew, uint64_t id);

/** Make the descriptor unreadable. @return a job that is done, now the caller's; or NULL. */
struct crew_job *crew_take(struct crew *crew);

#endif
