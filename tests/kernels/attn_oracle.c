/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle of attention, and how far from it a variant may be.
 *
 * Bound. Sums have unit roundoff u (that of the variant plus 2^-53 for the oracle
 * itself); libm and vector exp, log and tanh are taken to be good to 4 u. Operands may be
 * rounded before they are multiplied: queries, and keys rotated on read, by r relative,
 * weights by w, queries to multiples of t * max |q| with an error of half of that. What
 * is below f may be flushed to zero. (arithmetic_of() has the numbers.) For one query and
 * head with n visible rows (a sink logit counts as a row without value):
 *
 * 1. Scores. A key that is rotated is off by gamma(2) per element relative to |a c| +
 *    |b s|; a dot product of dk elements in any order by gamma(dk) of the sum of |q k|
 *    (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1); scale,
 *    softcap (tanh' <= 1, so errors of its argument do not grow) and bias round by u
 *    each. With A = sum over d of |q[d]| * (|a c| + |b s|, or |k[d]|):
 *      delta = (gamma(dk + 8) + r) * |scale| * A + 8 u |capped score| + u |s|,
 *    and r once more for a rotated key, t / 2 * max |q| * |scale| * (sum of |key|) and,
 *    for what is flushed, f * (sum of |key| + 2 |scale| * sum of |q| + 2 dk + 4).
 * 2. Weights. exp(s - max), possibly in several factors when the maximum grows: with D =
 *    max of delta and R = max - min of the scores, each weight is off by a factor 1 +- e,
 *      e = expm1(2 D) + gamma(8 n + 30) + 2 u R + w
 *    (2 D: in s and in max; 8 n: exp and product at each of up to n growths of the
 *    maximum, and the sums; u R: rounding of the differences, which exp makes relative).
 * 3. Output. Numerator and denominator carry e each:
 *      |error| <= 2 e / (1 - e) * P + 2^-24 |out| + 2^-149,  P = sum of weight * |v|
 *    plus n * 2^-126 * max |v|, for weights that may be flushed when they underflow, and
 *    (3 n + 3) f for values and products. Where e is over 1/2, scores are too large for a
 *    float's digits to say much: then the output need only be a mean of the values, so P
 *    is max |v| and the factor 2.
 * 4. lse: |error| <= D + 2 (e without D) + 4 u |lse| + 2^-24 |lse| + 2^-149.
 */
#include "tests/kernels/attn_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How a variant computes: see the head of this file. */
struct arithmetic {
    double sum;     /* u */
    double operand; /* r */
    double weight;  /* w */
    double step;    /* t */
    double flushed; /* f */
};

/* "ref" is in double. Of the others, those whose name ends in _bf16 round to bf16 what
 * they multiply and flush; those with vnni round queries to 8 bits beside; all others
 * compute in float. */
static struct arithmetic arithmetic_of(const char *name)
{
    struct arithmetic m = {.sum = variant_roundoff(name) + U_F64, .flushed = 0x1p-149};

    if (strcmp(name, "ref") == 0)
        m.flushed = 0;
    if (strstr(name, "_bf16") != NULL || strstr(name, "_vnni") != NULL) {
        m.operand = U_BF16;
        m.weight = U_BF16;
        m.flushed = 0x1p-126;
    }
    if (strstr(name, "_vnni") != NULL) {
        m.operand = 0;
        m.step = 1.001 / 127;
    }
    return m;
}

double case_key(const struct attn_case *a, uint32_t piece, uint64_t i, uint32_t head,
                uint32_t elem)
{
    const double x = tensor_get(&a->k[piece], i, head, elem);

    if (a->args.kv_type != KVW_NUM_I8)
        return x;
    return x * tensor_get(&a->k_scales[piece], i, head, 0);
}

double case_value(const struct attn_case *a, uint32_t piece, uint64_t i, uint32_t head,
                  uint32_t elem)
{
    const double x = tensor_get(&a->v[piece], i, head, elem);

    if (a->args.kv_type != KVW_NUM_I8)
        return x;
    return x * tensor_get(&a->v_scales[piece], i, head, 0);
}

bool case_sees(const struct attn_case *a, uint64_t q, uint32_t piece, uint64_t i)
{
    const struct kvw_attn_args *args = &a->args;
    const uint64_t query_row = args->q_first_row + q;
    const uint64_t row = a->pieces[piece].first_row + i;
    uint64_t end = query_row + 1;

    if (args->mask == KVW_ATTN_NONE || (a->pieces[piece].flags & KVW_ATTN_ALWAYS) != 0)
        return true;
    if (args->mask == KVW_ATTN_BLOCK_CAUSAL) {
        end = args->block_first_row;
        if (query_row >= end)
            end += ((query_row - end) / args->block_rows + 1) * args->block_rows;
    }
    if (row >= end)
        return false;
    if (args->window_rows == 0 || row < args->sink_rows)
        return true;
    return end - row <= args->window_rows - args->sink_rows;
}

/* Scores and bounds of one query and head. */
struct scores {
    uint32_t n;
    double score[ROWS_MAX];
    double weight[ROWS_MAX];
    uint32_t piece[ROWS_MAX];
    uint64_t row[ROWS_MAX]; /* in its piece */
    double delta_max;       /* D */
    double rest;            /* e without D */
    double factor;          /* e */
    double lse;
};

/* One element of a key as attention sees it, and the sum of magnitudes it came from. */
static double key_at(const struct attn_case *a, uint32_t piece, uint64_t i,
                     uint32_t head, uint32_t d, double *spread)
{
    const double x = case_key(a, piece, i, head, d);
    const uint32_t n_pairs = a->rope.n_pairs;

    *spread = fabs(x);
    if ((a->pieces[piece].flags & KVW_ATTN_RAW_KEYS) == 0 || d >= 2 * n_pairs)
        return x;

    const bool is_half_split = a->rope.layout == KVW_ROPE_HALF_SPLIT;
    const uint32_t j = is_half_split ? d % n_pairs : d / 2;
    const bool is_first = is_half_split ? d < n_pairs : d % 2 == 0;
    const uint32_t apart = is_half_split ? n_pairs : 1;
    const double other = case_key(a, piece, i, head, is_first ? d + apart : d - apart);
    const uint64_t position = a->pieces[piece].pos_base + i;
    const double c = (double)a->cos[position * n_pairs + j];
    const double s = (double)a->sin[position * n_pairs + j];

    *spread = fabs(x * c) + fabs(other * s);
    return is_first ? x * c - other * s : x * c + other * s;
}

static void add_score(const struct attn_case *a, struct scores *s, uint64_t q,
                      uint32_t h, uint32_t piece, uint64_t i,
                      const struct arithmetic *m)
{
    const uint32_t kv_head = h / (a->args.n_q_heads / a->args.n_kv_heads);
    const double scale = (double)a->args.scale;
    const double cap = (double)a->args.softcap;
    const double u = m->sum;
    const bool is_raw = (a->pieces[piece].flags & KVW_ATTN_RAW_KEYS) != 0;
    double product = 0;
    double magnitude = 0;
    double sum_k = 0;
    double sum_q = 0;
    double max_q = 0;

    for (uint32_t d = 0; d < a->args.head_dim_k; d++) {
        const double x = tensor_get(&a->q, q, h, d);
        double spread;
        product += x * key_at(a, piece, i, kv_head, d, &spread);
        magnitude += fabs(x) * spread;
        sum_k += spread;
        sum_q += fabs(x);
        max_q = fmax(max_q, fabs(x));
    }
    const double capped = cap > 0 ? cap * tanh(scale * product / cap) : scale * product;
    const double score = capped + (double)a->pieces[piece].bias;
    const double relative = gamma_of(a->args.head_dim_k + 8, u) + m->operand +
                            (is_raw ? m->operand * (1 + m->operand) : 0);
    const double delta =
        relative * fabs(scale) * magnitude + m->step / 2 * max_q * fabs(scale) * sum_k +
        m->flushed * (sum_k + 2 * fabs(scale) * sum_q + 2 * a->args.head_dim_k + 4) +
        8 * u * fabs(capped) + u * fabs(score);
    if (isinf(score) && score < 0)
        return; /* as if masked */
    s->piece[s->n] = piece;
    s->row[s->n] = i;
    s->score[s->n++] = score;
    s->delta_max = fmax(s->delta_max, delta);
}

static void scores_init(struct scores *s, const struct attn_case *a, uint64_t q,
                        uint32_t h, const struct arithmetic *m)
{
    const double u = m->sum;
    double max = (double)-INFINITY;
    double min = (double)INFINITY;
    double sum = 0;

    s->n = 0;
    s->delta_max = 0;
    for (uint32_t piece = 0; piece < a->args.n_pieces; piece++) {
        for (uint64_t i = 0; i < a->pieces[piece].n_rows; i++) {
            if (case_sees(a, q, piece, i))
                add_score(a, s, q, h, piece, i, m);
        }
    }
    const uint32_t n_rows = s->n;
    if (a->args.sink_logits != NULL) {
        s->piece[s->n] = PIECES_MAX;
        s->score[s->n++] = (double)a->sink_logits[h];
    }
    for (uint32_t j = 0; j < s->n; j++) {
        max = fmax(max, s->score[j]);
        min = fmin(min, s->score[j]);
    }
    for (uint32_t j = 0; j < s->n; j++) {
        s->weight[j] = exp(s->score[j] - max);
        sum += s->weight[j];
    }
    for (uint32_t j = 0; j < s->n; j++)
        s->weight[j] /= sum;
    s->lse = s->n == 0 ? (double)-INFINITY : max + log(sum);
    s->rest = gamma_of(8 * s->n + 30, u) + m->weight;
    if (s->n > 0)
        s->rest += 2 * u * (max - min);
    s->factor = expm1(2 * s->delta_max) + s->rest;
    s->n = n_rows;
}

/* times: how often the bound counts. */
static void check_out(const struct attn_case *a, struct check *c,
                      const struct scores *s, const struct arithmetic *m,
                      const char *claim, uint64_t q, uint32_t h, double times)
{
    const uint32_t kv_head = h / (a->args.n_q_heads / a->args.n_kv_heads);

    for (uint32_t d = 0; d < a->args.head_dim_v; d++) {
        const double got = tensor_get(&a->out, q, h, d);
        double want = 0;
        double spread = 0;
        double max = 0;
        for (uint32_t j = 0; j < s->n; j++) {
            const double x = case_value(a, s->piece[j], s->row[j], kv_head, d);
            want += s->weight[j] * x;
            spread += s->weight[j] * fabs(x);
            max = fmax(max, fabs(x));
        }
        const double relative = s->factor < 0.5
                                    ? 2 * s->factor / (1 - s->factor) * spread
                                    : 2 * max * (1 + s->rest);
        const double bound = times * relative + U_F32 * fabs(want) + 0x1p-149 +
                             s->n * 0x1p-126 * max + (3 * s->n + 3) * m->flushed;
        check_that(c, fabs(got - want) <= bound, claim,
                   "query %u head %u elem %u: %.9g, not %.9g +- %.2g", (unsigned)q, h,
                   d, got, want, bound);
    }
}

void case_check(struct attn_case *a, struct check *c, const struct kvw_attn_variant *v,
                const char *claim)
{
    const struct arithmetic m = arithmetic_of(v->name);
    const double u = m.sum;
    char what[256];
    static struct scores s; /* large */

    v->fn(&a->args);

    const struct attn_plan *p = &a->plan;
    snprintf(
        what, sizeof(what),
        "%s (nq %u heads %u/%u dk %u dv %u mask %u window %d sink %u kept %u past %u "
        "cap %d sinks %d raw %d fill %d)",
        claim, p->n_q, p->n_q_heads, p->n_kv_heads, p->head_dim_k, p->head_dim_v,
        p->mask, p->is_windowed, p->n_sink, p->n_kept, p->n_past, p->has_softcap,
        p->has_sink_logits, p->has_raw_keys, (int)p->fill);
    check_that(c, tensor_gaps_are_intact(&a->out), what, "out: writes beside");
    check_that(c, tensor_gaps_are_intact(&a->lse), what, "lse: writes beside");
    for (uint64_t q = 0; q < a->args.n_q; q++) {
        for (uint32_t h = 0; h < a->args.n_q_heads; h++) {
            scores_init(&s, a, q, h, &m);
            /* A bound that says nothing would be a check that checks nothing. */
            check_that(c, s.factor < 0.5 || p->fill == FILL_BIG, what, "vacuous bound");
            check_out(a, c, &s, &m, what, q, h, 1);
            const double lse = tensor_get(&a->lse, q, h, 0);
            /* Of an infinite lse a bound would say nothing: it must be that. */
            double bound = 0;
            if (isfinite(s.lse))
                bound = s.delta_max + 2 * s.factor + 4 * u * fabs(s.lse) +
                        U_F32 * fabs(s.lse) + 0x1p-149;
            check_that(c, lse == s.lse || fabs(lse - s.lse) <= bound, what,
                       "query %u head %u: lse %.9g, not %.9g +- %.2g", (unsigned)q, h,
                       lse, s.lse, bound);
        }
    }
}

void case_check_merged(const struct attn_case *a, struct check *c,
                       const struct kvw_attn_variant *v, const char *claim)
{
    const struct arithmetic m = arithmetic_of(v->name);
    static struct scores s; /* large */

    for (uint64_t q = 0; q < a->args.n_q; q++) {
        for (uint32_t h = 0; h < a->args.n_q_heads; h++) {
            scores_init(&s, a, q, h, &m);
            /* Of each lse twice e, and its rounding and that of exp, |lse| < 64 here. */
            s.factor += 64 * U_F32;
            check_out(a, c, &s, &m, claim, q, h, 3);
        }
    }
}
