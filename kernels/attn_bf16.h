/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of what micro-kernels share that multiply weights and values in bf16, two slots
 * by one VDPBF16PS.
 *
 * A pair is two bf16 in 32 bits: of neighbouring slots, the even one below. A sum is one
 * chain over the pairs of the tile.
 */
#ifndef KVW_KERNELS_ATTN_BF16_H
#define KVW_KERNELS_ATTN_BF16_H

#include "kernels/attn_pack.h"
#include "kernels/vec.h"

#ifdef __AVX512BF16__

static inline void weight_store(void *weight, uint32_t at, vec a, vec b)
{
    uint16_t *to = (uint16_t *)weight + at;

    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

#include "kernels/attn_soft.h"

#define FULL_ROWS 12u

/* Pairs of the rows of two slots, columns [at, at + n_blocks * VEC_LANES), as far as they
 * are there. By the file that includes this. */
INLINE void value_pairs(const uint32_t n_blocks, __m512i *x,
                        const struct attn_tile *tile, uint32_t slot, uint32_t at,
                        uint32_t head_dim);

static uint32_t rows_for(uint32_t n)
{
    static const uint8_t rows[FULL_ROWS + 1] = {1, 1, 2,  4,  4,  6, 6,
                                                8, 8, 12, 12, 12, 12};

    return rows[n];
}

INLINE vec dot_pairs(vec acc, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

INLINE __m512i pair_set(const void *pair)
{
    int32_t bits;

    memcpy(&bits, pair, sizeof(bits));
    return _mm512_set1_epi32(bits);
}

/* A column of sums without the slots that weigh nothing, whose values may be NaN. */
static vec value_careful(const uint16_t *weight, const uint32_t *v, uint32_t begin,
                         uint32_t end)
{
    vec acc = vec_zero();

    for (uint32_t slot = begin; slot < end; slot += 2) {
        const uint32_t mask = (weight[slot] != 0 ? 0xffffu : 0) |
                              (weight[slot + 1] != 0 ? 0xffff0000u : 0);
        const __m512i x =
            _mm512_loadu_si512(v + (size_t)(slot - begin) / 2 * VEC_LANES);
        acc = dot_pairs(acc, pair_set(&weight[slot]),
                        _mm512_and_si512(x, _mm512_set1_epi32((int32_t)mask)));
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
                                                  const uint32_t *first,
                                                  uint32_t n_rows, uint32_t n_blocks,
                                                  uint32_t at)
{
    const size_t block = (size_t)w->v_slots * VEC_LANES / 2;

    for (uint32_t i = 0; i < n_rows; i++) {
        for (uint32_t j = 0; j < n_blocks; j++)
            value_join(w, i, at + j * VEC_LANES,
                       value_careful((const uint16_t *)w->weight + i * ATTN_PITCH,
                                     first + j * block, w->begin, w->end));
    }
}

/* n_rows x n_blocks * VEC_LANES sums. */
INLINE void value_part(const uint32_t n_rows, const uint32_t n_blocks,
                       const struct attn_value *w, uint32_t at, const bool is_packed,
                       struct fetcher *next)
{
    const size_t block = (size_t)w->v_slots * VEC_LANES / 2;
    const uint32_t *first = (const uint32_t *)w->v + at / VEC_LANES * block;
    const uint32_t *v = first;
    const uint16_t *weight = (const uint16_t *)w->weight + w->begin;
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
    for (uint32_t slot = w->begin; slot < w->end; slot += 2) {
        __m512i x[4];
        if (is_packed) {
            UNROLLED
            for (uint32_t j = 0; j < n_blocks; j++)
                x[j] = _mm512_loadu_si512(v + j * block);
        } else {
            fetch_more(next, n_blocks * V_BYTES / 2);
            value_pairs(n_blocks, x, w->tile, slot, at, w->shape->head_dim_v);
        }
        UNROLLED
        for (uint32_t i = 0; i < n_rows; i++) {
            const __m512i p = pair_set(&weight[i * ATTN_PITCH]);
            UNROLLED
            for (uint32_t j = 0; j < n_blocks; j++)
                acc[i][j] = dot_pairs(acc[i][j], p, x[j]);
        }
        weight += 2;
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
                       const bool is_packed)
{
    const uint32_t n = is_packed ? w->shape->v_pitch : w->shape->head_dim_v;
    struct fetcher next = {.row = &w->tile->v[w->begin],
                           .ahead = w->tile->v_ahead,
                           .n_bytes = V_BYTES * w->shape->head_dim_v};
    uint32_t at = 0;

    if (4 * n_rows <= 2 * FULL_ROWS) {
        for (; at + 4 * VEC_LANES <= n; at += 4 * VEC_LANES)
            value_part(n_rows, 4, w, at, is_packed, &next);
    }
    for (; at + 2 * VEC_LANES <= n; at += 2 * VEC_LANES)
        value_part(n_rows, 2, w, at, is_packed, &next);
    for (; at < n; at += VEC_LANES)
        value_part(n_rows, 1, w, at, is_packed, &next);
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

INLINE void value_any(const struct attn_value *w, const bool is_packed)
{
    switch (w->n_rows) {
    case 1:
        value_rows(1, w, is_packed);
        break;
    case 2:
        value_rows(2, w, is_packed);
        break;
    case 4:
        value_rows(4, w, is_packed);
        break;
    case 6:
        value_rows(6, w, is_packed);
        break;
    case 8:
        value_rows(8, w, is_packed);
        break;
    default:
        value_rows(12, w, is_packed);
        break;
    }
}

static void value(const struct attn_value *w)
{
    value_any(w, true);
}

static void value_few(const struct attn_value *w)
{
    value_any(w, false);
}

#endif /* __AVX512BF16__ */

#endif /* KVW_KERNELS_ATTN_BF16_H */
