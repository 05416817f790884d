/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The case `local`: what one worker's calls cost on one node. Its parts share a cache
 * of a 32-layer model (one row is 16 KiB of K and V in each layer) of which this
 * process is the only rank, and a reader's attachment to it.
 */
#ifndef KVW_BENCH_LOCAL_H
#define KVW_BENCH_LOCAL_H

#include "bench/bench.h"

#include <kvwheel/kvwheel.h>

#define LOCAL_LAYERS 32u
#define LOCAL_HEADS 32u
#define LOCAL_HEAD_DIM 128u
#define LOCAL_PLANE_BYTES (LOCAL_HEADS * LOCAL_HEAD_DIM * 2u) /* of a row: bf16 */
#define LOCAL_WINDOW_ROWS 256u
#define LOCAL_RING_ROWS \
    (LOCAL_WINDOW_ROWS + 4u) /* more than any level of cache holds */

struct local {
    struct bench *bench;
    struct kvw_client *client;
    struct kvw_cache *writer; /* rank 0 */
    struct kvw_cache *reader;
    struct kvw_cache *summed; /* the same model's, in a cache with checksums */
    uint64_t rows;            /* committed */
    uint64_t summed_rows;
    char *row;                    /* K and V of one row, in all heads */
    struct kvw_source sources[2]; /* that row */
    uint32_t ids;                 /* that row's token */
};

/** Run the case. */
BENCH_NODISCARD int local_run(struct bench *bench);

/** Make the caches, attach, and fill their windows; for cases that use it as well. On failure
 *  local_close() is to be called all the same. */
BENCH_NODISCARD int local_open(struct local *local, struct bench *bench,
                               struct kvw_client *client);

/** Detach; the caches go with it. */
void local_close(struct local *local);

/** Open the next chunk: one row in both groups. */
BENCH_NODISCARD int local_begin(struct local *local);

/** Write the chunk's row into the layers from `first` on, and the token. */
BENCH_NODISCARD int local_write(struct local *local, uint32_t first);

/** Publish it. */
BENCH_NODISCARD int local_commit(struct local *local);

/** Write the cache with checksums from now on; and back. */
void local_swap(struct local *local);

/* The parts. */

struct echo;
struct waker;

/** Attaching, to a cache of 1 GiB and to one of 16 MiB. */
BENCH_NODISCARD int local_attach(struct bench *bench, struct kvw_client *client,
                                 struct echo *echo);

/** Update of a row, beside bare copies. */
BENCH_NODISCARD int local_update(struct local *local);

/** Get and release. */
BENCH_NODISCARD int local_view(struct local *local);

/** Begin, commit (and with checksums), abort, and a wait that is already true. */
BENCH_NODISCARD int local_step(struct local *local);

/** A reader in another process that waits for a commit. */
BENCH_NODISCARD int local_wake(struct bench *bench, struct kvw_client *client,
                               struct waker *waker);

/*
 * Other processes. They are started before this one connects, so that they inherit no
 * connection, and end by themselves when this one does.
 */

/** A process that answers each message with three descriptors: what any daemon has to
 *  do at the least for an attach. NULL without one. */
struct echo *echo_new(void);
struct echo *echo_free(struct echo *echo);

/** A process that waits. NULL without one. */
struct waker *waker_new(const struct bench *bench);
struct waker *waker_free(struct waker *waker);

#endif
