/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of linear attention against its definition in double.
 *
 * Bounds, with unit roundoff u. An element of a state is a sum of n products, and maybe
 * what it held before: gamma(n + 2, u) of the sum of magnitudes, and 2^-24 of the result
 * (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1). Numerator and
 * denominator of an output are sums of N = states * dk products: with A and B the sums of
 * their magnitudes, a = gamma(N + 2, u) * A and b = gamma(N + 2, u) * (B + eps), the
 * quotient is off by (a + |out| * b) / (|denominator| - b), and 2^-23 |out|.
 */
#include "tests/kernels/check.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STATES_MAX 3

struct linear_case {
    uint32_t n_rows;
    uint32_t n_heads;
    uint32_t dk;
    uint32_t dv;
    struct tensor k;
    struct tensor k_rotated;
    struct tensor v;
    struct tensor vk; /* rows are head_dim_v */
    struct tensor k_sum;
    struct tensor vk_before;
    struct tensor k_sum_before;
    struct kvw_linear_update_args args;
};

/* Another tensor of the same layout, so that its strides are the same too. */
static void tensor_twin(struct tensor *t, const struct tensor *of)
{
    *t = *of;
    t->base = malloc(of->bytes);
    if (t->base == NULL)
        abort();
    memcpy(t->base, of->base, of->bytes);
    t->data = t->base + (of->data - of->base);
}

static void case_init(struct linear_case *l, struct check *c, const uint32_t shape[4],
                      bool is_added, bool is_rotated)
{
    *l = (struct linear_case){
        .n_rows = shape[0], .n_heads = shape[1], .dk = shape[2], .dv = shape[3]};
    tensor_init(&l->k, c, KVW_NUM_F32, l->n_rows, l->n_heads, l->dk);
    tensor_twin(&l->k_rotated, &l->k);
    tensor_init(&l->v, c, KVW_NUM_F32, l->n_rows, l->n_heads, l->dv);
    tensor_init(&l->vk, c, KVW_NUM_F32, l->dv, l->n_heads, l->dk);
    tensor_init(&l->k_sum, c, KVW_NUM_F32, 1, l->n_heads, l->dk);
    tensor_fill(&l->k, c, FILL_PLAIN);
    tensor_fill(&l->k_rotated, c, FILL_PLAIN);
    tensor_fill(&l->v, c, FILL_PLAIN);
    if (is_added) {
        tensor_fill(&l->vk, c, FILL_PLAIN);
        tensor_fill(&l->k_sum, c, FILL_PLAIN);
    }
    tensor_twin(&l->vk_before, &l->vk);
    tensor_twin(&l->k_sum_before, &l->k_sum);
    l->args = (struct kvw_linear_update_args){
        .k = (void *)l->k.data,
        .k_rotated = is_rotated ? (void *)l->k_rotated.data : NULL,
        .v = (void *)l->v.data,
        .k_row_stride = l->k.row_stride,
        .k_head_stride = l->k.head_stride,
        .v_row_stride = l->v.row_stride,
        .v_head_stride = l->v.head_stride,
        .n_rows = l->n_rows,
        .n_heads = l->n_heads,
        .head_dim_k = l->dk,
        .head_dim_v = l->dv,
        .is_added = is_added,
        .state = {.vk = (void *)l->vk.data,
                  .k_sum = (void *)l->k_sum.data,
                  .vk_head_stride = l->vk.head_stride,
                  .vk_row_stride = l->vk.row_stride,
                  .k_sum_head_stride = l->k_sum.head_stride},
    };
}

static void case_fini(struct linear_case *l)
{
    tensor_fini(&l->k);
    tensor_fini(&l->k_rotated);
    tensor_fini(&l->v);
    tensor_fini(&l->vk);
    tensor_fini(&l->k_sum);
    tensor_fini(&l->vk_before);
    tensor_fini(&l->k_sum_before);
}

/* c == dv: an element of k_sum. */
static void check_element(struct check *c, const struct linear_case *l, double u,
                          uint32_t head, uint32_t row, uint32_t d)
{
    const bool is_sum = row == l->dv;
    const struct tensor *before = is_sum ? &l->k_sum_before : &l->vk_before;
    const struct tensor *keys =
        l->args.k_rotated != NULL && !is_sum ? &l->k_rotated : &l->k;
    double want = 0;
    double magnitude;

    if (l->args.is_added != 0)
        want = tensor_get(before, is_sum ? 0 : row, head, d);
    magnitude = fabs(want);
    for (uint32_t i = 0; i < l->n_rows; i++) {
        const double v = is_sum ? 1 : tensor_get(&l->v, i, head, row);
        const double x = v * tensor_get(keys, i, head, d);
        want += x;
        magnitude += fabs(x);
    }
    const double got =
        is_sum ? tensor_get(&l->k_sum, 0, head, d) : tensor_get(&l->vk, row, head, d);
    const double bound =
        gamma_of(l->n_rows + 2, u + U_F64) * magnitude + U_F32 * fabs(want);
    check_that(c, fabs(got - want) <= bound, "rows add up to the state",
               "head %u row %u elem %u: %.9g, not %.9g +- %.2g", head, row, d, got,
               want, bound);
}

static void rows_add_up(struct check *c, const struct kvw_linear_variant *v)
{
    static const uint32_t shapes[][4] = {{1, 1, 1, 1},   {3, 2, 7, 9},
                                         {20, 3, 16, 8}, {50, 2, 112, 112},
                                         {9, 1, 33, 17}, {0, 2, 8, 8}};

    for (uint32_t i = 0; i < 4 * sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct linear_case l;
        case_init(&l, c, shapes[i / 4], i % 2 == 1, i % 4 >= 2);
        v->update(&l.args);
        check_that(c, tensor_gaps_are_intact(&l.vk), __func__, "vk: writes beside");
        check_that(c, tensor_gaps_are_intact(&l.k_sum), __func__, "k_sum: beside");
        for (uint32_t at = 0; at < l.n_heads * (l.dv + 1) * l.dk; at++)
            check_element(c, &l, variant_roundoff(v->name), at / l.dk / (l.dv + 1),
                          at / l.dk % (l.dv + 1), at % l.dk);
        case_fini(&l);
    }
}

struct use_case {
    struct linear_case l[STATES_MAX];
    struct kvw_linear_state states[STATES_MAX];
    struct tensor q;
    struct tensor q_rotated;
    struct tensor out;
    struct kvw_linear_use_args args;
};

static void check_use_row(struct check *c, const struct use_case *x, double u,
                          uint32_t i, uint32_t head)
{
    const uint32_t dk = x->args.head_dim_k;
    double below = (double)x->args.eps;
    double below_sum = below;

    for (uint32_t at = 0; at < x->args.n_states * dk; at++) {
        const double k = tensor_get(&x->l[at / dk].k_sum, 0, head, at % dk);
        below += k * tensor_get(&x->q, i, head, at % dk);
        below_sum += fabs(k * tensor_get(&x->q, i, head, at % dk));
    }
    for (uint32_t row = 0; row < x->args.head_dim_v; row++) {
        double above = 0;
        double above_sum = 0;
        for (uint32_t at = 0; at < x->args.n_states * dk; at++) {
            const double vk = tensor_get(&x->l[at / dk].vk, row, head, at % dk);
            above += vk * tensor_get(&x->q_rotated, i, head, at % dk);
            above_sum += fabs(vk * tensor_get(&x->q_rotated, i, head, at % dk));
        }
        const double want = above / below;
        const double got = tensor_get(&x->out, i, head, row);
        const double gamma = gamma_of(x->args.n_states * dk + 2, u + U_F64);
        const double bound =
            gamma * (above_sum + fabs(want) * below_sum) / (below - gamma * below_sum) +
            2 * U_F32 * fabs(want);
        check_that(c, fabs(got - want) <= bound, "states are used",
                   "query %u head %u elem %u: %.9g, not %.9g +- %.2g", i, head, row,
                   got, want, bound);
    }
}

/* Features are not negative, so that denominators are not near 0. */
static void make_positive(struct tensor *t)
{
    for (uint64_t row = 0; row < t->n_rows; row++) {
        for (uint32_t at = 0; at < t->n_heads * t->n_elems; at++) {
            const double x = tensor_get(t, row, at / t->n_elems, at % t->n_elems);
            tensor_set_f32(t, row, at / t->n_elems, at % t->n_elems, (float)fabs(x));
        }
    }
}

static void states_are_used(struct check *c, const struct kvw_linear_variant *v)
{
    static const uint32_t shapes[][4] = {
        {4, 1, 1, 1}, {5, 2, 7, 9}, {20, 3, 16, 8}, {30, 2, 112, 112}, {9, 1, 33, 17}};

    for (uint32_t i = 0; i < 3 * sizeof(shapes) / sizeof(shapes[0]); i++) {
        const uint32_t *s = shapes[i / 3];
        struct use_case x = {0};
        for (uint32_t j = 0; j < STATES_MAX; j++) {
            case_init(&x.l[j], c, s, false, true);
            make_positive(&x.l[j].k);
            kvw_linear_select(0)->update(&x.l[j].args);
            x.states[j] = x.l[j].args.state;
        }
        tensor_init(&x.q, c, KVW_NUM_F32, 6, s[1], s[2]);
        tensor_twin(&x.q_rotated, &x.q);
        tensor_fill(&x.q, c, FILL_PLAIN);
        make_positive(&x.q);
        tensor_fill(&x.q_rotated, c, FILL_PLAIN);
        tensor_init(&x.out, c, KVW_NUM_F32, 6, s[1], s[3]);
        x.args = (struct kvw_linear_use_args){.q = (void *)x.q.data,
                                              .q_rotated = (void *)x.q_rotated.data,
                                              .q_row_stride = x.q.row_stride,
                                              .q_head_stride = x.q.head_stride,
                                              .states = x.states,
                                              .n_states = 1 + i % 3,
                                              .n_q = 6,
                                              .n_heads = s[1],
                                              .head_dim_k = s[2],
                                              .head_dim_v = s[3],
                                              .eps = 1e-8f,
                                              .out = (void *)x.out.data,
                                              .out_row_stride = x.out.row_stride,
                                              .out_head_stride = x.out.head_stride};
        v->use(&x.args);
        check_that(c, tensor_gaps_are_intact(&x.out), __func__, "out: writes beside");
        for (uint32_t at = 0; at < 6 * s[1]; at++)
            check_use_row(c, &x, variant_roundoff(v->name), at / s[1], at % s[1]);
        for (uint32_t j = 0; j < STATES_MAX; j++)
            case_fini(&x.l[j]);
        tensor_fini(&x.q);
        tensor_fini(&x.q_rotated);
        tensor_fini(&x.out);
    }
}

static void bad_arguments_are_refused(struct check *c)
{
    static const uint32_t shape[4] = {2, 1, 8, 8};
    struct linear_case l;
    struct kvw_linear_update_args bad;
    struct kvw_linear_use_args use = {.n_heads = 1, .head_dim_k = 8, .head_dim_v = 8};

    case_init(&l, c, shape, false, false);
#define BAD(error, member, value)                                                   \
    do {                                                                            \
        bad = l.args;                                                               \
        bad.member = (value);                                                       \
        check_that(c, kvw_linear_update(&bad) == (error), __func__, "%s", #member); \
    } while (0)
    BAD(-EINVAL, k, NULL);
    BAD(-EINVAL, v, NULL);
    BAD(-EINVAL, n_heads, 0);
    BAD(-EINVAL, head_dim_k, 0);
    BAD(-ERANGE, head_dim_v, KVW_HEAD_DIM_MAX + 1);
    BAD(-EINVAL, is_added, 2);
    BAD(-EINVAL, k_row_stride, 2);
    BAD(-EINVAL, state.vk, NULL);
    BAD(-EINVAL, state.vk_row_stride, 3);
#undef BAD
    check_that(c, kvw_linear_update(NULL) == -EINVAL, __func__, "no arguments");
    check_that(c, tensor_is_untouched(&l.vk), __func__, "something was written");
    check_that(c, kvw_linear_update(&l.args) == 0, __func__, "good ones are not");
    check_that(c, kvw_linear_use(&use) == 0, __func__, "no queries are fine");
    use.n_q = 1;
    check_that(c, kvw_linear_use(&use) == -EINVAL, __func__, "no q");
    use.eps = NAN;
    check_that(c, kvw_linear_use(&use) == -EINVAL, __func__, "eps");
    use.eps = 0;
    use.n_states = 1;
    check_that(c, kvw_linear_use(&use) == -EINVAL, __func__, "no states");
    check_that(c, kvw_linear_use(NULL) == -EINVAL, __func__, "no arguments");
    case_fini(&l);
}

void check_linear(struct check *c)
{
    uint32_t n;
    const struct kvw_linear_variant *v = kvw_linear_variants(&n);

    for (uint32_t i = 0; i < n; i++, v++) {
        if (check_begin(c, "linear", v->name, v->cpu_need) == NULL)
            continue;
        rows_add_up(c, v);
        states_are_used(c, v);
    }
    if (check_begin(c, "linear", "errors", 0) != NULL)
        bad_arguments_are_refused(c);
}
