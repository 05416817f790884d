/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of the conversion to int8 with a scale per row and head, and back. All variants
 * must give the bits that the definition in kernels.h gives: divisions and products that
 * are rounded once leave nothing to choose.
 */
#include "tests/kernels/check.h"

#include <math.h>
#include <stdio.h>

struct quantised {
    struct tensor src;
    struct tensor dst;
    struct tensor scales;
    struct tensor back;
};

static void quantised_init(struct quantised *t, struct check *c,
                           const uint32_t shape[3])
{
    tensor_init(&t->src, c, KVW_NUM_F32, shape[0], shape[1], shape[2]);
    tensor_init(&t->dst, c, KVW_NUM_I8, shape[0], shape[1], shape[2]);
    tensor_init(&t->back, c, KVW_NUM_F32, shape[0], shape[1], shape[2]);
    tensor_init(&t->scales, c, KVW_NUM_F32, shape[0], shape[1], 1);
}

static void quantised_fini(struct quantised *t)
{
    tensor_fini(&t->src);
    tensor_fini(&t->dst);
    tensor_fini(&t->back);
    tensor_fini(&t->scales);
}

static void run(kvw_convert_fn *fn, const struct tensor *src, const struct tensor *dst,
                const struct tensor *scales)
{
    const struct kvw_convert_args args = {
        .src = src->data,
        .src_row_stride = src->row_stride,
        .src_head_stride = src->head_stride,
        .dst = dst->data,
        .dst_row_stride = dst->row_stride,
        .dst_head_stride = dst->head_stride,
        .n_rows = src->n_rows,
        .n_heads = src->n_heads,
        .n_elems = src->n_elems,
        .src_type = src->type,
        .dst_type = dst->type,
        .scales = (void *)scales->data,
        .scales_row_stride = scales->row_stride,
        .scales_head_stride = scales->head_stride,
    };

    fn(&args);
}

static float wanted_scale(const struct tensor *src, uint64_t row, uint32_t head)
{
    double span = 0;

    for (uint32_t d = 0; d < src->n_elems; d++) {
        const double x = fabs(tensor_get(src, row, head, d));
        if (!isfinite(x))
            return NAN;
        span = fmax(span, x);
    }
    if (span == 0)
        return 0;
    return fmaxf((float)span / 127.0f, 0x1p-126f);
}

/* Numbers of all sizes in a row, and rows that are special. */
static void fill(struct check *c, struct tensor *src)
{
    for (uint64_t row = 0; row < src->n_rows; row++) {
        tensor_fill_row(src, c, row, (enum fill)random_below(c, FILL_N));
        const uint32_t head = (uint32_t)random_below(c, src->n_heads);
        const uint32_t at = (uint32_t)random_below(c, src->n_elems);
        const uint64_t kind = random_below(c, 8);
        if (kind == 0)
            tensor_set_f32(src, row, head, at, INFINITY);
        if (kind == 1)
            tensor_set_f32(src, row, head, at, NAN);
        if (kind == 2)
            tensor_set_f32(src, row, head, at, 0x1.fffffep127f);
        for (uint32_t d = 0; d < src->n_elems && kind == 3; d++)
            tensor_set_f32(src, row, head, d, d % 2 == 0 ? 0.0f : -0.0f);
    }
}

static void check_row(struct check *c, const struct quantised *t, uint64_t row,
                      uint32_t head)
{
    const float scale = wanted_scale(&t->src, row, head);
    const float got = (float)tensor_get(&t->scales, row, head, 0);

    check_that(c, isnan(scale) ? isnan(got) : got == scale, "rows get their scale",
               "row %u head %u: %g, not %g", (unsigned)row, head, (double)got,
               (double)scale);
    for (uint32_t d = 0; d < t->src.n_elems; d++) {
        const float x = (float)tensor_get(&t->src, row, head, d);
        const float want = scale > 0 ? nearbyintf(x / scale) : 0;
        const float back = (float)tensor_get(&t->back, row, head, d);
        check_that(c, tensor_get(&t->dst, row, head, d) == (double)want,
                   "elements are the nearest", "row %u head %u elem %u: %g, not %g",
                   (unsigned)row, head, d, tensor_get(&t->dst, row, head, d),
                   (double)want);
        check_that(c, isnan(scale) ? isnan(back) : back == want * scale,
                   "elements come back times the scale", "row %u head %u elem %u",
                   (unsigned)row, head, d);
    }
}

static void rows_are_quantised(struct check *c, kvw_convert_fn *narrow,
                               kvw_convert_fn *widen)
{
    static const uint32_t shapes[][3] = {{1, 1, 1},  {9, 2, 7},   {9, 3, 8},
                                         {9, 1, 15}, {9, 2, 16},  {9, 2, 17},
                                         {9, 5, 33}, {30, 2, 128}};

    for (uint32_t i = 0; i < 8 * sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct quantised t;
        quantised_init(&t, c, shapes[i / 8]);
        fill(c, &t.src);
        run(narrow, &t.src, &t.dst, &t.scales);
        run(widen, &t.dst, &t.back, &t.scales);
        check_that(c, tensor_gaps_are_intact(&t.dst), __func__, "writes beside dst");
        check_that(c, tensor_gaps_are_intact(&t.back), __func__, "writes beside back");
        check_that(c, tensor_gaps_are_intact(&t.scales), __func__, "beside scales");
        for (uint64_t row = 0; row < t.src.n_rows; row++) {
            for (uint32_t head = 0; head < t.src.n_heads; head++)
                check_row(c, &t, row, head);
        }
        quantised_fini(&t);
    }
}

void check_quantise(struct check *c)
{
    uint32_t n;
    const struct kvw_convert_variant *v =
        kvw_convert_variants(KVW_NUM_F32, KVW_NUM_I8, &n);
    const struct kvw_convert_variant *back =
        kvw_convert_variants(KVW_NUM_I8, KVW_NUM_F32, &n);

    for (uint32_t i = 0; i < n; i++) {
        if (check_begin(c, "convert_i8", v[i].name, v[i].cpu_need) != NULL)
            rows_are_quantised(c, v[i].fn, back[i].fn);
    }
}
