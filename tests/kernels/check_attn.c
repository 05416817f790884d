/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of attention: every variant over types, shapes, pieces and masks against the
 * oracle, and what must be the same bit for bit. Special numbers: check_attn_special.c.
 */
#include "tests/kernels/check_attn.h"

#include <math.h>
#include <stdio.h>

static const uint32_t shapes[][5] = {
    /* n_q, n_q_heads, n_kv_heads, head_dim_k, head_dim_v */
    {1, 1, 1, 2, 1},     {1, 4, 4, 64, 64},     {3, 8, 2, 63, 65},
    {5, 6, 1, 80, 112},  {2, 4, 4, 128, 128},   {9, 9, 3, 7, 8},
    {4, 2, 1, 256, 256}, {1, 3, 1, 576, 512},   {17, 2, 2, 16, 15},
    {1, 12, 12, 31, 33}, {1, 1, 1, 1024, 1024}, {0, 2, 1, 8, 8},
    {41, 2, 1, 24, 40},  {13, 7, 1, 64, 64},
};

static const struct {
    uint32_t n_sink;
    uint32_t n_kept;
    uint32_t n_past;
    uint32_t cuts;
} windows[] = {{0, 0, 0, 0},  {0, 0, 1, 0},  {4, 0, 15, 0},  {1, 3, 33, 0},
               {0, 0, 64, 1}, {3, 5, 40, 3}, {2, 0, 20, 99}, {0, 7, 0, 0}};

static const struct {
    uint32_t mask;
    bool is_windowed;
} masks[] = {{KVW_ATTN_NONE, false},
             {KVW_ATTN_CAUSAL, false},
             {KVW_ATTN_CAUSAL, true},
             {KVW_ATTN_BLOCK_CAUSAL, false},
             {KVW_ATTN_BLOCK_CAUSAL, true}};

#define N_OF(a) (uint32_t)(sizeof(a) / sizeof((a)[0]))

struct attn_plan plan_random(struct check *c, uint32_t kv_type, uint32_t shape,
                             uint32_t window, uint32_t mask)
{
    const uint64_t bits = random_bits(c);

    return (struct attn_plan){
        .n_q = shapes[shape][0],
        .n_q_heads = shapes[shape][1],
        .n_kv_heads = shapes[shape][2],
        .head_dim_k = shapes[shape][3],
        .head_dim_v = shapes[shape][4],
        .kv_type = kv_type,
        .mask = masks[mask].mask,
        .is_windowed = masks[mask].is_windowed,
        .n_sink = windows[window].n_sink,
        .n_kept = windows[window].n_kept,
        .n_past = windows[window].n_past,
        .cuts = windows[window].cuts,
        .has_bias = bits % 3 == 0,
        .has_softcap = (bits >> 8) % 3 == 0,
        .has_sink_logits = (bits >> 16) % 3 == 0,
        .has_raw_keys = (bits >> 24) % 2 == 0,
        .rope_layout = (bits >> 32) % 2,
        .fill = FILL_PLAIN,
    };
}

static struct attn_plan plan_any(struct check *c, uint32_t kv_type)
{
    const uint32_t shape = (uint32_t)random_below(c, 10);
    const uint32_t window = (uint32_t)random_below(c, N_OF(windows));

    return plan_random(c, kv_type, shape, window,
                       (uint32_t)random_below(c, N_OF(masks)));
}

static void results_match_the_oracle(struct check *c, const struct kvw_attn_variant *v,
                                     uint32_t kv_type)
{
    struct attn_case a;

    for (uint32_t i = 0; i < N_OF(shapes) * N_OF(windows) * N_OF(masks); i++) {
        const uint32_t shape = i % N_OF(shapes);
        const uint32_t window = i / N_OF(shapes) % N_OF(windows);
        const uint32_t mask = i / N_OF(shapes) / N_OF(windows);
        /* The widest heads only with few of the masks: they cost the most. */
        if (shapes[shape][3] > 256 && mask % 2 != 0)
            continue;
        struct attn_plan plan = plan_random(c, kv_type, shape, window, mask);
        if (i % 7 == 0)
            plan.fill = (enum fill)random_below(c, FILL_N);
        case_init(&a, c, &plan);
        case_check(&a, c, v, __func__);
        case_fini(&a);
    }
}

/* Several tiles, parts and blocks of rows, with ends of windows anywhere in them. */
static void long_windows_match_the_oracle(struct check *c,
                                          const struct kvw_attn_variant *v,
                                          uint32_t kv_type)
{
    static const uint32_t past[] = {255, 300, 777, 1500, 5200};
    struct attn_case a;

    for (uint32_t i = 0; i < 3 * N_OF(past); i++) {
        struct attn_plan plan = plan_random(c, kv_type, 0, 0, i % N_OF(masks));
        plan.n_q = 1 + (uint32_t)random_below(c, 40);
        plan.n_q_heads = 3;
        plan.n_kv_heads = i % 2 == 0 ? 1 : 3;
        plan.head_dim_k = 8;
        plan.head_dim_v = 8;
        plan.n_sink = (uint32_t)random_below(c, 300);
        plan.n_kept = i % 4 == 0 ? 20 : 0;
        plan.n_past = past[i % N_OF(past)];
        plan.cuts = i % 3;
        plan.has_raw_keys = false; /* tables are short */
        case_init(&a, c, &plan);
        case_check(&a, c, v, __func__);
        case_fini(&a);
    }
}

static void how_rows_are_cut_does_not_matter(struct check *c,
                                             const struct kvw_attn_variant *v,
                                             uint32_t kv_type)
{
    struct attn_case a;
    struct attn_case b;

    for (uint32_t i = 0; i < 60; i++) {
        struct attn_plan plan = plan_any(c, kv_type);
        plan.cuts = i % 3; /* so that cutting in three finds room */
        case_init(&a, c, &plan);
        case_init_recut(&b, c, &a);
        v->fn(&a.args);
        v->fn(&b.args);
        check_that(c, tensors_are_same(&a.out, &b.out), __func__, "out, try %u", i);
        check_that(c, tensors_are_same(&a.lse, &b.lse), __func__, "lse, try %u", i);
        case_fini(&a);
        case_fini(&b);
    }
}

static void how_queries_are_chunked_does_not_matter(struct check *c,
                                                    const struct kvw_attn_variant *v,
                                                    uint32_t kv_type)
{
    struct attn_case a;
    struct tensor out;
    struct tensor lse;

    for (uint32_t i = 0; i < 60; i++) {
        const struct attn_plan plan = plan_any(c, kv_type);
        case_init(&a, c, &plan);
        tensor_init(&out, c, KVW_NUM_F32, plan.n_q, plan.n_q_heads, plan.head_dim_v);
        tensor_init(&lse, c, KVW_NUM_F32, plan.n_q, plan.n_q_heads, 1);
        v->fn(&a.args);
        for (uint32_t q = 0; q < plan.n_q;) {
            struct kvw_attn_args part = a.args;
            part.n_q = (uint32_t)random_in(c, 1, plan.n_q - q);
            part.q_first_row += q;
            part.q = tensor_at(&a.q, q, 0);
            part.out = tensor_at(&out, q, 0);
            part.out_row_stride = out.row_stride;
            part.out_head_stride = out.head_stride;
            part.lse = tensor_at(&lse, q, 0);
            part.lse_row_stride = lse.row_stride;
            part.lse_head_stride = lse.head_stride;
            v->fn(&part);
            q += part.n_q;
        }
        check_that(c, tensors_are_same(&a.out, &out), __func__, "out, try %u", i);
        check_that(c, tensors_are_same(&a.lse, &lse), __func__, "lse, try %u", i);
        tensor_fini(&out);
        tensor_fini(&lse);
        case_fini(&a);
    }
}

/* A query by itself, over the rows that it sees and no others, gives what it gives in a
 * call with rows before and after its window. */
static void rows_unseen_do_not_shift_others(struct check *c,
                                            const struct kvw_attn_variant *v,
                                            uint32_t kv_type)
{
    for (uint32_t i = 0; i < 12; i++) {
        struct attn_plan plan = plan_random(c, kv_type, 0, 0, 1 + i % 4);
        struct attn_case a;
        struct kvw_attn_piece pieces[PIECES_MAX];
        struct tensor out;
        plan.n_q = 9;
        plan.n_q_heads = 2;
        plan.head_dim_k = 16;
        plan.head_dim_v = 16;
        plan.n_sink = i % 3;
        plan.n_past = 40 + 90 * (i % 8);
        plan.cuts = i % 3;
        plan.has_raw_keys = false;
        case_init(&a, c, &plan);
        tensor_init(&out, c, KVW_NUM_F32, plan.n_q, plan.n_q_heads, plan.head_dim_v);
        v->fn(&a.args);
        for (uint32_t q = 0; q < plan.n_q; q++) {
            struct kvw_attn_args one = a.args;
            one.pieces = pieces;
            one.n_pieces = 0;
            for (uint32_t p = 0; p < a.args.n_pieces; p++) {
                uint64_t begin = 0;
                uint64_t end = a.pieces[p].n_rows;
                while (begin < end && !case_sees(&a, q, p, begin))
                    begin++;
                while (begin < end && !case_sees(&a, q, p, end - 1))
                    end--;
                struct kvw_attn_piece *cut = &pieces[one.n_pieces++];
                *cut = a.pieces[p];
                cut->n_rows = end - begin;
                cut->first_row += begin;
                if (begin == end)
                    continue;
                cut->k = tensor_at(&a.k[p], begin, 0);
                cut->v = tensor_at(&a.v[p], begin, 0);
                if (kv_type != KVW_NUM_I8)
                    continue;
                cut->k_scales = tensor_at(&a.k_scales[p], begin, 0);
                cut->v_scales = tensor_at(&a.v_scales[p], begin, 0);
            }
            one.n_q = 1;
            one.q_first_row += q;
            one.q = tensor_at(&a.q, q, 0);
            one.out = tensor_at(&out, q, 0);
            one.out_row_stride = out.row_stride;
            one.out_head_stride = out.head_stride;
            one.lse = NULL;
            v->fn(&one);
        }
        check_that(c, tensors_are_same(&a.out, &out), __func__, "try %u", i);
        tensor_fini(&out);
        case_fini(&a);
    }
}

/* Threads share heads, blocks of queries, or parts of the rows of one head. */
static void threads_do_not_matter(struct check *c, const struct kvw_attn_variant *v,
                                  uint32_t kv_type)
{
    static const uint32_t shape[][3] = {{1, 1, 9000}, {3, 1, 17000}, {200, 2, 300}};

    for (uint32_t i = 0; i < 2 * N_OF(shape); i++) {
        struct attn_plan plan = plan_random(c, kv_type, 0, 0, i % N_OF(masks));
        struct attn_case a;
        struct tensor out;
        plan.n_q = shape[i / 2][0];
        plan.n_q_heads = shape[i / 2][1];
        plan.n_kv_heads = shape[i / 2][1];
        plan.head_dim_k = 8;
        plan.head_dim_v = 8;
        plan.n_past = shape[i / 2][2];
        plan.has_raw_keys = false;
        plan.has_sink_logits = i % 2 == 0;
        case_init(&a, c, &plan);
        tensor_init(&out, c, KVW_NUM_F32, plan.n_q, plan.n_q_heads, plan.head_dim_v);
        v->fn(&a.args);
        for (uint32_t n = 2; n < 4; n++) {
            struct kvw_attn_args many = a.args;
            many.n_threads = n;
            many.out = (void *)out.data;
            many.out_row_stride = out.row_stride;
            many.out_head_stride = out.head_stride;
            many.lse = NULL;
            tensor_poison(&out);
            v->fn(&many);
            check_that(c, tensors_are_same(&a.out, &out), __func__,
                       "%u threads, try %u", n, i);
        }
        tensor_fini(&out);
        case_fini(&a);
    }
}

/* What one of several ranks computes: some KV heads and the query heads that use them.
 */
static void which_heads_are_computed_does_not_matter(struct check *c,
                                                     const struct kvw_attn_variant *v,
                                                     uint32_t kv_type)
{
    struct attn_case a;
    struct attn_case b;

    for (uint32_t i = 0; i < 60; i++) {
        const struct attn_plan plan = plan_any(c, kv_type);
        const uint32_t group = plan.n_q_heads / plan.n_kv_heads;
        const uint32_t size = (uint32_t)random_in(c, 1, plan.n_kv_heads);
        case_init(&a, c, &plan);
        v->fn(&a.args);
        case_init_recut(&b, c, &a);
        for (uint32_t first = 0; first < plan.n_kv_heads; first += size) {
            const uint32_t left = plan.n_kv_heads - first;
            struct kvw_attn_args part = b.args;
            struct kvw_attn_piece pieces[PIECES_MAX];
            for (uint32_t p = 0; p < part.n_pieces; p++) {
                pieces[p] = b.pieces[p];
                if (pieces[p].n_rows == 0)
                    continue;
                pieces[p].k = tensor_at(&b.k[p], 0, first);
                pieces[p].v = tensor_at(&b.v[p], 0, first);
                if (kv_type != KVW_NUM_I8)
                    continue;
                pieces[p].k_scales = tensor_at(&b.k_scales[p], 0, first);
                pieces[p].v_scales = tensor_at(&b.v_scales[p], 0, first);
            }
            part.pieces = pieces;
            part.n_kv_heads = left < size ? left : size;
            part.n_q_heads = part.n_kv_heads * group;
            part.q = tensor_at(&b.q, 0, first * group);
            part.out = tensor_at(&b.out, 0, first * group);
            part.lse = i % 2 == 0 ? NULL : tensor_at(&b.lse, 0, first * group);
            if (part.sink_logits != NULL)
                part.sink_logits += first * group;
            v->fn(&part);
        }
        check_that(c, tensors_are_same(&a.out, &b.out), __func__, "out, try %u", i);
        check_that(c, i % 2 == 0 || tensors_are_same(&a.lse, &b.lse), __func__,
                   "lse, try %u", i);
        check_that(c, i % 2 != 0 || tensor_is_untouched(&b.lse), __func__,
                   "lse was not asked for");
        case_fini(&a);
        case_fini(&b);
    }
}

/* Attention over some pieces merged with attention over the others is attention over
 * all: the rounding of each partial lse and out to f32 is all that is added. */
static void merged_parts_are_the_whole(struct check *c,
                                       const struct kvw_attn_variant *v,
                                       uint32_t kv_type)
{
    struct attn_case whole;
    struct attn_case half[2];

    for (uint32_t i = 0; i < 40; i++) {
        struct attn_plan plan = plan_any(c, kv_type);
        plan.cuts = 2;
        case_init(&whole, c, &plan);
        struct kvw_attn_part parts[2];
        for (uint32_t j = 0; j < 2; j++) {
            const uint32_t middle = whole.args.n_pieces / 2;
            case_init_recut(&half[j], c, &whole);
            struct kvw_attn_args args = half[j].args;
            args.pieces += j * 3 * middle; /* recut makes three of each */
            args.n_pieces = j == 0 ? 3 * middle : args.n_pieces - 3 * middle;
            if (j == 1)
                args.sink_logits = NULL;
            v->fn(&args);
            parts[j] = (struct kvw_attn_part){
                .out = args.out,
                .lse = args.lse,
                .out_row_stride = args.out_row_stride,
                .out_head_stride = args.out_head_stride,
                .lse_row_stride = args.lse_row_stride,
                .lse_head_stride = args.lse_head_stride,
            };
        }
        const struct kvw_merge_args merge = {
            .parts = parts,
            .n_parts = 2,
            .n_q = plan.n_q,
            .n_heads = plan.n_q_heads,
            .head_dim = plan.head_dim_v,
            .out = whole.args.out,
            .out_row_stride = whole.args.out_row_stride,
            .out_head_stride = whole.args.out_head_stride,
        };
        kvw_merge_select(0)->fn(&merge);
        case_check_merged(&whole, c, v, __func__);
        case_fini(&half[0]);
        case_fini(&half[1]);
        case_fini(&whole);
    }
}

struct timed {
    kvw_attn_fn *fn;
    struct kvw_attn_args args;
};

static void call_timed(void *arg)
{
    struct timed *timed = arg;

    timed->fn(&timed->args);
}

static void time_attn(struct check *c, const struct kvw_attn_variant *v,
                      uint32_t kv_type)
{
    struct attn_case a;
    const struct attn_plan plan = {
        .n_q = 1,
        .n_q_heads = 32,
        .n_kv_heads = 8,
        .head_dim_k = 128,
        .head_dim_v = 128,
        .kv_type = kv_type,
        .mask = KVW_ATTN_CAUSAL,
        .n_past = 1023,
    };

    case_init(&a, c, &plan);
    struct timed timed = {.fn = v->fn, .args = a.args};
    check_time(c, call_timed, &timed, "1 query, 32/8 heads x 128, 1024 rows");
    case_fini(&a);
}

static void check_errors(struct check *c)
{
    if (check_begin(c, "attn", "errors", 0) == NULL)
        return;
    attn_bad_arguments_are_refused(c);
}

void check_attn(struct check *c)
{
    for (uint32_t type = KVW_NUM_F32; type <= KVW_NUM_I8; type++) {
        char op[32];
        uint32_t n;
        const struct kvw_attn_variant *v = kvw_attn_variants(type, &n);
        snprintf(op, sizeof(op), "attn_f32_%s", type_name(type));
        for (uint32_t i = 0; i < n; i++, v++) {
            if (check_begin(c, op, v->name, v->cpu_need) == NULL)
                continue;
            results_match_the_oracle(c, v, type);
            long_windows_match_the_oracle(c, v, type);
            rows_unseen_do_not_shift_others(c, v, type);
            threads_do_not_matter(c, v, type);
            how_rows_are_cut_does_not_matter(c, v, type);
            how_queries_are_chunked_does_not_matter(c, v, type);
            which_heads_are_computed_does_not_matter(c, v, type);
            merged_parts_are_the_whole(c, v, type);
            attn_special_numbers(c, v, type);
            if (c->is_timed)
                time_attn(c, v, type);
        }
    }
    check_errors(c);
}
