/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a rank that writes: what their random numbers mean in the state at
 * hand, from whole steps in turn to single calls that should be refused. */
#include "tests/model/play_ops.h"

#include "proto/base/align.h"

bool play_is_behind(const struct player *player, uint32_t rank, uint32_t lane)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    return of->board[rank].step + 1 < of->n_steps;
}

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

/* The step that the ranks before have made, by this rank; with a larger chunk now and
 * then, of which it publishes as much as they did. */
bool play_follow(struct player *player, uint32_t rank, uint32_t lane,
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

    if (play_is_behind(player, rank, lane))
        return play_follow(player, rank, lane, random);
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

bool play_round(struct player *player, uint32_t lane, const uint32_t *random)
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
    if (play_is_behind(player, rank, lane) && random[4] % 4 != 1) {
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

    if (play_is_behind(player, rank, lane) && random[7] % 8 != 0)
        return play_follow(player, rank, lane, random);
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

bool play_on_rank(struct player *player, const struct op *op, uint32_t rank,
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
