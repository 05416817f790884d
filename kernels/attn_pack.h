/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of the reading of rows of any type as floats, and of keys that are rotated on
 * read.
 */
#ifndef KVW_KERNELS_ATTN_PACK_H
#define KVW_KERNELS_ATTN_PACK_H

#include <string.h>

#include "kernels/attn_micro.h"
#include "kernels/rows.h"
#include "kernels/vec.h"

#ifdef VEC_LANES

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
static inline void rotate_key(float *dst, const void *key, uint64_t position,
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
static inline uint32_t keys_turned(const void *key[], float turned[][KVW_HEAD_DIM_MAX],
                                   const struct attn_tile *tile, uint32_t slot,
                                   const struct attn_shape *shape)
{
    for (uint32_t i = 0; i < VEC_LANES; i++) {
        const uint64_t position = tile->position[slot + i];
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

/* Ask for bytes that will be read. Any address may be asked for. */
INLINE_PACK void fetch(const void *row, ptrdiff_t ahead, uint32_t n_bytes)
{
    const uintptr_t first = (uintptr_t)row + (uintptr_t)ahead;

    for (uint32_t at = 0; at < n_bytes; at += 64)
        _mm_prefetch((const char *)(first + at), _MM_HINT_T0);
}

/* Rows to ask for while others are at work, in the order of their addresses. */
struct fetcher {
    const void *const *row; /* the next one's own is `ahead` bytes behind */
    ptrdiff_t ahead;
    uint32_t at; /* bytes of it that were asked for */
    uint32_t n_bytes;
};

INLINE_PACK void fetch_more(struct fetcher *f, const uint32_t n_lines)
{
    for (uint32_t i = 0; i < n_lines; i++) {
        _mm_prefetch((const char *)((uintptr_t)*f->row + (uintptr_t)f->ahead + f->at),
                     _MM_HINT_T0);
        f->at += 64;
        if (f->at >= f->n_bytes) {
            f->at = 0;
            f->row++;
        }
    }
}

INLINE_PACK uint32_t bytes_of(uint32_t type, uint32_t n)
{
    return type == KVW_NUM_F32 ? 4 * n : type == KVW_NUM_I8 ? n : 2 * n;
}

#endif /* VEC_LANES */

#endif /* KVW_KERNELS_ATTN_PACK_H */
