/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over int8 rows with AVX-512 VNNI and BF16. Scores: queries are rounded to 8
 * bits with a scale per row, and VPDPBUSD adds four products of whole numbers at a time,
 * exactly. It wants one factor unsigned: keys get 128 added (their sign bit flipped), and
 * sums begin at -128 times the sum of the query. Values: int8 is exact in bf16, so
 * weights, times the scale of their row, and values are multiplied as attn_bf16.h does.
 */
#define V_BYTES 1u /* of an element of a row */

#include "kernels/attn_bf16.h"
#include "kernels/variants.h"

/* For attn_few.h. */
typedef __m512i few_sum;

INLINE few_sum few_first(const struct attn_queries *queries, uint32_t row)
{
    return _mm512_set1_epi32(-128 * queries->sum[row]);
}

INLINE vec few_column(vec column, uint32_t part, uint32_t type)
{
    (void)part;
    (void)type;
    return _mm512_xor_ps(column, _mm512_castsi512_ps(_mm512_set1_epi8(INT8_MIN)));
}

INLINE few_sum few_add(few_sum sum, const uint32_t *q, vec column)
{
    return _mm512_dpbusd_epi32(sum, _mm512_castps_si512(column), pair_set(q));
}

INLINE vec few_score(few_sum sum, const struct attn_queries *queries, uint32_t row)
{
    return vec_mul(_mm512_cvtepi32_ps(sum), vec_set(queries->scale[row]));
}

#include "kernels/attn_few.h"

/* Four elements of a key to a unit: units x 16 slots. */
static void pack_k_i8(uint32_t *dst, const struct attn_tile *tile, uint32_t slot,
                      const struct attn_shape *shape)
{
    const vec flip = _mm512_castsi512_ps(_mm512_set1_epi8(INT8_MIN));
    const void *const *key = &tile->k[slot];
    const uint32_t head_dim = shape->head_dim_k;
    float *to = (float *)(void *)dst;
    vec r[VEC_LANES];
    uint32_t d = 0;

    for (uint32_t i = 0; i < VEC_LANES; i++)
        fetch(key[i], tile->k_ahead, head_dim);
    for (; d + 32 <= head_dim; d += 32) {
        vec_load_columns(r, key, d);
        for (uint32_t u = 0; u < 8; u++)
            vec_store(&to[(size_t)(d / 4 + u) * VEC_LANES], _mm512_xor_ps(r[u], flip));
    }
    if (d == head_dim)
        return;
    const __mmask64 mask = ((uint64_t)1 << (head_dim - d)) - 1u;
    for (uint32_t i = 0; i < VEC_LANES; i++)
        r[i] = _mm512_castsi512_ps(
            _mm512_maskz_loadu_epi8(mask, (const int8_t *)key[i] + d));
    vec_transpose(r);
    for (uint32_t u = 0; u < (head_dim - d + 3) / 4; u++)
        vec_store(&to[(size_t)(d / 4 + u) * VEC_LANES], _mm512_xor_ps(r[u], flip));
}

/* Pairs of 16 values of two rows, in bf16: int8 has at most 8 significant bits. */
INLINE __m512i values_paired(const int8_t *even, const int8_t *odd, uint32_t n)
{
    const __m512i low = _mm512_castps_si512(vec_load_i8_n(even, n));
    const __m512i high = _mm512_castps_si512(vec_load_i8_n(odd, n));

    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(low, 16), high);
}

INLINE void value_pairs(const uint32_t n_blocks, __m512i *x,
                        const struct attn_tile *tile, uint32_t slot, uint32_t at,
                        uint32_t head_dim)
{
    const int8_t *even = (const int8_t *)tile->v[slot] + at;
    const int8_t *odd = (const int8_t *)tile->v[slot + 1] + at;
    const uint32_t left = head_dim - at;

    UNROLLED
    for (uint32_t j = 0; j < n_blocks; j++) {
        const uint32_t d = j * VEC_LANES;
        x[j] = values_paired(even + d, odd + d,
                             n_blocks > 1 || left >= VEC_LANES ? VEC_LANES : left);
    }
}

/* Pairs of slots: blocks of 16 columns x slots / 2. */
static void pack_v_i8(void *dst, const struct attn_tile *tile, uint32_t begin,
                      uint32_t end, uint32_t v_slots, const struct attn_shape *shape)
{
    const size_t block = (size_t)v_slots * VEC_LANES / 2;
    const uint32_t head_dim = shape->head_dim_v;
    const ptrdiff_t ahead = tile->v_ahead;

    for (uint32_t slot = begin; slot < end; slot += 2) {
        const int8_t *even = tile->v[slot];
        const int8_t *odd = tile->v[slot + 1];
        uint32_t *to = (uint32_t *)dst + (size_t)(slot - begin) / 2 * VEC_LANES;
        uint32_t d = 0;
        fetch(even, ahead, head_dim);
        fetch(odd, ahead, head_dim);
        for (; d + VEC_LANES <= head_dim; d += VEC_LANES) {
            _mm512_storeu_si512(to, values_paired(even + d, odd + d, VEC_LANES));
            to += block;
        }
        if (d < head_dim)
            _mm512_storeu_si512(to, values_paired(even + d, odd + d, head_dim - d));
    }
}

/* The greatest magnitude of a query; NaN if it has a NaN or an infinity. */
static float span_of(const float *row, uint32_t n, double factor)
{
    float span = 0;

    for (uint32_t d = 0; d < n; d++) {
        const float x = fabsf((float)((double)row[d] * factor));
        if (!isfinite(x))
            return NAN;
        span = x > span ? x : span;
    }
    return span;
}

static void pack_q_i8(uint32_t *dst, const float *const *rows, uint32_t n,
                      uint32_t n_rows, const struct attn_shape *shape, double factor,
                      float *scale, int32_t *sum)
{
    int8_t *to = (int8_t *)(void *)dst;

    for (uint32_t i = 0; i < n_rows; i++) {
        const float span = i < n ? span_of(rows[i], shape->head_dim_k, factor) : 0;
        const double per_step = span > 0 ? 127 / (double)span : 0;
        scale[i] = span / 127;
        sum[i] = 0;
        for (uint32_t d = 0; d < 4 * shape->units; d++) {
            double x = 0;
            if (i < n && d < shape->head_dim_k && per_step > 0)
                x = rint((double)rows[i][d] * factor * per_step);
            to[((size_t)(d / 4) * n_rows + i) * 4 + d % 4] = (int8_t)x;
            sum[i] += (int32_t)x;
        }
    }
}

/* n_rows x n_blocks * VEC_LANES scores. */
INLINE void score_part(const uint32_t n_rows, const uint32_t n_blocks, float *score,
                       const struct attn_queries *queries, const uint32_t *k,
                       uint32_t units)
{
    const size_t block = (size_t)units * VEC_LANES;
    const uint32_t *q = queries->q;
    __m512i acc[FULL_ROWS][4];

    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            acc[i][j] = _mm512_set1_epi32(-128 * queries->sum[i]);
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
                acc[i][j] = _mm512_dpbusd_epi32(acc[i][j], key[j], x);
        }
        q += n_rows;
        k += VEC_LANES;
    }
    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        const vec step = vec_set(queries->scale[i]);
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            vec_store(&score[i * ATTN_PITCH + j * VEC_LANES],
                      vec_mul(_mm512_cvtepi32_ps(acc[i][j]), step));
    }
}

/* n_blocks is even: blocks four at a time where there are few rows, else two. */
INLINE void score_rows(const uint32_t n_rows, float *score,
                       const struct attn_queries *queries, const uint32_t *k,
                       uint32_t n_blocks, uint32_t units)
{
    const size_t block = (size_t)units * VEC_LANES;
    uint32_t b = 0;

    if (4 * n_rows <= 2 * FULL_ROWS) {
        for (; b + 4 <= n_blocks; b += 4)
            score_part(n_rows, 4, score + b * VEC_LANES, queries, k + b * block, units);
    }
    for (; b < n_blocks; b += 2)
        score_part(n_rows, 2, score + b * VEC_LANES, queries, k + b * block, units);
}

static void score(float *to, const struct attn_queries *queries, const uint32_t *k,
                  uint32_t n_blocks, const struct attn_shape *shape)
{
    switch (queries->n_rows) {
    case 1:
        score_rows(1, to, queries, k, n_blocks, shape->units);
        break;
    case 2:
        score_rows(2, to, queries, k, n_blocks, shape->units);
        break;
    case 4:
        score_rows(4, to, queries, k, n_blocks, shape->units);
        break;
    case 6:
        score_rows(6, to, queries, k, n_blocks, shape->units);
        break;
    case 8:
        score_rows(8, to, queries, k, n_blocks, shape->units);
        break;
    default:
        score_rows(12, to, queries, k, n_blocks, shape->units);
        break;
    }
}

static bool score_few(float *to, const struct attn_queries *queries,
                      const struct attn_tile *tile, const struct attn_span *span,
                      const struct attn_shape *shape)
{
    if (tile->has_raw || shape->units % 8 != 0 || shape->head_dim_k % 4 != 0)
        return false;
    few_any(to, queries, tile, span, shape->units, 1, KVW_NUM_I8);
    return true;
}

static bool has_raw_keys(const struct kvw_attn_args *args)
{
    for (uint32_t i = 0; i < args->n_pieces; i++) {
        if ((args->pieces[i].flags & KVW_ATTN_RAW_KEYS) != 0)
            return true;
    }
    return false;
}

void attn_avx512_vnni(const struct kvw_attn_args *args)
{
    static const struct attn_micro micro = {
        .lanes = VEC_LANES,
        .rows = FULL_ROWS,
        .pack = 4,
        .v_bytes = sizeof(uint16_t),
        .rows_for = rows_for,
        .pack_q = pack_q_i8,
        .pack_k = pack_k_i8,
        .pack_v = pack_v_i8,
        .score = score,
        .weigh = weigh,
        .value = value,
        .score_few = score_few,
        .value_few = value_few,
        .settle = settle,
        .join = join,
    };

    /* A rotated key is no longer int8. */
    if (has_raw_keys(args))
        attn_avx512(args);
    else
        attn_frame_run(args, &micro);
}
