/* SPDX-License-Identifier: Apache-2.0 */
/* Linear attention: checks of the arguments, table of variants, choice. */
#include "kvwheel/kernels.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/rows.h"
#include "kernels/variants.h"

/* Best first; the last row is the reference and needs nothing. */
static const struct kvw_linear_variant variants[] = {
#if defined(__x86_64__)
    {"avx512", KVW_CPU_AVX512, linear_update_avx512, linear_use_avx512},
    {"avx2", NEEDS_AVX2, linear_update_avx2, linear_use_avx2},
#endif
    {"ref", 0, linear_update_ref, linear_use_ref},
};

const struct kvw_linear_variant *kvw_linear_variants(uint32_t *n_variants)
{
    *n_variants = sizeof(variants) / sizeof(variants[0]);
    return variants;
}

const struct kvw_linear_variant *kvw_linear_select(uint32_t cpu_have)
{
    const struct kvw_linear_variant *v = variants;

    while ((v->cpu_need & cpu_have) != v->cpu_need)
        v++;
    return v;
}

static int check_shape(uint32_t n_heads, uint32_t head_dim_k, uint32_t head_dim_v)
{
    if (n_heads == 0 || head_dim_k == 0 || head_dim_v == 0)
        return -EINVAL;
    if (head_dim_k > KVW_HEAD_DIM_MAX || head_dim_v > KVW_HEAD_DIM_MAX)
        return -ERANGE;
    return 0;
}

static bool state_is_valid(const struct kvw_linear_state *s)
{
    if (s->vk == NULL || s->k_sum == NULL)
        return false;
    return rows_are_aligned(s->vk, s->vk_row_stride, s->vk_head_stride, 4) &&
           rows_are_aligned(s->k_sum, 0, s->k_sum_head_stride, 4);
}

static int check_update(const struct kvw_linear_update_args *args)
{
    const int r = check_shape(args->n_heads, args->head_dim_k, args->head_dim_v);

    if (r < 0)
        return r;
    if (!state_is_valid(&args->state) || args->is_added > 1)
        return -EINVAL;
    if (args->n_rows == 0)
        return 0;
    if (args->k == NULL || args->v == NULL)
        return -EINVAL;
    if (!rows_are_aligned(args->k, args->k_row_stride, args->k_head_stride, 4) ||
        !rows_are_aligned(args->k_rotated, 0, 0, 4) ||
        !rows_are_aligned(args->v, args->v_row_stride, args->v_head_stride, 4))
        return -EINVAL;
    return 0;
}

static int check_use(const struct kvw_linear_use_args *args)
{
    const int r = check_shape(args->n_heads, args->head_dim_k, args->head_dim_v);

    if (r < 0)
        return r;
    if (!isfinite(args->eps) || (args->states == NULL && args->n_states != 0))
        return -EINVAL;
    for (uint32_t i = 0; i < args->n_states; i++) {
        if (!state_is_valid(&args->states[i]))
            return -EINVAL;
    }
    if (args->n_q == 0)
        return 0;
    if (args->q == NULL || args->out == NULL)
        return -EINVAL;
    if (!rows_are_aligned(args->q, args->q_row_stride, args->q_head_stride, 4) ||
        !rows_are_aligned(args->q_rotated, 0, 0, 4) ||
        !rows_are_aligned(args->out, args->out_row_stride, args->out_head_stride, 4))
        return -EINVAL;
    return 0;
}

/* Write-once cache. Relaxed: a pointer to constants, the same in every thread. */
static const struct kvw_linear_variant *chosen(void)
{
    static _Atomic(const struct kvw_linear_variant *) cache;
    const struct kvw_linear_variant *v =
        atomic_load_explicit(&cache, memory_order_relaxed);

    if (v == NULL) {
        v = kvw_linear_select(kvw_cpu_flags());
        atomic_store_explicit(&cache, v, memory_order_relaxed);
    }
    return v;
}

int kvw_linear_update(const struct kvw_linear_update_args *args)
{
    if (args == NULL)
        return -EINVAL;
    const int r = check_update(args);
    if (r == 0)
        chosen()->update(args);
    return r;
}

int kvw_linear_use(const struct kvw_linear_use_args *args)
{
    if (args == NULL)
        return -EINVAL;
    const int r = check_use(args);
    if (r == 0)
        chosen()->use(args);
    return r;
}
