/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention as it is composed from a library's products of matrices: a tile of scores, the
 * softmax, a tile of products with the values, for each block of queries. What one would
 * write without kvwheel's kernels, as good as it gets: tiles that stay in the caches, an
 * online softmax in vectors, and oneDNN's weights packed once for all queries. One head,
 * one thread.
 */
#ifndef KVW_BENCH_COMPOSED_H
#define KVW_BENCH_COMPOSED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/bench.h"

enum composed_library {
    COMPOSED_ONEDNN,
    COMPOSED_OPENBLAS,
};

/* Of one head. Rows of K, V, queries and results lie together. */
struct composed_shape {
    uint32_t n_q;
    uint32_t n_rows;
    uint32_t head_dim;
    bool is_bf16; /* K and V; else f32. OpenBLAS has f32 only. */
    float scale;
};

struct composed;

/** Whether a library is there; if not, says so once, on stderr. */
bool composed_is_there(enum composed_library library);

/** @return 0, -ENOMEM, -ENOTSUP (the library cannot). */
BENCH_NODISCARD int composed_open(struct composed **composed,
                                  enum composed_library library,
                                  const struct composed_shape *shape);

/** Attend. @return 0 or -EIO. */
BENCH_NODISCARD int composed_run(struct composed *composed, const void *k,
                                 const void *v, const float *q, float *out);

/** NULL: nothing to do. */
void composed_close(struct composed *composed);

/* ------------------------------------------------------ one library's products ---- */

/* A tile's sizes and what a library keeps for it. */
struct composed_tile {
    uint32_t n_q;
    uint32_t n_rows;
    uint32_t head_dim;
    uint32_t n_tiles; /* of keys, in all */
    bool is_bf16;
};

/* score: to = q * k^T; value: to += p * v, by tiles. pack: once, before all queries. */
struct composed_products {
    int (*open)(void **state, const struct composed_tile *tile);
    void (*close)(void *state);
    int (*pack)(void *state, const void *k, const void *v);
    int (*score)(void *state, uint32_t tile, const void *q, float *to);
    int (*value)(void *state, uint32_t tile, const void *p, float *to);
};

/** NULL: the library is not there. */
const struct composed_products *composed_onednn(void);
const struct composed_products *composed_openblas(void);

#endif
