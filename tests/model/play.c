/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: what their random numbers mean in the state at hand. */
#include "tests/model/play.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/align.h"

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

/* ---- who ---- */

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

static uint32_t seat_of(const struct player *player, uint32_t random)
{
    for (uint32_t i = 0; i < WORLD_SEATS_MAX; i++) {
        uint32_t seat = (random + i) % WORLD_SEATS_MAX;
        if (player->world.seat[seat] != NULL)
            return seat;
    }
    return UINT32_MAX;
}

static bool is_behind(const struct player *player, uint32_t rank, uint32_t lane)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    return of->board[rank].step + 1 < of->n_steps;
}

/* ---- items ---- */

static void random_epoch(struct kvw_item *item, uint32_t random)
{
    if (random % 7 == 0) {
        item->has_epoch = 1;
        item->epoch = random / 7 % 1000;
    }
}

static uint64_t random_rows(const struct kvw_geometry_group *of, uint32_t random)
{
    return random % 3 != 0 ? of->chunk_rows_max : 1 + random / 3 % of->chunk_rows_max;
}

/* Chunks that fit now, in some of the groups. */
static uint32_t random_chunks(const struct player *player, uint32_t rank, uint32_t lane,
                              const uint32_t *random, struct kvw_item *items)
{
    const struct kvw_geometry *geometry = &player->world.geometry;
    const struct m_record *record = oracle_record(&player->oracle, lane, rank);
    uint32_t n_items = 0;

    for (uint32_t i = 0; i < geometry->n_groups; i++) {
        uint32_t g = (i + random[0]) % geometry->n_groups;
        const struct kvw_geometry_group *of = &geometry->group[g];
        uint64_t n = random_rows(of, random[1] >> (4 * i));
        uint64_t rows = record->group[g].rows;
        if (of->policy == KVW_GEOMETRY_REFUSE) {
            n = min_u64(n, of->window_rows - min_u64(rows, of->window_rows));
            if ((random[2] >> (3 * i) & 1) == 0)
                n = 0;
        } else if (i > 0 && (random[2] >> (3 * i)) % 4 == 0) {
            n = 0;
        }
        if (n == 0)
            continue;
        items[n_items] = (struct kvw_item){.group = g, .row = rows, .n = n};
        random_epoch(&items[n_items], random[3] >> (2 * i));
        n_items++;
    }
    return n_items;
}

/* ---- going on ---- */

/* The step that the ranks before have made, by this rank; with a larger chunk now and
 * then, of which it publishes as much as they did. */
static bool follow(struct player *player, uint32_t rank, uint32_t lane,
                   const uint32_t *random)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    struct m_board *board = &player->oracle.lane[lane].board[rank];
    struct m_call call = of->step[board->step + 1].call;
    uint64_t publish[M_GROUPS] = {0};
    const uint64_t step = board->step;

    if (call.kind != M_COMMIT)
        return player_step(player, rank, lane, &call);
    for (uint32_t i = 0; i < call.n_items; i++) {
        struct kvw_item *item = &call.item[i];
        uint64_t n_max = player->world.geometry.group[item->group].chunk_rows_max;
        publish[item->group] = call.publish[item->group];
        item->n = max_u64(publish[item->group], 1);
        if (random[0] % 4 == 0 &&
            player->world.geometry.group[item->group].policy == KVW_GEOMETRY_ROLL)
            item->n = min_u64(n_max, item->n + 1);
    }
    if (!oracle_is_same(board, call.item, call.n_items) &&
        !player_begin(player, rank, lane, call.item, call.n_items))
        return false;
    if (!oracle_is_same(board, call.item, call.n_items))
        return true; /* refused */
    return player_fill(player, rank, lane, publish, random[1]) &&
           player_commit(player, rank, lane, publish) &&
           (board->step == step + 1 ||
            player_fail(player, "a follower did not advance"));
}

static bool go_on(struct player *player, uint32_t rank, uint32_t lane,
                  const uint32_t *random)
{
    struct m_board *board = &player->oracle.lane[lane].board[rank];
    struct kvw_item items[M_GROUPS];

    if (is_behind(player, rank, lane))
        return follow(player, rank, lane, random);
    uint32_t n_items = random_chunks(player, rank, lane, random, items);
    if (n_items == 0)
        return true;
    if (!player_begin(player, rank, lane, items, n_items))
        return false;
    if (!oracle_is_same(board, items, n_items))
        return true;
    return player_fill(player, rank, lane, NULL, random[4]) &&
           player_commit(player, rank, lane, NULL);
}

static bool play_round(struct player *player, uint32_t lane, const uint32_t *random)
{
    const uint32_t n_ranks = player->world.geometry.n_ranks;

    for (uint32_t i = 0; i < n_ranks; i++) {
        uint32_t rank =
            (i * (random[5] % 2 == 0 ? 1 : n_ranks - 1) + random[6]) % n_ranks;
        if (player->world.seat[rank] == NULL ||
            !player->oracle.lane[lane].board[rank].is_held)
            continue;
        if (!go_on(player, rank, lane, random))
            return false;
    }
    return true;
}

/* ---- single calls ---- */

static bool play_begin(struct player *player, uint32_t rank, uint32_t lane,
                       const uint32_t *random)
{
    struct m_board *board = &player->oracle.lane[lane].board[rank];
    struct kvw_item items[M_GROUPS];
    uint32_t n_items;

    if (board->is_open && random[4] % 3 == 0) {
        for (uint32_t i = 0; i < board->n_begun; i++)
            items[i] = board->begun[(i + random[5]) % board->n_begun];
        return player_begin(player, rank, lane, items, board->n_begun);
    }
    if (is_behind(player, rank, lane) && random[4] % 4 != 1) {
        const struct m_call *call =
            &player->oracle.lane[lane].step[board->step + 1].call;
        if (call->kind != M_COMMIT)
            return player_step(player, rank, lane, call);
        return player_begin(player, rank, lane, call->item, call->n_items);
    }
    n_items = random_chunks(player, rank, lane, random, items);
    return n_items == 0 || player_begin(player, rank, lane, items, n_items);
}

static bool play_begin_wrong(struct player *player, uint32_t rank, uint32_t lane,
                             const uint32_t *random)
{
    const struct kvw_geometry *geometry = &player->world.geometry;
    struct kvw_item items[M_GROUPS + 1];
    uint32_t n_items = random_chunks(player, rank, lane, random, items);

    if (n_items == 0) {
        uint64_t rows = oracle_record(&player->oracle, lane, rank)->group[0].rows;
        items[n_items++] = (struct kvw_item){.row = rows, .n = 1};
    }
    struct kvw_item *item = &items[random[4] % n_items];
    switch (random[5] % 6) {
    case 0:
        item->row += 1 + random[6] % 3;
        break;
    case 1:
        item->row = item->row > 0 ? item->row - 1 : UINT64_MAX;
        break;
    case 2:
        item->n = 0;
        break;
    case 3:
        item->n = random[6] % 2 == 0 ? geometry->group[item->group].chunk_rows_max + 1
                                     : UINT64_MAX - 1;
        break;
    case 4:
        item->group = geometry->n_groups + random[6] % 20;
        break;
    default:
        items[n_items] = items[0];
        n_items++;
    }
    return player_begin(player, rank, lane, items, n_items);
}

static bool play_write(struct player *player, uint32_t rank, uint32_t lane,
                       bool is_slots, const uint32_t *random)
{
    const uint32_t layer = random[0] % player->world.geometry.n_layers;
    const struct m_board *board = &player->oracle.lane[lane].board[rank];
    const uint32_t g = geometry_group_of(&player->world.geometry, layer);
    const uint64_t n_max = player->world.geometry.group[g].chunk_rows_max;
    uint64_t first = oracle_prefix(&player->oracle, lane, rank, layer);
    uint64_t n = board->group[g].n > first ? board->group[g].n - first : 1;

    if (random[1] % 3 == 0)
        first = random[2] % n_max;
    if (random[1] % 3 != 2)
        n = 1 + random[3] % n_max;
    if (first + n > M_CHUNK)
        return true;
    if (is_slots)
        return player_slots(player, rank, lane, layer, first, n, random[4] % 4 != 0);
    return player_update(player, rank, lane, layer, first, n, random[4]);
}

static bool play_commit(struct player *player, uint32_t rank, uint32_t lane,
                        const uint32_t *random)
{
    const struct m_board *board = &player->oracle.lane[lane].board[rank];
    uint64_t publish[M_GROUPS] = {0};

    if (!board->is_open || random[0] % 3 == 0)
        return player_commit(player, rank, lane, NULL);
    for (uint32_t g = 0; g < player->world.geometry.n_groups; g++)
        publish[g] = board->group[g].n == 0
                         ? 0
                         : (random[1] >> (4 * g)) % (board->group[g].n + 1);
    if (random[0] % 3 == 1 && !player_fill(player, rank, lane, publish, random[2]))
        return false;
    if (random[3] % 16 == 0 && board->group[board->begun[0].group].n > 0)
        publish[board->begun[0].group] = board->group[board->begun[0].group].n + 1;
    return player_commit(player, rank, lane, publish);
}

/* Rows for truncate, evict and keep: mostly possible ones. */
static void random_item(const struct player *player, uint32_t rank, uint32_t lane,
                        enum m_kind kind, const uint32_t *random, struct kvw_item *item)
{
    const struct m_group *at =
        &oracle_record(&player->oracle, lane, rank)->group[item->group];
    const struct kvw_geometry_group *of = &player->world.geometry.group[item->group];
    uint64_t low = oracle_low(&player->oracle, item->group, at, 0);
    uint64_t lowest = oracle_lowest(&player->oracle, lane, rank, item->group);
    uint32_t span = (uint32_t)of->chunk_rows_max + 2;

    if (kind == M_TRUNCATE) {
        if (random[0] % 4 == 0)
            item->row = random[1] % (of->sink_rows + 2);
        else if (random[0] % 4 == 1)
            item->row = lowest + random[1] % 3 - (lowest > 0 ? 1 : 0);
        else
            item->row = at->rows - min_u64(at->rows, random[1] % span);
        if (random[2] % 16 == 0)
            item->row = at->rows + 1;
    } else if (kind == M_EVICT) {
        item->row = low + random[1] % (at->rows > low ? at->rows - low + 1 : 1);
        item->row = min_u64(item->row, at->rows);
        if (random[2] % 16 == 0)
            item->row = random[1] % 2 == 0 ? at->rows + 1
                                           : at->evicted - min_u64(at->evicted, 1);
    } else if (kind == M_KEEP) {
        if (at->n_kept > 0 && random[0] % 3 == 0) {
            item->row = at->kept[random[1] % at->n_kept].first;
            return;
        }
        item->row = low + random[1] % (at->rows > low ? at->rows - low : 1);
        item->n = 1 + random[3] % 3;
        if (item->row + item->n > at->rows && random[2] % 8 != 0 &&
            at->rows > item->row)
            item->n = at->rows - item->row;
        if (random[2] % 16 == 0)
            item->row -= min_u64(item->row, 2);
    }
}

static bool play_step(struct player *player, uint32_t rank, uint32_t lane,
                      enum m_kind kind, const uint32_t *random)
{
    const struct kvw_geometry *geometry = &player->world.geometry;
    struct m_call call = {.kind = kind};

    if (is_behind(player, rank, lane) && random[7] % 8 != 0)
        return follow(player, rank, lane, random);
    if (kind == M_RESET_LAYER) {
        call.layer = random[0] % geometry->n_layers;
        return player_step(player, rank, lane, &call);
    }
    for (uint32_t i = 0; i < geometry->n_groups; i++) {
        uint32_t g = (i + random[0]) % geometry->n_groups;
        uint32_t some[4] = {random[1] >> (3 * i), random[2] >> (3 * i),
                            random[3] >> (3 * i), random[4] >> (3 * i)};
        struct kvw_item *item = &call.item[call.n_items];
        if (i > 0 && (random[5] >> (2 * i)) % 3 != 0)
            continue;
        if (kind == M_KEEP && geometry->group[g].keep_rows == 0 && random[6] % 8 != 0)
            continue;
        *item = (struct kvw_item){.group = g};
        random_item(player, rank, lane, kind, some, item);
        random_epoch(item, random[6] >> (2 * i));
        call.n_items++;
    }
    if (kind == M_RESET && random[4] % 3 == 0)
        call.n_items = 0;
    else if (call.n_items == 0)
        return true;
    if (call.n_items > 1 && random[7] % 64 == 0)
        call.item[1].group = call.item[0].group; /* named twice: refused */
    return player_step(player, rank, lane, &call);
}

/* ---- views that are kept, waits ---- */

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

static bool play_hold(struct player *player, uint32_t lane, const uint32_t *random)
{
    const struct kvw_geometry *geometry = &player->world.geometry;
    const uint32_t layer = random[1] % geometry->n_layers;
    uint32_t seat = seat_of(player, random[0]);
    struct held *held = &player->held[random[2] % M_HELD];
    uint32_t flags = random[3] % 3 == 0 ? KVW_UNPINNED : 0;
    uint64_t ranks = UINT64_MAX;

    if (held->is_used || seat == UINT32_MAX)
        return true;
    bool is_rank = seat < WORLD_RANKS_MAX;
    uint64_t holders = 0;
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        if (player->oracle.lane[lane].board[rank].is_held &&
            oracle_holds(&player->oracle, layer, rank))
            holders |= 1ull << rank;
    }
    if (holders == 0)
        return true;
    if (is_rank && (holders >> seat & 1) == 0)
        ranks = 0; /* not its own layer: it may look at the others' */
    else if (random[4] % 4 == 0)
        ranks = 0;
    else if (random[4] % 4 == 1)
        ranks = some_ranks(player, holders, random[5]);
    else if (is_rank && random[4] % 4 == 2)
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

static bool play_release(struct player *player, uint32_t random)
{
    for (uint32_t i = 0; i < M_HELD; i++) {
        struct held *held = &player->held[(i + random) % M_HELD];
        if (held->is_used)
            return player_release(player, held);
    }
    return true;
}

static bool play_wait(struct player *player, uint32_t lane, const uint32_t *random)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    const uint64_t ranks = oracle_ranks(&player->oracle, lane);
    const uint32_t g = random[3] % player->world.geometry.n_groups;
    uint32_t seat = seat_of(player, random[0]);
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

/* ---- coming and going ---- */

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

static bool leave(struct player *player, uint32_t seat, bool is_death)
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

static bool attach(struct player *player, uint32_t seat)
{
    const bool is_rank = seat < WORLD_RANKS_MAX;

    if (player->log != NULL)
        fprintf(player->log, "  seat %u attaches\n", seat);
    int error = world_attach(&player->world, seat);
    if (error != 0)
        return player_fail(player, "attach(%u) -> %d (%s)", seat, error,
                           kvw_last_error());
    if (!is_rank)
        return true;
    player->oracle.seat[seat] = KVW_SEAT_OWNED;
    for (uint32_t lane = 0; lane < player->world.geometry.n_lanes; lane++)
        oracle_abort(&player->oracle, seat, lane);
    return see_all_claims(player, seat);
}

static bool play_attach(struct player *player, uint32_t random)
{
    const uint32_t n_ranks = player->world.geometry.n_ranks;
    for (uint32_t i = 0; i < n_ranks; i++) {
        uint32_t rank = (random + i) % n_ranks;
        if (player->world.seat[rank] == NULL)
            return attach(player, rank);
    }
    uint32_t reader = WORLD_RANKS_MAX + random % WORLD_READERS_MAX;
    return player->world.seat[reader] != NULL || random % 4 != 0 ||
           attach(player, reader);
}

static bool set_outside(struct player *player, uint32_t lane, uint64_t step)
{
    const uint64_t ranks = oracle_ranks(&player->oracle, lane);

    for (uint32_t rank = 0; rank < player->world.geometry.n_ranks; rank++) {
        if ((ranks >> rank & 1) != 0 && player->world.seat[rank] == NULL)
            return true;
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

static bool play_outside(struct player *player, uint32_t lane, uint32_t random)
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
    return set_outside(player, lane, random % 2 == 0 && is_settled ? step : UINT64_MAX);
}

/* A rank that is in the new era already is left alone until all are. */
static bool play_recover(struct player *player, uint32_t rank, uint32_t lane)
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

/* Those that must, call recover until nobody must. */
static bool play_recover_all(struct player *player, uint32_t lane, uint32_t random)
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

/* ---- what must be refused whatever the state ---- */

static bool play_forbidden(struct player *player, uint32_t lane, const uint32_t *random)
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
                           kvw_recover(reader, lane, 0, NULL) != -EACCES ||
                           kvw_get(reader, lane, at, KVW_STAGED, &view) != -EOPNOTSUPP))
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

static bool play_reset_state(struct player *player, uint32_t rank)
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

static bool play_on_rank(struct player *player, const struct op *op, uint32_t rank,
                         uint32_t lane)
{
    const uint32_t *random = &op->r[2];
    uint32_t more[8];

    for (uint32_t i = 0; i < 8; i++) /* six are left of the eight; steps want more */
        more[i] = random[i % 6] * (i < 6 ? 1 : 2654435761u);
    switch ((enum op_kind)op->kind) {
    case OP_ADVANCE:
        return go_on(player, rank, lane, more);
    case OP_BEGIN:
        return play_begin(player, rank, lane, more);
    case OP_BEGIN_WRONG:
        return play_begin_wrong(player, rank, lane, more);
    case OP_UPDATE:
        return play_write(player, rank, lane, false, more);
    case OP_SLOTS:
        return play_write(player, rank, lane, true, more);
    case OP_FILL:
        return player_fill(player, rank, lane, NULL, more[0]);
    case OP_COMMIT:
        return play_commit(player, rank, lane, more);
    case OP_ABORT:
        return player_abort(player, rank, lane);
    case OP_TRUNCATE:
        return play_step(player, rank, lane, M_TRUNCATE, more);
    case OP_EVICT:
        return play_step(player, rank, lane, M_EVICT, more);
    case OP_KEEP:
        return play_step(player, rank, lane, M_KEEP, more);
    case OP_RESET:
        return play_step(player, rank, lane, M_RESET, more);
    case OP_RESET_LAYER:
        return play_step(player, rank, lane, M_RESET_LAYER, more);
    case OP_RECOVER:
        return play_recover(player, rank, lane);
    case OP_POLICY:
        player->world.seat[rank]->options.pin_policy = more[0] % 3 == 0 ? KVW_PIN_REVOKE
                                                       : more[0] % 3 == 1
                                                           ? KVW_PIN_WAIT
                                                           : KVW_PIN_ANSWER;
        if (player->log != NULL)
            fprintf(player->log, "  rank %u: pin policy %u\n", rank,
                    player->world.seat[rank]->options.pin_policy);
        return true;
    default:
        return player_fail(player, "no such operation");
    }
}

static bool play_one(struct player *player, const struct op *op, uint32_t lane)
{
    const uint32_t n_ranks = player->world.geometry.n_ranks;
    uint32_t rank = rank_of(player, lane, op->r[0]);
    uint32_t seat = seat_of(player, op->r[0]);

    switch ((enum op_kind)op->kind) {
    case OP_ROUND:
        return play_round(player, lane, op->r);
    case OP_HOLD:
        return play_hold(player, lane, &op->r[2]);
    case OP_RELEASE:
        return play_release(player, op->r[2]);
    case OP_WAIT:
        return play_wait(player, lane, &op->r[2]);
    case OP_RECOVER_ALL:
        return rank == UINT32_MAX || (play_recover(player, rank, lane) &&
                                      play_recover_all(player, lane, op->r[2]));
    case OP_KILL:
    case OP_DETACH:
        return seat == UINT32_MAX || leave(player, seat, op->kind == OP_KILL);
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
                is_behind(player, rank, lane) && !follow(player, rank, lane, ones))
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

bool player_finish(struct player *player)
{
    const struct kvw_geometry *geometry = &player->world.geometry;
    uint64_t seed = player->n_stamps;

    for (uint32_t i = 0; i < M_HELD; i++) {
        if (player->held[i].is_used && !player_release(player, &player->held[i]))
            return false;
    }
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        if (player->world.seat[rank] == NULL && !attach(player, rank))
            return false;
    }
    for (uint32_t lane = 0; lane < geometry->n_lanes; lane++) {
        if (oracle_ranks(&player->oracle, lane) == 0)
            continue;
        if (!set_outside(player, lane, UINT64_MAX) ||
            !play_recover_all(player, lane, 0))
            return false;
        /* A rank that began more rows than the ranks before it published can strand
         * those that have truncated since: then recovery is the way out. */
        if (!catch_up(player, lane) ||
            (is_any_behind(player, lane) &&
             (!player_recover(player, first_rank(player, lane), lane) ||
              !play_recover_all(player, lane, 0))))
            return false;
        if (!roll(player, lane, &seed))
            return false;
    }
    return true;
}
