/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The benchmark across nodes: an MPI job, each rank of which runs the same cases. Every
 * variant of a comparison has its turn in every round, in an order that all ranks share;
 * a sample is the slowest rank's time. What a variant produced is checked after each
 * sample, outside of the time, and what is not as it must be is counted as wrong.
 *
 * An error on any rank ends the job with its words: see nodes_fail().
 */
#ifndef KVW_BENCH_NODES_H
#define KVW_BENCH_NODES_H

#include "bench/bench.h"

#include <kvwheel/kvwheel.h>
#include <mpi.h>

#define NODES_PLANES 2u         /* k and v */
#define NODES_SAMPLES_MAX 4096u /* of one variant */
#define NODES_TIMEOUT_NS 30000000000ull

/* The geometry that is measured. Rows are bf16. */
struct nodes_workload {
    const char *name;
    uint32_t n_heads; /* of K and V */
    uint32_t n_q_heads;
    uint32_t head_dim;
    uint32_t n_layers; /* as many as are measured */
    uint32_t chunk_rows;
    uint64_t window_rows;
};

/* What came of a variant at one size. */
struct nodes_result {
    char name[48]; /* CASE.VARIANT */
    uint64_t bytes;
    uint64_t n; /* samples */
    double p50_us;
    double p99_us;
    double max_us;
    double gbps;  /* gigabytes in a second, of all ranks */
    double noise; /* spread of the rounds' medians: quartiles' distance over median */
    double ratio; /* to the first variant of its comparison; median over the rounds */
    uint64_t wrong;
    uint64_t moved_bytes; /* that crossed ranks in a call; only if is_counted */
    bool is_counted;
};

struct nodes_matrix {
    char (*hosts)[64];
    double *latency_us; /* [n_nodes][n_nodes]: half a round trip of 8 bytes */
    double *gbps;       /* of 1 MiB */
};

struct nodes {
    struct bench *bench;
    MPI_Comm world;
    MPI_Comm node;
    int rank, n_ranks;
    int node_rank,
        node_ranks; /* the smallest node's; cases need it the same everywhere */
    int own_ranks;  /* of this node */
    int node_index, n_nodes;
    struct kvw_client *client;
    struct nodes_workload workload;
    struct servers *servers;
    uint32_t n_stores; /* so far: part of their names */
    char *sweep; /* memory to push everything out of the caches; NULL: not wanted */
    size_t sweep_bytes;
    struct nodes_result *results;
    size_t n_results;
    struct nodes_matrix matrix;
    char mpi_version[64];
};

/* One way to do something. What is NULL is not done. */
struct nodes_variant {
    const char *name;
    int (*prepare)(void *context);
    /* Timed, after a barrier. ns: left as it is, the engine's time counts; else this. A
     * rank that has no time of its own says 0 by NODES_NO_TIME. */
    int (*run)(void *context, uint64_t *ns);
    int (*check)(void *context, uint64_t *n_wrong);
    void *context;
    /* Bytes that this rank sent so far, for those that are to be counted. */
    uint64_t (*moved)(void *context);
};

#define NODES_NO_TIME (UINT64_MAX - 1)

/**
 * Measure variants against each other at one size. Collective: all ranks with the same
 * names and number.
 *
 * @param bytes     What the size column shows.
 * @param all_bytes What one call handles on all ranks, for GB/s.
 */
void nodes_compare(struct nodes *nodes, const char *name_of_case, uint64_t bytes,
                   uint64_t all_bytes, const struct nodes_variant *variants,
                   uint32_t n_variants);

/** Say on rank 0 that something is not measured, and why. */
void nodes_absent(const struct nodes *nodes, const char *what, const char *why);

/** Say what failed, with the library's words, and end the job. */
_Noreturn void nodes_fail(const struct nodes *nodes, const char *what, int error);

/** As nodes_fail() if error is not 0. */
void nodes_must(const struct nodes *nodes, const char *what, int error);

/** Bytes of K and V of `rows` rows in one layer. */
uint64_t nodes_row_bytes(const struct nodes *nodes, uint64_t rows);

/** Start the run: groups ranks by node, connects. Ended by nodes_close(). */
void nodes_open(struct nodes *nodes, struct bench *bench);
void nodes_close(struct nodes *nodes);

/** malloc() or the end of the job. */
void *nodes_memory(const struct nodes *nodes, size_t n_bytes);

/* The cases. */
void nodes_attach(struct nodes *nodes);
void nodes_append(struct nodes *nodes);
void nodes_rolling(struct nodes *nodes);
void nodes_read(struct nodes *nodes);
void nodes_attention(struct nodes *nodes);
void nodes_merge(struct nodes *nodes);
void nodes_mixed(struct nodes *nodes);
void nodes_notify(struct nodes *nodes);
void nodes_readers(struct nodes *nodes);
void nodes_share(struct nodes *nodes);
void nodes_hosts(struct nodes *nodes);

/** Names and lines of the cases, for --list; NULL past the last. */
const struct nodes_case *nodes_case_at(size_t index);

struct nodes_case {
    const char *name;
    const char *line;
    void (*run)(struct nodes *nodes);
};

/** Run the cases that are named; none: all. MPI is started and ended by it. @return an exit
 *  code. */
int nodes_run(struct bench *bench, int n_names, char **names);

#endif
