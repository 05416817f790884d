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

#define PARTS_MAX 64u        /* results of parts that are kept at a time */
#define RESULT_FLOATS 65536u /* of all of them */
#define THREADS_MAX 1024

/* What a call needs that no thread changes. */
struct frame {
    const struct kvw_attn_args *args;
    const struct attn_micro *micro;
    struct attn_shape shape;
    uint32_t group;    /* query heads of a KV head */
    uint32_t block;    /* rows of a block */
    uint64_t n_rows;   /* of a KV head */
    uint32_t n_blocks; /* of a KV head */
    int n_threads;
};

/* Some rows of one KV head, and what the parts so far gave: of base 2. */
struct total {
    const struct frame *frame;
    uint32_t kv_head;
    uint32_t n;
    uint64_t first; /* of the rows */
    float max[ROWS_MAX];
    float sum[ROWS_MAX];
};

/* Rows at work, and what a thread needs for them. */
struct block {
    const struct frame *frame;
    uint32_t kv_head;
    uint32_t n;
    struct total total;
    struct attn_tile tile;
    struct attn_sight sight[ROWS_MAX + 16];
    float max[ROWS_MAX + 16]; /* of the part, of base 2 */
    float sum[ROWS_MAX + 16];
    float q_scale[ROWS_MAX + 16];
    int32_t q_sum[ROWS_MAX + 16];
    float keep[ATTN_ROWS + 4]; /* of the micro-tile at work */
    float take[ATTN_ROWS + 4];
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
        .n_threads = args->n_threads < THREADS_MAX ? (int)args->n_threads : THREADS_MAX,
    };
    f->n_rows = (uint64_t)args->n_q * f->group;
}

static uint32_t query_of(const struct total *t, uint32_t row)
{
    return (uint32_t)((t->first + row) / t->frame->group);
}

static uint32_t head_of(const struct total *t, uint32_t row)
{
    return t->kv_head * t->frame->group +
           (uint32_t)((t->first + row) % t->frame->group);
}

static void total_init(struct total *t, const struct frame *f, uint32_t kv_head,
                       uint32_t index)
{
    const uint64_t left = f->n_rows - (uint64_t)index * f->block;

    t->frame = f;
    t->kv_head = kv_head;
    t->first = (uint64_t)index * f->block;
    t->n = left < f->block ? (uint32_t)left : f->block;
    for (uint32_t row = 0; row < t->n; row++) {
        t->max[row] = -INFINITY;
        t->sum[row] = 0;
    }
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

    total_init(&b->total, f, kv_head, index);
    b->frame = f;
    b->kv_head = kv_head;
    b->n = b->total.n;
    for (uint32_t row = 0; row < b->n; row++)
        b->sight[row] = attn_sight_of(args, query_of(&b->total, row));
    for (uint32_t row = 0; row < b->n; row += f->micro->rows) {
        const float *queries[ATTN_ROWS];
        const uint32_t n_rows = rows_at(b, row);
        const uint32_t n = b->n - row < n_rows ? b->n - row : n_rows;
        for (uint32_t i = 0; i < n; i++)
            queries[i] =
                row_in(args->q, query_of(&b->total, row + i), args->q_row_stride,
                       head_of(&b->total, row + i), args->q_head_stride);
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

/* A micro-tile at work: rows [row, row + n) against slots [begin, end). */
struct job {
    uint32_t row;
    uint32_t n;
    uint32_t begin;
    uint32_t end;
};

static struct attn_queries queries_of(struct block *b, uint32_t row)
{
    return (struct attn_queries){.q = queries_at(b, row),
                                 .scale = &b->q_scale[row],
                                 .sum = &b->q_sum[row],
                                 .n_rows = rows_at(b, row)};
}

static void score_slots(struct block *b, const struct attn_queries *queries,
                        uint32_t begin, uint32_t end)
{
    const struct frame *f = b->frame;

    f->micro->score(b->score + begin, queries, b->kv, (end - begin) / f->micro->lanes,
                    &f->shape);
}

/* Turn scores into weights, and say what sums of before and products count. */
static void weigh_slots(struct block *b, const struct job *j, struct attn_value *value)
{
    const struct frame *f = b->frame;
    const bool is_reused = f->micro->v_bytes == sizeof(float);
    uint64_t seen[ATTN_ROWS][ATTN_WORDS] = {{0}};
    struct attn_weigh weigh = {
        .score = b->score,
        .weight = is_reused ? (void *)b->score : (void *)b->weight,
        .tile = &b->tile,
        .shape = &f->shape,
        .n_rows = rows_at(b, j->row),
        .begin = j->begin,
        .end = j->end,
    };

    if (!is_seen_by_all(b, j->row, j->n, j->begin, j->end)) {
        for (uint32_t i = 0; i < j->n; i++)
            attn_tile_seen(seen[i], &b->tile, &b->sight[j->row + i],
                           f->args->sink_rows);
        weigh.seen = (const uint64_t(*)[ATTN_WORDS])seen;
    }
    f->micro->weigh(&weigh);
    f->micro->join(&b->max[j->row], &b->sum[j->row], &weigh, b->keep, b->take);
    *value = (struct attn_value){
        .weight = weigh.weight,
        .tile = &b->tile,
        .v = b->kv + (size_t)f->shape.n_slots * f->shape.units,
        .sums = b->sums + (size_t)j->row * f->shape.v_pitch,
        .shape = &f->shape,
        .keep = b->keep,
        .take = b->take,
        .partial = b->sums + (size_t)ATTN_ROWS * f->shape.v_pitch,
        .n_rows = weigh.n_rows,
        .begin = j->begin,
        .end = j->end,
        .v_slots = j->end - j->begin + 2,
    };
}

static void pack_keys(struct block *b, uint32_t begin, uint32_t end)
{
    const struct frame *f = b->frame;

    for (uint32_t slot = begin; slot < end; slot += f->micro->lanes)
        f->micro->pack_k(b->kv + (size_t)(slot - begin) * f->shape.units, &b->tile,
                         slot, &f->shape);
}

static void pack_values(struct block *b, uint32_t begin, uint32_t end)
{
    const struct frame *f = b->frame;

    f->micro->pack_v(b->kv + (size_t)f->shape.n_slots * f->shape.units, &b->tile, begin,
                     end, end - begin + 2, &f->shape);
}

/* Many rows: pack the tile once, then one micro-tile after the other. */
static void take_tile_by_rows(struct block *b, uint32_t begin, uint32_t end)
{
    const uint32_t rows = b->frame->micro->rows;

    pack_keys(b, begin, end);
    pack_values(b, begin, end);
    for (uint32_t row = 0; row < b->n; row += rows) {
        const uint32_t n = b->n - row < rows ? b->n - row : rows;
        const struct job job = {.row = row, .n = n, .begin = begin, .end = end};
        struct attn_value value;
        if (!is_seen_by_some(b, row, n))
            continue;
        const struct attn_queries queries = queries_of(b, row);
        score_slots(b, &queries, begin, end);
        weigh_slots(b, &job, &value);
        b->frame->micro->value(&value);
    }
}

/* Slots whose values are read once for each few columns: 16 KiB stay in the L1 cache. */
static uint32_t slots_at_once(const struct attn_shape *shape)
{
    const bool is_i8 = shape->kv_type == KVW_NUM_I8;
    const uint32_t bytes = shape->kv_type == KVW_NUM_F32 ? 4 : is_i8 ? 1 : 2;
    const uint32_t n = 16384 / (bytes * shape->head_dim_v) / 32 * 32;

    return n > 32 ? n : 32;
}

static void score_few(struct block *b, uint32_t begin, uint32_t end)
{
    const struct frame *f = b->frame;
    const struct attn_queries queries = queries_of(b, 0);

    if (f->micro->score_few != NULL &&
        f->micro->score_few(b->score, &queries, &b->tile,
                            &(struct attn_span){begin, end}, &f->shape))
        return;
    for (uint32_t slot = begin; slot < end; slot += 32) {
        pack_keys(b, slot, slot + 32);
        score_slots(b, &queries, slot, slot + 32);
    }
}

/* One micro-tile: rows are read where they are, or a few at a time are packed and used
 * while they lie in the L1 cache. */
static void take_tile_by_slots(struct block *b, uint32_t begin, uint32_t end)
{
    const struct job job = {.row = 0, .n = b->n, .begin = begin, .end = end};
    const struct attn_micro *micro = b->frame->micro;
    const uint32_t step = slots_at_once(&b->frame->shape);
    struct attn_value value;

    score_few(b, begin, end);
    weigh_slots(b, &job, &value);
    value.is_split = true;
    for (uint32_t slot = begin; slot < end; slot += step) {
        value.begin = slot;
        value.end = end - slot < step ? end : slot + step;
        value.is_first = slot == begin;
        micro->value_few(&value);
    }
    if (micro->settle(&value))
        return;
    pack_values(b, begin, end);
    value.is_split = false;
    value.begin = begin;
    value.v_slots = end - begin + 2;
    micro->value(&value);
}

static void take_tile(struct block *b)
{
    const uint32_t begin = b->tile.begin / 32 * 32;
    const uint32_t end = rounded_up(b->tile.end, 32);

    if (!is_seen_by_some(b, 0, b->n))
        return;
    if (b->n <= b->frame->micro->rows)
        take_tile_by_slots(b, begin, end);
    else
        take_tile_by_rows(b, begin, end);
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
static void join_part(struct total *t, uint32_t row, const float *sums, float max,
                      float sum)
{
    const struct kvw_attn_args *args = t->frame->args;
    float *out = row_out(args->out, query_of(t, row), args->out_row_stride,
                         head_of(t, row), args->out_head_stride);
    const float top = max > t->max[row] ? max : t->max[row];
    const float keep = (float)exp2((double)t->max[row] - (double)top);
    const float take = (float)exp2((double)max - (double)top);

    if (sum == 0)
        return;
    if (t->sum[row] == 0) {
        memcpy(out, sums, args->head_dim_v * sizeof(*out));
        t->max[row] = max;
        t->sum[row] = sum;
        return;
    }
    for (uint32_t d = 0; d < args->head_dim_v; d++)
        out[d] = out[d] * keep + sums[d] * take;
    t->sum[row] = t->sum[row] * keep + sum * take;
    t->max[row] = top;
}

/* Take the sink logit in, divide by the sum, and write lse. */
static void finish_row(struct total *t, uint32_t row)
{
    const struct kvw_attn_args *args = t->frame->args;
    const uint32_t query = query_of(t, row);
    const uint32_t head = head_of(t, row);
    float *out =
        row_out(args->out, query, args->out_row_stride, head, args->out_head_stride);
    double max = (double)t->max[row];
    double sum = (double)t->sum[row];
    double keep = 1;

    if (args->sink_logits != NULL && args->sink_logits[head] != -INFINITY) {
        const double sink = (double)args->sink_logits[head] * LOG2_E;
        const double top = sink > max ? sink : max;
        keep = sum == 0 ? 0 : exp2(max - top);
        sum = sum * keep + exp2(sink - top);
        max = top;
    }
    if (t->sum[row] == 0)
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
    while (!attn_cursor_place(&cursor, f->args, f->shape.n_slots).is_end) {
        take_part(&b, &cursor);
        for (uint32_t row = 0; row < b.n; row++)
            join_part(&b.total, row, b.sums + (size_t)row * f->shape.v_pitch,
                      b.max[row], b.sum[row]);
    }
    for (uint32_t row = 0; row < b.n; row++)
        finish_row(&b.total, row);
}

/* Results of some parts of one block, to be joined in order. */
struct results {
    struct attn_cursor cursor[PARTS_MAX];
    uint32_t n;
    uint32_t n_max;                           /* that fit into floats */
    _Alignas(64) float floats[RESULT_FLOATS]; /* of each part: sums, max, sum */
};

/* Where the next parts begin; the cursor moves behind them. */
static void results_plan(struct results *r, const struct frame *f,
                         struct attn_cursor *cursor)
{
    const uint32_t n_slots = f->shape.n_slots;
    struct attn_place place = attn_cursor_place(cursor, f->args, n_slots);

    for (r->n = 0; r->n < r->n_max && !place.is_end; r->n++) {
        const struct attn_place here = place;
        r->cursor[r->n] = *cursor;
        while (attn_places_share_part(&here, &place, n_slots)) {
            attn_cursor_take(cursor, f->args, &f->shape, 0, NULL);
            place = attn_cursor_place(cursor, f->args, n_slots);
        }
    }
}

static void run_part(const struct frame *f, uint32_t kv_head, uint32_t index,
                     struct attn_cursor cursor, float *result)
{
    struct block b; /* large: only what is needed is touched */

    block_init(&b, f, kv_head, index);
    take_part(&b, &cursor);
    const size_t n_sums = (size_t)b.n * f->shape.v_pitch;
    memcpy(result, b.sums, n_sums * sizeof(*result));
    memcpy(result + n_sums, b.max, b.n * sizeof(*result));
    memcpy(result + n_sums + b.n, b.sum, b.n * sizeof(*result));
}

/* The parts of a block by several threads, as many at a time as results has room for. */
static void run_block_by_parts(const struct frame *f, struct results *r,
                               uint32_t kv_head, uint32_t index)
{
    struct attn_cursor cursor = {0};
    const uint32_t pitch = f->shape.v_pitch;
    const size_t stride = RESULT_FLOATS / r->n_max;
    struct total total;

    total_init(&total, f, kv_head, index);
    for (results_plan(r, f, &cursor); r->n > 0; results_plan(r, f, &cursor)) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(f->n_threads)
        for (uint32_t part = 0; part < r->n; part++)
            run_part(f, kv_head, index, r->cursor[part], r->floats + part * stride);
        for (uint32_t part = 0; part < r->n; part++) {
            const float *sums = r->floats + part * stride;
            const float *max = sums + (size_t)total.n * pitch;
            for (uint32_t row = 0; row < total.n; row++)
                join_part(&total, row, sums + (size_t)row * pitch, max[row],
                          max[total.n + row]);
        }
    }
    for (uint32_t row = 0; row < total.n; row++)
        finish_row(&total, row);
}

/* Few rows, and fewer heads than would keep the threads busy. */
static void run_by_parts(const struct frame *f, uint32_t n_max)
{
    struct results r;

    r.n_max = n_max;
    for (uint32_t kv_head = 0; kv_head < f->args->n_kv_heads; kv_head++)
        run_block_by_parts(f, &r, kv_head, 0);
}

static void run_by_blocks(const struct frame *f)
{
    const uint64_t n_jobs = (uint64_t)f->n_blocks * f->args->n_kv_heads;

    if (f->n_threads <= 1) {
        for (uint64_t job = 0; job < n_jobs; job++)
            run_block(f, (uint32_t)(job / f->n_blocks), (uint32_t)(job % f->n_blocks));
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(f->n_threads)
    for (uint64_t job = 0; job < n_jobs; job++)
        run_block(f, (uint32_t)(job / f->n_blocks), (uint32_t)(job % f->n_blocks));
}

/* Smaller blocks where there are too few to share out. */
static void frame_divide(struct frame *f)
{
    const uint32_t step = f->micro->rows;

    for (;;) {
        f->n_blocks = (uint32_t)((f->n_rows + f->block - 1) / f->block);
        if ((uint64_t)f->n_blocks * f->args->n_kv_heads >= 4 * (uint64_t)f->n_threads ||
            f->n_threads <= 1 || f->block < 8 * step)
            return;
        f->block = rounded_up(f->block / 2, step);
    }
}

void attn_frame_run(const struct kvw_attn_args *args, const struct attn_micro *micro)
{
    struct frame f;

    if (args->n_q == 0)
        return;
    frame_init(&f, args, micro);
    frame_divide(&f);

    const uint64_t n_jobs = (uint64_t)f.n_blocks * args->n_kv_heads;
    const uint64_t n_floats = f.n_rows * (f.shape.v_pitch + 2);
    if (f.n_threads > 1 && n_jobs < 4 * (uint64_t)f.n_threads &&
        n_jobs % (uint64_t)f.n_threads != 0 && f.n_blocks == 1 &&
        n_floats <= RESULT_FLOATS / 2) {
        const uint32_t n_max = (uint32_t)(RESULT_FLOATS / n_floats);
        run_by_parts(&f, n_max < PARTS_MAX ? n_max : PARTS_MAX);
        return;
    }
    run_by_blocks(&f);
}
