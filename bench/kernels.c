/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by the variants that this CPU chooses, beside what the CPU can do at most:
 * for a chunk of queries, as many multiplications in registers; for one query (decode),
 * reading the same keys and values once. The ratio is time over the floor's time, so its
 * inverse is the share of the peak or of the bandwidth. Where bf16 or int8 rows are
 * multiplied by other instructions than floats, the floor is that of the instruction.
 */
#include "bench/kernels.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <kvwheel/kernels.h>

#define PIECES_MAX 3u
#define PAGE_BYTES ((size_t)2 << 20)

/* The shape of a call. Rows of a head lie together, heads after each other. */
struct shape {
    uint32_t n_q;
    uint32_t n_q_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t n_rows;
};

struct call {
    struct shape shape;
    uint32_t type;
    size_t plane_bytes;
    void *k;
    void *v;
    float *scales; /* of I8 */
    float *q;
    float *out;
    struct kvw_attn_piece piece[PIECES_MAX];
    struct kvw_attn_args args;
    double flops;
};

/* A variant of a comparison: a call with other threads or pieces. */
struct turn {
    const struct call *call;
    struct kvw_attn_args args;
    struct kvw_attn_piece piece[PIECES_MAX];
};

static size_t bytes_of(uint32_t type)
{
    if (type == KVW_NUM_F32)
        return 4;
    return type == KVW_NUM_I8 ? 1 : 2;
}

static void *allocate(size_t n_bytes)
{
    const size_t rounded = (n_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    void *memory = aligned_alloc(PAGE_BYTES, rounded);

    if (memory != NULL)
        (void)madvise(memory, rounded, MADV_HUGEPAGE);
    return memory;
}

/* Numbers of about -1 .. 1 of any type, by the library's own conversion. */
static int fill(void *to, uint32_t type, size_t n)
{
    float part[1024];
    uint32_t state = 1;

    for (size_t at = 0; at < n; at += 1024) {
        const size_t left = n - at < 1024 ? n - at : 1024;
        float scale;
        for (size_t i = 0; i < left; i++) {
            state = state * 1664525u + 1013904223u;
            part[i] = (float)(int32_t)state * 0x1p-31f;
        }
        int error = kvw_rows_convert(&(struct kvw_convert_args){
            .src = part,
            .dst = (char *)to + at * bytes_of(type),
            .n_rows = 1,
            .n_heads = 1,
            .n_elems = (uint32_t)left,
            .src_type = KVW_NUM_F32,
            .dst_type = type,
            .scales = type == KVW_NUM_I8 ? &scale : NULL,
        });
        if (error != 0)
            return error;
    }
    return 0;
}

static void call_fini(struct call *c)
{
    free(c->k);
    free(c->v);
    free(c->scales);
    free(c->q);
    free(c->out);
}

static void call_bind(struct call *c)
{
    const struct shape *s = &c->shape;
    const ptrdiff_t row_bytes = (ptrdiff_t)(s->head_dim * bytes_of(c->type));
    const ptrdiff_t q_bytes = (ptrdiff_t)(s->head_dim * sizeof(float));

    c->piece[0] = (struct kvw_attn_piece){
        .k = c->k,
        .v = c->v,
        .k_row_stride = row_bytes,
        .v_row_stride = row_bytes,
        .k_head_stride = row_bytes * (ptrdiff_t)s->n_rows,
        .v_head_stride = row_bytes * (ptrdiff_t)s->n_rows,
        .n_rows = s->n_rows,
    };
    if (c->type == KVW_NUM_I8) {
        c->piece[0].k_scales = c->scales;
        c->piece[0].v_scales = c->scales;
        c->piece[0].k_scales_row_stride = 4;
        c->piece[0].v_scales_row_stride = 4;
    }
    c->args = (struct kvw_attn_args){
        .q = c->q,
        .q_row_stride = q_bytes * (ptrdiff_t)s->n_q_heads,
        .q_head_stride = q_bytes,
        .n_q = s->n_q,
        .n_q_heads = s->n_q_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim_k = s->head_dim,
        .head_dim_v = s->head_dim,
        .kv_type = c->type,
        .pieces = c->piece,
        .n_pieces = 1,
        .scale = (float)(1 / sqrt(s->head_dim)),
        .out = c->out,
        .out_row_stride = q_bytes * (ptrdiff_t)s->n_q_heads,
        .out_head_stride = q_bytes,
        .n_threads = 1,
    };
}

static int call_init(struct call *c, const struct shape *shape, uint32_t type)
{
    const size_t n = (size_t)shape->n_rows * shape->n_kv_heads * shape->head_dim;
    const size_t n_q = (size_t)shape->n_q * shape->n_q_heads * shape->head_dim;

    *c =
        (struct call){.shape = *shape, .type = type, .plane_bytes = n * bytes_of(type)};
    c->flops = 4.0 * (double)n_q * shape->n_rows;
    c->k = allocate(c->plane_bytes);
    c->v = allocate(c->plane_bytes);
    c->scales = allocate(shape->n_rows * sizeof(float));
    c->q = allocate(n_q * sizeof(float));
    c->out = allocate(n_q * sizeof(float));
    if (c->k == NULL || c->v == NULL || c->scales == NULL || c->q == NULL ||
        c->out == NULL)
        return -ENOMEM;
    memset(c->out, 0, n_q * sizeof(float));
    for (uint32_t i = 0; i < shape->n_rows; i++)
        c->scales[i] = 1.0f / 127;
    int error = fill(c->k, type, n);
    if (error == 0)
        error = fill(c->v, type, n);
    if (error == 0)
        error = fill(c->q, KVW_NUM_F32, n_q);
    call_bind(c);
    return error;
}

static struct turn turn_of(const struct call *c, uint32_t n_threads)
{
    struct turn t = {.call = c, .args = c->args};

    memcpy(t.piece, c->piece, sizeof(t.piece));
    t.args.n_threads = n_threads;
    return t;
}

/* ---------------------------------------------------------------- variants ------ */

static int run_attention(void *context, struct bench_samples *samples)
{
    struct turn *turn = context;

    turn->args.pieces = turn->piece;
    const uint64_t begun = bench_now_ns();
    int error = kvw_attn_run(&turn->args);
    bench_add(samples, bench_now_ns() - begun, 1);
    return error;
}

static int run_peak_f32(void *context, struct bench_samples *samples)
{
    const struct turn *turn = context;
    const uint64_t begun = bench_now_ns();

    kernels_peak_f32(turn->call->flops);
    bench_add(samples, bench_now_ns() - begun, 1);
    return 0;
}

static int run_peak_bf16(void *context, struct bench_samples *samples)
{
    const struct turn *turn = context;
    const uint64_t begun = bench_now_ns();

    kernels_peak_bf16(turn->call->flops);
    bench_add(samples, bench_now_ns() - begun, 1);
    return 0;
}

static int run_read(void *context, struct bench_samples *samples)
{
    const struct turn *turn = context;
    const uint64_t begun = bench_now_ns();

    kernels_read(turn->call->k, turn->call->plane_bytes);
    kernels_read(turn->call->v, turn->call->plane_bytes);
    bench_add(samples, bench_now_ns() - begun, 1);
    return 0;
}

/* ------------------------------------------------------------- comparisons ------ */

static const uint32_t types[] = {KVW_NUM_F32, KVW_NUM_BF16, KVW_NUM_F16, KVW_NUM_I8};

#define N_TYPES (sizeof types / sizeof types[0])

static int compare_chunk(struct bench *bench, const char *group, uint32_t head_dim)
{
    static const char *const names[] = {"f32", "bf16", "f16", "int8"};
    const struct shape shape = {1512, 1, 1, head_dim, 8192};
    const bool has_bf16 = kernels_has_bf16();
    struct call call[N_TYPES] = {0};
    struct turn turn[N_TYPES];
    struct bench_variant variant[N_TYPES + 2];
    uint32_t n = 0;
    int error = 0;

    for (size_t i = 0; i < N_TYPES && error == 0; i++) {
        error = call_init(&call[i], &shape, types[i]);
        turn[i] = turn_of(&call[i], 1);
        const bool is_half = has_bf16 && (types[i] == KVW_NUM_BF16);
        variant[n++] = (struct bench_variant){
            .name = names[i],
            .floor = {is_half ? "as many products of bf16" : "as many FMAs of f32",
                      i == 0 ? NULL : names[0]},
            .each = run_attention,
            .context = &turn[i]};
    }
    variant[n++] = (struct bench_variant){
        .name = "as many FMAs of f32", .each = run_peak_f32, .context = &turn[0]};
    if (has_bf16)
        variant[n++] = (struct bench_variant){.name = "as many products of bf16",
                                              .each = run_peak_bf16,
                                              .context = &turn[0]};
    if (error == 0)
        error = bench_compare(bench, group, variant, n);
    if (error == 0)
        bench_rate(bench, n, call[0].flops, "GFLOP/s");
    for (size_t i = 0; i < N_TYPES; i++)
        call_fini(&call[i]);
    return error;
}

/* Twelve heads, by one thread and by two. */
static int compare_threads(struct bench *bench)
{
    const struct shape shape = {504, 12, 12, 128, 2048};
    struct call call;
    int error = call_init(&call, &shape, KVW_NUM_F32);
    struct turn one = turn_of(&call, 1);
    struct turn two = turn_of(&call, 2);
    const struct bench_variant variant[] = {
        {.name = "1 thread", .each = run_attention, .context = &one},
        {.name = "2 threads",
         .floor = {"1 thread"},
         .each = run_attention,
         .context = &two},
    };

    if (error == 0)
        error =
            bench_compare(bench, "chunk: 504 x 2048 x 128, 12 heads, f32", variant, 2);
    if (error == 0)
        bench_rate(bench, 2, call.flops, "GFLOP/s");
    call_fini(&call);
    return error;
}

/* The rows of a turn as a ring that wraps in the middle, or as a sink and the rest. */
static void cut(struct turn *t, uint64_t at, bool is_swapped)
{
    const struct kvw_attn_piece whole = t->piece[0];
    struct kvw_attn_piece *first = &t->piece[is_swapped ? 1 : 0];
    struct kvw_attn_piece *second = &t->piece[is_swapped ? 0 : 1];

    *first = whole;
    *second = whole;
    first->n_rows = at;
    second->n_rows = whole.n_rows - at;
    second->k = (const char *)whole.k + (ptrdiff_t)at * whole.k_row_stride;
    second->v = (const char *)whole.v + (ptrdiff_t)at * whole.v_row_stride;
    if (whole.k_scales != NULL) {
        second->k_scales = whole.k_scales + at;
        second->v_scales = whole.v_scales + at;
    }
    t->args.n_pieces = 2;
}

static int compare_decode(struct bench *bench, const char *group, uint32_t type)
{
    const struct shape shape = {1, 32, 8, 128, 32768};
    struct call call;
    int error = call_init(&call, &shape, type);
    const double n_bytes = 2.0 * (double)call.plane_bytes;
    struct turn one = turn_of(&call, 1);
    struct turn two = turn_of(&call, 2);
    struct turn wrapped = turn_of(&call, 1);
    struct turn sunk = turn_of(&call, 1);
    const struct bench_variant variant[] = {
        {.name = "reading the rows", .each = run_read, .context = &one},
        {.name = "1 thread",
         .floor = {"reading the rows"},
         .each = run_attention,
         .context = &one},
        {.name = "2 threads",
         .floor = {"reading the rows", "1 thread"},
         .each = run_attention,
         .context = &two},
        {.name = "1 thread, a window that wraps",
         .floor = {"1 thread"},
         .each = run_attention,
         .context = &wrapped},
        {.name = "1 thread, a sink of 4 rows",
         .floor = {"1 thread"},
         .each = run_attention,
         .context = &sunk},
    };

    cut(&wrapped, 12345, true);
    cut(&sunk, 4, false);
    if (error == 0)
        error = bench_compare(bench, group, variant, 5);
    if (error == 0)
        bench_rate(bench, 5, n_bytes, "GB/s");
    call_fini(&call);
    return error;
}

int kernels_run(struct bench *bench)
{
    static const struct {
        const char *group;
        uint32_t type;
    } decode[] = {
        {"decode: 1 query, 32 heads on 8, 32768 x 128, f32", KVW_NUM_F32},
        {"decode: 1 query, 32 heads on 8, 32768 x 128, bf16", KVW_NUM_BF16},
        {"decode: 1 query, 32 heads on 8, 32768 x 128, f16", KVW_NUM_F16},
        {"decode: 1 query, 32 heads on 8, 32768 x 128, int8", KVW_NUM_I8},
    };
    int error = compare_chunk(bench, "chunk: 1512 x 8192 x 128, 1 head", 128);

    if (error == 0)
        error = compare_chunk(bench, "chunk: 1512 x 8192 x 64, 1 head", 64);
    if (error == 0)
        error = compare_chunk(bench, "chunk: 1512 x 8192 x 256, 1 head", 256);
    if (error == 0)
        error = compare_threads(bench);
    for (size_t i = 0; i < sizeof decode / sizeof decode[0] && error == 0; i++)
        error = compare_decode(bench, decode[i].group, decode[i].type);
    return error == 0 ? 0 : bench_fail("kernels", error);
}
