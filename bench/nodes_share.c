/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The case share: ranks of one node read each other's rows of the open chunk where they
 * lie, beside MPI's all-to-all of the same rows. In `share` the rows are handed over; in
 * `share_read` every rank reads all that it got once. The exchange's packing is not timed.
 */
#include "bench/nodes.h"
#include "bench/nodes_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHARE_BYTES (4u << 20) /* of K and V of a chunk in a layer */

/* ------------------------------------------------------------------- share -------- */

struct sharing {
    struct nodes *nodes;
    struct kvw_cache *cache;
    uint64_t rows;       /* committed */
    uint32_t chunk_rows; /* of all ranks of the node */
    uint32_t own_rows;
    uint32_t head_first, n_heads; /* that this rank attends with */
    struct kvw_source source[NODES_PLANES];
    char *chunk; /* k of the whole chunk, then v; only the own rows are filled */
    char *send, *receive;
    size_t block_bytes; /* of an exchange: own rows in the heads of one rank */
    bool is_reading;
    bool is_copied;
    uint64_t sum;
};

static size_t head_bytes(const struct nodes *nodes)
{
    return (size_t)nodes->workload.head_dim * 2;
}

static void fill_words(char *to, size_t n_bytes, uint64_t word)
{
    for (size_t at = 0; at < n_bytes; at += sizeof word)
        memcpy(to + at, &word, sizeof word);
}

static uint64_t own_first(const struct sharing *sharing)
{
    return (uint64_t)sharing->nodes->node_rank * sharing->own_rows;
}

/* The own rows, in private memory. */
static void fill_private(struct sharing *sharing)
{
    const struct nodes *nodes = sharing->nodes;
    const size_t row_bytes = nodes->workload.n_heads * head_bytes(nodes);

    for (uint32_t plane = 0; plane < NODES_PLANES; plane++)
        for (uint64_t r = own_first(sharing);
             r < own_first(sharing) + sharing->own_rows; r++)
            fill_words(sharing->chunk + (plane * sharing->chunk_rows + r) * row_bytes,
                       row_bytes, store_word(sharing->rows + r, plane));
}

/* The own rows where they belong, as a model's projection would write them. */
static int fill_slots(struct sharing *sharing)
{
    struct kvw_slots slots;

    int error = kvw_slots(sharing->cache, 0, (struct kvw_layer){0}, own_first(sharing),
                          sharing->own_rows, &slots);
    for (uint32_t p = 0; error == 0 && p < slots.n_pieces; p++)
        for (uint32_t plane = 0; plane < slots.n_planes; plane++)
            for (uint32_t h = 0; h < slots.n_heads; h++)
                for (uint32_t r = 0; r < slots.piece[p].n_rows; r++) {
                    const struct kvw_plane *of = &slots.plane[plane];
                    fill_words(of->base + (slots.piece[p].slot + r) * of->row_bytes +
                                   h * of->head_bytes,
                               of->row_bytes,
                               store_word(slots.piece[p].row + r, plane));
                }
    return error;
}

static int prepare_share(void *context)
{
    struct sharing *sharing = context;
    const struct kvw_item item = {.row = sharing->rows, .n = sharing->chunk_rows};

    int error = kvw_begin(sharing->cache, 0, &item, 1, NULL);
    if (error != 0)
        return error;
    fill_private(sharing);
    return sharing->is_copied ? 0 : fill_slots(sharing);
}

/* Sum of the chunk's rows in the own heads. */
static uint64_t sum_own_heads(const struct sharing *sharing,
                              const struct kvw_view *view)
{
    uint64_t sum = 0;

    for (uint32_t p = 0; p < view->n_pieces; p++) {
        if (view->piece[p].piece_class != KVW_PIECE_CURRENT)
            continue;
        for (uint32_t plane = 0; plane < view->n_planes; plane++)
            for (uint32_t h = 0; h < sharing->n_heads; h++) {
                const struct kvw_plane *of = &view->plane[plane];
                sum += store_sum(of->base + view->piece[p].slot * of->row_bytes +
                                     (sharing->head_first + h) * of->head_bytes,
                                 view->piece[p].n_rows * of->row_bytes);
            }
    }
    return sum;
}

static int run_share(void *context, uint64_t *ns)
{
    struct sharing *sharing = context;
    const struct kvw_layer layer = {0};
    struct kvw_view view;

    (void)ns;
    int error = sharing->is_copied ? kvw_update(sharing->cache, 0, layer, 0,
                                                sharing->chunk_rows, sharing->source)
                                   : kvw_written(sharing->cache, 0, layer,
                                                 own_first(sharing), sharing->own_rows);
    if (error == 0)
        error = kvw_wait_written(sharing->cache, 0, KVW_ALL_RANKS, layer, 1,
                                 NODES_TIMEOUT_NS);
    if (error == 0)
        error = kvw_cut(sharing->cache, 0, layer, 0, KVW_STAGED | KVW_UNPINNED, &view);
    if (error != 0)
        return error;
    if (sharing->is_reading)
        sharing->sum = sum_own_heads(sharing, &view);
    return kvw_release(sharing->cache, &view);
}

/* What was not read in the time is read now. */
static int check_share(void *context, uint64_t *n_wrong)
{
    struct sharing *sharing = context;
    struct kvw_view view;
    uint64_t sum = sharing->sum;
    int error = 0;

    if (!sharing->is_reading) {
        error = kvw_cut(sharing->cache, 0, (struct kvw_layer){0}, 0,
                        KVW_STAGED | KVW_UNPINNED, &view);
        if (error != 0)
            return error;
        sum = sum_own_heads(sharing, &view);
        error = kvw_release(sharing->cache, &view);
    }
    *n_wrong =
        sum != store_expect(sharing->nodes, sharing->rows,
                            sharing->rows + sharing->chunk_rows, sharing->n_heads);
    (void)MPI_Barrier(sharing->nodes->node); /* all have read */
    if (error == 0)
        error = kvw_commit(sharing->cache, 0, NULL, 0);
    sharing->rows += error == 0 ? sharing->chunk_rows : 0;
    return error;
}

/* The own rows packed for each rank: [rank][plane][its head][row]. */
static int prepare_exchange(void *context)
{
    struct sharing *sharing = context;
    const uint32_t n_heads = sharing->nodes->workload.n_heads;
    const size_t bytes = head_bytes(sharing->nodes);
    char *to = sharing->send;

    for (int rank = 0; rank < sharing->nodes->own_ranks; rank++)
        for (uint32_t plane = 0; plane < NODES_PLANES; plane++)
            for (uint32_t h = 0; h < n_heads / (uint32_t)sharing->nodes->own_ranks; h++)
                for (uint32_t r = 0; r < sharing->own_rows; r++, to += bytes)
                    fill_words(
                        to, bytes,
                        store_word(sharing->rows + own_first(sharing) + r, plane));
    return 0;
}

static int run_exchange(void *context, uint64_t *ns)
{
    struct sharing *sharing = context;
    const size_t n_bytes = sharing->block_bytes * (size_t)sharing->nodes->own_ranks;

    (void)ns;
    if (MPI_Alltoall(sharing->send, (int)sharing->block_bytes, MPI_BYTE,
                     sharing->receive, (int)sharing->block_bytes, MPI_BYTE,
                     sharing->nodes->node) != MPI_SUCCESS)
        return -EIO;
    if (sharing->is_reading)
        sharing->sum = store_sum(sharing->receive, n_bytes);
    return 0;
}

static int check_exchange(void *context, uint64_t *n_wrong)
{
    struct sharing *sharing = context;
    const size_t n_bytes = sharing->block_bytes * (size_t)sharing->nodes->own_ranks;
    const uint64_t sum =
        sharing->is_reading ? sharing->sum : store_sum(sharing->receive, n_bytes);

    *n_wrong =
        sum != store_expect(sharing->nodes, sharing->rows,
                            sharing->rows + sharing->chunk_rows, sharing->n_heads);
    memset(sharing->receive, 0, n_bytes);
    return 0;
}

/* A cache of all ranks of the node: each has a run of the chunk's rows, in all heads. */
static void share_cache(struct sharing *sharing)
{
    struct nodes *nodes = sharing->nodes;
    struct kvw_spec spec;
    char name[48];
    int pid = (int)getpid();
    int error = 0;

    (void)MPI_Bcast(&pid, 1, MPI_INT, 0, nodes->node);
    (void)snprintf(name, sizeof name, "bench-share-%d-%d", pid, sharing->is_copied);
    kvw_spec_init(&spec, name);
    spec.n_ranks = spec.row_parts = (uint32_t)nodes->own_ranks;
    spec.row_block = sharing->own_rows;
    store_group(nodes, &spec, 1, sharing->chunk_rows, sharing->chunk_rows);
    if (nodes->node_rank == 0)
        error = kvw_create(nodes->client, &spec, NULL, NULL);
    nodes_must(nodes, "create", error);
    (void)MPI_Barrier(nodes->node);
    nodes_must(nodes, "attach",
               kvw_attach(nodes->client, name, (uint32_t)nodes->node_rank, NULL,
                          &sharing->cache));
    (void)MPI_Barrier(nodes->node);
}

static void share_memory(struct sharing *sharing)
{
    struct nodes *nodes = sharing->nodes;
    const size_t bytes = head_bytes(nodes);
    const size_t row_bytes = nodes->workload.n_heads * bytes;
    const size_t plane_bytes = row_bytes * sharing->chunk_rows;

    sharing->chunk = nodes_memory(nodes, NODES_PLANES * plane_bytes);
    for (uint32_t plane = 0; plane < NODES_PLANES; plane++)
        sharing->source[plane] = (struct kvw_source){
            sharing->chunk + plane * plane_bytes, (int64_t)row_bytes, (int64_t)bytes};
    sharing->block_bytes = NODES_PLANES * sharing->n_heads * sharing->own_rows * bytes;
    sharing->send =
        nodes_memory(nodes, sharing->block_bytes * (size_t)nodes->own_ranks);
    sharing->receive =
        nodes_memory(nodes, sharing->block_bytes * (size_t)nodes->own_ranks);
}

static void share_one(struct sharing *sharing, bool is_reading)
{
    struct sharing *copied = sharing + 1;
    const uint64_t bytes = nodes_row_bytes(sharing->nodes, sharing->chunk_rows);
    const struct nodes_variant variants[] = {
        {"in_place", prepare_share, run_share, check_share, sharing, NULL},
        {"copied_in", prepare_share, run_share, check_share, copied, NULL},
        {"mpi_alltoall", prepare_exchange, run_exchange, check_exchange, sharing, NULL},
    };

    sharing->is_reading = copied->is_reading = is_reading;
    nodes_compare(sharing->nodes, is_reading ? "share_read" : "share", bytes,
                  bytes * (uint64_t)sharing->nodes->n_nodes, variants, 3);
}

void nodes_share(struct nodes *nodes)
{
    struct sharing sharing[2];
    const uint32_t ranks = (uint32_t)nodes->own_ranks;

    if (nodes->node_ranks < 2 || nodes->workload.n_heads % ranks != 0) {
        nodes_absent(nodes, "share",
                     "it takes two ranks on every node that divide the heads");
        return;
    }
    for (int i = 0; i < 2; i++) {
        const uint32_t rows = (uint32_t)(SHARE_BYTES / nodes_row_bytes(nodes, 1));
        sharing[i] = (struct sharing){.nodes = nodes, .is_copied = i == 1};
        sharing[i].own_rows = rows / ranks;
        sharing[i].chunk_rows = sharing[i].own_rows * ranks;
        sharing[i].n_heads = nodes->workload.n_heads / ranks;
        sharing[i].head_first = (uint32_t)nodes->node_rank * sharing[i].n_heads;
        share_memory(&sharing[i]);
    }
    share_cache(&sharing[0]);
    share_cache(&sharing[1]);
    share_one(sharing, false);
    share_one(sharing, true);
    for (int i = 0; i < 2; i++) {
        kvw_detach(sharing[i].cache);
        free(sharing[i].chunk);
        free(sharing[i].send);
        free(sharing[i].receive);
    }
}
