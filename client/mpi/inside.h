/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of libkvwheel-mpi share. One thread, one object for each cache. Everything
 * that comes by a message is of a peer of the job, which is trusted as much as ranks of one
 * cache trust each other: lengths are known beforehand, numbers are checked.
 */
#ifndef KVW_CLIENT_MPI_INSIDE_H
#define KVW_CLIENT_MPI_INSIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/mpi/include/kvwheel/mpi.h"
#include "proto/geometry.h"
#include "proto/limits.h"

#define HOST_BYTES 64u
#define TEXT_BYTES 640u
#define EXCHANGE_MAX (4u * KVW_RANKS_MAX) /* requests of one exchange */

/* The axes of the partition, the outermost first. */
enum axis { AXIS_LANE, AXIS_LAYER, AXIS_HEAD, AXIS_ROW, N_AXES };

struct grid {
    uint32_t parts[N_AXES];  /* of the whole cache */
    uint32_t in_box[N_AXES]; /* of a box */
};

struct interval {
    uint32_t first;
    uint32_t n;
};

/* Which rows a box has: of every `period` rows the `mine` from `first` on. */
struct row_map {
    uint64_t period; /* 0: all rows */
    uint64_t first;
    uint64_t mine;
};

/* A group of the whole cache, seen from one box. */
struct box_group {
    bool is_here; /* the box has a layer of it */
    bool is_whole;
    uint32_t index;         /* in the box */
    struct interval layers; /* as indices of the whole cache's layers */
    uint32_t layer_here;    /* index of the first one in the box */
    struct row_map rows;
};

struct peer {
    uint32_t node;
    char host[HOST_BYTES];
};

/* A message of the steps of a lane. */
struct token {
    uint64_t step;   /* published */
    uint64_t digest; /* of what it was */
};

/* Requests under way, and whose they are. */
struct exchange {
    uint32_t n;
    MPI_Request request[EXCHANGE_MAX];
    uint8_t place[EXCHANGE_MAX];
    bool is_send[EXCHANGE_MAX];
};

/* One group of an open step. */
struct open_group {
    bool is_open;
    uint64_t row;
    uint64_t n;
    uint64_t n_here; /* rows of it that the box has */
};

struct mpi_lane {
    uint64_t step;
    bool is_open;
    bool is_idle;    /* the open step touches nothing of this box */
    bool is_told;    /* tokens of `step` are under way */
    bool is_empty;   /* of a new box: it has to be filled */
    uint64_t digest; /* of the open step */
    struct open_group open[KVW_GROUPS_MAX];
    struct exchange exchange;
    struct token mine;
    struct token from[KVW_RANKS_MAX]; /* by place */
};

struct kvw_mpi {
    MPI_Comm comm;
    bool is_broken; /* somebody did not answer: no exchange makes sense any more */
    bool is_started;
    bool
        is_left; /* the node has what is left of this rank's box, which counts as lost */
    uint32_t flags;
    uint64_t timeout_ns;
    uint64_t whole_groups;
    struct kvw_spec spec;
    struct grid grid;
    uint32_t n_places;
    uint32_t n_nodes;
    uint32_t n_boxes;
    uint32_t box_ranks;
    uint32_t rank;
    uint32_t place;
    uint32_t box;
    uint32_t box_rank;
    int rank_of[KVW_RANKS_MAX];      /* by place */
    struct peer peer[KVW_RANKS_MAX]; /* by rank */
    bool is_new[KVW_RANKS_MAX];      /* by box */
    struct box_group group[KVW_GROUPS_MAX];
    struct kvw_geometry_group rules[KVW_GROUPS_MAX]; /* of the whole cache */
    uint32_t lane_first;
    uint32_t n_lanes;
    struct mpi_lane *lane; /* n_lanes; heap */
    uint32_t *passes;      /* of each of the box's layers, in the open chunk; heap */
    float *memory;         /* of exchanges of attention; heap */
    size_t memory_floats;
    struct kvw_attn_piece *piece; /* heap */
    uint32_t n_pieces_max;
    struct kvw_client *client;
    struct kvw_cache *cache;
    struct kvw_mpi_counters counters;
};

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline const void *skip_bytes(const void *data, ptrdiff_t n_bytes)
{
    return (const char *)data + n_bytes;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* ---- error.c ---- */

/** Set kvw_mpi_last_error() and return `error`. */
int told(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Forward a failure of libkvwheel with its words. */
int told_by_kvw(int error, const char *what);

/** "rank 3 on h1" for texts. */
struct who {
    char text[HOST_BYTES + 32];
};
struct who who_is(const struct kvw_mpi *mpi, uint32_t place);

/* ---- exchange.c ---- */

enum tag {
    TAG_HELLO = 1,
    TAG_BOXES,
    TAG_AGREE,
    TAG_RECOVER,
    TAG_QUERY,
    TAG_PARTIAL,
    TAG_LANE = 1024 /* and the lane */
};

/** Post a send or a receive of `n_bytes` (nothing for 0). @return 0, -E2BIG, -EIO. */
KVW_NODISCARD int exchange_send(struct kvw_mpi *mpi, struct exchange *exchange,
                                uint32_t place, int tag, const void *data,
                                size_t n_bytes);
KVW_NODISCARD int exchange_receive(struct kvw_mpi *mpi, struct exchange *exchange,
                                   uint32_t place, int tag, void *data, size_t n_bytes);

/** Let MPI work, without waiting. @return 0 or -EIO. */
KVW_NODISCARD int exchange_poke(struct kvw_mpi *mpi, struct exchange *exchange);

/** Wait for all of it, at most mpi->timeout_ns.
 *  @param what  "attend: step 17, row 480": what the text of a refusal begins with.
 *  @return 0; -ETIMEDOUT (the text names the places) or -EIO: the object is broken. */
KVW_NODISCARD int exchange_wait(struct kvw_mpi *mpi, struct exchange *exchange,
                                const char *what);

/** Forget what is under way. */
void exchange_drop(struct exchange *exchange);

/** Give `mine` to all places of a set (bit p: place p) and take theirs: theirs is n_bytes for
 *  each place of the cache. @return as exchange_wait(). */
KVW_NODISCARD int exchange_all(struct kvw_mpi *mpi, uint64_t places, int tag,
                               const void *mine, void *theirs, size_t n_bytes,
                               const char *what);

/** Refuse calls on an object that is broken. */
KVW_NODISCARD int check_whole(const struct kvw_mpi *mpi, const char *what);

/* ---- box.c: pure functions of the spec ---- */

/** Check the partition and set the grid. @return 0, -EINVAL, -ENOTSUP. */
KVW_NODISCARD int box_grid(const struct kvw_spec *spec, uint64_t whole_groups,
                           uint32_t box_ranks, struct grid *grid);

/** The box of a place, and its rank in it. */
uint32_t box_of_place(const struct grid *grid, uint32_t place, uint32_t *box_rank);

/** The place that is rank `box_rank` of a box. */
uint32_t box_place(const struct grid *grid, uint32_t box, uint32_t box_rank);

/** Part of a place along an axis. */
uint32_t box_part(const struct grid *grid, uint32_t place, enum axis axis);

/** Heads of a group that one place holds, or a run of neighbouring parts. */
struct interval box_heads(const struct kvw_spec *spec, const struct grid *grid,
                          uint32_t group, uint32_t part, uint32_t n_parts);

struct interval box_lanes(const struct kvw_spec *spec, const struct grid *grid,
                          uint32_t part, uint32_t n_parts);

/** Layers of a group, as indices of the whole cache's layers. */
struct interval box_layers(const struct kvw_spec *spec, const struct grid *grid,
                           uint32_t group, uint32_t part, uint32_t n_parts);

/** The spec of a box's cache, and how the whole's groups lie in it.
 *  @return 0, -EINVAL (a box of nothing, with words). */
KVW_NODISCARD int box_spec(const struct kvw_spec *spec, const struct grid *grid,
                           uint64_t whole_groups, uint32_t box, struct kvw_spec *out,
                           struct box_group group[KVW_GROUPS_MAX]);

/** The box's number of the first of its rows that is not below `row`. */
uint64_t box_rows_before(const struct row_map *rows, uint64_t row);

uint64_t box_row(const struct row_map *rows, uint64_t row_here);

/* ---- place.c: a pure function ---- */

struct placing {
    uint32_t n_ranks;
    uint32_t box_ranks;
    uint32_t n_nodes;
    uint32_t node[KVW_RANKS_MAX]; /* of each rank */
    /* by node and box: 0 it is not there, else its newest step + 1 */
    uint64_t have[KVW_RANKS_MAX][KVW_RANKS_MAX];
};

/** Who takes which place. @return 0 or -ENOSPC, with words. */
KVW_NODISCARD int place_all(const struct placing *placing, const struct grid *grid,
                            int rank_of[KVW_RANKS_MAX], bool is_new[KVW_RANKS_MAX]);

/* ---- init.c ---- */

/** The places that hold a lane, as a set. */
uint64_t places_of_lane(const struct kvw_mpi *mpi, uint32_t lane);

/* ---- lost.c ---- */

/*
 * A box that is new while others were kept is marked until it is filled: a job that dies
 * meanwhile must not leave a box that looks like the others' and is not. The mark is a
 * small cache beside it. Only the first rank of a box does any of this.
 */

/** Make place for a new box, and mark it. @return 0 or a negative error, with words. */
KVW_NODISCARD int lost_begin(struct kvw_mpi *mpi, const struct kvw_spec *spec);

/** Is the box of that name marked? */
bool lost_is_marked(const struct kvw_mpi *mpi, const char *name);

/** A lane of this rank's box is what the others' are. @return 0, or with words. */
KVW_NODISCARD int lost_end(struct kvw_mpi *mpi, struct mpi_lane *lane);

/* ---- step.c ---- */

/** The lane of the whole cache in this object, or NULL with words. */
struct mpi_lane *lane_here(const struct kvw_mpi *mpi, const char *what, uint32_t lane);

/** Rows of a group of the whole cache, from the box's state. */
uint64_t rows_of(const struct kvw_mpi *mpi, uint32_t group,
                 const struct kvw_group_state *state);

/** Read the step of a lane from the box. */
KVW_NODISCARD int step_read(struct kvw_mpi *mpi, uint32_t lane);

/* ---- pieces.c ---- */

/* The rows of one layer that this rank can see in its box, and in which order. */
struct sight {
    struct kvw_view view;
    uint32_t group;
    uint32_t n_pieces;
    uint32_t kv_head; /* at which the pieces begin, from the view's first */
    uint64_t end;     /* rows of the whole cache that are committed or open */
    uint64_t step;    /* of the lane */
    uint64_t row;     /* committed rows, for texts */
    uint32_t head_dim_k;
    uint32_t head_dim_v;
    uint32_t kv_type;
    bool is_row_kind;
};

/** View a layer, its rows translated into mpi->piece. sight_end() must follow a success. */
KVW_NODISCARD int sight_begin(struct kvw_mpi *mpi, const struct kvw_mpi_attend *attend,
                              struct sight *sight);

/** Let the pieces begin at a KV head, counted from the view's first. */
void sight_turn(struct kvw_mpi *mpi, struct sight *sight, uint32_t kv_head);

/** End the view. @return `error` if there was one; 0 or -KVW_EOVERRUN. */
KVW_NODISCARD int sight_end(struct kvw_mpi *mpi, struct sight *sight, int error);

/* ---- merge.c ---- */

/*
 * Who computes what of a row group. Member m is row part m; `slices` members that follow
 * each other share a box, and each computes its share of the heads over the box's rows.
 */
struct team {
    struct kvw_mpi *mpi;
    uint32_t n_members;
    uint32_t me;
    uint32_t slices;
    uint32_t n_heads; /* of query */
    uint32_t n_q;
    uint32_t head_dim;
    bool is_by_heads; /* the result */
    uint32_t place_first;
    float
        *mine; /* [heads computed by me][n_q * (head_dim + 1)]: rows of out, then lse */
    float *theirs[KVW_RANKS_MAX];
    struct exchange exchange;
};

/** The heads that a member computes; that it gets. */
struct interval team_computes(const struct team *team, uint32_t member);
struct interval team_gets(const struct team *team, uint32_t member);
struct interval intersect(struct interval a, struct interval b);

/** Floats of a head in `mine`. */
size_t team_head_floats(const struct team *team);

/** Floats that team_start() needs. */
size_t team_floats(const struct team *team);

/** Post the receives; `memory` has team_floats(). */
KVW_NODISCARD int team_start(struct team *team, float *memory);

/** Runs of heads to compute, in the order in which they are to be sent. @return false after
 *  the last. */
bool team_turn(const struct team *team, uint32_t turn, struct interval *heads);

/** Send what was computed in a turn. */
KVW_NODISCARD int team_send(struct team *team, uint32_t turn);

/* Where results go. */
struct team_result {
    float *out;
    ptrdiff_t out_row_stride;
    ptrdiff_t out_head_stride;
    float *lse;
    ptrdiff_t lse_row_stride;
    ptrdiff_t lse_head_stride;
};

/** Wait for the others and merge. */
KVW_NODISCARD int team_finish(struct team *team, const struct team_result *result,
                              const char *what);

/** Floats for exchanges: mpi->memory of at least n. @return 0 or -ENOMEM. */
KVW_NODISCARD int memory_reserve(struct kvw_mpi *mpi, size_t n_floats);

#endif
