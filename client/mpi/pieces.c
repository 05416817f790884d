/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a view of the box to pieces of the whole cache for the kernels. Nothing is copied: a
 * piece points at the shared rows. Ranks of one box see each other's rows.
 *
 * Window kind `row`: the kernel masks per query by the numbers of the whole cache, so a piece
 * ends where they jump. Kind `chunk`: all queries see the same, so pieces are only cut to
 * the window, which in the box is a little larger.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/mpi/inside.h"
#include "proto/rules.h"

/* What is needed of the planes. */
struct planes {
    const struct kvw_plane *k;
    const struct kvw_plane *v;
    const struct kvw_plane *k_scale;
    const struct kvw_plane *v_scale;
};

static const struct kvw_plane *plane_named(const struct kvw_spec_group *group,
                                           const struct kvw_view *view,
                                           const char *name)
{
    for (uint32_t p = 0; p < group->n_planes; p++) {
        if (strcmp(group->plane[p].name, name) == 0)
            return &view->plane[p];
    }
    return NULL;
}

static int find_planes(const struct kvw_spec_group *group, const struct kvw_view *view,
                       struct planes *planes)
{
    *planes = (struct planes){
        plane_named(group, view, "k"), plane_named(group, view, "v"),
        plane_named(group, view, "k_scale"), plane_named(group, view, "v_scale")};
    if (planes->k == NULL || planes->v == NULL || planes->k->type != planes->v->type)
        return told(-EINVAL, "attend: group '%s' needs planes k and v of one type",
                    group->name);
    if ((planes->k->type == KVW_I8) !=
        (planes->k_scale != NULL && planes->v_scale != NULL))
        return told(-EINVAL,
                    "attend: group '%s': planes k_scale and v_scale go with int8 rows, "
                    "and only with them",
                    group->name);
    return 0;
}

/* The whole window in its own numbers: what a position counts from, and where it ends. */
struct span {
    uint64_t sink;
    uint64_t first; /* lowest row behind the sink that some query sees */
};

static uint64_t position_of(const struct span *span, uint32_t positions, uint64_t row)
{
    if (positions == KVW_POSITIONS_ABSOLUTE)
        return row;
    return row < span->sink ? row : span->sink + (row - span->first);
}

static int add_piece(struct kvw_mpi *mpi, struct sight *sight,
                     const struct kvw_attn_piece *piece)
{
    if (sight->n_pieces == mpi->n_pieces_max) {
        const uint32_t n = mpi->n_pieces_max * 2 + 64;
        struct kvw_attn_piece *larger = realloc(mpi->piece, n * sizeof *larger);
        if (larger == NULL)
            return told(-ENOMEM, "attend: no memory for %u pieces", n);
        mpi->piece = larger;
        mpi->n_pieces_max = n;
    }
    mpi->piece[sight->n_pieces++] = *piece;
    return 0;
}

static const void *at(const struct kvw_plane *plane, uint64_t slot)
{
    return plane == NULL ? NULL : plane->base + slot * plane->row_bytes;
}

static ptrdiff_t row_stride(const struct kvw_plane *plane)
{
    return plane == NULL ? 0 : (ptrdiff_t)plane->row_bytes;
}

static ptrdiff_t head_stride(const struct kvw_plane *plane)
{
    return plane == NULL ? 0 : (ptrdiff_t)plane->head_bytes;
}

static struct kvw_attn_piece piece_at(const struct planes *planes, uint64_t slot,
                                      uint64_t n)
{
    return (struct kvw_attn_piece){
        .k = at(planes->k, slot),
        .v = at(planes->v, slot),
        .k_row_stride = row_stride(planes->k),
        .k_head_stride = head_stride(planes->k),
        .v_row_stride = row_stride(planes->v),
        .v_head_stride = head_stride(planes->v),
        .n_rows = n,
        .k_scales = at(planes->k_scale, slot),
        .v_scales = at(planes->v_scale, slot),
        .k_scales_row_stride = row_stride(planes->k_scale),
        .k_scales_head_stride = head_stride(planes->k_scale),
        .v_scales_row_stride = row_stride(planes->v_scale),
        .v_scales_head_stride = head_stride(planes->v_scale),
    };
}

/* One piece of the view, in runs that the whole cache numbers without a gap. */
static int add_view_piece(struct kvw_mpi *mpi, struct sight *sight,
                          const struct kvw_mpi_attend *attend,
                          const struct planes *planes, const struct span *span,
                          const struct kvw_piece *from)
{
    const struct row_map *rows = &mpi->group[sight->group].rows;
    const uint32_t positions = mpi->spec.group[sight->group].positions;
    const bool is_kept = from->piece_class == KVW_PIECE_KEPT;
    int error = 0;

    for (uint64_t i = 0, n; i < from->n_rows && error == 0; i += n) {
        const uint64_t row = box_row(rows, from->row + i);
        n = from->n_rows - i;
        if (rows->period != 0) {
            const uint64_t left = rows->mine - (from->row + i) % rows->mine;
            n = left < n ? left : n;
        }
        /* Rows that no query of the whole cache sees. */
        uint64_t skip = rows->period != 0 && row < span->first && row >= span->sink
                            ? span->first - row
                            : 0;
        skip = skip < n ? skip : n;
        if (skip == n)
            continue;
        struct kvw_attn_piece piece = piece_at(planes, from->slot + i + skip, n - skip);
        piece.first_row = row + skip;
        piece.pos_base = rows->period != 0 ? position_of(span, positions, row + skip)
                                           : from->position + i;
        piece.flags = (attend->rope != NULL ? KVW_ATTN_RAW_KEYS : 0) |
                      (is_kept && sight->is_row_kind ? KVW_ATTN_ALWAYS : 0);
        error = add_piece(mpi, sight, &piece);
    }
    return error;
}

/* -------------------------------------------------------------------- view -------- */

/* Ranks of the box that share the rows of this one's heads. */
static uint64_t row_peers(const struct kvw_mpi *mpi)
{
    const uint32_t n = mpi->grid.in_box[AXIS_ROW];
    const uint64_t all = n == 64 ? UINT64_MAX : (1ull << n) - 1;

    return all << (mpi->box_rank - mpi->box_rank % n);
}

/* Wait for what the others of the box write in this pass. */
static int wait_for_peers(struct kvw_mpi *mpi, uint32_t lane, struct kvw_layer here)
{
    const uint64_t peers = row_peers(mpi) & ~(1ull << mpi->box_rank);

    for (uint32_t rank = 0; rank < mpi->box_ranks; rank++) {
        if ((peers >> rank & 1) == 0 || mpi->passes[here.index] == 0)
            continue;
        int error = kvw_wait_written(mpi->cache, lane, rank, here,
                                     mpi->passes[here.index], mpi->timeout_ns);
        if (error != 0)
            return told_by_kvw(error, "attend");
    }
    return 0;
}

static int look(struct kvw_mpi *mpi, uint32_t lane, struct kvw_layer here,
                bool is_staged, struct kvw_view *view)
{
    const uint32_t flags = KVW_UNPINNED | (is_staged ? KVW_STAGED : KVW_COMMITTED);
    int error = 0;

    if (mpi->grid.in_box[AXIS_ROW] > 1 && is_staged)
        error = wait_for_peers(mpi, lane, here);
    if (error != 0)
        return error;
    if (mpi->grid.in_box[AXIS_ROW] > 1)
        error = kvw_cut(mpi->cache, lane, here, row_peers(mpi), flags, view);
    else
        error = kvw_get(mpi->cache, lane, here, flags, view);
    return error == 0 ? 0 : told_by_kvw(error, "attend");
}

static int translate(struct kvw_mpi *mpi, const struct kvw_mpi_attend *attend,
                     struct sight *sight)
{
    const struct kvw_geometry_group *rules = &mpi->rules[sight->group];
    const uint64_t n_open = sight->end - sight->row;
    struct span span = {.sink = rules->sink_rows};
    struct planes planes;

    int error = find_planes(&mpi->spec.group[sight->group], &sight->view, &planes);
    if (error != 0)
        return error;
    span.first = n_open > 0 ? rules_staged_first(rules, sight->row, 0, n_open)
                            : rules_window_first(rules, sight->row, 0);
    sight->kv_type = planes.k->type;
    sight->head_dim_k = planes.k->elems;
    sight->head_dim_v = planes.v->elems;
    for (uint32_t i = 0; i < sight->view.n_pieces && error == 0; i++)
        error =
            add_view_piece(mpi, sight, attend, &planes, &span, &sight->view.piece[i]);
    return error;
}

int sight_begin(struct kvw_mpi *mpi, const struct kvw_mpi_attend *attend,
                struct sight *sight)
{
    const struct mpi_lane *lane = lane_here(mpi, "attend", attend->lane);
    const bool is_staged = (attend->flags & KVW_MPI_COMMITTED) == 0;
    struct kvw_lane_state state;
    struct kvw_layer here;
    uint32_t lane_at, g = 0;

    if (lane == NULL)
        return mpi->is_broken ? -EPIPE : -ERANGE;
    int error = kvw_mpi_here(mpi, attend->lane, attend->layer, &lane_at, &here);
    if (error != 0)
        return error;
    while (attend->layer.index - mpi->group[g].layers.first >= mpi->group[g].layers.n)
        g++;
    const struct open_group *open = &lane->open[g];
    if (is_staged && (!lane->is_open || !open->is_open))
        return told(-EINVAL, "attend: lane %u: no chunk of group '%s' is open",
                    attend->lane, mpi->spec.group[g].name);
    *sight = (struct sight){.group = g, .step = lane->step};
    sight->is_row_kind = mpi->rules[g].kind == KVW_GEOMETRY_ROW;
    if (is_staged) {
        sight->row = open->row;
        sight->end = open->row + open->n;
    } else {
        error = kvw_mpi_state(mpi, attend->lane, &state);
        sight->row = sight->end = error == 0 ? state.group[g].rows : 0;
    }
    if (error == 0)
        error = look(mpi, lane_at, here, is_staged, &sight->view);
    if (error != 0)
        return error;
    error = translate(mpi, attend, sight);
    return error == 0 ? 0 : sight_end(mpi, sight, error);
}

void sight_turn(struct kvw_mpi *mpi, struct sight *sight, uint32_t kv_head)
{
    const ptrdiff_t by = (ptrdiff_t)kv_head - (ptrdiff_t)sight->kv_head;

    for (uint32_t i = 0; i < sight->n_pieces && by != 0; i++) {
        struct kvw_attn_piece *piece = &mpi->piece[i];
        piece->k = (const char *)piece->k + by * piece->k_head_stride;
        piece->v = (const char *)piece->v + by * piece->v_head_stride;
        if (piece->k_scales == NULL)
            continue;
        piece->k_scales = skip_bytes(piece->k_scales, by * piece->k_scales_head_stride);
        piece->v_scales = skip_bytes(piece->v_scales, by * piece->v_scales_head_stride);
    }
    sight->kv_head = kv_head;
}

int sight_end(struct kvw_mpi *mpi, struct sight *sight, int error)
{
    const int released = kvw_release(mpi->cache, &sight->view);

    if (error != 0)
        return error;
    return released == 0 ? 0 : told_by_kvw(released, "attend");
}
