/* SPDX-License-Identifier: Apache-2.0 */
/* Building of random attention calls: see attn_case.h. The oracle is attn_oracle.c. */
#include "tests/kernels/attn_case.h"

#include <math.h>
#include <stdlib.h>

#define N_POSITIONS 700u

static void bind_results(struct attn_case *a)
{
    a->args.q = (void *)a->q.data;
    a->args.q_row_stride = a->q.row_stride;
    a->args.q_head_stride = a->q.head_stride;
    a->args.out = (void *)a->out.data;
    a->args.out_row_stride = a->out.row_stride;
    a->args.out_head_stride = a->out.head_stride;
    a->args.lse = (void *)a->lse.data;
    a->args.lse_row_stride = a->lse.row_stride;
    a->args.lse_head_stride = a->lse.head_stride;
}

void case_bind_piece(struct attn_case *a, uint32_t piece)
{
    struct kvw_attn_piece *p = &a->pieces[piece];

    p->k = a->k[piece].data;
    p->k_row_stride = a->k[piece].row_stride;
    p->k_head_stride = a->k[piece].head_stride;
    p->v = a->v[piece].data;
    p->v_row_stride = a->v[piece].row_stride;
    p->v_head_stride = a->v[piece].head_stride;
    if (a->args.kv_type != KVW_NUM_I8)
        return;
    p->k_scales = (void *)a->k_scales[piece].data;
    p->k_scales_row_stride = a->k_scales[piece].row_stride;
    p->k_scales_head_stride = a->k_scales[piece].head_stride;
    p->v_scales = (void *)a->v_scales[piece].data;
    p->v_scales_row_stride = a->v_scales[piece].row_stride;
    p->v_scales_head_stride = a->v_scales[piece].head_stride;
}

static void piece_alloc(struct attn_case *a, struct check *c, uint32_t piece)
{
    const struct kvw_attn_args *args = &a->args;
    const uint64_t n_rows = a->pieces[piece].n_rows;

    tensor_init(&a->k[piece], c, args->kv_type, n_rows, args->n_kv_heads,
                args->head_dim_k);
    tensor_init(&a->v[piece], c, args->kv_type, n_rows, args->n_kv_heads,
                args->head_dim_v);
    if (args->kv_type == KVW_NUM_I8) {
        tensor_init(&a->k_scales[piece], c, KVW_NUM_F32, n_rows, args->n_kv_heads, 1);
        tensor_init(&a->v_scales[piece], c, KVW_NUM_F32, n_rows, args->n_kv_heads, 1);
    }
    case_bind_piece(a, piece);
    if (n_rows == 0) {
        a->pieces[piece].k = NULL;
        a->pieces[piece].v = NULL;
        a->pieces[piece].k_scales = NULL;
        a->pieces[piece].v_scales = NULL;
    }
}

/* Scales that make of -127 .. 127 about what fill makes of the other types. */
static void fill_scales(struct tensor *t, struct check *c, uint64_t row, enum fill fill)
{
    static const double units[] = {1.0 / 127, 2, 0x1p-140};

    for (uint32_t head = 0; head < t->n_heads; head++) {
        const double x = units[fill] * (0.5 + 0.5 * fabs(random_unit(c)));
        tensor_set_f32(t, row, head, 0, (float)x);
    }
}

static void piece_fill_row(struct attn_case *a, struct check *c, uint32_t piece,
                           uint64_t i)
{
    tensor_fill_row(&a->k[piece], c, i, a->plan.fill);
    tensor_fill_row(&a->v[piece], c, i, a->plan.fill);
    if (a->args.kv_type != KVW_NUM_I8)
        return;
    fill_scales(&a->k_scales[piece], c, i, a->plan.fill);
    fill_scales(&a->v_scales[piece], c, i, a->plan.fill);
}

/* Append rows [first, first + n) as one piece or as several. Returns the next position.
 */
static uint64_t add_rows(struct attn_case *a, struct check *c, uint64_t first,
                         uint64_t n, uint64_t position, uint32_t flags)
{
    const float bias = a->plan.has_bias ? (float)(2 * random_unit(c)) : 0;
    uint64_t done = 0;

    while (done < n || (n == 0 && done == 0)) {
        const uint64_t left = n - done;
        uint64_t take = left;
        if (a->plan.cuts > 0 && a->args.n_pieces + 8 < PIECES_BUILT_MAX && left > 0)
            take = random_in(c, 1, 1 + 2 * left / (a->plan.cuts + 1));
        if (take > left)
            take = left;
        a->pieces[a->args.n_pieces] = (struct kvw_attn_piece){
            .n_rows = take,
            .first_row = first + done,
            .pos_base = position + done,
            .bias = bias,
            .flags = flags,
        };
        piece_alloc(a, c, a->args.n_pieces);
        a->args.n_pieces++;
        done += take;
        if (n == 0)
            break;
    }
    return position + n;
}

/* Sink, kept, past and current rows in that order, as a cache would list them. */
static void add_pieces(struct attn_case *a, struct check *c)
{
    const struct attn_plan *p = &a->plan;
    const uint32_t raw = p->has_raw_keys ? KVW_ATTN_RAW_KEYS : 0;
    const uint64_t base = random_below(c, 2) == 0 ? 0 : (uint64_t)1 << 40;
    const uint64_t past = base + p->n_sink + p->n_kept + random_below(c, 20);
    uint64_t position = random_below(c, 50);

    a->args.q_first_row = past + p->n_past;
    if (p->is_future)
        a->args.q_first_row = base;
    position = add_rows(a, c, 0, p->n_sink, position, 0);
    if (p->n_kept > 0) {
        /* Keys that are stored rotated may lie beside raw ones. */
        const uint32_t kept_raw = random_below(c, 2) == 0 ? raw : 0;
        position = add_rows(a, c, base + p->n_sink, p->n_kept, position,
                            KVW_ATTN_ALWAYS | kept_raw);
    }
    position = add_rows(a, c, past, p->n_past, position, raw);
    if (!p->is_future)
        add_rows(a, c, past + p->n_past, p->n_q, position, raw);
}

static void rope_init(struct attn_case *a)
{
    const uint32_t n_pairs = a->plan.head_dim_k / 2;
    const struct kvw_rope_spec spec = {
        .cos = a->cos = calloc(N_POSITIONS * n_pairs, sizeof(float)),
        .sin = a->sin = calloc(N_POSITIONS * n_pairs, sizeof(float)),
        .row_stride = (ptrdiff_t)(n_pairs * sizeof(float)),
        .n_positions = N_POSITIONS,
        .n_pairs = n_pairs,
        .theta = 10000,
    };

    if (a->cos == NULL || a->sin == NULL || kvw_rope_fill(&spec) != 0)
        abort();
    a->rope = (struct kvw_rope_table){
        .cos = a->cos,
        .sin = a->sin,
        .row_stride = spec.row_stride,
        .n_positions = N_POSITIONS,
        .n_pairs = n_pairs,
        .layout = a->plan.rope_layout,
    };
    a->args.rope = &a->rope;
}

static void args_init(struct attn_case *a, struct check *c)
{
    const struct attn_plan *p = &a->plan;
    struct kvw_attn_args *args = &a->args;

    *args = (struct kvw_attn_args){
        .n_q = p->n_q,
        .n_q_heads = p->n_q_heads,
        .n_kv_heads = p->n_kv_heads,
        .head_dim_k = p->head_dim_k,
        .head_dim_v = p->head_dim_v,
        .kv_type = p->kv_type,
        .pieces = a->pieces,
        .mask = p->mask,
        .scale = (float)(1 / sqrt(p->head_dim_k)),
        .softcap = p->has_softcap ? 3.0f : 0,
        .sink_logits = p->has_sink_logits ? a->sink_logits : NULL,
        .block_rows = random_in(c, 1, 7),
    };
    if (p->is_windowed) {
        args->sink_rows = p->n_sink;
        args->window_rows = p->n_sink + random_in(c, 1, p->n_past + p->n_q + 2);
    }
    for (uint32_t h = 0; h < p->n_q_heads; h++)
        a->sink_logits[h] = (float)(3 * random_unit(c));
}

static bool is_seen_by_some(const struct attn_case *a, uint32_t piece, uint64_t i)
{
    for (uint64_t q = 0; q < a->args.n_q; q++) {
        if (case_sees(a, q, piece, i))
            return true;
    }
    return false;
}

void case_init(struct attn_case *a, struct check *c, const struct attn_plan *plan)
{
    *a = (struct attn_case){.plan = *plan};
    args_init(a, c);
    if (plan->has_raw_keys)
        rope_init(a);
    add_pieces(a, c);
    a->args.block_first_row = a->args.q_first_row + random_below(c, 4);
    if (random_below(c, 2) == 0)
        a->args.block_first_row %= a->args.block_rows;

    tensor_init(&a->q, c, KVW_NUM_F32, plan->n_q, plan->n_q_heads, plan->head_dim_k);
    tensor_init(&a->out, c, KVW_NUM_F32, plan->n_q, plan->n_q_heads, plan->head_dim_v);
    tensor_init(&a->lse, c, KVW_NUM_F32, plan->n_q, plan->n_q_heads, 1);
    tensor_fill(&a->q, c, plan->fill == FILL_SUBNORMAL ? FILL_BIG : plan->fill);
    bind_results(a);
    for (uint32_t piece = 0; piece < a->args.n_pieces; piece++) {
        for (uint64_t i = 0; i < a->pieces[piece].n_rows; i++) {
            if (!is_seen_by_some(a, piece, i))
                continue;
            piece_fill_row(a, c, piece, i);
        }
    }
}

/* Copy rows [from, from + n) of a piece of src into a new piece of dst. */
static void copy_piece(struct attn_case *dst, struct check *c,
                       const struct attn_case *src, uint32_t piece, uint64_t from,
                       uint64_t n)
{
    const uint32_t at = dst->args.n_pieces++;

    dst->pieces[at] = src->pieces[piece];
    dst->pieces[at].n_rows = n;
    dst->pieces[at].first_row += from;
    dst->pieces[at].pos_base += from;
    piece_alloc(dst, c, at);
    for (uint64_t i = 0; i < n; i++) {
        tensor_copy_row(&dst->k[at], i, &src->k[piece], from + i);
        tensor_copy_row(&dst->v[at], i, &src->v[piece], from + i);
        if (src->args.kv_type != KVW_NUM_I8)
            continue;
        tensor_copy_row(&dst->k_scales[at], i, &src->k_scales[piece], from + i);
        tensor_copy_row(&dst->v_scales[at], i, &src->v_scales[piece], from + i);
    }
}

void case_init_recut(struct attn_case *dst, struct check *c,
                     const struct attn_case *src)
{
    *dst = (struct attn_case){.plan = src->plan, .args = src->args};
    dst->args.pieces = dst->pieces;
    dst->args.n_pieces = 0;
    if (src->plan.has_raw_keys)
        rope_init(dst);
    if (src->args.sink_logits != NULL)
        dst->args.sink_logits = dst->sink_logits;
    for (uint32_t h = 0; h < src->plan.n_q_heads; h++)
        dst->sink_logits[h] = src->sink_logits[h];

    for (uint32_t piece = 0; piece < src->args.n_pieces; piece++) {
        const uint64_t n = src->pieces[piece].n_rows;
        const uint64_t cut = random_below(c, n + 1);
        const uint64_t other_cut = random_in(c, cut, n);
        copy_piece(dst, c, src, piece, 0, cut);
        copy_piece(dst, c, src, piece, cut, other_cut - cut);
        copy_piece(dst, c, src, piece, other_cut, n - other_cut);
    }
    tensor_init(&dst->q, c, KVW_NUM_F32, src->q.n_rows, src->q.n_heads, src->q.n_elems);
    for (uint64_t i = 0; i < src->q.n_rows; i++)
        tensor_copy_row(&dst->q, i, &src->q, i);
    tensor_init(&dst->out, c, KVW_NUM_F32, src->out.n_rows, src->out.n_heads,
                src->out.n_elems);
    tensor_init(&dst->lse, c, KVW_NUM_F32, src->lse.n_rows, src->lse.n_heads, 1);
    bind_results(dst);
}

void case_fini(struct attn_case *a)
{
    for (uint32_t i = 0; i < a->args.n_pieces; i++) {
        tensor_fini(&a->k[i]);
        tensor_fini(&a->v[i]);
        tensor_fini(&a->k_scales[i]);
        tensor_fini(&a->v_scales[i]);
    }
    tensor_fini(&a->q);
    tensor_fini(&a->out);
    tensor_fini(&a->lse);
    free(a->cos);
    free(a->sin);
    *a = (struct attn_case){0};
}
