/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of the micro-kernels that multiply floats. The file that includes it has
 * included vec_avx2.h or vec_avx512.h, defines FULL_ROWS (rows of a whole micro-tile: 2 *
 * FULL_ROWS accumulators and two vectors of keys or values fit into the registers) and
 * ends with a struct attn_micro.
 *
 * Each score is one chain of FMAs over the elements of the head, each sum one chain over
 * the slots of the tile: neither hangs on what else is computed beside it.
 */
#ifndef KVW_KERNELS_ATTN_F32_H
#define KVW_KERNELS_ATTN_F32_H

#include "kernels/attn_pack.h"

static inline void weight_store(void *weight, uint32_t at, vec a, vec b)
{
    float *to = (float *)weight + at;

    vec_store(to, a);
    vec_store(to + VEC_LANES, b);
}

#include "kernels/attn_soft.h"

/* n_rows x n_blocks * VEC_LANES scores. */
INLINE void score_part(const uint32_t n_rows, const uint32_t n_blocks, float *score,
                       const float *q, const float *k, uint32_t units)
{
    const size_t block = (size_t)units * VEC_LANES;
    vec acc[FULL_ROWS][4];

    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            acc[i][j] = vec_zero();
    }
    for (uint32_t d = 0; d < units; d++) {
        vec key[4];
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            key[j] = vec_load(k + j * block);
        UNROLLED
        for (uint32_t i = 0; i < n_rows; i++) {
            const vec x = vec_set(q[i]);
            UNROLLED
            for (uint32_t j = 0; j < n_blocks; j++)
                acc[i][j] = vec_fma(x, key[j], acc[i][j]);
        }
        q += n_rows;
        k += VEC_LANES;
    }
    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            vec_store(&score[i * ATTN_PITCH + j * VEC_LANES], acc[i][j]);
    }
}

/* n_blocks is even: blocks four at a time where there are few rows, else two. */
INLINE void score_rows(const uint32_t n_rows, float *score, const float *q,
                       const float *k, uint32_t n_blocks, uint32_t units)
{
    const size_t block = (size_t)units * VEC_LANES;
    uint32_t b = 0;

    if (4 * n_rows <= 2 * FULL_ROWS) {
        for (; b + 4 <= n_blocks; b += 4)
            score_part(n_rows, 4, score + b * VEC_LANES, q, k + b * block, units);
    }
    for (; b < n_blocks; b += 2)
        score_part(n_rows, 2, score + b * VEC_LANES, q, k + b * block, units);
}

/* A column of sums without the slots that weigh nothing, whose values may be NaN. */
static vec value_careful(const float *weight, const float *v, uint32_t begin,
                         uint32_t end)
{
    vec acc = vec_zero();

    for (uint32_t slot = begin; slot < end; slot++) {
        if (weight[slot] == 0)
            continue;
        acc =
            vec_fma(vec_set(weight[slot]), vec_load(v + (size_t)slot * VEC_LANES), acc);
    }
    return acc;
}

/* n_rows x n_blocks * VEC_LANES sums. */
INLINE void value_part(const uint32_t n_rows, const uint32_t n_blocks,
                       const struct attn_value *w, uint32_t at)
{
    const size_t block = (size_t)(w->shape->n_slots + 2) * VEC_LANES;
    const float *first = (const float *)w->v + at / VEC_LANES * block;
    const float *v = first + (size_t)w->begin * VEC_LANES;
    const float *weight = (const float *)w->weight + w->begin;
    vec acc[FULL_ROWS][4];
    vec finite = vec_zero();

    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            acc[i][j] = vec_zero();
    }
    for (uint32_t slot = w->begin; slot < w->end; slot++) {
        vec x[4];
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            x[j] = vec_load(v + j * block);
        UNROLLED
        for (uint32_t i = 0; i < n_rows; i++) {
            const vec p = vec_set(weight[i * ATTN_PITCH]);
            UNROLLED
            for (uint32_t j = 0; j < n_blocks; j++)
                acc[i][j] = vec_fma(p, x[j], acc[i][j]);
        }
        weight++;
        v += VEC_LANES;
    }
    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            finite = vec_fma(acc[i][j], vec_zero(), finite);
    }
    const bool is_careful = vec_has_nan(finite);
    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        const vec keep = vec_set(w->keep[i]);
        const vec take = vec_set(w->take[i]);
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++) {
            float *sum = w->sums + (size_t)i * w->shape->v_pitch + at + j * VEC_LANES;
            if (is_careful)
                acc[i][j] = value_careful((const float *)w->weight + i * ATTN_PITCH,
                                          first + j * block, w->begin, w->end);
            vec_store(sum, vec_fma(acc[i][j], take, vec_mul(vec_load(sum), keep)));
        }
    }
}

INLINE void value_rows(const uint32_t n_rows, const struct attn_value *w)
{
    const uint32_t n = w->shape->v_pitch;
    uint32_t at = 0;

    if (4 * n_rows <= 2 * FULL_ROWS) {
        for (; at + 4 * VEC_LANES <= n; at += 4 * VEC_LANES)
            value_part(n_rows, 4, w, at);
    }
    for (; at + 2 * VEC_LANES <= n; at += 2 * VEC_LANES)
        value_part(n_rows, 2, w, at);
    if (at < n)
        value_part(n_rows, 1, w, at);
}

#endif /* KVW_KERNELS_ATTN_F32_H */
