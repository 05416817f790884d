/* SPDX-License-Identifier: Apache-2.0 */
/* Views against the oracle: rows, order, classes, positions, addresses and contents. */
#include "tests/model/play.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/base/align.h"

static uint64_t rank_bit(uint32_t rank)
{
    return 1ull << rank;
}

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

/* What a view should be. */
struct wanted {
    uint32_t lane;
    uint32_t layer;
    uint64_t step;
    uint64_t ranks;
    int staged; /* rank, or -1 */
    uint32_t n_shown;
    struct shown shown[M_SHOWN];
};

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
        if (shown->piece_class == KVW_PIECE_CURRENT)
            stamp = board->layer[wanted->layer].stamp[shown->row - rows];
        else if (!oracle_stamp(&player->oracle, wanted->lane, owner, wanted->layer,
                               shown->row, wanted->step, &stamp))
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
    uint64_t staged_epoch =
        wanted->staged < 0 ||
                player->oracle.lane[wanted->lane].board[wanted->staged].group[g].n == 0
            ? at->epoch
            : player->oracle.lane[wanted->lane].board[wanted->staged].group[g].epoch;
    if (view->epoch != at->epoch && view->epoch != staged_epoch)
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
    uint64_t prefix = wanted->staged < 0
                          ? 0
                          : oracle_prefix(&player->oracle, wanted->lane,
                                          (uint32_t)wanted->staged, wanted->layer);

    return lane->step[wanted->step].record.group[g].rows + prefix;
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

static bool compare(struct player *player, struct wanted *wanted,
                    const struct kvw_view *view)
{
    const struct oracle *oracle = &player->oracle;
    const uint32_t g = geometry_group_of(oracle->geometry, wanted->layer);
    uint64_t ahead = 0;

    if (wanted->staged >= 0) {
        uint64_t n = oracle->lane[wanted->lane].board[wanted->staged].group[g].n;
        ahead = oracle->geometry->group[g].kind == KVW_GEOMETRY_ROW ? 1 : n;
        wanted->n_shown =
            oracle_shown(oracle, wanted->lane, wanted->layer, wanted->step,
                         wanted->ranks, wanted->staged, ahead, wanted->shown);
        /* With nothing open, a window of kind row may stand still or be one row on. */
        if (n == 0 && !is_same_rows(wanted, view, true))
            ahead = 0;
    }
    wanted->n_shown = oracle_shown(oracle, wanted->lane, wanted->layer, wanted->step,
                                   wanted->ranks, wanted->staged, ahead, wanted->shown);
    player->n_views++;
    return check_head(player, wanted, view) && check_rows(player, wanted, view);
}

/* A number of all bytes of the committed rows that a view shows. */
static uint64_t digest_of(const struct kvw_view *view)
{
    uint64_t digest = 1;

    for (uint32_t i = 0; i < view->n_pieces; i++) {
        const struct kvw_piece *piece = &view->piece[i];
        if (piece->piece_class == KVW_PIECE_CURRENT)
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

static uint64_t pins_in_use(const struct player *player, uint32_t seat)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < KVW_PINS_PER_ATTACHMENT; i++) {
        if (load_relaxed(&world_pin(&player->world, seat, i)->lo_plus_1) != 0)
            used |= 1ull << i;
    }
    return used;
}

/* The pin that a get has set, as its words say, and whether they hold what is shown. */
static bool see_pin(struct player *player, const struct wanted *wanted, uint32_t seat,
                    uint64_t used_before, struct held *held)
{
    const uint32_t g = geometry_group_of(&player->world.geometry, wanted->layer);
    const struct m_group *at =
        &player->oracle.lane[wanted->lane].step[wanted->step].record.group[g];
    const uint64_t sink = player->world.geometry.group[g].sink_rows;
    uint64_t fresh = pins_in_use(player, seat) & ~used_before;

    held->is_pinned = fresh != 0;
    if (fresh == 0) {
        for (uint32_t i = 0; i < wanted->n_shown; i++) {
            if (wanted->shown[i].piece_class != KVW_PIECE_CURRENT)
                return player_fail(player, "no pin holds the rows of the view");
        }
        return true;
    }
    held->pin_index = (uint32_t)__builtin_ctzll(fresh);
    const struct kvw_pin *pin = world_pin(&player->world, seat, held->pin_index);
    uint64_t keep = load_relaxed(&pin->keep_extent);
    held->pin = (struct m_pin){.seat = seat,
                               .lane = (uint32_t)(load_relaxed(&pin->lane_group) >> 32),
                               .group = (uint32_t)load_relaxed(&pin->lane_group),
                               .generation = load_relaxed(&pin->generation),
                               .low = load_relaxed(&pin->lo_plus_1) - 1,
                               .end = load_relaxed(&pin->end),
                               .ranks = load_relaxed(&pin->ranks),
                               .keep_first = keep >> 32,
                               .keep_end = keep & UINT32_MAX};
    bool is_right = held->pin.lane == wanted->lane && held->pin.group == g &&
                    held->pin.generation == at->generation &&
                    (held->pin.ranks & wanted->ranks) == wanted->ranks &&
                    held->pin.end <= at->rows;
    for (uint32_t i = 0; i < wanted->n_shown && is_right; i++) {
        const struct shown *shown = &wanted->shown[i];
        uint64_t extent = shown->slot - sink - oracle_ring_rows(&player->oracle, g);
        if (shown->piece_class == KVW_PIECE_KEPT)
            is_right = extent >= held->pin.keep_first && extent < held->pin.keep_end;
        else if (shown->piece_class == KVW_PIECE_PAST)
            is_right = shown->row >= held->pin.low && shown->row < held->pin.end;
        else if (shown->piece_class == KVW_PIECE_SINK)
            is_right = shown->row < held->pin.end;
    }
    if (!is_right)
        return player_fail(player,
                           "pin: lane %u group %u generation %" PRIu64 " rows %" PRIu64
                           "..%" PRIu64 " of %" PRIu64 " ranks %" PRIx64
                           " extent %" PRIu64 "..%" PRIu64,
                           held->pin.lane, held->pin.group, held->pin.generation,
                           held->pin.low, held->pin.end, at->rows, held->pin.ranks,
                           held->pin.keep_first, held->pin.keep_end);
    return true;
}

/* A rank that is ahead went back meanwhile: a cut may lose against it. */
static bool is_rewound(const struct player *player, uint32_t lane, uint64_t step,
                       uint64_t ranks)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    for (uint32_t rank = 0; rank < player->world.geometry.n_ranks; rank++) {
        if ((ranks >> rank & 1) != 0 &&
            of->step[step].rewinds[rank] !=
                of->step[of->board[rank].step].rewinds[rank])
            return true;
    }
    return false;
}

static uint64_t holders_of(const struct oracle *oracle, uint32_t lane, uint32_t layer)
{
    uint64_t ranks = 0;
    for (uint32_t rank = 0; rank < oracle->geometry->n_ranks; rank++) {
        if (oracle->lane[lane].board[rank].is_held && oracle_holds(oracle, layer, rank))
            ranks |= rank_bit(rank);
    }
    return ranks;
}

/* The smallest step of the ranks of this node alone. */
static uint64_t min_step_here(struct player *player, uint32_t lane, uint64_t ranks)
{
    const uint64_t outside = player->oracle.lane[lane].outside;

    player->oracle.lane[lane].outside = UINT64_MAX;
    uint64_t step = oracle_min_step(&player->oracle, lane, ranks);
    player->oracle.lane[lane].outside = outside;
    return step;
}

static bool keep_view(struct player *player, const struct wanted *wanted, uint32_t seat,
                      uint32_t flags, struct held *held)
{
    const uint32_t g = geometry_group_of(&player->world.geometry, wanted->layer);
    const struct m_step *step = &player->oracle.lane[wanted->lane].step[wanted->step];

    held->is_used = true;
    held->seat = seat;
    held->lane = wanted->lane;
    held->layer = wanted->layer;
    held->flags = flags;
    held->step = wanted->step;
    held->ranks = wanted->ranks;
    held->low = oracle_low(&player->oracle, g, &step->record.group[g], 0);
    memcpy(held->rewinds, step->rewinds, sizeof held->rewinds);
    held->digest = digest_of(&held->view);
    return true;
}

bool player_view(struct player *player, uint32_t seat, uint32_t lane, uint32_t layer,
                 uint32_t flags, uint64_t ranks, struct held *held)
{
    struct kvw_cache *cache = player->world.seat[seat];
    const bool is_reader = seat >= WORLD_RANKS_MAX;
    const bool is_cut = is_reader || ranks != UINT64_MAX;
    struct held own = {.is_used = false};
    struct held *to = held != NULL ? held : &own;
    struct wanted wanted = {.lane = lane, .layer = layer, .staged = -1};
    const uint64_t used = pins_in_use(player, seat);
    int error;

    *to = (struct held){0};
    if (is_reader && ranks == UINT64_MAX)
        error = kvw_get(cache, lane, (struct kvw_layer){layer}, flags, &to->view);
    else if (!is_cut)
        error = kvw_get(cache, lane, (struct kvw_layer){layer}, flags, &to->view);
    else
        error =
            kvw_cut(cache, lane, (struct kvw_layer){layer}, ranks, flags, &to->view);
    if (player->log != NULL && held != NULL)
        fprintf(player->log,
                "  seat %u lane %u layer %u: %s(flags %u, ranks %" PRIx64 ") -> %d\n",
                seat, lane, layer, is_cut ? "cut" : "get", flags, ranks, error);
    wanted.ranks = is_cut ? ranks : rank_bit(seat);
    if (is_cut && (ranks == UINT64_MAX || ranks == 0))
        wanted.ranks = holders_of(&player->oracle, lane, layer);
    wanted.step = is_cut ? oracle_min_step(&player->oracle, lane, wanted.ranks)
                         : player->oracle.lane[lane].board[seat].step;
    if (is_cut && error == 0 && to->view.step < wanted.step &&
        to->view.step ==
            oracle_min_step(&player->oracle, lane, oracle_ranks(&player->oracle, lane)))
        wanted.step =
            to->view.step; /* the step of all ranks, not of the holders alone */
    if (is_cut && error == 0 && player->oracle.lane[lane].outside == wanted.step &&
        to->view.step > wanted.step)
        wanted.step = min_step_here(player, lane, wanted.ranks);
    if ((flags & KVW_STAGED) != 0)
        wanted.staged = (int)seat;
    if (error == -EAGAIN && is_rewound(player, lane, wanted.step, wanted.ranks))
        return true;
    if (error != 0)
        return player_fail(player,
                           "get(seat %u, lane %u, layer %u, flags %u, ranks %" PRIx64
                           ") -> %d (%s)",
                           seat, lane, layer, flags, ranks, error, kvw_last_error());
    if (!compare(player, &wanted, &to->view))
        return false;
    if ((flags & KVW_UNPINNED) == 0 && !see_pin(player, &wanted, seat, used, to))
        return false;
    if (held != NULL)
        return keep_view(player, &wanted, seat, flags, held);
    error = kvw_release(cache, &to->view);
    if (error != 0 && !is_rewound(player, lane, wanted.step, wanted.ranks))
        return player_fail(player, "release at once -> %d", error);
    if (pins_in_use(player, seat) != used)
        return player_fail(player, "release left a pin");
    return true;
}

bool player_release(struct player *player, struct held *held)
{
    const struct oracle *oracle = &player->oracle;
    const struct m_lane *lane = &oracle->lane[held->lane];
    const uint32_t g = geometry_group_of(oracle->geometry, held->layer);
    const uint64_t ring = oracle_ring_rows(oracle, g);
    const bool is_changed = digest_of(&held->view) != held->digest;
    bool is_clean = true;

    for (uint32_t rank = 0; rank < oracle->geometry->n_ranks; rank++) {
        const struct m_board *board = &lane->board[rank];
        if ((held->ranks >> rank & 1) == 0)
            continue;
        uint64_t low = held->is_pinned ? held->pin.low : held->low;
        if (lane->step[board->step].rewinds[rank] != held->rewinds[rank] ||
            board->group[g].hi > low + ring)
            is_clean = false;
    }
    /* Without a pin, kept rows may go at any later keep. */
    for (uint32_t i = 0; i < held->view.n_pieces; i++) {
        if (held->view.piece[i].piece_class == KVW_PIECE_KEPT && !held->is_pinned)
            is_clean = false;
    }
    held->is_used = false;
    if (is_changed && held->is_pinned && !held->pin.is_revoked)
        return player_fail(player,
                           "rows of a pinned view were overwritten (seat %u, lane "
                           "%u, layer %u, step %" PRIu64 ")",
                           held->seat, held->lane, held->layer, held->step);
    int error = kvw_release(player->world.seat[held->seat], &held->view);
    if (player->log != NULL)
        fprintf(player->log, "  seat %u lane %u layer %u: release -> %d\n", held->seat,
                held->lane, held->layer, error);
    if (error != 0 && error != -KVW_EOVERRUN)
        return player_fail(player, "release -> %d", error);
    if (error == 0 && is_changed)
        return player_fail(player,
                           "release -> 0 though rows of the view were overwritten "
                           "(seat %u, lane %u, layer %u, flags %u)",
                           held->seat, held->lane, held->layer, held->flags);
    if (error != 0 && is_clean && !is_changed)
        return player_fail(player,
                           "release -> %d of a clean view (seat %u, lane %u, "
                           "layer %u, flags %u)",
                           error, held->seat, held->lane, held->layer, held->flags);
    if (held->is_pinned &&
        load_relaxed(
            &world_pin(&player->world, held->seat, held->pin_index)->lo_plus_1) != 0)
        return player_fail(player, "release left its pin");
    return true;
}

uint32_t player_pins(const struct player *player, struct m_pin pins[M_HELD])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < M_HELD; i++) {
        if (player->held[i].is_used && player->held[i].is_pinned)
            pins[n++] = player->held[i].pin;
    }
    return n;
}

void player_see_revoked(struct player *player, const struct m_pin *pins,
                        uint32_t n_pins)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < M_HELD && n < n_pins; i++) {
        if (player->held[i].is_used && player->held[i].is_pinned)
            player->held[i].pin.is_revoked |= pins[n++].is_revoked;
    }
}

static bool check_group_state(struct player *player, uint32_t lane, uint32_t rank,
                              uint32_t g, const struct kvw_group_state *state,
                              const struct m_group *at)
{
    uint64_t open = rank == KVW_ALL_RANKS
                        ? state->open
                        : player->oracle.lane[lane].board[rank].group[g].n;
    uint64_t first = oracle_low(&player->oracle, g, at, 0);

    if (state->rows == at->rows && state->evicted == at->evicted &&
        state->generation == at->generation && state->epoch == at->epoch &&
        state->first == first && state->open == open)
        return true;
    return player_fail(player,
                       "state of lane %u rank %d group %u: rows %" PRIu64 " (%" PRIu64
                       ") evicted %" PRIu64 " (%" PRIu64 ") generation %" PRIu64
                       " (%" PRIu64 ") epoch %" PRIu64 " (%" PRIu64 ") first %" PRIu64
                       " (%" PRIu64 ") open %" PRIu64 " (%" PRIu64 ")",
                       lane, (int)rank, g, state->rows, at->rows, state->evicted,
                       at->evicted, state->generation, at->generation, state->epoch,
                       at->epoch, state->first, first, state->open, open);
}

static bool check_state(struct player *player, uint32_t seat, uint32_t lane,
                        uint32_t rank)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    const bool is_all = rank == KVW_ALL_RANKS;
    uint64_t step = is_all ? oracle_min_step(&player->oracle, lane,
                                             oracle_ranks(&player->oracle, lane))
                           : of->board[rank].step;
    struct kvw_lane_state state;

    int error = kvw_state(player->world.seat[seat], lane, rank, &state);
    if (error != 0)
        return player_fail(player, "state(seat %u, lane %u, rank %d) -> %d (%s)", seat,
                           lane, (int)rank, error, kvw_last_error());
    if (is_all && state.step > step && of->outside == step)
        step = state.step; /* the ranks of this node alone */
    if (state.step != step || state.n_groups != player->world.geometry.n_groups ||
        (!is_all && state.era != of->board[rank].era) ||
        (!is_all &&
         (state.is_owned != 0) != (player->oracle.seat[rank] == KVW_SEAT_OWNED)))
        return player_fail(player,
                           "state of lane %u rank %d: step %" PRIu64 " (%" PRIu64
                           ") era %" PRIu64 " owned %u",
                           lane, (int)rank, state.step, step, state.era,
                           state.is_owned);
    for (uint32_t g = 0; g < state.n_groups; g++) {
        if (!check_group_state(player, lane, rank, g, &state.group[g],
                               &of->step[step].record.group[g]))
            return false;
    }
    return true;
}

static bool check_lowest(struct player *player, uint32_t rank, uint32_t lane)
{
    for (uint32_t g = 0; g < player->world.geometry.n_groups; g++) {
        uint64_t row = UINT64_MAX;
        int error = kvw_lowest(player->world.seat[rank], lane, g, &row);
        uint64_t want = oracle_lowest(&player->oracle, lane, rank, g);
        /* Down to the sink nothing is lost, whatever claims from before a reset say
         * that other ranks have not renewed yet: no row above it is possible then. */
        uint64_t rows = oracle_record(&player->oracle, lane, rank)->group[g].rows;
        bool is_free = rows <= player->world.geometry.group[g].sink_rows ||
                       !oracle_may_truncate(&player->oracle, lane, rank, g, rows);
        /* Where the window is whole down to the sink, two answers say the same. */
        is_free |= want == 0 && row == player->world.geometry.group[g].sink_rows + 1;
        if (error != 0 || (row != want && !is_free))
            return player_fail(player,
                               "lowest(rank %u, lane %u, group %u) -> %d, row "
                               "%" PRIu64 ", want %" PRIu64,
                               rank, lane, g, error, row, want);
        if (world_want(&player->world, rank, lane, g) !=
            world_hi(&player->world, rank, lane, g))
            return player_fail(player, "rank %u lane %u group %u: want is left behind",
                               rank, lane, g);
    }
    return true;
}

static bool check_rank(struct player *player, uint32_t rank, uint32_t lane)
{
    const uint32_t coin = (uint32_t)world_random(&player->coin);

    if (!check_lowest(player, rank, lane))
        return false;
    for (uint32_t layer = 0; layer < player->world.geometry.n_layers; layer++) {
        uint32_t unpinned = (coin >> layer & 1) != 0 ? KVW_UNPINNED : 0;
        if (!oracle_holds(&player->oracle, layer, rank))
            continue;
        if (!player_view(player, rank, lane, layer, unpinned, UINT64_MAX, NULL) ||
            !player_view(player, rank, lane, layer, KVW_STAGED | unpinned, UINT64_MAX,
                         NULL))
            return false;
    }
    return true;
}

bool player_check_lane(struct player *player, uint32_t lane)
{
    const struct kvw_geometry *geometry = &player->world.geometry;
    const uint32_t coin = (uint32_t)world_random(&player->coin);

    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        if (!player->oracle.lane[lane].board[rank].is_held)
            continue;
        for (uint32_t seat = 0; seat < WORLD_SEATS_MAX; seat++) {
            if (player->world.seat[seat] != NULL && (coin + seat + rank) % 4 == 0 &&
                (!check_state(player, seat, lane, rank) ||
                 !check_state(player, seat, lane, KVW_ALL_RANKS)))
                return false;
        }
        if (player->world.seat[rank] != NULL && !check_rank(player, rank, lane))
            return false;
    }
    for (uint32_t seat = WORLD_RANKS_MAX; seat < WORLD_SEATS_MAX; seat++) {
        for (uint32_t layer = 0;
             layer < geometry->n_layers && player->world.seat[seat] != NULL; layer++) {
            uint32_t flags = (coin >> layer & 1) != 0 ? KVW_UNPINNED : 0;
            uint64_t ranks = (coin >> (layer + 1) & 1) != 0 ? UINT64_MAX : 0;
            if (holders_of(&player->oracle, lane, layer) != 0 &&
                !player_view(player, seat, lane, layer, flags, ranks, NULL))
                return false;
        }
    }
    return true;
}
