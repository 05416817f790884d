/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cases of one node store: a cache of the workload, chunks whose content says
 * which rows they are, and the same chunks for the alternatives.
 */
#ifndef KVW_BENCH_NODES_STORE_H
#define KVW_BENCH_NODES_STORE_H

#include "bench/nodes.h"

struct store {
    struct nodes *nodes;
    struct kvw_cache *cache; /* NULL: chunks alone */
    uint64_t window_rows;
    uint32_t n_layers;
    uint32_t chunk_rows;
    uint64_t rows;      /* so far */
    char *chunk;        /* k of a chunk, then v */
    size_t plane_bytes; /* of a chunk */
    struct kvw_source source[NODES_PLANES];
    char name[64];
};

/** Make a store with a cache of which this rank is the writer, its window filled twice
 *  over. */
void store_open(struct store *store, struct nodes *nodes, uint64_t window_rows,
                uint32_t n_layers, uint32_t chunk_rows);
void store_close(struct store *store);

/** Add the layers' group to a spec. */
void store_group(const struct nodes *nodes, struct kvw_spec *spec, uint32_t n_layers,
                 uint64_t window_rows, uint32_t chunk_rows);

/** Fill the chunk with what the next rows hold. */
void store_next(struct store *store);

/** Begin, update every layer, commit. @return 0 or negative. */
BENCH_NODISCARD int store_append(struct store *store);

/** What fills row `row` of a plane. */
uint64_t store_word(uint64_t row, uint32_t plane);

/** Rows of a view that are not what was stored. */
uint64_t store_wrong(const struct nodes *nodes, const struct kvw_view *view);

/** The sum of all words of a view, read where they lie. */
uint64_t store_sum_view(const struct kvw_view *view);

/** The sum of words. */
uint64_t store_sum(const char *bytes, size_t n_bytes);

/** The sum of all words of rows [first, end) in `n_heads` heads. */
uint64_t store_expect(const struct nodes *nodes, uint64_t first, uint64_t end,
                      uint32_t n_heads);

#endif
