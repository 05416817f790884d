/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary embedding: the table maker, and for rotation the checks of the arguments, the
 * table of variants and the choice.
 */
#include "kvwheel/kernels.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/num.h"
#include "kernels/rows.h"
#include "kernels/variants.h"

/* Best first; the last row is the reference and needs nothing. */
static const struct kvw_rope_variant variants[] = TABLE_OF(rope);

const struct kvw_rope_variant *kvw_rope_variants(uint32_t *n_variants)
{
    *n_variants = sizeof(variants) / sizeof(variants[0]);
    return variants;
}

const struct kvw_rope_variant *kvw_rope_select(uint32_t cpu_have)
{
    const struct kvw_rope_variant *v = variants;

    while ((v->cpu_need & cpu_have) != v->cpu_need)
        v++;
    return v;
}

static int check_spec(const struct kvw_rope_spec *spec)
{
    if (spec->n_pairs == 0)
        return -EINVAL;
    if (spec->n_pairs > KVW_HEAD_DIM_MAX / 2)
        return -ERANGE;
    if (spec->inv_freq == NULL && !(spec->theta > 0))
        return -EINVAL;
    if (spec->n_positions == 0)
        return 0;
    if (spec->cos == NULL || spec->sin == NULL)
        return -EINVAL;
    if (!rows_are_aligned(spec->cos, spec->row_stride, 0, 4) ||
        !rows_are_aligned(spec->sin, 0, 0, 4))
        return -EINVAL;
    return 0;
}

int kvw_rope_fill(const struct kvw_rope_spec *spec)
{
    double freq[KVW_HEAD_DIM_MAX / 2];

    if (spec == NULL)
        return -EINVAL;
    const int r = check_spec(spec);
    if (r < 0)
        return r;

    const double magnitude = spec->magnitude == 0 ? 1 : spec->magnitude;
    const double position_scale = spec->position_scale == 0 ? 1 : spec->position_scale;
    for (uint32_t j = 0; j < spec->n_pairs; j++) {
        freq[j] = spec->inv_freq != NULL
                      ? spec->inv_freq[j]
                      : pow(spec->theta, -(double)j / (double)spec->n_pairs);
    }
    for (uint64_t p = 0; p < spec->n_positions; p++) {
        float *cos_row = row_out(spec->cos, p, spec->row_stride, 0, 0);
        float *sin_row = row_out(spec->sin, p, spec->row_stride, 0, 0);
        for (uint32_t j = 0; j < spec->n_pairs; j++) {
            const double angle = (double)p * position_scale * freq[j];
            cos_row[j] = (float)(magnitude * cos(angle));
            sin_row[j] = (float)(magnitude * sin(angle));
        }
    }
    return 0;
}

static int check_grid(const struct kvw_rope_grid *grid)
{
    uint64_t n_pairs = 0;

    if (grid->n_axes == 0 || grid->n_axes > KVW_ROPE_AXES_MAX)
        return -EINVAL;
    for (uint32_t axis = 0; axis < grid->n_axes; axis++) {
        if (grid->n_pairs[axis] == 0)
            return -EINVAL;
        n_pairs += grid->n_pairs[axis];
    }
    if (n_pairs > KVW_HEAD_DIM_MAX / 2)
        return -ERANGE;
    if (!(grid->theta > 0) || grid->cos == NULL || grid->sin == NULL)
        return -EINVAL;
    if (!rows_are_aligned(grid->cos, grid->row_stride, 0, 4) ||
        !rows_are_aligned(grid->sin, 0, 0, 4))
        return -EINVAL;
    return 0;
}

/* Angles of one axis at one position. */
static void fill_axis(float *cos_row, float *sin_row, double position, uint32_t n_pairs,
                      double theta)
{
    for (uint32_t j = 0; j < n_pairs; j++) {
        const double angle = position * pow(theta, -(double)j / (double)n_pairs);
        cos_row[j] = (float)cos(angle);
        sin_row[j] = (float)sin(angle);
    }
}

int kvw_rope_fill_grid(const struct kvw_rope_grid *grid)
{
    uint64_t n_tokens = 1;

    if (grid == NULL)
        return -EINVAL;
    const int r = check_grid(grid);
    if (r < 0)
        return r;
    for (uint32_t axis = 0; axis < grid->n_axes; axis++)
        n_tokens *= grid->size[axis];
    for (uint64_t token = 0; token < n_tokens; token++) {
        uint64_t stride = n_tokens;
        uint64_t rest = token;
        uint32_t first = 0;
        for (uint32_t axis = 0; axis < grid->n_axes; axis++) {
            stride /= grid->size[axis];
            float *c = row_out(grid->cos, token, grid->row_stride, 0, 0);
            float *s = row_out(grid->sin, token, grid->row_stride, 0, 0);
            const uint64_t index = rest / stride;
            fill_axis(c + first, s + first, grid->begin[axis] + (double)index,
                      grid->n_pairs[axis], grid->theta);
            rest %= stride;
            first += grid->n_pairs[axis];
        }
    }
    return 0;
}

static uint64_t magnitude_of(int64_t x)
{
    return x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
}

/* Whether the positions of all rows are in the table. They run evenly from the first to
 * the last, so these two decide. */
static bool positions_are_in_table(const struct kvw_rope_args *args)
{
    const uint64_t n_positions = args->table->n_positions;
    int64_t way;
    int64_t last;

    if (args->n_rows - 1 > INT64_MAX)
        return args->position_step == 0 && magnitude_of(args->position) < n_positions;
    if (__builtin_mul_overflow(args->position_step, (int64_t)(args->n_rows - 1), &way))
        return false;
    if (__builtin_add_overflow(args->position, way, &last))
        return false;
    return magnitude_of(args->position) < n_positions &&
           magnitude_of(last) < n_positions;
}

static int check_table(const struct kvw_rope_table *table)
{
    if (table == NULL || table->cos == NULL || table->sin == NULL)
        return -EINVAL;
    if (!rows_are_aligned(table->cos, table->row_stride, 0, 4) ||
        !rows_are_aligned(table->sin, 0, 0, 4))
        return -EINVAL;
    if (table->n_pairs == 0 || table->layout > KVW_ROPE_INTERLEAVED)
        return -EINVAL;
    return table->n_pairs > KVW_HEAD_DIM_MAX / 2 ? -ERANGE : 0;
}

static int check_rows(const struct kvw_rope_args *args)
{
    if (args->n_heads == 0)
        return -EINVAL;
    if (args->type != KVW_NUM_F32 && args->type != KVW_NUM_F16 &&
        args->type != KVW_NUM_BF16)
        return -ENOTSUP;
    const int r = check_table(args->table);
    if (r < 0 || args->n_rows == 0)
        return r;

    if (args->rows == NULL)
        return -EINVAL;
    if (!rows_are_aligned(args->rows, args->row_stride, args->head_stride,
                          num_bytes(args->type)))
        return -EINVAL;
    return positions_are_in_table(args) ? 0 : -ERANGE;
}

int kvw_rope_apply(const struct kvw_rope_args *args)
{
    /* Write-once cache. Relaxed: a pointer to constant code, the same in every thread.
     */
    static _Atomic(kvw_rope_fn *) chosen;

    if (args == NULL)
        return -EINVAL;
    const int r = check_rows(args);
    if (r < 0)
        return r;

    kvw_rope_fn *fn = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (fn == NULL) {
        fn = kvw_rope_select(kvw_cpu_flags())->fn;
        atomic_store_explicit(&chosen, fn, memory_order_relaxed);
    }
    fn(args);
    return 0;
}
