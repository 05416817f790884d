/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deaths under load: eight workers roll, read, come and go; one of them, or the daemon,
 * is killed at a moment that nobody chose, and replaced. After every hundred deaths all
 * workers are killed, and caches, bytes, attachments, descriptors, mappings and memfds
 * must be what they were at the start, and every row what was written.
 *
 *   --workers N, --daemons N  how many to kill
 *   --seed N                  of the choices
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/death/host.h"
#include "tests/death/rows.h"
#include "tests/death/scene.h"

enum {
    CACHES = 2,
    RANKS = 2,
    WRITERS = CACHES * RANKS,
    READERS = 2,
    COMERS = 2,
    WORKERS = WRITERS + READERS + COMERS,
    KILLS_PER_LOOK = 100,
    TRIES = 10000, /* of a millisecond: an owner's death is seen after a moment */
    PAUSE_US_MAX = 5000,
    DEATHS_PER_KEEPER = 3, /* then it would start the next daemons ever later */
};

static const char *const names[CACHES] = {"soak.0", "soak.1"};

static struct {
    _Atomic uint64_t n_chunks;
    _Atomic uint64_t n_views; /* of all layers, checked */
    _Atomic uint64_t n_visits;
    _Atomic uint32_t n_failures;
} * shared;

static struct host host;
static pid_t workers[WORKERS];

static struct {
    uint64_t n_workers;
    uint64_t n_daemons;
    uint64_t seed;
} options = {.n_workers = 100, .n_daemons = 10, .seed = 1};

static struct {
    uint64_t n_workers;
    uint64_t n_daemons;
    uint64_t n_keepers;
} killed;

static uint64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static double seconds(void)
{
    static uint64_t begin_us;

    if (begin_us == 0)
        begin_us = now_us();
    return (double)(now_us() - begin_us) / 1e6;
}

/* ------------------------------------------------------- workers ---------- */

static _Noreturn void give_up(const char *what, int error, const char *why)
{
    fprintf(stderr, "worker %d: %s: %d, %s\n", getpid(), what, error, why);
    atomic_fetch_add(&shared->n_failures, 1);
    _exit(1);
}

static struct kvw_cache *attach(struct kvw_client *client, const char *name,
                                uint32_t rank)
{
    struct kvw_attach_options choice = KVW_ATTACH_OPTIONS_INIT;
    struct kvw_cache *cache = NULL;
    int error = -EBUSY;

    choice.pin_policy = KVW_PIN_REVOKE;
    choice.timeout_ns = 200000000;
    for (int tries = 0; tries < TRIES && error == -EBUSY; tries++) {
        error = kvw_attach(client, name, rank, &choice, &cache);
        if (error == -EBUSY)
            poll(NULL, 0, 1);
    }
    if (error == -ENOENT)
        return NULL;
    if (error != 0)
        give_up("attach", error, kvw_last_error());
    return cache;
}

static void check(struct kvw_cache *cache)
{
    const char *wrong = rows_check(cache);

    if (wrong != NULL)
        give_up("view", 0, wrong);
    atomic_fetch_add(&shared->n_views, 1);
}

/* One chunk; a rank that is dead, or not there yet, holds it up. */
static void roll(struct kvw_cache *cache)
{
    int error = rows_roll(cache);

    if (error != 0 && error != -EOWNERDEAD && error != -ETIMEDOUT)
        give_up("roll", error, kvw_last_error());
    atomic_fetch_add(&shared->n_chunks, error == 0);
}

static void write_on(struct kvw_client *client, uint32_t number)
{
    struct kvw_cache *cache = attach(client, names[number / RANKS], number % RANKS);

    if (cache == NULL)
        give_up("attach", -ENOENT, "the cache is gone");
    for (uint32_t i = 0;; i++) {
        roll(cache);
        if (i % 4 == 0)
            check(cache);
        poll(NULL, 0, 1); /* a worker computes between two chunks */
    }
}

static void read_on(struct kvw_client *client, uint32_t number)
{
    struct kvw_cache *cache = attach(client, names[number % CACHES], KVW_READER);

    if (cache == NULL)
        give_up("attach", -ENOENT, "the cache is gone");
    for (;;) {
        check(cache);
        poll(NULL, 0, 1);
    }
}

/* A cache of its own, made and used; in the end detached from, or removed. */
static void visit(struct kvw_client *client, const char *name, bool removes)
{
    struct kvw_spec spec;

    rows_spec(&spec, name, 1, KVW_LIFETIME_JOB);
    int error = kvw_create(client, &spec, NULL, NULL);
    if (error < 0)
        give_up("create", error, kvw_last_error());
    struct kvw_cache *cache = attach(client, name, 0);
    if (cache == NULL)
        return; /* it was that of the one before, and ended with its death */
    for (int i = 0; i < 6; i++)
        roll(cache);
    check(cache);
    if (removes) {
        error = kvw_remove(client, name, 1);
        if (error != 0 && error != -EPIPE)
            give_up("remove", error, kvw_last_error());
    }
    kvw_detach(cache);
    atomic_fetch_add(&shared->n_visits, 1);
}

static _Noreturn void work(uint32_t number)
{
    struct kvw_client *client;
    char name[16];

    int error = kvw_connect(host.socket, &client);
    if (error != 0)
        give_up("connect", error, kvw_last_error());
    if (number < WRITERS)
        write_on(client, number);
    else if (number < WRITERS + READERS)
        read_on(client, number);
    snprintf(name, sizeof name, "visit.%u", number);
    for (uint32_t i = 0;; i++)
        visit(client, name, i % 2 == 0);
}

static void start_worker(uint32_t number)
{
    workers[number] = fork();
    if (workers[number] == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(number);
    }
}

static void kill_worker(uint32_t number)
{
    int status = 0;

    (void)kill(workers[number], SIGKILL);
    while (waitpid(workers[number], &status, 0) < 0 && errno == EINTR)
        continue;
    EXPECT(WIFSIGNALED(status), "worker %u had ended by itself", number);
}

/* -------------------------------------------------------- deaths ---------- */

static void kill_daemon(void)
{
    struct holdings ignored;

    host_look(&host, names[0], &ignored); /* which one it is, by its own word */
    (void)kill(host.daemon, SIGKILL);
    killed.n_daemons++;
    if (killed.n_daemons % DEATHS_PER_KEEPER == 0) {
        EXPECT(host_renew_keeper(&host), "no new keeper");
        killed.n_keepers++;
    }
}

static void collect_garbage(void)
{
    struct kvw_message request = {.type = KVW_MESSAGE_GC,
                                  .gc = {.idle_seconds = UINT64_MAX}};
    struct kvw_message answer;

    OK(client_call(host.client, &request, &answer, NULL, 0, NULL, NULL));
}

/* A daemon that has not seen all deaths yet has nothing to collect either. */
static bool is_as_before(const struct holdings *start)
{
    struct holdings now;

    for (int tries = 0; tries < 5000; tries++) {
        collect_garbage();
        host_look(&host, names[0], &now);
        if (memcmp(&now, start, sizeof now) == 0)
            return true;
        poll(NULL, 0, 1);
    }
    return host_returns_to(&host, names[0], start);
}

static void look(const struct holdings *start)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        kill_worker(i);
        killed.n_workers++;
    }
    EXPECT(is_as_before(start), "something is left");
    for (uint32_t i = 0; i < CACHES; i++) {
        struct kvw_cache *cache = attach(host.client, names[i], KVW_READER);
        const char *wrong = cache != NULL ? rows_check(cache) : "gone";
        EXPECT(wrong == NULL, "cache %s: %s", names[i], wrong);
        kvw_detach(cache);
    }
    EXPECT(host_returns_to(&host, names[0], start), "a reader left something");
    EXPECT(atomic_load(&shared->n_failures) == 0, "a worker failed");
    printf("[%6.1f s] killed: %" PRIu64 " workers, %" PRIu64 " daemons, %" PRIu64
           " keepers; %" PRIu64 " chunks, %" PRIu64 " views, %" PRIu64
           " visits; as at the start: %" PRIu64 " bytes, %" PRIu64
           " attachments, %" PRIu64 " + %" PRIu64 " descriptors, %" PRIu64
           " mappings, %" PRIu64 " memfds\n",
           seconds(), killed.n_workers, killed.n_daemons, killed.n_keepers,
           atomic_load(&shared->n_chunks), atomic_load(&shared->n_views),
           atomic_load(&shared->n_visits), start->of[HOLD_BYTES],
           start->of[HOLD_ATTACHMENTS], start->of[HOLD_DAEMON_FDS],
           start->of[HOLD_KEEPER_FDS], start->of[HOLD_DAEMON_MAPS],
           start->of[HOLD_MEMFDS]);
    fflush(stdout);
}

/* Until the next look. */
static void die_and_be_replaced(uint64_t *random)
{
    for (uint32_t i = 0; i < WORKERS; i++)
        start_worker(i);
    for (uint32_t i = 0; i < KILLS_PER_LOOK - WORKERS && test_failures() == 0; i++) {
        const struct timespec pause = {
            .tv_nsec = (long)(test_random(random) % PAUSE_US_MAX * 1000)};
        const uint32_t number = (uint32_t)(test_random(random) % WORKERS);
        /* Not to wait for anything: to kill at a moment that nobody chose. */
        (void)nanosleep(&pause, NULL);
        kill_worker(number);
        killed.n_workers++;
        start_worker(number);
        if (killed.n_daemons * options.n_workers < killed.n_workers * options.n_daemons)
            kill_daemon();
    }
}

/* ---------------------------------------------------------- main ---------- */

static bool set_up(void)
{
    struct kvw_spec spec;

    /* Keepers and daemons that lose their parents become our children. */
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || host_start(&host) != 0)
        return false;
    for (uint32_t i = 0; i < CACHES; i++) {
        rows_spec(&spec, names[i], RANKS, KVW_LIFETIME_KEEP);
        if (kvw_create(host.client, &spec, NULL, NULL) != 0)
            return false;
    }
    return true;
}

static int read_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        uint64_t *option = strcmp(argv[i], "--workers") == 0   ? &options.n_workers
                           : strcmp(argv[i], "--daemons") == 0 ? &options.n_daemons
                           : strcmp(argv[i], "--seed") == 0    ? &options.seed
                                                               : NULL;
        if (option == NULL || i + 1 == argc) {
            fprintf(stderr, "usage: %s [--workers N] [--daemons N] [--seed N]\n",
                    argv[0]);
            return -1;
        }
        *option = strtoull(argv[i + 1], NULL, 0);
    }
    return options.n_workers > 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct holdings start;

    if (read_options(argc, argv) != 0)
        return 2;
    (void)seconds();
    if (!set_up()) {
        fprintf(stderr, "no daemon or no cache: %s\n", kvw_last_error());
        return 1;
    }
    host_look(&host, names[0], &start);
    uint64_t random = options.seed;
    while (killed.n_workers < options.n_workers && test_failures() == 0) {
        die_and_be_replaced(&random);
        look(&start);
    }
    EXPECT(host_stop(&host), "the daemon or its keeper did not end");
    while (waitpid(-1, NULL, WNOHANG) > 0)
        continue;
    EXPECT(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD, "a process is left");
    printf("seed %" PRIu64 ": %" PRIu64 " workers and %" PRIu64 " daemons and %" PRIu64
           " keepers killed under load, %" PRIu64 " chunks, %" PRIu64
           " views checked, %u failures, %.1f s\n",
           options.seed, killed.n_workers, killed.n_daemons, killed.n_keepers,
           atomic_load(&shared->n_chunks), atomic_load(&shared->n_views),
           test_failures(), seconds());
    return test_failures() == 0 ? 0 : 1;
}
