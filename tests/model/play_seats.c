/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on seats: who attaches, detaches, dies, recovers or starts anew, and the
 * step that ranks elsewhere are said to have. */
#include "tests/model/play_ops.h"

#include <inttypes.h>

#include "proto/base/align.h"

static void forget_held(struct player *player, uint32_t seat)
{
    for (uint32_t i = 0; i < M_HELD; i++) {
        if (player->held[i].seat == seat)
            player->held[i].is_used = false;
    }
}

static bool see_all_claims(struct player *player, uint32_t rank)
{
    for (uint32_t lane = 0; lane < player->world.geometry.n_lanes; lane++) {
        for (uint32_t g = 0; g < player->world.geometry.n_groups; g++) {
            if (player->oracle.lane[lane].board[rank].is_held &&
                !oracle_see_hi(&player->oracle, rank, lane, g,
                               world_hi(&player->world, rank, lane, g)))
                return player_fail(player, "rank %u lane %u: hi after it left", rank,
                                   lane);
        }
    }
    return true;
}

bool play_leave(struct player *player, uint32_t seat, bool is_death)
{
    const bool is_rank = seat < WORLD_RANKS_MAX;

    if (player->log != NULL)
        fprintf(player->log, "  seat %u %s\n", seat, is_death ? "dies" : "detaches");
    if (is_death && player->world.n_graves < WORLD_GRAVES_MAX)
        world_kill(&player->world, seat);
    else
        world_detach(&player->world, seat);
    forget_held(player, seat);
    if (is_rank)
        player->oracle.seat[seat] = is_death ? KVW_SEAT_DEAD : KVW_SEAT_FREE;
    for (uint32_t lane = 0;
         is_rank && !is_death && lane < player->world.geometry.n_lanes; lane++)
        oracle_abort(&player->oracle, seat, lane);
    return !is_rank || is_death || see_all_claims(player, seat);
}

bool play_attach_seat(struct player *player, uint32_t seat)
{
    const bool is_rank = seat < WORLD_RANKS_MAX;

    if (player->log != NULL)
        fprintf(player->log, "  seat %u attaches\n", seat);
    int error = world_attach(&player->world, seat);
    if (error != 0)
        return player_fail(player, "play_attach_seat(%u) -> %d (%s)", seat, error,
                           kvw_last_error());
    if (!is_rank)
        return true;
    player->oracle.seat[seat] = KVW_SEAT_OWNED;
    for (uint32_t lane = 0; lane < player->world.geometry.n_lanes; lane++)
        oracle_abort(&player->oracle, seat, lane);
    return see_all_claims(player, seat);
}

bool play_attach(struct player *player, uint32_t random)
{
    const uint32_t n_ranks = player->world.geometry.n_ranks;
    for (uint32_t i = 0; i < n_ranks; i++) {
        uint32_t rank = (random + i) % n_ranks;
        if (player->world.seat[rank] == NULL)
            return play_attach_seat(player, rank);
    }
    uint32_t reader = WORLD_RANKS_MAX + random % WORLD_READERS_MAX;
    return player->world.seat[reader] != NULL || random % 4 != 0 ||
           play_attach_seat(player, reader);
}

bool play_set_outside(struct player *player, uint32_t lane, uint64_t step)
{
    const uint64_t ranks = oracle_ranks(&player->oracle, lane);

    for (uint32_t rank = 0; rank < player->world.geometry.n_ranks; rank++) {
        const struct m_board *board = &player->oracle.lane[lane].board[rank];
        if ((ranks >> rank & 1) != 0 &&
            (player->world.seat[rank] == NULL || board->ask != board->era))
            return true; /* nobody there, or a recovery that counts on what was said */
    }
    for (uint32_t rank = 0; rank < player->world.geometry.n_ranks; rank++) {
        int error = (ranks >> rank & 1) == 0
                        ? 0
                        : kvw_outside(player->world.seat[rank], lane, step);
        if (error != 0)
            return player_fail(player, "outside -> %d", error);
    }
    if (player->log != NULL)
        fprintf(player->log, "  lane %u: outside %" PRIu64 "\n", lane, step);
    player->oracle.lane[lane].outside = step;
    return true;
}

bool play_outside(struct player *player, uint32_t lane, uint32_t random)
{
    uint64_t step = UINT64_MAX;
    bool is_settled = true;
    for (uint32_t rank = 0; rank < player->world.geometry.n_ranks; rank++) {
        const struct m_board *board = &player->oracle.lane[lane].board[rank];
        step = board->is_held ? min_u64(step, board->step) : step;
        is_settled = is_settled &&
                     (!board->is_held || (board->ask == board->era && !board->is_open &&
                                          player->world.seat[rank] != NULL));
    }
    return play_set_outside(player, lane,
                            random % 2 == 0 && is_settled ? step : UINT64_MAX);
}

/* A rank that is in the new era already is left alone until all are. */
bool play_recover(struct player *player, uint32_t rank, uint32_t lane)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    bool is_early = false;

    if (of->outside != UINT64_MAX)
        return true;
    for (uint32_t peer = 0; peer < player->world.geometry.n_ranks; peer++)
        is_early |=
            of->board[peer].is_held && of->board[peer].era < of->board[rank].era;
    return is_early || player_recover(player, rank, lane);
}

/* True if a rank has still to call recover: its own promise or a peer's is open. */
static bool needs_recovery(const struct player *player, uint32_t rank, uint32_t lane)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    const struct m_board *own = &of->board[rank];
    bool is_needed = false;

    for (uint32_t peer = 0; peer < player->world.geometry.n_ranks; peer++)
        is_needed |= of->board[peer].is_held && of->board[peer].ask > own->era;
    return own->is_held && is_needed;
}

bool play_recover_all(struct player *player, uint32_t lane, uint32_t random)
{
    const uint32_t n_ranks = player->world.geometry.n_ranks;

    for (uint32_t i = 0; i < 4 * n_ranks; i++) {
        uint32_t rank = (i + random) % n_ranks;
        if (player->world.seat[rank] != NULL && needs_recovery(player, rank, lane) &&
            !play_recover(player, rank, lane))
            return false;
    }
    return true;
}

bool play_reset_state(struct player *player, uint32_t rank)
{
    const struct m_call call = {.kind = M_RESET};
    uint64_t extent[M_GROUPS] = {0};
    bool is_sure = player->world.seat[rank] != NULL;

    for (uint32_t lane = 0; lane < player->world.geometry.n_lanes && is_sure; lane++) {
        struct expect expect = {.must_succeed = true};
        if (player->oracle.lane[lane].board[rank].is_held)
            oracle_expect_step(&player->oracle, rank, lane, &call, NULL, 0,
                               KVW_PIN_ANSWER, &expect);
        is_sure = expect.must_succeed;
    }
    if (!is_sure)
        return true;
    int error = kvw_reset_state(player->world.seat[rank]);
    if (player->log != NULL)
        fprintf(player->log, "  rank %u: reset state -> %d\n", rank, error);
    if (error != 0)
        return player_fail(player, "rank %u: reset state -> %d (%s)", rank, error,
                           kvw_last_error());
    for (uint32_t lane = 0; lane < player->world.geometry.n_lanes; lane++) {
        if (player->oracle.lane[lane].board[rank].is_held)
            (void)oracle_step(&player->oracle, rank, lane, &call, extent);
    }
    return see_all_claims(player, rank);
}
