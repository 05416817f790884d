/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merging of partial attention results, the reference. Sums are in double and in the
 * order of the parts. A row of a head is read from all parts before it is written, so
 * out and lse may be those of a part.
 */
#include "kernels/variants.h"

#include <math.h>
#include <stdbool.h>

#include "kernels/rows.h"

static double part_lse(const struct kvw_attn_part *p, uint32_t query, uint32_t head)
{
    const float *lse =
        row_in(p->lse, query, p->lse_row_stride, head, p->lse_head_stride);

    return (double)*lse;
}

static bool saw_nothing(double lse)
{
    return isinf(lse) && lse < 0;
}

struct total {
    double max; /* of the lse of the parts */
    double sum; /* of exp(lse - max); at least 1 unless all parts saw nothing */
};

static struct total total_of(const struct kvw_merge_args *args, uint32_t query,
                             uint32_t head)
{
    struct total t = {.max = -INFINITY, .sum = 0};

    for (uint32_t i = 0; i < args->n_parts; i++)
        t.max = fmax(t.max, part_lse(&args->parts[i], query, head));
    for (uint32_t i = 0; i < args->n_parts; i++) {
        const double lse = part_lse(&args->parts[i], query, head);
        if (!saw_nothing(lse))
            t.sum += exp(lse - t.max);
    }
    return t;
}

static void merge_row(const struct kvw_merge_args *args, uint32_t query, uint32_t head)
{
    const struct total total = total_of(args, query, head);
    double acc[KVW_HEAD_DIM_MAX];

    for (uint32_t d = 0; d < args->head_dim; d++)
        acc[d] = 0;
    for (uint32_t i = 0; i < args->n_parts; i++) {
        const struct kvw_attn_part *p = &args->parts[i];
        const double lse = part_lse(p, query, head);
        if (saw_nothing(lse))
            continue;
        const float *out =
            row_in(p->out, query, p->out_row_stride, head, p->out_head_stride);
        /* Not exp(lse - log of the total): where lse is large, that log is rounded so
         * coarsely that the weights would not add up to 1. */
        const double weight = exp(lse - total.max) / total.sum;
        for (uint32_t d = 0; d < args->head_dim; d++)
            acc[d] += weight * (double)out[d];
    }

    float *out =
        row_out(args->out, query, args->out_row_stride, head, args->out_head_stride);
    for (uint32_t d = 0; d < args->head_dim; d++)
        out[d] = (float)acc[d];
    if (args->lse != NULL) {
        float *lse = row_out(args->lse, query, args->lse_row_stride, head,
                             args->lse_head_stride);
        *lse = total.sum == 0 ? -INFINITY : (float)(total.max + log(total.sum));
    }
}

void merge_ref(const struct kvw_merge_args *args)
{
    for (uint32_t query = 0; query < args->n_q; query++) {
        for (uint32_t head = 0; head < args->n_heads; head++)
            merge_row(args, query, head);
    }
}
