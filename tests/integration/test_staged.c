/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of open chunks across real processes: ranks that read each other's rows where they
 * lie, pass by pass, over more than three windows; a reader that looks on; deaths.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integration/node.h"

enum {
    N_HEADS = 2,
    N_ELEMS = 64,
    CHUNK_ROWS = 8,
    WINDOW_ROWS = 24,
    N_CHUNKS = 3 * WINDOW_ROWS / CHUNK_ROWS + 2,
    N_PASSES = 3,
};

#define SECONDS_20 20000000000ull
#define OK(call) cr_assert_geq((call), 0, "%s", kvw_last_error())

static struct node node;

static void start(void)
{
    node_start(&node, NULL);
}

static void stop(void)
{
    node_stop(&node);
}

TestSuite(staged, .init = start, .fini = stop, .timeout = 120);

static void create(uint32_t n_layers, uint32_t row_parts)
{
    struct kvw_spec spec;

    kvw_spec_init(&spec, "c");
    struct kvw_spec_group *group = kvw_spec_add_group(&spec, "self", n_layers, NULL);
    group->n_heads = N_HEADS;
    group->window_rows = WINDOW_ROWS;
    group->chunk_rows_max = CHUNK_ROWS;
    cr_assert_not_null(kvw_spec_add_plane(group, "k", KVW_F32, N_ELEMS));
    spec.n_ranks = spec.row_parts = row_parts;
    spec.row_block = row_parts > 1 ? CHUNK_ROWS / row_parts : 0;
    spec.lifetime = KVW_LIFETIME_KEEP;
    OK(kvw_create(node.client, &spec, NULL, NULL));
}

static struct kvw_cache *attach(uint32_t rank)
{
    struct kvw_cache *cache;
    int error = -EBUSY;

    for (int tries = 0; tries < 500 && error == -EBUSY; tries++) {
        error = kvw_attach(node.client, "c", rank, NULL, &cache);
        if (error == -EBUSY)
            poll(NULL, 0, 5); /* until the daemon has seen the last owner's death */
    }
    OK(error);
    return cache;
}

/* ----------------------------------------------------------------- contents ---------- */

static float value_of(uint64_t row, uint32_t layer, uint32_t pass)
{
    return (float)(row * 100 + layer * 10 + pass);
}

/* Write all rows of a chunk (of other ranks they are passed over) for a pass. */
static int write_pass(struct kvw_cache *cache, uint64_t row, uint32_t layer,
                      uint32_t pass)
{
    static float rows[CHUNK_ROWS][N_HEADS][N_ELEMS];
    const struct kvw_source source = {rows, sizeof rows[0], sizeof rows[0][0]};

    for (uint32_t r = 0; r < CHUNK_ROWS; r++)
        for (uint32_t h = 0; h < N_HEADS; h++)
            for (uint32_t e = 0; e < N_ELEMS; e++)
                rows[r][h][e] = value_of(row + r, layer, pass);
    return kvw_update(cache, 0, (struct kvw_layer){layer}, 0, CHUNK_ROWS, &source);
}

/* The pass that all elements of a row are of, or -1. */
static int pass_of_row(const struct kvw_view *view, const struct kvw_piece *piece,
                       uint32_t r)
{
    const uint64_t row_bytes = view->plane[0].row_bytes;
    int pass = -1;

    for (uint32_t h = 0; h < view->n_heads; h++) {
        const char *at = kvw_piece_at(&view->plane[0], piece, h) + r * row_bytes;
        for (uint32_t e = 0; e < N_ELEMS; e++) {
            float value;
            memcpy(&value, at + e * sizeof value, sizeof value);
            float base = value_of(piece->row + r, view->layer, 0);
            if (value < base || value > base + 9 ||
                (pass >= 0 && value != base + (float)pass))
                return -1;
            pass = (int)(value - base);
        }
    }
    return pass;
}

/* Every row of the open chunk is of one pass (returned), every other of the last one. -1:
 * not so. -2: no row of an open chunk is shown. */
static int pass_of_view(const struct kvw_view *view)
{
    int pass = -2;

    for (uint32_t i = 0; i < view->n_pieces; i++) {
        for (uint32_t r = 0; r < view->piece[i].n_rows; r++) {
            int of_row = pass_of_row(view, &view->piece[i], r);
            if (view->piece[i].piece_class != KVW_PIECE_CURRENT) {
                if (of_row != N_PASSES)
                    return -1;
            } else if (of_row < 0 || (pass >= 0 && of_row != pass)) {
                return -1;
            } else {
                pass = of_row;
            }
        }
    }
    return pass;
}

/* -------------------------------------------------------- sequence parallel ---------- */

/* What a rank does in one layer of one pass: 0, or where it went wrong. */
static int exchange(struct kvw_cache *cache, uint64_t row, uint32_t layer,
                    uint32_t pass, bool is_answered)
{
    const struct kvw_layer of = {layer};
    struct kvw_view view;

    if (is_answered &&
        kvw_wait_read(cache, 0, KVW_ALL_RANKS, of, pass - 1, SECONDS_20) != 0)
        return 11;
    if (write_pass(cache, row, layer, pass) != 0)
        return 12;
    if (kvw_wait_written(cache, 0, KVW_ALL_RANKS, of, pass, SECONDS_20) != 0)
        return 13;
    if (kvw_cut(cache, 0, of, 0, KVW_STAGED | KVW_UNPINNED, &view) != 0)
        return 14;
    const uint64_t end = row + CHUNK_ROWS;
    if (view.end_row != end || view.n_rows != (end < WINDOW_ROWS ? end : WINDOW_ROWS))
        return 15;
    int seen = pass_of_view(&view);
    if (kvw_release(cache, &view) != 0)
        return 16;
    if (seen != (int)pass)
        return 17;
    return is_answered && kvw_have_read(cache, 0, of, pass) != 0 ? 18 : 0;
}

static int run_rank(uint32_t rank, uint32_t n_layers)
{
    struct kvw_client *client;
    struct kvw_cache *cache;
    int wrong = 0;

    if (client_open(node.socket, false, &client) != 0 ||
        kvw_attach(client, "c", rank, NULL, &cache) != 0)
        return 2;
    for (uint64_t chunk = 0; chunk < N_CHUNKS && wrong == 0; chunk++) {
        const struct kvw_item item = {.row = chunk * CHUNK_ROWS, .n = CHUNK_ROWS};
        if (kvw_begin(cache, 0, &item, 1, NULL) != 0)
            return 3;
        for (uint32_t pass = 1; pass <= N_PASSES && wrong == 0; pass++)
            for (uint32_t layer = 0; layer < n_layers && wrong == 0; layer++)
                wrong = exchange(cache, item.row, layer, pass, n_layers == 1);
        if (wrong == 0 && kvw_commit(cache, 0, NULL, 0) != 0)
            return 4;
    }
    return wrong;
}

static void run_ranks(uint32_t n_ranks, uint32_t n_layers)
{
    pid_t pids[4];

    create(n_layers, n_ranks);
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            int wrong = run_rank(rank, n_layers);
            if (wrong != 0)
                fprintf(stderr, "rank %u: %d: %s\n", rank, wrong, kvw_last_error());
            _exit(wrong);
        }
    }
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        int status;
        cr_assert_eq(waitpid(pids[rank], &status, 0), pids[rank]);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                  "rank %u: status %#x: see run_rank() and exchange()", rank, status);
    }
}

/* Rows of a chunk are split over two ranks: each attends to the other's where they lie. */
Test(staged, two_ranks_read_each_others_rows_in_every_pass)
{
    run_ranks(2, 2);
}

Test(staged, four_ranks_read_each_others_rows_in_every_pass)
{
    run_ranks(4, 3);
}

/* With one layer, a writer might be a pass ahead of a reader: the readers answer. */
Test(staged, one_layer_takes_answers)
{
    run_ranks(2, 1);
}

/* ------------------------------------------------------------------ readers ---------- */

Test(staged, reader_sees_rows_of_an_open_chunk_and_learns_that_they_changed)
{
    struct kvw_view view;
    create(2, 1);
    struct kvw_cache *writer = attach(0);
    struct kvw_cache *reader = attach(KVW_READER);
    const struct kvw_layer layer = {1};
    const struct kvw_item item = {.n = CHUNK_ROWS};

    OK(kvw_begin(writer, 0, &item, 1, NULL));
    OK(kvw_get(reader, 0, layer, KVW_STAGED, &view));
    cr_assert_eq(view.n_rows, 0);
    OK(write_pass(writer, 0, 1, 1));
    cr_assert_eq(kvw_release(reader, &view), 0, "nothing was shown that changed");

    OK(kvw_get(reader, 0, layer, KVW_STAGED, &view));
    cr_assert_eq(view.n_rows, CHUNK_ROWS);
    cr_assert_eq(pass_of_view(&view), 1);
    OK(write_pass(writer, 0, 0, 1));
    cr_assert_eq(kvw_release(reader, &view), 0, "another layer was written");

    OK(kvw_get(reader, 0, layer, KVW_STAGED | KVW_UNPINNED, &view));
    OK(write_pass(writer, 0, 1, 2));
    cr_assert_eq(pass_of_view(&view), 2);
    cr_assert_eq(kvw_release(reader, &view), -KVW_EOVERRUN);

    OK(kvw_get(reader, 0, layer, KVW_STAGED, &view));
    OK(write_pass(writer, 0, 0, N_PASSES));
    OK(kvw_commit(writer, 0, NULL, 0));
    cr_assert_eq(kvw_release(reader, &view), 0, "a commit changes no row");
    kvw_detach(reader);
    kvw_detach(writer);
}

/* Write passes over and over, in half a second some thousands. */
static void run_writer(const struct node *of, int commands, int answers)
{
    struct kvw_client *client;
    struct kvw_cache *cache;
    const struct kvw_item item = {.n = CHUNK_ROWS};
    struct pollfd end = {.fd = commands, .events = POLLIN};
    char byte = 0;

    if (client_open(of->socket, false, &client) != 0 ||
        kvw_attach(client, "c", 0, NULL, &cache) != 0 ||
        kvw_begin(cache, 0, &item, 1, NULL) != 0 || read(commands, &byte, 1) != 1 ||
        write(answers, &byte, 1) != 1)
        _exit(2);
    for (uint32_t pass = 1; poll(&end, 1, 0) == 0; pass = pass % 9 + 1) {
        if (write_pass(cache, 0, 0, pass) != 0)
            _exit(3);
    }
}

/* A view that is released cleanly is of one pass, however fast they follow each other. */
Test(staged, clean_views_are_never_of_two_passes)
{
    struct worker writer;
    struct kvw_view view;
    uint32_t n_clean = 0;
    uint32_t n_overrun = 0;
    create(1, 1);
    struct kvw_cache *reader = attach(KVW_READER);
    worker_start(&node, run_writer, &writer);
    (void)worker_ask(&writer, 'g');

    for (uint32_t tries = 0; tries < 200000 && (n_clean < 500 || n_overrun < 20);
         tries++) {
        int error =
            kvw_get(reader, 0, (struct kvw_layer){0}, KVW_STAGED | KVW_UNPINNED, &view);
        if (error == -EAGAIN)
            continue;
        OK(error);
        int pass = pass_of_view(&view);
        error = kvw_release(reader, &view);
        cr_assert(error == 0 || error == -KVW_EOVERRUN);
        cr_assert(error != 0 || pass != -1, "a clean view of two passes");
        n_clean += error == 0 && pass >= 0;
        n_overrun += error != 0;
    }

    cr_assert_gt(n_clean, 0);
    worker_end(&writer);
    kvw_detach(reader);
}

/* ------------------------------------------------------------------- deaths ---------- */

/* Commands: b = begin and write both layers, s = hand out slots of layer 1. */
static void run_victim(const struct node *of, int commands, int answers)
{
    struct kvw_client *client;
    struct kvw_cache *cache;
    struct kvw_slots slots;
    const struct kvw_item item = {.n = CHUNK_ROWS};
    char command;

    if (client_open(of->socket, false, &client) != 0 ||
        kvw_attach(client, "c", 0, NULL, &cache) != 0)
        _exit(2);
    while (read(commands, &command, 1) == 1) {
        char answer = 0;
        if (command == 'b')
            answer = kvw_begin(cache, 0, &item, 1, NULL) != 0 ||
                     write_pass(cache, 0, 0, 1) != 0 || write_pass(cache, 0, 1, 1) != 0;
        else if (command == 's')
            answer = kvw_slots(cache, 0, (struct kvw_layer){1}, 0, 1, &slots) != 0;
        if (write(answers, &answer, 1) != 1)
            _exit(3);
    }
}

/* What a dead writer wrote whole is shown until a successor comes; what it was writing is
 * not; and a view that was taken before learns of it. */
Test(staged, dead_writer_leaves_no_torn_view)
{
    struct worker victim;
    struct kvw_view before;
    struct kvw_view view;
    const struct kvw_layer layer = {1};
    create(2, 1);
    struct kvw_cache *reader = attach(KVW_READER);
    worker_start(&node, run_victim, &victim);
    cr_assert_eq(worker_ask(&victim, 'b'), 0);
    OK(kvw_get(reader, 0, layer, KVW_STAGED, &before));
    cr_assert_eq(pass_of_view(&before), 1);
    cr_assert_eq(worker_ask(&victim, 's'), 0);
    cr_assert_eq(kvw_get(reader, 0, layer, KVW_STAGED, &view), -EAGAIN);

    worker_kill(&victim);

    cr_assert_eq(kvw_wait_written(reader, 0, 0, layer, 2, SECONDS_20), -EOWNERDEAD);
    cr_assert_eq(kvw_get(reader, 0, layer, KVW_STAGED, &view), -EOWNERDEAD);
    cr_assert_eq(kvw_release(reader, &before), -KVW_EOVERRUN);
    OK(kvw_get(reader, 0, (struct kvw_layer){0}, KVW_STAGED, &before));
    cr_assert_eq(pass_of_view(&before), 1);
    struct kvw_cache *writer = attach(0);
    OK(kvw_get(reader, 0, layer, KVW_STAGED, &view));
    cr_assert_eq(view.n_rows, 0);
    cr_assert_eq(kvw_release(reader, &view), 0);
    const struct kvw_item item = {.n = CHUNK_ROWS};
    OK(kvw_begin(writer, 0, &item, 1, NULL));
    OK(kvw_get(reader, 0, layer, KVW_STAGED, &view));
    cr_assert_eq(view.n_rows, 0, "rows of the forgotten chunk are shown");
    cr_assert_eq(kvw_release(reader, &view), 0);
    OK(write_pass(writer, 0, 0, 2));
    cr_assert_eq(kvw_release(reader, &before), -KVW_EOVERRUN);
    kvw_detach(writer);
    kvw_detach(reader);
}

/* A peer that dies before it has written ends the wait, and a recovery of others does. */
Test(staged, wait_for_a_pass_ends_with_the_rank_or_its_recovery)
{
    create(2, 2);
    struct kvw_cache *first = attach(0);
    struct kvw_cache *second = attach(1);
    const struct kvw_layer layer = {0};
    const struct kvw_item item = {.n = CHUNK_ROWS};

    OK(kvw_begin(first, 0, &item, 1, NULL));
    OK(write_pass(first, 0, 0, 1));
    cr_assert_eq(kvw_wait_written(first, 0, KVW_ALL_RANKS, layer, 1, 1000000),
                 -ETIMEDOUT);
    cr_assert_not_null(strstr(kvw_last_error(), "pass 1 of layer 0"), "%s",
                       kvw_last_error());
    cr_assert_eq(kvw_recover(second, 0, 1000000, NULL), -ETIMEDOUT);
    cr_assert_eq(kvw_wait_written(first, 0, KVW_ALL_RANKS, layer, 1, SECONDS_20),
                 -ESTALE);
    cr_assert_eq(kvw_wait_written(first, 0, 2, layer, 1, 0), -ERANGE);
    cr_assert_eq(kvw_have_read(first, 0, (struct kvw_layer){2}, 1), -ERANGE);
    kvw_detach(second);
    kvw_detach(first);
}
