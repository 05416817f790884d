/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of 8 floats, for files that are compiled with AVX2, FMA and F16C. The
 * templates see only the names that vec_avx512.h has as well. Static inline only, for
 * the reason given in num.h.
 */
#ifndef KVW_KERNELS_VEC_AVX2_H
#define KVW_KERNELS_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX2__

#define VEC_LANES 8u

typedef __m256 vec;

static inline vec vec_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vec_store(float *p, vec x)
{
    _mm256_storeu_ps(p, x);
}

/* The lowest n lanes, 1 <= n <= 8; what is behind is neither read nor written. */
static inline __m256i vec_first(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vec vec_load_n(const float *p, uint32_t n)
{
    return _mm256_maskload_ps(p, vec_first(n));
}

static inline void vec_store_n(float *p, vec x, uint32_t n)
{
    _mm256_maskstore_ps(p, vec_first(n), x);
}

static inline __m128i vec_load_u16_n(const uint16_t *p, uint32_t n)
{
    uint16_t part[8] = {0};

    if (n >= VEC_LANES)
        return _mm_loadu_si128((const __m128i *)(const void *)p);
    memcpy(part, p, n * sizeof(*p));
    return _mm_loadu_si128((const __m128i *)(const void *)part);
}

static inline vec vec_load_bf16_n(const uint16_t *p, uint32_t n)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(vec_load_u16_n(p, n)), 16));
}

static inline vec vec_load_f16_n(const uint16_t *p, uint32_t n)
{
    return _mm256_cvtph_ps(vec_load_u16_n(p, n));
}

static inline vec vec_load_i8_n(const int8_t *p, uint32_t n)
{
    int8_t part[16] = {0};
    __m128i x;

    if (n >= VEC_LANES) {
        x = _mm_loadl_epi64((const __m128i *)(const void *)p);
    } else {
        memcpy(part, p, n);
        x = _mm_loadl_epi64((const __m128i *)(const void *)part);
    }
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x));
}

static inline vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}

/* a * b + c, rounded once. */
static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* The greater; b where one of them is NaN. */
static inline vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

static inline vec vec_abs(vec a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

/* |a| with the sign of s. */
static inline vec vec_sign(vec a, vec s)
{
    return _mm256_or_ps(vec_abs(a), _mm256_and_ps(_mm256_set1_ps(-0.0f), s));
}

/* a where x < y, else b. */
static inline vec vec_if_less(vec x, vec y, vec a, vec b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_LT_OQ));
}

/* Lanes of a whose bit is set, else those of b. */
static inline vec vec_pick(uint32_t bits, vec a, vec b)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i mine = _mm256_and_si256(_mm256_set1_epi32((int32_t)bits), bit);

    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(mine, bit)));
}

/* Whether some lane is NaN. */
static inline int vec_has_nan(vec a)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0;
}

static inline vec vec_round(vec a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* p * 2^n for whole n <= 127; 0 for n < -126, even where p is NaN; NaN if n is. */
static inline vec vec_scale(vec p, vec n)
{
    const vec low = _mm256_set1_ps(-126.0f);
    const vec is_low = _mm256_cmp_ps(n, low, _CMP_LT_OQ);
    const vec is_nan = _mm256_cmp_ps(n, n, _CMP_UNORD_Q);
    const __m256i e = _mm256_cvtps_epi32(_mm256_max_ps(n, low));
    const __m256i power =
        _mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23);
    const vec product = _mm256_mul_ps(p, _mm256_castsi256_ps(power));

    return _mm256_or_ps(_mm256_andnot_ps(is_low, product), is_nan);
}

static inline float vec_sum(vec a)
{
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

static inline float vec_max_of(vec a)
{
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

/* Lane j of row i becomes lane i of row j. */
static inline void vec_transpose(vec r[8])
{
    vec a[8];
    vec b[8];

    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        for (int j = 0; j < 2; j++) {
            const __m256d lo = _mm256_castps_pd(a[i + j]);
            const __m256d hi = _mm256_castps_pd(a[i + j + 2]);
            b[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(lo, hi));
            b[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lo, hi));
        }
    }
    for (int c = 0; c < 4; c++) {
        r[c] = _mm256_permute2f128_ps(b[c], b[c + 4], 0x20);
        r[c + 4] = _mm256_permute2f128_ps(b[c], b[c + 4], 0x31);
    }
}

/* r[j] = 32-bit element j, from at_bytes on, of each row: a third of the work of
 * vec_transpose() is left to loads. */
static inline void vec_load_columns(vec r[8], const void *const *rows, size_t at_bytes)
{
    for (int c = 0; c < 8; c += 4) {
        vec a[4];
        for (int j = 0; j < 4; j++) {
            const size_t at = at_bytes + 4 * (size_t)c;
            const float *x0 = (const void *)((const char *)rows[j] + at);
            const float *x1 = (const void *)((const char *)rows[j + 4] + at);
            a[j] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x0)),
                                        _mm_loadu_ps(x1), 1);
        }
        const __m256d lo01 = _mm256_castps_pd(_mm256_unpacklo_ps(a[0], a[1]));
        const __m256d hi01 = _mm256_castps_pd(_mm256_unpackhi_ps(a[0], a[1]));
        const __m256d lo23 = _mm256_castps_pd(_mm256_unpacklo_ps(a[2], a[3]));
        const __m256d hi23 = _mm256_castps_pd(_mm256_unpackhi_ps(a[2], a[3]));
        r[c] = _mm256_castpd_ps(_mm256_unpacklo_pd(lo01, lo23));
        r[c + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lo01, lo23));
        r[c + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(hi01, hi23));
        r[c + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(hi01, hi23));
    }
}

/* Of pairs of 16-bit numbers in 32 bits, the lower and the upper one as floats. */
static inline vec vec_low_bf16(vec pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
}

static inline vec vec_high_bf16(vec pairs)
{
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs),
                                                _mm256_set1_epi32((int)0xffff0000u)));
}

static inline vec vec_low_f16(vec pairs)
{
    const __m256i low =
        _mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32(0xffff));

    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low),
                                            _mm256_extracti128_si256(low, 1)));
}

static inline vec vec_high_f16(vec pairs)
{
    return vec_low_f16(
        _mm256_castsi256_ps(_mm256_srli_epi32(_mm256_castps_si256(pairs), 16)));
}

static inline void vec_store_u16_n(uint16_t *p, __m128i x, uint32_t n)
{
    uint16_t part[8];

    if (n >= VEC_LANES) {
        _mm_storeu_si128((__m128i *)(void *)p, x);
        return;
    }
    _mm_storeu_si128((__m128i *)(void *)part, x);
    memcpy(p, part, n * sizeof(*p));
}

static inline void vec_store_f16_n(uint16_t *p, vec x, uint32_t n)
{
    vec_store_u16_n(
        p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n);
}

/* See bf16_from_f32() of num.h. */
static inline void vec_store_bf16_n(uint16_t *p, vec x, uint32_t n)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i is_nan =
        _mm256_cmpgt_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(INT32_MAX)),
                           _mm256_set1_epi32(0x7f800000));
    const __m256i y = _mm256_blendv_epi8(rounded, quiet, is_nan);

    vec_store_u16_n(
        p, _mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1)),
        n);
}

/* Rounded to whole numbers, of which all are in range. */
static inline void vec_store_i8_n(int8_t *p, vec x, uint32_t n)
{
    const __m256i y = _mm256_cvtps_epi32(x);
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    int8_t part[16];

    _mm_storeu_si128((__m128i *)(void *)part, _mm_packs_epi16(words, words));
    memcpy(p, part, n < VEC_LANES ? n : VEC_LANES);
}

/* a b c d ... of the lower half as a a b b c c d d ... */
static inline vec vec_twice(vec a)
{
    return _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}

/* a b c d ... as b a d c ... */
static inline vec vec_swap(vec a)
{
    return _mm256_permute_ps(a, 0xb1);
}

static inline vec vec_even_minus(vec a)
{
    const vec minus = _mm256_setr_ps(-0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f, 0);

    return _mm256_xor_ps(a, minus);
}

#endif /* __AVX2__ */

#endif /* KVW_KERNELS_VEC_AVX2_H */
