/* SPDX-License-Identifier: Apache-2.0 */
/* See nodes_report.h. */
#include "bench/nodes_report.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------- limits ------- */

struct limit {
    char pattern[64];
    char key[16];
    double value;
};

static bool value_of(const struct nodes_result *result, const char *key, double *value)
{
    const struct {
        const char *key;
        double value;
    } columns[] = {{"p50_us", result->p50_us},       {"p99_us", result->p99_us},
                   {"max_us", result->max_us},       {"gbps", result->gbps},
                   {"wrong", (double)result->wrong}, {"ratio", result->ratio}};

    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        if (strcmp(columns[i].key, key) == 0) {
            *value = columns[i].value;
            return true;
        }
    }
    return false;
}

static bool parse_limit(const char *text, struct limit *limit, bool *is_most)
{
    const struct nodes_result none = {.n = 0};
    char relation[3];
    char rest;
    double unused;

    if (sscanf(text, "%63s %15[a-z0-9_] %2[<=>] %lf%c", limit->pattern, limit->key,
               relation, &limit->value, &rest) != 4)
        return false;
    *is_most = strcmp(relation, "<=") == 0;
    return (*is_most || strcmp(relation, ">=") == 0) &&
           value_of(&none, limit->key, &unused);
}

bool nodes_is_limit(const char *text)
{
    struct limit limit;
    bool is_most;

    return parse_limit(text, &limit, &is_most);
}

static bool is_met(const struct nodes *nodes, const char *text)
{
    struct limit limit;
    bool is_most;
    bool is_seen = false;
    bool is_good = true;
    double value;

    if (!parse_limit(text, &limit, &is_most))
        return false;
    for (size_t i = 0; i < nodes->n_results; i++) {
        const struct nodes_result *result = &nodes->results[i];
        if (fnmatch(limit.pattern, result->name, 0) != 0 ||
            !value_of(result, limit.key, &value))
            continue;
        is_seen = true;
        if (is_most ? value <= limit.value : value >= limit.value)
            continue;
        is_good = false;
        fprintf(stderr, "kvwheel-bench: %s, %" PRIu64 " bytes: %s is %g, limit '%s'\n",
                result->name, result->bytes, limit.key, value, text);
    }
    if (!is_seen)
        fprintf(stderr, "kvwheel-bench: limit '%s': no result has that case\n", text);
    return is_good && is_seen;
}

bool nodes_are_valid(const struct nodes *nodes)
{
    const struct bench_options *options = &nodes->bench->options;
    bool is_valid = true;

    for (uint32_t i = 0; i < options->n_limits; i++)
        is_valid &= is_met(nodes, options->limits[i]);
    for (size_t i = 0; i < nodes->n_results; i++) {
        const struct nodes_result *result = &nodes->results[i];
        if (result->wrong > 0)
            fprintf(stderr, "kvwheel-bench: %s, %" PRIu64 " bytes: %" PRIu64 " wrong\n",
                    result->name, result->bytes, result->wrong);
        is_valid &= result->wrong == 0;
    }
    return is_valid;
}

/* --------------------------------------------------------------------- text ------- */

static bool is_first_of_name(const struct nodes *nodes, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (strcmp(nodes->results[i].name, nodes->results[index].name) == 0)
            return false;
    }
    return true;
}

static void print_environment(const struct nodes *nodes,
                              const struct bench_environment *environment)
{
    const struct nodes_workload *workload = &nodes->workload;

    printf("# kvwheel-bench %s, %s, %s, %s\n", environment->version, nodes->mpi_version,
           environment->compiler, environment->date);
    printf("# %d ranks on %d nodes; %s, %u cores, %s, governor %s, load %.2f, clock %s "
           "(%.0f ns)\n",
           nodes->n_ranks, nodes->n_nodes, environment->cpu, environment->n_cores,
           environment->kernel, environment->governor, environment->load[0],
           environment->clock_source, nodes->bench->clock_ns);
    printf("# workload %s: %u heads x %u bf16 (%u of query), window %" PRIu64
           " rows, chunk %u, %u layers%s\n",
           workload->name, workload->n_heads, workload->head_dim, workload->n_q_heads,
           workload->window_rows, workload->chunk_rows, workload->n_layers,
           nodes->sweep == NULL ? "" : "; out of cache");
}

static void print_matrix(const struct nodes *nodes, const char *title,
                         const double *values)
{
    printf("\n# %s\n# %-12s", title, "");
    for (int b = 0; b < nodes->n_nodes; b++)
        printf(" %10.10s", nodes->matrix.hosts[b]);
    for (int a = 0; a < nodes->n_nodes; a++) {
        printf("\n# %-12.12s", nodes->matrix.hosts[a]);
        for (int b = 0; b < nodes->n_nodes; b++) {
            if (a == b)
                printf(" %10s", "-");
            else
                printf(" %10.2f", values[a * nodes->n_nodes + b]);
        }
    }
    printf("\n");
}

static void print_notes(const struct nodes *nodes, const char *name)
{
    for (size_t i = 0; i < nodes->n_results; i++) {
        const struct nodes_result *result = &nodes->results[i];
        if (strcmp(result->name, name) != 0)
            continue;
        printf("# %" PRIu64 ": p99 %.2f, max %.2f us, %.3f GB/s, wrong %" PRIu64
               ", %.2f x the first variant, noise %.0f%%",
               result->bytes, result->p99_us, result->max_us, result->gbps,
               result->wrong, result->ratio, result->noise * 100);
        if (result->is_counted)
            printf(", %" PRIu64 " bytes cross ranks a call", result->moved_bytes);
        printf("\n");
    }
}

void nodes_report_text(const struct nodes *nodes,
                       const struct bench_environment *environment)
{
    print_environment(nodes, environment);
    for (size_t i = 0; i < nodes->n_results; i++) {
        if (!is_first_of_name(nodes, i))
            continue;
        const char *name = nodes->results[i].name;
        printf("\n# %s\n# %-14s %s\n", name, "Size", "Latency (us)");
        for (size_t j = i; j < nodes->n_results; j++) {
            if (strcmp(nodes->results[j].name, name) == 0)
                printf("%-16" PRIu64 " %.2f\n", nodes->results[j].bytes,
                       nodes->results[j].p50_us);
        }
        print_notes(nodes, name);
    }
    if (nodes->matrix.hosts != NULL) {
        print_matrix(nodes, "latency of 8 bytes between hosts, us",
                     nodes->matrix.latency_us);
        print_matrix(nodes, "1 MiB between hosts, GB/s", nodes->matrix.gbps);
    }
}

void nodes_report_csv(const struct nodes *nodes)
{
    printf("case,bytes,p50_us,p99_us,max_us,gbps,wrong\n");
    for (size_t i = 0; i < nodes->n_results; i++) {
        const struct nodes_result *result = &nodes->results[i];
        printf("%s,%" PRIu64 ",%.3f,%.3f,%.3f,%.4f,%" PRIu64 "\n", result->name,
               result->bytes, result->p50_us, result->p99_us, result->max_us,
               result->gbps, result->wrong);
    }
}

/* --------------------------------------------------------------------- JSON ------- */

/* MCA values given by environment: what mpirun and the user set. */
static json_t *json_of_mca(void)
{
    json_t *object = json_object();

    for (char **at = environ; *at != NULL; at++) {
        const char *end = strchr(*at, '=');
        if (strncmp(*at, "OMPI_MCA_", 9) != 0 || end == NULL)
            continue;
        char name[96];
        (void)snprintf(name, sizeof name, "%.*s", (int)(end - *at - 9), *at + 9);
        (void)json_object_set_new(object, name, json_string(end + 1));
    }
    return object;
}

static json_t *json_of_environment(const struct nodes *nodes,
                                   const struct bench_environment *environment)
{
    const struct nodes_workload *workload = &nodes->workload;

    return json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:[f,f,f], s:s, s:f, "
        "s:I, s:b, s:I, s:o, s:{s:s, s:i, s:i, s:i, s:i, s:i, s:I}}",
        "version", environment->version, "mpi", nodes->mpi_version, "compiler",
        environment->compiler, "date", environment->date, "ranks", nodes->n_ranks,
        "nodes", nodes->n_nodes, "cores", (int)environment->n_cores, "cpu",
        environment->cpu, "kernel", environment->kernel, "governor",
        environment->governor, "huge_pages_shared", environment->huge_pages_shared,
        "load", environment->load[0], environment->load[1], environment->load[2],
        "clock_source", environment->clock_source, "clock_ns", nodes->bench->clock_ns,
        "seed", (json_int_t)nodes->bench->options.seed, "is_cold",
        (int)(nodes->sweep != NULL), "level3_bytes",
        (json_int_t)sysconf(_SC_LEVEL3_CACHE_SIZE), "mca", json_of_mca(), "workload",
        "name", workload->name, "heads", (int)workload->n_heads, "query_heads",
        (int)workload->n_q_heads, "head_dim", (int)workload->head_dim, "layers",
        (int)workload->n_layers, "chunk_rows", (int)workload->chunk_rows, "window_rows",
        (json_int_t)workload->window_rows);
}

static json_t *json_of_matrix(const struct nodes *nodes)
{
    json_t *hosts = json_array();
    const int n = nodes->matrix.hosts == NULL ? 0 : nodes->n_nodes;

    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            if (a != b)
                (void)json_array_append_new(
                    hosts,
                    json_pack("{s:s, s:s, s:f, s:f}", "from", nodes->matrix.hosts[a],
                              "to", nodes->matrix.hosts[b], "latency_us",
                              nodes->matrix.latency_us[a * n + b], "gbps",
                              nodes->matrix.gbps[a * n + b]));
        }
    return hosts;
}

int nodes_report_json(const struct nodes *nodes,
                      const struct bench_environment *environment, const char *verdict)
{
    json_t *results = json_array();
    json_t *details = json_array();
    int error = 0;

    for (size_t i = 0; i < nodes->n_results && error == 0; i++) {
        const struct nodes_result *of = &nodes->results[i];
        error =
            json_array_append_new(
                results,
                json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:I}", "case", of->name,
                          "bytes", (json_int_t)of->bytes, "p50_us", of->p50_us,
                          "p99_us", of->p99_us, "max_us", of->max_us, "gbps", of->gbps,
                          "wrong", (json_int_t)of->wrong)) ||
            json_array_append_new(
                details,
                json_pack("{s:s, s:I, s:I, s:f, s:f, s:o}", "case", of->name, "bytes",
                          (json_int_t)of->bytes, "samples", (json_int_t)of->n, "noise",
                          of->noise, "ratio", of->ratio, "moved_bytes",
                          of->is_counted ? json_integer((json_int_t)of->moved_bytes)
                                         : json_null()));
    }
    json_t *report = json_pack("{s:o, s:o, s:o, s:o, s:s}", "environment",
                               json_of_environment(nodes, environment), "results",
                               results, "details", details, "hosts",
                               json_of_matrix(nodes), "verdict", verdict);
    if (error == 0)
        error = report == NULL || json_dumpf(report, stdout, JSON_INDENT(2)) < 0;
    printf("\n");
    json_decref(report);
    return error == 0 ? 0 : -ENOMEM;
}
