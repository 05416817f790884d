/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of 16 floats, for files that are compiled with AVX-512 F, BW, DQ and VL. The
 * templates see only the names that vec_avx2.h has as well. Static inline only, for the
 * reason given in num.h.
 */
#ifndef KVW_KERNELS_VEC_AVX512_H
#define KVW_KERNELS_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#ifdef __AVX512F__

#define VEC_LANES 16u

typedef __m512 vec;

static inline vec vec_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vec_store(float *p, vec x)
{
    _mm512_storeu_ps(p, x);
}

/* The lowest n lanes, 1 <= n <= 16; what is behind is neither read nor written. */
static inline __mmask16 vec_first(uint32_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

static inline vec vec_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(vec_first(n), p);
}

static inline void vec_store_n(float *p, vec x, uint32_t n)
{
    _mm512_mask_storeu_ps(p, vec_first(n), x);
}

static inline vec vec_load_bf16_n(const uint16_t *p, uint32_t n)
{
    const __m256i h = _mm256_maskz_loadu_epi16(vec_first(n), p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static inline vec vec_load_f16_n(const uint16_t *p, uint32_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vec_first(n), p));
}

static inline vec vec_load_i8_n(const int8_t *p, uint32_t n)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(vec_first(n), p)));
}

static inline vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c, rounded once. */
static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* The greater; b where one of them is NaN. */
static inline vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

static inline vec vec_abs(vec a)
{
    return _mm512_abs_ps(a);
}

/* |a| with the sign of s. */
static inline vec vec_sign(vec a, vec s)
{
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);

    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(sign, _mm512_castps_si512(s),
                                                         _mm512_castps_si512(a), 0xca));
}

/* a where x < y, else b. */
static inline vec vec_if_less(vec x, vec y, vec a, vec b)
{
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), a);
}

/* Lanes of a whose bit is set, else those of b. */
static inline vec vec_pick(uint32_t bits, vec a, vec b)
{
    return _mm512_mask_mov_ps(b, (__mmask16)bits, a);
}

/* Whether some lane is NaN. */
static inline int vec_has_nan(vec a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0;
}

static inline vec vec_round(vec a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* p * 2^n for whole n; 0 for n = -inf even where p is NaN (VSCALEFPS). */
static inline vec vec_scale(vec p, vec n)
{
    return _mm512_scalef_ps(p, n);
}

static inline float vec_sum(vec a)
{
    const __m256 b =
        _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));

    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

static inline float vec_max_of(vec a)
{
    const __m256 b =
        _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));

    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

/* Lane j of row i becomes lane i of row j. */
static inline void vec_transpose(vec r[16])
{
    vec a[16];
    vec b[16];

    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        for (int j = 0; j < 2; j++) {
            const __m512d lo = _mm512_castps_pd(a[i + j]);
            const __m512d hi = _mm512_castps_pd(a[i + j + 2]);
            b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi));
            b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi));
        }
    }
    /* b[4 g + c] has columns c, c + 4, c + 8, c + 12 of rows 4 g .. 4 g + 3. */
    for (int c = 0; c < 4; c++) {
        a[c] = _mm512_shuffle_f32x4(b[c], b[c + 4], 0x88);
        a[c + 4] = _mm512_shuffle_f32x4(b[c + 8], b[c + 12], 0x88);
        a[c + 8] = _mm512_shuffle_f32x4(b[c], b[c + 4], 0xdd);
        a[c + 12] = _mm512_shuffle_f32x4(b[c + 8], b[c + 12], 0xdd);
    }
    for (int c = 0; c < 4; c++) {
        r[c] = _mm512_shuffle_f32x4(a[c], a[c + 4], 0x88);
        r[c + 8] = _mm512_shuffle_f32x4(a[c], a[c + 4], 0xdd);
        r[c + 4] = _mm512_shuffle_f32x4(a[c + 8], a[c + 12], 0x88);
        r[c + 12] = _mm512_shuffle_f32x4(a[c + 8], a[c + 12], 0xdd);
    }
}

/* r[j] = 32-bit element j, from at_bytes on, of each row: a part of the work of
 * vec_transpose() is left to loads. */
static inline void vec_load_columns(vec r[8], const void *const *rows, size_t at_bytes)
{
    vec a[8];
    vec b[8];

    /* a[j], a[j + 4]: rows j and j + 4, j + 8 and j + 12. */
    for (int j = 0; j < 8; j++) {
        const int first = j < 4 ? j : j + 4;
        const float *x0 = (const void *)((const char *)rows[first] + at_bytes);
        const float *x1 = (const void *)((const char *)rows[first + 4] + at_bytes);
        a[j] = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(x0)),
                                  _mm256_loadu_ps(x1), 1);
    }
    /* b[c], b[c + 4]: columns c and c + 4 of rows 0 to 7, 8 to 15. */
    for (int j = 0; j < 8; j += 4) {
        const __m512d lo01 = _mm512_castps_pd(_mm512_unpacklo_ps(a[j], a[j + 1]));
        const __m512d hi01 = _mm512_castps_pd(_mm512_unpackhi_ps(a[j], a[j + 1]));
        const __m512d lo23 = _mm512_castps_pd(_mm512_unpacklo_ps(a[j + 2], a[j + 3]));
        const __m512d hi23 = _mm512_castps_pd(_mm512_unpackhi_ps(a[j + 2], a[j + 3]));
        b[j] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo01, lo23));
        b[j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo01, lo23));
        b[j + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(hi01, hi23));
        b[j + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(hi01, hi23));
    }
    for (int c = 0; c < 4; c++) {
        r[c] = _mm512_shuffle_f32x4(b[c], b[c + 4], 0x88);
        r[c + 4] = _mm512_shuffle_f32x4(b[c], b[c + 4], 0xdd);
    }
}

/* Of pairs of 16-bit numbers in 32 bits, the lower and the upper one as floats. */
static inline vec vec_low_bf16(vec pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}

static inline vec vec_high_bf16(vec pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs),
                                                _mm512_set1_epi32((int)0xffff0000u)));
}

/* Sixteen lower ones, then sixteen upper ones. */
static inline __m512i vec_parted(vec pairs)
{
    const __m512i index =
        _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30,
                         28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);

    return _mm512_permutexvar_epi16(index, _mm512_castps_si512(pairs));
}

static inline vec vec_low_f16(vec pairs)
{
    return _mm512_cvtph_ps(_mm512_castsi512_si256(vec_parted(pairs)));
}

static inline vec vec_high_f16(vec pairs)
{
    return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(vec_parted(pairs), 1));
}

static inline void vec_store_f16_n(uint16_t *p, vec x, uint32_t n)
{
    _mm256_mask_storeu_epi16(
        p, vec_first(n),
        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* See bf16_from_f32() of num.h. */
static inline void vec_store_bf16_n(uint16_t *p, vec x, uint32_t n)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __mmask16 is_nan =
        _mm512_cmpgt_epi32_mask(_mm512_and_si512(bits, _mm512_set1_epi32(INT32_MAX)),
                                _mm512_set1_epi32(0x7f800000));

    _mm256_mask_storeu_epi16(
        p, vec_first(n),
        _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, quiet)));
}

/* Rounded to whole numbers, of which all are in range. */
static inline void vec_store_i8_n(int8_t *p, vec x, uint32_t n)
{
    _mm_mask_storeu_epi8(p, vec_first(n), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}

/* a b c d ... of the lower half as a a b b c c d d ... */
static inline vec vec_twice(vec a)
{
    const __m512i index =
        _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);

    return _mm512_permutexvar_ps(index, a);
}

/* a b c d ... as b a d c ... */
static inline vec vec_swap(vec a)
{
    return _mm512_permute_ps(a, 0xb1);
}

static inline vec vec_even_minus(vec a)
{
    return _mm512_mask_xor_ps(a, 0x5555, a, _mm512_set1_ps(-0.0f));
}

#endif /* __AVX512F__ */

#endif /* KVW_KERNELS_VEC_AVX512_H */
