/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversion of rows: checks of the arguments, tables per pair of types, choice.
 */
#include "kvwheel/kernels.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/num.h"
#include "kernels/rows.h"
#include "kernels/variants.h"

/* Best first; the last row is the reference and needs nothing. */
static const struct kvw_convert_variant variants_copy[] = {
    {"ref", 0, convert_copy_ref},
};

static const struct kvw_convert_variant variants_f32_f16[] = TABLE_OF(convert_f32_f16);

static const struct kvw_convert_variant variants_f32_bf16[] =
    TABLE_OF(convert_f32_bf16);

static const struct kvw_convert_variant variants_f16_f32[] = TABLE_OF(convert_f16_f32);

static const struct kvw_convert_variant variants_bf16_f32[] =
    TABLE_OF(convert_bf16_f32);

static const struct kvw_convert_variant variants_f32_i8[] = TABLE_OF(convert_f32_i8);
static const struct kvw_convert_variant variants_i8_f32[] = TABLE_OF(convert_i8_f32);

#define N_TYPES (KVW_NUM_I8 + 1)
#define TABLE(t)                        \
    {                                   \
        (t), sizeof(t) / sizeof((t)[0]) \
    }

/* [from][to]; pairs that are missing are not supported. */
static const struct {
    const struct kvw_convert_variant *rows;
    uint32_t n_rows;
} tables[N_TYPES][N_TYPES] = {
    [KVW_NUM_F32][KVW_NUM_F32] = TABLE(variants_copy),
    [KVW_NUM_F16][KVW_NUM_F16] = TABLE(variants_copy),
    [KVW_NUM_BF16][KVW_NUM_BF16] = TABLE(variants_copy),
    [KVW_NUM_F32][KVW_NUM_F16] = TABLE(variants_f32_f16),
    [KVW_NUM_F32][KVW_NUM_BF16] = TABLE(variants_f32_bf16),
    [KVW_NUM_F16][KVW_NUM_F32] = TABLE(variants_f16_f32),
    [KVW_NUM_BF16][KVW_NUM_F32] = TABLE(variants_bf16_f32),
    [KVW_NUM_F32][KVW_NUM_I8] = TABLE(variants_f32_i8),
    [KVW_NUM_I8][KVW_NUM_F32] = TABLE(variants_i8_f32),
};

static bool types_are_known(uint32_t src_type, uint32_t dst_type)
{
    return src_type < N_TYPES && dst_type < N_TYPES &&
           tables[src_type][dst_type].rows != NULL;
}

const struct kvw_convert_variant *
kvw_convert_variants(uint32_t src_type, uint32_t dst_type, uint32_t *n_variants)
{
    if (!types_are_known(src_type, dst_type)) {
        *n_variants = 0;
        return NULL;
    }
    *n_variants = tables[src_type][dst_type].n_rows;
    return tables[src_type][dst_type].rows;
}

const struct kvw_convert_variant *
kvw_convert_select(uint32_t src_type, uint32_t dst_type, uint32_t cpu_have)
{
    if (!types_are_known(src_type, dst_type))
        return NULL;

    const struct kvw_convert_variant *v = tables[src_type][dst_type].rows;
    while ((v->cpu_need & cpu_have) != v->cpu_need)
        v++;
    return v;
}

static int check(const struct kvw_convert_args *args)
{
    if (!types_are_known(args->src_type, args->dst_type))
        return -ENOTSUP;
    if (args->n_heads == 0 || args->n_elems == 0)
        return -EINVAL;
    const bool has_i8 = args->src_type == KVW_NUM_I8 || args->dst_type == KVW_NUM_I8;
    if (!has_i8 && args->scales != NULL)
        return -EINVAL;
    if (args->n_rows == 0)
        return 0;

    if (args->src == NULL || args->dst == NULL)
        return -EINVAL;
    if (!rows_are_aligned(args->src, args->src_row_stride, args->src_head_stride,
                          num_bytes(args->src_type)))
        return -EINVAL;
    if (!rows_are_aligned(args->dst, args->dst_row_stride, args->dst_head_stride,
                          num_bytes(args->dst_type)))
        return -EINVAL;
    if (has_i8 && (args->scales == NULL ||
                   !rows_are_aligned(args->scales, args->scales_row_stride,
                                     args->scales_head_stride, 4)))
        return -EINVAL;
    return 0;
}

int kvw_rows_convert(const struct kvw_convert_args *args)
{
    /* Write-once cache. Relaxed: a pointer to constant code, the same in every thread.
     */
    static _Atomic(kvw_convert_fn *) chosen[N_TYPES][N_TYPES];

    if (args == NULL)
        return -EINVAL;
    const int r = check(args);
    if (r < 0)
        return r;

    _Atomic(kvw_convert_fn *) *cache = &chosen[args->src_type][args->dst_type];
    kvw_convert_fn *fn = atomic_load_explicit(cache, memory_order_relaxed);
    if (fn == NULL) {
        fn = kvw_convert_select(args->src_type, args->dst_type, kvw_cpu_flags())->fn;
        atomic_store_explicit(cache, fn, memory_order_relaxed);
    }
    fn(args);
    return 0;
}
