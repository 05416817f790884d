/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frame of attention: everything but the arithmetic on vectors, see attn_micro.h.
 *
 * The (query, head) pairs of a KV head are its rows. A block of up to ROWS_MAX of them
 * stays in the L2 cache, with the sums of what they have seen so far, while tiles of keys
 * and values pass by: each tile is packed once for the whole block. Within a tile the
 * softmax is online (Milakov and Gimelshein, "Online normalizer calculation for softmax",
 * arXiv 1805.02867; Dao, "FlashAttention-2", arXiv 2307.08691, section 3.1).
 *
 * Tiles are joined to parts, and parts, which have sums of their own, to the result, in
 * order. Parts may be computed by several threads: the result is the same, because one
 * thread joins them just so.
 */
#include <math.h>
#include <string.h>

#include "kernels/attn_tile.h"
#include "kernels/rows.h"

#define LOG2_E 1.4426950408889634
#define LN_2 0.6931471805599453
#define ROWS_MAX 504u     /* of a block; a multiple of all micro->rows */
#define FLOATS_MAX 65536u /* of a tile, of a block's queries, of its sums */
#define PAD 2112u /* floats: rows of a micro-tile that are there to fill it, etc. */

/* What a call needs that no thread changes. */
struct frame {
    const struct kvw_attn_args *args;
    const struct attn_micro *micro;
    struct attn_shape shape;
    uint32_t group;    /* query heads of a KV head */
    uint32_t block;    /* rows of a block */
    uint64_t n_rows;   /* of a KV head */
    uint32_t n_blocks; /* of a KV head */
};

/* Rows of one KV head at work, and what a thread needs for them. */
struct block {
    const struct frame *frame;
    uint32_t kv_head;
    uint32_t n;
    uint64_t first; /* of its rows */
    struct attn_tile tile;
    struct attn_sight sight[ROWS_MAX + 16];
    float max[ROWS_MAX + 16]; /* of the part, of base 2 */
    float sum[ROWS_MAX + 16];
    float max_all[ROWS_MAX]; /* of the parts before */
    float sum_all[ROWS_MAX];
    float q_scale[ROWS_MAX + 16];
    int32_t q_sum[ROWS_MAX + 16];
    _Alignas(64) float sums[FLOATS_MAX + PAD]; /* of the part */
    _Alignas(64) uint32_t q[FLOATS_MAX + PAD];
    _Alignas(64) uint32_t kv[FLOATS_MAX + PAD];
    _Alignas(64) float score[ATTN_ROWS * ATTN_PITCH];
    _Alignas(
        64) uint16_t weight[ATTN_ROWS * ATTN_PITCH]; /* where scores are not reused */
};

_Static_assert(sizeof(struct block) < 960 * 1024, "a thread's stack: see kernels.h");

static uint32_t rounded_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static void frame_init(struct frame *f, const struct kvw_attn_args *args,
                       const struct attn_micro *micro)
{
    const uint32_t dk = rounded_up(args->head_dim_k, 16);
    const uint32_t dv = rounded_up(args->head_dim_v, 16);
    const uint32_t widest = dk > dv ? dk : dv;
    uint32_t n_slots = ATTN_TILE;
    uint32_t block = ROWS_MAX;

    while (n_slots > 32 && n_slots * (dk + dv) > FLOATS_MAX)
        n_slots /= 2;
    /* A last micro-tile is filled up with rows that nobody asked for. */
    if ((block + ATTN_ROWS) * widest > FLOATS_MAX)
        block = (FLOATS_MAX / widest - ATTN_ROWS) / micro->rows * micro->rows;
    *f = (struct frame){
        .args = args,
        .micro = micro,
        .shape = {.head_dim_k = args->head_dim_k,
                  .head_dim_v = args->head_dim_v,
                  .kv_type = args->kv_type,
                  .n_slots = n_slots,
                  .units = rounded_up(args->head_dim_k, micro->pack) / micro->pack,
                  .v_pitch = rounded_up(args->head_dim_v, micro->lanes),
                  .cap = (float)((double)args->softcap * LOG2_E),
                  .rope = args->rope},
        .group = args->n_q_heads / args->n_kv_heads,
        .block = block,
    };
    f->n_rows = (uint64_t)args->n_q * f->group;
    f->n_blocks = (uint32_t)((f->n_rows + block - 1) / block);
}

static uint32_t query_of(const struct block *b, uint32_t row)
{
    return (uint32_t)((b->first + row) / b->frame->group);
}

static uint32_t head_of(const struct block *b, uint32_t row)
{
    return b->kv_head * b->frame->group +
           (uint32_t)((b->first + row) % b->frame->group);
}

/* Rows of the micro-tile that begins at row, as computed. */
static uint32_t rows_at(const struct block *b, uint32_t row)
{
    const uint32_t left = b->n - row;
    const struct attn_micro *m = b->frame->micro;

    return m->rows_for(left < m->rows ? left : m->rows);
}

static uint32_t *queries_at(struct block *b, uint32_t row)
{
    return b->q + (size_t)row * b->frame->shape.units;
}

static void block_init(struct block *b, const struct frame *f, uint32_t kv_head,
                       uint32_t index)
{
    const struct kvw_attn_args *args = f->args;
    const uint64_t first = (uint64_t)index * f->block;
    const uint64_t left = f->n_rows - first;

    b->frame = f;
    b->kv_head = kv_head;
    b->first = first;
    b->n = left < f->block ? (uint32_t)left : f->block;
    for (uint32_t row = 0; row < b->n; row++)
        b->sight[row] = attn_sight_of(args, query_of(b, row));
    for (uint32_t row = 0; row < b->n; row += f->micro->rows) {
        const float *queries[ATTN_ROWS];
        const uint32_t n_rows = rows_at(b, row);
        const uint32_t n = b->n - row < n_rows ? b->n - row : n_rows;
        for (uint32_t i = 0; i < n; i++)
            queries[i] = row_in(args->q, query_of(b, row + i), args->q_row_stride,
                                head_of(b, row + i), args->q_head_stride);
        f->micro->pack_q(queries_at(b, row), queries, n, n_rows, &f->shape,
                         (double)args->scale * LOG2_E, &b->q_scale[row],
                         &b->q_sum[row]);
    }
}

static void part_init(struct block *b)
{
    for (uint32_t row = 0; row < b->n + ATTN_ROWS; row++) {
        b->max[row] = -INFINITY;
        b->sum[row] = 0;
    }
    memset(b->sums, 0,
           (size_t)(b->n + ATTN_ROWS) * b->frame->shape.v_pitch * sizeof(b->sums[0]));
}

/* Whether a row of [row, row + n) sees a row of the tile, as far as ends tell: sights go
 * up with the rows. */
static bool is_seen_by_some(const struct block *b, uint32_t row, uint32_t n)
{
    const struct attn_tile *t = &b->tile;
    const uint64_t first = t->first_row + t->begin;

    if (!t->is_numbered)
        return true;
    return first < b->sight[row + n - 1].end &&
           (first < b->frame->args->sink_rows ||
            t->first_row + t->end > b->sight[row].lo);
}

/* Whether each row of [row, row + n) sees all slots [begin, end). */
static bool is_seen_by_all(const struct block *b, uint32_t row, uint32_t n,
                           uint32_t begin, uint32_t end)
{
    const struct attn_tile *t = &b->tile;

    if (t->begin > begin || t->end < end)
        return false;
    for (uint32_t slot = begin; slot < end; slot += 32) {
        if ((uint32_t)(t->filled[slot / 64] >> (slot % 64)) != UINT32_MAX)
            return false;
    }
    if (!t->is_numbered)
        return true;
    return t->first_row + end <= b->sight[row].end &&
           (t->first_row + end <= b->frame->args->sink_rows ||
            t->first_row + begin >= b->sight[row + n - 1].lo);
}

static uint32_t *values_of(struct block *b)
{
    return b->kv + (size_t)b->frame->shape.n_slots * b->frame->shape.units;
}

/* Rows [row, row + n) against the packed slots [begin, end) of the tile. */
static void take_micro_tile(struct block *b, uint32_t row, uint32_t n, uint32_t begin,
                            uint32_t end)
{
    const struct frame *f = b->frame;
    const struct attn_micro *m = f->micro;
    const uint32_t n_rows = rows_at(b, row);
    uint64_t seen[ATTN_ROWS][ATTN_WORDS] = {{0}};
    float keep[ATTN_ROWS + 4];
    float take[ATTN_ROWS + 4];
    struct attn_weigh weigh = {
        .score = b->score,
        .weight = m->v_bytes == sizeof(float) ? (void *)b->score : (void *)b->weight,
        .tile = &b->tile,
        .shape = &f->shape,
        .n_rows = n_rows,
        .begin = begin,
        .end = end,
    };

    if (!is_seen_by_all(b, row, n, begin, end)) {
        for (uint32_t i = 0; i < n; i++)
            attn_tile_seen(seen[i], &b->tile, &b->sight[row + i], f->args->sink_rows);
        weigh.seen = (const uint64_t(*)[ATTN_WORDS])seen;
    }
    m->score(b->score + begin,
             &(struct attn_queries){.q = queries_at(b, row),
                                    .scale = &b->q_scale[row],
                                    .sum = &b->q_sum[row],
                                    .n_rows = n_rows},
             b->kv + (size_t)begin * f->shape.units, (end - begin) / m->lanes,
             &f->shape);
    m->weigh(&weigh);
    m->join(&b->max[row], &b->sum[row], &weigh, keep, take);
    m->value(&(struct attn_value){.weight = weigh.weight,
                                  .v = values_of(b),
                                  .sums = b->sums + (size_t)row * f->shape.v_pitch,
                                  .shape = &f->shape,
                                  .keep = keep,
                                  .take = take,
                                  .n_rows = n_rows,
                                  .begin = begin,
                                  .end = end});
}

static void take_tile(struct block *b)
{
    const struct frame *f = b->frame;
    const struct attn_micro *m = f->micro;
    const uint32_t begin = b->tile.begin / 32 * 32;
    const uint32_t end = rounded_up(b->tile.end, 32);

    if (!is_seen_by_some(b, 0, b->n))
        return;
    for (uint32_t slot = begin; slot < end; slot += m->lanes)
        m->pack_k(b->kv + (size_t)slot * f->shape.units, &b->tile, slot, &f->shape);
    m->pack_v(values_of(b), &b->tile, begin, end, &f->shape);
    for (uint32_t row = 0; row < b->n; row += m->rows) {
        const uint32_t n = b->n - row < m->rows ? b->n - row : m->rows;
        if (is_seen_by_some(b, row, n))
            take_micro_tile(b, row, n, begin, end);
    }
}

/* The part at the cursor, which moves behind it. */
static void take_part(struct block *b, struct attn_cursor *cursor)
{
    const struct frame *f = b->frame;
    const uint32_t n_slots = f->shape.n_slots;
    const struct attn_place here = attn_cursor_place(cursor, f->args, n_slots);
    struct attn_place place = here;

    part_init(b);
    while (attn_places_share_part(&here, &place, n_slots)) {
        attn_cursor_take(cursor, f->args, &f->shape, b->kv_head, &b->tile);
        take_tile(b);
        place = attn_cursor_place(cursor, f->args, n_slots);
    }
}

/* Join a row of a part to what the parts before gave, which is kept in out. */
static void join_part(struct block *b, uint32_t row, const float *sums, float max,
                      float sum)
{
    const struct kvw_attn_args *args = b->frame->args;
    float *out = row_out(args->out, query_of(b, row), args->out_row_stride,
                         head_of(b, row), args->out_head_stride);
    const float top = max > b->max_all[row] ? max : b->max_all[row];
    const float keep = (float)exp2((double)b->max_all[row] - (double)top);
    const float take = (float)exp2((double)max - (double)top);

    if (sum == 0)
        return;
    if (b->sum_all[row] == 0) {
        memcpy(out, sums, args->head_dim_v * sizeof(*out));
        b->max_all[row] = max;
        b->sum_all[row] = sum;
        return;
    }
    for (uint32_t d = 0; d < args->head_dim_v; d++)
        out[d] = out[d] * keep + sums[d] * take;
    b->sum_all[row] = b->sum_all[row] * keep + sum * take;
    b->max_all[row] = top;
}

/* Take the sink logit in, divide by the sum, and write lse. */
static void finish_row(struct block *b, uint32_t row)
{
    const struct kvw_attn_args *args = b->frame->args;
    const uint32_t query = query_of(b, row);
    const uint32_t head = head_of(b, row);
    float *out =
        row_out(args->out, query, args->out_row_stride, head, args->out_head_stride);
    double max = (double)b->max_all[row];
    double sum = (double)b->sum_all[row];
    double keep = 1;

    if (args->sink_logits != NULL && args->sink_logits[head] != -INFINITY) {
        const double sink = (double)args->sink_logits[head] * LOG2_E;
        const double top = sink > max ? sink : max;
        keep = sum == 0 ? 0 : exp2(max - top);
        sum = sum * keep + exp2(sink - top);
        max = top;
    }
    if (b->sum_all[row] == 0)
        memset(out, 0, args->head_dim_v * sizeof(*out));
    const float factor = (float)keep;
    const float total = (float)sum;
    for (uint32_t d = 0; d < args->head_dim_v && sum != 0; d++)
        out[d] = out[d] * factor / total;
    if (args->lse != NULL) {
        float *lse = row_out(args->lse, query, args->lse_row_stride, head,
                             args->lse_head_stride);
        *lse = sum == 0 ? -INFINITY : (float)((max + log2(sum)) * LN_2);
    }
}

/* All parts of a block, one after the other. */
static void run_block(const struct frame *f, uint32_t kv_head, uint32_t index)
{
    struct attn_cursor cursor = {0};
    struct block b; /* large: only what is needed is touched */

    block_init(&b, f, kv_head, index);
    for (uint32_t row = 0; row < b.n; row++) {
        b.max_all[row] = -INFINITY;
        b.sum_all[row] = 0;
    }
    while (!attn_cursor_place(&cursor, f->args, f->shape.n_slots).is_end) {
        take_part(&b, &cursor);
        for (uint32_t row = 0; row < b.n; row++)
            join_part(&b, row, b.sums + (size_t)row * f->shape.v_pitch, b.max[row],
                      b.sum[row]);
    }
    for (uint32_t row = 0; row < b.n; row++)
        finish_row(&b, row);
}

void attn_frame_run(const struct kvw_attn_args *args, const struct attn_micro *micro)
{
    struct frame f;

    if (args->n_q == 0)
        return;
    frame_init(&f, args, micro);

    const uint64_t n_jobs = (uint64_t)f.n_blocks * args->n_kv_heads;
    for (uint64_t job = 0; job < n_jobs; job++)
        run_block(&f, (uint32_t)(job / f.n_blocks), (uint32_t)(job % f.n_blocks));
}
