/* SPDX-License-Identifier: Apache-2.0 */
/* Linear attention, the reference: sums in double, rows, states and d in order. */
#include "kernels/variants.h"

#include "kernels/rows.h"

static void update_k_sum(const struct kvw_linear_update_args *args, uint32_t head)
{
    const struct kvw_linear_state *s = &args->state;
    float *sum = row_out(s->k_sum, 0, 0, head, s->k_sum_head_stride);

    for (uint32_t d = 0; d < args->head_dim_k; d++) {
        double acc = args->is_added != 0 ? (double)sum[d] : 0;
        for (uint64_t i = 0; i < args->n_rows; i++) {
            const float *k =
                row_in(args->k, i, args->k_row_stride, head, args->k_head_stride);
            acc += (double)k[d];
        }
        sum[d] = (float)acc;
    }
}

static void update_row(const struct kvw_linear_update_args *args, uint32_t head,
                       uint32_t c)
{
    const struct kvw_linear_state *s = &args->state;
    const float *keys = args->k_rotated != NULL ? args->k_rotated : args->k;
    float *vk = row_out(s->vk, c, s->vk_row_stride, head, s->vk_head_stride);
    double acc[KVW_HEAD_DIM_MAX];

    for (uint32_t d = 0; d < args->head_dim_k; d++)
        acc[d] = args->is_added != 0 ? (double)vk[d] : 0;
    for (uint64_t i = 0; i < args->n_rows; i++) {
        const float *k = row_in(keys, i, args->k_row_stride, head, args->k_head_stride);
        const float *v =
            row_in(args->v, i, args->v_row_stride, head, args->v_head_stride);
        for (uint32_t d = 0; d < args->head_dim_k; d++)
            acc[d] += (double)v[c] * (double)k[d];
    }
    for (uint32_t d = 0; d < args->head_dim_k; d++)
        vk[d] = (float)acc[d];
}

void linear_update_ref(const struct kvw_linear_update_args *args)
{
    for (uint32_t head = 0; head < args->n_heads; head++) {
        for (uint32_t c = 0; c < args->head_dim_v; c++)
            update_row(args, head, c);
        update_k_sum(args, head);
    }
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0;

    for (uint32_t d = 0; d < n; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

void linear_use_ref(const struct kvw_linear_use_args *args)
{
    const float *rotated = args->q_rotated != NULL ? args->q_rotated : args->q;
    const uint32_t n = args->head_dim_k;

    for (uint64_t at = 0; at < (uint64_t)args->n_q * args->n_heads; at++) {
        const uint64_t i = at / args->n_heads;
        const uint32_t head = (uint32_t)(at % args->n_heads);
        const float *q =
            row_in(args->q, i, args->q_row_stride, head, args->q_head_stride);
        const float *qr =
            row_in(rotated, i, args->q_row_stride, head, args->q_head_stride);
        float *out =
            row_out(args->out, i, args->out_row_stride, head, args->out_head_stride);
        double below = 0;
        for (uint32_t j = 0; j < args->n_states; j++) {
            const struct kvw_linear_state *s = &args->states[j];
            below += dot(row_in(s->k_sum, 0, 0, head, s->k_sum_head_stride), q, n);
        }
        below += (double)args->eps;
        for (uint32_t c = 0; c < args->head_dim_v; c++) {
            double above = 0;
            for (uint32_t j = 0; j < args->n_states; j++) {
                const struct kvw_linear_state *s = &args->states[j];
                above += dot(
                    row_in(s->vk, c, s->vk_row_stride, head, s->vk_head_stride), qr, n);
            }
            out[c] = (float)(above / below);
        }
    }
}
