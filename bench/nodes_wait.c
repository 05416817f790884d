/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of waiting and of company on a node: notify (commit to a reader's wake-up),
 * readers (many beside a writer); and hosts, MPI's own messages between each two nodes.
 * The writer is the first rank of each node.
 */
#include "bench/nodes.h"
#include "bench/nodes_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ASLEEP_NS 300000 /* after that long a sleeper sleeps */
#define SPINNING_US 1000000u
#define TAG 1
#define PINGS 200u
#define PING_BYTES 8u
#define LOAD_BYTES (1u << 20)
#define LOADS 20u
#define WRITES_BESIDE 8u /* chunks that the writer writes while others read */

struct company {
    struct nodes *nodes;
    struct store store; /* of the writer */
    struct kvw_cache *reader;
    struct kvw_cache *spinner;
    uint64_t rows; /* as everybody counts them */
    uint64_t begun_ns, woken_ns;
    uint64_t n_wrong;
    bool is_sleeping;
    bool is_beside;
    bool is_reader_timed;
};

static bool is_writer(const struct company *company)
{
    return company->nodes->node_rank == 0;
}

static void company_open(struct company *company, struct nodes *nodes, uint64_t window)
{
    struct kvw_attach_options options = KVW_ATTACH_OPTIONS_INIT;
    char name[64] = "";

    *company = (struct company){.nodes = nodes};
    if (is_writer(company)) {
        store_open(&company->store, nodes, window, 1, nodes->workload.chunk_rows);
        memcpy(name, company->store.name, sizeof name);
        company->rows = company->store.rows;
    }
    (void)MPI_Bcast(name, sizeof name, MPI_CHAR, 0, nodes->node);
    (void)MPI_Bcast(&company->rows, 1, MPI_UINT64_T, 0, nodes->node);
    if (is_writer(company))
        return;
    options.spin_us = 0;
    nodes_must(nodes, "attach",
               kvw_attach(nodes->client, name, KVW_READER, &options, &company->reader));
    options.spin_us = SPINNING_US;
    nodes_must(
        nodes, "attach",
        kvw_attach(nodes->client, name, KVW_READER, &options, &company->spinner));
}

static void company_close(struct company *company)
{
    kvw_detach(company->reader);
    kvw_detach(company->spinner);
    (void)MPI_Barrier(company->nodes->node);
    if (is_writer(company))
        store_close(&company->store);
}

/* ------------------------------------------------------------------ notify -------- */

static int prepare_notify(void *context)
{
    struct company *company = context;

    if (is_writer(company))
        store_next(&company->store);
    return 0;
}

/* Until the others surely wait. */
static void let_wait(void)
{
    const struct timespec asleep = {.tv_nsec = ASLEEP_NS};

    (void)nanosleep(&asleep, NULL);
}

/* The writer's time goes to the others by MPI, after all is over. */
static void conclude_notify(struct company *company, uint64_t *ns)
{
    (void)MPI_Bcast(&company->begun_ns, 1, MPI_UINT64_T, 0, company->nodes->node);
    *ns = is_writer(company) ? NODES_NO_TIME : company->woken_ns - company->begun_ns;
}

static int run_notify(void *context, uint64_t *ns)
{
    struct company *company = context;
    struct store *store = &company->store;
    const struct kvw_item item = {.row = store->rows, .n = store->chunk_rows};
    int error;

    company->rows += company->nodes->workload.chunk_rows;
    if (is_writer(company)) {
        error = kvw_begin(store->cache, 0, &item, 1, NULL);
        if (error == 0)
            error = kvw_update(store->cache, 0, (struct kvw_layer){0}, 0,
                               store->chunk_rows, store->source);
        let_wait();
        company->begun_ns = bench_now_ns();
        if (error == 0)
            error = kvw_commit(store->cache, 0, NULL, 0);
        store->rows += store->chunk_rows;
    } else {
        error = kvw_wait_rows(company->is_sleeping ? company->reader : company->spinner,
                              0, 0, 0, company->rows, NODES_TIMEOUT_NS);
        company->woken_ns = bench_now_ns();
    }
    if (error == 0)
        conclude_notify(company, ns);
    return error;
}

/* The same by a message to each. */
static int run_message(void *context, uint64_t *ns)
{
    struct company *company = context;
    const MPI_Comm node = company->nodes->node;
    uint64_t message = 0;

    if (is_writer(company)) {
        let_wait();
        company->begun_ns = bench_now_ns();
        for (int rank = 1; rank < company->nodes->own_ranks; rank++)
            (void)MPI_Send(&message, sizeof message, MPI_BYTE, rank, TAG, node);
    } else {
        (void)MPI_Recv(&message, sizeof message, MPI_BYTE, 0, TAG, node,
                       MPI_STATUS_IGNORE);
        company->woken_ns = bench_now_ns();
    }
    conclude_notify(company, ns);
    return 0;
}

/* What a reader sees is what the writer wrote. */
static int check_notify(void *context, uint64_t *n_wrong)
{
    struct company *company = context;
    struct kvw_view view;

    if (is_writer(company))
        return 0;
    int error =
        kvw_get(company->reader, 0, (struct kvw_layer){0}, KVW_COMMITTED, &view);
    if (error != 0)
        return error;
    *n_wrong = store_wrong(company->nodes, &view) + (view.end_row != company->rows);
    return kvw_release(company->reader, &view);
}

void nodes_notify(struct nodes *nodes)
{
    struct company company[2];

    if (nodes->node_ranks < 2) {
        nodes_absent(nodes, "notify", "it takes two ranks on every node");
        return;
    }
    company_open(&company[0], nodes, 4 * (uint64_t)nodes->workload.chunk_rows);
    company_open(&company[1], nodes, 4 * (uint64_t)nodes->workload.chunk_rows);
    company[1].is_sleeping = true;
    const struct nodes_variant variants[] = {
        {"spin", prepare_notify, run_notify, check_notify, &company[0], NULL},
        {"sleep", prepare_notify, run_notify, check_notify, &company[1], NULL},
        {"mpi_message", NULL, run_message, NULL, &company[0], NULL},
    };
    nodes_compare(nodes, "notify", 8, 0, variants, 3);
    company_close(&company[0]);
    company_close(&company[1]);
}

/* ----------------------------------------------------------------- readers -------- */

static int write_chunks(struct company *company)
{
    int error = 0;

    for (uint32_t i = 0; i < WRITES_BESIDE && error == 0; i++) {
        store_next(&company->store);
        error = store_append(&company->store);
    }
    return error;
}

/* One view, all of it summed where it lies. */
static int read_window(struct company *company)
{
    struct kvw_view view;

    int error =
        kvw_get(company->reader, 0, (struct kvw_layer){0}, KVW_COMMITTED, &view);
    if (error != 0)
        return error;
    const uint64_t sum = store_sum_view(&view);
    company->n_wrong +=
        sum != store_expect(company->nodes, view.end_row - view.n_rows, view.end_row,
                            company->nodes->workload.n_heads);
    return kvw_release(company->reader, &view);
}

static int run_company(void *context, uint64_t *ns)
{
    struct company *company = context;

    if (is_writer(company)) {
        if (company->is_reader_timed)
            *ns = NODES_NO_TIME;
        return write_chunks(company);
    }
    if (!company->is_reader_timed)
        *ns = NODES_NO_TIME;
    return company->is_beside ? read_window(company) : 0;
}

/* Readers have checked their sums; the writer looks at its window. */
static int check_company(void *context, uint64_t *n_wrong)
{
    struct company *company = context;
    struct kvw_view view;

    *n_wrong = company->n_wrong;
    company->n_wrong = 0;
    if (!is_writer(company))
        return 0;
    int error =
        kvw_get(company->store.cache, 0, (struct kvw_layer){0}, KVW_COMMITTED, &view);
    if (error != 0)
        return error;
    *n_wrong += store_wrong(company->nodes, &view);
    return kvw_release(company->store.cache, &view);
}

void nodes_readers(struct nodes *nodes)
{
    struct company company[3];

    if (nodes->node_ranks < 2) {
        nodes_absent(nodes, "readers", "it takes two ranks on every node");
        return;
    }
    const uint64_t window = nodes->workload.window_rows;
    for (int i = 0; i < 3; i++) {
        company_open(&company[i], nodes, window);
        company[i].is_beside = i > 0;
        company[i].is_reader_timed = i == 2;
    }
    const struct nodes_variant variants[] = {
        {"writer_alone", NULL, run_company, check_company, &company[0], NULL},
        {"writer_beside", NULL, run_company, check_company, &company[1], NULL},
        {"reader", NULL, run_company, check_company, &company[2], NULL},
    };
    nodes_compare(nodes, "readers", nodes_row_bytes(nodes, window),
                  nodes_row_bytes(nodes, window) *
                      (uint64_t)(nodes->n_ranks - nodes->n_nodes),
                  variants, 3);
    for (int i = 0; i < 3; i++)
        company_close(&company[i]);
}

/* ------------------------------------------------------------------- hosts -------- */

/* Round trips with another rank. @return nanoseconds of half of one, the median. */
static double ping(const struct nodes *nodes, int other, bool is_first, char *message,
                   int n_bytes, uint32_t n)
{
    double took[PINGS];

    for (uint32_t i = 0; i < n; i++) {
        const uint64_t begun = bench_now_ns();
        if (is_first)
            (void)MPI_Send(message, n_bytes, MPI_BYTE, other, TAG, nodes->world);
        (void)MPI_Recv(message, n_bytes, MPI_BYTE, other, TAG, nodes->world,
                       MPI_STATUS_IGNORE);
        if (!is_first)
            (void)MPI_Send(message, n_bytes, MPI_BYTE, other, TAG, nodes->world);
        took[i] = (double)(bench_now_ns() - begun) / 2;
    }
    bench_sort(took, n);
    return bench_quantile(took, n, 0.5);
}

static void measure_pair(struct nodes *nodes, const int *first_rank, int a, int b,
                         char *message)
{
    const bool is_first = nodes->rank == first_rank[a];
    const int other = first_rank[is_first ? b : a];
    const double latency = ping(nodes, other, is_first, message, PING_BYTES, PINGS);
    const double load = ping(nodes, other, is_first, message, LOAD_BYTES, LOADS);

    if (!is_first)
        return;
    nodes->matrix.latency_us[a * nodes->n_nodes + b] = latency / 1e3;
    nodes->matrix.gbps[a * nodes->n_nodes + b] = LOAD_BYTES / load;
}

/* Names and first ranks of the nodes, on every rank. */
static int *find_first_ranks(struct nodes *nodes)
{
    const size_t n = (size_t)nodes->n_nodes;
    int *first = nodes_memory(nodes, n * sizeof *first);
    char name[MPI_MAX_PROCESSOR_NAME] = "";
    int n_bytes;

    nodes->matrix.hosts = nodes_memory(nodes, n * sizeof *nodes->matrix.hosts);
    nodes->matrix.latency_us = nodes_memory(nodes, n * n * sizeof(double));
    nodes->matrix.gbps = nodes_memory(nodes, n * n * sizeof(double));
    (void)MPI_Get_processor_name(name, &n_bytes);
    if (nodes->node_rank == 0) {
        first[nodes->node_index] = nodes->rank;
        (void)snprintf(nodes->matrix.hosts[nodes->node_index],
                       sizeof nodes->matrix.hosts[0], "%.63s", name);
    }
    (void)MPI_Allreduce(MPI_IN_PLACE, first, (int)n, MPI_INT, MPI_MAX, nodes->world);
    (void)MPI_Allreduce(MPI_IN_PLACE, nodes->matrix.hosts,
                        (int)(n * sizeof *nodes->matrix.hosts), MPI_BYTE, MPI_BOR,
                        nodes->world);
    return first;
}

/* One pair at a time, so that no pair shares a link with another. */
void nodes_hosts(struct nodes *nodes)
{
    const int n = nodes->n_nodes;

    if (n < 2) {
        nodes_absent(nodes, "hosts", "it takes two nodes");
        return;
    }
    int *first = find_first_ranks(nodes);
    char *message = nodes_memory(nodes, LOAD_BYTES);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            if (a != b && (nodes->rank == first[a] || nodes->rank == first[b]))
                measure_pair(nodes, first, a, b, message);
            (void)MPI_Barrier(nodes->world);
        }
    (void)MPI_Allreduce(MPI_IN_PLACE, nodes->matrix.latency_us, n * n, MPI_DOUBLE,
                        MPI_MAX, nodes->world);
    (void)MPI_Allreduce(MPI_IN_PLACE, nodes->matrix.gbps, n * n, MPI_DOUBLE, MPI_MAX,
                        nodes->world);
    free(message);
    free(first);
}
