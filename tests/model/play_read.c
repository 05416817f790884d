/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of those that look: views that are kept for a while, waits, and what a
 * reader or the wrong rank may not do. */
#include "tests/model/play_ops.h"

#include <errno.h>
#include <inttypes.h>

#include "proto/base/align.h"

/* Some of the ranks that hold a layer; all row parts of a head or one of the ranks. */
static uint64_t some_ranks(const struct player *player, uint64_t holders,
                           uint32_t random)
{
    uint64_t ranks = holders & random;

    if (player->world.geometry.partition.row_parts > 1 || ranks == 0)
        return 1ull << (uint32_t)__builtin_ctzll(holders);
    return ranks;
}

/* True if the heads of a set of ranks follow each other. */
static bool is_heads_run(const struct player *player, uint32_t layer, uint64_t ranks)
{
    const uint32_t g = geometry_group_of(&player->world.geometry, layer);
    uint32_t end = UINT32_MAX;

    for (uint32_t rank = 0; rank < player->world.geometry.n_ranks; rank++) {
        struct kvw_part part = oracle_part(&player->oracle, g, rank);
        if ((ranks >> rank & 1) == 0)
            continue;
        if (end != UINT32_MAX && part.head_first != end)
            return false;
        end = part.head_first + part.n_heads;
    }
    return true;
}

bool play_hold(struct player *player, uint32_t lane, const uint32_t *random)
{
    const uint32_t layer = random[1] % player->world.geometry.n_layers;
    uint32_t seat = play_seat_of(player, random[0]);
    struct held *held = &player->held[random[2] % M_HELD];
    uint32_t flags = random[3] % 3 == 0 ? KVW_UNPINNED : 0;
    uint64_t ranks = UINT64_MAX;

    if (held->is_used || seat == UINT32_MAX)
        return true;
    bool is_rank = seat < WORLD_RANKS_MAX;
    uint64_t holders = oracle_holders(&player->oracle, lane, layer);
    if (holders == 0)
        return true;
    if (is_rank && (holders >> seat & 1) == 0)
        ranks = 0; /* not its own layer: it may look at the others' */
    else if (random[4] % 4 == 0)
        ranks = 0;
    else if (random[4] % 4 == 1)
        ranks = some_ranks(player, holders, random[5]);
    if (random[4] % 4 == 2 || (random[4] >> 2 & 1) != 0)
        flags |= KVW_STAGED;
    if (ranks != UINT64_MAX && ranks != 0 && !is_heads_run(player, layer, ranks)) {
        int error = kvw_cut(player->world.seat[seat], lane, (struct kvw_layer){layer},
                            ranks, flags, &held->view);
        return error == -EINVAL ||
               player_fail(player, "cut of heads that do not follow each other -> %d",
                           error);
    }
    return player_view(player, seat, lane, layer, flags, ranks, held);
}

bool play_release(struct player *player, uint32_t random)
{
    for (uint32_t i = 0; i < M_HELD; i++) {
        struct held *held = &player->held[(i + random) % M_HELD];
        if (held->is_used)
            return player_release(player, held);
    }
    return true;
}

bool play_wait(struct player *player, uint32_t lane, const uint32_t *random)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    const uint64_t ranks = oracle_ranks(&player->oracle, lane);
    const uint32_t g = random[3] % player->world.geometry.n_groups;
    uint32_t seat = play_seat_of(player, random[0]);
    uint32_t rank = random[1] % (player->world.geometry.n_ranks + 1);
    const bool is_rows = random[4] % 2 == 0;
    bool is_true = true;
    struct expect expect;
    int result;

    if (rank == player->world.geometry.n_ranks)
        rank = KVW_ALL_RANKS;
    if (seat == UINT32_MAX || ranks == 0 ||
        (rank != KVW_ALL_RANKS && !of->board[rank].is_held) ||
        of->outside != UINT64_MAX)
        return true;
    uint64_t step = max_u64(of->n_steps, 2) - random[2] % 2;
    uint64_t rows = of->step[of->n_steps - 1].record.group[g].rows + random[2] % 2;
    expect_init(&expect);
    for (uint32_t peer = 0; peer < player->world.geometry.n_ranks; peer++) {
        if ((ranks >> peer & 1) == 0 || (rank != KVW_ALL_RANKS && peer != rank))
            continue;
        bool is_there =
            is_rows ? oracle_record(&player->oracle, lane, peer)->group[g].rows >= rows
                    : of->board[peer].step >= step;
        is_true = is_true && is_there;
        if (!is_there && player->oracle.seat[peer] != KVW_SEAT_OWNED)
            expect_error(&expect, -EOWNERDEAD);
        if (!is_there && player->oracle.seat[peer] != KVW_SEAT_DEAD)
            expect_error(&expect, -ETIMEDOUT);
    }
    result = is_rows ? kvw_wait_rows(player->world.seat[seat], lane, rank, g, rows, 0)
                     : kvw_wait_step(player->world.seat[seat], lane, rank, step, 0);
    if (expect_allows(&expect, result))
        return true;
    return player_fail(player,
                       "wait(seat %u, lane %u, rank %d, %s %" PRIu64 ") -> %d, %s",
                       seat, lane, (int)rank, is_rows ? "rows" : "step",
                       is_rows ? rows : step, result, is_true ? "true" : "not true");
}

bool play_forbidden(struct player *player, uint32_t lane, const uint32_t *random)
{
    const struct kvw_geometry *geometry = &player->world.geometry;
    const uint32_t layer = random[1] % geometry->n_layers;
    const struct kvw_layer at = {layer};
    const struct kvw_item item = {.n = 1};
    struct kvw_source source[KVW_SPEC_PLANES_MAX] = {0};
    struct kvw_cache *reader = player->world.seat[WORLD_RANKS_MAX];
    uint32_t rank = random[0] % geometry->n_ranks;
    struct kvw_cache *cache = player->world.seat[rank];
    struct kvw_view view;

    for (uint32_t p = 0; p < KVW_SPEC_PLANES_MAX; p++)
        source[p].data = player->source[p];
    if (reader != NULL && (kvw_begin(reader, lane, &item, 1, NULL) != -EACCES ||
                           kvw_update(reader, lane, at, 0, 1, source) != -EACCES ||
                           kvw_written(reader, lane, at, 0, 1) != -EACCES ||
                           kvw_commit(reader, lane, NULL, 0) != -EACCES ||
                           kvw_abort(reader, lane) != -EACCES ||
                           kvw_truncate(reader, lane, &item, 1) != -EACCES ||
                           kvw_reset(reader, lane, NULL, 0) != -EACCES ||
                           kvw_have_read(reader, lane, at, 1) != -EACCES ||
                           kvw_recover(reader, lane, 0, NULL) != -EACCES))
        return player_fail(player, "a reader could write");
    if (cache == NULL)
        return true;
    int error = kvw_get(cache, lane, at, KVW_UNPINNED, &view);
    bool is_own = player->oracle.lane[lane].board[rank].is_held &&
                  oracle_holds(&player->oracle, layer, rank);
    if (error == 0 && kvw_release(cache, &view) != 0)
        return player_fail(player, "release of a view at once");
    if (is_own ? error != 0 : error != -ERANGE)
        return player_fail(player, "get(rank %u, lane %u, layer %u) -> %d", rank, lane,
                           layer, error);
    if (kvw_get(cache, geometry->n_lanes, at, 0, &view) != -ERANGE ||
        kvw_get(cache, lane, (struct kvw_layer){geometry->n_layers}, 0, &view) !=
            -ERANGE)
        return player_fail(player, "a lane or layer out of range was shown");
    if (!player->oracle.lane[lane].board[rank].is_held &&
        (kvw_begin(cache, lane, &item, 1, NULL) >= 0 ||
         kvw_commit(cache, lane, NULL, 0) >= 0 ||
         kvw_update(cache, lane, at, 0, 1, source) >= 0))
        return player_fail(player, "rank %u could write in lane %u", rank, lane);
    return true;
}
