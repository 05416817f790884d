/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An attachment to a cache: its mapped segments and what the library keeps beside them.
 * Owned by one thread. Everything that others must see lies in the segments; what is
 * here can be rebuilt from them at any time (that is what a takeover does).
 */
#ifndef KVW_CLIENT_CACHE_H
#define KVW_CLIENT_CACHE_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/crc32c.h"
#include "client/include/kvwheel/kvwheel.h"
#include "proto/layout.h"
#include "proto/partition.h"

struct kvw_client;
struct record;

/* A lane as its owner keeps it. */
struct lane {
    struct record *record; /* published last */
    uint64_t version;      /* of that record */
    uint64_t claim;        /* begins and aborts so far */
    uint64_t ranks;        /* the set of ranks that hold the lane */
    bool is_open;          /* between begin and commit or abort */
    struct {
        uint64_t n;     /* rows of the open chunk, 0 = none */
        uint64_t epoch; /* that its step will publish */
    } open[KVW_GROUPS_MAX];
};

/* Where a layer belongs; looked up on every call, so computed once. */
struct layer_place {
    uint32_t group;
    uint32_t in_group;
    bool is_held;   /* by this rank: at least one head of it */
    uint64_t ranks; /* that hold at least one head of it, in any lane */
};

/* A contiguous group as this process has it mapped: for each layer, plane, lane and
 * head that it holds the sink, the ring, the ring again, the keep extent. */
struct mirror {
    char *base; /* NULL = none */
    uint64_t n_bytes;
    uint64_t layer_bytes;
    struct kvw_interval layers; /* in the group */
    struct kvw_interval lanes;
    uint64_t plane_offset[KVW_PLANES_MAX]; /* of slot 0 of the first head */
    uint64_t head_bytes[KVW_PLANES_MAX];
};

struct kvw_cache {
    struct kvw_cache *next;    /* of the same client */
    struct kvw_client *client; /* NULL: mapped by a test, no daemon */
    uint32_t node;             /* of this rank's part, as kvw_bind_self() was told */
    cpu_set_t node_cpus;       /* ... and its CPUs; none = it was not asked */
    char name[KVW_NAME_MAX + 1];
    uint64_t cache_id;
    uint64_t attachment; /* id given by the daemon; 0: it does not know it any more */
    uint32_t slot;       /* of our pins */
    uint32_t pid;        /* our own, for messages */
    uint32_t rank;       /* or KVW_READER */
    uint64_t incarnation;
    struct kvw_attach_options options;

    char *control;
    char *pins;
    char *data;
    /* Control, pins, data: kept to be offered to a daemon that knows of nothing. A child
     * of fork() has them as well, and so keeps the memory while it lives. -1: none. */
    int fds[3];
    bool is_lost; /* a daemon does not know it, and may want it later */

    struct kvw_geometry geometry;
    struct kvw_layout layout;
    struct kvw_spec spec;

    struct kvw_interval held_lanes;
    struct lane *lanes; /* of this rank: lanes[lane - held_lanes.begin] */
    struct layer_place *layers;
    uint64_t *lane_ranks; /* the set of ranks that hold each lane */
    struct kvw_interval heads[KVW_GROUPS_MAX]; /* of this rank; a reader: all */
    uint32_t row_part;                         /* UINT32_MAX: rows of all parts */
    struct mirror mirror[KVW_GROUPS_MAX];
    struct record *scratch; /* the next record, while it is made */
    struct record *peer;    /* a peer's, while it is compared */
    uint64_t pins_used;     /* bit i: pin i is held */
    crc32c_rows_fn *crc32c_rows;
    bool is_poisoning; /* begin fills the rows that it opens with NaN */
};

/* The memory of an attachment. */
enum { CACHE_CONTROL, CACHE_PINS, CACHE_DATA, N_CACHE_SEGMENTS };

struct cache_segments {
    void *base[N_CACHE_SEGMENTS];
    uint64_t n_bytes[N_CACHE_SEGMENTS];
};

/**
 * Make an attachment over segments that are mapped already. kvw_attach() does this with
 * the daemon's; tests do it with their own memory and no daemon at all.
 *
 * @param segments  Mapped, control made by layout_control_init(); not owned.
 * @param rank      or KVW_READER.
 * @param slot      Of its pins, < KVW_ATTACHMENTS_MAX, used by nobody else.
 * @return 0; -ENOMEM; -KVW_ELAYOUT, -KVW_EGONE or -EINVAL for a control segment that is
 *         not one. On success a rank has taken over its boards: nothing is open.
 */
KVW_NODISCARD int cache_new(const struct cache_segments *segments, uint32_t rank,
                            uint32_t slot, struct kvw_cache **cache);

/** The planes of a layer and lane as a view or slots show them, from head `head_first`.
 */
void cache_planes(const struct kvw_cache *cache, uint32_t layer, uint32_t lane,
                  uint32_t head_first, struct kvw_plane planes[KVW_SPEC_PLANES_MAX]);

/** Release everything of cache_new(): pins cleared, open chunks aborted. */
void cache_free(struct kvw_cache *cache);

#endif
