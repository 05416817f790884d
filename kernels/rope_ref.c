/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotation of rows in place, the reference: each pair in double, rounded once to f32,
 * then to the type of the rows.
 */
#include "kernels/variants.h"

#include <stdbool.h>

#include "kernels/num.h"
#include "kernels/rows.h"

static float load(const void *row, uint32_t type, uint32_t i)
{
    if (type == KVW_NUM_F32)
        return ((const float *)row)[i];
    const uint16_t h = ((const uint16_t *)row)[i];
    return type == KVW_NUM_F16 ? f32_from_f16(h) : f32_from_bf16(h);
}

static void store(void *row, uint32_t type, uint32_t i, float x)
{
    if (type == KVW_NUM_F32)
        ((float *)row)[i] = x;
    else
        ((uint16_t *)row)[i] = type == KVW_NUM_F16 ? f16_from_f32(x) : bf16_from_f32(x);
}

static void rotate(void *row, uint32_t type, const struct kvw_rope_table *t,
                   int64_t position)
{
    const bool is_back = position < 0;
    const uint64_t p = is_back ? 0 - (uint64_t)position : (uint64_t)position;
    const float *cos_row = row_in(t->cos, p, t->row_stride, 0, 0);
    const float *sin_row = row_in(t->sin, p, t->row_stride, 0, 0);
    const bool is_half_split = t->layout == KVW_ROPE_HALF_SPLIT;

    for (uint32_t j = 0; j < t->n_pairs; j++) {
        const uint32_t ia = is_half_split ? j : 2 * j;
        const uint32_t ib = is_half_split ? j + t->n_pairs : 2 * j + 1;
        const double c = (double)cos_row[j];
        const double s = is_back ? -(double)sin_row[j] : (double)sin_row[j];
        const double a = (double)load(row, type, ia);
        const double b = (double)load(row, type, ib);

        store(row, type, ia, (float)(a * c - b * s));
        store(row, type, ib, (float)(b * c + a * s));
    }
}

void rope_ref(const struct kvw_rope_args *args)
{
    for (uint64_t i = 0; i < args->n_rows; i++) {
        const int64_t position = args->position + (int64_t)i * args->position_step;
        for (uint32_t head = 0; head < args->n_heads; head++) {
            void *row =
                row_out(args->rows, i, args->row_stride, head, args->head_stride);
            rotate(row, args->type, args->table, position);
        }
    }
}
