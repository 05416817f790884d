/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvwheel-mpi: one cache spread over the ranks of an MPI job, on one node or many.
 *
 * Each node's daemon is independent and outlives the job. The cache is cut into *boxes*:
 * a box is the part of one rank, or of `box_ranks` neighbouring ranks of one node, and is an
 * ordinary cache of that node's daemon, called NAME.3of6 (NAME alone where there is one).
 * MPI carries what crosses boxes, and it is never a key or a value:
 *
 *     kvw_mpi_init()        find the daemons, agree, create or find the boxes, attach
 *     kvw_mpi_recover()     bring all boxes to one common step
 *     kvw_mpi_begin()       as kvw_begin(), with the row numbers of the whole cache
 *     kvw_mpi_update()      own rows of the chunk, as kvw_update()
 *     kvw_mpi_attend()      attention over rows on all ranks that share them
 *     kvw_mpi_commit()      publish, and tell the others in passing
 *
 * Words beside those of kvwheel.h: a *place* is a rank of the cache's partition; each rank of
 * the communicator has one, and after a restart on other nodes it is the place whose box
 * its node still has, so that place and MPI rank may differ. The *row group* of a place are
 * the places that differ from it in their rows only; where rows are not split it is alone.
 *
 * Partition. rank = ((lane_part * layer_parts + layer_part) * head_parts + head_part) *
 * row_parts + row_part, as in kvwheel.h, over all ranks of the communicator: heads, layers,
 * lanes, rows (block-cyclic: row r is of part r / row_block % row_parts), or a mix, such as
 * heads across nodes and rows within one. Parts may be uneven. A group with fewer heads
 * than parts is repeated: part p of P holds head p * H / P (within one box of all parts it is
 * not, and some parts hold none). Each box must hold a layer and a lane.
 *
 * Rows split over boxes. A box numbers its rows for itself and without gaps; all calls of
 * this header take and give the numbers of the whole cache, kvw_mpi_row() and
 * kvw_mpi_rows_before() translate for those who use a box directly. The epoch of such a
 * group holds its number of rows, so has_epoch is refused; so are keep_rows and
 * is_contiguous.
 *
 * Bounded. No call waits longer for another rank than timeout_ns, and an error names the
 * rank, its host, the step and the row that it waited for. Open MPI gives no error for a
 * peer that is gone, so this is how its loss is noticed; the job then ends (MPI_Abort(),
 * code KVW_MPI_EXIT_TIMEOUT) and is started again: see `kvwheel run`. After a call that
 * answered -ETIMEDOUT every further one answers -EPIPE. Only kvw_mpi_init() makes three calls of MPI
 * that have no bound of ours (MPI_Comm_dup, MPI_Comm_split_type, MPI_Comm_free).
 *
 * Threads: one at a time may use an object. MPI_THREAD_FUNNELED is enough.
 *
 * Errors are those of kvwheel.h; the words are in kvw_mpi_last_error().
 */
#ifndef KVWHEEL_MPI_H
#define KVWHEEL_MPI_H

#include <kvwheel/kernels.h>
#include <kvwheel/kvwheel.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Exit codes of `kvwheel run`; KVW_MPI_EXIT_TIMEOUT is for MPI_Abort() as well. */
enum kvw_mpi_exit {
    KVW_MPI_EXIT_LOST_HOST = 101,
    KVW_MPI_EXIT_KILLED = 102,
    KVW_MPI_EXIT_NOT_STARTED = 103,
    KVW_MPI_EXIT_TIMEOUT = 104,
};

struct kvw_mpi; /* a cache over the ranks of a communicator */

enum kvw_mpi_flags {
    /* Where no daemon runs, start one inside the job. It dies with the job (at the latest
     * under a scheduler), and the caches with it. Needs socket_path NULL. */
    KVW_MPI_START = 1,
};

struct kvw_mpi_options {
    uint32_t size;           /* sizeof(struct kvw_mpi_options) */
    uint32_t flags;          /* enum kvw_mpi_flags */
    const char *socket_path; /* of each node's daemon; NULL: as kvw_connect() */
    uint64_t timeout_ns;     /* of every wait for another rank; 0: 30 s */
    /* Neighbouring places that share a box and read each other's rows in place; all of a
     * box are on one node. They must be a box: whole inner axes of the partition and a
     * divisor of the next. 0: 1, which any node can take over. */
    uint32_t box_ranks;
    uint32_t reserved;
    /* Bit g: every box holds all heads and rows of group g (token ids, the job). */
    uint64_t whole_groups;
    const struct kvw_attach_options *attach; /* NULL: the defaults, with timeout_ns */
};

#define KVW_MPI_OPTIONS_INIT                                      \
    {                                                             \
        sizeof(struct kvw_mpi_options), 0, NULL, 0, 0, 0, 0, NULL \
    }

/** The last refusal of this thread by a call of this header, in words. Never NULL. */
KVW_API_VOID const char *kvw_mpi_last_error(void);

/**
 * Spread a cache over the ranks of a communicator: collective.
 *
 * Groups the ranks by node, connects each to its node's daemon, checks that all have the
 * same version, layout and spec, looks which boxes the daemons hold, gives each rank a place
 * (boxes that are there first, the newest ones if there are two), creates what is missing
 * and attaches. MPI must be initialised.
 *
 * @param spec     Of the whole cache, the same on every rank; n_ranks is the size of `comm`.
 *         Its name has at most 50 letters if there are several boxes.
 * @param options  The same on every rank; NULL for the defaults.
 * @param mpi      [out] To be ended by kvw_mpi_fini().
 * @return on every rank the same: 0, or the error of the lowest rank that has one, whose
 *         host and rank the text names: -ENOENT, -ECONNREFUSED (no daemon: the text has
 *         the command that starts one on every node), -KVW_ELAYOUT (another version or layout),
 *         -EINVAL (spec or options; not the same everywhere), -ENOTSUP, -ENOSPC (the ranks
 *         of a node are not enough for a box), -ETIMEDOUT, -EIO (MPI's words), and those
 *         of kvw_connect(), kvw_create() and kvw_attach().
 */
KVW_API int kvw_mpi_init(MPI_Comm comm, const struct kvw_spec *spec,
                         const struct kvw_mpi_options *options, struct kvw_mpi **mpi);

/** Detach, and wait (bounded) until the others have what was sent. Accepts NULL. Every rank
 *  calls it, before MPI_Finalize(). */
KVW_API_VOID void kvw_mpi_fini(struct kvw_mpi *mpi);

/* Where a rank is. */
struct kvw_mpi_place {
    uint32_t rank;  /* of the communicator */
    uint32_t place; /* of the partition */
    uint32_t n_places;
    uint32_t node; /* from 0, in the order of the lowest ranks */
    uint32_t n_nodes;
    uint32_t box;
    uint32_t n_boxes;
    uint32_t box_rank; /* rank of the place in the box's cache */
    uint32_t box_ranks;
    uint32_t is_new; /* this box was not there: it has to be filled */
    uint32_t n_new;  /* boxes of which that is so */
    uint32_t row_part;
    uint32_t row_parts;  /* of the row group */
    uint32_t is_started; /* its daemon was started inside the job, and ends with it */
    char host[64];
};

/** Where a place is; KVW_READER: the caller's own. @return 0 or -ERANGE. */
KVW_API int kvw_mpi_place(const struct kvw_mpi *mpi, uint32_t place,
                          struct kvw_mpi_place *out);

/** What a place holds of a group: layers as indices of the whole cache's layers.
 *  @return 0 or -ERANGE. */
KVW_API int kvw_mpi_part(const struct kvw_mpi *mpi, uint32_t group, uint32_t place,
                         struct kvw_part *part);

/** The spec of the whole cache (borrowed). */
KVW_API_VOID const struct kvw_spec *kvw_mpi_spec(const struct kvw_mpi *mpi);

/* ------------------------------------------------------------ the own box --------- */

/** The attachment to the own box (borrowed), for the reading calls of kvwheel.h and for
 *  kvw_slots() and kvw_written(); it is for this header to begin, commit and go back. */
KVW_API_VOID struct kvw_cache *kvw_mpi_cache(const struct kvw_mpi *mpi);

/** Lane and layer of the whole cache in the own box. Either [out] may be NULL.
 *  @return 0, or -ERANGE if this rank does not hold it. */
KVW_API int kvw_mpi_here(const struct kvw_mpi *mpi, uint32_t lane,
                         struct kvw_layer layer, uint32_t *lane_here,
                         struct kvw_layer *layer_here);

/** Rows below `row` of a group that the own box holds: the box's number of the first one
 *  that is not below. */
KVW_API_VOID uint64_t kvw_mpi_rows_before(const struct kvw_mpi *mpi, uint32_t group,
                                          uint64_t row);

/** The whole cache's number of the box's row `row_here`. */
KVW_API_VOID uint64_t kvw_mpi_row(const struct kvw_mpi *mpi, uint32_t group,
                                  uint64_t row_here);

/** State of a lane as this rank published it last, with the rows of the whole cache.
 *  @return as kvw_state(). */
KVW_API int kvw_mpi_state(const struct kvw_mpi *mpi, uint32_t lane,
                          struct kvw_lane_state *state);

/* ------------------------------------------------------------------- steps -------- */

/**
 * As kvw_begin(), on every rank that holds the lane. First waits (bounded) until all of them
 * have published the step before, and checks that it was the same.
 *
 * @param items  Rows of the whole cache.
 * @return as kvw_begin(); -ETIMEDOUT (the text names the rank that has not come, its host,
 *         step and row); -KVW_EDIVERGED (another one published another step, or a box that
 *         is new was not filled); -ENOTSUP (has_epoch where rows are split over boxes).
 */
KVW_API int kvw_mpi_begin(struct kvw_mpi *mpi, uint32_t lane,
                          const struct kvw_item *items, uint32_t n_items,
                          struct kvw_begun *begun);

/**
 * As kvw_update(): `sources` has all of the rows [row_first, row_first + n_rows) of the
 * chunk, for the heads of this rank; rows of others are passed over. The same call on every
 * rank of the box.
 */
KVW_API int kvw_mpi_update(struct kvw_mpi *mpi, uint32_t lane, struct kvw_layer layer,
                           uint64_t row_first, uint64_t n_rows,
                           const struct kvw_source *sources);

/** As kvw_commit() of all rows that were begun; tells the other ranks without waiting. */
KVW_API int kvw_mpi_commit(struct kvw_mpi *mpi, uint32_t lane);

/** As kvw_abort(). */
KVW_API int kvw_mpi_abort(struct kvw_mpi *mpi, uint32_t lane);

enum kvw_mpi_change {
    KVW_MPI_TRUNCATE = 1, /* item.row: as kvw_truncate() */
    KVW_MPI_EVICT = 2,    /* item.row: as kvw_evict() */
    KVW_MPI_RESET = 3,    /* as kvw_reset() */
};

/** A step that changes what is there. Errors: those of kvw_mpi_begin() and of the call that
 *  it stands for. */
KVW_API int kvw_mpi_change(struct kvw_mpi *mpi, uint32_t lane, uint32_t change,
                           const struct kvw_item *items, uint32_t n_items);

/**
 * Learn whether some rank is in trouble: collective over all ranks.
 *
 * @param error  0, or a negative error of this rank, whose words are `text`.
 * @return 0, or the error of the lowest place that has one: kvw_mpi_last_error() has its
 *         words on every rank; -ETIMEDOUT, -EIO.
 */
KVW_API int kvw_mpi_agree(struct kvw_mpi *mpi, int error, const char *text);

/* ---------------------------------------------------- recovery and rebuilding ----- */

/**
 * Bring all boxes that were there back to the smallest step that all of them have. Every
 * rank that holds the lane calls it, after kvw_mpi_init() and before its first step.
 *
 * @param step  [out] that step; may be NULL. A box that is new (kvw_mpi_place.is_new)
 *         stays at step 0: where the step is not 0 it has to be filled first, see
 *         kvw_mpi_follow().
 * @return 0; -ETIMEDOUT, -KVW_EDIVERGED (a box does not go back that far; the text names
 *         it), and those of kvw_recover().
 */
KVW_API int kvw_mpi_recover(struct kvw_mpi *mpi, uint32_t lane, uint64_t *step);

/*
 * Filling boxes that were lost. A job that has what it takes to compute its rows anew (token
 * ids, seeds) opens a scratch cache with the same partition over all ranks, replays into
 * that, and after each step lets the lost boxes follow it:
 *
 *     each step of the replay:  kvw_mpi_commit(scratch); kvw_mpi_follow(mpi, scratch, lane)
 *     at its end:               kvw_mpi_compare(mpi, scratch, lane, &n, &wrong)
 *                               kvw_mpi_fill(mpi, lane, step)
 *
 * Boxes that were kept are not written by any of them. A job that dies before
 * kvw_mpi_fill() leaves no half of a box: the next one begins it anew. So does a box that lags
 * the newest one by more than 6 steps (its node was away meanwhile) count as lost.
 */

/** Copy the rows that `scratch` committed beyond a new box into it. Does nothing on a rank
 *  whose box was kept, nor in groups of the scratch that are not ahead. The scratch
 *  must have the same places. @return 0; -EINVAL (another partition), -ERANGE (the rows
 *  were rolled over in the scratch already); those of kvw_begin() and kvw_commit(). */
KVW_API int kvw_mpi_follow(struct kvw_mpi *mpi, struct kvw_mpi *scratch, uint32_t lane);

/** Compare the rows that the own box shows with the scratch's, byte by byte.
 *  @param n_rows   [out] compared: of each layer, plane and head.
 *  @param n_wrong  [out] that differ, or that only one of them has.
 *  @return 0, -EINVAL, and those of kvw_get(). */
KVW_API int kvw_mpi_compare(struct kvw_mpi *mpi, struct kvw_mpi *scratch, uint32_t lane,
                            uint64_t *n_rows, uint64_t *n_wrong);

/** Publish steps without rows on a new box until it stands at `step` as the others do.
 *  @return 0; -ERANGE (it is beyond); those of kvw_begin(). */
KVW_API int kvw_mpi_fill(struct kvw_mpi *mpi, uint32_t lane, uint64_t step);

/* --------------------------------------------------------------- attention -------- */

enum kvw_mpi_attend_flags {
    /* Each rank of the row group brings the queries of its share of the query heads
     * (kvw_mpi_share()) in place of all: they are gathered first. */
    KVW_MPI_QUERIES_BY_HEADS = 1,
    /* Each rank gets its share of the query heads, by one exchange of all with all, in place
     * of all heads, gathered. */
    KVW_MPI_RESULT_BY_HEADS = 2,
    KVW_MPI_COMMITTED = 4, /* over the committed rows; no chunk need be open */
};

/** The interval of `n` that part `part` of `parts` has; as even as can be. */
static inline void kvw_mpi_share(uint32_t n, uint32_t parts, uint32_t part,
                                 uint32_t *first, uint32_t *n_share)
{
    const uint32_t base = n / parts, extra = n % parts;

    *first = part * base + (part < extra ? part : extra);
    *n_share = base + (part < extra ? 1 : 0);
}

/* One attention call over a layer, the same on all ranks of the row group; members as in
 * struct kvw_attn_args. Designated initialisers: what is not named is 0. */
struct kvw_mpi_attend {
    uint32_t lane;
    struct kvw_layer layer;
    uint32_t flags;     /* enum kvw_mpi_attend_flags */
    uint32_t n_q_heads; /* over the KV heads of this place's head part, all of them */
    uint32_t n_q;
    const float *q; /* [n_q, n_q_heads or the share, head_dim_k], rotated */
    ptrdiff_t q_row_stride;
    ptrdiff_t q_head_stride;
    uint64_t q_first_row; /* query i is at row q_first_row + i (window kind row) */
    float scale;
    float softcap;
    const float *sink_logits; /* NULL, or [n_q_heads] */
    /* Where keys are stored unrotated: they are rotated on read by their position, which for
     * positions relative to the window holds for the chunk's last query. */
    const struct kvw_rope_table *rope;
    float *out; /* [out] [n_q, n_q_heads or the share, head_dim_v] */
    ptrdiff_t out_row_stride;
    ptrdiff_t out_head_stride;
    float *lse; /* [out] NULL, or [n_q, n_q_heads or the share] */
    ptrdiff_t lse_row_stride;
    ptrdiff_t lse_head_stride;
    uint32_t n_threads;
};

/**
 * Attend to the rows of a layer wherever they lie: planes `k` and `v` (`k_scale`, `v_scale`
 * of int8) of the layer's group, in its own window.
 *
 * Each rank attends to the rows of its own box where they lie; ranks of one box share that work by heads
 * and read each other's rows in the shared memory (each waits for what the others
 * write in this pass). Queries and partial results are exchanged between boxes while the
 * next heads are computed, and merged by log-sum-exp in the order of the boxes: all ranks
 * and all runs get the same bits, gathered or by heads. O(n_q * n_q_heads * head_dim)
 * bytes move, whatever the window: see kvw_mpi_counters().
 *
 * Against one rank: bit for bit where heads, layers or lanes are split; where rows are
 * split, to rounding.
 *
 * @return 0; -EINVAL (no plane k or v, n_q_heads, no chunk open), -ETIMEDOUT (the text names
 *         the rank, host, step and row), -EOWNERDEAD (a rank of the own box died),
 *         -KVW_EOVERRUN (a rank wrote rows anew meanwhile), -EIO; those of
 *         kvw_attn_run() and kvw_get().
 */
KVW_API int kvw_mpi_attend(struct kvw_mpi *mpi, const struct kvw_mpi_attend *attend);

/* A partial result over the rows of each rank's own, to be merged over the row group. */
struct kvw_mpi_merge {
    uint32_t flags; /* KVW_MPI_RESULT_BY_HEADS or 0 */
    uint32_t n_q;
    uint32_t n_heads; /* of query; all of them in the partial result */
    uint32_t head_dim;
    struct kvw_attn_part part; /* of the own rows */
    float *out;                /* as in struct kvw_mpi_attend */
    ptrdiff_t out_row_stride;
    ptrdiff_t out_head_stride;
    float *lse;
    ptrdiff_t lse_row_stride;
    ptrdiff_t lse_head_stride;
};

/** Merge what programs computed with kernels of their own: every rank of the row group, in
 *  the order of their row parts. @return as kvw_mpi_attend(). */
KVW_API int kvw_mpi_merge(struct kvw_mpi *mpi, const struct kvw_mpi_merge *merge);

/* What this rank has sent to others since kvw_mpi_init(). */
struct kvw_mpi_counters {
    uint64_t query_bytes;
    uint64_t partial_bytes; /* partial results: out and lse */
    uint64_t step_bytes;    /* steps, agreement */
    uint64_t n_messages;
};

KVW_API_VOID void kvw_mpi_counters(const struct kvw_mpi *mpi,
                                   struct kvw_mpi_counters *counters);

#ifdef __cplusplus
}
#endif

#endif
