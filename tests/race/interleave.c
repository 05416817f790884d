/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run the scenes. Each run prints its bounds and how much was seen within them.
 *
 *   interleave [--deep] [--random N] [--seed S] [--must-fail] [--quiet]
 *              [--run MODEL,SWITCHES,DEATHS,LATE,EARLY] [scene ...]
 *
 * --deep       larger bounds: minutes
 * --random N   N random schedules of each scene beyond what was searched
 * --run        one run with these bounds instead of the scene's own ("-" unbounded)
 * --must-fail  for mutants: succeed at the first scene that finds an error
 */
#include "tests/race/interleave.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options {
    bool is_deep;
    bool must_fail;
    bool is_quiet;
    bool has_run;
    struct interleave_run run;
    uint64_t random;
    uint64_t seed;
    uint64_t schedules_max;
    char **scene;
    int n_scenes;
};

static const char *const models[] = {"SC", "TSO", "PSO"};

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void print_run(const char *scene, const struct explore_bounds *bounds,
                      const struct explore_result *result, double seconds)
{
    char switches[16] = "any";

    if (bounds->switches != EXPLORE_UNBOUNDED)
        (void)snprintf(switches, sizeof switches, "%u", bounds->switches);
    printf("%-16s %-3s switches %-3s deaths %u late %u early %u: %s %9llu schedules "
           "%9llu states %7llu deaths %6.2f s%s\n",
           scene, models[bounds->model], switches, bounds->deaths, bounds->late,
           bounds->early,
           bounds->random > 0    ? "random"
           : result->is_failed   ? "FAILS "
           : result->is_complete ? "all   "
                                 : "bound ",
           (unsigned long long)result->schedules, (unsigned long long)result->states,
           (unsigned long long)result->deaths, seconds,
           result->is_failed ? " FAILED" : "");
    (void)fflush(stdout);
}

/* True if an error was found. */
static bool run_one(const struct options *options, const struct explore_scene *scene,
                    const struct interleave_run *run, uint64_t random)
{
    const struct explore_bounds bounds = {
        .model = run->model,
        .switches = run->switches,
        .deaths = run->deaths,
        .late = run->late,
        .early = run->early,
        .schedules_max = options->schedules_max,
        .random = random,
        .seed = options->seed,
    };
    struct explore_result result;
    const double begun_s = now_s();

    explore_run(scene, &bounds, !options->is_quiet, &result);
    print_run(scene->name, &bounds, &result, now_s() - begun_s);
    if (result.is_failed && options->must_fail)
        printf("CAUGHT by %s under %s after %llu schedules: %s\n", scene->name,
               models[run->model], (unsigned long long)result.schedules, result.text);
    return result.is_failed;
}

static bool is_wanted(const struct options *options, const char *scene)
{
    for (int i = 0; i < options->n_scenes; i++) {
        if (strcmp(options->scene[i], scene) == 0)
            return true;
    }
    return options->n_scenes == 0;
}

static bool is_end(const struct interleave_case *of, const struct interleave_run *run)
{
    return run == of->run + INTERLEAVE_RUNS_MAX ||
           run->switches + run->deaths + run->late + run->early == 0;
}

/* @return how many runs found an error. */
static int run_cases(const struct options *options, const struct interleave_case *cases,
                     int *n_runs)
{
    int n_failed = 0;

    for (const struct interleave_case *of = cases; of->scene.name != NULL; of++) {
        if (!is_wanted(options, of->scene.name))
            continue;
        for (const struct interleave_run *run = of->run; !is_end(of, run); run++) {
            if (run->is_deep && !options->is_deep)
                continue;
            if (options->has_run)
                run = &options->run;
            n_failed += run_one(options, &of->scene, run, options->random);
            (*n_runs)++;
            if (options->must_fail && n_failed > 0)
                return n_failed;
            if (options->has_run)
                break;
        }
    }
    return n_failed;
}

static bool parse_run(const char *text, struct interleave_run *run)
{
    char model[8];
    char switches[8];
    unsigned deaths;
    unsigned late;
    unsigned early;

    if (sscanf(text, "%7[^,],%7[^,],%u,%u,%u", model, switches, &deaths, &late,
               &early) != 5)
        return false;
    for (int i = 0; i < 3; i++) {
        if (strcmp(models[i], model) == 0)
            run->model = (enum explore_model)i;
    }
    run->switches =
        switches[0] == '-' ? EXPLORE_UNBOUNDED : (uint8_t)strtoul(switches, NULL, 10);
    run->deaths = (uint8_t)deaths;
    run->late = (uint8_t)late;
    run->early = (uint8_t)early;
    return true;
}

static int usage(void)
{
    (void)fprintf(stderr, "usage: interleave [--deep] [--random N] [--seed S] "
                          "[--must-fail] [--quiet] [--max N] [--run "
                          "MODEL,SWITCHES,DEATHS,LATE,EARLY] [scene ...]\n");
    return 2;
}

static bool parse(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--deep") == 0) {
            options->is_deep = true;
        } else if (strcmp(argv[i], "--must-fail") == 0) {
            options->must_fail = true;
        } else if (strcmp(argv[i], "--quiet") == 0) {
            options->is_quiet = true;
        } else if (argv[i][0] != '-') {
            options->scene = &argv[i];
            options->n_scenes = argc - i;
            return true;
        } else if (value == NULL) {
            return false;
        } else if (strcmp(argv[i], "--random") == 0) {
            options->random = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--seed") == 0) {
            options->seed = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--max") == 0) {
            options->schedules_max = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--run") == 0) {
            options->has_run = parse_run(argv[++i], &options->run);
            if (!options->has_run)
                return false;
        } else {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    const struct interleave_case *const all[] = {interleave_board,  interleave_pins,
                                                 interleave_ranks,  interleave_recover,
                                                 interleave_staged, interleave_wait};
    struct options options = {.seed = 1, .schedules_max = 10000000};
    int n_failed = 0;
    int n_runs = 0;

    if (!parse(argc, argv, &options))
        return usage();
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        n_failed += run_cases(&options, all[i], &n_runs);
        if (options.must_fail && n_failed > 0)
            return 0;
    }
    printf("%d runs, %d with errors\n", n_runs, n_failed);
    return n_failed > 0 || n_runs == 0 || options.must_fail;
}
