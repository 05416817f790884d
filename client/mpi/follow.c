/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filling a box that was lost from a scratch cache that replays its rows, and comparing those
 * that were kept. Both caches have the same geometry and this rank the same place in both, so
 * the boxes have the same numbers and slots. Nothing here waits for another box.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "client/mpi/inside.h"

static int check_twins(const struct kvw_mpi *mpi, const struct kvw_mpi *scratch)
{
    if (mpi->place == scratch->place && mpi->n_places == scratch->n_places &&
        memcmp(&mpi->grid, &scratch->grid, sizeof mpi->grid) == 0 &&
        mpi->spec.row_block == scratch->spec.row_block &&
        mpi->spec.n_groups == scratch->spec.n_groups &&
        memcmp(mpi->spec.group, scratch->spec.group, sizeof mpi->spec.group) == 0)
        return 0;
    return told(
        -EINVAL,
        "follow: the scratch cache has another partition, or place %u where this "
        "one has %u",
        scratch->place, mpi->place);
}

/* Layers of a box's group that this rank holds. */
static int layers_of(const struct kvw_mpi *mpi, uint32_t group, struct kvw_part *part)
{
    int error = kvw_cache_part(mpi->cache, group, mpi->box_rank, part);

    if (error == 0 && part->n_heads == 0)
        part->n_layers = 0;
    return error == 0 ? 0 : told_by_kvw(error, "follow");
}

/* ------------------------------------------------------------------- follow ------- */

/* Copy rows [row, row + n) of a layer from what the scratch shows into the open chunk. */
static int copy_layer(struct kvw_mpi *mpi, const struct kvw_mpi *scratch, uint32_t lane,
                      struct kvw_layer layer, uint64_t row, uint64_t n)
{
    struct kvw_view view;
    uint64_t copied = 0;

    int error = kvw_get(scratch->cache, lane, layer, KVW_COMMITTED, &view);
    if (error != 0)
        return told_by_kvw(error, "follow");
    for (uint32_t i = 0; i < view.n_pieces && error == 0; i++) {
        const struct kvw_piece *piece = &view.piece[i];
        const uint64_t first = piece->row > row ? piece->row : row;
        const uint64_t piece_end = piece->row + piece->n_rows;
        const uint64_t end = piece_end < row + n ? piece_end : row + n;
        struct kvw_source sources[KVW_PLANES_MAX];
        if (first >= end || piece->piece_class == KVW_PIECE_KEPT)
            continue;
        for (uint32_t p = 0; p < view.n_planes; p++)
            sources[p] = (struct kvw_source){
                kvw_piece_at(&view.plane[p], piece, 0) +
                    (first - piece->row) * view.plane[p].row_bytes,
                (int64_t)view.plane[p].row_bytes, (int64_t)view.plane[p].head_bytes};
        error = kvw_update(mpi->cache, lane, layer, first - row, end - first, sources);
        copied += end - first;
    }
    int released = kvw_release(scratch->cache, &view);
    if (error == 0)
        error = released;
    if (error != 0)
        return told_by_kvw(error, "follow");
    if (copied == n || kvw_cache_spec(mpi->cache)->row_parts > 1)
        return 0; /* of split rows a view has this rank's, and commit counts them */
    return told(-ERANGE,
                "follow: layer %u: rows %" PRIu64 " to %" PRIu64
                " are no longer in the scratch cache: follow each of its steps",
                layer.index, row, row + n);
}

/* What the scratch is ahead: its rows, or its epoch alone. @return how many groups. */
static uint32_t ahead(const struct kvw_mpi *mpi, const struct kvw_lane_state *from,
                      const struct kvw_lane_state *to, struct kvw_item *items,
                      struct kvw_item *ends)
{
    const struct kvw_spec *spec = kvw_cache_spec(mpi->cache);
    uint32_t n = 0;

    for (uint32_t g = 0; g < spec->n_groups; g++) {
        const struct kvw_group_state *a = &from->group[g], *b = &to->group[g];
        if (a->rows < b->rows || (a->rows == b->rows && a->epoch == b->epoch))
            continue;
        const uint64_t rows = a->rows - b->rows;
        const uint64_t n_rows =
            rows < spec->group[g].chunk_rows_max ? rows : spec->group[g].chunk_rows_max;
        items[n] = (struct kvw_item){.group = g,
                                     .row = b->rows,
                                     .n = n_rows > 0 ? n_rows : 1,
                                     .has_epoch = 1,
                                     .epoch = a->epoch};
        ends[n] = (struct kvw_item){.group = g, .n = n_rows};
        n++;
    }
    return n;
}

static int follow_step(struct kvw_mpi *mpi, const struct kvw_mpi *scratch,
                       uint32_t lane, const struct kvw_lane_state *from, bool *is_done)
{
    struct kvw_item items[KVW_GROUPS_MAX], ends[KVW_GROUPS_MAX];
    struct kvw_lane_state to;
    int error = kvw_state(mpi->cache, lane, mpi->box_rank, &to);

    if (error != 0)
        return told_by_kvw(error, "follow");
    const uint32_t n = ahead(mpi, from, &to, items, ends);
    *is_done = n == 0;
    if (n == 0)
        return 0;
    error = kvw_begin(mpi->cache, lane, items, n, NULL);
    if (error != 0)
        return told_by_kvw(error, "follow");
    for (uint32_t i = 0; i < n && error == 0; i++) {
        struct kvw_part part;
        error = layers_of(mpi, items[i].group, &part);
        for (uint32_t l = 0; error == 0 && ends[i].n > 0 && l < part.n_layers; l++) {
            const struct kvw_layer layer = {part.layer_first + l};
            error = copy_layer(mpi, scratch, lane, layer, items[i].row, ends[i].n);
        }
    }
    if (error != 0)
        return error;
    error = kvw_commit(mpi->cache, lane, ends, n);
    return error == 0 ? 0 : told_by_kvw(error, "follow");
}

int kvw_mpi_follow(struct kvw_mpi *mpi, struct kvw_mpi *scratch, uint32_t lane_number)
{
    const uint32_t lane = lane_number - mpi->lane_first;
    struct kvw_lane_state from;
    bool is_done = false;

    if (lane_here(mpi, "follow", lane_number) == NULL)
        return mpi->is_broken ? -EPIPE : -ERANGE;
    int error = check_twins(mpi, scratch);
    if (error != 0 || !mpi->is_new[mpi->box])
        return error;
    error = kvw_state(scratch->cache, lane, scratch->box_rank, &from);
    if (error != 0)
        return told_by_kvw(error, "follow");
    /* Each step copies a chunk, so there are at most as many as rows and one. */
    while (error == 0 && !is_done)
        error = follow_step(mpi, scratch, lane, &from, &is_done);
    return error == 0 ? step_read(mpi, lane_number) : error;
}

int kvw_mpi_fill(struct kvw_mpi *mpi, uint32_t lane_number, uint64_t step)
{
    struct mpi_lane *lane = lane_here(mpi, "fill", lane_number);
    const uint32_t here = lane_number - mpi->lane_first;

    if (lane == NULL)
        return mpi->is_broken ? -EPIPE : -ERANGE;
    if (!mpi->is_new[mpi->box])
        return 0;
    if (lane->step > step)
        return told(-ERANGE,
                    "fill: lane %u: the box took %" PRIu64
                    " steps, more than the %" PRIu64
                    " of the others: replay in larger chunks",
                    lane_number, lane->step, step);
    for (; lane->step < step; lane->step++) {
        struct kvw_lane_state state;
        int error = kvw_state(mpi->cache, here, mpi->box_rank, &state);
        const struct kvw_item item = {.group = 0, .row = state.group[0].evicted};
        if (error == 0)
            error = kvw_evict(mpi->cache, here, &item, 1);
        if (error != 0)
            return told_by_kvw(error, "fill");
    }
    return lost_end(mpi, lane);
}

/* ------------------------------------------------------------------ compare ------- */

struct tally {
    uint64_t n_rows;
    uint64_t n_wrong;
};

static const char *find_row(const struct kvw_view *view, uint32_t plane, uint64_t row,
                            uint32_t head)
{
    for (uint32_t i = 0; i < view->n_pieces; i++) {
        const struct kvw_piece *piece = &view->piece[i];
        if (row - piece->row < piece->n_rows)
            return kvw_piece_at(&view->plane[plane], piece, head) +
                   (row - piece->row) * view->plane[plane].row_bytes;
    }
    return NULL;
}

static void compare_views(const struct kvw_spec_group *group,
                          const struct kvw_view *mine, const struct kvw_view *other,
                          struct tally *tally)
{
    for (uint32_t p = 0; p < group->n_planes; p++) {
        for (uint32_t head = 0; head < mine->n_heads; head++) {
            for (uint32_t i = 0; i < mine->n_pieces; i++) {
                const struct kvw_piece *piece = &mine->piece[i];
                for (uint64_t r = 0; r < piece->n_rows; r++) {
                    const uint64_t row = piece->row + r;
                    const char *a = kvw_piece_at(&mine->plane[p], piece, head) +
                                    r * mine->plane[p].row_bytes;
                    const char *b = find_row(other, p, row, head);
                    tally->n_rows++;
                    tally->n_wrong +=
                        b == NULL || memcmp(a, b, mine->plane[p].row_bytes) != 0;
                }
            }
        }
    }
}

static int compare_layer(struct kvw_mpi *mpi, const struct kvw_mpi *scratch,
                         uint32_t lane, struct kvw_layer layer, struct tally *tally)
{
    const struct kvw_spec *spec = kvw_cache_spec(mpi->cache);
    struct kvw_view mine, other;
    uint32_t g = 0;

    for (uint32_t first = 0; layer.index - first >= spec->group[g].n_layers; g++)
        first += spec->group[g].n_layers;
    int error = kvw_get(mpi->cache, lane, layer, KVW_COMMITTED, &mine);
    if (error != 0)
        return told_by_kvw(error, "compare");
    error = kvw_get(scratch->cache, lane, layer, KVW_COMMITTED, &other);
    if (error == 0) {
        compare_views(&spec->group[g], &mine, &other, tally);
        if (mine.n_rows != other.n_rows || mine.end_row != other.end_row)
            tally->n_wrong++;
        error = kvw_release(scratch->cache, &other);
    }
    int released = kvw_release(mpi->cache, &mine);
    if (error == 0)
        error = released;
    return error == 0 ? 0 : told_by_kvw(error, "compare");
}

int kvw_mpi_compare(struct kvw_mpi *mpi, struct kvw_mpi *scratch, uint32_t lane,
                    uint64_t *n_rows, uint64_t *n_wrong)
{
    struct tally tally = {0, 0};

    if (lane_here(mpi, "compare", lane) == NULL)
        return mpi->is_broken ? -EPIPE : -ERANGE;
    int error = check_twins(mpi, scratch);
    for (uint32_t g = 0; error == 0 && g < kvw_cache_spec(mpi->cache)->n_groups; g++) {
        struct kvw_part part;
        error = layers_of(mpi, g, &part);
        for (uint32_t l = 0; error == 0 && l < part.n_layers; l++)
            error = compare_layer(mpi, scratch, lane - mpi->lane_first,
                                  (struct kvw_layer){part.layer_first + l}, &tally);
    }
    *n_rows = tally.n_rows;
    *n_wrong = tally.n_wrong;
    return error;
}
