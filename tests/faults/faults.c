/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The n-th call fails, for n = 1, 2, ... until the run makes no more calls (page.h), with
 * each error that the call can have. Then the same is done again, which must succeed, and
 * daemon, keeper and this process must hold what they held before: caches, attachments,
 * seats, clients, descriptors, mappings, allocations. A daemon that has ended, an error
 * without words, a wait without end fail the test.
 *
 *   --quick       every fourth call, one error each; of a start, every twelfth
 *   --only NAME   one scenario
 *   --call N      one call of it
 *   --verbose     every failure, in the words of the error
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/faults/page.h"
#include "tests/faults/scenarios.h"

#define QUICK_STRIDE 4
#define SLOW_STRIDE 3
#define HANG_SECONDS 40

/* What this process holds. */
struct own {
    uint32_t n_fds;
    uint32_t n_segments; /* mapped */
    int64_t n_allocations;
};

static struct fault_page *page;
static struct scene scene;
static struct holdings start;
static struct own own_start;
static char place[160]; /* of the failing call, for reports */

static struct {
    uint32_t stride;
    uint32_t call;
    bool has_variants;
    bool is_verbose;
    const char *only;
} options = {.stride = 1, .has_variants = true};

static struct {
    uint32_t n_failed;  /* calls */
    uint32_t n_refused; /* runs that failed, in words */
    uint32_t n_keepers; /* that were replaced */
    uint32_t n_wrong;
} totals;

static __attribute__((format(printf, 1, 2))) void wrong(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fprintf(stderr, "%s: ", place);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    totals.n_wrong++;
}

static void hang(int signal)
{
    static const char text[] = ": hangs\n";

    (void)signal;
    (void)!write(STDERR_FILENO, place, strlen(place));
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(1);
}

/* ---------------------------------------------------------- comparing ---------- */

static struct own look_at_own(void)
{
    struct own own = {.n_allocations = fault_allocations()};
    char line[512];

    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL)
        own.n_fds++;
    if (folder != NULL)
        closedir(folder);
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        own.n_segments += strstr(line, "memfd:") != NULL;
    if (maps != NULL)
        fclose(maps);
    return own;
}

static void compare(void)
{
    struct own now;

    if (!host_returns_to(&scene.host, BASE, &start)) {
        wrong("daemon or keeper do not hold what they held");
        host_look(&scene.host, BASE, &start);
    }
    now = look_at_own();
    if (memcmp(&now, &own_start, sizeof now) == 0)
        return;
    wrong("this process holds %u descriptors, %u segments, %" PRId64
          " allocations; before, %u, %u, %" PRId64,
          now.n_fds, now.n_segments, now.n_allocations, own_start.n_fds,
          own_start.n_segments, own_start.n_allocations);
    own_start = now;
}

/* Which processes there are now. Only those of the scenario may be others. */
static void meet(const struct scenario *scenario)
{
    struct kvw_message_status_is status = {0};

    int error = scene_status(&scene, &status);
    if (error != 0) {
        wrong("no daemon answers: %s", kvw_last_error());
        return;
    }
    bool is_other_daemon = (pid_t)status.pid != scene.host.daemon;
    bool is_other_keeper = (pid_t)status.keeper_pid != scene.host.keeper;
    if (is_other_daemon && !scenario->replaces_daemon)
        wrong("the daemon has died");
    totals.n_keepers += is_other_keeper && !scenario->replaces_keeper;
    scene.host.daemon = (pid_t)status.pid;
    scene.host.keeper = (pid_t)status.keeper_pid;
}

/* ------------------------------------------------------------ failing ---------- */

/* Let call `at` of a role fail in what follows. */
static void arm(uint32_t role, uint32_t at, uint32_t variant)
{
    atomic_store(&page->n_calls, 0);
    atomic_store(&page->at, at);
    atomic_store(&page->variant, variant);
    atomic_store(&page->n_variants, 0);
    atomic_store(&page->error, 0);
    atomic_store(&page->armed, role);
}

static const char *role_name(uint32_t role)
{
    return role == FAULT_CLIENT ? "client" : role == FAULT_KEEPER ? "keeper" : "daemon";
}

static void note_place(const char *name, uint32_t role, uint32_t at)
{
    snprintf(place, sizeof place, "%s, %s's call %u, %s: %s (0x%" PRIx64 ")", name,
             role_name(role), at, page->name,
             strerrorname_np(atomic_load(&page->error)), atomic_load(&page->caller));
}

static void again(const struct scenario *scenario)
{
    int error = scenario->run(&scene);

    if (error != 0)
        wrong("once more: %d, %s", error, kvw_last_error());
}

/* @return how many errors that call has; 0 when there is no such call. */
static uint32_t run_once(const struct scenario *scenario, uint32_t role, uint32_t at,
                         uint32_t variant)
{
    snprintf(place, sizeof place, "%s, %s's call %u, variant %u", scenario->name,
             role_name(role), at, variant);
    (void)alarm(HANG_SECONDS);
    scenario->prepare(&scene);
    (void)fail(0, "%s", "");
    arm(role, at, variant);
    int error = scenario->run(&scene);
    atomic_store(&page->armed, 0);
    uint32_t n_variants = atomic_load(&page->n_variants);
    bool has_failed = atomic_load(&page->error) != 0;
    if (has_failed)
        note_place(scenario->name, role, at);
    totals.n_failed += has_failed;
    if (options.is_verbose && has_failed)
        printf("%s -> %d %s\n", place, error, error != 0 ? kvw_last_error() : "");
    if (error != 0 && !has_failed)
        wrong("fails without a reason: %d, %s", error, kvw_last_error());
    if (error != 0 && kvw_last_error()[0] == 0)
        wrong("fails without a word: %d", error);
    totals.n_refused += error != 0;
    meet(scenario);
    if (error != 0)
        again(scenario);
    scenario->undo(&scene);
    if (scene.wrong != NULL)
        wrong("%s (%s)", scene.wrong, kvw_last_error());
    scene.wrong = NULL;
    meet(scenario);
    compare();
    return n_variants;
}

static void run_role(const struct scenario *scenario, uint32_t role)
{
    const uint32_t n_failed = totals.n_failed;
    const uint32_t n_refused = totals.n_refused;
    uint32_t at = options.call != 0 ? options.call : 1;

    for (;; at += options.stride) {
        uint32_t n_variants = run_once(scenario, role, at, 0);
        if (n_variants == 0)
            break;
        for (uint32_t v = 1; v < n_variants && options.has_variants; v++)
            (void)run_once(scenario, role, at, v);
        if (options.call != 0)
            break;
        at += options.stride > 1 && scenario->is_slow
                  ? (SLOW_STRIDE - 1) * options.stride
                  : 0;
    }
    printf("%-22s %s: %4u calls, %4u failures, of which %u were refused\n",
           scenario->name, role_name(role), at - 1, totals.n_failed - n_failed,
           totals.n_refused - n_refused);
    (void)fflush(stdout);
}

static void run_scenario(const struct scenario *scenario, uint32_t roles)
{
    /* What is made once and stays, such as the look at the host at the first create. */
    for (int i = 0; i < 2; i++) {
        snprintf(place, sizeof place, "%s, nothing fails", scenario->name);
        scenario->prepare(&scene);
        again(scenario);
        scenario->undo(&scene);
        meet(scenario);
    }
    host_look(&scene.host, BASE, &start);
    own_start = look_at_own();
    for (uint32_t role = 1; role <= FAULT_DAEMON; role *= 2) {
        if ((roles & role) != 0)
            run_role(scenario, role);
    }
}

/* ---------------------------------------------------------------- main ---------- */

static int read_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            options.stride = QUICK_STRIDE;
            options.has_variants = false;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            options.is_verbose = true;
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            options.only = argv[++i];
        } else if (strcmp(argv[i], "--call") == 0 && i + 1 < argc) {
            options.call = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else {
            fprintf(stderr,
                    "usage: %s [--quick] [--only NAME] [--call N] [--verbose]\n",
                    argv[0]);
            return -1;
        }
    }
    return 0;
}

/* The folder that the daemon is taken from, and the page. */
static int set_up(char folder[64])
{
    char path[128];

    snprintf(folder, 64, "/tmp/kvwheel-faults-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/kvwheeld", folder);
    if (symlink(FAULTS_DAEMON, path) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/page", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *page) != 0)
        return -1;
    close(fd);
    page = fault_use(path, FAULT_CLIENT);
    (void)setenv("KVW_BIN", folder, 1);
    (void)setenv(FAULT_PAGE, path, 1);
    return page == NULL ? -1 : 0;
}

int main(int argc, char **argv)
{
    char folder[64];
    char command[128];
    struct timespec begun;
    struct timespec now;

    if (read_options(argc, argv) != 0)
        return 2;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    (void)signal(SIGALRM, hang);
    if (set_up(folder) != 0 || host_start(&scene.host) != 0 ||
        scene_begin(&scene) != 0) {
        fprintf(stderr, "no daemon or no cache: %s\n", kvw_last_error());
        return 1;
    }
    /* The first keeper is not the child of the daemon, and holds other descriptors. */
    run_scenario(&scenarios[n_scenarios - 1], 0);
    for (uint32_t i = 0; i < n_scenarios; i++) {
        if (options.only == NULL || strcmp(options.only, scenarios[i].name) == 0)
            run_scenario(&scenarios[i], scenarios[i].roles);
    }
    snprintf(place, sizeof place, "the end");
    snprintf(command, sizeof command,
             "! grep -hE 'Sanitizer|runtime error|: bug:' %s/*.log", scene.host.folder);
    if (system(command) != 0)
        wrong("a daemon or keeper has crashed or leaked, or the log is gone");
    if (!host_stop(&scene.host))
        wrong("the daemon or its keeper did not end");
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    (void)!system(command);
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("%u calls failed, %u runs were refused, %u keepers were replaced, %u wrong, "
           "%.1f s\n",
           totals.n_failed, totals.n_refused, totals.n_keepers, totals.n_wrong,
           (double)(now.tv_sec - begun.tv_sec) +
               (double)(now.tv_nsec - begun.tv_nsec) / 1e9);
    return totals.n_wrong == 0 ? 0 : 1;
}
