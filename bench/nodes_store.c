/* SPDX-License-Identifier: Apache-2.0 */
/* See nodes_store.h. */
#include "bench/nodes_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t head_bytes(const struct nodes *nodes)
{
    return (size_t)nodes->workload.head_dim * 2;
}

uint64_t store_word(uint64_t row, uint32_t plane)
{
    uint64_t x = (row * 2 + plane + 1) * 0x9e3779b97f4a7c15ull;

    return x ^ x >> 29;
}

uint64_t store_sum(const char *bytes, size_t n_bytes)
{
    uint64_t sum = 0;
    uint64_t word;

    for (size_t at = 0; at + sizeof word <= n_bytes; at += sizeof word) {
        memcpy(&word, bytes + at, sizeof word);
        sum += word;
    }
    return sum;
}

uint64_t store_expect(const struct nodes *nodes, uint64_t first, uint64_t end,
                      uint32_t n_heads)
{
    const uint64_t words = n_heads * head_bytes(nodes) / sizeof(uint64_t);
    uint64_t sum = 0;

    for (uint64_t row = first; row < end; row++)
        sum += (store_word(row, 0) + store_word(row, 1)) * words;
    return sum;
}

uint64_t store_sum_view(const struct kvw_view *view)
{
    uint64_t sum = 0;

    for (uint32_t p = 0; p < view->n_pieces; p++) {
        const struct kvw_piece *piece = &view->piece[p];
        for (uint32_t plane = 0; plane < view->n_planes; plane++) {
            const struct kvw_plane *of = &view->plane[plane];
            for (uint32_t h = 0; h < view->n_heads; h++)
                sum += store_sum(of->base + piece->slot * of->row_bytes +
                                     h * of->head_bytes,
                                 piece->n_rows * of->row_bytes);
        }
    }
    return sum;
}

static uint64_t wrong_in_row(const char *bytes, size_t n_bytes, uint64_t word)
{
    for (size_t at = 0; at + sizeof word <= n_bytes; at += sizeof word) {
        if (memcmp(bytes + at, &word, sizeof word) != 0)
            return 1;
    }
    return 0;
}

uint64_t store_wrong(const struct nodes *nodes, const struct kvw_view *view)
{
    uint64_t n_wrong = view->n_rows == 0;

    for (uint32_t p = 0; p < view->n_pieces; p++)
        for (uint32_t plane = 0; plane < view->n_planes; plane++)
            for (uint32_t h = 0; h < view->n_heads; h++)
                for (uint32_t r = 0; r < view->piece[p].n_rows; r++) {
                    const struct kvw_plane *of = &view->plane[plane];
                    n_wrong += wrong_in_row(
                        of->base + (view->piece[p].slot + r) * of->row_bytes +
                            h * of->head_bytes,
                        head_bytes(nodes), store_word(view->piece[p].row + r, plane));
                }
    return n_wrong;
}

void store_next(struct store *store)
{
    const size_t row_bytes = store->nodes->workload.n_heads * head_bytes(store->nodes);

    for (uint32_t plane = 0; plane < NODES_PLANES; plane++)
        for (uint32_t r = 0; r < store->chunk_rows; r++) {
            const uint64_t word = store_word(store->rows + r, plane);
            char *row = store->chunk + plane * store->plane_bytes + r * row_bytes;
            for (size_t at = 0; at < row_bytes; at += sizeof word)
                memcpy(row + at, &word, sizeof word);
        }
}

int store_append(struct store *store)
{
    const struct kvw_item item = {.row = store->rows, .n = store->chunk_rows};
    int error = kvw_begin(store->cache, 0, &item, 1, NULL);

    for (uint32_t layer = 0; layer < store->n_layers && error == 0; layer++)
        error = kvw_update(store->cache, 0, (struct kvw_layer){layer}, 0,
                           store->chunk_rows, store->source);
    if (error == 0)
        error = kvw_commit(store->cache, 0, NULL, 0);
    if (error == 0)
        store->rows += store->chunk_rows;
    return error;
}

void store_group(const struct nodes *nodes, struct kvw_spec *spec, uint32_t n_layers,
                 uint64_t window_rows, uint32_t chunk_rows)
{
    struct kvw_spec_group *group = kvw_spec_add_group(spec, "self", n_layers, NULL);

    if (group == NULL ||
        kvw_spec_add_plane(group, "k", KVW_BF16, nodes->workload.head_dim) == NULL ||
        kvw_spec_add_plane(group, "v", KVW_BF16, nodes->workload.head_dim) == NULL)
        nodes_fail(nodes, "spec", -EINVAL);
    group->n_heads = nodes->workload.n_heads;
    group->window_rows = window_rows;
    group->chunk_rows_max = chunk_rows;
    group->slack_chunks = 2;
}

void store_open(struct store *store, struct nodes *nodes, uint64_t window_rows,
                uint32_t n_layers, uint32_t chunk_rows)
{
    struct kvw_spec spec;
    const size_t row_bytes = nodes->workload.n_heads * head_bytes(nodes);

    *store = (struct store){.nodes = nodes,
                            .window_rows = window_rows,
                            .n_layers = n_layers,
                            .chunk_rows = chunk_rows,
                            .plane_bytes = row_bytes * chunk_rows};
    store->chunk = nodes_memory(nodes, NODES_PLANES * store->plane_bytes);
    for (uint32_t plane = 0; plane < NODES_PLANES; plane++)
        store->source[plane] =
            (struct kvw_source){store->chunk + plane * store->plane_bytes,
                                (int64_t)row_bytes, (int64_t)head_bytes(nodes)};
    (void)snprintf(store->name, sizeof store->name, "bench-%u-%d-%ld",
                   nodes->n_stores++, nodes->rank, (long)getpid());
    kvw_spec_init(&spec, store->name);
    store_group(nodes, &spec, n_layers, window_rows, chunk_rows);
    nodes_must(nodes, "create", kvw_create(nodes->client, &spec, NULL, NULL));
    nodes_must(nodes, "attach",
               kvw_attach(nodes->client, store->name, 0, NULL, &store->cache));
    while (store->rows < 2 * window_rows) {
        store_next(store);
        nodes_must(nodes, "fill", store_append(store));
    }
}

void store_close(struct store *store)
{
    kvw_detach(store->cache);
    free(store->chunk);
}
