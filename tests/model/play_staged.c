/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on open chunks by others than their rank: passes that are waited for and
 * answered, and looking on while rows are written again. */
#include "tests/model/play_ops.h"

#include <errno.h>

#include "proto/base/align.h"

static bool play_have_read(struct player *player, uint32_t lane, uint32_t rank,
                           uint32_t layer, uint32_t pass)
{
    const uint32_t g = geometry_group_of(&player->world.geometry, layer);
    struct m_board *board = &player->oracle.lane[lane].board[rank];
    int want = 0;

    if (!board->is_held || !oracle_holds(&player->oracle, layer, rank))
        want = -ERANGE;
    else if (board->group[g].n == 0)
        want = -EINVAL;
    int result =
        kvw_have_read(player->world.seat[rank], lane, (struct kvw_layer){layer}, pass);
    if (result == 0)
        board->layer[layer].read = pass;
    return result == want ||
           player_fail(player, "have_read(rank %u, lane %u, layer %u) -> %d, want %d",
                       rank, lane, layer, result, want);
}

/* Who of them may end a wait, and how. */
static void expect_pass(const struct player *player, uint32_t lane, uint32_t layer,
                        uint64_t ranks, uint64_t step, uint32_t pass, bool is_read,
                        struct expect *expect)
{
    for (uint32_t peer = 0; peer < player->world.geometry.n_ranks; peer++) {
        if ((ranks >> peer & 1) == 0 ||
            oracle_has_pass(&player->oracle, lane, peer, layer, step, pass, is_read))
            continue;
        if (player->oracle.seat[peer] != KVW_SEAT_OWNED)
            expect_error(expect, -EOWNERDEAD);
        if (player->oracle.seat[peer] != KVW_SEAT_DEAD)
            expect_error(expect, -ETIMEDOUT);
    }
}

bool play_pass(struct player *player, uint32_t lane, const uint32_t *random)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    const uint32_t layer = random[1] % player->world.geometry.n_layers;
    const uint32_t seat = play_seat_of(player, random[0]);
    const uint32_t pass = random[2] % 4;
    const bool is_read = random[3] % 2 == 0;
    const bool is_rank = seat < WORLD_RANKS_MAX;
    uint64_t ranks = oracle_holders(&player->oracle, lane, layer);
    uint64_t step = UINT64_MAX;
    struct expect expect;

    if (seat == UINT32_MAX || ranks == 0)
        return true;
    if (is_rank && random[4] % 2 == 0)
        return play_have_read(player, lane, seat, layer, pass);
    expect_init(&expect);
    if (is_rank) {
        step = of->board[seat].step;
        ranks &= ~(1ull << seat);
        if (!of->board[seat].is_held)
            expect_error(&expect, -ERANGE);
    }
    for (uint32_t peer = 0; peer < player->world.geometry.n_ranks; peer++) {
        if ((ranks >> peer & 1) == 0)
            continue;
        step = is_rank ? step : min_u64(step, of->board[peer].step);
        if (is_rank && of->board[peer].ask != of->board[seat].era)
            expect_error(&expect, -ESTALE);
    }
    expect_pass(player, lane, layer, ranks, step, pass, is_read, &expect);
    int result = is_read
                     ? kvw_wait_read(player->world.seat[seat], lane, KVW_ALL_RANKS,
                                     (struct kvw_layer){layer}, pass, 0)
                     : kvw_wait_written(player->world.seat[seat], lane, KVW_ALL_RANKS,
                                        (struct kvw_layer){layer}, pass, 0);
    return expect_allows(&expect, result) ||
           player_fail(player,
                       "wait for pass %u (seat %u, lane %u, layer %u) -> %d (%s)", pass,
                       seat, lane, layer, result, kvw_last_error());
}

/* The first layer from `random` on of which all ranks have staged rows; n_layers: none. */
static uint32_t staged_layer(const struct player *player, uint32_t lane,
                             uint32_t random, struct m_chunk *chunk)
{
    const uint32_t n_layers = player->world.geometry.n_layers;

    for (uint32_t i = 0; i < n_layers; i++) {
        const uint32_t layer = (random + i) % n_layers;
        const uint64_t ranks = oracle_holders(&player->oracle, lane, layer);
        if (ranks == 0)
            continue;
        oracle_chunk(&player->oracle, lane, layer,
                     oracle_min_step(&player->oracle, lane, ranks), ranks, chunk);
        if (chunk->written > 0 && !chunk->is_writing)
            return layer;
    }
    return n_layers;
}

/* What the rank of an open chunk may do while somebody looks on. */
static bool write_again(struct player *player, uint32_t lane, uint32_t layer,
                        const struct m_chunk *chunk, const uint32_t *random)
{
    const uint32_t n_ranks = player->world.geometry.n_ranks;
    uint32_t rank = random[0] % n_ranks;

    while ((chunk->ranks >> rank & 1) == 0)
        rank = (rank + 1) % n_ranks;
    if (player->world.seat[rank] == NULL)
        return true;
    const uint64_t n = 1 + random[1] % chunk->written;
    switch (random[2] % 4) {
    case 0:
        return player_update(player, rank, lane, layer, 0, n, random[3]);
    case 1:
        return player_slots(player, rank, lane, layer, 0, n, random[3] % 2 == 0);
    case 2:
        return player_update(player, rank, lane, layer, chunk->written - 1, 1,
                             random[3]);
    default:
        return true;
    }
}

bool play_onlook(struct player *player, uint32_t lane, const uint32_t *random)
{
    const uint32_t seat = play_seat_of(player, random[0]);
    struct m_chunk chunk;
    struct held held;

    if (seat == UINT32_MAX || player->oracle.lane[lane].outside != UINT64_MAX)
        return true;
    const uint32_t layer = staged_layer(player, lane, random[1], &chunk);
    if (layer == player->world.geometry.n_layers)
        return true;
    const uint32_t flags = KVW_STAGED | (random[2] % 2 == 0 ? KVW_UNPINNED : 0);
    if (!player_view(player, seat, lane, layer, flags, 0, &held))
        return false;
    return !held.is_used || (write_again(player, lane, layer, &chunk, &random[2]) &&
                             player_release(player, &held));
}
