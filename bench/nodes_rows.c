/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of one node's rows: attach, append, rolling, read. Every rank has a cache and
 * alternatives of its own, and all run at once.
 *
 * What an alternative stores lies as a kernel wants it: each head's rows one after the
 * other, in every plane and layer.
 */
#include "bench/nodes.h"
#include "bench/nodes_server.h"
#include "bench/nodes_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Rows in private memory or in POSIX shared memory: [layer][plane][head][row]. */
struct rival {
    struct store *store;
    char *rows;
    size_t n_bytes;
    bool is_shared;
    uint64_t next; /* row; what a ring appends at */
    char *copy;    /* where a reader copies to */
    uint64_t sum;
    uint64_t expect;
    uint64_t value_first; /* row that a server's value begins with */
    struct server *server;
    char name[64];
};

static size_t head_bytes(const struct nodes *nodes)
{
    return (size_t)nodes->workload.head_dim * 2;
}

static void *map_shared(const struct nodes *nodes, const char *name, size_t n_bytes,
                        int flags)
{
    int fd = shm_open(name, O_RDWR | flags, 0600);

    if (fd < 0 || (flags != 0 && ftruncate(fd, (off_t)n_bytes) < 0))
        nodes_fail(nodes, "POSIX shared memory", -errno);
    void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        nodes_fail(nodes, "POSIX shared memory", -errno);
    (void)close(fd);
    return memory;
}

static void rival_open(struct rival *rival, struct store *store, bool is_shared)
{
    struct nodes *nodes = store->nodes;

    *rival = (struct rival){.store = store, .is_shared = is_shared};
    rival->n_bytes =
        nodes_row_bytes(nodes, store->window_rows) * (size_t)store->n_layers;
    (void)snprintf(rival->name, sizeof rival->name, "/kvw-bench-%ld", (long)getpid());
    if (is_shared) {
        rival->rows = map_shared(nodes, rival->name, rival->n_bytes, O_CREAT | O_EXCL);
        (void)shm_unlink(rival->name); /* the mapping stays, the name does not */
        memset(rival->rows, 0, rival->n_bytes);
    } else
        rival->rows = nodes_memory(nodes, rival->n_bytes);
}

static void rival_close(struct rival *rival)
{
    if (rival->is_shared)
        (void)munmap(rival->rows, rival->n_bytes);
    else
        free(rival->rows);
}

/* The head's rows in one plane and layer. */
static char *rival_head(const struct rival *rival, uint32_t layer, uint32_t plane,
                        uint32_t head)
{
    const struct store *store = rival->store;
    const size_t index =
        ((size_t)layer * NODES_PLANES + plane) * store->nodes->workload.n_heads + head;

    return rival->rows + index * store->window_rows * head_bytes(store->nodes);
}

/* Put the chunk's rows at place `at` of every head. */
static void rival_put(const struct rival *rival, uint64_t at)
{
    const struct store *store = rival->store;
    const size_t n_bytes = head_bytes(store->nodes);
    const uint32_t n_heads = store->nodes->workload.n_heads;

    for (uint32_t layer = 0; layer < store->n_layers; layer++)
        for (uint32_t plane = 0; plane < NODES_PLANES; plane++)
            for (uint32_t h = 0; h < n_heads; h++) {
                char *to = rival_head(rival, layer, plane, h) + at * n_bytes;
                const char *from =
                    store->chunk + plane * store->plane_bytes + h * n_bytes;
                for (uint32_t r = 0; r < store->chunk_rows; r++)
                    memcpy(to + r * n_bytes, from + r * n_bytes * n_heads, n_bytes);
            }
}

/* ----------------------------------------------------------- append, rolling ------ */

static int prepare_chunk(void *context)
{
    store_next(context);
    return 0;
}

static int run_append(void *context, uint64_t *ns)
{
    (void)ns;
    return store_append(context);
}

/* The whole window of the last layer. */
static int check_window(void *context, uint64_t *n_wrong)
{
    struct store *store = context;
    struct kvw_view view;
    const struct kvw_layer layer = {store->n_layers - 1};

    int error = kvw_get(store->cache, 0, layer, KVW_COMMITTED, &view);
    if (error != 0)
        return error;
    *n_wrong = store_wrong(store->nodes, &view) + (view.end_row != store->rows);
    return kvw_release(store->cache, &view);
}

static int prepare_rival(void *context)
{
    store_next(((struct rival *)context)->store);
    return 0;
}

static int run_ring(void *context, uint64_t *ns)
{
    struct rival *rival = context;
    const uint64_t window = rival->store->window_rows;

    (void)ns;
    if (rival->next + rival->store->chunk_rows > window)
        rival->next = 0;
    rival_put(rival, rival->next);
    bench_touch(rival->rows);
    rival->next += rival->store->chunk_rows;
    return 0;
}

/* Everything moves down by a chunk, as programs without a ring do. */
static int run_rolling(void *context, uint64_t *ns)
{
    struct rival *rival = context;
    const struct store *store = rival->store;
    const size_t n_bytes = head_bytes(store->nodes);
    const uint64_t left = store->window_rows - store->chunk_rows;

    (void)ns;
    for (uint32_t layer = 0; layer < store->n_layers; layer++)
        for (uint32_t plane = 0; plane < NODES_PLANES; plane++)
            for (uint32_t h = 0; h < store->nodes->workload.n_heads; h++) {
                char *head = rival_head(rival, layer, plane, h);
                memmove(head, head + store->chunk_rows * n_bytes, left * n_bytes);
            }
    rival_put(rival, left);
    bench_touch(rival->rows);
    rival->next = store->window_rows;
    return 0;
}

/* The chunk that was put in last, in the last layer and head. */
static int check_rival(void *context, uint64_t *n_wrong)
{
    struct rival *rival = context;
    const struct store *store = rival->store;
    const uint32_t head = store->nodes->workload.n_heads - 1;
    const size_t n_bytes = head_bytes(store->nodes);

    for (uint32_t plane = 0; plane < NODES_PLANES; plane++)
        for (uint32_t r = 0; r < store->chunk_rows; r++) {
            const char *row = rival_head(rival, store->n_layers - 1, plane, head) +
                              (rival->next - store->chunk_rows + r) * n_bytes;
            *n_wrong += store_sum(row, n_bytes) !=
                        store_word(store->rows + r, plane) * (n_bytes / 8);
        }
    return 0;
}

/* One value for the chunk of each layer. */
static int run_set(void *context, uint64_t *ns)
{
    struct rival *rival = context;
    int error = 0;

    (void)ns;
    for (uint32_t layer = 0; layer < rival->store->n_layers && error == 0; layer++)
        error = server_set(rival->server, layer, rival->store->chunk,
                           NODES_PLANES * rival->store->plane_bytes);
    return error;
}

static int check_set(void *context, uint64_t *n_wrong)
{
    struct rival *rival = context;
    const struct store *store = rival->store;
    const size_t n_bytes = NODES_PLANES * store->plane_bytes;
    char *value = nodes_memory(store->nodes, n_bytes);

    int error = server_get(rival->server, store->n_layers - 1, value, n_bytes);
    *n_wrong = error == 0 && memcmp(value, store->chunk, n_bytes) != 0;
    free(value);
    return error;
}

/* Add the servers that are there. @return the number of variants. */
static uint32_t add_servers(struct nodes *nodes, struct rival *rivals,
                            struct nodes_variant *variants, uint32_t n,
                            const struct nodes_variant *like)
{
    static const char *const names[SERVER_KINDS] = {"redis", "memcached"};

    for (uint32_t kind = 0; kind < SERVER_KINDS; kind++) {
        rivals[kind].server = server_of(nodes, kind);
        if (rivals[kind].server == NULL)
            continue;
        variants[n] = *like;
        variants[n].name = names[kind];
        variants[n].context = &rivals[kind];
        n++;
    }
    return n;
}

static void append_rows(struct nodes *nodes, uint32_t chunk_rows)
{
    struct store store;
    struct rival private, shared;
    struct nodes_variant variants[5];
    struct rival served[SERVER_KINDS] = {{.store = &store}, {.store = &store}};
    const struct nodes_variant set = {NULL,      prepare_rival, run_set,
                                      check_set, NULL,          NULL};

    store_open(&store, nodes, nodes->workload.window_rows, nodes->workload.n_layers,
               chunk_rows);
    rival_open(&private, &store, false);
    rival_open(&shared, &store, true);
    variants[0] = (struct nodes_variant){"kvwheel",    prepare_chunk, run_append,
                                         check_window, &store,        NULL};
    variants[1] = (struct nodes_variant){"in_process", prepare_rival, run_ring,
                                         check_rival,  &private,      NULL};
    variants[2] = (struct nodes_variant){"posix_shm", prepare_rival, run_ring,
                                         check_rival, &shared,       NULL};
    const uint32_t n = add_servers(nodes, served, variants, 3, &set);
    const uint64_t bytes = nodes_row_bytes(nodes, chunk_rows) * store.n_layers;
    nodes_compare(nodes, "append", bytes, bytes * (uint64_t)nodes->n_ranks, variants,
                  n);
    rival_close(&shared);
    rival_close(&private);
    store_close(&store);
}

void nodes_append(struct nodes *nodes)
{
    append_rows(nodes, 1);
    append_rows(nodes, nodes->workload.chunk_rows);
}

static void roll_window(struct nodes *nodes, uint64_t window_rows)
{
    struct store store;
    struct rival private, shared;

    store_open(&store, nodes, window_rows, nodes->workload.n_layers,
               nodes->workload.chunk_rows);
    rival_open(&private, &store, false);
    rival_open(&shared, &store, true);
    const struct nodes_variant variants[] = {
        {"kvwheel", prepare_chunk, run_append, check_window, &store, NULL},
        {"in_process", prepare_rival, run_rolling, check_rival, &private, NULL},
        {"posix_shm", prepare_rival, run_rolling, check_rival, &shared, NULL},
    };
    nodes_compare(nodes, "rolling",
                  nodes_row_bytes(nodes, window_rows) * store.n_layers,
                  nodes_row_bytes(nodes, store.chunk_rows) * store.n_layers *
                      (uint64_t)nodes->n_ranks,
                  variants, 3);
    rival_close(&shared);
    rival_close(&private);
    store_close(&store);
}

void nodes_rolling(struct nodes *nodes)
{
    roll_window(nodes, nodes->workload.window_rows / 4);
    roll_window(nodes, nodes->workload.window_rows);
}

/* -------------------------------------------------------------------- read -------- */

static int check_sum(void *context, uint64_t *n_wrong)
{
    struct rival *rival = context;

    *n_wrong = rival->sum != rival->expect;
    return 0;
}

static int read_in_place(void *context, uint64_t *ns)
{
    struct rival *rival = context;
    struct kvw_view view;

    (void)ns;
    int error =
        kvw_get(rival->store->cache, 0, (struct kvw_layer){0}, KVW_COMMITTED, &view);
    if (error != 0)
        return error;
    rival->sum = store_sum_view(&view);
    return kvw_release(rival->store->cache, &view);
}

static size_t copy_view(const struct kvw_view *view, char *to)
{
    size_t at = 0;

    for (uint32_t plane = 0; plane < view->n_planes; plane++)
        for (uint32_t h = 0; h < view->n_heads; h++)
            for (uint32_t p = 0; p < view->n_pieces; p++) {
                const struct kvw_plane *of = &view->plane[plane];
                const size_t n_bytes = view->piece[p].n_rows * of->row_bytes;
                memcpy(to + at,
                       of->base + view->piece[p].slot * of->row_bytes +
                           h * of->head_bytes,
                       n_bytes);
                at += n_bytes;
            }
    return at;
}

static int read_copied(void *context, uint64_t *ns)
{
    struct rival *rival = context;
    struct kvw_view view;

    (void)ns;
    int error =
        kvw_get(rival->store->cache, 0, (struct kvw_layer){0}, KVW_COMMITTED, &view);
    if (error != 0)
        return error;
    const size_t n_bytes = copy_view(&view, rival->copy);
    error = kvw_release(rival->store->cache, &view);
    rival->sum = store_sum(rival->copy, n_bytes);
    return error;
}

static int read_shared(void *context, uint64_t *ns)
{
    struct rival *rival = context;

    (void)ns;
    memcpy(rival->copy, rival->rows, rival->n_bytes);
    bench_touch(rival->copy);
    rival->sum = store_sum(rival->copy, rival->n_bytes);
    return 0;
}

static int read_served(void *context, uint64_t *ns)
{
    struct rival *rival = context;

    (void)ns;
    int error = server_get(rival->server, 0, rival->copy, rival->n_bytes);
    rival->sum = store_sum(rival->copy, rival->n_bytes);
    return error;
}

/* What the view shows, in the alternatives' memory. */
static void read_fill(struct rival *rival, struct store *store, char *copy,
                      uint64_t expect)
{
    struct kvw_view view;

    rival->copy = copy;
    rival->expect = expect;
    nodes_must(store->nodes, "get",
               kvw_get(store->cache, 0, (struct kvw_layer){0}, KVW_COMMITTED, &view));
    (void)copy_view(&view, rival->rows);
    nodes_must(store->nodes, "release", kvw_release(store->cache, &view));
}

static void read_window(struct nodes *nodes, uint64_t window_rows)
{
    struct store store;
    struct rival shared;
    struct nodes_variant variants[5];
    const struct nodes_variant get = {NULL, NULL, read_served, check_sum, NULL, NULL};

    store_open(&store, nodes, window_rows, 1, nodes->workload.chunk_rows);
    rival_open(&shared, &store, true);
    char *copy = nodes_memory(nodes, shared.n_bytes);
    const uint64_t expect = store_expect(nodes, store.rows - window_rows, store.rows,
                                         nodes->workload.n_heads);
    read_fill(&shared, &store, copy, expect);
    struct rival served[SERVER_KINDS] = {shared, shared};
    struct rival in_place = shared;
    struct rival copied = shared;
    variants[0] = (struct nodes_variant){"in_place", NULL,      read_in_place,
                                         check_sum,  &in_place, NULL};
    variants[1] =
        (struct nodes_variant){"copied", NULL, read_copied, check_sum, &copied, NULL};
    variants[2] = (struct nodes_variant){"posix_shm", NULL,    read_shared,
                                         check_sum,   &shared, NULL};
    const uint32_t n = add_servers(nodes, served, variants, 3, &get);
    for (uint32_t kind = 0; kind < SERVER_KINDS; kind++) {
        if (served[kind].server != NULL)
            nodes_must(nodes, "set",
                       server_set(served[kind].server, 0, shared.rows, shared.n_bytes));
    }
    nodes_compare(nodes, "read", shared.n_bytes,
                  shared.n_bytes * (uint64_t)nodes->n_ranks, variants, n);
    free(copy);
    rival_close(&shared);
    store_close(&store);
}

void nodes_read(struct nodes *nodes)
{
    read_window(nodes, nodes->workload.window_rows / 4);
    read_window(nodes, nodes->workload.window_rows);
}

/* ------------------------------------------------------------------ attach -------- */

struct attaching {
    struct nodes *nodes;
    struct kvw_cache *cache;
    char name[64];
    char *memory;
    size_t n_bytes;
};

static int run_attach(void *context, uint64_t *ns)
{
    struct attaching *attaching = context;

    (void)ns;
    return kvw_attach(attaching->nodes->client, attaching->name, KVW_READER, NULL,
                      &attaching->cache);
}

static int check_attach(void *context, uint64_t *n_wrong)
{
    struct attaching *attaching = context;
    struct kvw_view view;
    const struct kvw_layer layer = {0};

    int error = kvw_get(attaching->cache, 0, layer, KVW_COMMITTED, &view);
    if (error == 0) {
        *n_wrong = store_wrong(attaching->nodes, &view);
        error = kvw_release(attaching->cache, &view);
    }
    kvw_detach(attaching->cache);
    return error;
}

static int run_map(void *context, uint64_t *ns)
{
    struct attaching *attaching = context;

    (void)ns;
    attaching->memory =
        map_shared(attaching->nodes, attaching->name, attaching->n_bytes, 0);
    return 0;
}

static int check_map(void *context, uint64_t *n_wrong)
{
    struct attaching *attaching = context;

    *n_wrong = attaching->memory[attaching->n_bytes - 1] != 1;
    (void)munmap(attaching->memory, attaching->n_bytes);
    return 0;
}

void nodes_attach(struct nodes *nodes)
{
    struct store store;
    struct attaching shared = {.nodes = nodes};
    struct attaching attaching = {.nodes = nodes};

    store_open(&store, nodes, nodes->workload.window_rows, nodes->workload.n_layers,
               nodes->workload.chunk_rows);
    (void)snprintf(attaching.name, sizeof attaching.name, "%s", store.name);
    (void)snprintf(shared.name, sizeof shared.name, "/kvw-attach-%ld", (long)getpid());
    shared.n_bytes = nodes_row_bytes(nodes, store.window_rows) * store.n_layers;
    char *memory = map_shared(nodes, shared.name, shared.n_bytes, O_CREAT | O_EXCL);
    memset(memory, 1, shared.n_bytes);
    const struct nodes_variant variants[] = {
        {"kvwheel", NULL, run_attach, check_attach, &attaching, NULL},
        {"posix_shm", NULL, run_map, check_map, &shared, NULL},
    };
    nodes_compare(nodes, "attach", shared.n_bytes, 0, variants, 2);
    (void)munmap(memory, shared.n_bytes);
    (void)shm_unlink(shared.name);
    store_close(&store);
}
