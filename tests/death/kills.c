/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real deaths, with a real daemon.
 *
 * 1. A worker is killed at the entry into, and at the exit from, every system call of
 *    connect, attach, detach and disconnect, as a rank (that has a chunk half written
 *    and a view when it detaches) and as a reader. Each time daemon and keeper come
 * back to what they held before, and another worker attaches, finds every byte, and
 * goes on.
 * 2. A worker that rolls, truncates, evicts, keeps and resets is killed at a random
 *    instruction; the next one takes over, finds every byte of the last step, and is
 *    killed in its turn. A reader holds views meanwhile.
 *
 *   --seed N   of the random instructions
 *   --quick    a tenth of the kills
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"
#include "client/spec.h"
#include "tests/death/host.h"
#include "tests/death/scene.h"
#include "tests/death/trace.h"

#define CACHE "death"

enum {
    KILLS = 1000,
    STEP_BITS_MAX = 12,  /* instructions stepped: below 2 ^ 11, often far below */
    POINTS_MAX = 16,     /* calls before the one that is stepped into */
    PAUSE_BITS_MAX = 21, /* running freely: below 2 ^ 20 ns, often far below */
    ROWS_BEFORE_RESET = ROWS_MAX - 8,
};

enum phase { CONNECT, ATTACH, BETWEEN, DETACH, DISCONNECT, PHASES };

/* Shared with the workers. They write it before and after what they do, never while:
 * whenever one dies, the lane is at `step` with record[step % 2], or at the next one
 * with the other. */
static struct {
    uint64_t step;
    struct m_record record[2];
    uint64_t random;
    uint64_t points; /* calls until a worker stops for its parent */
    uint32_t phase;
    uint32_t n_failures; /* of a worker */
    uint64_t n_takeovers;
} * shared;

static struct host host;
static struct scene buffers; /* of rows to be written */

static struct {
    uint64_t seed;
    uint64_t n_kills;
    uint64_t every;
} options = {.seed = 1, .n_kills = KILLS, .every = 1};

static struct {
    uint64_t n_syscall_kills[PHASES];
    uint64_t n_random_kills;
    uint64_t n_instructions;
    uint64_t n_overruns;
} totals;

/* -------------------------------------------------------- worker ---------- */

static struct m_record *newest(void)
{
    return &shared->record[shared->step % 2];
}

/* Every byte is as the last step left it: the one before the last death, or the one
 * that was under way. */
static void verify(struct kvw_cache *cache)
{
    struct kvw_lane_state state = {0};
    struct kvw_view view;

    OK(kvw_state(cache, 0, 0, &state));
    EXPECT(state.step == shared->step || state.step == shared->step + 1,
           "step %" PRIu64 ", after %" PRIu64, state.step, shared->step);
    shared->step = state.step;
    const char *wrong = model_check_state(newest(), &state);
    EXPECT(wrong == NULL, "%s", wrong);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        OK(kvw_get(cache, 0, (struct kvw_layer){layer}, KVW_COMMITTED, &view));
        wrong = model_check_view(newest(), &view, state.step, 0, 0, 0);
        EXPECT(wrong == NULL, "%s", wrong);
        OK(kvw_release(cache, &view));
    }
}

static uint64_t random_below(uint64_t bound)
{
    return test_random(&shared->random) % bound;
}

/* A chunk, most of the time; what else is possible now, at others. */
static struct act choose(struct kvw_cache *cache)
{
    const struct m_record *from = newest();
    const uint32_t g = (uint32_t)random_below(GROUPS);
    const struct m_group *group = &from->group[g];
    struct act act = {.n_items = 1, .item = {{.group = g, .row = group->rows}}};
    uint64_t lowest = 0;

    if (from->group[0].rows > ROWS_BEFORE_RESET ||
        from->group[1].rows > ROWS_BEFORE_RESET)
        return (struct act){
            .kind = ACT_RESET, .n_items = 2, .item = {{.group = 0}, {.group = 1}}};
    switch (random_below(12)) {
    case 0:
        OK(kvw_lowest(cache, 0, g, &lowest));
        act.kind = ACT_TRUNCATE;
        if (lowest < group->rows)
            act.item[0].row = lowest + random_below(group->rows - lowest);
        return act;
    case 1:
        act.kind = ACT_EVICT;
        act.item[0].row -= random_below(group->rows - group->evicted + 1);
        return act;
    case 2:
        act.kind = ACT_KEEP;
        if (group->n_kept > 0) {
            act.item[0].row = group->kept[0].first;
            return act;
        }
        act.item[0].row -= 2;
        act.item[0].n = 2;
        if (group->rows >= 4 && group->rows - 2 >= group->evicted)
            return act;
        break;
    case 3:
        act.kind = ACT_RESET_LAYER;
        act.layer = (uint32_t)random_below(LAYERS);
        act.n_items = 0;
        return act;
    default:
        break;
    }
    return model_chunk_act(from, random_below(8) == 0 ? 0 : 1 + random_below(2),
                           1 + random_below(3));
}

/* Before a call: half of the kills stop at such a point first. */
static void point(void)
{
    if (shared->points-- == 0)
        trace_stop_here();
}

static int roll_chunk(struct kvw_cache *cache, const struct act *act)
{
    point();
    int error = act_begin(cache, act);
    if (error != 0)
        return error;
    point();
    act_write(&buffers, cache, newest(), act, UINT64_MAX);
    point();
    return act_commit(cache, act);
}

/* One step. A reader's pin of kept rows may forbid it. */
static void roll(struct kvw_cache *cache)
{
    const struct act act = choose(cache);
    int error;

    model_apply(newest(), &act, &shared->record[(shared->step + 1) % 2]);
    if (random_below(8) == 0 && act.kind == ACT_CHUNK) {
        OK(act_begin(cache, &act));
        act_write(&buffers, cache, newest(), &act, 1);
        point();
        OK(kvw_abort(cache, 0));
    }
    if (act.kind == ACT_CHUNK) {
        error = roll_chunk(cache, &act);
    } else {
        point();
        error = act_run(&buffers, cache, newest(), &act, false);
    }
    if (error == 0)
        shared->step++;
    EXPECT(error == 0 || (error == -EBUSY && act.kind == ACT_KEEP), "act %d: %d, %s",
           act.kind, error, kvw_last_error());
}

/* The daemon may not know yet that the owner before is dead. */
static struct kvw_cache *attach(struct kvw_client *client, uint32_t rank)
{
    struct kvw_attach_options choice = KVW_ATTACH_OPTIONS_INIT;
    struct kvw_cache *cache = NULL;
    int error = -EBUSY;

    choice.pin_policy = KVW_PIN_REVOKE;
    choice.timeout_ns = 1;
    for (int tries = 0; tries < 5000 && error == -EBUSY; tries++) {
        error = kvw_attach(client, CACHE, rank, &choice, &cache);
        if (error == -EBUSY)
            poll(NULL, 0, 1);
    }
    EXPECT(error == 0, "attach: %d, %s", error, kvw_last_error());
    return cache;
}

static void roll_until_killed(void *context)
{
    const uint32_t at_start = test_failures();
    struct kvw_client *client;

    (void)context;
    OK(kvw_connect(host.socket, &client));
    struct kvw_cache *cache = attach(client, 0);
    if (cache == NULL)
        return;
    verify(cache);
    shared->n_takeovers++;
    shared->n_failures += test_failures() - at_start;
    trace_stop_here();
    while (test_failures() == at_start)
        roll(cache);
    shared->n_failures++;
}

static void come_and_go(void *context)
{
    const uint32_t rank = *(const uint32_t *)context;
    struct kvw_cache *cache = NULL;
    struct kvw_client *client = NULL;
    struct kvw_view view;

    shared->phase = CONNECT;
    OK(kvw_connect(host.socket, &client));
    shared->phase = ATTACH;
    OK(kvw_attach(client, CACHE, rank, NULL, &cache));
    shared->phase = BETWEEN;
    if (rank != KVW_READER) {
        const struct act act = model_chunk_act(newest(), 2, 3);
        OK(act_begin(cache, &act));
        act_write(&buffers, cache, newest(), &act, 1);
    }
    OK(kvw_get(cache, 0, (struct kvw_layer){1}, KVW_COMMITTED, &view));
    shared->phase = DETACH;
    kvw_detach(cache);
    shared->phase = DISCONNECT;
    kvw_disconnect(client);
    shared->phase = PHASES;
}

/* ----------------------------------------- kills at system calls ---------- */

/* Kill at stop number `at` of a worker. @return false when it ended before. */
static bool kill_at_stop(uint32_t rank, uint64_t at)
{
    bool is_stop_here;

    shared->phase = CONNECT;
    pid_t pid = trace_start(come_and_go, &rank);
    if (pid < 0) {
        test_fail(__FILE__, __LINE__, "no child");
        return false;
    }
    for (uint64_t i = 0; i <= at; i++) {
        if (!trace_to_syscall(pid, &is_stop_here)) {
            EXPECT(shared->phase == PHASES, "the worker ended in phase %u",
                   shared->phase);
            return false;
        }
        if (shared->phase == PHASES)
            break;
    }
    if (shared->phase < PHASES)
        totals.n_syscall_kills[shared->phase]++;
    trace_kill(pid);
    return shared->phase < PHASES;
}

static void kill_at_every_stop(uint32_t rank)
{
    struct holdings start;
    bool is_killed = true;

    host_look(&host, CACHE, &start);
    for (uint64_t at = 0; is_killed; at += options.every) {
        test_place(rank == KVW_READER ? "a reader comes and goes"
                                      : "a rank comes and goes",
                   "killed at this system call's entry (even) or exit (odd)", at);
        is_killed = kill_at_stop(rank, at);
        EXPECT(host_returns_to(&host, CACHE, &start), "something is left");
        struct kvw_cache *cache = attach(host.client, 0);
        if (cache == NULL)
            return;
        verify(cache);
        roll(cache);
        verify(cache);
        kvw_detach(cache);
        EXPECT(host_returns_to(&host, CACHE, &start), "the next worker left something");
    }
}

/* ---------------------------------- kills at random instructions ---------- */

/* A reader with views of all layers. */
struct watcher {
    struct kvw_cache *cache;
    struct kvw_view view[LAYERS];
    struct m_record record;
};

static void watch(struct watcher *watcher)
{
    watcher->record = *newest();
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        OK(kvw_get(watcher->cache, 0, (struct kvw_layer){layer},
                   layer % 2 == 0 ? KVW_COMMITTED : KVW_UNPINNED,
                   &watcher->view[layer]));
}

/* After a death: what was viewed, and what is there now, one step on at most. */
static void look(struct watcher *watcher)
{
    struct kvw_lane_state state = {0};
    struct kvw_view view;

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const char *wrong = model_check_bytes(&watcher->record, &watcher->view[layer]);
        int error = kvw_release(watcher->cache, &watcher->view[layer]);
        EXPECT(error == -KVW_EOVERRUN || (error == 0 && wrong == NULL),
               "release: %d, %s", error, wrong);
        totals.n_overruns += error != 0;
    }
    OK(kvw_state(watcher->cache, 0, 0, &state));
    EXPECT(state.step == shared->step || state.step == shared->step + 1,
           "step %" PRIu64 ", after %" PRIu64, state.step, shared->step);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        OK(kvw_get(watcher->cache, 0, (struct kvw_layer){layer}, KVW_COMMITTED, &view));
        const char *wrong = model_check_view(&shared->record[state.step % 2], &view,
                                             state.step, 0, 0, 0);
        EXPECT(wrong == NULL, "after the death: %s", wrong);
        OK(kvw_release(watcher->cache, &view));
    }
}

/* Let it roll to one of its calls, or for a moment; step it; kill it. */
static void kill_somewhere(pid_t pid, bool is_at_call)
{
    const uint64_t pause_ns = random_below(1ull << random_below(PAUSE_BITS_MAX));
    const uint64_t n_steps = random_below(1ull << random_below(STEP_BITS_MAX));
    const struct timespec pause = {.tv_nsec = (long)pause_ns};
    bool is_alive;

    shared->points = is_at_call ? random_below(POINTS_MAX) : UINT64_MAX;
    if (is_at_call) {
        is_alive = trace_to_stop(pid);
    } else {
        is_alive = trace_continue(pid);
        (void)nanosleep(&pause, NULL);
        is_alive = is_alive && trace_interrupt(pid);
    }
    for (uint64_t i = 0; i < n_steps && is_alive; i++)
        is_alive = trace_step(pid);
    EXPECT(is_alive, "the worker ended");
    totals.n_instructions += n_steps;
    totals.n_random_kills++;
    trace_kill(pid);
}

static void kill_at_random(void)
{
    struct holdings start;
    struct watcher watcher;

    host_look(&host, CACHE, &start);
    watcher.cache = attach(host.client, KVW_READER);
    if (watcher.cache == NULL)
        return;
    for (uint64_t i = 0; i < options.n_kills; i++) {
        const uint64_t n_takeovers = shared->n_takeovers;
        shared->random = options.seed * 1000003 + i;
        test_place("random kills", "at kill", i);
        pid_t pid = trace_start(roll_until_killed, NULL);
        if (pid < 0 || !trace_to_stop(pid)) {
            test_fail(__FILE__, __LINE__, "no worker");
            continue;
        }
        EXPECT(shared->n_takeovers == n_takeovers + 1, "no takeover");
        watch(&watcher);
        kill_somewhere(pid, i % 2 == 0);
        look(&watcher);
    }
    EXPECT(shared->n_failures == 0, "%u failures of workers", shared->n_failures);
    struct kvw_cache *last = attach(host.client, 0);
    if (last != NULL)
        verify(last);
    kvw_detach(last);
    kvw_detach(watcher.cache);
    EXPECT(host_returns_to(&host, CACHE, &start), "something is left");
}

/* ---------------------------------------------------------- main ---------- */

static int create_cache(void)
{
    struct kvw_geometry geometry;
    struct kvw_spec spec;

    model_geometry(1, &geometry);
    spec_from_geometry(&geometry, CACHE, &spec);
    spec.lifetime = KVW_LIFETIME_KEEP;
    return kvw_create(host.client, &spec, NULL, NULL);
}

static int read_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            options.n_kills = KILLS / 10;
            options.every = 10;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            options.seed = strtoull(argv[++i], NULL, 0);
        else {
            fprintf(stderr, "usage: %s [--seed N] [--quick]\n", argv[0]);
            return -1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct timespec begun;
    struct timespec now;

    if (read_options(argc, argv) != 0)
        return 2;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || host_start(&host) != 0 || create_cache() != 0) {
        fprintf(stderr, "no daemon or no cache: %s\n", kvw_last_error());
        return 1;
    }
    for (uint32_t g = 0; g < GROUPS; g++)
        shared->record[0].group[g].generation = 1;
    shared->random = options.seed;
    shared->points = UINT64_MAX;

    kill_at_every_stop(0);
    kill_at_every_stop(KVW_READER);
    kill_at_random();
    EXPECT(host_stop(&host), "the daemon or its keeper did not end");
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("kills at system calls: %" PRIu64 " in connect, %" PRIu64
           " in attach, %" PRIu64 " in detach, %" PRIu64 " in disconnect\n",
           totals.n_syscall_kills[CONNECT], totals.n_syscall_kills[ATTACH],
           totals.n_syscall_kills[BETWEEN] + totals.n_syscall_kills[DETACH],
           totals.n_syscall_kills[DISCONNECT]);
    printf("seed %" PRIu64 ": %" PRIu64 " kills at random instructions, %" PRIu64
           " instructions stepped, %" PRIu64 " takeovers, %" PRIu64 " steps, %" PRIu64
           " views overrun, %u failures, %.1f s\n",
           options.seed, totals.n_random_kills, totals.n_instructions,
           shared->n_takeovers, shared->step, totals.n_overruns, test_failures(),
           (double)(now.tv_sec - begun.tv_sec) +
               (double)(now.tv_nsec - begun.tv_nsec) / 1e9);
    return test_failures() == 0 ? 0 : 1;
}
