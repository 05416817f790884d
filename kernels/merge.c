/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merging of partial attention results: checks of the arguments, table, choice.
 */
#include "kvwheel/kernels.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/rows.h"
#include "kernels/variants.h"

/* Best first; the last row is the reference and needs nothing. */
static const struct kvw_merge_variant variants[] = TABLE_OF(merge);

const struct kvw_merge_variant *kvw_merge_variants(uint32_t *n_variants)
{
    *n_variants = sizeof(variants) / sizeof(variants[0]);
    return variants;
}

const struct kvw_merge_variant *kvw_merge_select(uint32_t cpu_have)
{
    const struct kvw_merge_variant *v = variants;

    while ((v->cpu_need & cpu_have) != v->cpu_need)
        v++;
    return v;
}

static bool part_is_valid(const struct kvw_attn_part *part)
{
    if (part->out == NULL || part->lse == NULL)
        return false;
    if (!rows_are_aligned(part->out, part->out_row_stride, part->out_head_stride, 4))
        return false;
    return rows_are_aligned(part->lse, part->lse_row_stride, part->lse_head_stride, 4);
}

static int check(const struct kvw_merge_args *args)
{
    if (args->n_heads == 0 || args->head_dim == 0)
        return -EINVAL;
    if (args->head_dim > KVW_HEAD_DIM_MAX)
        return -ERANGE;
    if (args->parts == NULL && args->n_parts != 0)
        return -EINVAL;
    if (args->n_q == 0)
        return 0;

    if (args->out == NULL)
        return -EINVAL;
    if (!rows_are_aligned(args->out, args->out_row_stride, args->out_head_stride, 4))
        return -EINVAL;
    if (args->lse != NULL &&
        !rows_are_aligned(args->lse, args->lse_row_stride, args->lse_head_stride, 4))
        return -EINVAL;
    for (uint32_t i = 0; i < args->n_parts; i++) {
        if (!part_is_valid(&args->parts[i]))
            return -EINVAL;
    }
    return 0;
}

int kvw_attn_merge(const struct kvw_merge_args *args)
{
    /* Write-once cache. Relaxed: a pointer to constant code, the same in every thread.
     */
    static _Atomic(kvw_merge_fn *) chosen;

    if (args == NULL)
        return -EINVAL;
    const int r = check(args);
    if (r < 0)
        return r;

    kvw_merge_fn *fn = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (fn == NULL) {
        fn = kvw_merge_select(kvw_cpu_flags())->fn;
        atomic_store_explicit(&chosen, fn, memory_order_relaxed);
    }
    fn(args);
    return 0;
}
