/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of what is done to rows one by one: conversion, rotation, merging. A file per
 * instruction set includes it and gives its functions their names.
 *
 * Conversions give what num.h gives bit for bit, whatever the rounding mode and the
 * flush-to-zero bits of the thread say: bf16 by whole numbers, f16 by VCVTPS2PH and
 * VCVTPH2PS, which ignore them.
 */
#ifndef KVW_KERNELS_ROWS_VEC_H
#define KVW_KERNELS_ROWS_VEC_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/num.h"
#include "kernels/rows.h"
#include "kernels/vec.h"

#ifdef VEC_LANES

static inline uint32_t lanes_left(uint32_t at, uint32_t n)
{
    return n - at < VEC_LANES ? n - at : VEC_LANES;
}

/* ------------------------------------------------------------------- conversion */

static inline vec load_as_f32(const void *row, uint32_t type, uint32_t at, uint32_t n)
{
    if (type == KVW_NUM_BF16)
        return vec_load_bf16_n((const uint16_t *)row + at, n);
    if (type == KVW_NUM_F16)
        return vec_load_f16_n((const uint16_t *)row + at, n);
    if (type == KVW_NUM_I8)
        return vec_load_i8_n((const int8_t *)row + at, n);
    return vec_load_n((const float *)row + at, n);
}

static inline void store_from_f32(void *row, uint32_t type, uint32_t at, vec x,
                                  uint32_t n)
{
    if (type == KVW_NUM_BF16)
        vec_store_bf16_n((uint16_t *)row + at, x, n);
    else if (type == KVW_NUM_F16)
        vec_store_f16_n((uint16_t *)row + at, x, n);
    else
        vec_store_n((float *)row + at, x, n);
}

static inline void convert_row(void *dst, uint32_t dst_type, const void *src,
                               uint32_t src_type, uint32_t n_elems)
{
    uint32_t at = 0;

    for (; at + VEC_LANES <= n_elems; at += VEC_LANES)
        store_from_f32(dst, dst_type, at, load_as_f32(src, src_type, at, VEC_LANES),
                       VEC_LANES);
    if (at < n_elems)
        store_from_f32(dst, dst_type, at, load_as_f32(src, src_type, at, n_elems - at),
                       n_elems - at);
}

/* See quantise_row() of convert_ref.c: the same numbers by the same operations. */
static inline float quantise_row_vec(int8_t *dst, const float *src, uint32_t n)
{
    vec top = vec_zero();
    vec finite = vec_zero();

    for (uint32_t at = 0; at < n; at += VEC_LANES) {
        const vec x = vec_load_n(src + at, lanes_left(at, n));
        top = vec_max(vec_abs(x), top);
        finite = vec_fma(x, vec_zero(), finite);
    }
    const float scale = vec_has_nan(finite) ? NAN : scale_of_span(vec_max_of(top));
    const vec step = vec_set(scale > 0 ? scale : 1.0f);
    for (uint32_t at = 0; at < n; at += VEC_LANES) {
        const uint32_t lanes = lanes_left(at, n);
        const vec x = vec_load_n(src + at, lanes);
        vec_store_i8_n(dst + at, scale > 0 ? vec_div(x, step) : vec_zero(), lanes);
    }
    return scale;
}

static inline void widen_row_i8(float *dst, const int8_t *src, float scale, uint32_t n)
{
    for (uint32_t at = 0; at < n; at += VEC_LANES) {
        const uint32_t lanes = lanes_left(at, n);
        vec_store_n(dst + at, vec_mul(vec_load_i8_n(src + at, lanes), vec_set(scale)),
                    lanes);
    }
}

static inline void convert_rows(const struct kvw_convert_args *args, uint32_t src_type,
                                uint32_t dst_type)
{
    for (uint64_t i = 0; i < args->n_rows; i++) {
        for (uint32_t head = 0; head < args->n_heads; head++) {
            void *dst = row_out(args->dst, i, args->dst_row_stride, head,
                                args->dst_head_stride);
            const void *src =
                row_in(args->src, i, args->src_row_stride, head, args->src_head_stride);
            float *scale = row_out(args->scales, i, args->scales_row_stride, head,
                                   args->scales_head_stride);
            if (dst_type == KVW_NUM_I8)
                *scale = quantise_row_vec(dst, src, args->n_elems);
            else if (src_type == KVW_NUM_I8)
                widen_row_i8(dst, src, *scale, args->n_elems);
            else
                convert_row(dst, dst_type, src, src_type, args->n_elems);
        }
    }
}

/* --------------------------------------------------------------------- rotation */

static inline void rotate_half_split(void *row, uint32_t type, const float *c,
                                     const float *s, float sign, uint32_t n_pairs)
{
    for (uint32_t j = 0; j < n_pairs; j += VEC_LANES) {
        const uint32_t n = lanes_left(j, n_pairs);
        const vec a = load_as_f32(row, type, j, n);
        const vec b = load_as_f32(row, type, j + n_pairs, n);
        const vec cosine = vec_load_n(c + j, n);
        const vec sine = vec_mul(vec_load_n(s + j, n), vec_set(sign));

        store_from_f32(row, type, j, vec_sub(vec_mul(a, cosine), vec_mul(b, sine)), n);
        store_from_f32(row, type, j + n_pairs, vec_fma(b, cosine, vec_mul(a, sine)), n);
    }
}

/* Pairs are neighbours: turned = x * (c, c) + (other of the pair) * (-s, s). */
static inline void rotate_interleaved(void *row, uint32_t type, const float *c,
                                      const float *s, float sign, uint32_t n_pairs)
{
    for (uint32_t j = 0; j < n_pairs; j += VEC_LANES / 2) {
        const uint32_t left = n_pairs - j;
        const uint32_t n = left < VEC_LANES / 2 ? left : VEC_LANES / 2;
        const vec x = load_as_f32(row, type, 2 * j, 2 * n);
        const vec cosine = vec_twice(vec_load_n(c + j, n));
        const vec sine = vec_mul(vec_twice(vec_load_n(s + j, n)), vec_set(sign));
        const vec crossed = vec_mul(vec_swap(x), vec_even_minus(sine));

        store_from_f32(row, type, 2 * j, vec_fma(x, cosine, crossed), 2 * n);
    }
}

static inline void rotate_rows(const struct kvw_rope_args *args)
{
    const struct kvw_rope_table *t = args->table;

    for (uint64_t i = 0; i < args->n_rows; i++) {
        const int64_t position = args->position + (int64_t)i * args->position_step;
        const uint64_t p = position < 0 ? 0 - (uint64_t)position : (uint64_t)position;
        const float sign = position < 0 ? -1.0f : 1.0f;
        const float *c = row_in(t->cos, p, t->row_stride, 0, 0);
        const float *s = row_in(t->sin, p, t->row_stride, 0, 0);
        for (uint32_t head = 0; head < args->n_heads; head++) {
            void *row =
                row_out(args->rows, i, args->row_stride, head, args->head_stride);
            if (t->layout == KVW_ROPE_HALF_SPLIT)
                rotate_half_split(row, args->type, c, s, sign, t->n_pairs);
            else
                rotate_interleaved(row, args->type, c, s, sign, t->n_pairs);
        }
    }
}

/* ---------------------------------------------------------------------- merging */

/* Weights in double, as the reference has them; only products with them are in float. */
static inline void merge_parts(const struct kvw_merge_args *args, uint64_t query,
                               uint32_t head, double max, double sum)
{
    float *out =
        row_out(args->out, query, args->out_row_stride, head, args->out_head_stride);

    for (uint32_t d = 0; d < args->head_dim; d += VEC_LANES) {
        const uint32_t n = lanes_left(d, args->head_dim);
        vec acc = vec_zero();
        for (uint32_t i = 0; i < args->n_parts; i++) {
            const struct kvw_attn_part *p = &args->parts[i];
            const float lse = *(const float *)row_in(p->lse, query, p->lse_row_stride,
                                                     head, p->lse_head_stride);
            const float *x =
                row_in(p->out, query, p->out_row_stride, head, p->out_head_stride);
            if (lse == -INFINITY)
                continue;
            acc = vec_fma(vec_set((float)(exp((double)lse - max) / sum)),
                          vec_load_n(x + d, n), acc);
        }
        vec_store_n(out + d, acc, n);
    }
}

static inline void merge_row_vec(const struct kvw_merge_args *args, uint64_t query,
                                 uint32_t head)
{
    double max = (double)-INFINITY;
    double sum = 0;

    for (uint32_t i = 0; i < args->n_parts; i++) {
        const struct kvw_attn_part *p = &args->parts[i];
        const float lse = *(const float *)row_in(p->lse, query, p->lse_row_stride, head,
                                                 p->lse_head_stride);
        max = fmax(max, (double)lse);
    }
    for (uint32_t i = 0; i < args->n_parts; i++) {
        const struct kvw_attn_part *p = &args->parts[i];
        const float lse = *(const float *)row_in(p->lse, query, p->lse_row_stride, head,
                                                 p->lse_head_stride);
        if (lse != -INFINITY)
            sum += exp((double)lse - max);
    }
    merge_parts(args, query, head, max, sum);
    if (args->lse != NULL) {
        float *lse = row_out(args->lse, query, args->lse_row_stride, head,
                             args->lse_head_stride);
        *lse = sum == 0 ? -INFINITY : (float)(max + log(sum));
    }
}

static inline void merge_rows(const struct kvw_merge_args *args)
{
    for (uint64_t query = 0; query < args->n_q; query++) {
        for (uint32_t head = 0; head < args->n_heads; head++)
            merge_row_vec(args, query, head);
    }
}

#endif /* VEC_LANES */

#endif /* KVW_KERNELS_ROWS_VEC_H */
