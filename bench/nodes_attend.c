/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of a cache whose rows are split over all ranks: attention, merge, mixed.
 *
 * Keys and values are numbers that every rank can compute, so that rank-local attention
 * over plain arrays of the whole window says what must come out.
 */
#include "bench/nodes.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvwheel/mpi.h>

/* Of the largest number that must come out: the kernels multiply bf16 as bf16. */
#define TOLERANCE 5e-3f
#define MIXED_LAYERS 2u

/* A window over all ranks, queries, and room for what comes out. */
struct spread {
    struct nodes *nodes;
    struct kvw_mpi *mpi;
    struct kvw_mpi_place place;
    uint64_t window_rows;
    uint64_t rows;
    uint32_t n_layers;
    uint32_t n_q;
    uint16_t *chunk;               /* k of a chunk, then v: [row][head][dim] */
    uint16_t *plain[NODES_PLANES]; /* the whole window: [row][head][dim] */
    float *q, *out, *need;
    float *part_out, *part_lse;
    char *copy; /* of the own rows */
};

static size_t row_elems(const struct nodes *nodes)
{
    return (size_t)nodes->workload.n_heads * nodes->workload.head_dim;
}

static size_t q_elems(const struct nodes *nodes)
{
    return (size_t)nodes->workload.n_q_heads * nodes->workload.head_dim;
}

/* Between -1 and 1. */
static float number(uint64_t row, uint64_t elem, uint32_t what)
{
    uint64_t x = (row * 8209 + elem * 4 + what + 1) * 0x9e3779b97f4a7c15ull;

    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9ull;
    return (float)((double)(x >> 40) / (double)(1u << 23) - 1);
}

static uint16_t bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void fill_row(const struct nodes *nodes, uint64_t row, uint32_t plane,
                     uint16_t *to)
{
    for (size_t i = 0; i < row_elems(nodes); i++)
        to[i] = bf16(number(row, i, plane));
}

/* --------------------------------------------------------------- the window ------- */

static void make_spec(struct spread *spread, struct kvw_spec *spec)
{
    const struct nodes_workload *workload = &spread->nodes->workload;
    char name[48];
    int pid = (int)getpid();

    (void)MPI_Bcast(&pid, 1, MPI_INT, 0, spread->nodes->world);
    (void)snprintf(name, sizeof name, "bench-spread-%d", pid);
    kvw_spec_init(spec, name);
    spec->n_ranks = spec->row_parts = (uint32_t)spread->nodes->n_ranks;
    spec->row_block = spec->row_parts > 1 ? workload->chunk_rows : 0;
    struct kvw_spec_group *group =
        kvw_spec_add_group(spec, "self", spread->n_layers, NULL);
    if (group == NULL ||
        kvw_spec_add_plane(group, "k", KVW_BF16, workload->head_dim) == NULL ||
        kvw_spec_add_plane(group, "v", KVW_BF16, workload->head_dim) == NULL)
        nodes_fail(spread->nodes, "spec", -EINVAL);
    group->n_heads = workload->n_heads;
    group->window_rows = spread->window_rows;
    group->chunk_rows_max = workload->chunk_rows;
}

/* A step of `n` rows in every layer, left open. */
static int begin_rows(struct spread *spread, uint32_t n)
{
    const struct nodes *nodes = spread->nodes;
    const struct kvw_item item = {.row = spread->rows, .n = n};
    const size_t elems = row_elems(nodes);
    const int64_t row_bytes = (int64_t)(elems * 2);
    const int64_t head = nodes->workload.head_dim * 2;
    const struct kvw_source source[NODES_PLANES] = {
        {spread->chunk, row_bytes, head}, {spread->chunk + n * elems, row_bytes, head}};

    int error = kvw_mpi_begin(spread->mpi, 0, &item, 1, NULL);
    for (uint32_t layer = 0; layer < spread->n_layers && error == 0; layer++)
        error = kvw_mpi_update(spread->mpi, 0, (struct kvw_layer){layer}, 0, n, source);
    return error;
}

static void next_rows(struct spread *spread, uint32_t n)
{
    const size_t elems = row_elems(spread->nodes);

    for (uint32_t plane = 0; plane < NODES_PLANES; plane++)
        for (uint32_t r = 0; r < n; r++)
            fill_row(spread->nodes, spread->rows + r, plane,
                     spread->chunk + (plane * n + r) * elems);
}

static int commit_rows(struct spread *spread, uint32_t n)
{
    int error = kvw_mpi_commit(spread->mpi, 0);

    spread->rows += error == 0 ? n : 0;
    return error;
}

static void fill_window(struct spread *spread)
{
    const uint32_t n = spread->nodes->workload.chunk_rows;

    while (spread->rows < spread->window_rows) {
        next_rows(spread, n);
        nodes_must(spread->nodes, "fill", begin_rows(spread, n));
        nodes_must(spread->nodes, "fill", commit_rows(spread, n));
    }
}

/* The kernel over whatever pieces. */
static int attend_pieces(const struct spread *spread,
                         const struct kvw_attn_piece *pieces, uint32_t n_pieces,
                         float *out, float *lse)
{
    const struct nodes_workload *workload = &spread->nodes->workload;
    const ptrdiff_t head = (ptrdiff_t)(workload->head_dim * sizeof(float));
    const ptrdiff_t row = head * (ptrdiff_t)workload->n_q_heads;

    return kvw_attn_run(&(struct kvw_attn_args){
        .q = spread->q,
        .q_row_stride = row,
        .q_head_stride = head,
        .n_q = spread->n_q,
        .n_q_heads = workload->n_q_heads,
        .n_kv_heads = workload->n_heads,
        .head_dim_k = workload->head_dim,
        .head_dim_v = workload->head_dim,
        .kv_type = KVW_NUM_BF16,
        .pieces = pieces,
        .n_pieces = n_pieces,
        .mask = KVW_ATTN_NONE,
        .scale = 1.0f / sqrtf((float)workload->head_dim),
        .out = out,
        .out_row_stride = row,
        .out_head_stride = head,
        .lse = lse,
        .lse_row_stride = (ptrdiff_t)(workload->n_q_heads * sizeof(float)),
        .lse_head_stride = sizeof(float),
    });
}

/* What must come out: one rank, plain arrays. */
static void expect(struct spread *spread)
{
    const struct nodes *nodes = spread->nodes;
    const ptrdiff_t head = (ptrdiff_t)nodes->workload.head_dim * 2;
    const ptrdiff_t row = head * (ptrdiff_t)nodes->workload.n_heads;
    const uint64_t first = spread->rows - spread->window_rows;

    for (uint32_t plane = 0; plane < NODES_PLANES; plane++)
        for (uint64_t r = 0; r < spread->window_rows; r++)
            fill_row(nodes, first + r, plane,
                     spread->plain[plane] + r * row_elems(nodes));
    const struct kvw_attn_piece piece = {.k = spread->plain[0],
                                         .v = spread->plain[1],
                                         .k_row_stride = row,
                                         .k_head_stride = head,
                                         .v_row_stride = row,
                                         .v_head_stride = head,
                                         .n_rows = spread->window_rows};
    nodes_must(nodes, "expect", attend_pieces(spread, &piece, 1, spread->need, NULL));
}

static void spread_open(struct spread *spread, struct nodes *nodes,
                        uint64_t window_rows, uint32_t n_layers)
{
    struct kvw_spec spec;
    struct kvw_mpi_options options = KVW_MPI_OPTIONS_INIT;
    const uint32_t n_q = nodes->workload.chunk_rows;
    const size_t window_bytes = row_elems(nodes) * 2 * window_rows;

    *spread = (struct spread){
        .nodes = nodes, .window_rows = window_rows, .n_layers = n_layers, .n_q = n_q};
    make_spec(spread, &spec);
    options.socket_path = nodes->bench->options.socket_path;
    options.timeout_ns = NODES_TIMEOUT_NS;
    nodes_must(nodes, "kvw_mpi_init",
               kvw_mpi_init(nodes->world, &spec, &options, &spread->mpi));
    nodes_must(nodes, "place", kvw_mpi_place(spread->mpi, KVW_READER, &spread->place));
    spread->chunk = nodes_memory(nodes, NODES_PLANES * row_elems(nodes) * 2 * n_q);
    for (uint32_t plane = 0; plane < NODES_PLANES; plane++)
        spread->plain[plane] = nodes_memory(nodes, window_bytes);
    spread->copy = nodes_memory(nodes, NODES_PLANES * window_bytes);
    spread->q = nodes_memory(nodes, q_elems(nodes) * n_q * sizeof(float));
    spread->out = nodes_memory(nodes, q_elems(nodes) * n_q * sizeof(float));
    spread->need = nodes_memory(nodes, q_elems(nodes) * n_q * sizeof(float));
    spread->part_out = nodes_memory(nodes, q_elems(nodes) * n_q * sizeof(float));
    spread->part_lse =
        nodes_memory(nodes, nodes->workload.n_q_heads * n_q * sizeof(float));
    for (size_t i = 0; i < q_elems(nodes) * n_q; i++)
        spread->q[i] = number(i, 0, 2);
    fill_window(spread);
}

static void spread_close(struct spread *spread)
{
    kvw_mpi_fini(spread->mpi);
    free(spread->chunk);
    free(spread->plain[0]);
    free(spread->plain[1]);
    free(spread->copy);
    free(spread->q);
    free(spread->out);
    free(spread->need);
    free(spread->part_out);
    free(spread->part_lse);
}

static uint64_t moved(void *context)
{
    struct kvw_mpi_counters counters;

    kvw_mpi_counters(((struct spread *)context)->mpi, &counters);
    return counters.query_bytes + counters.partial_bytes;
}

/* --------------------------------------------------------------- attention -------- */

static int attend(struct spread *spread, uint32_t layer, uint32_t flags)
{
    const struct nodes_workload *workload = &spread->nodes->workload;
    const ptrdiff_t head = (ptrdiff_t)(workload->head_dim * sizeof(float));
    const ptrdiff_t row = head * (ptrdiff_t)workload->n_q_heads;

    return kvw_mpi_attend(spread->mpi,
                          &(struct kvw_mpi_attend){
                              .layer = {layer},
                              .flags = flags,
                              .n_q_heads = workload->n_q_heads,
                              .n_q = spread->n_q,
                              .q = spread->q,
                              .q_row_stride = row,
                              .q_head_stride = head,
                              .scale = 1.0f / sqrtf((float)workload->head_dim),
                              .out = spread->out,
                              .out_row_stride = row,
                              .out_head_stride = head,
                          });
}

static int run_in_place(void *context, uint64_t *ns)
{
    (void)ns;
    return attend(context, 0, KVW_MPI_COMMITTED);
}

/* The own rows copied out of the cache, to [plane][head][row]. */
static uint64_t copy_out(struct spread *spread, const struct kvw_view *view)
{
    char *to = spread->copy;

    for (uint32_t plane = 0; plane < NODES_PLANES; plane++)
        for (uint32_t h = 0; h < view->n_heads; h++)
            for (uint32_t p = 0; p < view->n_pieces; p++) {
                const struct kvw_plane *of = &view->plane[plane];
                const size_t n_bytes = view->piece[p].n_rows * of->row_bytes;
                memcpy(to,
                       of->base + view->piece[p].slot * of->row_bytes +
                           h * of->head_bytes,
                       n_bytes);
                to += n_bytes;
            }
    return view->n_rows;
}

static int merge_parts(struct spread *spread, uint32_t flags)
{
    const struct nodes_workload *workload = &spread->nodes->workload;
    const ptrdiff_t head = (ptrdiff_t)(workload->head_dim * sizeof(float));
    const ptrdiff_t row = head * (ptrdiff_t)workload->n_q_heads;
    const ptrdiff_t lse_row = (ptrdiff_t)(workload->n_q_heads * sizeof(float));

    return kvw_mpi_merge(spread->mpi, &(struct kvw_mpi_merge){
                                          .flags = flags,
                                          .n_q = spread->n_q,
                                          .n_heads = workload->n_q_heads,
                                          .head_dim = workload->head_dim,
                                          .part = {spread->part_out, spread->part_lse,
                                                   row, head, lse_row, sizeof(float)},
                                          .out = spread->out,
                                          .out_row_stride = row,
                                          .out_head_stride = head,
                                      });
}

static int run_copied(void *context, uint64_t *ns)
{
    struct spread *spread = context;
    struct kvw_cache *cache = kvw_mpi_cache(spread->mpi);
    struct kvw_view view;
    const ptrdiff_t row = (ptrdiff_t)spread->nodes->workload.head_dim * 2;

    (void)ns;
    int error = kvw_get(cache, 0, (struct kvw_layer){0}, KVW_COMMITTED, &view);
    if (error != 0)
        return error;
    const uint64_t n_rows = copy_out(spread, &view);
    const uint32_t n_heads = view.n_heads;
    error = kvw_release(cache, &view);
    if (error != 0)
        return error;
    const ptrdiff_t head = row * (ptrdiff_t)n_rows;
    const struct kvw_attn_piece piece = {.k = spread->copy,
                                         .v = spread->copy + head * n_heads,
                                         .k_row_stride = row,
                                         .k_head_stride = head,
                                         .v_row_stride = row,
                                         .v_head_stride = head,
                                         .n_rows = n_rows};
    error =
        attend_pieces(spread, &piece, n_rows > 0, spread->part_out, spread->part_lse);
    return error == 0 ? merge_parts(spread, 0) : error;
}

static uint64_t count_wrong(const struct spread *spread, size_t first, size_t n,
                            size_t need_first)
{
    float largest = 0;
    uint64_t n_wrong = 0;

    for (size_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(spread->need[need_first + i]));
    for (size_t i = 0; i < n; i++)
        n_wrong += !(fabsf(spread->out[first + i] - spread->need[need_first + i]) <=
                     TOLERANCE * largest);
    return n_wrong;
}

static int check_attention(void *context, uint64_t *n_wrong)
{
    struct spread *spread = context;
    const size_t n = q_elems(spread->nodes) * spread->n_q;

    *n_wrong = count_wrong(spread, 0, n, 0);
    memset(spread->out, 0xff, n * sizeof(float)); /* NaN: nothing passes twice */
    return 0;
}

static void attend_window(struct nodes *nodes, uint64_t window_rows)
{
    struct spread spread;
    const struct nodes_variant variants[] = {
        {"in_place", NULL, run_in_place, check_attention, &spread, moved},
        {"copied", NULL, run_copied, check_attention, &spread, moved},
    };

    spread_open(&spread, nodes, window_rows, 1);
    const uint64_t bytes = nodes_row_bytes(nodes, window_rows);
    const uint32_t n_q = spread.n_q;
    spread.n_q = 1;
    expect(&spread);
    nodes_compare(nodes, "decode", bytes, bytes, variants, 2);
    spread.n_q = n_q;
    expect(&spread);
    nodes_compare(nodes, "chunk", bytes, bytes, variants, 2);
    spread_close(&spread);
}

/* Whole blocks of rows for every rank. */
static uint64_t whole_blocks(const struct nodes *nodes, uint64_t rows)
{
    return rows - rows % nodes->workload.chunk_rows;
}

void nodes_attention(struct nodes *nodes)
{
    attend_window(nodes, whole_blocks(nodes, nodes->workload.window_rows / 4));
    attend_window(nodes, whole_blocks(nodes, nodes->workload.window_rows));
}

/* ------------------------------------------------------------------- merge -------- */

static int run_gathered(void *context, uint64_t *ns)
{
    (void)ns;
    return merge_parts(context, 0);
}

static int run_by_heads(void *context, uint64_t *ns)
{
    (void)ns;
    return merge_parts(context, KVW_MPI_RESULT_BY_HEADS);
}

/* MPI's own gathering of the same bytes, without merging them. */
static int run_allgather(void *context, uint64_t *ns)
{
    struct spread *spread = context;
    const size_t n = q_elems(spread->nodes) * spread->n_q * sizeof(float);

    (void)ns;
    return MPI_Allgather(spread->part_out, (int)n, MPI_BYTE, spread->copy, (int)n,
                         MPI_BYTE, spread->nodes->world) == MPI_SUCCESS
               ? 0
               : -EIO;
}

/* The share of heads that this rank gets, with rows as wide as all heads. */
static int check_by_heads(void *context, uint64_t *n_wrong)
{
    struct spread *spread = context;
    const struct nodes_workload *workload = &spread->nodes->workload;
    uint32_t first, n_heads;

    kvw_mpi_share(workload->n_q_heads, spread->place.row_parts, spread->place.row_part,
                  &first, &n_heads);
    for (uint32_t i = 0; i < spread->n_q; i++)
        *n_wrong += count_wrong(
            spread, i * q_elems(spread->nodes), (size_t)n_heads * workload->head_dim,
            i * q_elems(spread->nodes) + (size_t)first * workload->head_dim);
    memset(spread->out, 0xff, q_elems(spread->nodes) * spread->n_q * sizeof(float));
    return 0;
}

static int check_allgather(void *context, uint64_t *n_wrong)
{
    struct spread *spread = context;
    const size_t n = q_elems(spread->nodes) * spread->n_q * sizeof(float);

    *n_wrong = memcmp(spread->copy + n * (size_t)spread->nodes->rank, spread->part_out,
                      n) != 0;
    return 0;
}

static void merge_queries(struct spread *spread, uint32_t n_q)
{
    struct nodes *nodes = spread->nodes;
    uint64_t ns = 0;
    const struct nodes_variant variants[] = {
        {"gathered", NULL, run_gathered, check_attention, spread, moved},
        {"by_heads", NULL, run_by_heads, check_by_heads, spread, moved},
        {"mpi_allgather", NULL, run_allgather, check_allgather, spread, NULL},
    };

    spread->n_q = n_q;
    expect(spread);
    nodes_must(nodes, "partial results", run_copied(spread, &ns));
    const uint64_t bytes = q_elems(nodes) * n_q * sizeof(float);
    char *room = spread->copy;
    spread->copy = nodes_memory(nodes, bytes * (uint64_t)nodes->n_ranks);
    nodes_compare(nodes, "merge", bytes, bytes * (uint64_t)nodes->n_ranks, variants, 3);
    free(spread->copy);
    spread->copy = room;
}

void nodes_merge(struct nodes *nodes)
{
    struct spread spread;

    if (nodes->n_ranks < 2) {
        nodes_absent(nodes, "merge", "it takes two ranks");
        return;
    }
    spread_open(&spread, nodes, whole_blocks(nodes, nodes->workload.window_rows / 4),
                1);
    merge_queries(&spread, 1);
    merge_queries(&spread, nodes->workload.chunk_rows);
    spread_close(&spread);
}

/* ------------------------------------------------------------------- mixed -------- */

/* A chunk of a generation: rows, attention in every layer, a commit. */
static int run_mixed(void *context, uint64_t *ns)
{
    struct spread *spread = context;
    int error = begin_rows(spread, spread->n_q);

    (void)ns;
    for (uint32_t layer = 0; layer < spread->n_layers && error == 0; layer++)
        error = attend(spread, layer, 0);
    return error == 0 ? commit_rows(spread, spread->n_q) : error;
}

static int prepare_mixed(void *context)
{
    struct spread *spread = context;

    next_rows(spread, spread->n_q);
    return 0;
}

static int check_mixed(void *context, uint64_t *n_wrong)
{
    struct spread *spread = context;

    expect(spread);
    return check_attention(spread, n_wrong);
}

void nodes_mixed(struct nodes *nodes)
{
    struct spread spread;
    const struct nodes_variant step = {"step",      prepare_mixed, run_mixed,
                                       check_mixed, &spread,       moved};
    const uint64_t window = whole_blocks(nodes, nodes->workload.window_rows);

    spread_open(&spread, nodes, window, MIXED_LAYERS);
    const uint32_t chunk_rows = spread.n_q; /* first steps of whole chunks */
    nodes_compare(nodes, "mixed", nodes_row_bytes(nodes, chunk_rows) * MIXED_LAYERS,
                  nodes_row_bytes(nodes, window) * MIXED_LAYERS, &step, 1);
    spread.n_q = 1;
    nodes_compare(nodes, "mixed", nodes_row_bytes(nodes, 1) * MIXED_LAYERS,
                  nodes_row_bytes(nodes, window) * MIXED_LAYERS, &step, 1);
    spread_close(&spread);
}
