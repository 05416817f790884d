/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of linear attention: an element of a state is one chain of FMAs over the rows;
 * an output is VEC_LANES chains over states and d, added at the end.
 */
#ifndef KVW_KERNELS_LINEAR_VEC_H
#define KVW_KERNELS_LINEAR_VEC_H

#include "kernels/rows.h"
#include "kernels/rows_vec.h"
#include "kernels/vec.h"

#ifdef VEC_LANES

#define LINEAR_ROWS 8u /* of a state at a time */

/* Rows [c, c + n) of a state, columns [d, d + lanes). */
static inline void linear_update_part(const struct kvw_linear_update_args *args,
                                      uint32_t head, uint32_t c, uint32_t n, uint32_t d,
                                      uint32_t lanes)
{
    const struct kvw_linear_state *s = &args->state;
    const float *keys = args->k_rotated != NULL ? args->k_rotated : args->k;
    const char *k = row_in(keys, 0, 0, head, args->k_head_stride);
    const char *v = row_in(args->v, 0, 0, head, args->v_head_stride);
    vec acc[LINEAR_ROWS];
    float *vk[LINEAR_ROWS];

    for (uint32_t i = 0; i < LINEAR_ROWS; i++) {
        /* What is computed to fill up is the last row again. */
        const uint32_t row = i < n ? c + i : c + n - 1;
        vk[i] = row_out(s->vk, row, s->vk_row_stride, head, s->vk_head_stride);
        acc[i] = args->is_added != 0 ? vec_load_n(vk[i] + d, lanes) : vec_zero();
    }
    for (uint64_t row = 0; row < args->n_rows; row++) {
        const vec key = vec_load_n((const float *)(const void *)k + d, lanes);
        const float *value = (const float *)(const void *)v;
        for (uint32_t i = 0; i < LINEAR_ROWS; i++)
            acc[i] = vec_fma(vec_set(value[i < n ? c + i : c + n - 1]), key, acc[i]);
        k += args->k_row_stride;
        v += args->v_row_stride;
    }
    for (uint32_t i = 0; i < n; i++)
        vec_store_n(vk[i] + d, acc[i], lanes);
}

static inline void linear_update_k_sum(const struct kvw_linear_update_args *args,
                                       uint32_t head)
{
    const struct kvw_linear_state *s = &args->state;
    float *sum = row_out(s->k_sum, 0, 0, head, s->k_sum_head_stride);

    for (uint32_t d = 0; d < args->head_dim_k; d += VEC_LANES) {
        const uint32_t lanes = lanes_left(d, args->head_dim_k);
        vec acc = args->is_added != 0 ? vec_load_n(sum + d, lanes) : vec_zero();
        for (uint64_t i = 0; i < args->n_rows; i++) {
            const float *k =
                row_in(args->k, i, args->k_row_stride, head, args->k_head_stride);
            acc = vec_add(acc, vec_load_n(k + d, lanes));
        }
        vec_store_n(sum + d, acc, lanes);
    }
}

static inline void linear_update(const struct kvw_linear_update_args *args)
{
    for (uint32_t head = 0; head < args->n_heads; head++) {
        for (uint32_t c = 0; c < args->head_dim_v; c += LINEAR_ROWS) {
            const uint32_t left = args->head_dim_v - c;
            for (uint32_t d = 0; d < args->head_dim_k; d += VEC_LANES)
                linear_update_part(args, head, c,
                                   left < LINEAR_ROWS ? left : LINEAR_ROWS, d,
                                   lanes_left(d, args->head_dim_k));
        }
        linear_update_k_sum(args, head);
    }
}

static inline vec linear_dot(vec acc, const float *a, const float *b, uint32_t n)
{
    for (uint32_t d = 0; d < n; d += VEC_LANES) {
        const uint32_t lanes = lanes_left(d, n);
        acc = vec_fma(vec_load_n(a + d, lanes), vec_load_n(b + d, lanes), acc);
    }
    return acc;
}

static inline void linear_use_row(const struct kvw_linear_use_args *args, uint64_t i,
                                  uint32_t head)
{
    const float *rotated = args->q_rotated != NULL ? args->q_rotated : args->q;
    const float *q = row_in(args->q, i, args->q_row_stride, head, args->q_head_stride);
    const float *qr = row_in(rotated, i, args->q_row_stride, head, args->q_head_stride);
    float *out =
        row_out(args->out, i, args->out_row_stride, head, args->out_head_stride);
    const uint32_t n = args->head_dim_k;
    vec below = vec_zero();

    for (uint32_t j = 0; j < args->n_states; j++) {
        const struct kvw_linear_state *s = &args->states[j];
        below =
            linear_dot(below, row_in(s->k_sum, 0, 0, head, s->k_sum_head_stride), q, n);
    }
    const float divisor = vec_sum(below) + args->eps;
    for (uint32_t c = 0; c < args->head_dim_v; c++) {
        vec above = vec_zero();
        for (uint32_t j = 0; j < args->n_states; j++) {
            const struct kvw_linear_state *s = &args->states[j];
            above = linear_dot(
                above, row_in(s->vk, c, s->vk_row_stride, head, s->vk_head_stride), qr,
                n);
        }
        out[c] = vec_sum(above) / divisor;
    }
}

static inline void linear_use(const struct kvw_linear_use_args *args)
{
    for (uint64_t i = 0; i < args->n_q; i++) {
        for (uint32_t head = 0; head < args->n_heads; head++)
            linear_use_row(args, i, head);
    }
}

#endif /* VEC_LANES */

#endif /* KVW_KERNELS_LINEAR_VEC_H */
