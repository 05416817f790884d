/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention, the reference: what every variant is compared with.
 *
 * All arithmetic is in double. The products of floats are then exact, and the running
 * maximum and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax",
 * arXiv 1805.02867, algorithm 3) need no second pass and no buffer for scores. Rows are
 * taken one by one in the order of the pieces, so that where a piece ends cannot
 * matter.
 *
 * A tile is up to TILE (query, head) pairs that share a KV head: a row is widened once
 * for all of them. Each pair has its own state, so the tiling cannot matter either.
 */
#include "kernels/variants.h"

#include <math.h>
#include <stdbool.h>

#include "kernels/num.h"
#include "kernels/rows.h"

#define TILE 8
#define LANES 8

/* Which rows a query sees in a piece that isn't always visible. */
struct sight {
    uint64_t sink_rows; /* sees rows < sink_rows and rows in [lo, end), */
    uint64_t lo;        /* but none >= end */
    uint64_t end;
};

struct tile {
    double q[TILE][KVW_HEAD_DIM_MAX];
    double acc[TILE][KVW_HEAD_DIM_MAX]; /* sum of exp(s - max) * value */
    double max[TILE];                   /* of the scores so far */
    double sum[TILE];                   /* of exp(s - max) */
    struct sight sight[TILE];
    uint32_t query[TILE];
    uint32_t head[TILE];
    uint32_t n;
    double k[KVW_HEAD_DIM_MAX]; /* the row at hand */
    double v[KVW_HEAD_DIM_MAX];
};

static struct sight sight_of(const struct kvw_attn_args *args, uint32_t query)
{
    const uint64_t row = args->q_first_row + query;
    struct sight s = {.sink_rows = UINT64_MAX, .lo = 0, .end = UINT64_MAX};

    if (args->mask == KVW_ATTN_NONE)
        return s;
    s.end = row + 1;
    if (args->mask == KVW_ATTN_BLOCK_CAUSAL) {
        const uint64_t first = args->block_first_row;
        s.end = first;
        if (row >= first)
            s.end = row - (row - first) % args->block_rows + args->block_rows;
    }
    if (args->window_rows != 0) {
        const uint64_t recent = args->window_rows - args->sink_rows;
        s.sink_rows = args->sink_rows;
        s.lo = s.end > recent ? s.end - recent : 0;
    }
    return s;
}

static bool sees(const struct sight *s, uint64_t row)
{
    return row < s->end && (row < s->sink_rows || row >= s->lo);
}

/* A dot product in a fixed order of eight partial sums: as plain as one sum,
 * vectorisable without licence to reassociate, and with an eighth of the error bound.
 */
static double dot(const double *a, const double *b, uint32_t n)
{
    double lane[LANES] = {0};
    uint32_t d = 0;

    for (; d + LANES <= n; d += LANES) {
        for (uint32_t j = 0; j < LANES; j++)
            lane[j] += a[d + j] * b[d + j];
    }
    for (uint32_t j = 0; d + j < n; j++)
        lane[j] += a[d + j] * b[d + j];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* scale is that of an I8 row; the product of the two is exact in double. */
static void widen(double *dst, const void *src, uint32_t n, uint32_t type, float scale)
{
    if (type == KVW_NUM_I8) {
        const int8_t *x = src;
        for (uint32_t d = 0; d < n; d++)
            dst[d] = (double)x[d] * (double)scale;
    } else if (type == KVW_NUM_F32) {
        const float *x = src;
        for (uint32_t d = 0; d < n; d++)
            dst[d] = (double)x[d];
    } else if (type == KVW_NUM_F16) {
        const uint16_t *x = src;
        for (uint32_t d = 0; d < n; d++)
            dst[d] = (double)f32_from_f16(x[d]);
    } else {
        const uint16_t *x = src;
        for (uint32_t d = 0; d < n; d++)
            dst[d] = (double)f32_from_bf16(x[d]);
    }
}

static void rotate(double *x, const struct kvw_rope_table *t, uint64_t position)
{
    const float *c = row_in(t->cos, position, t->row_stride, 0, 0);
    const float *s = row_in(t->sin, position, t->row_stride, 0, 0);
    const bool is_half_split = t->layout == KVW_ROPE_HALF_SPLIT;
    const uint32_t step = is_half_split ? 1 : 2;
    const uint32_t apart = is_half_split ? t->n_pairs : 1;

    for (uint32_t j = 0; j < t->n_pairs; j++) {
        double *a = &x[j * step];
        double *b = a + apart;
        const double turned = *a * (double)c[j] - *b * (double)s[j];
        *b = *b * (double)c[j] + *a * (double)s[j];
        *a = turned;
    }
}

/* Pairs [first, first + n) of KV head kv_head, counted over queries, then heads. */
static void tile_init(struct tile *t, const struct kvw_attn_args *args,
                      uint32_t kv_head, uint64_t first, uint32_t n)
{
    const uint32_t group = args->n_q_heads / args->n_kv_heads;

    t->n = n;
    for (uint32_t e = 0; e < n; e++) {
        t->query[e] = (uint32_t)((first + e) / group);
        t->head[e] = kv_head * group + (uint32_t)((first + e) % group);
        t->sight[e] = sight_of(args, t->query[e]);
        t->max[e] = -INFINITY;
        t->sum[e] = 0;
        for (uint32_t d = 0; d < args->head_dim_v; d++)
            t->acc[e][d] = 0;
        widen(t->q[e],
              row_in(args->q, t->query[e], args->q_row_stride, t->head[e],
                     args->q_head_stride),
              args->head_dim_k, KVW_NUM_F32, 1);
    }
}

static double score_of(const struct kvw_attn_args *args, double product, float bias)
{
    double s = (double)args->scale * product;

    if (args->softcap > 0)
        s = (double)args->softcap * tanh(s / (double)args->softcap);
    return s + (double)bias;
}

/* Take a score into maximum and sum and return its weight relative to the maximum. */
static double weigh(struct tile *t, uint32_t e, double s, uint32_t head_dim_v)
{
    double weight = 1;

    if (s > t->max[e]) {
        const double shrink = exp(t->max[e] - s);
        for (uint32_t d = 0; d < head_dim_v; d++)
            t->acc[e][d] *= shrink;
        t->sum[e] *= shrink;
        t->max[e] = s;
    } else {
        weight = exp(s - t->max[e]);
    }
    if (isinf(s))
        weight = NAN; /* +inf: infinite weight; -inf does not come here */
    t->sum[e] += weight;
    return weight;
}

static void tile_take_row(struct tile *t, const struct kvw_attn_args *args,
                          const bool *is_seen, float bias)
{
    for (uint32_t e = 0; e < t->n; e++) {
        if (!is_seen[e])
            continue;
        const double s = score_of(args, dot(t->q[e], t->k, args->head_dim_k), bias);
        if (isinf(s) && s < 0)
            continue;
        const double weight = weigh(t, e, s, args->head_dim_v);
        for (uint32_t d = 0; d < args->head_dim_v; d++)
            t->acc[e][d] += weight * t->v[d];
    }
}

static void tile_take_piece(struct tile *t, const struct kvw_attn_args *args,
                            const struct kvw_attn_piece *p, uint32_t kv_head)
{
    if (isinf(p->bias))
        return;
    for (uint64_t i = 0; i < p->n_rows; i++) {
        bool is_seen[TILE];
        bool is_needed = false;
        for (uint32_t e = 0; e < t->n; e++) {
            is_seen[e] = args->mask == KVW_ATTN_NONE ||
                         (p->flags & KVW_ATTN_ALWAYS) != 0 ||
                         sees(&t->sight[e], p->first_row + i);
            is_needed |= is_seen[e];
        }
        if (!is_needed)
            continue;

        widen(t->k, row_in(p->k, i, p->k_row_stride, kv_head, p->k_head_stride),
              args->head_dim_k, args->kv_type,
              scale_at(p->k_scales, i, p->k_scales_row_stride, kv_head,
                       p->k_scales_head_stride));
        widen(t->v, row_in(p->v, i, p->v_row_stride, kv_head, p->v_head_stride),
              args->head_dim_v, args->kv_type,
              scale_at(p->v_scales, i, p->v_scales_row_stride, kv_head,
                       p->v_scales_head_stride));
        if ((p->flags & KVW_ATTN_RAW_KEYS) != 0)
            rotate(t->k, args->rope, p->pos_base + i);
        tile_take_row(t, args, is_seen, p->bias);
    }
}

static void tile_finish(struct tile *t, const struct kvw_attn_args *args)
{
    for (uint32_t e = 0; e < t->n; e++) {
        const uint32_t head = t->head[e];
        float *out = row_out(args->out, t->query[e], args->out_row_stride, head,
                             args->out_head_stride);

        if (args->sink_logits != NULL) {
            const double sink = (double)args->sink_logits[head];
            if (!(isinf(sink) && sink < 0))
                weigh(t, e, sink, args->head_dim_v);
        }
        /* The greatest score weighs 1, so a sum of zero means that there was none. */
        const bool is_empty = t->sum[e] == 0;
        for (uint32_t d = 0; d < args->head_dim_v; d++)
            out[d] = is_empty ? 0.0f : (float)(t->acc[e][d] / t->sum[e]);
        if (args->lse != NULL) {
            float *lse = row_out(args->lse, t->query[e], args->lse_row_stride, head,
                                 args->lse_head_stride);
            *lse = is_empty ? -INFINITY : (float)(t->max[e] + log(t->sum[e]));
        }
    }
}

void attn_ref(const struct kvw_attn_args *args)
{
    const uint64_t n_pairs = (uint64_t)args->n_q * (args->n_q_heads / args->n_kv_heads);
    struct tile t;

    for (uint32_t kv_head = 0; kv_head < args->n_kv_heads; kv_head++) {
        for (uint64_t first = 0; first < n_pairs; first += TILE) {
            const uint64_t left = n_pairs - first;
            tile_init(&t, args, kv_head, first, left < TILE ? (uint32_t)left : TILE);
            for (uint32_t i = 0; i < args->n_pieces; i++)
                tile_take_piece(&t, args, &args->pieces[i], kv_head);
            tile_finish(&t, args);
        }
    }
}
