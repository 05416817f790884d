/* SPDX-License-Identifier: Apache-2.0 */
/* See nodes_report.h: an SVG file of each case, drawn by gnuplot. */
#include "bench/nodes_report.h"

#include <errno.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The letters of a result's name before the point. */
static int case_bytes(const struct nodes_result *result)
{
    return (int)strcspn(result->name, ".");
}

static bool is_of_case(const struct nodes_result *result,
                       const struct nodes_result *first)
{
    return case_bytes(result) == case_bytes(first) &&
           strncmp(result->name, first->name, (size_t)case_bytes(first)) == 0;
}

static bool is_first_where(const struct nodes *nodes, size_t index, bool is_by_case)
{
    const struct nodes_result *result = &nodes->results[index];

    for (size_t i = 0; i < index; i++) {
        const struct nodes_result *other = &nodes->results[i];
        if (is_by_case ? is_of_case(other, result)
                       : strcmp(other->name, result->name) == 0)
            return false;
    }
    return true;
}

/* The commands of one case: data first, then one line for each variant. */
static void write_case(const struct nodes *nodes, size_t first, FILE *file)
{
    const struct nodes_result *of = &nodes->results[first];
    const char *separator = "plot";

    for (size_t i = first; i < nodes->n_results; i++) {
        if (!is_of_case(&nodes->results[i], of) || !is_first_where(nodes, i, false))
            continue;
        fprintf(file, "$d%zu << EOD\n", i);
        for (size_t j = i; j < nodes->n_results; j++) {
            if (strcmp(nodes->results[j].name, nodes->results[i].name) == 0)
                fprintf(file, "%" PRIu64 " %.3f %.3f\n", nodes->results[j].bytes,
                        nodes->results[j].p50_us, nodes->results[j].p99_us);
        }
        fprintf(file, "EOD\n");
    }
    fprintf(file, "set output '%.*s.svg'\nset title '%.*s'\n", case_bytes(of), of->name,
            case_bytes(of), of->name);
    for (size_t i = first; i < nodes->n_results; i++) {
        if (!is_of_case(&nodes->results[i], of) || !is_first_where(nodes, i, false))
            continue;
        fprintf(file, "%s $d%zu using 1:2:2:3 with yerrorlines title '%s'", separator,
                i, nodes->results[i].name + case_bytes(of) + 1);
        separator = ",";
    }
    fprintf(file, "\n");
}

static int write_commands(const struct nodes *nodes, const char *path)
{
    FILE *file = fopen(path, "we");

    if (file == NULL)
        return -errno;
    fprintf(file, "set terminal svg size 800,500 noenhanced\nset logscale xy\n"
                  "set key outside\nset xlabel 'bytes'\n"
                  "set ylabel 'us: median, up to p99'\n");
    for (size_t i = 0; i < nodes->n_results; i++) {
        if (is_first_where(nodes, i, true))
            write_case(nodes, i, file);
    }
    return fclose(file) == 0 ? 0 : -EIO;
}

int nodes_plot(const struct nodes *nodes, const char *folder)
{
    char *const arguments[] = {"gnuplot", "plots.gp", NULL};
    char path[512];
    pid_t pid;
    int status;

    if (mkdir(folder, 0755) < 0 && errno != EEXIST) {
        fprintf(stderr, "kvwheel-bench: --plot: %s: %s\n", folder, strerror(errno));
        return -EIO;
    }
    (void)snprintf(path, sizeof path, "%s/plots.gp", folder);
    int error = write_commands(nodes, path);
    if (error == 0 && chdir(folder) < 0)
        error = -errno;
    if (error != 0) {
        fprintf(stderr, "kvwheel-bench: --plot: %s: %s\n", path, strerror(-error));
        return error;
    }
    if (posix_spawnp(&pid, arguments[0], NULL, NULL, arguments, environ) != 0) {
        fprintf(stderr, "kvwheel-bench: gnuplot is absent; its commands are in %s\n",
                path);
        return 0;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EIO;
}
