/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention with AVX-512 in float, for rows of all types: 24 accumulators of the 32
 * registers.
 */
#define FULL_ROWS 12u

#include "kernels/attn_f32.h"
#include "kernels/variants.h"

static uint32_t rows_for(uint32_t n)
{
    static const uint8_t rows[ATTN_ROWS + 1] = {1, 1, 2,  4,  4,  6, 6,
                                                8, 8, 12, 12, 12, 12};

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
    case 4:
        score_rows(4, to, q, k, n_blocks, shape->units);
        break;
    case 6:
        score_rows(6, to, q, k, n_blocks, shape->units);
        break;
    case 8:
        score_rows(8, to, q, k, n_blocks, shape->units);
        break;
    default:
        score_rows(12, to, q, k, n_blocks, shape->units);
        break;
    }
}

static void value(const struct attn_value *w)
{
    switch (w->n_rows) {
    case 1:
        value_rows(1, w);
        break;
    case 2:
        value_rows(2, w);
        break;
    case 4:
        value_rows(4, w);
        break;
    case 6:
        value_rows(6, w);
        break;
    case 8:
        value_rows(8, w);
        break;
    default:
        value_rows(12, w);
        break;
    }
}

void attn_avx512(const struct kvw_attn_args *args)
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
        .settle = settle,
        .join = join,
    };

    attn_frame_run(args, &micro);
}
