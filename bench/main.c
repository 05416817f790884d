/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvwheel-bench: measure this build of kvwheel, on this machine or across the nodes of an MPI
 * job. The table of cases of one process and the options; a case lives in a file of its
 * own name, those across nodes in nodes_run.c.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/compare.h"
#include "bench/generate.h"
#include "bench/kernels.h"
#include "bench/local.h"
#include "bench/nodes.h"
#include "bench/nodes_report.h"
#include "bench/pages.h"
#include "bench/python.h"
#include "bench/report.h"

static const struct bench_case cases[] = {
    {"local", "attach, update, view, step and wait on this node, each beside its floor",
     local_run},
    {"kernels",
     "attention, beside the CPU's peak, reading the rows, oneDNN, OpenBLAS, torch",
     kernels_run},
    {"generate",
     "tokens per second of kvwheel-generate, by references and best kernels",
     generate_run},
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
    "usage: kvwheel-bench [OPTION...] [CASE...]\n"
    "       mpirun ... kvwheel-bench [OPTION...] [CASE...]\n"
    "       kvwheel-bench [--bound PERCENT] compare A.json B.json\n"
    "Measure kvwheel. What is compared runs interleaved. Without a CASE: all of those\n"
    "across nodes, also where there is but one. Cases of one process and cases across\n"
    "nodes are not mixed.\n"
    "\n"
    "  --list           list the cases\n"
    "  --json           one JSON object instead of tables\n"
    "  --rounds N       rounds of each comparison (default: as many as fit)\n"
    "  --model DIR      generate: of this model (default: the one beside this build)\n"
    "  --full           kernels: a chunk at full size, which takes minutes\n"
    "  --seconds S      time for each comparison, at least 5 rounds (default: 1)\n"
    "  --seed N         of the order within a round (default: 1)\n"
    "  --socket PATH    the daemon's socket (default: the user's, started if absent)\n"
    "  --help\n"
    "\n"
    "Across nodes:\n"
    "  --csv            a line for each result\n"
    "  --preset NAME    the geometry of a model (default: 8 heads of 128, 1024 rows)\n"
    "  --window ROWS    its window\n"
    "  --cold           push everything out of the caches before each sample\n"
    "  --limit 'CASE KEY<=VALUE'  for VALID or INVALID; >= as well; CASE: a pattern;\n"
    "                   KEY: p50_us p99_us max_us gbps wrong ratio; may be repeated\n"
    "  --plot FOLDER    SVG files, by gnuplot where it is installed\n"
    "  --bound PERCENT  of compare: no difference, beside the noise (default: 10)\n"
    "\n"
    "Exit code: 0 done, 1 a case failed, 2 usage, 3 no daemon, 4 INVALID, or B is\n"
    "slower.\n";

static const struct bench_case *find_case(const char *name)
{
    for (size_t i = 0; i < N_CASES; i++) {
        if (strcmp(cases[i].name, name) == 0)
            return &cases[i];
    }
    return NULL;
}

static bool is_across_nodes(const char *name)
{
    for (size_t i = 0; nodes_case_at(i) != NULL; i++) {
        if (strcmp(nodes_case_at(i)->name, name) == 0)
            return true;
    }
    return false;
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

enum option_name {
    LIST,
    JSON,
    FULL,
    MODEL,
    ROUNDS,
    SECONDS,
    SEED,
    SOCKET,
    HELP,
    CSV,
    PRESET,
    WINDOW,
    COLD,
    LIMIT,
    PLOT,
    BOUND,
};

static int add_limit(struct bench_options *options, const char *text)
{
    if (!nodes_is_limit(text) || options->n_limits == BENCH_LIMITS_MAX)
        return -EINVAL;
    options->limits[options->n_limits++] = text;
    return 0;
}

/* One option. @return 0, or -EINVAL: its value is none. */
static int set_option(struct bench_options *options, int choice)
{
    switch (choice) {
    case LIST:
        options->is_list = true;
        return 0;
    case JSON:
        options->is_json = true;
        return 0;
    case FULL:
        options->is_full = true;
        return 0;
    case MODEL:
        options->model = optarg;
        return 0;
    case ROUNDS:
        return parse_count(optarg, &options->rounds);
    case SECONDS:
        return parse_seconds(optarg, &options->seconds);
    case SEED:
        return parse_count(optarg, &options->seed);
    case SOCKET:
        options->socket_path = optarg;
        return 0;
    case HELP:
        options->is_help = true;
        return 0;
    case CSV:
        options->is_csv = true;
        return 0;
    case PRESET:
        options->preset = optarg;
        return 0;
    case WINDOW:
        return parse_count(optarg, &options->window_rows);
    case COLD:
        options->is_cold = true;
        return 0;
    case LIMIT:
        return add_limit(options, optarg);
    case PLOT:
        options->plot_folder = optarg;
        return 0;
    default: /* BOUND */
        return parse_seconds(optarg, &options->bound);
    }
}

/* Options up to the first case; getopt says what is wrong, or we do. */
static int parse_options(int argc, char **argv, struct bench_options *options)
{
    static const struct option names[] = {
        {"list", no_argument, NULL, LIST},
        {"json", no_argument, NULL, JSON},
        {"full", no_argument, NULL, FULL},
        {"model", required_argument, NULL, MODEL},
        {"rounds", required_argument, NULL, ROUNDS},
        {"seconds", required_argument, NULL, SECONDS},
        {"seed", required_argument, NULL, SEED},
        {"socket", required_argument, NULL, SOCKET},
        {"help", no_argument, NULL, HELP},
        {"csv", no_argument, NULL, CSV},
        {"preset", required_argument, NULL, PRESET},
        {"window", required_argument, NULL, WINDOW},
        {"cold", no_argument, NULL, COLD},
        {"limit", required_argument, NULL, LIMIT},
        {"plot", required_argument, NULL, PLOT},
        {"bound", required_argument, NULL, BOUND},
        {NULL, 0, NULL, 0},
    };
    int choice;
    int index = 0;

    while ((choice = getopt_long(argc, argv, "", names, &index)) != -1) {
        if (choice == '?')
            return -EINVAL;
        int error = set_option(options, choice);
        if (error != 0) {
            fprintf(stderr, "kvwheel-bench: --%s: '%s' is no value for it\n",
                    names[index].name, optarg);
            return error;
        }
    }
    return 0;
}

/* Known, and all of one kind. */
static int check_cases(int argc, char **argv)
{
    for (int i = optind; i < argc; i++) {
        if (find_case(argv[i]) == NULL && !is_across_nodes(argv[i])) {
            fprintf(stderr, "kvwheel-bench: no case '%s'; --list shows them\n",
                    argv[i]);
            return -EINVAL;
        }
        if (is_across_nodes(argv[i]) != is_across_nodes(argv[optind])) {
            fprintf(stderr, "kvwheel-bench: '%s' and '%s' are not of one kind\n",
                    argv[optind], argv[i]);
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

static void list_cases(void)
{
    for (size_t i = 0; i < N_CASES; i++)
        printf("%-10s %s\n", cases[i].name, cases[i].line);
    printf("\nacross nodes:\n");
    for (size_t i = 0; nodes_case_at(i) != NULL; i++)
        printf("%-10s %s\n", nodes_case_at(i)->name, nodes_case_at(i)->line);
}

static int compare(int argc, char **argv, double percent)
{
    if (optind + 3 != argc) {
        fputs("kvwheel-bench: compare takes two reports of --json\n", stderr);
        return BENCH_USAGE;
    }
    return compare_reports(argv[optind + 1], argv[optind + 2], percent / 100);
}

int main(int argc, char **argv)
{
    struct bench_options options = {.seconds = 1, .seed = 1, .bound = 10};
    struct bench bench;
    int code;

    if (parse_options(argc, argv, &options) != 0)
        return BENCH_USAGE;
    if (options.is_help) {
        fputs(help, stdout);
        return BENCH_OK;
    }
    if (options.is_list) {
        list_cases();
        return BENCH_OK;
    }
    if (optind < argc && strcmp(argv[optind], "compare") == 0)
        return compare(argc, argv, options.bound);
    if (check_cases(argc, argv) != 0)
        return BENCH_USAGE;
    bench_init(&bench, &options);
    if (optind == argc || is_across_nodes(argv[optind]))
        code = nodes_run(&bench, argc - optind, argv + optind);
    else
        code = run_cases(&bench, argc, argv);
    bench_fini(&bench);
    return code;
}
