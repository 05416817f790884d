/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random sequences of all calls of the data path on random caches, each call compared
 * with the oracle and everything visible compared after it. A failure prints its seed,
 * is shrunk (operations are dropped while it still fails) and printed call by call:
 *
 *     property --seed S --steps N --only 3,17,40 --verbose      plays just those again
 *
 * Each list is played in a child, so that a crash is a failure like any other.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/model/plan.h"

enum { STEPS_MAX = 4096 };

struct options {
    uint64_t seed;
    uint64_t runs;
    uint32_t steps;
    uint32_t seconds; /* 0 = as many as it takes */
    bool is_help;
    bool is_verbose;
    bool is_going_on; /* after a failure, with the next seed */
    const char *only; /* comma-separated numbers of operations */
};

struct totals {
    uint64_t runs;
    uint64_t calls;
    uint64_t refused;
    uint64_t views;
    char failure[512]; /* of the last run */
};

/* Play the operations that are chosen. 0, or 1 with a text. */
static int play_list(uint64_t seed, const bool *is_chosen, uint32_t steps,
                     bool is_finish, FILE *log, struct totals *totals)
{
    static struct player player;
    struct kvw_geometry geometry;
    struct kvw_refusal refusal;
    struct op op;

    plan_geometry(seed, &geometry);
    int error = geometry_check(&geometry, &refusal);
    if (error == -EINVAL && strstr(refusal.text, "larger blocks") != NULL)
        return 0; /* too many pieces for a view: not a cache */
    if (error != 0) {
        (void)snprintf(totals->failure, sizeof totals->failure, "geometry: %s",
                       refusal.text);
        return 1;
    }
    bool is_ok = player_init(&player, &geometry, seed, log);
    for (uint32_t i = 0; i < steps && is_ok; i++) {
        if (!is_chosen[i])
            continue;
        plan_op(seed, i, &op);
        if (log != NULL)
            fprintf(log, " operation %u\n", i);
        is_ok = player_play(&player, &op);
    }
    if (is_ok && log != NULL)
        fprintf(log, " finish\n");
    is_ok = is_ok && (!is_finish || player_finish(&player));
    totals->runs++;
    totals->calls += player.n_calls;
    totals->refused += player.n_refused;
    totals->views += player.n_views;
    if (!is_ok)
        memcpy(totals->failure, player.failure, sizeof totals->failure);
    player_fini(&player);
    return is_ok ? 0 : 1;
}

/* The same in a child: a signal is a failure too. */
static int play_apart(uint64_t seed, const bool *is_chosen, uint32_t steps,
                      bool is_finish, struct totals *shared)
{
    shared->failure[0] = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child < 0)
        return 1;
    if (child == 0) {
        alarm(60);
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(3);
        _exit(play_list(seed, is_chosen, steps, is_finish, NULL, shared));
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        (void)snprintf(shared->failure, sizeof shared->failure, "signal %d",
                       WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0 && shared->failure[0] == 0)
        (void)snprintf(shared->failure, sizeof shared->failure, "exit status %d",
                       WEXITSTATUS(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

/* Drop halves, quarters ... single operations, while the rest still fails. */
static void shrink(uint64_t seed, bool *is_chosen, uint32_t steps, bool *is_finish,
                   struct totals *shared)
{
    bool is_tried[STEPS_MAX];

    if (play_apart(seed, is_chosen, steps, false, shared) != 0)
        *is_finish = false;
    for (uint32_t size = steps; size > 0; size /= 2) {
        bool is_smaller = true;
        while (is_smaller) {
            is_smaller = false;
            for (uint32_t from = 0; from < steps; from += size) {
                uint32_t n_dropped = 0;
                memcpy(is_tried, is_chosen, sizeof is_tried);
                for (uint32_t i = from; i < from + size && i < steps; i++) {
                    n_dropped += is_tried[i];
                    is_tried[i] = false;
                }
                if (n_dropped == 0 ||
                    play_apart(seed, is_tried, steps, *is_finish, shared) == 0)
                    continue;
                memcpy(is_chosen, is_tried, sizeof is_tried);
                is_smaller = size == 1;
            }
        }
    }
}

static void report(uint64_t seed, bool *is_chosen, uint32_t steps,
                   struct totals *shared)
{
    struct kvw_geometry geometry;
    bool is_finish = true;
    const char *comma = "";

    printf("FAILED seed %" PRIu64 ": %s\n", seed, shared->failure);
    fflush(stdout);
    shrink(seed, is_chosen, steps, &is_finish, shared);
    (void)play_apart(seed, is_chosen, steps, is_finish, shared);
    printf("shrunk: %s\nagain:  property --seed %" PRIu64 " --steps %u %s--only ",
           shared->failure, seed, steps, is_finish ? "" : "--no-finish ");
    for (uint32_t i = 0; i < steps; i++) {
        if (is_chosen[i]) {
            printf("%s%u", comma, i);
            comma = ",";
        }
    }
    printf("%s\n", comma[0] == 0 ? "none" : "");
    plan_geometry(seed, &geometry);
    plan_print(&geometry, stdout);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct totals own = {0};
        setvbuf(stdout, NULL, _IOLBF, 0);
        _exit(play_list(seed, is_chosen, steps, is_finish, stdout, &own));
    }
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
}

static void choose(const struct options *options, bool *is_chosen)
{
    memset(is_chosen, options->only == NULL, STEPS_MAX * sizeof *is_chosen);
    for (const char *at = options->only; at != NULL && *at != 0;) {
        char *end;
        unsigned long number = strtoul(at, &end, 10);
        if (end == at)
            break;
        if (number < STEPS_MAX)
            is_chosen[number] = true;
        at = *end == ',' ? end + 1 : end;
    }
}

static void print_help(FILE *to)
{
    fprintf(to,
            "usage: property [options]\n"
            "  --seed N      seed of the first run (1)\n"
            "  --runs N      runs, each with the seed after the last one's (300)\n"
            "  --steps N     operations of a run, at most %d (120)\n"
            "  --seconds N   begin no run after these; 0 = do all (0)\n"
            "  --only LIST   play only these operations: numbers with commas between\n"
            "  --no-finish   do not recover and roll every lane at the end of a run\n"
            "  --go-on       after a failure, go on with the next seed\n"
            "  --verbose     play the first seed only, and print every call\n"
            "  --help        print this\n",
            STEPS_MAX);
}

static int read_options(int argc, char **argv, struct options *options, bool *is_finish)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--help") == 0)
            options->is_help = true;
        else if (strcmp(argv[i], "--verbose") == 0)
            options->is_verbose = true;
        else if (strcmp(argv[i], "--no-finish") == 0)
            *is_finish = false;
        else if (strcmp(argv[i], "--go-on") == 0)
            options->is_going_on = true;
        else if (strcmp(argv[i], "--seed") == 0)
            options->seed = strtoull(value, NULL, 0), i++;
        else if (strcmp(argv[i], "--runs") == 0)
            options->runs = strtoull(value, NULL, 0), i++;
        else if (strcmp(argv[i], "--steps") == 0)
            options->steps = (uint32_t)strtoul(value, NULL, 0), i++;
        else if (strcmp(argv[i], "--seconds") == 0)
            options->seconds = (uint32_t)strtoul(value, NULL, 0), i++;
        else if (strcmp(argv[i], "--only") == 0)
            options->only = value, i++;
        else
            return -EINVAL;
    }
    if (options->steps > STEPS_MAX)
        options->steps = STEPS_MAX;
    return 0;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
    static bool is_chosen[STEPS_MAX];
    struct options options = {.seed = 1, .runs = 300, .steps = 120};
    bool is_finish = true;
    int n_failed = 0;

    int error = read_options(argc, argv, &options, &is_finish);
    if (error != 0 || options.is_help) {
        print_help(error != 0 ? stderr : stdout);
        return error != 0 ? 2 : 0;
    }
    printf("property: seed %" PRIu64 "\n", options.seed);
    struct totals *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    choose(&options, is_chosen);
    if (options.is_verbose) {
        struct kvw_geometry geometry;
        plan_geometry(options.seed, &geometry);
        plan_print(&geometry, stdout);
        int result = play_list(options.seed, is_chosen, options.steps, is_finish,
                               stdout, shared);
        printf("%s\n", result == 0 ? "ok" : shared->failure);
        return result;
    }
    const double start = now();
    for (uint64_t run = 0; run < options.runs; run++) {
        uint64_t seed = options.seed + run;
        if (options.seconds > 0 && now() - start > options.seconds)
            break;
        choose(&options, is_chosen);
        if (play_apart(seed, is_chosen, options.steps, is_finish, shared) == 0)
            continue;
        report(seed, is_chosen, options.steps, shared);
        n_failed++;
        if (!options.is_going_on)
            break;
    }
    printf("%" PRIu64 " runs from seed %" PRIu64 ", %" PRIu64 " calls (%" PRIu64
           " refused), %" PRIu64 " views compared, %d failed, %.1f s\n",
           shared->runs, options.seed, shared->calls, shared->refused, shared->views,
           n_failed, now() - start);
    return n_failed == 0 ? 0 : 1;
}
