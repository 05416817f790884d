/* SPDX-License-Identifier: Apache-2.0 */
/* The words are relaxed: P1 and P2 of the publication order them, as they do rows. */
#include "client/checksum.h"

#include "client/board.h"
#include "client/step.h"
#include "proto/base/align.h"

enum { BATCH_ROWS = 64 };

static char *rows_at(const struct kvw_cache *cache, const struct checksum_of *of,
                     uint64_t slot)
{
    return cache->data + layout_row_offset(&cache->layout, of->group, of->in_group,
                                           of->plane, of->lane, of->head, slot);
}

static shared_u32 *sums_at(const struct kvw_cache *cache, const struct checksum_of *of,
                           uint64_t slot)
{
    const uint32_t n_heads = cache->geometry.group[of->group].n_heads;

    return (shared_u32 *)(void *)(cache->data +
                                  layout_sum_offset(&cache->layout, n_heads, of->group,
                                                    of->in_group, of->plane, of->lane,
                                                    of->head, slot));
}

/* Rows of one head. */
static void make_rows(struct kvw_cache *cache, const struct checksum_of *of,
                      const struct kvw_run *run)
{
    const uint64_t row_bytes =
        cache->layout.group[of->group].plane[of->plane].row_bytes;
    shared_u32 *word = sums_at(cache, of, run->slot);
    const char *rows = rows_at(cache, of, run->slot);
    uint32_t sums[BATCH_ROWS];

    for (uint64_t done = 0; done < run->n; done += BATCH_ROWS) {
        const uint64_t n = min_u64(run->n - done, BATCH_ROWS);
        cache->crc32c_rows(rows + done * row_bytes, row_bytes, row_bytes, n, sums);
        for (uint64_t i = 0; i < n; i++)
            store_relaxed(word++, sums[i]);
    }
}

/* One row in all heads: a decoder's, who has no rows that could be done side by side. */
static void make_row(struct kvw_cache *cache, struct checksum_of *of, uint64_t slot)
{
    const struct kvw_layout_plane *plane =
        &cache->layout.group[of->group].plane[of->plane];
    const struct kvw_interval heads = cache->heads[of->group];
    uint32_t sums[BATCH_ROWS];

    for (uint32_t head = heads.begin; head < heads.end; head += BATCH_ROWS) {
        const uint64_t n = min_u64(heads.end - head, BATCH_ROWS);
        of->head = head;
        cache->crc32c_rows(rows_at(cache, of, slot), plane->head_bytes,
                           plane->row_bytes, n, sums);
        for (uint64_t i = 0; i < n; i++, of->head++)
            store_relaxed(sums_at(cache, of, slot), sums[i]);
    }
}

static void make_layer(struct kvw_cache *cache, struct checksum_of *of,
                       const struct kvw_run *runs, uint32_t n_runs)
{
    const struct kvw_interval heads = cache->heads[of->group];
    const uint32_t n_planes = cache->geometry.group[of->group].n_planes;

    for (of->plane = 0; of->plane < n_planes; of->plane++) {
        for (uint32_t r = 0; r < n_runs; r++) {
            if (runs[r].n == 1) {
                make_row(cache, of, runs[r].slot);
                continue;
            }
            for (of->head = heads.begin; of->head < heads.end; of->head++)
                make_rows(cache, of, &runs[r]);
        }
    }
}

void checksum_commit(struct kvw_cache *cache, uint32_t lane,
                     const uint64_t n_rows[KVW_GROUPS_MAX])
{
    struct kvw_run runs[KVW_PIECES_MAX];

    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        if (n_rows[g] == 0)
            continue;
        const uint32_t n_runs = step_own_runs(cache, lane, g, 0, n_rows[g], runs);
        struct checksum_of of = {.group = g, .lane = lane};
        for (; of.in_group < cache->geometry.group[g].n_layers; of.in_group++) {
            if (cache->layers[cache->geometry.group[g].layer_first + of.in_group]
                    .is_held)
                make_layer(cache, &of, runs, n_runs);
        }
    }
}

void checksum_copy(struct kvw_cache *cache, const struct checksum_of *of,
                   uint64_t from_slot, uint64_t to_slot, uint64_t n_rows)
{
    shared_u32 *from = sums_at(cache, of, from_slot);
    shared_u32 *to = sums_at(cache, of, to_slot);

    for (uint64_t i = 0; i < n_rows; i++)
        store_relaxed(&to[i], load_relaxed(&from[i]));
}

uint64_t checksum_compare(const struct kvw_cache *cache, const struct checksum_of *of,
                          uint64_t slot, uint64_t n_rows)
{
    const uint64_t row_bytes =
        cache->layout.group[of->group].plane[of->plane].row_bytes;
    shared_u32 *word = sums_at(cache, of, slot);
    const char *rows = rows_at(cache, of, slot);
    uint32_t sums[BATCH_ROWS];

    for (uint64_t first = 0; first < n_rows; first += BATCH_ROWS) {
        const uint64_t n = min_u64(n_rows - first, BATCH_ROWS);
        cache->crc32c_rows(rows + first * row_bytes, row_bytes, row_bytes, n, sums);
        for (uint64_t i = 0; i < n; i++) {
            if (load_relaxed(&word[first + i]) != sums[i])
                return first + i;
        }
    }
    return n_rows;
}
