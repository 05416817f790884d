/* SPDX-License-Identifier: Apache-2.0 */
/* Views: which step and ranks one should show when it is taken, the pin that holds it,
 * and what its release must say. */
#include "tests/model/play_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

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
    held->chunk = wanted->chunk;
    held->digest = view_digest(&held->view, false);
    held->staged = view_digest(&held->view, true);
    return true;
}

/* What is shown of the open chunk: a rank's own, or what a set of ranks has. */
static void see_chunk(struct player *player, uint32_t seat, bool is_cut,
                      struct wanted *wanted)
{
    const struct oracle *oracle = &player->oracle;
    const uint32_t g = geometry_group_of(oracle->geometry, wanted->layer);

    wanted->is_staged = true;
    wanted->is_shared = is_cut;
    if (is_cut) {
        wanted->step = min_step_here(player, wanted->lane, wanted->ranks);
        oracle_chunk(oracle, wanted->lane, wanted->layer, wanted->step, wanted->ranks,
                     &wanted->chunk);
        return;
    }
    const struct m_board *board = &oracle->lane[wanted->lane].board[seat];
    wanted->staged_epoch = board->group[g].epoch;
    wanted->chunk.open = board->group[g].n;
    if (board->group[g].n > 0)
        wanted->chunk.written =
            oracle_prefix(oracle, wanted->lane, seat, wanted->layer);
}

bool player_view(struct player *player, uint32_t seat, uint32_t lane, uint32_t layer,
                 uint32_t flags, uint64_t ranks, struct held *held)
{
    struct kvw_cache *cache = player->world.seat[seat];
    const bool is_cut = seat >= WORLD_RANKS_MAX || ranks != UINT64_MAX;
    struct held own = {.is_used = false};
    struct held *to = held != NULL ? held : &own;
    struct wanted wanted = {.lane = lane, .layer = layer};
    const uint64_t used = pins_in_use(player, seat);
    int error;

    *to = (struct held){0};
    if (ranks == UINT64_MAX)
        error = kvw_get(cache, lane, (struct kvw_layer){layer}, flags, &to->view);
    else
        error =
            kvw_cut(cache, lane, (struct kvw_layer){layer}, ranks, flags, &to->view);
    if (player->log != NULL && held != NULL)
        fprintf(player->log,
                "  seat %u lane %u layer %u: %s(flags %u, ranks %" PRIx64 ") -> %d\n",
                seat, lane, layer, is_cut ? "cut" : "get", flags, ranks, error);
    wanted.ranks = is_cut ? ranks : 1ull << seat;
    if (is_cut && (ranks == UINT64_MAX || ranks == 0))
        wanted.ranks = oracle_holders(&player->oracle, lane, layer);
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
    if ((flags & KVW_STAGED) != 0) {
        see_chunk(player, seat, is_cut, &wanted);
        if (is_cut && wanted.chunk.is_writing)
            return error == -EAGAIN ||
                   (error == -EOWNERDEAD && wanted.chunk.is_writer_dead) ||
                   player_fail(player, "a layer that is written was shown: %d", error);
    }
    if (error == -EAGAIN && is_rewound(player, lane, wanted.step, wanted.ranks))
        return true;
    if (error != 0)
        return player_fail(player,
                           "get(seat %u, lane %u, layer %u, flags %u, ranks %" PRIx64
                           ") -> %d (%s)",
                           seat, lane, layer, flags, ranks, error, kvw_last_error());
    if (!view_compare(player, &wanted, &to->view))
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
    const bool is_past_changed = view_digest(&held->view, false) != held->digest;
    const bool is_changed =
        is_past_changed ||
        (held->chunk.ranks != 0 && view_digest(&held->view, true) != held->staged);
    bool is_clean = oracle_writes(oracle, held->lane, held->layer, held->chunk.ranks) ==
                    held->chunk.writes;

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
    if (is_past_changed && held->is_pinned && !held->pin.is_revoked)
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
