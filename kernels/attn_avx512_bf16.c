/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over bf16 rows with AVX-512 BF16: queries and weights are rounded to bf16, and
 * VDPBF16PS adds two products at a time to a float. It flushes subnormal numbers.
 */
#define V_BYTES 2u /* of an element of a row */

#include "kernels/attn_bf16.h"
#include "kernels/num.h"
#include "kernels/variants.h"

/* For attn_few.h. */
typedef vec few_sum;

INLINE few_sum few_first(const struct attn_queries *queries, uint32_t row)
{
    (void)queries;
    (void)row;
    return vec_zero();
}

INLINE vec few_column(vec column, uint32_t part, uint32_t type)
{
    (void)part;
    (void)type;
    return column;
}

INLINE few_sum few_add(few_sum sum, const uint32_t *q, vec column)
{
    return dot_pairs(sum, pair_set(q), _mm512_castps_si512(column));
}

INLINE vec few_score(few_sum sum, const struct attn_queries *queries, uint32_t row)
{
    (void)queries;
    (void)row;
    return sum;
}

#include "kernels/attn_few.h"

/* Two elements of a key to a unit: units x 16 slots. */
INLINE void pack_pairs(uint32_t *dst, const void *const *key, uint32_t head_dim,
                       ptrdiff_t ahead)
{
    float *to = (float *)(void *)dst;
    vec r[VEC_LANES];
    uint32_t d = 0;

    for (uint32_t i = 0; i < VEC_LANES && ahead != 0; i++)
        fetch(key[i], ahead, 2 * head_dim);
    for (; d + 16 <= head_dim; d += 16) {
        vec_load_columns(r, key, d * sizeof(uint16_t));
        for (uint32_t u = 0; u < 8; u++)
            vec_store(&to[(size_t)(d / 2 + u) * VEC_LANES], r[u]);
    }
    if (d == head_dim)
        return;
    const __mmask32 mask = (1u << (head_dim - d)) - 1u;
    for (uint32_t i = 0; i < VEC_LANES; i++)
        r[i] = _mm512_castsi512_ps(
            _mm512_maskz_loadu_epi16(mask, (const uint16_t *)key[i] + d));
    vec_transpose(r);
    for (uint32_t u = 0; u < (head_dim - d + 1) / 2; u++)
        vec_store(&to[(size_t)(d / 2 + u) * VEC_LANES], r[u]);
}

static void pack_pairs_turned(uint32_t *dst, const struct attn_tile *tile,
                              uint32_t slot, const struct attn_shape *shape)
{
    float turned[VEC_LANES][KVW_HEAD_DIM_MAX];
    const void *key[VEC_LANES];

    (void)keys_turned(key, turned, tile, slot, shape);
    for (uint32_t i = 0; i < VEC_LANES; i++) {
        uint16_t *narrow = (uint16_t *)(void *)turned[i];
        for (uint32_t d = 0; d < shape->head_dim_k; d++)
            narrow[d] = bf16_from_f32(turned[i][d]);
    }
    pack_pairs(dst, key, shape->head_dim_k, 0);
}

static void pack_k_bf16(uint32_t *dst, const struct attn_tile *tile, uint32_t slot,
                        const struct attn_shape *shape)
{
    if (tile->has_raw)
        pack_pairs_turned(dst, tile, slot, shape);
    else
        pack_pairs(dst, &tile->k[slot], shape->head_dim_k, tile->k_ahead);
}

/* Pairs of elements [at, at + n) of two rows, n <= 32: the first and the next 16. */
INLINE void pairs_of(__m512i *first, __m512i *second, const uint16_t *even,
                     const uint16_t *odd, uint32_t n)
{
    const __m512i below =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                         39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i above = _mm512_add_epi16(below, _mm512_set1_epi16(16));
    const __mmask32 mask = n >= 32 ? UINT32_MAX : (1u << n) - 1u;
    const __m512i a = _mm512_maskz_loadu_epi16(mask, even);
    const __m512i b = _mm512_maskz_loadu_epi16(mask, odd);

    *first = _mm512_permutex2var_epi16(a, below, b);
    *second = _mm512_permutex2var_epi16(a, above, b);
}

INLINE void value_pairs(const uint32_t n_blocks, __m512i *x,
                        const struct attn_tile *tile, uint32_t slot, uint32_t at,
                        uint32_t head_dim)
{
    const uint16_t *even = (const uint16_t *)tile->v[slot] + at;
    const uint16_t *odd = (const uint16_t *)tile->v[slot + 1] + at;

    UNROLLED
    for (uint32_t j = 0; j < n_blocks; j += 2) {
        const uint32_t d = j * VEC_LANES;
        const uint32_t left = head_dim - at;
        __m512i none;
        pairs_of(&x[j], n_blocks > 1 ? &x[j + 1] : &none, even + d, odd + d,
                 n_blocks > 1        ? 2 * VEC_LANES
                 : left >= VEC_LANES ? VEC_LANES
                                     : left);
    }
}

/* Pairs of slots: blocks of 16 columns x slots / 2. */
static void pack_v_bf16(void *dst, const struct attn_tile *tile, uint32_t begin,
                        uint32_t end, uint32_t v_slots, const struct attn_shape *shape)
{
    const size_t block = (size_t)v_slots * VEC_LANES / 2;
    const uint32_t head_dim = shape->head_dim_v;

    for (uint32_t slot = begin; slot < end; slot += 2) {
        const uint16_t *even = tile->v[slot];
        const uint16_t *odd = tile->v[slot + 1];
        uint32_t *to = (uint32_t *)dst + (size_t)(slot - begin) / 2 * VEC_LANES;
        fetch(even, tile->v_ahead, 2 * head_dim);
        fetch(odd, tile->v_ahead, 2 * head_dim);
        for (uint32_t d = 0; d < head_dim; d += 2 * VEC_LANES) {
            const uint32_t left = head_dim - d;
            __m512i first;
            __m512i second;
            pairs_of(&first, &second, even + d, odd + d,
                     left < 2 * VEC_LANES ? left : 2 * VEC_LANES);
            _mm512_storeu_si512(to, first);
            if (left > VEC_LANES)
                _mm512_storeu_si512(to + block, second);
            to += 2 * block;
        }
    }
}

/* A query times factor, rounded to f32 and then to bf16. */
static void query_bf16(uint16_t *to, const float *row, uint32_t n, double factor)
{
    const __m512d f = _mm512_set1_pd(factor);

    for (uint32_t d = 0; d < n; d += VEC_LANES) {
        const uint32_t n_here = lanes_at(d, n);
        const vec x = vec_load_n(&row[d], n_here);
        const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
        const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
        const vec scaled = _mm512_insertf32x8(
            _mm512_castps256_ps512(_mm512_cvtpd_ps(_mm512_mul_pd(low, f))),
            _mm512_cvtpd_ps(_mm512_mul_pd(high, f)), 1);
        vec_store_bf16_n(&to[d], scaled, n_here);
    }
}

static void pack_q_bf16(uint32_t *dst, const float *const *rows, uint32_t n,
                        uint32_t n_rows, const struct attn_shape *shape, double factor,
                        float *scale, int32_t *sum)
{
    uint16_t row[KVW_HEAD_DIM_MAX + 2];

    (void)scale;
    (void)sum;
    for (uint32_t i = 0; i < n_rows; i++) {
        memset(row, 0, (size_t)shape->units * sizeof(*dst));
        if (i < n)
            query_bf16(row, rows[i], shape->head_dim_k, factor);
        for (uint32_t u = 0; u < shape->units; u++)
            memcpy(&dst[(size_t)u * n_rows + i], &row[2 * u], sizeof(*dst));
    }
}

/* n_rows x n_blocks * VEC_LANES scores. */
INLINE void score_part(const uint32_t n_rows, const uint32_t n_blocks, float *score,
                       const uint32_t *q, const uint32_t *k, uint32_t units)
{
    const size_t block = (size_t)units * VEC_LANES;
    vec acc[FULL_ROWS][4];

    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            acc[i][j] = vec_zero();
    }
    for (uint32_t u = 0; u < units; u++) {
        __m512i key[4];
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            key[j] = _mm512_loadu_si512(k + j * block);
        UNROLLED
        for (uint32_t i = 0; i < n_rows; i++) {
            const __m512i x = pair_set(&q[i]);
            UNROLLED
            for (uint32_t j = 0; j < n_blocks; j++)
                acc[i][j] = dot_pairs(acc[i][j], x, key[j]);
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
INLINE void score_rows(const uint32_t n_rows, float *score, const uint32_t *q,
                       const uint32_t *k, uint32_t n_blocks, uint32_t units)
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

static void score(float *to, const struct attn_queries *queries, const uint32_t *k,
                  uint32_t n_blocks, const struct attn_shape *shape)
{
    const uint32_t *q = queries->q;

    switch (queries->n_rows) {
    case 1:
        score_rows(1, to, q, k, n_blocks, shape->units);
        break;
    case 2:
        score_rows(2, to, q, k, n_blocks, shape->units);
        break;
    case 4:
        score_rows(4, to, q, k, n_blocks, shape->units);
        break;
    case 6:
        score_rows(6, to, q, k, n_blocks, shape->units);
        break;
    case 8:
        score_rows(8, to, q, k, n_blocks, shape->units);
        break;
    default:
        score_rows(12, to, q, k, n_blocks, shape->units);
        break;
    }
}

static bool score_few(float *to, const struct attn_queries *queries,
                      const struct attn_tile *tile, const struct attn_span *span,
                      const struct attn_shape *shape)
{
    if (tile->has_raw || shape->units % 8 != 0 || shape->head_dim_k % 2 != 0)
        return false;
    few_any(to, queries, tile, span, shape->units, 1, shape->kv_type);
    return true;
}

void attn_avx512_bf16(const struct kvw_attn_args *args)
{
    static const struct attn_micro micro = {
        .lanes = VEC_LANES,
        .rows = FULL_ROWS,
        .pack = 2,
        .v_bytes = sizeof(uint16_t),
        .rows_for = rows_for,
        .pack_q = pack_q_bf16,
        .pack_k = pack_k_bf16,
        .pack_v = pack_v_bf16,
        .score = score,
        .weigh = weigh,
        .value = value,
        .score_few = score_few,
        .value_few = value_few,
        .settle = settle,
        .join = join,
    };

    attn_frame_run(args, &micro);
}
