/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of merging against its definition in double.
 *
 * Bound, with unit roundoff u, n parts, L the greatest and l the least finite lse of a
 * row, and x = max |lse|. A weight exp(lse_p - total) is off by a factor 1 + e with
 *   |e| <= gamma(n + 8, u)     exp, log, and the sum over parts (positive terms)
 *        + 2 u (L - l) + 4 u x the roundings of lse_p - max and lse_p - total, and of
 *                              total itself; exp turns absolute errors into relative
 * and the sum over parts of weight * out adds gamma(n + 1, u): together 2 e is enough.
 * Storing rounds by 2^-24 once more. lse is off by e + 2^-24 |lse|. Weights below the
 * smallest normal f32 may be lost: n * 2^-126 * max |out|.
 */
#include "tests/kernels/check.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define PARTS_MAX 5

struct merge_case {
    struct tensor part_out[PARTS_MAX];
    struct tensor part_lse[PARTS_MAX];
    struct kvw_attn_part parts[PARTS_MAX];
    struct tensor out;
    struct tensor lse;
    struct kvw_merge_args args;
};

static void case_init(struct merge_case *m, struct check *c, uint32_t n_parts,
                      uint32_t n_q, uint32_t n_heads, uint32_t head_dim)
{
    for (uint32_t i = 0; i < n_parts; i++) {
        struct tensor *out = &m->part_out[i];
        struct tensor *lse = &m->part_lse[i];
        tensor_init(out, c, KVW_NUM_F32, n_q, n_heads, head_dim);
        tensor_init(lse, c, KVW_NUM_F32, n_q, n_heads, 1);
        tensor_fill(out, c, FILL_PLAIN);
        for (uint32_t at = 0; at < n_q * n_heads; at++)
            tensor_set_f32(lse, at / n_heads, at % n_heads, 0,
                           (float)(20 * random_unit(c)));
        m->parts[i] = (struct kvw_attn_part){
            .out = (const void *)out->data,
            .lse = (const void *)lse->data,
            .out_row_stride = out->row_stride,
            .out_head_stride = out->head_stride,
            .lse_row_stride = lse->row_stride,
            .lse_head_stride = lse->head_stride,
        };
    }
    tensor_init(&m->out, c, KVW_NUM_F32, n_q, n_heads, head_dim);
    tensor_init(&m->lse, c, KVW_NUM_F32, n_q, n_heads, 1);
    m->args = (struct kvw_merge_args){
        .parts = m->parts,
        .n_parts = n_parts,
        .n_q = n_q,
        .n_heads = n_heads,
        .head_dim = head_dim,
        .out = (void *)m->out.data,
        .out_row_stride = m->out.row_stride,
        .out_head_stride = m->out.head_stride,
        .lse = (void *)m->lse.data,
        .lse_row_stride = m->lse.row_stride,
        .lse_head_stride = m->lse.head_stride,
    };
}

static void case_fini(struct merge_case *m)
{
    for (uint32_t i = 0; i < m->args.n_parts; i++) {
        tensor_fini(&m->part_out[i]);
        tensor_fini(&m->part_lse[i]);
    }
    tensor_fini(&m->out);
    tensor_fini(&m->lse);
}

struct wanted {
    double lse;
    double factor; /* bound of a weight's relative error */
    double weight[PARTS_MAX];
};

static struct wanted wanted_of(const struct merge_case *m, uint64_t q, uint32_t h,
                               double u)
{
    const uint32_t n = m->args.n_parts;
    struct wanted w = {.lse = (double)-INFINITY};
    double top = (double)-INFINITY;
    double low = (double)INFINITY;
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        const double lse = tensor_get(&m->part_lse[i], q, h, 0);
        if (lse == (double)-INFINITY)
            continue;
        top = fmax(top, lse);
        low = fmin(low, lse);
    }
    if (top == (double)-INFINITY)
        return w;
    for (uint32_t i = 0; i < n; i++) {
        w.weight[i] = exp(tensor_get(&m->part_lse[i], q, h, 0) - top);
        sum += w.weight[i];
    }
    for (uint32_t i = 0; i < n; i++)
        w.weight[i] /= sum;
    w.lse = top + log(sum);
    w.factor = gamma_of(n + 8, u) + 2 * u * (top - low) +
               4 * u * fmax(fabs(top), fmax(fabs(low), fabs(w.lse)));
    return w;
}

static void check_row(struct check *c, const struct merge_case *m, double u,
                      const char *claim, uint64_t q, uint32_t h)
{
    const struct wanted w = wanted_of(m, q, h, u + U_F64);
    const double lse = tensor_get(&m->lse, q, h, 0);
    const bool is_empty = w.lse == (double)-INFINITY;
    const double lse_bound = w.factor + U_F32 * fabs(w.lse) + 0x1p-149;

    if (is_empty)
        check_that(c, lse == w.lse, claim, "lse is %g, not -inf", lse);
    else
        check_that(c, fabs(lse - w.lse) <= lse_bound, claim, "lse %.9g, not %.9g", lse,
                   w.lse);
    for (uint32_t d = 0; d < m->args.head_dim; d++) {
        const double got = tensor_get(&m->out, q, h, d);
        double want = 0;
        double spread = 0;
        double max = 0;
        for (uint32_t i = 0; i < m->args.n_parts; i++) {
            if (w.weight[i] == 0)
                continue;
            const double x = tensor_get(&m->part_out[i], q, h, d);
            want += w.weight[i] * x;
            spread += w.weight[i] * fabs(x);
            max = fmax(max, fabs(x));
        }
        const double bound = 2 * w.factor * spread + U_F32 * fabs(want) + 0x1p-149 +
                             m->args.n_parts * 0x1p-126 * max;
        check_that(c, fabs(got - want) <= bound, claim,
                   "query %u head %u elem %u: %.9g, not %.9g", (unsigned)q, h, d, got,
                   want);
    }
}

static void check_case(struct check *c, const struct kvw_merge_variant *v,
                       struct merge_case *m, const char *claim)
{
    v->fn(&m->args);

    check_that(c, tensor_gaps_are_intact(&m->out), claim, "out: writes beside");
    check_that(c, tensor_gaps_are_intact(&m->lse), claim, "lse: writes beside");
    for (uint64_t q = 0; q < m->args.n_q; q++) {
        for (uint32_t h = 0; h < m->args.n_heads; h++)
            check_row(c, m, variant_roundoff(v->name), claim, q, h);
    }
}

static void parts_are_weighted_by_lse(struct check *c,
                                      const struct kvw_merge_variant *v)
{
    static const uint32_t dims[] = {1, 7, 8, 15, 16, 17, 31, 64, 80, 128, 256, 1024};
    struct merge_case m;

    for (uint32_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        for (uint32_t n_parts = 0; n_parts <= PARTS_MAX; n_parts++) {
            const uint32_t n_q = (uint32_t)random_in(c, 0, 3);
            const uint32_t n_heads = (uint32_t)random_in(c, 1, 5);
            case_init(&m, c, n_parts, n_q, n_heads, dims[i]);
            check_case(c, v, &m, __func__);
            case_fini(&m);
        }
    }
}

static void extreme_lse_are_safe(struct check *c, const struct kvw_merge_variant *v)
{
    static const float extremes[] = {1e30f, -1e30f, 3e38f, 1e-40f, 0, 100, -100, 88.8f};
    struct merge_case m;

    for (uint32_t i = 0; i < 200; i++) {
        case_init(&m, c, 3, 1, 2, 9);
        for (uint32_t j = 0; j < 6; j++)
            tensor_set_f32(&m.part_lse[j / 2], 0, j % 2, 0,
                           extremes[random_below(c, 8)]);
        v->fn(&m.args);
        for (uint32_t h = 0; h < 2; h++) {
            const struct wanted w = wanted_of(&m, 0, h, U_F32);
            /* Where rounding of lse may decide, only that the result is a mean. */
            if (w.factor < 0.01)
                check_row(c, &m, variant_roundoff(v->name), __func__, 0, h);
            for (uint32_t d = 0; d < 9; d++)
                check_that(c, fabs(tensor_get(&m.out, 0, h, d)) <= 1.01, __func__,
                           "no mean: %g", tensor_get(&m.out, 0, h, d));
        }
        case_fini(&m);
    }
}

static void empty_parts_are_not_looked_at(struct check *c,
                                          const struct kvw_merge_variant *v)
{
    struct merge_case m;

    for (uint32_t mask = 0; mask < 8; mask++) {
        case_init(&m, c, 3, 2, 3, 33);
        for (uint32_t i = 0; i < 3; i++) {
            if ((mask >> i & 1) == 0)
                continue;
            tensor_poison(&m.part_out[i]);
            for (uint32_t at = 0; at < 6; at++)
                tensor_set_f32(&m.part_lse[i], at / 3, at % 3, 0, -INFINITY);
        }
        check_case(c, v, &m, __func__);
        case_fini(&m);
    }
}

static void nan_and_infinity_give_nan(struct check *c,
                                      const struct kvw_merge_variant *v)
{
    static const float bad[] = {NAN, INFINITY};
    struct merge_case m;

    for (uint32_t i = 0; i < 6; i++) {
        case_init(&m, c, 3, 1, 2, 11);
        tensor_set_f32(&m.part_lse[i / 2], 0, 1, 0, bad[i % 2]);
        v->fn(&m.args);
        for (uint32_t d = 0; d < 11; d++)
            check_that(c, isnan(tensor_get(&m.out, 0, 1, d)), __func__, "out");
        check_that(c, isnan(tensor_get(&m.lse, 0, 1, 0)), __func__, "lse");
        check_row(c, &m, variant_roundoff(v->name), "other heads are untouched", 0, 0);
        case_fini(&m);
    }
}

static void result_may_replace_a_part(struct check *c,
                                      const struct kvw_merge_variant *v)
{
    struct merge_case m;

    for (uint32_t i = 0; i < 3; i++) {
        case_init(&m, c, 3, 3, 2, 40);
        v->fn(&m.args);
        struct kvw_merge_args in_place = m.args;
        in_place.out = (void *)m.part_out[i].data;
        in_place.out_row_stride = m.part_out[i].row_stride;
        in_place.out_head_stride = m.part_out[i].head_stride;
        in_place.lse = (void *)m.part_lse[i].data;
        in_place.lse_row_stride = m.part_lse[i].row_stride;
        in_place.lse_head_stride = m.part_lse[i].head_stride;
        v->fn(&in_place);
        check_that(c, tensors_are_same(&m.out, &m.part_out[i]), __func__, "out %u", i);
        check_that(c, tensors_are_same(&m.lse, &m.part_lse[i]), __func__, "lse %u", i);
        case_fini(&m);
    }
}

static void bad_arguments_are_refused(struct check *c)
{
    struct merge_case m;
    struct kvw_merge_args bad;

    case_init(&m, c, 2, 2, 2, 8);
#define REFUSED(error, what) \
    check_that(c, kvw_attn_merge(&bad) == (error), __func__, what)
#define BAD(error, member, value) \
    do {                          \
        bad = m.args;             \
        bad.member = (value);     \
        REFUSED(error, #member);  \
    } while (0)
#define BAD_PART(member, value)                       \
    do {                                              \
        const struct kvw_attn_part kept = m.parts[1]; \
        bad = m.args;                                 \
        m.parts[1].member = (value);                  \
        REFUSED(-EINVAL, "part " #member);            \
        m.parts[1] = kept;                            \
    } while (0)
    BAD(-EINVAL, parts, NULL);
    BAD(-EINVAL, out, NULL);
    BAD(-EINVAL, n_heads, 0);
    BAD(-EINVAL, head_dim, 0);
    BAD(-EINVAL, out_row_stride, 2);
    BAD(-EINVAL, lse_head_stride, 1);
    BAD(-ERANGE, head_dim, KVW_HEAD_DIM_MAX + 1);
    BAD_PART(out, NULL);
    BAD_PART(lse, NULL);
    BAD_PART(out_head_stride, 3);
    BAD_PART(lse_row_stride, 2);
#undef BAD_PART
#undef BAD
#undef REFUSED
    check_that(c, kvw_attn_merge(NULL) == -EINVAL, __func__, "NULL");
    check_that(c, tensor_is_untouched(&m.out), __func__, "written");
    bad = m.args;
    bad.lse = NULL;
    check_that(c, kvw_attn_merge(&bad) == 0, __func__, "lse is optional");
    check_that(c, tensor_is_untouched(&m.lse), __func__, "lse was written");
    check_that(c, kvw_attn_merge(&m.args) == 0, __func__, "good ones are not");
    case_fini(&m);
}

struct timed {
    kvw_merge_fn *fn;
    struct kvw_merge_args args;
};

static void call_timed(void *arg)
{
    struct timed *timed = arg;

    timed->fn(&timed->args);
}

static void time_merge(struct check *c, const struct kvw_merge_variant *v)
{
    struct merge_case m;

    case_init(&m, c, 4, 64, 32, 128);
    struct timed timed = {.fn = v->fn, .args = m.args};
    check_time(c, call_timed, &timed, "4 parts of 64 queries x 32 heads x 128");
    case_fini(&m);
}

void check_merge(struct check *c)
{
    uint32_t n;
    const struct kvw_merge_variant *v = kvw_merge_variants(&n);

    for (uint32_t i = 0; i < n; i++, v++) {
        if (check_begin(c, "merge", v->name, v->cpu_need) == NULL)
            continue;
        parts_are_weighted_by_lse(c, v);
        extreme_lse_are_safe(c, v);
        empty_parts_are_not_looked_at(c, v);
        nan_and_infinity_give_nan(c, v);
        result_may_replace_a_part(c, v);
        if (c->is_timed)
            time_merge(c, v);
    }
    if (check_begin(c, "merge", "errors", 0) != NULL)
        bad_arguments_are_refused(c);
}
