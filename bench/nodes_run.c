/* SPDX-License-Identifier: Apache-2.0 */
/* See nodes.h: the table of cases across nodes, and a run of them. */
#include "bench/environment.h"
#include "bench/nodes.h"
#include "bench/nodes_report.h"
#include "bench/nodes_server.h"

#include <stdio.h>
#include <string.h>

static const struct nodes_case cases[] = {
    {"hosts", "MPI's messages between each two nodes", nodes_hosts},
    {"attach", "attaching to a cache, beside mapping POSIX shared memory",
     nodes_attach},
    {"append",
     "rows into every layer, beside memory of this process, POSIX shared "
     "memory, redis, memcached",
     nodes_append},
    {"rolling", "a chunk into a full window, beside moving the window", nodes_rolling},
    {"read", "a layer's window in place, copied out, and from the alternatives",
     nodes_read},
    {"attention", "decode and chunk over rows on all ranks, in place and copied out",
     nodes_attention},
    {"merge", "partial results of all ranks: gathered, and by heads", nodes_merge},
    {"mixed", "steps of a generation: rows, attention, commit", nodes_mixed},
    {"notify", "commit to a reader's wake-up: spinning, sleeping, by a message",
     nodes_notify},
    {"readers", "many readers beside a writer", nodes_readers},
    {"share", "ranks of a node reading each other in place, beside MPI_Alltoall",
     nodes_share},
};

#define N_CASES (sizeof cases / sizeof cases[0])

const struct nodes_case *nodes_case_at(size_t index)
{
    return index < N_CASES ? &cases[index] : NULL;
}

static bool is_wanted(const char *name, int n_names, char **names)
{
    for (int i = 0; i < n_names; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return n_names == 0;
}

static int report(struct nodes *nodes, const struct bench_environment *environment)
{
    const struct bench_options *options = &nodes->bench->options;
    const bool is_valid = nodes_are_valid(nodes);
    const char *verdict = is_valid ? "VALID" : "INVALID";
    int error = 0;

    if (options->is_json)
        error = nodes_report_json(nodes, environment, verdict);
    else if (options->is_csv)
        nodes_report_csv(nodes);
    else {
        nodes_report_text(nodes, environment);
        printf("\n# %s\n", verdict);
    }
    if (error == 0 && options->plot_folder != NULL)
        error = nodes_plot(nodes, options->plot_folder);
    if (error != 0 || fflush(stdout) != 0) {
        fputs("kvwheel-bench: the report could not be written\n", stderr);
        return BENCH_FAILED;
    }
    return is_valid ? BENCH_OK : BENCH_INVALID;
}

int nodes_run(struct bench *bench, int n_names, char **names)
{
    struct nodes nodes;
    struct bench_environment environment;
    int code = BENCH_OK;

    bench_environment_read(&environment);
    (void)MPI_Init(NULL, NULL);
    nodes_open(&nodes, bench);
    servers_start(&nodes);
    for (size_t i = 0; i < N_CASES; i++) {
        if (is_wanted(cases[i].name, n_names, names))
            cases[i].run(&nodes);
    }
    servers_stop(&nodes);
    if (nodes.rank == 0)
        code = report(&nodes, &environment);
    (void)MPI_Bcast(&code, 1, MPI_INT, 0, nodes.world);
    nodes_close(&nodes);
    (void)MPI_Finalize();
    return code;
}
