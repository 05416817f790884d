/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversion of rows, the reference: one number at a time, by num.h.
 */
#include "kernels/variants.h"

#include <math.h>
#include <string.h>

#include "kernels/num.h"
#include "kernels/rows.h"

typedef void row_fn(void *dst, const void *src, uint32_t n_elems);

static void row_f32_f16(void *dst, const void *src, uint32_t n_elems)
{
    const float *x = src;
    uint16_t *y = dst;

    for (uint32_t i = 0; i < n_elems; i++)
        y[i] = f16_from_f32(x[i]);
}

static void row_f32_bf16(void *dst, const void *src, uint32_t n_elems)
{
    const float *x = src;
    uint16_t *y = dst;

    for (uint32_t i = 0; i < n_elems; i++)
        y[i] = bf16_from_f32(x[i]);
}

static void row_f16_f32(void *dst, const void *src, uint32_t n_elems)
{
    const uint16_t *x = src;
    float *y = dst;

    for (uint32_t i = 0; i < n_elems; i++)
        y[i] = f32_from_f16(x[i]);
}

/* As bits, for a signalling NaN that passes as a float could become quiet. */
static void row_bf16_f32(void *dst, const void *src, uint32_t n_elems)
{
    const uint16_t *x = src;
    unsigned char *y = dst;

    for (uint32_t i = 0; i < n_elems; i++) {
        const uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(y + sizeof(bits) * i, &bits, sizeof(bits));
    }
}

static void rows(const struct kvw_convert_args *args, row_fn *convert_row)
{
    for (uint64_t i = 0; i < args->n_rows; i++) {
        for (uint32_t head = 0; head < args->n_heads; head++) {
            convert_row(
                row_out(args->dst, i, args->dst_row_stride, head,
                        args->dst_head_stride),
                row_in(args->src, i, args->src_row_stride, head, args->src_head_stride),
                args->n_elems);
        }
    }
}

/* Returns the scale. A row with a NaN or an infinity has scale NaN and zeros. */
static float quantise_row(int8_t *dst, const float *src, uint32_t n_elems)
{
    float span = 0;
    float scale;

    for (uint32_t i = 0; i < n_elems && !isnan(span); i++) {
        const float x = fabsf(src[i]);
        if (!isfinite(x))
            span = NAN;
        else if (x > span)
            span = x;
    }
    scale = isnan(span) ? NAN : scale_of_span(span);
    for (uint32_t i = 0; i < n_elems; i++)
        dst[i] = scale > 0 ? (int8_t)lrintf(src[i] / scale) : 0;
    return scale;
}

static void widen_row(float *dst, const int8_t *src, float scale, uint32_t n_elems)
{
    for (uint32_t i = 0; i < n_elems; i++)
        dst[i] = (float)src[i] * scale;
}

void convert_f32_i8_ref(const struct kvw_convert_args *args)
{
    for (uint64_t i = 0; i < args->n_rows; i++) {
        for (uint32_t head = 0; head < args->n_heads; head++) {
            float *scale = row_out(args->scales, i, args->scales_row_stride, head,
                                   args->scales_head_stride);
            *scale = quantise_row(
                row_out(args->dst, i, args->dst_row_stride, head,
                        args->dst_head_stride),
                row_in(args->src, i, args->src_row_stride, head, args->src_head_stride),
                args->n_elems);
        }
    }
}

void convert_i8_f32_ref(const struct kvw_convert_args *args)
{
    for (uint64_t i = 0; i < args->n_rows; i++) {
        for (uint32_t head = 0; head < args->n_heads; head++) {
            widen_row(
                row_out(args->dst, i, args->dst_row_stride, head,
                        args->dst_head_stride),
                row_in(args->src, i, args->src_row_stride, head, args->src_head_stride),
                scale_at(args->scales, i, args->scales_row_stride, head,
                         args->scales_head_stride),
                args->n_elems);
        }
    }
}

void convert_f32_f16_ref(const struct kvw_convert_args *args)
{
    rows(args, row_f32_f16);
}

void convert_f32_bf16_ref(const struct kvw_convert_args *args)
{
    rows(args, row_f32_bf16);
}

void convert_f16_f32_ref(const struct kvw_convert_args *args)
{
    rows(args, row_f16_f32);
}

void convert_bf16_f32_ref(const struct kvw_convert_args *args)
{
    rows(args, row_bf16_f32);
}

void convert_copy_ref(const struct kvw_convert_args *args)
{
    const size_t row_bytes = num_bytes(args->src_type) * args->n_elems;

    for (uint64_t i = 0; i < args->n_rows; i++) {
        for (uint32_t head = 0; head < args->n_heads; head++) {
            memcpy(
                row_out(args->dst, i, args->dst_row_stride, head,
                        args->dst_head_stride),
                row_in(args->src, i, args->src_row_stride, head, args->src_head_stride),
                row_bytes);
        }
    }
}
