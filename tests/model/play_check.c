/* SPDX-License-Identifier: Apache-2.0 */
/* Everything visible in a lane: states, lowest rows, and a view of every layer by every
 * rank and reader. */
#include "tests/model/play.h"

#include <inttypes.h>

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
        if ((coin >> (layer + 16) & 3) == 0 &&
            !player_view(player, rank, lane, layer, KVW_STAGED | unpinned, 0, NULL))
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
            if (oracle_holders(&player->oracle, lane, layer) != 0 &&
                (!player_view(player, seat, lane, layer, flags, ranks, NULL) ||
                 !player_view(player, seat, lane, layer, KVW_STAGED | flags, ranks,
                              NULL)))
                return false;
        }
    }
    return true;
}
