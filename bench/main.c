/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvwheel-bench: measure this build of kvwheel on this machine. The table of cases and
 * the options; a case lives in a file of its own name.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/kernels.h"
#include "bench/local.h"
#include "bench/pages.h"
#include "bench/python.h"
#include "bench/report.h"

static const struct bench_case cases[] = {
    {"local", "attach, update, view, step and wait on this node, each beside its floor",
     local_run},
    {"kernels",
     "attention, beside the CPU's peak, reading the rows, oneDNN, OpenBLAS, torch",
     kernels_run},
    {"pages", "attach, first look and attention on huge pages, beside 4 KiB ones",
     pages_run},
    {"numa", "memory of each NUMA node, read and written from CPUs of each", numa_run},
    {"python", "update, get and release from Python, beside the same from C",
     python_run},
    {"roll", "a video chunk into a full window, beside torch's ways to roll it",
     roll_run},
};

#define N_CASES (sizeof cases / sizeof cases[0])

static const char help[] =
    "usage: kvwheel-bench [OPTION...] CASE...\n"
    "Measure kvwheel on this machine. What is compared runs interleaved.\n"
    "\n"
    "  --list           list the cases\n"
    "  --json           one JSON object instead of tables\n"
    "  --rounds N       rounds of each comparison (default: as many as fit)\n"
    "  --full           kernels: a chunk at full size, which takes minutes\n"
    "  --seconds S      time for each comparison, at least 5 rounds (default: 1)\n"
    "  --seed N         of the order within a round (default: 1)\n"
    "  --socket PATH    the daemon's socket (default: the user's, started if absent)\n"
    "  --help\n"
    "\n"
    "Exit code: 0 done, 1 a case failed, 2 usage, 3 no daemon.\n";

static const struct bench_case *find_case(const char *name)
{
    for (size_t i = 0; i < N_CASES; i++) {
        if (strcmp(cases[i].name, name) == 0)
            return &cases[i];
    }
    return NULL;
}

static int parse_count(const char *text, uint64_t *value)
{
    char *end;

    errno = 0;
    *value = strtoull(text, &end, 10);
    return text[0] < '0' || text[0] > '9' || *end != 0 || errno != 0 ? -EINVAL : 0;
}

static int parse_seconds(const char *text, double *value)
{
    char *end;

    errno = 0;
    *value = strtod(text, &end);
    bool is_number = end != text && *end == 0 && errno == 0 && isfinite(*value);
    return is_number && *value >= 0 ? 0 : -EINVAL;
}

/* Options up to the first case; getopt says what is wrong, or we do. */
static int parse_options(int argc, char **argv, struct bench_options *options)
{
    enum { LIST, JSON, FULL, ROUNDS, SECONDS, SEED, SOCKET, HELP };
    static const struct option names[] = {
        {"list", no_argument, NULL, LIST},
        {"json", no_argument, NULL, JSON},
        {"full", no_argument, NULL, FULL},
        {"rounds", required_argument, NULL, ROUNDS},
        {"seconds", required_argument, NULL, SECONDS},
        {"seed", required_argument, NULL, SEED},
        {"socket", required_argument, NULL, SOCKET},
        {"help", no_argument, NULL, HELP},
        {NULL, 0, NULL, 0},
    };
    int choice;
    int index = 0;

    while ((choice = getopt_long(argc, argv, "", names, &index)) != -1) {
        int error = 0;
        switch (choice) {
        case LIST:
            options->is_list = true;
            break;
        case JSON:
            options->is_json = true;
            break;
        case FULL:
            options->is_full = true;
            break;
        case ROUNDS:
            error = parse_count(optarg, &options->rounds);
            break;
        case SECONDS:
            error = parse_seconds(optarg, &options->seconds);
            break;
        case SEED:
            error = parse_count(optarg, &options->seed);
            break;
        case SOCKET:
            options->socket_path = optarg;
            break;
        case HELP:
            options->is_help = true;
            break;
        default:
            return -EINVAL;
        }
        if (error != 0) {
            fprintf(stderr, "kvwheel-bench: --%s: '%s' is no number for it\n",
                    names[index].name, optarg);
            return error;
        }
    }
    return 0;
}

static int check_cases(int argc, char **argv)
{
    if (optind == argc) {
        fputs("kvwheel-bench: no case is named; --list shows them\n", stderr);
        return -EINVAL;
    }
    for (int i = optind; i < argc; i++) {
        if (find_case(argv[i]) == NULL) {
            fprintf(stderr, "kvwheel-bench: no case '%s'; --list shows them\n",
                    argv[i]);
            return -EINVAL;
        }
    }
    return 0;
}

/* What was measured before a case failed is reported all the same. */
static int run_cases(struct bench *bench, int argc, char **argv)
{
    struct bench_environment environment;
    int error = 0;

    bench_environment_read(&environment);
    for (int i = optind; i < argc && error == 0; i++) {
        const struct bench_case *of = find_case(argv[i]);
        bench->name_of_case = of->name;
        error = of->run(bench);
    }
    if (bench->is_absent)
        return BENCH_NO_DAEMON;
    int reported = 0;
    if (bench->options.is_json)
        reported = report_json(bench, &environment);
    else
        report_text(bench, &environment);
    if (reported != 0 || fflush(stdout) != 0) {
        fputs("kvwheel-bench: the report could not be written\n", stderr);
        return BENCH_FAILED;
    }
    return error == 0 ? BENCH_OK : BENCH_FAILED;
}

int main(int argc, char **argv)
{
    struct bench_options options = {.seconds = 1, .seed = 1};
    struct bench bench;

    if (parse_options(argc, argv, &options) != 0)
        return BENCH_USAGE;
    if (options.is_help) {
        fputs(help, stdout);
        return BENCH_OK;
    }
    if (options.is_list) {
        for (size_t i = 0; i < N_CASES; i++)
            printf("%-10s %s\n", cases[i].name, cases[i].line);
        return BENCH_OK;
    }
    if (check_cases(argc, argv) != 0)
        return BENCH_USAGE;
    bench_init(&bench, &options);
    int code = run_cases(&bench, argc, argv);
    bench_fini(&bench);
    return code;
}
