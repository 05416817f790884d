/* SPDX-License-Identifier: Apache-2.0 */
/* A player: its beginning, which code an operation means, and its end, where every lane
 * must roll again whatever was done before. */
#include "tests/model/play_ops.h"

#include <stdlib.h>
#include <string.h>

bool player_init(struct player *player, const struct kvw_geometry *geometry,
                 uint64_t seed, FILE *log)
{
    memset(player, 0, sizeof *player);
    player->coin = seed ^ 0xc01;
    player->log = log;
    if (world_init(&player->world, geometry) != 0)
        return player_fail(player, "no memory for the segments");
    oracle_init(&player->oracle, &player->world.geometry);
    player->before =
        malloc(player->world.layout.control_bytes + player->world.layout.data_bytes);
    if (player->before == NULL)
        return player_fail(player, "no memory");
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        int error = world_attach(&player->world, rank);
        if (error != 0)
            return player_fail(player, "attach rank %u -> %d", rank, error);
        player->oracle.seat[rank] = KVW_SEAT_OWNED;
    }
    for (uint32_t i = 0; i < seed % (WORLD_READERS_MAX + 1); i++) {
        if (world_attach(&player->world, WORLD_RANKS_MAX + i) != 0)
            return player_fail(player, "attach a reader");
    }
    return true;
}

void player_fini(struct player *player)
{
    world_fini(&player->world);
    oracle_fini(&player->oracle);
    free(player->before);
}

/* An attached rank that holds the lane, or UINT32_MAX. */
static uint32_t rank_of(const struct player *player, uint32_t lane, uint32_t random)
{
    const uint32_t n_ranks = player->world.geometry.n_ranks;
    for (uint32_t i = 0; i < n_ranks; i++) {
        uint32_t rank = (random + i) % n_ranks;
        if (player->world.seat[rank] != NULL &&
            player->oracle.lane[lane].board[rank].is_held)
            return rank;
    }
    return UINT32_MAX;
}

uint32_t play_seat_of(const struct player *player, uint32_t random)
{
    for (uint32_t i = 0; i < WORLD_SEATS_MAX; i++) {
        uint32_t seat = (random + i) % WORLD_SEATS_MAX;
        if (player->world.seat[seat] != NULL)
            return seat;
    }
    return UINT32_MAX;
}

static bool play_one(struct player *player, const struct op *op, uint32_t lane)
{
    const uint32_t n_ranks = player->world.geometry.n_ranks;
    uint32_t rank = rank_of(player, lane, op->r[0]);
    uint32_t seat = play_seat_of(player, op->r[0]);

    switch ((enum op_kind)op->kind) {
    case OP_ROUND:
        return play_round(player, lane, op->r);
    case OP_HOLD:
        return play_hold(player, lane, &op->r[2]);
    case OP_RELEASE:
        return play_release(player, op->r[2]);
    case OP_WAIT:
        return play_wait(player, lane, &op->r[2]);
    case OP_PASS:
        return play_pass(player, lane, &op->r[2]);
    case OP_ONLOOK:
        return play_onlook(player, lane, &op->r[2]);
    case OP_RECOVER_ALL:
        return rank == UINT32_MAX || (play_recover(player, rank, lane) &&
                                      play_recover_all(player, lane, op->r[2]));
    case OP_KILL:
    case OP_DETACH:
        return seat == UINT32_MAX || play_leave(player, seat, op->kind == OP_KILL);
    case OP_ATTACH:
        return play_attach(player, op->r[2]);
    case OP_OUTSIDE:
        return play_outside(player, lane, op->r[2]);
    case OP_FORBIDDEN:
        return play_forbidden(player, lane, &op->r[2]);
    case OP_RESET_STATE:
        return play_reset_state(player, op->r[0] % n_ranks);
    default:
        return rank == UINT32_MAX || play_on_rank(player, op, rank, lane);
    }
}

bool player_play(struct player *player, const struct op *op)
{
    const uint32_t n_lanes = player->world.geometry.n_lanes;
    const uint32_t lane = op->r[1] % n_lanes;

    if (!play_one(player, op, lane) || !player_check_lane(player, lane))
        return false;
    const uint32_t seat = play_seat_of(player, op->r[6]);
    if (seat != UINT32_MAX && op->r[7] % 2 == 0 && !player_verify(player, seat))
        return false;
    /* The other lanes have not changed; looked at now and then. */
    for (uint32_t other = 0; other < n_lanes && op->r[7] % 4 == 0; other++) {
        if (other != lane && !player_check_lane(player, other))
            return false;
    }
    return true;
}

/* Ranks that are behind follow until none is. */
static bool catch_up(struct player *player, uint32_t lane)
{
    static const uint32_t ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};

    for (uint32_t i = 0; i < KVW_RECORDS; i++) {
        for (uint32_t rank = 0; rank < player->world.geometry.n_ranks; rank++) {
            if (player->oracle.lane[lane].board[rank].is_held &&
                play_is_behind(player, rank, lane) &&
                !play_follow(player, rank, lane, ones))
                return false;
        }
    }
    return true;
}

static uint32_t first_rank(const struct player *player, uint32_t lane)
{
    return (uint32_t)__builtin_ctzll(oracle_ranks(&player->oracle, lane));
}

static bool is_any_behind(const struct player *player, uint32_t lane)
{
    return oracle_min_step(&player->oracle, lane, oracle_ranks(&player->oracle, lane)) +
               1 <
           player->oracle.lane[lane].n_steps;
}

static bool is_rolled(const struct player *player, uint32_t lane)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    for (uint32_t g = 0; g < player->world.geometry.n_groups; g++) {
        const struct kvw_geometry_group *group = &player->world.geometry.group[g];
        if (group->policy == KVW_GEOMETRY_ROLL &&
            of->step[of->n_steps - 1].record.group[g].rows < 3 * group->window_rows)
            return false;
    }
    return true;
}

/* One lane over three windows, all ranks in step: nothing may refuse. */
static bool roll(struct player *player, uint32_t lane, uint64_t *seed)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    const uint64_t ranks = oracle_ranks(&player->oracle, lane);
    uint32_t random[8];

    for (uint32_t round = 0; round < 1000 && !is_rolled(player, lane); round++) {
        for (uint32_t i = 0; i < 8; i++)
            random[i] = (uint32_t)world_random(seed);
        if (!play_round(player, lane, random) || !player_check_lane(player, lane))
            return false;
        if (oracle_min_step(&player->oracle, lane, ranks) + 1 < of->n_steps)
            return player_fail(player, "lane %u is stuck before step %u", lane,
                               of->n_steps - 1);
    }
    return is_rolled(player, lane) ||
           player_fail(player, "lane %u does not roll", lane);
}

/* A bit of each layer of each rank. */
static bool damage_lane(struct player *player, uint32_t lane)
{
    const struct kvw_geometry *geometry = &player->world.geometry;

    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        for (uint32_t layer = 0; layer < geometry->n_layers; layer++) {
            if (player->oracle.lane[lane].board[rank].is_held &&
                !player_damage(player, rank, lane, layer))
                return false;
        }
    }
    return true;
}

bool player_finish(struct player *player)
{
    const struct kvw_geometry *geometry = &player->world.geometry;
    uint64_t seed = player->n_stamps;

    for (uint32_t i = 0; i < M_HELD; i++) {
        if (player->held[i].is_used && !player_release(player, &player->held[i]))
            return false;
    }
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        if (player->world.seat[rank] == NULL && !play_attach_seat(player, rank))
            return false;
    }
    for (uint32_t lane = 0; lane < geometry->n_lanes; lane++) {
        if (oracle_ranks(&player->oracle, lane) == 0)
            continue;
        if (!play_set_outside(player, lane, UINT64_MAX) ||
            !play_recover_all(player, lane, 0))
            return false;
        /* A rank that began more rows than the ranks before it published can strand
         * those that have truncated since: then recovery is the way out. */
        if (!catch_up(player, lane) ||
            (is_any_behind(player, lane) &&
             (!player_recover(player, first_rank(player, lane), lane) ||
              !play_recover_all(player, lane, 0))))
            return false;
        if (!roll(player, lane, &seed) || !damage_lane(player, lane))
            return false;
    }
    return true;
}
