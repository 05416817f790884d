/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of the micro-kernels that multiply floats. The file that includes it defines
 * FULL_ROWS (rows of a whole micro-tile: 2 * FULL_ROWS accumulators and two vectors of keys
 * or values fit into the registers) and ends with a struct attn_micro.
 *
 * Each score is one chain of FMAs over the elements of the head, each sum one chain over
 * the slots of the tile: neither hangs on what else is computed beside it.
 */
#ifndef KVW_KERNELS_ATTN_F32_H
#define KVW_KERNELS_ATTN_F32_H

#include "kernels/attn_pack.h"
#include "kernels/vec.h"

#ifdef VEC_LANES

static inline void weight_store(void *weight, uint32_t at, vec a, vec b)
{
    float *to = (float *)weight + at;

    vec_store(to, a);
    vec_store(to + VEC_LANES, b);
}

#include "kernels/attn_soft.h"

/* For attn_few.h: a column of floats, or two of narrower numbers. */
typedef vec few_sum;

INLINE few_sum few_first(const struct attn_queries *queries, uint32_t row)
{
    (void)queries;
    (void)row;
    return vec_zero();
}

INLINE vec few_column(vec column, const uint32_t part, const uint32_t type)
{
    if (type == KVW_NUM_F32)
        return column;
    if (type == KVW_NUM_F16)
        return part == 0 ? vec_low_f16(column) : vec_high_f16(column);
    return part == 0 ? vec_low_bf16(column) : vec_high_bf16(column);
}

INLINE few_sum few_add(few_sum sum, const uint32_t *q, vec column)
{
    float x;

    memcpy(&x, q, sizeof(x));
    return vec_fma(vec_set(x), column, sum);
}

INLINE vec few_score(few_sum sum, const struct attn_queries *queries, uint32_t row)
{
    (void)queries;
    (void)row;
    return sum;
}

#include "kernels/attn_few.h"

/* Elements [d, d + VEC_LANES) of VEC_LANES keys, or fewer where the head ends. */
INLINE_PACK void pack_k_some(float *dst, const void *const *key, uint32_t type,
                             uint32_t d, uint32_t n)
{
    vec r[VEC_LANES];

    for (uint32_t i = 0; i < VEC_LANES; i++)
        r[i] = load_any(key[i], type, d, n);
    vec_transpose(r);
    for (uint32_t i = 0; i < n; i++)
        vec_store(&dst[(size_t)(d + i) * VEC_LANES], r[i]);
}

INLINE_PACK void pack_k_f32(float *dst, const void *const *key, uint32_t d)
{
    vec r[8];

    vec_load_columns(r, key, d * sizeof(float));
    for (uint32_t i = 0; i < 8; i++)
        vec_store(&dst[(size_t)(d + i) * VEC_LANES], r[i]);
}

/* 16 elements of 16 bits. */
INLINE_PACK void pack_k_pairs(float *dst, const void *const *key, uint32_t type,
                              uint32_t d)
{
    vec r[8];

    vec_load_columns(r, key, d * sizeof(uint16_t));
    for (uint32_t i = 0; i < 8; i++) {
        float *to = &dst[(size_t)(d + 2 * i) * VEC_LANES];
        const bool is_f16 = type == KVW_NUM_F16;
        vec_store(to, is_f16 ? vec_low_f16(r[i]) : vec_low_bf16(r[i]));
        vec_store(to + VEC_LANES, is_f16 ? vec_high_f16(r[i]) : vec_high_bf16(r[i]));
    }
}

INLINE_PACK void pack_k_from(float *dst, const void *const *key, uint32_t type,
                             uint32_t head_dim, ptrdiff_t ahead)
{
    uint32_t d = 0;

    for (uint32_t i = 0; i < VEC_LANES && ahead != 0; i++)
        fetch(key[i], ahead, bytes_of(type, head_dim));
    for (; type == KVW_NUM_F32 && d + 8 <= head_dim; d += 8)
        pack_k_f32(dst, key, d);
    for (; (type == KVW_NUM_F16 || type == KVW_NUM_BF16) && d + 16 <= head_dim; d += 16)
        pack_k_pairs(dst, key, type, d);
    for (; d + VEC_LANES <= head_dim; d += VEC_LANES)
        pack_k_some(dst, key, type, d, VEC_LANES);
    if (d < head_dim)
        pack_k_some(dst, key, type, d, head_dim - d);
}

static void pack_k_turned(float *dst, const struct attn_tile *tile, uint32_t slot,
                          const struct attn_shape *shape)
{
    float turned[VEC_LANES][KVW_HEAD_DIM_MAX];
    const void *key[VEC_LANES];
    const uint32_t type = keys_turned(key, turned, tile, slot, shape);

    pack_k_from(dst, key, type, shape->head_dim_k, 0);
}

static void pack_k(uint32_t *to, const struct attn_tile *tile, uint32_t slot,
                   const struct attn_shape *shape)
{
    float *dst = (float *)(void *)to;
    const void *const *key = &tile->k[slot];

    if (tile->has_raw)
        pack_k_turned(dst, tile, slot, shape);
    else if (shape->kv_type == KVW_NUM_F32)
        pack_k_from(dst, key, KVW_NUM_F32, shape->head_dim_k, tile->k_ahead);
    else if (shape->kv_type == KVW_NUM_BF16)
        pack_k_from(dst, key, KVW_NUM_BF16, shape->head_dim_k, tile->k_ahead);
    else if (shape->kv_type == KVW_NUM_F16)
        pack_k_from(dst, key, KVW_NUM_F16, shape->head_dim_k, tile->k_ahead);
    else
        pack_k_from(dst, key, KVW_NUM_I8, shape->head_dim_k, tile->k_ahead);
}

INLINE_PACK void pack_v_from(float *dst, const struct attn_tile *tile, uint32_t begin,
                             uint32_t end, uint32_t v_slots,
                             const struct attn_shape *shape, uint32_t type)
{
    const size_t block = (size_t)v_slots * VEC_LANES;

    const uint32_t head_dim = shape->head_dim_v;
    const ptrdiff_t ahead = tile->v_ahead;

    for (uint32_t slot = begin; slot < end; slot++) {
        const void *row = tile->v[slot];
        float *to = dst + (size_t)(slot - begin) * VEC_LANES;
        uint32_t d = 0;
        fetch(row, ahead, bytes_of(type, head_dim));
        for (; d + VEC_LANES <= head_dim; d += VEC_LANES) {
            vec_store(to, load_any(row, type, d, VEC_LANES));
            to += block;
        }
        if (d < head_dim)
            vec_store(to, load_any(row, type, d, head_dim - d));
    }
}

static void pack_v(void *dst, const struct attn_tile *tile, uint32_t begin,
                   uint32_t end, uint32_t v_slots, const struct attn_shape *shape)
{
    if (shape->kv_type == KVW_NUM_F32)
        pack_v_from(dst, tile, begin, end, v_slots, shape, KVW_NUM_F32);
    else if (shape->kv_type == KVW_NUM_BF16)
        pack_v_from(dst, tile, begin, end, v_slots, shape, KVW_NUM_BF16);
    else if (shape->kv_type == KVW_NUM_F16)
        pack_v_from(dst, tile, begin, end, v_slots, shape, KVW_NUM_F16);
    else
        pack_v_from(dst, tile, begin, end, v_slots, shape, KVW_NUM_I8);
}

static void pack_q(uint32_t *dst, const float *const *rows, uint32_t n, uint32_t n_rows,
                   const struct attn_shape *shape, double factor, float *scale,
                   int32_t *sum)
{
    float *to = (float *)(void *)dst;

    (void)scale;
    (void)sum;
    for (uint32_t i = 0; i < n_rows; i++) {
        for (uint32_t d = 0; d < shape->head_dim_k; d++) {
            const float x = i < n ? (float)((double)rows[i][d] * factor) : 0;
            to[(size_t)d * n_rows + i] = x;
        }
    }
}

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
        acc = vec_fma(vec_set(weight[slot]),
                      vec_load(v + (size_t)(slot - begin) * VEC_LANES), acc);
    }
    return acc;
}

/* sums = sums * keep + products * take, for one row and block of columns. */
INLINE void value_join(const struct attn_value *w, uint32_t i, uint32_t at,
                       vec products)
{
    float *sum = w->sums + (size_t)i * w->shape->v_pitch + at;
    const vec kept = vec_mul(vec_load(sum), vec_set(w->keep[i]));

    vec_store(sum, vec_fma(products, vec_set(w->take[i]), kept));
}

static __attribute__((noinline)) void value_again(const struct attn_value *w,
                                                  const float *first, uint32_t n_rows,
                                                  uint32_t n_blocks, uint32_t at)
{
    const size_t block = (size_t)w->v_slots * VEC_LANES;

    for (uint32_t i = 0; i < n_rows; i++) {
        for (uint32_t j = 0; j < n_blocks; j++)
            value_join(w, i, at + j * VEC_LANES,
                       value_careful((const float *)w->weight + i * ATTN_PITCH,
                                     first + j * block, w->begin, w->end));
    }
}

#define PACKED UINT32_MAX

/* Elements [at, at + n_blocks * VEC_LANES) of a row, of which `left` are there. */
INLINE void values_of(const uint32_t n_blocks, vec *x, const struct attn_tile *tile,
                      uint32_t slot, uint32_t at, uint32_t left, const uint32_t type)
{
    const void *row = tile->v[slot];

    UNROLLED
    for (uint32_t j = 0; j < n_blocks; j++) {
        const uint32_t n = left - j * VEC_LANES;
        x[j] = load_any(row, type, at + j * VEC_LANES,
                        n_blocks > 1 || n >= VEC_LANES ? VEC_LANES : n);
    }
}

/* n_rows x n_blocks * VEC_LANES sums. source: PACKED, or the type of the rows. */
INLINE void value_part(const uint32_t n_rows, const uint32_t n_blocks,
                       const struct attn_value *w, uint32_t at, const uint32_t source,
                       struct fetcher *next)
{
    const size_t block = (size_t)w->v_slots * VEC_LANES;
    const float *first = (const float *)w->v + at / VEC_LANES * block;
    const float *v = first;
    const uint32_t left = w->shape->head_dim_v - at;
    const float *weight = (const float *)w->weight + w->begin;
    vec acc[FULL_ROWS][4];
    float *partial = w->partial + at;
    const uint32_t pitch = w->shape->v_pitch;
    vec finite[2] = {vec_zero(), vec_zero()};

    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            acc[i][j] = vec_zero();
    }
    if (w->is_split && !w->is_first) {
        UNROLLED
        for (uint32_t i = 0; i < n_rows; i++) {
            UNROLLED
            for (uint32_t j = 0; j < n_blocks; j++)
                acc[i][j] = vec_load(partial + (size_t)i * pitch + j * VEC_LANES);
        }
    }
    for (uint32_t slot = w->begin; slot < w->end; slot++) {
        vec x[4];
        if (source == PACKED) {
            UNROLLED
            for (uint32_t j = 0; j < n_blocks; j++)
                x[j] = vec_load(v + j * block);
        } else {
            fetch_more(next, bytes_of(source, n_blocks * VEC_LANES) / 64);
            values_of(n_blocks, x, w->tile, slot, at, left, source);
        }
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
    if (w->is_split) {
        UNROLLED
        for (uint32_t i = 0; i < n_rows; i++) {
            UNROLLED
            for (uint32_t j = 0; j < n_blocks; j++)
                vec_store(partial + (size_t)i * pitch + j * VEC_LANES, acc[i][j]);
        }
        return;
    }
    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            finite[i % 2] = vec_fma(acc[i][j], vec_zero(), finite[i % 2]);
    }
    if (__builtin_expect(vec_has_nan(vec_add(finite[0], finite[1])), 0)) {
        value_again(w, first, n_rows, n_blocks, at);
        return;
    }
    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            value_join(w, i, at + j * VEC_LANES, acc[i][j]);
    }
}

INLINE void value_rows(const uint32_t n_rows, const struct attn_value *w,
                       const uint32_t source)
{
    const uint32_t n = source == PACKED ? w->shape->v_pitch : w->shape->head_dim_v;
    struct fetcher next = {.row = &w->tile->v[w->begin],
                           .ahead = w->tile->v_ahead,
                           .n_bytes =
                               bytes_of(w->shape->kv_type, w->shape->head_dim_v)};
    uint32_t at = 0;

    if (4 * n_rows <= 2 * FULL_ROWS) {
        for (; at + 4 * VEC_LANES <= n; at += 4 * VEC_LANES)
            value_part(n_rows, 4, w, at, source, &next);
    }
    for (; at + 2 * VEC_LANES <= n; at += 2 * VEC_LANES)
        value_part(n_rows, 2, w, at, source, &next);
    for (; at < n; at += VEC_LANES)
        value_part(n_rows, 1, w, at, source, &next);
}

static bool settle(const struct attn_value *w)
{
    const uint32_t pitch = w->shape->v_pitch;
    vec finite = vec_zero();

    for (uint32_t i = 0; i < w->n_rows * pitch; i += VEC_LANES)
        finite = vec_fma(vec_load(w->partial + i), vec_zero(), finite);
    if (vec_has_nan(finite))
        return false;
    for (uint32_t i = 0; i < w->n_rows; i++) {
        for (uint32_t at = 0; at < pitch; at += VEC_LANES)
            value_join(w, i, at, vec_load(w->partial + (size_t)i * pitch + at));
    }
    return true;
}

#endif /* VEC_LANES */

#endif /* KVW_KERNELS_ATTN_F32_H */
