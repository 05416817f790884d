/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that fills what it can write of its cache with random words, or punches holes
 * into it (the seals forbid only another size), while all others look at it: readers of
 * that cache, `kvwheel`, the daemon, and a new daemon that adopts it. They get an answer
 * or an error in words; nobody dies of it, and other caches are as they were.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cache.h"
#include "client/wait.h"
#include "tests/integration/node.h"

#define OK(call) cr_assert_geq((call), 0, "%s", kvw_last_error())
#define WATCH_NS 1500000000ull
#define CALL_NS 2000000ull /* deadline of waits on hostile words */

static struct node node;

static void start(void)
{
    node_start(&node, NULL);
}

static void stop(void)
{
    node_stop(&node);
}

TestSuite(scribble, .init = start, .fini = stop, .timeout = 120);

static void create(const char *name)
{
    struct kvw_spec spec;

    node_spec(&spec, name, 2);
    spec.n_lanes = 2;
    spec.group[0].keep_rows = 4;
    OK(kvw_create(node.client, &spec, NULL, NULL));
}

static struct kvw_cache *attach(struct kvw_client *client, const char *name,
                                uint32_t rank)
{
    struct kvw_attach_options options = KVW_ATTACH_OPTIONS_INIT;
    struct kvw_cache *cache;

    options.timeout_ns = CALL_NS;
    if (kvw_attach(client, name, rank, &options, &cache) != 0)
        return NULL;
    return cache;
}

/* -------------------------------------------------------------- enemies ---------- */

static uint64_t any(unsigned *seed)
{
    const uint64_t word = (uint64_t)(unsigned)rand_r(seed) << 33 ^
                          (uint64_t)(unsigned)rand_r(seed) << 11 ^
                          (uint64_t)(unsigned)rand_r(seed);

    /* Words that are nearly right get further. */
    switch (word % 5) {
    case 0:
        return word;
    case 1:
        return word % 64;
    case 2:
        return UINT64_MAX - word % 64;
    case 3:
        return KVW_RECORD_MAGIC;
    default:
        return (word % 64) << 32 | word % 16;
    }
}

/* Attached for writing, and a little rolled, so that there is something to spoil. */
static struct kvw_cache *enter(const struct node *of)
{
    struct kvw_client *client;

    if (client_open(of->socket, false, &client) != 0)
        _exit(2);
    struct kvw_cache *cache = attach(client, "c", 0);
    if (cache == NULL)
        _exit(3);
    return cache;
}

static void say_ready(int answers)
{
    if (write(answers, "r", 1) != 1)
        _exit(4);
}

/* Everything behind the geometry, all pins and flags; now and then a word before it, and
 * again and again all as it was, so that others get further than the first wrong word. */
static void run_scribbler(const struct node *of, int commands, int answers)
{
    struct kvw_cache *cache = enter(of);
    unsigned seed = (unsigned)getpid();
    shared_u64 *control = (shared_u64 *)(void *)cache->control;
    shared_u64 *pins = (shared_u64 *)(void *)cache->pins;
    const uint64_t n_control = cache->layout.control_bytes / 8;
    const uint64_t n_pins = cache->layout.pins_bytes / 8;
    (void)commands;

    char *good = malloc(cache->layout.control_bytes);
    if (good == NULL)
        _exit(5);
    memcpy(good, cache->control, cache->layout.control_bytes);
    fprintf(stderr, "seed %u\n", seed);
    say_ready(answers);
    for (uint64_t i = 0;; i++) {
        const uint64_t from = i % 4096 == 15 ? 0 : cache->layout.seats_offset / 8;
        const uint64_t r = (uint64_t)(unsigned)rand_r(&seed);
        if (i % 64 == 0)
            memcpy(cache->control, good, cache->layout.control_bytes);
        store_relaxed(&control[from + r % (n_control - from)], any(&seed));
        store_relaxed(&pins[r % n_pins], any(&seed));
    }
}

/* Boards that are right again and again, and gone in between. */
static void run_puncher(const struct node *of, int commands, int answers)
{
    struct kvw_cache *cache = enter(of);
    char *const base[3] = {cache->control, cache->pins, cache->data};
    const uint64_t bytes[3] = {cache->layout.control_bytes, cache->layout.pins_bytes,
                               cache->layout.data_bytes};
    static char *copy[3];
    (void)commands;

    for (int s = 0; s < 3; s++) {
        copy[s] = malloc(bytes[s]);
        if (copy[s] == NULL)
            _exit(5);
        memcpy(copy[s], base[s], bytes[s]);
    }
    say_ready(answers);
    for (uint32_t i = 0;; i++) {
        const int s = (int)(i % 3);
        const off_t from = i % 2 == 0 ? 0 : 4096;
        if (i % 4 < 2)
            (void)madvise(base[s] + from, bytes[s] - (uint64_t)from, MADV_REMOVE);
        else
            (void)fallocate(cache->fds[s], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                            from, (off_t)bytes[s] - from);
        memcpy(base[s], copy[s], bytes[s]);
    }
}

/* ------------------------------------------------------------ onlookers ---------- */

struct tally {
    uint32_t n_calls;
    uint32_t n_errors;
};

static void count(struct tally *tally, int result)
{
    tally->n_calls++;
    if (result >= 0)
        return;
    tally->n_errors++;
    cr_assert_gt(strlen(kvw_last_error()), 10, "error %d without words", result);
}

static uint64_t n_read; /* grows with every byte that was read */

/* Every row of a view; AddressSanitizer and the ends of the mappings watch. */
static void read_view(const struct kvw_view *view)
{
    for (uint32_t i = 0; i < view->n_pieces; i++) {
        for (uint32_t p = 0; p < view->n_planes; p++) {
            for (uint32_t h = 0; h < view->n_heads; h++) {
                const char *at = kvw_piece_at(&view->plane[p], &view->piece[i], h);
                for (uint64_t b = 0;
                     b < view->piece[i].n_rows * view->plane[p].row_bytes; b += 16)
                    n_read += 1u + (unsigned char)at[b];
            }
        }
    }
}

static void look(struct kvw_cache *reader, struct tally *tally, uint32_t i)
{
    struct kvw_lane_state state;
    struct kvw_view view;
    const struct kvw_layer layer = {i % 3};
    const uint32_t lane = i % 2;
    const uint32_t unpinned = i % 5 == 0 ? KVW_UNPINNED : 0;

    int result = i % 3 == 0 ? kvw_get(reader, lane, layer, unpinned, &view)
                            : kvw_cut(reader, lane, layer, i % 4, unpinned, &view);
    count(tally, result);
    if (result == 0) {
        cr_assert_leq(view.n_pieces, KVW_VIEW_PIECES_MAX);
        read_view(&view);
        count(tally, kvw_release(reader, &view));
    }
    count(tally, kvw_state(reader, lane, i % 3 == 2 ? KVW_ALL_RANKS : i % 2, &state));
    if (i % 16 == 0) {
        count(tally, kvw_wait_step(reader, lane, i % 2, i % 64, CALL_NS));
        count(tally, kvw_wait_rows(reader, lane, KVW_ALL_RANKS, 0, i % 64, CALL_NS));
    }
}

/* Other ranks trust the enemy; all that is asked of them is not to die, nor to hang. */
static void work(struct kvw_cache *rank, struct tally *tally, uint32_t i)
{
    const struct kvw_item item = {.group = 0, .row = i % 40, .n = i % 4};
    uint64_t row;

    if (i % 32 != 0)
        return;
    count(tally, roll_chunk(rank, 4, 1));
    count(tally, kvw_truncate(rank, 0, &item, 1));
    count(tally, kvw_evict(rank, 0, &item, 1));
    count(tally, kvw_keep(rank, 0, &item, 1));
    count(tally, kvw_lowest(rank, 0, 0, &row));
    count(tally, kvw_recover(rank, 0, CALL_NS, NULL));
}

/* @return exit code, or 128 + signal. */
static int run_cli(const char *arguments)
{
    char command[512];

    (void)snprintf(command, sizeof command,
                   "timeout 20 '%s/kvwheel' --socket '%s' %s >/dev/null 2>&1",
                   getenv("KVW_BIN"), node.socket, arguments);
    int status = system(command);
    cr_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void ask_cli(void)
{
    static const char *const commands[] = {
        "ls",           "show c", "who",         "who c", "show other", "--json show c",
        "--json who c", "status", "gc --dry-run"};

    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        int code = run_cli(commands[i]);
        cr_assert_lt(code, 124, "kvwheel %s: %d", commands[i], code);
    }
}

static void wait_for_another_daemon(pid_t before)
{
    for (int tries = 0; tries < 1000 && node_daemon_pid(&node) == before; tries++)
        (void)poll(NULL, 0, 5);
    cr_assert_neq(node_daemon_pid(&node), before);
}

static void roll_both(void)
{
    struct kvw_cache *rank[2] = {attach(node.client, "c", 0),
                                 attach(node.client, "c", 1)};

    for (int chunk = 0; chunk < 8; chunk++) {
        for (int r = 0; r < 2; r++)
            OK(roll_chunk(rank[r], 4, 1));
    }
    for (int r = 0; r < 2; r++)
        kvw_detach(rank[r]);
}

/* The enemy at work; all look on; the daemon is killed, and the next one adopts. */
static void endure(worker_fn *enemy, const char *what)
{
    struct worker worker;
    struct tally readers = {0};
    struct tally ranks = {0};
    create("c");
    create("other");
    roll_both();
    struct kvw_cache *reader = attach(node.client, "c", KVW_READER);
    struct kvw_cache *rank = attach(node.client, "c", 1);
    struct kvw_cache *other = attach(node.client, "other", KVW_READER);
    const pid_t daemon = node_daemon_pid(&node);
    worker_start(&node, enemy, &worker);
    char byte;
    cr_assert_eq(read(worker.answers, &byte, 1), 1);

    uint32_t i = 0;
    for (uint64_t begun_ns = wait_now_ns(); wait_now_ns() - begun_ns < WATCH_NS; i++) {
        look(reader, &readers, i);
        work(rank, &ranks, i);
    }
    ask_cli();
    cr_assert_eq(node_daemon_pid(&node), daemon, "the daemon did not survive");
    kill(daemon, SIGKILL);
    wait_for_another_daemon(daemon);
    ask_cli();
    for (uint64_t begun_ns = wait_now_ns(); wait_now_ns() - begun_ns < WATCH_NS / 4;
         i++)
        look(reader, &readers, i);
    const pid_t next = node_daemon_pid(&node);
    worker_kill(&worker);

    fprintf(stderr,
            "%s: readers %u calls, %u errors; a rank %u calls, %u errors (%lu)\n", what,
            readers.n_calls, readers.n_errors, ranks.n_calls, ranks.n_errors,
            (unsigned long)n_read);
    cr_assert_gt(readers.n_errors, 0, "nothing was spoilt");
    cr_assert_gt(n_read, 0, "nothing was read");
    struct kvw_lane_state state;
    OK(kvw_state(other, 0, KVW_ALL_RANKS, &state));
    cr_assert_eq(state.step, 0);
    kvw_detach(other);
    kvw_detach(rank);
    kvw_detach(reader);
    /* Gone already, if the next daemon found nothing there that it could adopt. */
    const int code = run_cli("rm -f c");
    cr_assert(code == 0 || code == 4, "%d", code);
    cr_assert_eq(node_daemon_pid(&node), next, "the daemon did not survive");
}

Test(scribble, random_words_in_control_and_pins)
{
    endure(run_scribbler, "random words");
}

Test(scribble, holes_in_all_segments)
{
    endure(run_puncher, "holes");
}

/* A reader can write the pins alone: a writer by policy `revoke` goes on, the others
 * answer at their deadline, and once the reader is gone nothing of it is left. */
static void run_pin_forger(const struct node *of, int commands, int answers)
{
    struct kvw_client *client;
    struct kvw_cache *cache;
    (void)commands;

    if (client_open(of->socket, false, &client) != 0)
        _exit(2);
    cache = attach(client, "c", KVW_READER);
    if (cache == NULL)
        _exit(3);
    for (uint32_t slot = 0; slot < KVW_ATTACHMENTS_MAX; slot++) {
        if (slot == cache->slot || slot == 0)
            continue;
        store_relaxed(layout_high(cache->pins, &cache->layout, slot),
                      KVW_PINS_PER_ATTACHMENT);
        for (uint32_t i = 0; i < KVW_PINS_PER_ATTACHMENT; i++) {
            struct kvw_pin *pin = layout_pin(cache->pins, &cache->layout, slot, i);
            store_relaxed(&pin->end, UINT64_MAX / 2);
            store_relaxed(&pin->generation, 1);
            store_relaxed(&pin->ranks, UINT64_MAX);
            store_relaxed(&pin->kind, (uint64_t)getpid() << 32 | KVW_PIN_OF_VIEW);
            store_release(&pin->lo_plus_1, 3);
        }
    }
    say_ready(answers);
    for (;;)
        pause();
}

Test(scribble, pins_forged_by_a_reader_vanish_with_it)
{
    struct kvw_attach_options options = KVW_ATTACH_OPTIONS_INIT;
    struct kvw_cache *cache;
    struct kvw_spec spec;
    struct worker forger;
    char byte;
    options.timeout_ns = 200000000ull;
    node_spec(&spec, "c", 1);
    OK(kvw_create(node.client, &spec, NULL, NULL));
    OK(kvw_attach(node.client, "c", 0, &options, &cache));
    /* Slots in use are looked at up to the highest: the forger's is not the last. */
    struct kvw_cache *more[3];
    for (int i = 0; i < 3; i++)
        more[i] = attach(node.client, "c", KVW_READER);
    worker_start(&node, run_pin_forger, &forger);
    cr_assert_eq(read(forger.answers, &byte, 1), 1);
    for (int i = 0; i < 3; i++)
        kvw_detach(more[i]);

    int error = 0;
    for (int chunk = 0; chunk < 12 && error == 0; chunk++)
        error = roll_chunk(cache, 4, 1);
    worker_kill(&forger);
    for (int tries = 0; tries < 200 && roll_chunk(cache, 4, 1) != 0; tries++)
        ;

    for (int chunk = 0; chunk < 12; chunk++)
        OK(roll_chunk(cache, 4, 1));
    kvw_detach(cache);
}
