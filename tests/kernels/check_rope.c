/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of rotary tables and of rotation.
 *
 * Bound for one rotated number a * c - b * s of exact a, b, c, s, in arithmetic with
 * unit roundoff u: two products and a sum, so |error| <= gamma(2, u) * (|a c| + |b s|),
 * then one rounding to f32 and one to the type: each u_type * |result|, or half the
 * smallest subnormal.
 */
#include "tests/kernels/check.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct table {
    struct kvw_rope_table rope;
    float *cos;
    float *sin;
};

static void table_init(struct table *t, uint64_t n_positions, uint32_t n_pairs,
                       uint32_t layout)
{
    const size_t row_floats = n_pairs + 3;

    t->cos = calloc(n_positions * row_floats, sizeof(float));
    t->sin = calloc(n_positions * row_floats, sizeof(float));
    if (t->cos == NULL || t->sin == NULL)
        abort();
    t->rope = (struct kvw_rope_table){
        .cos = t->cos,
        .sin = t->sin,
        .row_stride = (ptrdiff_t)(row_floats * sizeof(float)),
        .n_positions = n_positions,
        .n_pairs = n_pairs,
        .layout = layout,
    };
    const struct kvw_rope_spec spec = {
        .cos = t->cos,
        .sin = t->sin,
        .row_stride = t->rope.row_stride,
        .n_positions = n_positions,
        .n_pairs = n_pairs,
        .theta = 10000,
    };
    if (kvw_rope_fill(&spec) != 0)
        abort();
}

static void table_fini(struct table *t)
{
    free(t->cos);
    free(t->sin);
}

static struct kvw_rope_args args_of(struct tensor *rows, const struct table *table,
                                    int64_t position, int64_t position_step)
{
    return (struct kvw_rope_args){
        .rows = rows->data,
        .row_stride = rows->row_stride,
        .head_stride = rows->head_stride,
        .n_rows = rows->n_rows,
        .n_heads = rows->n_heads,
        .type = rows->type,
        .table = &table->rope,
        .position = position,
        .position_step = position_step,
    };
}

static double roundoff_of_type(uint32_t type)
{
    static const double u[] = {
        [KVW_NUM_F32] = 0, [KVW_NUM_BF16] = U_BF16, [KVW_NUM_F16] = U_F16};

    return u[type] + U_F32;
}

static double half_subnormal(uint32_t type)
{
    return type == KVW_NUM_F16 ? 0x1p-25 : type == KVW_NUM_BF16 ? 0x1p-134 : 0x1p-150;
}

/* What pair j of a row must become, and how far from it is right. */
static void rotated_pair(const struct table *t, int64_t position, uint32_t j, double a,
                         double b, double want[2], double spread[2])
{
    const size_t at = (size_t)(position < 0 ? -position : position) *
                          ((size_t)t->rope.row_stride / sizeof(float)) +
                      j;
    const double cosine = (double)t->cos[at];
    const double sine = position < 0 ? -(double)t->sin[at] : (double)t->sin[at];

    want[0] = a * cosine - b * sine;
    want[1] = a * sine + b * cosine;
    spread[0] = fabs(a * cosine) + fabs(b * sine);
    spread[1] = fabs(a * sine) + fabs(b * cosine);
}

static void check_pairs(struct check *c, const struct table *t, double u,
                        const struct tensor *before, const struct tensor *after,
                        int64_t position, int64_t position_step, uint64_t row,
                        uint32_t head)
{
    const bool is_half_split = t->rope.layout == KVW_ROPE_HALF_SPLIT;
    const double u_type = roundoff_of_type(before->type);

    for (uint32_t j = 0; j < t->rope.n_pairs; j++) {
        const uint32_t at[2] = {is_half_split ? j : 2 * j,
                                is_half_split ? j + t->rope.n_pairs : 2 * j + 1};
        double want[2];
        double spread[2];
        rotated_pair(t, position + (int64_t)row * position_step, j,
                     tensor_get(before, row, head, at[0]),
                     tensor_get(before, row, head, at[1]), want, spread);
        for (uint32_t i = 0; i < 2; i++) {
            const double got = tensor_get(after, row, head, at[i]);
            const double bound = gamma_of(2, u + U_F64) * spread[i] +
                                 u_type * fabs(want[i]) * (1 + u_type) +
                                 2 * half_subnormal(before->type);
            check_that(c, fabs(got - want[i]) <= bound, "pairs are rotated",
                       "%s row %u head %u elem %u: %.9g, not %.9g",
                       type_name(before->type), (unsigned)row, head, at[i], got,
                       want[i]);
        }
    }
    for (uint32_t d = 2 * t->rope.n_pairs; d < before->n_elems; d++)
        check_that(c,
                   tensor_get(before, row, head, d) == tensor_get(after, row, head, d),
                   "what is behind the pairs passes", "elem %u", d);
}

static void pairs_are_rotated(struct check *c, const struct kvw_rope_variant *v,
                              uint32_t type, uint32_t layout)
{
    static const uint32_t dims[][2] = {{2, 1},   {8, 4},   {30, 15},  {34, 17},
                                       {64, 32}, {80, 16}, {128, 64}, {256, 128}};
    static const int64_t positions[][2] = {
        {0, 1}, {37, 1}, {-20, 1}, {63, -1}, {-17, 0}};

    for (uint32_t i = 0; i < 5 * sizeof(dims) / sizeof(dims[0]); i++) {
        const uint32_t *dim = dims[i / 5];
        const int64_t *position = positions[i % 5];
        struct table t;
        struct tensor before;
        struct tensor after;
        table_init(&t, 64, dim[1], layout);
        const uint64_t n_rows = random_in(c, 1, 27);
        const uint32_t n_heads = (uint32_t)random_in(c, 1, 3);
        tensor_init(&before, c, type, n_rows, n_heads, dim[0]);
        tensor_init(&after, c, type, n_rows, n_heads, dim[0]);
        tensor_fill(&before, c, (enum fill)(i % FILL_N));
        for (uint64_t row = 0; row < before.n_rows; row++)
            tensor_copy_row(&after, row, &before, row);
        const struct kvw_rope_args args = args_of(&after, &t, position[0], position[1]);

        v->fn(&args);

        check_that(c, tensor_gaps_are_intact(&after), __func__, "writes beside");
        for (uint64_t row = 0; row < before.n_rows; row++) {
            for (uint32_t head = 0; head < before.n_heads; head++)
                check_pairs(c, &t, variant_roundoff(v->name), &before, &after,
                            position[0], position[1], row, head);
        }
        tensor_fini(&before);
        tensor_fini(&after);
        table_fini(&t);
    }
}

/* Rotating by p and then by delta is rotating by p + delta, but for the roundings of
 * three table entries (u each, u_f32) and of two rotations: with |a|, |b| <= r each sum
 * is at most 2 r, so 2 * 2 r * (3 + 2 + 1) u covers them. */
static void shift_moves_positions(struct check *c, const struct kvw_rope_variant *v,
                                  uint32_t layout)
{
    struct table t;
    struct tensor twice;
    struct tensor once;

    table_init(&t, 4096, 32, layout);
    for (int64_t delta = -900; delta <= 900; delta += 450) {
        tensor_init(&twice, c, KVW_NUM_F32, 9, 2, 64);
        tensor_init(&once, c, KVW_NUM_F32, 9, 2, 64);
        tensor_fill(&twice, c, FILL_PLAIN);
        for (uint64_t row = 0; row < 9; row++)
            tensor_copy_row(&once, row, &twice, row);
        const struct kvw_rope_args first = args_of(&twice, &t, 1000, 1);
        const struct kvw_rope_args shift = args_of(&twice, &t, delta, 0);
        const struct kvw_rope_args direct = args_of(&once, &t, 1000 + delta, 1);

        v->fn(&first);
        v->fn(&shift);
        v->fn(&direct);

        for (uint32_t i = 0; i < 9 * 2 * 64; i++) {
            const double x = tensor_get(&twice, i / 128, i / 64 % 2, i % 64);
            const double y = tensor_get(&once, i / 128, i / 64 % 2, i % 64);
            check_that(c, fabs(x - y) <= 24 * U_F32, __func__,
                       "delta %d: %.9g, not %.9g", (int)delta, x, y);
        }
        tensor_fini(&twice);
        tensor_fini(&once);
    }
    table_fini(&t);
}

/* Errors: the angle is a product of three numbers, of which pow gave one (taken as
 * exact to 2 ulp), so |angle| * 6 u; then one rounding to f32 and the libm's own. */
static void tables_hold_cosines(struct check *c)
{
    static const struct {
        double theta;
        double position_scale;
        double magnitude;
    } specs[] = {{10000, 0, 0}, {1e6, 0.125, 0}, {150000, 0, 1.3465735902799727}};
    float cosines[600 * 20];
    float sines[600 * 20];

    for (uint32_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        const struct kvw_rope_spec spec = {
            .cos = cosines,
            .sin = sines,
            .row_stride = 20 * sizeof(float),
            .n_positions = 600,
            .n_pairs = 20,
            .theta = specs[i].theta,
            .position_scale = specs[i].position_scale,
            .magnitude = specs[i].magnitude,
        };
        const double m = spec.magnitude == 0 ? 1 : spec.magnitude;
        const double scale = spec.position_scale == 0 ? 1 : spec.position_scale;

        check_that(c, kvw_rope_fill(&spec) == 0, __func__, "fill");
        for (uint32_t at = 0; at < 600 * 20; at++) {
            const uint32_t p = at / 20;
            const double angle = p * scale / pow(spec.theta, at % 20 / 20.0);
            const double bound = m * (U_F32 + (6 * angle + 4) * U_F64);
            check_that(c, fabs((double)cosines[at] - m * cos(angle)) <= bound, __func__,
                       "cos at %u", at);
            check_that(c, fabs((double)sines[at] - m * sin(angle)) <= bound, __func__,
                       "sin at %u", at);
        }
    }

    const double freq[3] = {1, 0.5, 0};
    const struct kvw_rope_spec given = {.cos = cosines,
                                        .sin = sines,
                                        .row_stride = 12,
                                        .n_positions = 4,
                                        .n_pairs = 3,
                                        .inv_freq = freq};
    check_that(c, kvw_rope_fill(&given) == 0, __func__, "given frequencies");
    check_that(c, cosines[10] == (float)cos(1.5), __func__, "position 3, 0.5");
    check_that(c, cosines[11] == 1 && sines[11] == 0, __func__, "frequency 0");
}

static void bad_specs_are_refused(struct check *c)
{
    float cosines[8] = {9};
    float sines[8] = {9};
    const struct kvw_rope_spec good = {.cos = cosines,
                                       .sin = sines,
                                       .row_stride = 16,
                                       .n_positions = 2,
                                       .n_pairs = 4,
                                       .theta = 10000};
    struct kvw_rope_spec bad;

#define BAD(error, member, value)                                         \
    do {                                                                  \
        bad = good;                                                       \
        bad.member = (value);                                             \
        check_that(c, kvw_rope_fill(&bad) == (error), __func__, #member); \
    } while (0)
    BAD(-EINVAL, cos, NULL);
    BAD(-EINVAL, sin, NULL);
    BAD(-EINVAL, n_pairs, 0);
    BAD(-EINVAL, theta, 0);
    BAD(-EINVAL, theta, (double)NAN);
    BAD(-EINVAL, row_stride, 15);
    BAD(-ERANGE, n_pairs, KVW_HEAD_DIM_MAX / 2 + 1);
#undef BAD
    check_that(c, kvw_rope_fill(NULL) == -EINVAL, __func__, "NULL");
    check_that(c, cosines[0] == 9 && sines[0] == 9, __func__, "written");
}

static void bad_arguments_are_refused(struct check *c)
{
    struct table t;
    struct tensor rows;
    struct kvw_rope_args bad;
    struct kvw_rope_table table;

    table_init(&t, 10, 4, KVW_ROPE_HALF_SPLIT);
    tensor_init(&rows, c, KVW_NUM_F32, 3, 2, 8);
    const struct kvw_rope_args good = args_of(&rows, &t, 7, 1);
#define REFUSED(error, what) \
    check_that(c, kvw_rope_apply(&bad) == (error), __func__, what)
#define BAD(error, member, value)           \
    do {                                    \
        bad = good;                         \
        bad.member = (value);               \
        REFUSED(error, #member " " #value); \
    } while (0)
#define BAD_TABLE(error, member, value)     \
    do {                                    \
        bad = good;                         \
        table = *good.table;                \
        table.member = (value);             \
        bad.table = &table;                 \
        REFUSED(error, #member " " #value); \
    } while (0)
    BAD(-EINVAL, rows, NULL);
    BAD(-EINVAL, rows, (char *)good.rows + 1);
    BAD(-EINVAL, row_stride, 6);
    BAD(-EINVAL, n_heads, 0);
    BAD(-EINVAL, table, NULL);
    BAD(-ENOTSUP, type, KVW_NUM_I8);
    BAD(-ERANGE, position, 8);
    BAD(-ERANGE, position, -10);
    BAD(-ERANGE, position, INT64_MIN);
    BAD(-ERANGE, position, INT64_MAX);
    BAD(-ERANGE, position_step, 2);
    BAD(-ERANGE, position_step, -9);
    BAD(-ERANGE, position_step, INT64_MAX);
    BAD(-ERANGE, n_rows, UINT64_MAX);
    BAD_TABLE(-EINVAL, cos, NULL);
    BAD_TABLE(-EINVAL, sin, NULL);
    BAD_TABLE(-EINVAL, n_pairs, 0);
    BAD_TABLE(-EINVAL, layout, 2);
    BAD_TABLE(-EINVAL, row_stride, 5);
    BAD_TABLE(-ERANGE, n_pairs, KVW_HEAD_DIM_MAX / 2 + 1);
    BAD_TABLE(-ERANGE, n_positions, 9);
#undef BAD_TABLE
#undef BAD
#undef REFUSED
    check_that(c, kvw_rope_apply(NULL) == -EINVAL, __func__, "NULL");
    check_that(c, tensor_is_untouched(&rows), __func__, "written");
    tensor_fill(&rows, c, FILL_PLAIN);
    check_that(c, kvw_rope_apply(&good) == 0, __func__, "good ones are not");
    bad = good;
    bad.n_rows = 0;
    check_that(c, kvw_rope_apply(&bad) == 0, __func__, "no rows are fine");
    bad = good;
    bad.position_step = -8;
    check_that(c, kvw_rope_apply(&bad) == 0, __func__, "7, -1, -9 are in the table");
    tensor_fini(&rows);
    table_fini(&t);
}

struct timed {
    kvw_rope_fn *fn;
    struct kvw_rope_args args;
};

static void call_timed(void *arg)
{
    struct timed *timed = arg;

    timed->fn(&timed->args);
}

static void time_rope(struct check *c, const struct kvw_rope_variant *v,
                      uint32_t layout)
{
    struct table t;
    struct tensor rows;

    table_init(&t, 256, 64, layout);
    tensor_init(&rows, c, KVW_NUM_F32, 256, 8, 128);
    tensor_fill(&rows, c, FILL_PLAIN);
    struct timed timed = {.fn = v->fn, .args = args_of(&rows, &t, 0, 1)};
    check_time(c, call_timed, &timed, "256 rows x 8 heads x 128, f32");
    tensor_fini(&rows);
    table_fini(&t);
}

void check_rope(struct check *c)
{
    uint32_t n;
    const struct kvw_rope_variant *v = kvw_rope_variants(&n);

    for (uint32_t i = 0; i < 2 * n; i++) {
        const uint32_t layout = i % 2;
        const char *op = layout == KVW_ROPE_HALF_SPLIT ? "rope_half" : "rope_inter";
        if (check_begin(c, op, v[i / 2].name, v[i / 2].cpu_need) == NULL)
            continue;
        for (uint32_t type = KVW_NUM_F32; type <= KVW_NUM_F16; type++)
            pairs_are_rotated(c, &v[i / 2], type, layout);
        shift_moves_positions(c, &v[i / 2], layout);
        if (c->is_timed)
            time_rope(c, &v[i / 2], layout);
    }
    if (check_begin(c, "rope_fill", "all", 0) != NULL) {
        tables_hold_cosines(c);
        bad_specs_are_refused(c);
    }
    if (check_begin(c, "rope", "errors", 0) != NULL)
        bad_arguments_are_refused(c);
}
