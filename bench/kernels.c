/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by the variants that this CPU chooses, beside what the CPU can do at most, by
 * as many threads: for a chunk of queries, as many multiplications in registers; for one
 * query (decode), reading the same keys and values once. Where bf16 rows are multiplied by
 * other instructions than floats, the peak is that of the instruction.
 *
 * Beside attention that is composed from a library's matrix products, and torch's. A
 * composed peer must itself come near the peak: else it is no measure, and the case fails
 * without that ratio.
 */
#include "bench/kernels.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bench/composed.h"
#include "bench/kernels_call.h"
#include "bench/python.h"

static const char peak_f32[] = "peak of f32";
static const char peak_f32_two[] = "peak of f32, 2 threads";
static const char peak_bf16[] = "peak of bf16";
static const char peak_bf16_two[] = "peak of bf16, 2 threads";
static const char reading[] = "reading the rows";
static const char reading_two[] = "reading the rows, 2 threads";

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

    kernels_peak_f32(turn->call->flops, turn->args.n_threads);
    bench_add(samples, bench_now_ns() - begun, 1);
    return 0;
}

static int run_peak_bf16(void *context, struct bench_samples *samples)
{
    const struct turn *turn = context;
    const uint64_t begun = bench_now_ns();

    kernels_peak_bf16(turn->call->flops, turn->args.n_threads);
    bench_add(samples, bench_now_ns() - begun, 1);
    return 0;
}

static int run_read(void *context, struct bench_samples *samples)
{
    const struct turn *turn = context;
    const uint64_t begun = bench_now_ns();

    kernels_read(turn->call->k, turn->call->plane_bytes, turn->args.n_threads);
    kernels_read(turn->call->v, turn->call->plane_bytes, turn->args.n_threads);
    bench_add(samples, bench_now_ns() - begun, 1);
    return 0;
}

/* ------------------------------------------------------------ composed peers ---- */

/* A peer and the share of the peak that it must reach itself. */
static const struct {
    const char *name;
    const char *own;
    enum composed_library library;
    bool is_bf16;
    double share_min;
} peers[] = {
    {"composed, oneDNN, f32", "f32", COMPOSED_ONEDNN, false, 0.80},
    {"composed, oneDNN, bf16", "bf16", COMPOSED_ONEDNN, true, 0.78},
    {"composed, OpenBLAS, f32", "f32", COMPOSED_OPENBLAS, false, 0.74},
};

#define N_PEERS (sizeof peers / sizeof peers[0])

struct peer {
    struct composed *composed;
    const struct call *call;
};

static int run_composed(void *context, struct bench_samples *samples)
{
    const struct peer *peer = context;
    const struct call *c = peer->call;
    const size_t head_bytes = c->plane_bytes / c->shape.n_kv_heads;
    const size_t head_queries = (size_t)c->shape.n_q * c->shape.head_dim;
    const uint64_t begun = bench_now_ns();
    int error = 0;

    for (uint32_t i = 0; i < c->shape.n_kv_heads && error == 0; i++)
        error = composed_run(peer->composed, (const char *)c->k + i * head_bytes,
                             (const char *)c->v + i * head_bytes,
                             c->q + i * head_queries, c->out + i * head_queries);
    bench_add(samples, bench_now_ns() - begun, 1);
    return error;
}

static int peer_open(struct peer *peer, size_t which, const struct call *call)
{
    peer->call = call;
    return composed_open(&peer->composed, peers[which].library,
                         &(struct composed_shape){.n_q = call->shape.n_q,
                                                  .n_rows = call->shape.n_rows,
                                                  .head_dim = call->shape.head_dim,
                                                  .is_bf16 = peers[which].is_bf16,
                                                  .scale = call->args.scale});
}

/* A peer that is too slow itself is no measure: its ratio goes, and the case fails. */
static int check_peers(struct bench *bench, uint32_t n_variants)
{
    int error = 0;

    for (uint32_t i = 0; i < n_variants; i++) {
        struct bench_result *result =
            &bench->results[bench->n_results - n_variants + i];
        for (size_t p = 0; p < N_PEERS; p++) {
            if (strcmp(result->name, peers[p].name) != 0)
                continue;
            const double share = 1 / result->ratio[0].median;
            if (share >= peers[p].share_min)
                continue;
            fprintf(stderr,
                    "kvwheel-bench: %s reaches %.3f of the peak itself, less than "
                    "%.2f: nothing is compared with it\n",
                    peers[p].name, share, peers[p].share_min);
            result->n_ratios = 1;
            error = -ERANGE;
        }
    }
    return error;
}

/* ------------------------------------------------------------- comparisons ------ */

static const struct {
    uint32_t type;
    const char *name;
} types[] = {{KVW_NUM_F32, "f32"},
             {KVW_NUM_BF16, "bf16"},
             {KVW_NUM_F16, "f16"},
             {KVW_NUM_I8, "int8"}};

#define N_TYPES (sizeof types / sizeof types[0])

/* Variants of one comparison, as they are put together. */
struct list {
    struct bench_variant variant[BENCH_VARIANTS_MAX];
    uint32_t n;
};

static void add(struct list *list, const char *name, const char *floor,
                const char *other, bench_each_fn *each, void *context)
{
    list->variant[list->n++] = (struct bench_variant){
        .name = name, .floor = {floor, other}, .each = each, .context = context};
}

/* Beside a peak or a bandwidth: the share that is reached. */
static void add_shares(struct bench *bench, uint32_t n_variants)
{
    static const char *const most[] = {peak_f32,      peak_f32_two, peak_bf16,
                                       peak_bf16_two, reading,      reading_two};

    for (uint32_t i = 0; i < n_variants; i++) {
        struct bench_result *result =
            &bench->results[bench->n_results - n_variants + i];
        for (size_t j = 0; j < sizeof most / sizeof most[0]; j++) {
            if (result->ratio[0].to == most[j] && result->ratio[0].median > 0)
                result->share = 1 / result->ratio[0].median;
        }
    }
}

static int compare(struct bench *bench, const char *group, const struct list *list,
                   double work, const char *unit)
{
    int error = bench_compare(bench, group, list->variant, list->n);

    if (error == 0) {
        bench_rate(bench, list->n, work, unit);
        add_shares(bench, list->n);
    }
    return error;
}

/* All types, peaks and composed peers, one thread, heads without groups. */
struct chunk {
    struct call call[N_TYPES];
    struct turn turn[N_TYPES];
    struct peer peer[N_PEERS];
    struct list list;
};

static int chunk_init(struct chunk *c, const struct shape *shape)
{
    const bool has_bf16 = kernels_has_bf16();
    int error = 0;

    for (size_t i = 0; i < N_TYPES && error == 0; i++) {
        error = call_init(&c->call[i], shape, types[i].type);
        c->turn[i] = turn_of(&c->call[i], 1);
        const bool is_half = has_bf16 && types[i].type == KVW_NUM_BF16;
        add(&c->list, types[i].name, is_half ? peak_bf16 : peak_f32,
            i == 0 ? NULL : types[0].name, run_attention, &c->turn[i]);
    }
    add(&c->list, peak_f32, NULL, NULL, run_peak_f32, &c->turn[0]);
    if (has_bf16)
        add(&c->list, peak_bf16, NULL, NULL, run_peak_bf16, &c->turn[0]);
    for (size_t p = 0; p < N_PEERS && error == 0; p++) {
        if ((peers[p].is_bf16 && !has_bf16) || !composed_is_there(peers[p].library))
            continue;
        error = peer_open(&c->peer[p], p, &c->call[peers[p].is_bf16 ? 1 : 0]);
        add(&c->list, peers[p].name, peers[p].is_bf16 ? peak_bf16 : peak_f32,
            peers[p].own, run_composed, &c->peer[p]);
    }
    return error;
}

static int compare_chunk(struct bench *bench, const char *group,
                         const struct shape *shape)
{
    static struct chunk chunk; /* too large for a stack */
    struct chunk *c = &chunk;

    *c = (struct chunk){0};
    int error = chunk_init(c, shape);
    if (error == 0)
        error = compare(bench, group, &c->list, c->call[0].flops, "GFLOP/s");
    if (error == 0)
        error = check_peers(bench, c->list.n);
    for (size_t i = 0; i < N_TYPES; i++)
        call_fini(&c->call[i]);
    for (size_t p = 0; p < N_PEERS; p++)
        composed_close(c->peer[p].composed);
    return error;
}

/* Heads of other widths, with as many operations. */
static int compare_widths(struct bench *bench, const char *group, uint32_t type)
{
    static const char *const names[] = {"head_dim 128", "head_dim 64", "head_dim 256"};
    static const struct shape shapes[] = {
        {1512, 1, 1, 128, 8192}, {1512, 1, 1, 64, 16384}, {1512, 1, 1, 256, 4096}};
    const bool is_half = type == KVW_NUM_BF16 && kernels_has_bf16();
    struct call call[3] = {0};
    struct turn turn[3];
    struct list list = {0};
    int error = 0;

    for (size_t i = 0; i < 3 && error == 0; i++) {
        error = call_init(&call[i], &shapes[i], type);
        turn[i] = turn_of(&call[i], 1);
        add(&list, names[i], is_half ? peak_bf16 : peak_f32, i == 0 ? NULL : names[0],
            run_attention, &turn[i]);
    }
    add(&list, is_half ? peak_bf16 : peak_f32, NULL, NULL,
        is_half ? run_peak_bf16 : run_peak_f32, &turn[0]);
    if (error == 0)
        error = compare(bench, group, &list, call[0].flops, "GFLOP/s");
    for (size_t i = 0; i < 3; i++)
        call_fini(&call[i]);
    return error;
}

/* The same rows in one piece, as a ring that wraps, and with a sink apart. */
static int compare_pieces(struct bench *bench, const char *group, uint32_t type)
{
    static const char flat[] = "one piece";
    const struct shape shape = {1512, 1, 1, 128, 8192};
    const bool is_half = type == KVW_NUM_BF16 && kernels_has_bf16();
    const char *peak = is_half ? peak_bf16 : peak_f32;
    struct list list = {0};
    struct call call;
    int error = call_init(&call, &shape, type);
    struct turn whole = turn_of(&call, 1);
    struct turn wrapped = whole;
    struct turn sunk = whole;

    turn_cut(&wrapped, 3085, true);
    turn_cut(&sunk, 4, false);
    add(&list, flat, peak, NULL, run_attention, &whole);
    add(&list, "a window that wraps", peak, flat, run_attention, &wrapped);
    add(&list, "a sink of 4 rows", peak, flat, run_attention, &sunk);
    add(&list, peak, NULL, NULL, is_half ? run_peak_bf16 : run_peak_f32, &whole);
    if (error == 0)
        error = compare(bench, group, &list, call.flops, "GFLOP/s");
    call_fini(&call);
    return error;
}

/* Twelve heads, by one thread and by two. */
static int compare_threads(struct bench *bench, const char *group, uint32_t type)
{
    const struct shape shape = {1512, 12, 12, 128, 4096};
    const bool is_half = type == KVW_NUM_BF16 && kernels_has_bf16();
    bench_each_fn *peak = is_half ? run_peak_bf16 : run_peak_f32;
    const char *one_name = is_half ? peak_bf16 : peak_f32;
    const char *two_name = is_half ? peak_bf16_two : peak_f32_two;
    struct call call;
    struct list list = {0};
    int error = call_init(&call, &shape, type);
    struct turn one = turn_of(&call, 1);
    struct turn two = turn_of(&call, 2);

    add(&list, "1 thread", one_name, NULL, run_attention, &one);
    add(&list, "2 threads", two_name, "1 thread", run_attention, &two);
    add(&list, one_name, NULL, NULL, peak, &one);
    add(&list, two_name, NULL, NULL, peak, &two);
    if (error == 0)
        error = compare(bench, group, &list, call.flops, "GFLOP/s");
    call_fini(&call);
    return error;
}

static int run_torch(void *context, struct bench_samples *samples)
{
    return python_sample(context, 1, samples);
}

/* Torch's ways, if it is there. Their ratio says how much longer than ours they take. */
static int add_torch(struct bench *bench, struct python *python, struct list *list)
{
    static const char *const names[] = {
        "torch, heads folded, 1 thread", "torch, heads folded, 2 threads",
        "torch, heads expanded, 1 thread", "torch, heads expanded, 2 threads", NULL};
    int error = python_start(bench, python, "kernels", names);

    if (error == 0 && python->n_variants == 0)
        fputs("kvwheel-bench: no torch to compare with (python3-torch)\n", stderr);
    for (uint32_t i = 0; i < python->n_variants && error == 0; i++)
        add(list, python->variant[i].name, NULL, NULL, run_torch, &python->variant[i]);
    for (uint32_t i = 0; i < python->n_variants && error == 0; i++)
        list->variant[list->n - 1 - i].floor[0] = "2 threads";
    return error;
}

static int compare_decode(struct bench *bench, const char *group, uint32_t type)
{
    const struct shape shape = {1, 32, 8, 128, 32768};
    struct python python = {0};
    struct list list = {0};
    struct call call;
    int error = call_init(&call, &shape, type);
    struct turn one = turn_of(&call, 1);
    struct turn two = turn_of(&call, 2);
    struct turn wrapped = one;
    struct turn sunk = one;

    turn_cut(&wrapped, 12345, true);
    turn_cut(&sunk, 4, false);
    add(&list, reading, NULL, NULL, run_read, &one);
    add(&list, reading_two, NULL, NULL, run_read, &two);
    add(&list, "1 thread", reading, NULL, run_attention, &one);
    add(&list, "2 threads", reading_two, "1 thread", run_attention, &two);
    add(&list, "1 thread, a window that wraps", reading, "1 thread", run_attention,
        &wrapped);
    add(&list, "1 thread, a sink of 4 rows", reading, "1 thread", run_attention, &sunk);
    if (error == 0 && type == KVW_NUM_BF16)
        error = add_torch(bench, &python, &list);
    if (error == 0)
        error = compare(bench, group, &list, 2.0 * (double)call.plane_bytes, "GB/s");
    python_stop(&python);
    call_fini(&call);
    return error;
}

static int compare_decodes(struct bench *bench)
{
    static const char *const groups[] = {
        "decode: 1 query, 32 heads on 8, 32768 x 128, f32",
        "decode: 1 query, 32 heads on 8, 32768 x 128, bf16",
        "decode: 1 query, 32 heads on 8, 32768 x 128, f16",
        "decode: 1 query, 32 heads on 8, 32768 x 128, int8"};
    int error = 0;

    for (size_t i = 0; i < N_TYPES && error == 0; i++)
        error = compare_decode(bench, groups[i], types[i].type);
    return error;
}

int kernels_run(struct bench *bench)
{
    static const struct shape full = {4680, 12, 12, 128, 32760};
    static const struct shape usual = {1512, 1, 1, 128, 8192};
    /* What the peers are does not end what is left to be measured. */
    int peers_error =
        bench->options.is_full
            ? compare_chunk(bench, "chunk: 4680 x 32760 x 128, 12 heads", &full)
            : compare_chunk(bench, "chunk: 1512 x 8192 x 128, 1 head (--full: more)",
                            &usual);
    int error = peers_error == -ERANGE ? 0 : peers_error;

    if (error == 0)
        error = compare_widths(bench, "chunk: 1512 queries, 1 head, f32", KVW_NUM_F32);
    if (error == 0)
        error =
            compare_widths(bench, "chunk: 1512 queries, 1 head, bf16", KVW_NUM_BF16);
    if (error == 0)
        error =
            compare_pieces(bench, "chunk: 1512 x 8192 x 128, pieces, f32", KVW_NUM_F32);
    if (error == 0)
        error = compare_pieces(bench, "chunk: 1512 x 8192 x 128, pieces, bf16",
                               KVW_NUM_BF16);
    if (error == 0)
        error = compare_threads(bench, "chunk: 1512 x 4096 x 128, 12 heads, f32",
                                KVW_NUM_F32);
    if (error == 0)
        error = compare_threads(bench, "chunk: 1512 x 4096 x 128, 12 heads, bf16",
                                KVW_NUM_BF16);
    if (error == 0)
        error = compare_decodes(bench);
    if (error == 0)
        error = peers_error;
    return error == 0 ? 0 : bench_fail("kernels", error);
}
