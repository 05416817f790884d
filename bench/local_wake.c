/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a commit to the return of a wait in another process: the time from just before
 * the call to just after the wait, by one clock. The reader either spins or sleeps. The
 * floors are a bare store that another process spins on, and a futex. Where there are
 * two CPUs the writer is bound to the first and the reader to the second of those
 * allowed: else the kernel likes to put both on one, and the time is that of a switch.
 *
 * The two processes talk through a page of three counters: `ask` says what to wait for,
 * `ready` that the waiter is about to, `done` that it was woken.
 */
#include "bench/local.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAKES_PER_ROUND 4
#define PATIENCE_S 20
#define SPINNING_US 2000000u /* longer than anything here takes */
#define ASLEEP_NS 300000     /* after that long a sleeper sleeps */
#define SPINS_NS 20000       /* after that long a spinner spins */

enum wake_kind {
    WAKE_ATTACH,
    WAKE_SPINNING,
    WAKE_SLEEPING,
    WAKE_FLOOR_SPINNING,
    WAKE_FLOOR_SLEEPING,
};

/* Shared with the other process. */
struct page {
    _Alignas(64) _Atomic uint32_t ask;
    _Alignas(64) _Atomic uint32_t ready;
    _Alignas(64) _Atomic uint32_t done;
    _Alignas(64) _Atomic uint32_t word; /* what the floors wait for */
    /* Of the request and its answer; ordered by the counters. */
    _Alignas(64) uint32_t kind;
    int32_t error;
    uint64_t step;
    uint64_t woken_ns;
    char name[64]; /* of the cache */
    char text[256];
};

struct waker {
    pid_t pid;
    uint32_t n_asked;
    struct page *page;
};

/* --------------------------------------------------------------- futexes --------- */

static void wake(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleep until a word has a value. */
static int sleep_until(_Atomic uint32_t *word, uint32_t value)
{
    const struct timespec slice = {.tv_sec = PATIENCE_S};
    uint32_t seen;

    while ((seen = atomic_load_explicit(word, memory_order_acquire)) != value) {
        long result = syscall(SYS_futex, word, FUTEX_WAIT, seen, &slice, NULL, 0);
        if (result < 0 && errno == ETIMEDOUT)
            return -ETIMEDOUT;
    }
    return 0;
}

static void spin_until(_Atomic uint32_t *word, uint32_t value)
{
    while (atomic_load_explicit(word, memory_order_acquire) != value)
        bench_pause();
}

static void publish(_Atomic uint32_t *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
    wake(word);
}

/* Bind to the index-th CPU of those that are allowed, if there are that many. */
static void bind_to(const cpu_set_t *allowed, uint32_t index)
{
    cpu_set_t one;

    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, allowed) || index-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(0, sizeof one, &one); /* figures are coarser without */
        return;
    }
}

/* ---------------------------------------------------- the other process ---------- */

struct waiting {
    struct page *page;
    const char *socket_path;
    struct kvw_client *client;
    struct kvw_cache *spinner;
    struct kvw_cache *sleeper;
};

static int attach_both(struct waiting *waiting)
{
    struct kvw_attach_options options = KVW_ATTACH_OPTIONS_INIT;
    const char *name = waiting->page->name;

    int error = kvw_connect(waiting->socket_path, &waiting->client);
    if (error != 0)
        return error;
    options.spin_us = SPINNING_US;
    error = kvw_attach(waiting->client, name, KVW_READER, &options, &waiting->spinner);
    options.spin_us = 0;
    if (error == 0)
        error =
            kvw_attach(waiting->client, name, KVW_READER, &options, &waiting->sleeper);
    return error;
}

static int wait_as_asked(struct waiting *waiting, uint32_t number)
{
    struct page *page = waiting->page;
    const uint64_t timeout_ns = PATIENCE_S * 1000000000ull;

    switch (page->kind) {
    case WAKE_ATTACH:
        return attach_both(waiting);
    case WAKE_SPINNING:
        return kvw_wait_step(waiting->spinner, 0, 0, page->step, timeout_ns);
    case WAKE_SLEEPING:
        return kvw_wait_step(waiting->sleeper, 0, 0, page->step, timeout_ns);
    case WAKE_FLOOR_SPINNING:
        spin_until(&page->word, number);
        return 0;
    case WAKE_FLOOR_SLEEPING:
        return sleep_until(&page->word, number);
    default:
        return -EINVAL;
    }
}

static _Noreturn void wait_for_orders(struct waiting *waiting, pid_t parent)
{
    struct page *page = waiting->page;
    cpu_set_t allowed;

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent ||
        sched_getaffinity(0, sizeof allowed, &allowed) < 0)
        _exit(1);
    bind_to(&allowed, 1);
    /* Ends with the parent, which kills us when it is done. */
    for (uint32_t number = 1;; number++) {
        while (sleep_until(&page->ask, number) != 0)
            ;
        publish(&page->ready, number);
        page->error = wait_as_asked(waiting, number);
        page->woken_ns = bench_now_ns();
        if (page->error != 0)
            (void)snprintf(page->text, sizeof page->text, "%s", kvw_last_error());
        publish(&page->done, number);
    }
}

struct waker *waker_new(const struct bench *bench)
{
    const pid_t parent = getpid();

    struct waker *waker = calloc(1, sizeof *waker);
    if (waker == NULL)
        return NULL;
    waker->page = mmap(NULL, sizeof *waker->page, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (waker->page == MAP_FAILED) {
        free(waker);
        return NULL;
    }
    waker->pid = fork();
    if (waker->pid == 0) {
        struct waiting waiting = {.page = waker->page,
                                  .socket_path = bench->options.socket_path};
        wait_for_orders(&waiting, parent);
    }
    return waker->pid < 0 ? waker_free(waker) : waker;
}

struct waker *waker_free(struct waker *waker)
{
    if (waker == NULL)
        return NULL;
    if (waker->pid > 0) {
        (void)kill(waker->pid, SIGKILL);
        (void)waitpid(waker->pid, NULL, 0);
    }
    (void)munmap(waker->page, sizeof *waker->page);
    free(waker);
    return NULL;
}

/* --------------------------------------------------------- what is timed --------- */

/* The writer. */
struct waking {
    struct waker *waker;
    struct kvw_cache *writer;
    uint64_t rows;
};

/* One way to wait. */
struct way {
    struct waking *waking;
    enum wake_kind kind;
};

/* Returns when the other process is about to wait. */
static int ask(struct waker *waker, enum wake_kind kind, uint64_t step)
{
    struct page *page = waker->page;

    page->kind = kind;
    page->step = step;
    publish(&page->ask, ++waker->n_asked);
    return sleep_until(&page->ready, waker->n_asked);
}

static int await(struct waker *waker)
{
    int error = sleep_until(&waker->page->done, waker->n_asked);

    if (error != 0 || waker->page->error == 0)
        return error;
    fprintf(stderr, "kvwheel-bench: the waiting process: %s\n", waker->page->text);
    return waker->page->error;
}

/* Until the other process surely spins, or sleeps. */
static void let_it_wait(enum wake_kind kind)
{
    const struct timespec asleep = {.tv_nsec = ASLEEP_NS};

    if (kind == WAKE_SLEEPING || kind == WAKE_FLOOR_SLEEPING) {
        (void)nanosleep(&asleep, NULL);
        return;
    }
    uint64_t begun = bench_now_ns();
    while (bench_now_ns() - begun < SPINS_NS)
        bench_pause();
}

/* A chunk with its rows written, to be committed. */
static int stage(struct waking *waking)
{
    const struct kvw_item item = {.row = waking->rows, .n = 1};

    int error = kvw_begin(waking->writer, 0, &item, 1, NULL);
    return error != 0 ? error
                      : kvw_written(waking->writer, 0, (struct kvw_layer){0}, 0, 1);
}

static int time_wake(const struct way *way, struct bench_samples *samples)
{
    struct waking *waking = way->waking;
    struct page *page = waking->waker->page;
    const bool is_floor =
        way->kind == WAKE_FLOOR_SPINNING || way->kind == WAKE_FLOOR_SLEEPING;
    int error = is_floor ? 0 : stage(waking);

    if (error == 0)
        error = ask(waking->waker, way->kind, waking->rows + 1);
    if (error != 0)
        return error;
    let_it_wait(way->kind);
    uint64_t begun = bench_now_ns();
    if (!is_floor)
        error = kvw_commit(waking->writer, 0, NULL, 0);
    else
        atomic_store_explicit(&page->word, waking->waker->n_asked,
                              memory_order_release);
    if (way->kind == WAKE_FLOOR_SLEEPING)
        wake(&page->word);
    if (error == 0)
        error = await(waking->waker);
    if (error != 0)
        return error;
    waking->rows += is_floor ? 0 : 1;
    bench_add(samples, page->woken_ns - begun, 1);
    return 0;
}

static int time_wakes(void *context, struct bench_samples *samples)
{
    int error = 0;

    for (int i = 0; i < WAKES_PER_ROUND && error == 0; i++)
        error = time_wake(context, samples);
    return error;
}

/* ----------------------------------------------------------------- the part ------- */

static int open_cache(struct kvw_client *client, struct waking *waking)
{
    struct page *page = waking->waker->page;
    struct kvw_spec spec;

    (void)snprintf(page->name, sizeof page->name, "bench-wake-%ld", (long)getpid());
    kvw_spec_init(&spec, page->name);
    struct kvw_spec_group *group = kvw_spec_add_group(&spec, "self", 1, NULL);
    if (group == NULL)
        return -EINVAL;
    group->window_rows = 64;
    group->chunk_rows_max = 1;
    if (kvw_spec_add_plane(group, "k", KVW_BF16, LOCAL_HEAD_DIM) == NULL)
        return -EINVAL;
    int error = kvw_create(client, &spec, NULL, NULL);
    if (error >= 0)
        error = kvw_attach(client, page->name, 0, NULL, &waking->writer);
    if (error == 0)
        error = ask(waking->waker, WAKE_ATTACH, 0);
    return error == 0 ? await(waking->waker) : error;
}

static int compare(struct bench *bench, struct waking *waking)
{
    struct way spinning = {waking, WAKE_SPINNING};
    struct way sleeping = {waking, WAKE_SLEEPING};
    struct way floor_spinning = {waking, WAKE_FLOOR_SPINNING};
    struct way floor_sleeping = {waking, WAKE_FLOOR_SLEEPING};
    const struct bench_variant variants[] = {
        {"wait, spinning", {"store, spinning"}, NULL, time_wakes, 1, &spinning},
        {"wait, sleeping", {"futex, sleeping"}, NULL, time_wakes, 1, &sleeping},
        {"store, spinning", {NULL}, NULL, time_wakes, 1, &floor_spinning},
        {"futex, sleeping", {NULL}, NULL, time_wakes, 1, &floor_sleeping},
    };

    return bench_compare(bench, "commit to a reader's wake-up", variants, 4);
}

int local_wake(struct bench *bench, struct kvw_client *client, struct waker *waker)
{
    struct waking waking = {.waker = waker};
    cpu_set_t allowed;

    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0)
        return -errno;
    int error = open_cache(client, &waking);
    if (error == 0) {
        bind_to(&allowed, 0);
        error = compare(bench, &waking);
        (void)sched_setaffinity(0, sizeof allowed, &allowed);
    }
    kvw_detach(waking.writer);
    return error;
}
