/* SPDX-License-Identifier: Apache-2.0 */
/* See composed.h: all but the products. */
#include "bench/composed.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvwheel/kernels.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define QUERIES_MAX 256u /* of a block: tiles for an L2 cache of 1 MiB */
#define ROWS_MAX 512u    /* of a tile */
#define LOG2_E 1.4426950408889634

struct composed {
    struct composed_shape shape;
    struct composed_tile tile;
    const struct composed_products *products;
    void *state;
    bool is_vector;
    float *score;     /* a tile */
    uint16_t *weight; /* of bf16: the same as weights */
    float *q;         /* scaled, of a block */
    float max[QUERIES_MAX];
    float sum[QUERIES_MAX];
};

static const struct composed_products *products_of(enum composed_library library)
{
    return library == COMPOSED_ONEDNN ? composed_onednn() : composed_openblas();
}

bool composed_is_there(enum composed_library library)
{
    static bool is_said[2];
    const bool is_there = products_of(library) != NULL;

    if (!is_there && !is_said[library])
        fprintf(stderr, "kvwheel-bench: no attention composed from %s\n",
                library == COMPOSED_ONEDNN
                    ? "oneDNN: this build has none (libdnnl-dev)"
                    : "OpenBLAS: libopenblas.so.0 is not there (libopenblas-dev)");
    is_said[library] = true;
    return is_there;
}

/* The greatest divisor of n that is at most max. */
static uint32_t part_of(uint32_t n, uint32_t max)
{
    uint32_t part = n < max ? n : max;

    while (n % part != 0)
        part--;
    return part;
}

static void *allocate(size_t n_bytes)
{
    void *memory = aligned_alloc(64, (n_bytes + 63) / 64 * 64);

    if (memory != NULL)
        memset(memory, 0, n_bytes);
    return memory;
}

int composed_open(struct composed **composed, enum composed_library library,
                  const struct composed_shape *shape)
{
    struct composed *c = calloc(1, sizeof *c);

    *composed = c;
    if (c == NULL)
        return -ENOMEM;
    c->shape = *shape;
    c->products = products_of(library);
    c->tile = (struct composed_tile){.n_q = part_of(shape->n_q, QUERIES_MAX),
                                     .n_rows = part_of(shape->n_rows, ROWS_MAX),
                                     .head_dim = shape->head_dim,
                                     .is_bf16 = shape->is_bf16};
    c->tile.n_tiles = shape->n_rows / c->tile.n_rows;
    c->is_vector = (kvw_cpu_flags() & KVW_CPU_AVX512) != 0;
    const size_t n = (size_t)c->tile.n_q * c->tile.n_rows;
    c->score = allocate(n * sizeof(float));
    c->weight = allocate(n * sizeof(uint16_t));
    c->q = allocate((size_t)c->tile.n_q * shape->head_dim * sizeof(float));
    if (c->products == NULL)
        return -ENOTSUP;
    if (c->score == NULL || c->weight == NULL || c->q == NULL)
        return -ENOMEM;
    return c->products->open(&c->state, &c->tile);
}

void composed_close(struct composed *composed)
{
    if (composed == NULL)
        return;
    if (composed->state != NULL)
        composed->products->close(composed->state);
    free(composed->score);
    free(composed->weight);
    free(composed->q);
    free(composed);
}

static uint16_t bf16_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A row of scores, of base 2, becomes weights. Returns their sum. */
static float weigh_plain(const struct composed *c, float *score, uint16_t *weight,
                         float max)
{
    float sum = 0;

    for (uint32_t i = 0; i < c->tile.n_rows; i++) {
        score[i] = exp2f(score[i] - max);
        sum += score[i];
        if (c->tile.is_bf16)
            weight[i] = bf16_of(score[i]);
    }
    return sum;
}

static float max_plain(const float *score, uint32_t n)
{
    float max = -INFINITY;

    for (uint32_t i = 0; i < n; i++)
        max = score[i] > max ? score[i] : max;
    return max;
}

#ifdef __x86_64__

#define VECTOR __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define VECTOR_BF16 \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

/* 2^x for x <= 0: Taylor's polynomial of degree 5 in x log 2, off by 3e-6 at most. */
VECTOR static inline __m512 exp2_of(__m512 x)
{
    const __m512 n = _mm512_roundscale_ps(x, 8);
    const __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(0.00133335581f);

    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00961812911f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0555041087f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240226507f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693147181f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* Lanes of the 16 from i on that are below n. */
VECTOR static inline __mmask16 lanes_of(uint32_t i, uint32_t n)
{
    if (i >= n)
        return 0;
    return (__mmask16)(n - i >= 16 ? 0xffffu : (1u << (n - i)) - 1);
}

/* A row of bf16 weights; where there is no bf16, composed_open() was not asked for it. */
VECTOR_BF16 static float weigh_bf16(const struct composed *c, const float *score,
                                    uint16_t *weight, float max)
{
    const __m512 base = _mm512_set1_ps(max);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    const uint32_t n = c->tile.n_rows;
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};

    for (uint32_t i = 0; i < n; i += 32) {
        __m512 x[2];
        for (uint32_t j = 0; j < 2; j++) {
            const uint32_t at = i + 16 * j;
            const __m512 s = _mm512_mask_loadu_ps(none, lanes_of(at, n), &score[at]);
            x[j] = exp2_of(_mm512_sub_ps(s, base));
            sum[j] = _mm512_add_ps(sum[j], x[j]);
        }
        const __mmask32 lanes = lanes_of(i, n) | (__mmask32)lanes_of(i + 16, n) << 16;
        _mm512_mask_storeu_epi16(&weight[i], lanes,
                                 (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]));
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1]));
}

VECTOR static float weigh_f32(const struct composed *c, float *score, float max)
{
    const __m512 base = _mm512_set1_ps(max);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    const uint32_t n = c->tile.n_rows;
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};

    for (uint32_t i = 0; i < n; i += 32) {
        for (uint32_t j = 0; j < 2; j++) {
            const uint32_t at = i + 16 * j;
            const __mmask16 lanes = lanes_of(at, n);
            const __m512 s = _mm512_mask_loadu_ps(none, lanes, &score[at]);
            const __m512 x = exp2_of(_mm512_sub_ps(s, base));
            sum[j] = _mm512_add_ps(sum[j], x);
            _mm512_mask_storeu_ps(&score[at], lanes, x);
        }
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1]));
}

static float weigh_vector(const struct composed *c, float *score, uint16_t *weight,
                          float max)
{
    return c->tile.is_bf16 ? weigh_bf16(c, score, weight, max)
                           : weigh_f32(c, score, max);
}

VECTOR static float max_vector(const float *score, uint32_t n)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 max[2] = {none, none};

    for (uint32_t i = 0; i < n; i += 32) {
        for (uint32_t j = 0; j < 2; j++) {
            const uint32_t at = i + 16 * j;
            const __m512 s = _mm512_mask_loadu_ps(none, lanes_of(at, n), &score[at]);
            max[j] = _mm512_max_ps(max[j], s);
        }
    }
    return _mm512_reduce_max_ps(_mm512_max_ps(max[0], max[1]));
}

#else

#define weigh_vector weigh_plain
#define max_vector max_plain

#endif

/* The tile's scores become weights; sums of before are scaled to the new maximum. */
static void weigh(struct composed *c, float *out)
{
    const uint32_t n = c->tile.n_rows;
    const uint32_t head_dim = c->tile.head_dim;

    for (uint32_t i = 0; i < c->tile.n_q; i++) {
        float *score = &c->score[(size_t)i * n];
        uint16_t *weight = &c->weight[(size_t)i * n];
        const float here = c->is_vector ? max_vector(score, n) : max_plain(score, n);
        const float before = c->max[i];
        const float max = here > before ? here : before;
        const float sum = c->is_vector ? weigh_vector(c, score, weight, max)
                                       : weigh_plain(c, score, weight, max);
        const float keep = exp2f(before - max);
        c->max[i] = max;
        c->sum[i] = c->sum[i] * keep + sum;
        for (uint32_t d = 0; d < head_dim && keep != 1; d++)
            out[(size_t)i * head_dim + d] *= keep;
    }
}

/* Queries times the scale, in the type of the keys. */
static const void *scaled(struct composed *c, const float *q)
{
    const size_t n = (size_t)c->tile.n_q * c->tile.head_dim;
    const float factor = (float)((double)c->shape.scale * LOG2_E);
    uint16_t *narrow = (uint16_t *)c->q;

    for (size_t i = 0; i < n; i++) {
        if (c->tile.is_bf16)
            narrow[i] = bf16_of(q[i] * factor);
        else
            c->q[i] = q[i] * factor;
    }
    return c->q;
}

static int run_block(struct composed *c, const float *from, float *out)
{
    const uint32_t n_q = c->tile.n_q;
    const uint32_t head_dim = c->tile.head_dim;
    const void *q = scaled(c, from);
    int error = 0;

    memset(out, 0, (size_t)n_q * head_dim * sizeof *out);
    for (uint32_t i = 0; i < n_q; i++) {
        c->max[i] = -INFINITY;
        c->sum[i] = 0;
    }
    for (uint32_t tile = 0; tile < c->tile.n_tiles && error == 0; tile++) {
        error = c->products->score(c->state, tile, q, c->score);
        if (error != 0)
            return error;
        weigh(c, out);
        const void *p = c->tile.is_bf16 ? (void *)c->weight : (void *)c->score;
        error = c->products->value(c->state, tile, p, out);
    }
    for (uint32_t i = 0; i < n_q; i++) {
        for (uint32_t d = 0; d < head_dim; d++)
            out[(size_t)i * head_dim + d] /= c->sum[i];
    }
    return error;
}

int composed_run(struct composed *composed, const void *k, const void *v,
                 const float *q, float *out)
{
    const struct composed_tile *tile = &composed->tile;
    int error = composed->products->pack(composed->state, k, v);

    for (uint32_t i = 0; i < composed->shape.n_q && error == 0; i += tile->n_q) {
        const size_t at = (size_t)i * tile->head_dim;
        error = run_block(composed, q + at, out + at);
    }
    return error;
}
