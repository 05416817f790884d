/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of the packing of keys, values and queries as floats, from any type. The file
 * that includes it has included vec_avx2.h or vec_avx512.h.
 */
#ifndef KVW_KERNELS_ATTN_PACK_H
#define KVW_KERNELS_ATTN_PACK_H

#include <string.h>

#include "kernels/attn_micro.h"
#include "kernels/rows.h"

#define INLINE_PACK static inline __attribute__((always_inline))

/* Elements [at, at + n) of a row, n <= VEC_LANES. An I8 row without its scale. */
INLINE_PACK vec load_any(const void *row, uint32_t type, uint32_t at, uint32_t n)
{
    switch (type) {
    case KVW_NUM_BF16:
        return vec_load_bf16_n((const uint16_t *)row + at, n);
    case KVW_NUM_F16:
        return vec_load_f16_n((const uint16_t *)row + at, n);
    case KVW_NUM_I8:
        return vec_load_i8_n((const int8_t *)row + at, n);
    default:
        return vec_load_n((const float *)row + at, n);
    }
}

INLINE_PACK uint32_t lanes_at(uint32_t at, uint32_t n)
{
    return n - at < VEC_LANES ? n - at : VEC_LANES;
}

/* A key as floats, rotated by its position. */
static void rotate_key(float *dst, const void *key, uint64_t position,
                       const struct attn_shape *shape)
{
    const struct kvw_rope_table *t = shape->rope;
    const float *c = row_in(t->cos, position, t->row_stride, 0, 0);
    const float *s = row_in(t->sin, position, t->row_stride, 0, 0);
    const bool is_half_split = t->layout == KVW_ROPE_HALF_SPLIT;
    const uint32_t step = is_half_split ? 1 : 2;
    const uint32_t apart = is_half_split ? t->n_pairs : 1;

    for (uint32_t d = 0; d < shape->head_dim_k; d += VEC_LANES) {
        const uint32_t n = lanes_at(d, shape->head_dim_k);
        vec_store_n(&dst[d], load_any(key, shape->kv_type, d, n), n);
    }
    for (uint32_t j = 0; j < t->n_pairs; j++) {
        float *a = &dst[j * step];
        float *b = a + apart;
        const float turned = *a * c[j] - *b * s[j];
        *b = *b * c[j] + *a * s[j];
        *a = turned;
    }
}

/* The keys of VEC_LANES slots as floats where some are rotated: key[] and the return
 * value say where the keys are and of what type. */
static uint32_t keys_turned(const void *key[], float turned[][KVW_HEAD_DIM_MAX],
                            const struct attn_tile *tile, uint32_t slot,
                            const struct attn_shape *shape)
{
    for (uint32_t i = 0; i < VEC_LANES; i++) {
        const uint64_t position = tile->position[slot + i];
        key[i] = NULL;
        if (tile->k[slot + i] == NULL)
            continue;
        key[i] = turned[i];
        if (position != UINT64_MAX) {
            rotate_key(turned[i], tile->k[slot + i], position, shape);
            continue;
        }
        for (uint32_t d = 0; d < shape->head_dim_k; d += VEC_LANES) {
            const uint32_t n = lanes_at(d, shape->head_dim_k);
            vec_store_n(&turned[i][d],
                        load_any(tile->k[slot + i], shape->kv_type, d, n), n);
        }
    }
    return KVW_NUM_F32;
}

INLINE_PACK void pack_k_from(float *dst, const void *const *key, uint32_t type,
                             uint32_t head_dim)
{
    for (uint32_t d = 0; d < head_dim; d += VEC_LANES) {
        const uint32_t n = lanes_at(d, head_dim);
        vec r[VEC_LANES];
        for (uint32_t i = 0; i < VEC_LANES; i++)
            r[i] = key[i] == NULL ? vec_zero() : load_any(key[i], type, d, n);
        vec_transpose(r);
        for (uint32_t i = 0; i < n; i++)
            vec_store(&dst[(size_t)(d + i) * VEC_LANES], r[i]);
    }
}

static void pack_k_turned(float *dst, const struct attn_tile *tile, uint32_t slot,
                          const struct attn_shape *shape)
{
    float turned[VEC_LANES][KVW_HEAD_DIM_MAX];
    const void *key[VEC_LANES];
    const uint32_t type = keys_turned(key, turned, tile, slot, shape);

    pack_k_from(dst, key, type, shape->head_dim_k);
}

static void pack_k(uint32_t *to, const struct attn_tile *tile, uint32_t slot,
                   const struct attn_shape *shape)
{
    float *dst = (float *)(void *)to;
    const void *const *key = &tile->k[slot];

    if (tile->has_raw)
        pack_k_turned(dst, tile, slot, shape);
    else if (shape->kv_type == KVW_NUM_F32)
        pack_k_from(dst, key, KVW_NUM_F32, shape->head_dim_k);
    else if (shape->kv_type == KVW_NUM_BF16)
        pack_k_from(dst, key, KVW_NUM_BF16, shape->head_dim_k);
    else if (shape->kv_type == KVW_NUM_F16)
        pack_k_from(dst, key, KVW_NUM_F16, shape->head_dim_k);
    else
        pack_k_from(dst, key, KVW_NUM_I8, shape->head_dim_k);
}

INLINE_PACK void pack_v_from(float *dst, const struct attn_tile *tile, uint32_t begin,
                             uint32_t end, const struct attn_shape *shape,
                             uint32_t type)
{
    const size_t block = (size_t)(shape->n_slots + 2) * VEC_LANES;

    for (uint32_t slot = begin; slot < end; slot++) {
        const void *row = tile->v[slot];
        float *to = dst + (size_t)slot * VEC_LANES;
        for (uint32_t d = 0; d < shape->head_dim_v; d += VEC_LANES) {
            const uint32_t n = lanes_at(d, shape->head_dim_v);
            vec_store(to, row == NULL ? vec_zero() : load_any(row, type, d, n));
            to += block;
        }
    }
}

static void pack_v(void *dst, const struct attn_tile *tile, uint32_t begin,
                   uint32_t end, const struct attn_shape *shape)
{
    if (shape->kv_type == KVW_NUM_F32)
        pack_v_from(dst, tile, begin, end, shape, KVW_NUM_F32);
    else if (shape->kv_type == KVW_NUM_BF16)
        pack_v_from(dst, tile, begin, end, shape, KVW_NUM_BF16);
    else if (shape->kv_type == KVW_NUM_F16)
        pack_v_from(dst, tile, begin, end, shape, KVW_NUM_F16);
    else
        pack_v_from(dst, tile, begin, end, shape, KVW_NUM_I8);
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

#endif /* KVW_KERNELS_ATTN_PACK_H */
