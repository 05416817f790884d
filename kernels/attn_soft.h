/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of the softmax of a micro-tile. The file that includes it says, before, how two
 * vectors of weights are stored:
 *
 *   static inline void weight_store(void *weight, uint32_t at, vec a, vec b);
 *
 * at: index of the first of 2 * VEC_LANES weights, counted over rows of ATTN_PITCH.
 * Scores are of base 2. The order of sums hangs on slots alone.
 */
#ifndef KVW_KERNELS_ATTN_SOFT_H
#define KVW_KERNELS_ATTN_SOFT_H

#include <math.h>

#include "kernels/attn_micro.h"
#include "kernels/vec.h"

#ifdef VEC_LANES

#define UNROLLED _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

/* 2^x for x <= 0 or just above: 2^n by exponent, 2^f for |f| <= 1/2 by a polynomial that
 * is exact at 0 and elsewhere off by 1.6 * 2^-24 relative at most (a fit with the least
 * greatest error; with the roundings of five FMAs that stays under 4 * 2^-24). */
INLINE vec exp2_of(vec x)
{
    const vec n = vec_round(x);
    const vec f = vec_sub(x, n);
    vec p = vec_set(0.001326472690780331f);

    p = vec_fma(p, f, vec_set(0.009671512660388723f));
    p = vec_fma(p, f, vec_set(0.05550733744214284f));
    p = vec_fma(p, f, vec_set(0.24022242084923076f));
    p = vec_fma(p, f, vec_set(0.6931469775984941f));
    p = vec_fma(p, f, vec_set(1.0f));
    return vec_scale(p, n);
}

/* tanh x: near 0 an odd polynomial with an error of 0.07 * 2^-24 relative; elsewhere 1 - 2
 * / (exp(2 |x|) + 1) with the sign of x. NaN stays NaN. */
INLINE vec tanh_of(vec x)
{
    const vec y = vec_mul(x, x);
    const vec limit = vec_set(-40.0f); /* tanh is 1 there; keeps exp2_of in its range */
    vec p = vec_set(-0.0057170452964606525f);
    vec e;

    p = vec_fma(p, y, vec_set(0.020650587552389972f));
    p = vec_fma(p, y, vec_set(-0.05374349817770008f));
    p = vec_fma(p, y, vec_set(0.13331491288501415f));
    p = vec_fma(p, y, vec_set(-0.33333283925364315f));
    p = vec_fma(vec_mul(p, y), x, x);

    /* By exp(-2 |x|), which cannot overflow. */
    e = exp2_of(vec_max(limit, vec_mul(vec_abs(x), vec_set(-2.885390081777927f))));
    e = vec_div(vec_sub(vec_set(1.0f), e), vec_add(vec_set(1.0f), e));
    return vec_if_less(vec_abs(x), vec_set(0.625f), p, vec_sign(e, x));
}

/* Scale of an int8 key, softcap, bias, mask: whatever the call has of these. */
static void transform_row(const struct attn_weigh *w, uint32_t i)
{
    const vec hidden = vec_set(-INFINITY);
    const bool has_scales = w->shape->kv_type == KVW_NUM_I8;
    const vec cap = vec_set(w->shape->cap);
    const vec per_cap = vec_set(1.0f / w->shape->cap);
    float *score = w->score + (size_t)i * ATTN_PITCH;

    for (uint32_t slot = w->begin; slot < w->end; slot += VEC_LANES) {
        vec s = vec_load(&score[slot]);
        if (has_scales)
            s = vec_mul(s, vec_load(&w->tile->k_scale[slot]));
        if (w->shape->cap > 0)
            s = vec_mul(cap, tanh_of(vec_mul(s, per_cap)));
        if (w->tile->has_bias)
            s = vec_add(s, vec_load(&w->tile->bias[slot]));
        if (w->seen != NULL)
            s = vec_pick((uint32_t)(w->seen[i][slot / 64] >> (slot % 64)), s, hidden);
        vec_store(&score[slot], s);
    }
}

/* Scales of rows that weigh nothing may be NaN. */
INLINE vec scaled(vec weight, const float *scale)
{
    const vec product = vec_mul(weight, vec_load(scale));

    return vec_if_less(vec_zero(), weight, product, weight);
}

/* The greatest score of each row. NaN passes it by and is found again in the sum. */
INLINE void find_max(struct attn_weigh *w, uint32_t first, const uint32_t n)
{
    const float *score = w->score + (size_t)first * ATTN_PITCH;
    vec max[2][2];

    for (uint32_t i = 0; i < n; i++) {
        max[i][0] = vec_set(-INFINITY);
        max[i][1] = max[i][0];
    }
    for (uint32_t slot = w->begin; slot < w->end; slot += 2 * VEC_LANES) {
        UNROLLED
        for (uint32_t i = 0; i < n; i++) {
            const float *s = &score[i * ATTN_PITCH + slot];
            max[i][0] = vec_max(vec_load(s), max[i][0]);
            max[i][1] = vec_max(vec_load(s + VEC_LANES), max[i][1]);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        w->max[first + i] = vec_max_of(vec_max(max[i][0], max[i][1]));
}

/* Weights of n rows at once, whose chains of instructions overlap. */
INLINE void weigh_rows(struct attn_weigh *w, uint32_t first, const uint32_t n,
                       const bool has_scales)
{
    const float *score = w->score + (size_t)first * ATTN_PITCH;
    const uint32_t end = w->end;
    void *weight = w->weight;
    vec base[2];
    vec sum[2][2];

    find_max(w, first, n);
    for (uint32_t i = 0; i < n; i++) {
        const float max = w->max[first + i];
        base[i] = vec_set(max == -INFINITY ? 0 : max);
        sum[i][0] = vec_zero();
        sum[i][1] = vec_zero();
    }
    for (uint32_t slot = w->begin; slot < end; slot += 2 * VEC_LANES) {
        UNROLLED
        for (uint32_t i = 0; i < n; i++) {
            const float *s = &score[i * ATTN_PITCH + slot];
            vec a = exp2_of(vec_sub(vec_load(s), base[i]));
            vec b = exp2_of(vec_sub(vec_load(s + VEC_LANES), base[i]));
            sum[i][0] = vec_add(sum[i][0], a);
            sum[i][1] = vec_add(sum[i][1], b);
            if (has_scales) {
                a = scaled(a, &w->tile->v_scale[slot]);
                b = scaled(b, &w->tile->v_scale[slot + VEC_LANES]);
            }
            weight_store(weight, (first + i) * ATTN_PITCH + slot, a, b);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        w->sum[first + i] = vec_sum(vec_add(sum[i][0], sum[i][1]));
}

static void weigh(struct attn_weigh *w)
{
    const bool has_scales = w->shape->kv_type == KVW_NUM_I8;
    const bool is_plain =
        w->seen == NULL && w->shape->cap == 0 && !w->tile->has_bias && !has_scales;
    uint32_t i = 0;

    for (uint32_t row = 0; row < w->n_rows && !is_plain; row++)
        transform_row(w, row);
    if (has_scales) {
        for (; i + 2 <= w->n_rows; i += 2)
            weigh_rows(w, i, 2, true);
        if (i < w->n_rows)
            weigh_rows(w, i, 1, true);
        return;
    }
    for (; i + 2 <= w->n_rows; i += 2)
        weigh_rows(w, i, 2, false);
    if (i < w->n_rows)
        weigh_rows(w, i, 1, false);
}

/* A row that sees nothing in the tile (sum 0) stays as it is, to the sign of zero: its
 * products are +0, and +0 times -0 is what adding changes nothing. */
static void join(float *max, float *sum, const struct attn_weigh *w, float *keep,
                 float *take)
{
    for (uint32_t i = 0; i < w->n_rows; i += VEC_LANES) {
        const uint32_t left = w->n_rows - i;
        const uint32_t n = left < VEC_LANES ? left : VEC_LANES;
        const vec max_before = vec_load_n(&max[i], n);
        const vec sum_before = vec_load_n(&sum[i], n);
        const vec max_here = vec_load_n(&w->max[i], n);
        const vec sum_here = vec_load_n(&w->sum[i], n);
        const vec top = vec_max(max_here, max_before);
        const vec k = exp2_of(vec_sub(max_before, top));
        const vec t = exp2_of(vec_sub(max_here, top));
        const vec total = vec_fma(sum_before, k, vec_mul(sum_here, t));
        /* The greatest weight is about 1; not less is NaN. */
        const vec some = vec_set(0.5f);

        vec_store_n(&max[i], vec_if_less(sum_here, some, max_before, top), n);
        vec_store_n(&sum[i], vec_if_less(sum_here, some, sum_before, total), n);
        vec_store_n(&keep[i], vec_if_less(sum_here, some, vec_set(1.0f), k), n);
        vec_store_n(&take[i], vec_if_less(sum_here, some, vec_set(-0.0f), t), n);
    }
}

#endif /* VEC_LANES */

#endif /* KVW_KERNELS_ATTN_SOFT_H */
