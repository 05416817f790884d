/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention with AVX2, FMA and F16C in float, for rows of all types: 12 accumulators of
 * the 16 registers.
 */
#define FULL_ROWS 6u

#include "kernels/attn_f32.h"
#include "kernels/variants.h"

static uint32_t rows_for(uint32_t n)
{
    static const uint8_t rows[FULL_ROWS + 1] = {1, 1, 2, 3, 4, 6, 6};

    return rows[n];
}

static void score(float *to, const struct attn_queries *queries, const uint32_t *packed,
                  uint32_t n_blocks, const struct attn_shape *shape)
{
    const float *q = queries->q;
    const float *k = (const float *)(const void *)packed;

    switch (queries->n_rows) {
    case 1:
        score_rows(1, to, q, k, n_blocks, shape->units);
        break;
    case 2:
        score_rows(2, to, q, k, n_blocks, shape->units);
        break;
    case 3:
        score_rows(3, to, q, k, n_blocks, shape->units);
        break;
    case 4:
        score_rows(4, to, q, k, n_blocks, shape->units);
        break;
    default:
        score_rows(6, to, q, k, n_blocks, shape->units);
        break;
    }
}

INLINE void value_any(const struct attn_value *w, const uint32_t source)
{
    switch (w->n_rows) {
    case 1:
        value_rows(1, w, source);
        break;
    case 2:
        value_rows(2, w, source);
        break;
    case 3:
        value_rows(3, w, source);
        break;
    case 4:
        value_rows(4, w, source);
        break;
    default:
        value_rows(6, w, source);
        break;
    }
}

static void value(const struct attn_value *w)
{
    value_any(w, PACKED);
}

static void value_few(const struct attn_value *w)
{
    if (w->shape->kv_type == KVW_NUM_F32)
        value_any(w, KVW_NUM_F32);
    else if (w->shape->kv_type == KVW_NUM_F16)
        value_any(w, KVW_NUM_F16);
    else if (w->shape->kv_type == KVW_NUM_BF16)
        value_any(w, KVW_NUM_BF16);
    else
        value_any(w, KVW_NUM_I8);
}

void attn_avx2(const struct kvw_attn_args *args)
{
    static const struct attn_micro micro = {
        .lanes = VEC_LANES,
        .rows = FULL_ROWS,
        .pack = 1,
        .v_bytes = sizeof(float),
        .rows_for = rows_for,
        .pack_q = pack_q,
        .pack_k = pack_k,
        .pack_v = pack_v,
        .score = score,
        .weigh = weigh,
        .value = value,
        .value_few = value_few,
        .settle = settle,
        .join = join,
    };

    attn_frame_run(args, &micro);
}
