/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the frame of attention (attn_frame.c) asks of a set of micro-kernels. The frame
 * knows pieces, masks, tiles and threads; micro-kernels know registers and layouts.
 *
 * A tile is ATTN_TILE slots for rows of one KV head (fewer for wide heads). Which slot a
 * row has depends on its number alone, or, where rows have none, on its place in the
 * list: so it is the same however rows are cut, and in whatever call. A slot without row
 * reads as zeros. A micro-tile is up to micro->rows (query, head) pairs of that KV head against
 * a tile.
 *
 * For each micro-tile the frame calls score (products of queries and keys), weigh (the
 * softmax within the tile, relative to the greatest score of the tile) and value (the
 * products with the values, added to what tiles before gave). What an element of a result
 * goes through must not depend on how many rows, blocks or slots a call handles: only
 * that makes results independent of how the work is divided.
 */
#ifndef KVW_KERNELS_ATTN_MICRO_H
#define KVW_KERNELS_ATTN_MICRO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvwheel/kernels.h"

#define ATTN_TILE 256u              /* most slots of a tile */
#define ATTN_ROWS 12u               /* most rows of a micro-tile */
#define ATTN_PITCH (ATTN_TILE + 16) /* scores from one row to the next */
#define ATTN_WORDS (ATTN_TILE / 64)

/* What all calls for one attention call have in common. */
struct attn_shape {
    uint32_t head_dim_k;
    uint32_t head_dim_v;
    uint32_t kv_type;
    uint32_t n_slots; /* of a tile; a multiple of 32 */
    uint32_t units;   /* of a packed key: head_dim_k / micro->pack, rounded up */
    uint32_t v_pitch; /* elements of a row of sums: head_dim_v in whole vectors */
    float cap;        /* softcap, of base 2: times log2(e); 0: none */
    const struct kvw_rope_table *rope;
};

/* Rows of one KV head. */
struct attn_tile {
    const void *k[ATTN_TILE];
    const void *v[ATTN_TILE];
    uint64_t position[ATTN_TILE]; /* of a key to be rotated; UINT64_MAX: as it is */
    float k_scale[ATTN_TILE];     /* of I8 */
    float v_scale[ATTN_TILE];
    float bias[ATTN_TILE];       /* of base 2 */
    uint64_t filled[ATTN_WORDS]; /* a bit for each slot that has a row */
    uint64_t first_row;          /* number of slot 0, if is_numbered */
    ptrdiff_t k_ahead; /* from a key to one that will soon be read, most likely */
    ptrdiff_t v_ahead; /* bytes, as k_ahead */
    uint32_t begin;    /* the first slot that has a row */
    uint32_t end;      /* behind the last one */
    bool is_numbered;  /* rows have numbers that the mask looks at */
    bool has_bias;
    bool has_raw;
};

/* Scores to turn into weights: rows x slots [begin, end), multiples of 32. */
struct attn_weigh {
    float *score; /* [n_rows] of ATTN_PITCH; may be overwritten */
    void *weight; /* [out] */
    const struct attn_tile *tile;
    const struct attn_shape *shape;
    const uint64_t (*seen)[ATTN_WORDS]; /* a bit for each slot; NULL: all are seen */
    uint32_t n_rows;
    uint32_t begin;
    uint32_t end;
    float max[16]; /* [out] greatest score of each row */
    float sum[16]; /* [out] sum of 2^(score - max) */
};

/* Slots of a tile, multiples of 32. */
struct attn_span {
    uint32_t begin;
    uint32_t end;
};

/* Weights and values to multiply: sums = sums * keep + products * take. */
struct attn_value {
    const void *weight;
    const struct attn_tile *tile;
    const void *v; /* packed slots [begin, end) */
    float *sums;   /* [n_rows] of shape->v_pitch */
    const struct attn_shape *shape;
    const float *keep;
    const float *take;
    float *partial; /* [n_rows] of v_pitch: products of the slots before */
    uint32_t n_rows;
    uint32_t begin; /* slots, multiples of 32 */
    uint32_t end;
    uint32_t v_slots; /* from one block of columns of v to the next */
    bool is_split;    /* for some slots of a tile: only partial is written */
    bool is_first;    /* of these: nothing is in partial yet */
};

/* Queries of a micro-tile, packed. */
struct attn_queries {
    const void *q;
    const float *scale; /* of each row, where queries are rounded to 8 bits */
    const int32_t *sum; /* and the sum of what they were rounded to */
    uint32_t n_rows;    /* that are computed: rounded up by rows_for() */
};

struct attn_micro {
    uint32_t lanes;   /* slots of a block of packed keys */
    uint32_t rows;    /* most of a micro-tile, at most ATTN_ROWS */
    uint32_t pack;    /* elements in the 4 bytes of a unit: 1, 2 or 4 */
    uint32_t v_bytes; /* of an element of a packed value */

    /* Rows that a micro-tile of n is computed with. */
    uint32_t (*rows_for)(uint32_t n);

    /* Pack n rows of queries, times factor, as units x n_rows. */
    void (*pack_q)(uint32_t *dst, const float *const *rows, uint32_t n, uint32_t n_rows,
                   const struct attn_shape *shape, double factor, float *scale,
                   int32_t *sum);

    /* Pack the keys of `lanes` slots as units x lanes. */
    void (*pack_k)(uint32_t *dst, const struct attn_tile *tile, uint32_t slot,
                   const struct attn_shape *shape);

    /* Pack the values of slots [begin, end), multiples of 32, as blocks of `lanes` columns
     * that begin v_slots slots after each other. */
    void (*pack_v)(void *dst, const struct attn_tile *tile, uint32_t begin,
                   uint32_t end, uint32_t v_slots, const struct attn_shape *shape);

    /* Scores, of base 2, of n_blocks blocks of keys, an even number. */
    void (*score)(float *score, const struct attn_queries *queries, const uint32_t *k,
                  uint32_t n_blocks, const struct attn_shape *shape);

    void (*weigh)(struct attn_weigh *weigh);
    void (*value)(const struct attn_value *value);

    /* The same straight from the rows: for few queries, whose work would be less than
     * packing. false, and nothing done, where rows must be packed; NULL: always. */
    bool (*score_few)(float *score, const struct attn_queries *queries,
                      const struct attn_tile *tile, const struct attn_span *span,
                      const struct attn_shape *shape);
    void (*value_few)(const struct attn_value *value);

    /* What follows split calls: products are in partial. False, and nothing done, if one of
     * them is not finite; value must then be called for the whole tile. */
    bool (*settle)(const struct attn_value *value);

    /* What sums of before and products of a tile are multiplied with: max and sum are
     * of the tiles before and become those of all, n at most 16. */
    void (*join)(float *max, float *sum, const struct attn_weigh *weigh, float *keep,
                 float *take);
};

/* One attention call by a set of micro-kernels. */
void attn_frame_run(const struct kvw_attn_args *args, const struct attn_micro *micro);

#endif /* KVW_KERNELS_ATTN_MICRO_H */
