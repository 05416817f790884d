/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data path as threads on one mapping, for ThreadSanitizer, which sees nothing
 * between two mappings: ranks that commit, die between two calls and are replaced; readers
 * with and without pins; waiters. The library is the product's, without any shim.
 *
 *   threads [SECONDS each=2] [SEED=1]
 *
 * What ThreadSanitizer proves here: rows are plain memory, and a pinned reader reads them
 * by plain loads, so every chain of release and acquire that such reads rely on (P2 S1
 * from the rows to the reader, H2 B2 from the reader to whoever overwrites them, the
 * daemon's clearing of pins) must be there. What it does not: it knows no fences, so that
 * B1, H1, B3, R1, P1, S2, P3, W1 are the interleaving test's business; and views whose
 * rows may be overwritten while they are read (unpinned, or revoked) are read by
 * read_racing(), which it does not look at.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/cache.h"
#include "proto/base/align.h"

#if defined(__SANITIZE_THREAD__)
#define HAS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAS_TSAN 1
#endif
#endif
#ifndef HAS_TSAN
#define HAS_TSAN 0
#endif

enum {
    RANKS_MAX = 2,
    READERS = 3,
    WAITERS = 2,
    ACTORS_MAX = RANKS_MAX + READERS + WAITERS,
    ELEMS = 16,
    DEATHS_MAX = 1000, /* of an actor: what the dead had is kept to the end */
    GRAVES_MAX = ACTORS_MAX * (DEATHS_MAX + 1),
    PERIOD = 16, /* steps; the last of them adds no rows */
};

/* One run. */
struct run {
    const char *name;
    uint32_t n_ranks;
    uint32_t pin_policy;
    bool is_mortal;
};

struct actor {
    pthread_t thread;
    uint32_t number;
    uint64_t random;
    uint64_t n_done;
    uint64_t n_retried; /* refused, overrun, or lost to a writer: told so */
    uint64_t n_deaths;
};

static struct {
    struct run run;
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    char *control;
    char *pins;
    char *data;
    struct actor actor[ACTORS_MAX];
    pthread_mutex_t lock; /* of what follows: a process's table at the daemon */
    struct kvw_cache *grave[GRAVES_MAX];
    uint32_t n_graves;
    atomic_bool is_over;
} here = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A report of ThreadSanitizer takes seconds, and others stand still meanwhile. */
#define WAIT_NS 60000000000ull

#define MUST(condition, ...)                              \
    do {                                                  \
        if (!(condition)) {                               \
            (void)fprintf(stderr, __VA_ARGS__);           \
            (void)fprintf(stderr, " (%s)\n", #condition); \
            abort();                                      \
        }                                                 \
    } while (0)

static uint64_t next_random(struct actor *actor)
{
    uint64_t x = actor->random += 0x9e3779b97f4a7c15ull;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static bool one_in(struct actor *actor, uint64_t n)
{
    return next_random(actor) % n == 0;
}

/* -------------------------------------------------------- what a step contains -----
 */

/* Rows that step s adds. */
static uint64_t rows_of(uint64_t step)
{
    return step % PERIOD == 0 ? 0 : 1 + step % 2;
}

/* Rows committed when step s has been published. */
static uint64_t rows_at(uint64_t step)
{
    const uint64_t in_period = step % PERIOD;

    return 23 * (step / PERIOD) + 2 * ((in_period + 1) / 2) + in_period / 2;
}

static void fill_row(uint32_t *row_data, uint64_t row)
{
    for (uint32_t e = 0; e < ELEMS; e++)
        row_data[e] = (uint32_t)(row * ELEMS + e);
}

/* ------------------------------------------------------------------ processes -------
 */

static uint32_t rank_of(uint32_t actor)
{
    return actor < here.run.n_ranks ? actor : KVW_READER;
}

static struct kvw_cache *attach(uint32_t actor)
{
    struct kvw_control_header *header =
        (struct kvw_control_header *)(void *)here.control;
    struct kvw_cache *cache;

    pthread_mutex_lock(&here.lock); /* the daemon is one thread */
    if (load_relaxed(&header->attachments_high) <= actor)
        store_release(&header->attachments_high, actor + 1);
    if (rank_of(actor) != KVW_READER) {
        struct kvw_seat *seat = layout_seat(here.control, &here.layout, actor);
        store_relaxed(&seat->incarnation, load_relaxed(&seat->incarnation) + 1);
        store_release(&seat->state, KVW_SEAT_OWNED);
    }
    const struct cache_segments segments = {
        {here.control, here.pins, here.data},
        {here.layout.control_bytes, here.layout.pins_bytes, here.layout.data_bytes}};
    int error = cache_new(&segments, rank_of(actor), actor, &cache);
    pthread_mutex_unlock(&here.lock);
    MUST(error == 0, "attach: %d", error);
    cache->options.pin_policy = here.run.pin_policy;
    cache->options.timeout_ns = 20000000;
    cache->options.spin_us = 5;
    return cache;
}

/* A process dies: what it had is forgotten as it is; the daemon does its part. (It also
 * stores 0 to how many pins were used, which a rank loads relaxed: enough, since the dead
 * read nothing any more, but these threads had read before they "died".) */
static void bury(uint32_t actor, struct kvw_cache *cache)
{
    pthread_mutex_lock(&here.lock);
    MUST(here.n_graves < GRAVES_MAX, "too many deaths");
    here.grave[here.n_graves++] = cache;
    if (rank_of(actor) != KVW_READER) {
        struct kvw_seat *seat = layout_seat(here.control, &here.layout, actor);
        struct kvw_board *board = layout_board(here.control, &here.layout, 1, actor, 0);
        store_release(&seat->state, KVW_SEAT_DEAD);
        (void)add_seq_cst(&board->event, 1);
        (void)syscall(SYS_futex, &board->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
    for (uint32_t i = 0; i < KVW_PINS_PER_ATTACHMENT; i++)
        store_release(&layout_pin(here.pins, &here.layout, actor, i)->lo_plus_1, 0);
    pthread_mutex_unlock(&here.lock);
}

/* The process of an actor dies now and then, between two calls. */
static bool dies(struct actor *actor, struct kvw_cache **cache)
{
    if (!here.run.is_mortal || !one_in(actor, 1000) || actor->n_deaths == DEATHS_MAX)
        return false;
    bury(actor->number, *cache);
    *cache = attach(actor->number);
    actor->n_deaths++;
    return true;
}

/* ----------------------------------------------------------------------- ranks ------
 */

/* About another: it lags, died, or holds rows. Anything else is an error. */
static bool may_be_refused(int error)
{
    return error == -ETIMEDOUT || error == -EOWNERDEAD || error == -EBUSY;
}

static int add_rows(struct actor *actor, struct kvw_cache **cache, uint64_t step)
{
    const uint64_t row = rows_at(step - 1);
    const uint64_t n = rows_of(step);
    const struct kvw_item item = {.row = row, .n = n, .has_epoch = 1, .epoch = step};
    const struct kvw_layer layer = {0};
    uint32_t rows_data[2][ELEMS];

    int error = kvw_begin(*cache, 0, &item, 1, NULL);
    if (error != 0 || dies(actor, cache))
        return error;
    for (uint64_t r = 0; r < n; r++)
        fill_row(rows_data[r], row + r);
    const struct kvw_source source = {rows_data, ELEMS * 4, 0};
    error = kvw_update(*cache, 0, layer, 0, n, &source);
    if (error != 0 || dies(actor, cache))
        return error;
    return kvw_commit(*cache, 0, NULL, 0);
}

static int add_step(struct actor *actor, struct kvw_cache **cache)
{
    struct kvw_lane_state state;

    int error = kvw_state(*cache, 0, (*cache)->rank, &state);
    MUST(error == 0, "state: %d: %s", error, kvw_last_error());
    const uint64_t step = state.step + 1;
    MUST(state.group[0].rows == rows_at(state.step), "step %" PRIu64, state.step);
    if (rows_of(step) > 0)
        return add_rows(actor, cache, step);
    const struct kvw_item item = {
        .row = state.group[0].evicted, .has_epoch = 1, .epoch = step};
    return kvw_evict(*cache, 0, &item, 1);
}

static void *rank_main(void *context)
{
    struct actor *actor = context;
    struct kvw_cache *cache = attach(actor->number);

    while (!atomic_load(&here.is_over)) {
        int error = add_step(actor, &cache);
        if (error == 0)
            actor->n_done++;
        else if (may_be_refused(error))
            actor->n_retried++;
        else
            MUST(error == 0, "rank %u: %d: %s", actor->number, error, kvw_last_error());
        (void)dies(actor, &cache);
    }
    bury(actor->number, cache);
    return NULL;
}

/* --------------------------------------------------------------------- readers ------
 */

static uint32_t count_wrong(const struct kvw_view *view)
{
    uint32_t n_wrong = 0;

    for (uint32_t p = 0; p < view->n_pieces; p++) {
        const struct kvw_piece *piece = &view->piece[p];
        for (uint32_t h = 0; h < view->n_heads; h++) {
            const char *at = kvw_piece_at(&view->plane[0], piece, h);
            for (uint32_t r = 0; r < piece->n_rows; r++) {
                const uint32_t *row =
                    (const uint32_t *)(const void *)(at + r * view->plane[0].row_bytes);
                for (uint32_t e = 0; e < ELEMS; e++)
                    n_wrong += row[e] != (uint32_t)((piece->row + r) * ELEMS + e);
            }
        }
    }
    return n_wrong;
}

/* The same, and the race is meant: release() says whether it was lost. */
__attribute__((no_sanitize("thread"), noinline)) static uint32_t
read_racing(const struct kvw_view *view)
{
    uint32_t n_wrong = 0;

    for (uint32_t p = 0; p < view->n_pieces; p++) {
        const struct kvw_piece *piece = &view->piece[p];
        for (uint32_t h = 0; h < view->n_heads; h++) {
            const char *at = view->plane[0].base +
                             piece->slot * view->plane[0].row_bytes +
                             h * view->plane[0].head_bytes;
            for (uint32_t r = 0; r < piece->n_rows; r++) {
                const volatile uint32_t *row =
                    (const volatile uint32_t
                         *)(const volatile void *)(at + r * view->plane[0].row_bytes);
                for (uint32_t e = 0; e < ELEMS; e++)
                    n_wrong += row[e] != (uint32_t)((piece->row + r) * ELEMS + e);
            }
        }
    }
    return n_wrong;
}

static void look(struct actor *actor, struct kvw_cache **cache, bool is_pinned,
                 uint64_t *last_step)
{
    const bool may_lose = !is_pinned || here.run.pin_policy == KVW_PIN_REVOKE;
    struct kvw_view view;

    int error = kvw_get(*cache, 0, (struct kvw_layer){0},
                        is_pinned ? KVW_COMMITTED : KVW_UNPINNED, &view);
    if (error == -EAGAIN) {
        actor->n_retried++;
        return;
    }
    MUST(error == 0, "get: %d: %s", error, kvw_last_error());
    MUST(view.step >= *last_step, "step %" PRIu64 " after %" PRIu64, view.step,
         *last_step);
    MUST(view.end_row == rows_at(view.step) &&
             (view.step == 0 || view.epoch == view.step),
         "step %" PRIu64 " has %" PRIu64 " rows and epoch %" PRIu64, view.step,
         view.end_row, view.epoch);
    *last_step = view.step;
    if (is_pinned && dies(actor, cache))
        return;
    const uint32_t n_wrong = may_lose ? read_racing(&view) : count_wrong(&view);
    error = kvw_release(*cache, &view);
    if (error == -KVW_EOVERRUN && may_lose) {
        actor->n_retried++;
        return;
    }
    MUST(error == 0, "release: %d: %s", error, kvw_last_error());
    MUST(n_wrong == 0, "%u elements of step %" PRIu64 " are wrong", n_wrong, view.step);
    actor->n_done++;
}

static void *reader_main(void *context)
{
    struct actor *actor = context;
    struct kvw_cache *cache = attach(actor->number);
    const bool is_pinned = actor->number != here.run.n_ranks; /* the first is not */
    uint64_t last_step = 0;

    while (!atomic_load(&here.is_over)) {
        look(actor, &cache, is_pinned, &last_step);
        (void)dies(actor, &cache);
    }
    bury(actor->number, cache);
    return NULL;
}

static void *waiter_main(void *context)
{
    struct actor *actor = context;
    struct kvw_cache *cache = attach(actor->number);

    while (!atomic_load(&here.is_over)) {
        struct kvw_lane_state state;
        int error = kvw_state(cache, 0, KVW_ALL_RANKS, &state);
        if (error == 0)
            error = kvw_wait_step(cache, 0, KVW_ALL_RANKS, state.step + 1, WAIT_NS);
        if (error == 0)
            actor->n_done++;
        else if (error == -EOWNERDEAD || error == -EAGAIN || atomic_load(&here.is_over))
            actor->n_retried++;
        else
            MUST(error == 0, "wait: %d: %s", error, kvw_last_error());
        (void)dies(actor, &cache);
    }
    bury(actor->number, cache);
    return NULL;
}

/* ------------------------------------------------------------------------ runs ------
 */

static char *new_segment(uint64_t n_bytes)
{
    char *segment = aligned_alloc(KVW_PAGE, align_up(n_bytes, KVW_PAGE));

    MUST(segment != NULL, "no memory");
    memset(segment, 0, n_bytes);
    return segment;
}

static void build(const struct run *run)
{
    static const uint8_t uuid[16] = {1};
    struct kvw_refusal refusal;

    here.run = *run;
    here.geometry = (struct kvw_geometry){
        .n_groups = 1,
        .n_lanes = 1,
        .n_ranks = run->n_ranks,
        .n_layers = 1,
        .partition = {.head_parts = run->n_ranks,
                      .layer_parts = 1,
                      .lane_parts = 1,
                      .row_parts = 1},
        .group = {{.window_rows = 6,
                   .sink_rows = 1,
                   .chunk_rows_max = 2,
                   .slack_chunks = 1,
                   .n_layers = 1,
                   .n_heads = run->n_ranks,
                   .n_planes = 1,
                   .policy = KVW_GEOMETRY_ROLL,
                   .kind = KVW_GEOMETRY_CHUNK,
                   .positions = KVW_GEOMETRY_ABSOLUTE,
                   .name = "self",
                   .plane = {{.elems = ELEMS, .type = KVW_GEOMETRY_U32, .name = "k"}}}},
    };
    MUST(layout_of(&here.geometry, &here.layout, &refusal) == 0, "%s", refusal.text);
    here.control = new_segment(here.layout.control_bytes);
    here.pins = new_segment(here.layout.pins_bytes);
    here.data = new_segment(here.layout.data_bytes);
    layout_control_init(here.control, &here.layout, &here.geometry, "threads", uuid);
    here.n_graves = 0;
    atomic_store(&here.is_over, false);
}

static void forget(void)
{
    for (uint32_t i = 0; i < here.n_graves; i++)
        cache_free(here.grave[i]);
    free(here.control);
    free(here.pins);
    free(here.data);
}

static void report(const struct run *run, uint64_t seed)
{
    uint64_t n[3] = {0};
    uint64_t n_retried = 0;
    uint64_t n_deaths = 0;

    for (uint32_t i = 0; i < run->n_ranks + READERS + WAITERS; i++) {
        const struct actor *actor = &here.actor[i];
        n[i < run->n_ranks ? 0 : i < run->n_ranks + READERS ? 1 : 2] += actor->n_done;
        n_retried += actor->n_retried;
        n_deaths += actor->n_deaths;
        MUST(actor->n_done > 0, "%s: actor %u did nothing", run->name, i);
    }
    printf("%-24s seed %" PRIu64 ": %9" PRIu64 " steps, %9" PRIu64 " views, %7" PRIu64
           " waits, %9" PRIu64 " told to try again, %5" PRIu64 " deaths\n",
           run->name, seed, n[0], n[1], n[2], n_retried, n_deaths);
}

static void play(const struct run *run, double seconds, uint64_t seed)
{
    const struct timespec duration = {
        .tv_sec = (time_t)seconds,
        .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};

    build(run);
    for (uint32_t i = 0; i < run->n_ranks + READERS + WAITERS; i++) {
        struct actor *actor = &here.actor[i];
        *actor = (struct actor){.number = i, .random = seed + i};
        int error = pthread_create(&actor->thread, NULL,
                                   i < run->n_ranks             ? rank_main
                                   : i < run->n_ranks + READERS ? reader_main
                                                                : waiter_main,
                                   actor);
        MUST(error == 0, "pthread_create: %d", error);
    }
    nanosleep(&duration, NULL);
    atomic_store(&here.is_over, true);
    for (uint32_t i = 0; i < run->n_ranks + READERS + WAITERS; i++)
        pthread_join(here.actor[i].thread, NULL);
    report(run, seed);
    forget();
}

int main(int argc, char **argv)
{
    static const struct run runs[] = {
        {"one rank", 1, KVW_PIN_WAIT, true},
        {"one rank, revoking", 1, KVW_PIN_REVOKE, true},
        {"two ranks", 2, KVW_PIN_WAIT, true},
        {"two ranks, nobody dies", 2, KVW_PIN_ANSWER, false},
    };
    const double seconds = argc > 1 ? strtod(argv[1], NULL) : 2;
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;

    printf("races are %s\n", HAS_TSAN ? "looked for" : "not looked for");
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        play(&runs[i], seconds, seed);
    return 0;
}
