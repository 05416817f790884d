/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on NaN, infinities, subnormal and huge numbers, and where there is nothing
 * to see. The window: 6 rows in pieces of 2, 1 and 3, 4 query heads on 2 KV heads.
 */
#include "tests/kernels/check_attn.h"

#include <math.h>
#include <string.h>

static const struct attn_plan small = {
    .n_q = 2,
    .n_q_heads = 4,
    .n_kv_heads = 2,
    .head_dim_k = 20,
    .head_dim_v = 12,
    .mask = KVW_ATTN_NONE,
    .n_sink = 2,
    .n_kept = 1,
    .n_past = 1,
    .fill = FILL_PLAIN,
};

/* Pieces of small: sink 2, kept 1, past 1, current 2. */
static void small_init(struct attn_case *a, struct check *c, uint32_t kv_type)
{
    struct attn_plan plan = small;

    plan.kv_type = kv_type;
    case_init(a, c, &plan);
}

static bool row_is(const struct tensor *t, uint64_t q, uint32_t h, double want)
{
    for (uint32_t d = 0; d < t->n_elems; d++) {
        const double got = tensor_get(t, q, h, d);
        if (isnan(want) ? !isnan(got) : got != want)
            return false;
    }
    return true;
}

static bool rows_are_same(const struct tensor *a, const struct tensor *b, uint64_t q,
                          uint32_t h)
{
    return memcmp(tensor_at(a, q, h), tensor_at(b, q, h), a->n_elems * 4) == 0;
}

static void nothing_to_see_gives_zero(struct check *c, const struct kvw_attn_variant *v,
                                      uint32_t kv_type)
{
    for (uint32_t i = 0; i < 12; i++) {
        struct attn_case a;
        struct attn_plan plan = small;
        plan.kv_type = kv_type;
        plan.mask = KVW_ATTN_CAUSAL;
        plan.n_sink = 0;
        plan.n_kept = 0;
        plan.n_past = 9;
        plan.is_future = true;
        plan.is_windowed = i % 3 == 1;
        plan.has_sink_logits = i >= 6;
        case_init(&a, c, &plan);
        struct kvw_attn_args args = a.args;
        if (i % 3 == 2)
            args.n_pieces = 0;
        args.q_first_row = 0;
        for (uint32_t p = 0; p < a.args.n_pieces; p++)
            a.pieces[p].first_row += 1000;

        v->fn(&args);

        for (uint32_t at = 0; at < 8; at++) {
            const double sink = (double)a.sink_logits[at % 4];
            check_that(c, row_is(&a.out, at / 4, at % 4, 0), __func__, "out, try %u",
                       i);
            check_that(
                c, row_is(&a.lse, at / 4, at % 4, i >= 6 ? sink : (double)-INFINITY),
                __func__, "lse, try %u: %g", i, tensor_get(&a.lse, at / 4, at % 4, 0));
        }
        case_fini(&a);
    }
}

/* A hidden piece, with poison in it, is as good as none: by bias, or by a key that
 * makes the score -inf. */
static void minus_infinity_takes_rows_out(struct check *c,
                                          const struct kvw_attn_variant *v,
                                          uint32_t kv_type)
{
    const uint32_t n_ways = kv_type == KVW_NUM_I8 ? 1 : 2;

    for (uint32_t hidden = 0; hidden < 4; hidden++) {
        for (uint32_t way = 0; way < n_ways; way++) {
            struct attn_case a;
            struct attn_case b;
            small_init(&a, c, kv_type);
            for (uint32_t at = 0; at < 8; at++)
                tensor_set_f32(&a.q, at / 4, at % 4, 3, -0.5f);
            case_init_recut(&b, c, &a);
            for (uint32_t p = 3 * hidden; p < 3 * hidden + 3; p++) {
                b.pieces[p].n_rows = 0;
                b.pieces[p].k = NULL;
            }
            if (way == 0) {
                a.pieces[hidden].bias = -INFINITY;
                tensor_poison(&a.k[hidden]);
                tensor_poison(&a.v[hidden]);
            }
            for (uint64_t i = 0; i < a.pieces[hidden].n_rows * 2 && way == 1; i++)
                tensor_set_bits(&a.k[hidden], i / 2, i % 2, 3, type_infinity(kv_type));
            v->fn(&a.args);
            v->fn(&b.args);
            check_that(c, way == 1 || tensors_are_same(&a.out, &b.out), __func__,
                       "out %u", hidden);
            check_that(c, way == 1 || tensors_are_same(&a.lse, &b.lse), __func__,
                       "lse %u", hidden);
            if (way == 1)
                case_check(&a, c, v, __func__);
            case_fini(&a);
            case_fini(&b);
        }
    }
}

/* NaN or +inf in a score reaches exactly the query heads of that KV head. */
static void bad_keys_reach_their_heads_only(struct check *c,
                                            const struct kvw_attn_variant *v,
                                            uint32_t kv_type)
{
    for (uint32_t i = 0; i < 8; i++) {
        struct attn_case a;
        struct attn_case b;
        const uint32_t piece = i / 2;
        /* +1: a NaN */
        const uint32_t bits =
            kv_type == KVW_NUM_I8 ? 0 : type_infinity(kv_type) + (i % 2);
        small_init(&a, c, kv_type);
        for (uint32_t at = 0; at < 8; at++)
            tensor_set_f32(&a.q, at / 4, at % 4, 7, 0.5f);
        case_init_recut(&b, c, &a);
        if (kv_type == KVW_NUM_I8)
            tensor_set_f32(&a.k_scales[piece], a.pieces[piece].n_rows - 1, 1, 0, NAN);
        else
            tensor_set_bits(&a.k[piece], a.pieces[piece].n_rows - 1, 1, 7, bits);
        v->fn(&a.args);
        v->fn(&b.args);
        for (uint64_t q = 0; q < 2; q++) {
            for (uint32_t h = 0; h < 2; h++) {
                check_that(c, rows_are_same(&a.out, &b.out, q, h), __func__,
                           "head %u of another KV head changed", h);
                check_that(c, row_is(&a.out, q, h + 2, (double)NAN), __func__,
                           "out of head %u is no NaN, try %u", h + 2, i);
                check_that(c, row_is(&a.lse, q, h + 2, (double)NAN), __func__,
                           "lse of head %u is no NaN, try %u", h + 2, i);
            }
        }
        case_fini(&a);
        case_fini(&b);
    }
}

static void bad_values_reach_their_element_only(struct check *c,
                                                const struct kvw_attn_variant *v,
                                                uint32_t kv_type)
{
    for (uint32_t i = 0; i < 8; i++) {
        struct attn_case a;
        struct attn_case b;
        const uint32_t piece = i / 2;
        const bool is_nan = i % 2 != 0;
        small_init(&a, c, kv_type);
        case_init_recut(&b, c, &a);
        tensor_set_bits(&a.v[piece], 0, 0, 5, type_infinity(kv_type) + is_nan);
        v->fn(&a.args);
        v->fn(&b.args);
        check_that(c, tensors_are_same(&a.lse, &b.lse), __func__, "lse changed");
        for (uint32_t at = 0; at < 2 * 4 * 12; at++) {
            const uint64_t q = at / 48;
            const uint32_t h = at / 12 % 4;
            const double got = tensor_get(&a.out, q, h, at % 12);
            const double clean = tensor_get(&b.out, q, h, at % 12);
            if (h >= 2 || at % 12 != 5)
                check_that(c, got == clean, __func__, "another element changed");
            else
                check_that(c, is_nan ? isnan(got) : got == (double)INFINITY, __func__,
                           "it is %g, try %u", got, i);
        }
        case_fini(&a);
        case_fini(&b);
    }
}

/* Scores up to 10^29, of which one wins by far: the output is that row's value. */
static void huge_scores_pick_one_row(struct check *c, const struct kvw_attn_variant *v,
                                     uint32_t kv_type)
{
    static const float sizes[] = {1e2f, 1e4f, 1e10f, 1e29f};

    for (uint32_t i = 0; i < 16; i++) {
        struct attn_case a;
        const uint32_t piece = i % 4;
        small_init(&a, c, kv_type);
        a.args.scale = 1;
        for (uint32_t at = 0; at < 8; at++) {
            for (uint32_t d = 0; d < 20; d++)
                tensor_set_f32(&a.q, at / 4, at % 4, d, 0);
            tensor_set_f32(&a.q, at / 4, at % 4, 11, 32 * sizes[i / 4]);
        }
        /* Bits of 1.0: the greatest of the keys, all of whose magnitudes are below. */
        static const uint32_t one[] = {[KVW_NUM_F32] = 0x3f800000u,
                                       [KVW_NUM_BF16] = 0x3f80u,
                                       [KVW_NUM_F16] = 0x3c00u};
        static const uint32_t half[] = {[KVW_NUM_F32] = 0x3f000000u,
                                        [KVW_NUM_BF16] = 0x3f00u,
                                        [KVW_NUM_F16] = 0x3800u};
        for (uint32_t p = 0; p < 4; p++) {
            for (uint64_t j = 0; j < 2 * a.pieces[p].n_rows; j++)
                tensor_set_bits(&a.k[p], j / 2, j % 2, 11, half[kv_type]);
        }
        tensor_set_bits(&a.k[piece], 0, 0, 11, one[kv_type]);
        tensor_set_bits(&a.k[piece], 0, 1, 11, one[kv_type]);
        v->fn(&a.args);
        for (uint32_t at = 0; at < 2 * 4 * 12; at++) {
            const double want = tensor_get(&a.v[piece], 0, at / 24 % 2, at % 12);
            const double got = tensor_get(&a.out, at / 48, at / 12 % 4, at % 12);
            check_that(c, fabs(got - want) <= 4 * U_F32 * fabs(want), __func__,
                       "%.9g, not %.9g, try %u", got, want, i);
        }
        case_fini(&a);
    }
}

/* One visible row gives its value back, to rounding, subnormal or huge. */
static void one_row_gives_its_value(struct check *c, const struct kvw_attn_variant *v,
                                    uint32_t kv_type)
{
    static const uint32_t extremes[][4] = {
        [KVW_NUM_F32] = {0x00000001u, 0x807fffffu, 0x7f7fffffu, 0xff7fffffu},
        [KVW_NUM_BF16] = {0x0001u, 0x807fu, 0x7f7fu, 0xff7fu},
        [KVW_NUM_F16] = {0x0001u, 0x83ffu, 0x7bffu, 0xfbffu},
        [KVW_NUM_I8] = {0x01u, 0x81u, 0x7fu, 0x00u},
    };
    struct attn_case a;
    struct attn_plan plan = small;

    plan.kv_type = kv_type;
    plan.n_q = 1;
    plan.n_sink = 0;
    plan.n_kept = 0;
    plan.n_past = 0;
    for (uint32_t i = 0; i < 4; i++) {
        case_init(&a, c, &plan);
        for (uint32_t p = 0; p < a.args.n_pieces; p++) {
            for (uint32_t at = 0; at < 24 && a.pieces[p].n_rows > 0; at++)
                tensor_set_bits(&a.v[p], 0, at / 12, at % 12,
                                extremes[kv_type][(i + at) % 4]);
        }
        case_check(&a, c, v, __func__);
        case_fini(&a);
    }
}

void attn_special_numbers(struct check *c, const struct kvw_attn_variant *v,
                          uint32_t kv_type)
{
    nothing_to_see_gives_zero(c, v, kv_type);
    minus_infinity_takes_rows_out(c, v, kv_type);
    bad_keys_reach_their_heads_only(c, v, kv_type);
    one_row_gives_its_value(c, v, kv_type);
    if (kv_type == KVW_NUM_I8)
        return; /* no infinities in single elements */
    bad_values_reach_their_element_only(c, v, kv_type);
    huge_scores_pick_one_row(c, v, kv_type);
}
