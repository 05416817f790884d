/* SPDX-License-Identifier: Apache-2.0 */
/* One view against the oracle: its head, its rows and their order, classes, positions,
 * addresses and contents. */
#include "tests/model/play_parts.h"

#include <inttypes.h>

/* The rank of a set whose part holds a head and a row of a layer. */
static uint32_t owner_of(const struct oracle *oracle, uint64_t ranks, uint32_t layer,
                         uint32_t head, uint64_t row)
{
    uint32_t group = geometry_group_of(oracle->geometry, layer);

    for (uint32_t rank = 0; rank < oracle->geometry->n_ranks; rank++) {
        struct kvw_part part = oracle_part(oracle, group, rank);
        if ((ranks >> rank & 1) != 0 && oracle_holds(oracle, layer, rank) &&
            head >= part.head_first && head < part.head_first + part.n_heads &&
            oracle_has_row(oracle, rank, row))
            return rank;
    }
    return UINT32_MAX;
}

static bool check_elements(struct player *player, const struct wanted *wanted,
                           const struct kvw_view *view, const struct kvw_piece *piece,
                           uint32_t offset, const struct shown *shown)
{
    const struct kvw_geometry *geometry = &player->world.geometry;
    const uint32_t group = geometry_group_of(geometry, wanted->layer);

    for (uint32_t h = 0; h < view->n_heads; h++) {
        uint32_t head = view->head_first + h;
        uint32_t owner =
            owner_of(&player->oracle, wanted->ranks, wanted->layer, head, shown->row);
        uint64_t stamp = 0;
        if (owner == UINT32_MAX)
            return player_fail(
                player, "view of head %u, row %" PRIu64 ": no rank of the set holds it",
                head, shown->row);
        const struct m_board *board = &player->oracle.lane[wanted->lane].board[owner];
        uint64_t rows = player->oracle.lane[wanted->lane]
                            .step[wanted->step]
                            .record.group[group]
                            .rows;
        const bool is_current = shown->piece_class == KVW_PIECE_CURRENT;
        const uint64_t step =
            is_current && board->step > wanted->step ? wanted->step + 1 : wanted->step;
        if (is_current && step == wanted->step)
            stamp = board->layer[wanted->layer].stamp[shown->row - rows];
        else if (!oracle_stamp(&player->oracle, wanted->lane, owner, wanted->layer,
                               shown->row, step, &stamp))
            return player_fail(player, "the oracle has no row %" PRIu64, shown->row);
        for (uint32_t p = 0; p < view->n_planes; p++) {
            const char *at = (const char *)kvw_piece_at(&view->plane[p], piece, h) +
                             offset * view->plane[p].row_bytes;
            const char *place = world_row(&player->world, wanted->layer, p,
                                          wanted->lane, head, shown->slot);
            if (at != place)
                return player_fail(player,
                                   "row %" PRIu64
                                   " plane %u head %u lies at byte %td of "
                                   "the data, not at %td (slot %" PRIu64 ")",
                                   shown->row, p, head, at - player->world.data,
                                   place - player->world.data, shown->slot);
            if (!world_is_filled(at, &geometry->group[group].plane[p], p, head, stamp))
                return player_fail(
                    player,
                    "row %" PRIu64 " plane %u head %u (rank %u, class %u, "
                    "slot %" PRIu64 ") has other contents",
                    shown->row, p, head, owner, shown->piece_class, shown->slot);
        }
    }
    return true;
}

static bool check_head(struct player *player, const struct wanted *wanted,
                       const struct kvw_view *view)
{
    const struct kvw_geometry *geometry = &player->world.geometry;
    const uint32_t g = geometry_group_of(geometry, wanted->layer);
    const struct kvw_geometry_group *of = &geometry->group[g];
    const struct m_group *at =
        &player->oracle.lane[wanted->lane].step[wanted->step].record.group[g];
    uint32_t first = UINT32_MAX;
    uint32_t end = 0;

    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        struct kvw_part part = oracle_part(&player->oracle, g, rank);
        if ((wanted->ranks >> rank & 1) != 0 && part.n_heads > 0 &&
            oracle_holds(&player->oracle, wanted->layer, rank)) {
            first = first < part.head_first ? first : part.head_first;
            end = end > part.head_first + part.n_heads ? end
                                                       : part.head_first + part.n_heads;
        }
    }
    if (view->step != wanted->step || view->generation != at->generation ||
        view->window_rows != of->window_rows || view->sink_rows != of->sink_rows ||
        view->lane != wanted->lane || view->layer != wanted->layer ||
        view->window_kind != of->kind || view->n_planes != of->n_planes ||
        view->head_first != first || view->n_heads != end - first ||
        view->n_pieces > KVW_VIEW_PIECES_MAX)
        return player_fail(player,
                           "head of the view: step %" PRIu64 " (want %" PRIu64
                           ") generation %" PRIu64 " (%" PRIu64 ") W %" PRIu64
                           " S %" PRIu64
                           " lane %u layer %u kind %u planes %u heads %u+%u "
                           "(%u+%u) pieces %u",
                           view->step, wanted->step, view->generation, at->generation,
                           view->window_rows, view->sink_rows, view->lane, view->layer,
                           view->window_kind, view->n_planes, view->head_first,
                           view->n_heads, first, end - first, view->n_pieces);
    if (view->epoch != at->epoch &&
        (!wanted->is_staged || view->epoch != wanted->staged_epoch))
        return player_fail(player, "epoch of the view: %" PRIu64 ", want %" PRIu64,
                           view->epoch, at->epoch);
    return true;
}

static bool is_same_rows(const struct wanted *wanted, const struct kvw_view *view,
                         bool is_all)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < view->n_pieces; i++) {
        for (uint32_t k = 0; k < view->piece[i].n_rows; k++, n++) {
            if (n >= wanted->n_shown ||
                wanted->shown[n].row != view->piece[i].row + k ||
                (is_all &&
                 (wanted->shown[n].piece_class != view->piece[i].piece_class ||
                  wanted->shown[n].position != view->piece[i].position + k)))
                return false;
        }
    }
    return n == wanted->n_shown && view->n_rows == n;
}

static const char *text_of_rows(const struct shown *shown, uint32_t n_shown, char *text,
                                size_t n_bytes)
{
    size_t at = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < n_shown && at + 24 < n_bytes; i++)
        at += (size_t)snprintf(text + at, n_bytes - at, "%s%" PRIu64, i > 0 ? "," : "",
                               shown[i].row);
    return text;
}

static bool fail_rows(struct player *player, const struct wanted *wanted,
                      const struct kvw_view *view)
{
    struct shown seen[M_SHOWN];
    uint32_t n = 0;
    char have[160];
    char want[160];

    for (uint32_t i = 0; i < view->n_pieces && i < KVW_VIEW_PIECES_MAX; i++) {
        for (uint32_t k = 0; k < view->piece[i].n_rows && n < M_SHOWN; k++)
            seen[n++].row = view->piece[i].row + k;
    }
    return player_fail(player,
                       "rows of the view: have %s (n_rows %" PRIu64 "), want %s",
                       text_of_rows(seen, n, have, sizeof have), view->n_rows,
                       text_of_rows(wanted->shown, wanted->n_shown, want, sizeof want));
}

/* One past the newest row of the layer, also where nothing near it is shown. */
static uint64_t committed_end(const struct player *player, const struct wanted *wanted)
{
    const struct m_lane *lane = &player->oracle.lane[wanted->lane];
    uint32_t g = geometry_group_of(&player->world.geometry, wanted->layer);

    return lane->step[wanted->step].record.group[g].rows + wanted->chunk.written;
}

static bool check_rows(struct player *player, const struct wanted *wanted,
                       const struct kvw_view *view)
{
    uint32_t n = 0;

    if (!is_same_rows(wanted, view, false))
        return fail_rows(player, wanted, view);
    for (uint32_t i = 0; i < view->n_pieces; i++) {
        const struct kvw_piece *piece = &view->piece[i];
        for (uint32_t k = 0; k < piece->n_rows; k++, n++) {
            const struct shown *shown = &wanted->shown[n];
            if (piece->position + k != shown->position)
                return player_fail(
                    player, "row %" PRIu64 ": position %" PRIu64 ", want %" PRIu64,
                    shown->row, piece->position + k, shown->position);
            if (piece->piece_class != shown->piece_class)
                return player_fail(player, "row %" PRIu64 ": class %u, want %u",
                                   shown->row, piece->piece_class, shown->piece_class);
            if (!check_elements(player, wanted, view, piece, k, shown))
                return false;
        }
    }
    uint64_t end = committed_end(player, wanted);
    if (view->end_row != end &&
        (n == 0 || view->end_row != wanted->shown[n - 1].row + 1))
        return player_fail(player, "end_row %" PRIu64 ", want %" PRIu64, view->end_row,
                           end);
    return true;
}

bool view_compare(struct player *player, struct wanted *wanted,
                  const struct kvw_view *view)
{
    const struct oracle *oracle = &player->oracle;
    const uint32_t g = geometry_group_of(oracle->geometry, wanted->layer);
    uint64_t ahead = 0;

    if (wanted->is_staged && (wanted->chunk.open > 0 || !wanted->is_shared)) {
        uint64_t n = wanted->chunk.open;
        ahead = oracle->geometry->group[g].kind == KVW_GEOMETRY_ROW ? 1 : n;
        wanted->n_shown =
            oracle_shown(oracle, wanted->lane, wanted->layer, wanted->step,
                         wanted->ranks, &wanted->chunk, ahead, wanted->shown);
        /* With nothing open, a window of kind row may stand still or be one row on. */
        if (n == 0 && !is_same_rows(wanted, view, true))
            ahead = 0;
    }
    wanted->n_shown = oracle_shown(oracle, wanted->lane, wanted->layer, wanted->step,
                                   wanted->ranks, &wanted->chunk, ahead, wanted->shown);
    player->n_views++;
    return check_head(player, wanted, view) && check_rows(player, wanted, view);
}

uint64_t view_digest(const struct kvw_view *view, bool is_current)
{
    uint64_t digest = 1;

    for (uint32_t i = 0; i < view->n_pieces; i++) {
        const struct kvw_piece *piece = &view->piece[i];
        if ((piece->piece_class == KVW_PIECE_CURRENT) != is_current)
            continue;
        for (uint32_t p = 0; p < view->n_planes; p++) {
            for (uint32_t h = 0; h < view->n_heads; h++) {
                const char *at = kvw_piece_at(&view->plane[p], piece, h);
                for (uint64_t b = 0; b < piece->n_rows * view->plane[p].row_bytes; b++)
                    digest = world_mix(digest, (uint8_t)at[b], 7);
            }
        }
    }
    return digest;
}
