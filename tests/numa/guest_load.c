/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A writer that commits chunk after chunk, two readers that compare every row they see
 * with what its number says, and a part that goes from node to node meanwhile. Each row
 * says its number in all of its elements; a reader whose view was overrun looks away.
 */
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/numa/guest.h"

#define LAYERS 2u
#define HEADS 4u
#define DIM 128u
#define WINDOW 1024u
#define CHUNK 16u

/* Shared with the children. */
struct counters {
    _Atomic uint32_t is_over;
    _Atomic uint64_t n_chunks;
    _Atomic uint64_t longest_ns; /* of one chunk, while something was being moved */
    _Atomic uint64_t longest_calm_ns; /* and before */
    _Atomic uint32_t is_moving;
    _Atomic uint64_t n_rows; /* compared */
    _Atomic uint64_t n_wrong;
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint32_t value_of(uint64_t row, uint32_t layer, uint32_t head)
{
    return (uint32_t)(row * 2654435761u) ^ layer << 8 ^ head;
}

static int write_chunk(struct kvw_cache *cache, uint32_t *rows)
{
    const struct kvw_item item = {.group = 0, .n = CHUNK, .row = KVW_WHOLE};
    struct kvw_lane_state state;
    struct kvw_begun begun;

    int result = kvw_state(cache, 0, 0, &state);
    if (result < 0)
        return result;
    struct kvw_item at = item;
    at.row = state.group[0].rows;
    result = kvw_begin(cache, 0, &at, 1, &begun);
    for (uint32_t layer = 0; layer < LAYERS && result >= 0; layer++) {
        for (uint32_t head = 0; head < HEADS; head++) {
            for (uint32_t r = 0; r < CHUNK; r++) {
                for (uint32_t i = 0; i < DIM; i++)
                    rows[(head * CHUNK + r) * DIM + i] =
                        value_of(at.row + r, layer, head);
            }
        }
        const struct kvw_source source = {
            .data = rows, .row_bytes = DIM * 4, .head_bytes = CHUNK * DIM * 4};
        result = kvw_update(cache, 0, (struct kvw_layer){layer}, 0, CHUNK, &source);
    }
    return result < 0 ? result : kvw_commit(cache, 0, NULL, 0);
}

static void write_all(const char *socket, struct counters *counters)
{
    struct kvw_client *client = guest_connect(socket);
    uint32_t *rows = malloc(sizeof *rows * HEADS * CHUNK * DIM);
    struct kvw_cache *cache = NULL;

    if (rows == NULL || kvw_attach(client, "load", 0, NULL, &cache) < 0)
        _exit(1);
    while (atomic_load(&counters->is_over) == 0) {
        uint64_t begun_ns = now_ns();
        if (write_chunk(cache, rows) < 0) {
            printf("# write: %s\n", kvw_last_error());
            fflush(stdout);
            _exit(2);
        }
        uint64_t took_ns = now_ns() - begun_ns;
        _Atomic uint64_t *longest = atomic_load(&counters->is_moving) != 0
                                        ? &counters->longest_ns
                                        : &counters->longest_calm_ns;
        if (took_ns > atomic_load(longest))
            atomic_store(longest, took_ns);
        atomic_fetch_add(&counters->n_chunks, 1);
    }
    kvw_detach(cache);
    kvw_disconnect(client);
    _exit(0);
}

/* Rows of a view that are not what their number says. */
static uint64_t compare(const struct kvw_view *view, uint32_t layer, uint64_t *n_rows)
{
    uint64_t n_wrong = 0;

    for (uint32_t p = 0; p < view->n_pieces; p++) {
        const struct kvw_piece *piece = &view->piece[p];
        for (uint32_t head = 0; head < HEADS; head++) {
            for (uint64_t r = 0; r < piece->n_rows; r++) {
                const uint32_t *row =
                    (const void *)(view->plane[0].base +
                                   head * view->plane[0].head_bytes +
                                   (piece->slot + r) * view->plane[0].row_bytes);
                const uint32_t value = value_of(piece->row + r, layer, head);
                bool is_good = true;
                for (uint32_t i = 0; i < DIM; i++)
                    is_good = is_good && row[i] == value;
                n_wrong += !is_good;
                ++*n_rows;
            }
        }
    }
    return n_wrong;
}

static void read_all(const char *socket, struct counters *counters)
{
    struct kvw_client *client = guest_connect(socket);
    struct kvw_cache *cache = NULL;
    static struct kvw_view view;

    if (kvw_attach(client, "load", KVW_READER, NULL, &cache) < 0)
        _exit(1);
    while (atomic_load(&counters->is_over) == 0) {
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint64_t n_rows = 0;
            if (kvw_cut(cache, 0, (struct kvw_layer){layer}, 1, 0, &view) < 0)
                continue;
            uint64_t n_wrong = compare(&view, layer, &n_rows);
            if (kvw_release(cache, &view) == 0) {
                atomic_fetch_add(&counters->n_wrong, n_wrong);
                atomic_fetch_add(&counters->n_rows, n_rows);
            }
        }
    }
    kvw_detach(cache);
    kvw_disconnect(client);
    _exit(0);
}

static bool create(struct kvw_client *client)
{
    static struct kvw_spec spec;

    kvw_spec_init(&spec, "load");
    struct kvw_spec_group *group = kvw_spec_add_group(&spec, "self", LAYERS, NULL);
    group->n_heads = HEADS;
    group->window_rows = WINDOW;
    group->chunk_rows_max = CHUNK;
    (void)!kvw_spec_add_plane(group, "k", KVW_U32, DIM);
    spec.lifetime = KVW_LIFETIME_KEEP;
    spec.placement = KVW_PLACEMENT_NODE;
    spec.has_checksums = 1;
    return kvw_create(client, &spec, NULL, NULL) >= 0;
}

static void wait_chunks(struct counters *counters, uint64_t n)
{
    for (int i = 0; i < 1000 && atomic_load(&counters->n_chunks) < n; i++)
        (void)poll(NULL, 0, 10);
}

void guest_load(const char *socket, uint32_t n_nodes, uint32_t n_moves)
{
    struct counters *counters = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct kvw_client *client = guest_connect(socket);
    uint32_t node[1] = {0};
    pid_t children[3];
    uint64_t n_elsewhere = 0;
    int n_bad = 0;

    if (!claim(counters != MAP_FAILED && create(client), "load: a cache is made"))
        return;
    fflush(stdout);
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i] == 0 && i == 0)
            write_all(socket, counters);
        if (children[i] == 0)
            read_all(socket, counters);
    }
    wait_chunks(counters, 2 * WINDOW / CHUNK);
    atomic_store(&counters->is_moving, 1);
    for (uint32_t m = 0; m < n_moves; m++) {
        node[0] = (m + 1) % n_nodes;
        n_bad +=
            shell("kvwheel move load --rank 0 --node %u > /tmp/move", node[0]) != 0;
        n_elsewhere += pages_elsewhere(client, "load", node);
    }
    atomic_store(&counters->is_moving, 0);
    atomic_store(&counters->is_over, 1);
    for (int i = 0; i < 3; i++) {
        int status = 0;
        (void)waitpid(children[i], &status, 0);
        n_bad += status != 0;
    }
    (void)claim(n_bad == 0 && n_elsewhere == 0,
                "load: %u moves under a writer and two readers, every page arrives "
                "(failed %d, pages elsewhere %llu)",
                n_moves, n_bad, (unsigned long long)n_elsewhere);
    (void)claim(atomic_load(&counters->n_wrong) == 0 &&
                    atomic_load(&counters->n_rows) > 0,
                "load: %llu rows compared, %llu wrong; %llu chunks written",
                (unsigned long long)atomic_load(&counters->n_rows),
                (unsigned long long)atomic_load(&counters->n_wrong),
                (unsigned long long)atomic_load(&counters->n_chunks));
    (void)claim(shell("kvwheel verify load > /tmp/verify") == 0,
                "load: kvwheel verify finds no damage");
    printf("# longest chunk of the writer: %.3f ms while moving, %.3f ms before\n",
           (double)atomic_load(&counters->longest_ns) / 1e6,
           (double)atomic_load(&counters->longest_calm_ns) / 1e6);
    (void)shell("kvwheel rm -f load > /dev/null");
    kvw_disconnect(client);
    (void)munmap(counters, sizeof *counters);
}
