/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of attention over rows of any type: memory, arguments, and how they are run. */
#ifndef KVW_BENCH_KERNELS_CALL_H
#define KVW_BENCH_KERNELS_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvwheel/kernels.h>

#include "bench/bench.h"

#define PIECES_MAX 3u

/* The shape of a call. Rows and queries of a head lie together, heads after each other. */
struct shape {
    uint32_t n_q;
    uint32_t n_q_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t n_rows;
};

struct call {
    struct shape shape;
    uint32_t type;
    size_t plane_bytes;
    void *k;
    void *v;
    float *scales; /* of I8 */
    float *q;
    float *out;
    struct kvw_attn_piece piece[PIECES_MAX];
    struct kvw_attn_args args;
    double flops;
};

/* A variant of a comparison: a call with other threads or pieces. */
struct turn {
    const struct call *call;
    struct kvw_attn_args args;
    struct kvw_attn_piece piece[PIECES_MAX];
};

/** Rows of numbers of about -1 .. 1 in memory of large pages. @return 0 or negative. */
BENCH_NODISCARD int call_init(struct call *c, const struct shape *shape, uint32_t type);

/** All zeros: nothing to do. */
void call_fini(struct call *c);

struct turn turn_of(const struct call *c, uint32_t n_threads);

/** Its rows as a ring that wraps at a row, or as a sink and the rest. */
void turn_cut(struct turn *t, uint64_t at, bool is_swapped);

#endif
