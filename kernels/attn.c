/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention: checks of the arguments, table of variants, choice. The arithmetic is in
 * attn_ref.c and in the files of the variants.
 */
#include "kvwheel/kernels.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/num.h"
#include "kernels/rows.h"
#include "kernels/variants.h"

#define ROW_MAX ((uint64_t)1 << 63)

/* Best first; the last row is the reference and needs nothing. */
static const struct kvw_attn_variant variants_f32[] = TABLE_OF(attn);
static const struct kvw_attn_variant variants_f16[] = TABLE_OF(attn);

#if defined(__x86_64__)
static const struct kvw_attn_variant variants_bf16[] = {
    {"avx512_bf16", KVW_CPU_AVX512 | KVW_CPU_AVX512_BF16, attn_avx512_bf16},
    {"avx512", KVW_CPU_AVX512, attn_avx512},
    {"avx2", NEEDS_AVX2, attn_avx2},
    {"ref", 0, attn_ref},
};

static const struct kvw_attn_variant variants_i8[] = {
    {"avx512_vnni", KVW_CPU_AVX512 | KVW_CPU_AVX512_VNNI | KVW_CPU_AVX512_BF16,
     attn_avx512_vnni},
    {"avx512", KVW_CPU_AVX512, attn_avx512},
    {"avx2", NEEDS_AVX2, attn_avx2},
    {"ref", 0, attn_ref},
};
#else
static const struct kvw_attn_variant variants_bf16[] = TABLE_OF(attn);
static const struct kvw_attn_variant variants_i8[] = TABLE_OF(attn);
#endif

static const struct {
    const struct kvw_attn_variant *rows;
    uint32_t n_rows;
} tables[] = {
    [KVW_NUM_F32] = {variants_f32, sizeof(variants_f32) / sizeof(variants_f32[0])},
    [KVW_NUM_F16] = {variants_f16, sizeof(variants_f16) / sizeof(variants_f16[0])},
    [KVW_NUM_BF16] = {variants_bf16, sizeof(variants_bf16) / sizeof(variants_bf16[0])},
    [KVW_NUM_I8] = {variants_i8, sizeof(variants_i8) / sizeof(variants_i8[0])},
};

#define N_TABLES (sizeof(tables) / sizeof(tables[0]))

const struct kvw_attn_variant *kvw_attn_variants(uint32_t kv_type, uint32_t *n_variants)
{
    *n_variants = kv_type < N_TABLES ? tables[kv_type].n_rows : 0;
    return kv_type < N_TABLES ? tables[kv_type].rows : NULL;
}

const struct kvw_attn_variant *kvw_attn_select(uint32_t kv_type, uint32_t cpu_have)
{
    if (kv_type >= N_TABLES || tables[kv_type].rows == NULL)
        return NULL;

    const struct kvw_attn_variant *v = tables[kv_type].rows;
    while ((v->cpu_need & cpu_have) != v->cpu_need)
        v++;
    return v;
}

static int check_shape(const struct kvw_attn_args *args)
{
    if (args->n_q_heads == 0 || args->n_kv_heads == 0)
        return -EINVAL;
    if (args->n_q_heads % args->n_kv_heads != 0)
        return -EINVAL;
    if (args->head_dim_k == 0 || args->head_dim_v == 0)
        return -EINVAL;
    if (args->head_dim_k > KVW_HEAD_DIM_MAX || args->head_dim_v > KVW_HEAD_DIM_MAX)
        return -ERANGE;
    if (args->kv_type >= N_TABLES || tables[args->kv_type].rows == NULL)
        return -ENOTSUP;
    if (!isfinite(args->scale))
        return -EINVAL;
    if (!isfinite(args->softcap) || args->softcap < 0)
        return -EINVAL;
    return 0;
}

static int check_mask(const struct kvw_attn_args *args)
{
    if (args->mask > KVW_ATTN_BLOCK_CAUSAL)
        return -EINVAL;
    if (args->mask == KVW_ATTN_NONE)
        return args->window_rows == 0 ? 0 : -EINVAL;

    if (args->q_first_row >= ROW_MAX || ROW_MAX - args->q_first_row < args->n_q)
        return -EINVAL;
    if (args->window_rows != 0 && args->sink_rows >= args->window_rows)
        return -EINVAL;
    if (args->mask == KVW_ATTN_BLOCK_CAUSAL) {
        /* Not over ROW_MAX, so that the end of a block cannot wrap. */
        if (args->block_rows == 0 || args->block_rows > ROW_MAX)
            return -EINVAL;
        if (args->block_first_row > ROW_MAX)
            return -EINVAL;
    }
    return 0;
}

static int check_memory(const struct kvw_attn_args *args)
{
    if (args->pieces == NULL && args->n_pieces != 0)
        return -EINVAL;
    if (args->n_q == 0)
        return 0;
    if (args->q == NULL || args->out == NULL)
        return -EINVAL;
    if (!rows_are_aligned(args->q, args->q_row_stride, args->q_head_stride, 4))
        return -EINVAL;
    if (!rows_are_aligned(args->out, args->out_row_stride, args->out_head_stride, 4))
        return -EINVAL;
    if (args->lse != NULL &&
        !rows_are_aligned(args->lse, args->lse_row_stride, args->lse_head_stride, 4))
        return -EINVAL;
    return rows_are_aligned(args->sink_logits, 0, 0, 4) ? 0 : -EINVAL;
}

static int check_rope(const struct kvw_attn_args *args,
                      const struct kvw_attn_piece *piece)
{
    const struct kvw_rope_table *rope = args->rope;

    if (rope == NULL || rope->cos == NULL || rope->sin == NULL)
        return -EINVAL;
    if (!rows_are_aligned(rope->cos, rope->row_stride, 0, 4) ||
        !rows_are_aligned(rope->sin, 0, 0, 4))
        return -EINVAL;
    if (rope->n_pairs == 0 || rope->layout > KVW_ROPE_INTERLEAVED)
        return -EINVAL;
    if (rope->n_pairs > args->head_dim_k / 2)
        return -ERANGE;
    if (piece->pos_base >= rope->n_positions ||
        rope->n_positions - piece->pos_base < piece->n_rows)
        return -ERANGE;
    return 0;
}

static bool scales_are_valid(const struct kvw_attn_piece *piece)
{
    if (piece->k_scales == NULL || piece->v_scales == NULL)
        return false;
    return rows_are_aligned(piece->k_scales, piece->k_scales_row_stride,
                            piece->k_scales_head_stride, 4) &&
           rows_are_aligned(piece->v_scales, piece->v_scales_row_stride,
                            piece->v_scales_head_stride, 4);
}

static int check_piece(const struct kvw_attn_args *args,
                       const struct kvw_attn_piece *piece)
{
    const size_t elem_bytes = num_bytes(args->kv_type);

    if ((piece->flags & ~(KVW_ATTN_ALWAYS | KVW_ATTN_RAW_KEYS)) != 0)
        return -EINVAL;
    if (isnan(piece->bias) || (isinf(piece->bias) && piece->bias > 0))
        return -EINVAL;
    if (args->kv_type != KVW_NUM_I8 &&
        (piece->k_scales != NULL || piece->v_scales != NULL))
        return -EINVAL;
    if (piece->n_rows == 0)
        return 0;

    if (piece->n_rows > ROW_MAX)
        return -EINVAL;
    if (piece->k == NULL || piece->v == NULL)
        return -EINVAL;
    if (!rows_are_aligned(piece->k, piece->k_row_stride, piece->k_head_stride,
                          elem_bytes))
        return -EINVAL;
    if (!rows_are_aligned(piece->v, piece->v_row_stride, piece->v_head_stride,
                          elem_bytes))
        return -EINVAL;
    if (args->kv_type == KVW_NUM_I8 && !scales_are_valid(piece))
        return -EINVAL;
    return (piece->flags & KVW_ATTN_RAW_KEYS) != 0 ? check_rope(args, piece) : 0;
}

static int check_pieces(const struct kvw_attn_args *args)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < args->n_pieces; i++) {
        const struct kvw_attn_piece *piece = &args->pieces[i];
        const int r = check_piece(args, piece);
        if (r < 0)
            return r;
        if (args->mask == KVW_ATTN_NONE || piece->n_rows == 0 ||
            (piece->flags & KVW_ATTN_ALWAYS) != 0)
            continue;

        if (piece->first_row < end || piece->first_row >= ROW_MAX)
            return -EINVAL;
        if (ROW_MAX - piece->first_row < piece->n_rows)
            return -EINVAL;
        end = piece->first_row + piece->n_rows;
    }
    return 0;
}

int kvw_attn_run(const struct kvw_attn_args *args)
{
    /* Write-once cache. Relaxed: a pointer to constant code, the same in every thread.
     */
    static _Atomic(kvw_attn_fn *) chosen[N_TABLES];
    int r;

    if (args == NULL)
        return -EINVAL;
    r = check_shape(args);
    if (r == 0)
        r = check_mask(args);
    if (r == 0)
        r = check_memory(args);
    if (r == 0)
        r = check_pieces(args);
    if (r < 0)
        return r;

    kvw_attn_fn *fn =
        atomic_load_explicit(&chosen[args->kv_type], memory_order_relaxed);
    if (fn == NULL) {
        fn = kvw_attn_select(args->kv_type, kvw_cpu_flags())->fn;
        atomic_store_explicit(&chosen[args->kv_type], fn, memory_order_relaxed);
    }
    fn(args);
    return 0;
}
