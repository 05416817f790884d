/* SPDX-License-Identifier: Apache-2.0 */
/* See nodes.h: rounds over all ranks, and what is made of the samples. */
#include "bench/nodes.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvwheel/mpi.h>

#define SAMPLES_PER_TURN 4u
#define ROUNDS_MAX (NODES_SAMPLES_MAX / SAMPLES_PER_TURN)
#define CACHE_BYTES_MAX (256u << 20)

_Noreturn void nodes_fail(const struct nodes *nodes, const char *what, int error)
{
    const char *text = kvw_last_error();
    const char *mpi_text = kvw_mpi_last_error();

    fprintf(stderr, "kvwheel-bench: rank %d: %s: %s%s%s%s%s\n", nodes->rank, what,
            kvw_strerror(error), text[0] != 0 ? ": " : "", text,
            mpi_text[0] != 0 ? "; " : "", mpi_text);
    (void)fflush(stderr);
    (void)MPI_Abort(nodes->world,
                    error == -ETIMEDOUT ? KVW_MPI_EXIT_TIMEOUT : BENCH_FAILED);
    exit(BENCH_FAILED);
}

void nodes_must(const struct nodes *nodes, const char *what, int error)
{
    if (error < 0)
        nodes_fail(nodes, what, error);
}

void *nodes_memory(const struct nodes *nodes, size_t n_bytes)
{
    void *memory = malloc(n_bytes);

    if (memory == NULL)
        nodes_fail(nodes, "memory", -ENOMEM);
    memset(memory, 0, n_bytes); /* touched before anything is timed */
    return memory;
}

uint64_t nodes_row_bytes(const struct nodes *nodes, uint64_t rows)
{
    const struct nodes_workload *workload = &nodes->workload;

    return rows * NODES_PLANES * workload->n_heads * workload->head_dim * 2;
}

void nodes_absent(const struct nodes *nodes, const char *what, const char *why)
{
    if (nodes->rank == 0)
        fprintf(stderr, "kvwheel-bench: %s is absent: %s\n", what, why);
}

/* ------------------------------------------------------------------ rounds -------- */

/* A comparison under way. Samples are this rank's until they are reduced. */
struct turns {
    struct nodes *nodes;
    const struct nodes_variant *variants;
    uint32_t n_variants;
    size_t n; /* samples of each */
    double *samples[BENCH_VARIANTS_MAX];
    uint64_t wrong[BENCH_VARIANTS_MAX];
    uint64_t moved[BENCH_VARIANTS_MAX];
};

static void sweep(const struct nodes *nodes)
{
    for (size_t at = 0; at < nodes->sweep_bytes; at += 64)
        nodes->sweep[at]++;
    bench_touch(nodes->sweep);
}

static double take_sample(struct turns *turns, uint32_t v)
{
    const struct nodes *nodes = turns->nodes;
    const struct nodes_variant *variant = &turns->variants[v];
    const uint64_t moved =
        variant->moved == NULL ? 0 : variant->moved(variant->context);
    uint64_t ns = UINT64_MAX;
    uint64_t n_wrong = 0;

    if (variant->prepare != NULL)
        nodes_must(nodes, variant->name, variant->prepare(variant->context));
    if (nodes->sweep != NULL)
        sweep(nodes);
    (void)MPI_Barrier(nodes->world);
    const uint64_t begun = bench_now_ns();
    int error = variant->run(variant->context, &ns);
    const uint64_t ended = bench_now_ns();
    nodes_must(nodes, variant->name, error);
    if (variant->moved != NULL)
        turns->moved[v] = variant->moved(variant->context) - moved;
    if (variant->check != NULL)
        nodes_must(nodes, variant->name, variant->check(variant->context, &n_wrong));
    turns->wrong[v] += n_wrong;
    if (ns == NODES_NO_TIME)
        return 0;
    double took = (double)(ns == UINT64_MAX ? ended - begun : ns);
    return ns == UINT64_MAX ? fmax(took - nodes->bench->clock_ns, 0) : took;
}

static void take_turns(struct turns *turns)
{
    uint32_t order[BENCH_VARIANTS_MAX] = {0};

    for (uint32_t i = 0; i < turns->n_variants; i++) {
        uint64_t j = bench_random(turns->nodes->bench, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < turns->n_variants; i++)
        for (uint32_t s = 0; s < SAMPLES_PER_TURN; s++)
            turns->samples[order[i]][turns->n + s] = take_sample(turns, order[i]);
    turns->n += SAMPLES_PER_TURN;
}

/* Rank 0 looks at the clock for all. */
static bool is_enough(const struct turns *turns, uint64_t begun)
{
    const struct bench_options *options = &turns->nodes->bench->options;
    const uint64_t round = turns->n / SAMPLES_PER_TURN;
    int is_over = round >= ROUNDS_MAX;

    if (options->rounds > 0)
        is_over |= round >= options->rounds;
    else
        is_over |= round >= BENCH_ROUNDS_MIN &&
                   (double)(bench_now_ns() - begun) >= options->seconds * 1e9;
    (void)MPI_Bcast(&is_over, 1, MPI_INT, 0, turns->nodes->world);
    return is_over != 0;
}

/* ----------------------------------------------------------------- results -------- */

/* The median of each round; they stay in the order of rounds. */
static size_t round_medians(const double *samples, size_t n, double *medians)
{
    for (size_t i = 0; i < n / SAMPLES_PER_TURN; i++) {
        double turn[SAMPLES_PER_TURN];
        memcpy(turn, samples + i * SAMPLES_PER_TURN, sizeof turn);
        bench_sort(turn, SAMPLES_PER_TURN);
        medians[i] = bench_quantile(turn, SAMPLES_PER_TURN, 0.5);
    }
    return n / SAMPLES_PER_TURN;
}

static double ratio_to_first(const struct turns *turns, uint32_t v)
{
    double first[ROUNDS_MAX];
    double own[ROUNDS_MAX];
    size_t n_ratios = 0;
    const size_t n = round_medians(turns->samples[0], turns->n, first);

    (void)round_medians(turns->samples[v], turns->n, own);
    for (size_t i = 0; i < n; i++) {
        if (first[i] > 0)
            own[n_ratios++] = own[i] / first[i];
    }
    if (n_ratios == 0)
        return 0;
    bench_sort(own, n_ratios);
    return bench_quantile(own, n_ratios, 0.5);
}

static double noise_of(const struct turns *turns, uint32_t v)
{
    double medians[ROUNDS_MAX];
    const size_t n = round_medians(turns->samples[v], turns->n, medians);

    bench_sort(medians, n);
    const double median = bench_quantile(medians, n, 0.5);
    const double spread =
        bench_quantile(medians, n, 0.75) - bench_quantile(medians, n, 0.25);
    return median > 0 ? spread / median : 0;
}

static void conclude(struct turns *turns, const char *name_of_case, uint32_t v,
                     uint64_t bytes, uint64_t all_bytes)
{
    struct nodes *nodes = turns->nodes;
    const struct nodes_variant *variant = &turns->variants[v];
    struct nodes_result *grown =
        realloc(nodes->results, (nodes->n_results + 1) * sizeof *grown);

    if (grown == NULL)
        nodes_fail(nodes, "results", -ENOMEM);
    nodes->results = grown;
    struct nodes_result *result = &grown[nodes->n_results++];
    *result = (struct nodes_result){.bytes = bytes,
                                    .n = turns->n,
                                    .wrong = turns->wrong[v],
                                    .moved_bytes = turns->moved[v],
                                    .is_counted = variant->moved != NULL,
                                    .noise = noise_of(turns, v),
                                    .ratio = ratio_to_first(turns, v)};
    (void)snprintf(result->name, sizeof result->name, "%s.%s", name_of_case,
                   variant->name);
    double *sorted = nodes_memory(nodes, turns->n * sizeof *sorted);
    memcpy(sorted, turns->samples[v], turns->n * sizeof *sorted);
    bench_sort(sorted, turns->n);
    result->p50_us = bench_quantile(sorted, turns->n, 0.5) / 1e3;
    result->p99_us = bench_quantile(sorted, turns->n, 0.99) / 1e3;
    result->max_us = sorted[turns->n - 1] / 1e3;
    free(sorted);
    if (result->p50_us > 0)
        result->gbps = (double)all_bytes / result->p50_us / 1e3;
}

/* The slowest rank's time of each sample; wrong and moved of all. */
static void reduce(struct turns *turns)
{
    const struct nodes *nodes = turns->nodes;

    for (uint32_t v = 0; v < turns->n_variants; v++)
        (void)MPI_Allreduce(MPI_IN_PLACE, turns->samples[v], (int)turns->n, MPI_DOUBLE,
                            MPI_MAX, nodes->world);
    (void)MPI_Allreduce(MPI_IN_PLACE, turns->wrong, (int)turns->n_variants,
                        MPI_UINT64_T, MPI_SUM, nodes->world);
    (void)MPI_Allreduce(MPI_IN_PLACE, turns->moved, (int)turns->n_variants,
                        MPI_UINT64_T, MPI_SUM, nodes->world);
}

void nodes_compare(struct nodes *nodes, const char *name_of_case, uint64_t bytes,
                   uint64_t all_bytes, const struct nodes_variant *variants,
                   uint32_t n_variants)
{
    struct turns turns = {
        .nodes = nodes, .variants = variants, .n_variants = n_variants};

    if (n_variants == 0 || n_variants > BENCH_VARIANTS_MAX)
        nodes_fail(nodes, name_of_case, -EINVAL);
    if (nodes->rank == 0)
        fprintf(stderr, "kvwheel-bench: %s, %llu bytes\n", name_of_case,
                (unsigned long long)bytes);
    for (uint32_t v = 0; v < n_variants; v++) {
        turns.samples[v] = nodes_memory(nodes, NODES_SAMPLES_MAX * sizeof(double));
        (void)take_sample(&turns, v); /* for nothing; what is wrong counts */
    }
    const uint64_t begun = bench_now_ns();
    while (!is_enough(&turns, begun))
        take_turns(&turns);
    reduce(&turns);
    for (uint32_t v = 0; v < n_variants; v++)
        conclude(&turns, name_of_case, v, bytes, all_bytes);
    for (uint32_t v = 0; v < n_variants; v++)
        free(turns.samples[v]);
}

/* --------------------------------------------------------------------- run -------- */

static void set_workload(struct nodes *nodes)
{
    const struct bench_options *options = &nodes->bench->options;
    struct nodes_workload *workload = &nodes->workload;
    struct kvw_spec spec;

    *workload = (struct nodes_workload){"built-in", 8, 32, 128, 4, 16, 1024};
    if (options->preset != NULL) {
        nodes_must(nodes, options->preset,
                   kvw_spec_preset(&spec, options->preset, options->window_rows));
        const struct kvw_spec_group *group = &spec.group[0];
        workload->name = options->preset;
        workload->n_heads = workload->n_q_heads = group->n_heads;
        workload->head_dim = group->plane[0].elems;
        workload->n_layers = group->n_layers;
        workload->window_rows = group->window_rows;
        workload->chunk_rows = (uint32_t)group->chunk_rows_max;
    } else if (options->window_rows > 0)
        workload->window_rows = options->window_rows;
    if (workload->window_rows < 4 * (uint64_t)workload->chunk_rows)
        workload->chunk_rows = (uint32_t)(workload->window_rows / 4);
    if (workload->chunk_rows == 0)
        nodes_fail(nodes, "a window of fewer than 4 rows", -EINVAL);
    const uint64_t fit =
        CACHE_BYTES_MAX / nodes_row_bytes(nodes, workload->window_rows);
    if (workload->n_layers > 4)
        workload->n_layers = 4;
    if (fit < workload->n_layers)
        workload->n_layers = fit == 0 ? 1 : (uint32_t)fit;
}

static void group_by_node(struct nodes *nodes)
{
    int is_first;
    int n_bytes;
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";

    (void)MPI_Comm_dup(MPI_COMM_WORLD, &nodes->world);
    (void)MPI_Comm_rank(nodes->world, &nodes->rank);
    (void)MPI_Comm_size(nodes->world, &nodes->n_ranks);
    (void)MPI_Comm_split_type(nodes->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL,
                              &nodes->node);
    (void)MPI_Comm_rank(nodes->node, &nodes->node_rank);
    (void)MPI_Comm_size(nodes->node, &nodes->own_ranks);
    (void)MPI_Allreduce(&nodes->own_ranks, &nodes->node_ranks, 1, MPI_INT, MPI_MIN,
                        nodes->world);
    is_first = nodes->node_rank == 0;
    (void)MPI_Allreduce(&is_first, &nodes->n_nodes, 1, MPI_INT, MPI_SUM, nodes->world);
    (void)MPI_Scan(&is_first, &nodes->node_index, 1, MPI_INT, MPI_SUM, nodes->world);
    nodes->node_index--;
    (void)MPI_Bcast(&nodes->node_index, 1, MPI_INT, 0, nodes->node);
    (void)MPI_Get_library_version(version, &n_bytes);
    (void)snprintf(nodes->mpi_version, sizeof nodes->mpi_version, "%.*s",
                   (int)strcspn(version, ",\n"), version);
}

/* A node's first rank connects first: it is the one that may have to start a daemon. */
static void connect_all(struct nodes *nodes)
{
    const char *path = nodes->bench->options.socket_path;

    for (int turn = 0; turn < 2; turn++) {
        if ((nodes->node_rank == 0) == (turn == 0))
            nodes_must(nodes, "no daemon on this node",
                       kvw_connect(path, &nodes->client));
        (void)MPI_Barrier(nodes->world);
    }
}

void nodes_open(struct nodes *nodes, struct bench *bench)
{
    *nodes = (struct nodes){.bench = bench, .world = MPI_COMM_WORLD};
    group_by_node(nodes);
    set_workload(nodes);
    connect_all(nodes);
    if (!bench->options.is_cold)
        return;
    const long level3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    nodes->sweep_bytes = level3 > 0 ? 2 * (size_t)level3 : 64u << 20;
    if (nodes->sweep_bytes > 256u << 20)
        nodes->sweep_bytes = 256u << 20;
    nodes->sweep = nodes_memory(nodes, nodes->sweep_bytes);
}

void nodes_close(struct nodes *nodes)
{
    kvw_disconnect(nodes->client);
    free(nodes->sweep);
    free(nodes->results);
    free(nodes->matrix.hosts);
    free(nodes->matrix.latency_us);
    free(nodes->matrix.gbps);
    (void)MPI_Comm_free(&nodes->node);
    (void)MPI_Comm_free(&nodes->world);
}
