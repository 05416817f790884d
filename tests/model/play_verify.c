/* SPDX-License-Identifier: Apache-2.0 */
/* kvw_verify() on a cache that is what the library left: nothing is wrong with it. And with
 * one byte of a committed row changed: just that row is. */
#include "tests/model/play_parts.h"

#include <inttypes.h>

/* What kvw_verify() told. */
struct told {
    uint32_t n;
    struct kvw_damage last;
    char text[512];
};

static void note(void *context, const struct kvw_damage *damage)
{
    struct told *told = context;

    told->n++;
    told->last = *damage;
    (void)snprintf(told->text, sizeof told->text, "%s", damage->text);
}

bool player_verify(struct player *player, uint32_t seat)
{
    struct kvw_verified verified;
    struct told told = {0};

    int result = kvw_verify(player->world.seat[seat], note, &told, &verified);
    if (result != 0 || told.n != 0 || verified.n_damages != 0 ||
        verified.n_rows_damaged != 0)
        return player_fail(player, "verify(seat %u) -> %d, %u found: %s", seat, result,
                           told.n, told.text);
    if (verified.n_rows_skipped != 0 || verified.n_boards_skipped != 0)
        return player_fail(player,
                           "verify(seat %u): nobody wrote, skipped %" PRIu64
                           " rows, %" PRIu64 " boards",
                           seat, verified.n_rows_skipped, verified.n_boards_skipped);
    return true;
}

/* A byte of a committed row that a rank shows; false if it shows none. */
static bool choose_byte(struct player *player, uint32_t rank, uint32_t lane,
                        uint32_t layer, struct kvw_damage *chosen, char **byte)
{
    struct kvw_cache *cache = player->world.seat[rank];
    struct kvw_view view;

    if (!oracle_holds(&player->oracle, layer, rank) ||
        kvw_get(cache, lane, (struct kvw_layer){layer}, KVW_UNPINNED, &view) != 0)
        return false;
    int error = kvw_release(cache, &view);
    if (error != 0 || view.n_rows == 0 || view.n_heads == 0)
        return false;
    const uint64_t random = world_random(&player->coin);
    const struct kvw_piece *piece = &view.piece[random % view.n_pieces];
    const uint32_t p = (uint32_t)(random >> 8) % view.n_planes;
    const uint32_t head = (uint32_t)(random >> 16) % view.n_heads;
    const uint32_t at = (uint32_t)(random >> 24) % piece->n_rows;
    *chosen = (struct kvw_damage){
        .kind = KVW_DAMAGE_ROWS,
        .rank = rank,
        .lane = lane,
        .layer = layer,
        .plane = p,
        .head = view.head_first + head,
        .row = piece->row + at,
        .n_rows = 1,
    };
    *byte = kvw_piece_at(&view.plane[p], piece, head) + at * view.plane[p].row_bytes +
            (random >> 32) % view.plane[p].row_bytes;
    return true;
}

static bool is_same(const struct kvw_damage *a, const struct kvw_damage *b)
{
    return a->kind == b->kind && a->rank == b->rank && a->lane == b->lane &&
           a->layer == b->layer && a->plane == b->plane && a->head == b->head &&
           a->row == b->row && a->n_rows == b->n_rows;
}

bool player_damage(struct player *player, uint32_t rank, uint32_t lane, uint32_t layer)
{
    struct kvw_verified verified;
    struct kvw_damage chosen;
    struct told told = {0};
    char *byte;

    if (!player->world.geometry.has_checksums ||
        !choose_byte(player, rank, lane, layer, &chosen, &byte))
        return true;
    *byte = (char)(*byte ^ (1 << player->coin % 8));
    int result = kvw_verify(player->world.seat[rank], note, &told, &verified);
    *byte = (char)(*byte ^ (1 << player->coin % 8));
    if (result == 1 && told.n == 1 && verified.n_rows_damaged == 1 &&
        is_same(&chosen, &told.last))
        return player_verify(player, rank);
    return player_fail(player,
                       "a bit of rank %u, lane %u, layer %u, plane %u, head %u, row "
                       "%" PRIu64 " was changed: verify -> %d, %u found, the last: %s",
                       rank, lane, layer, chosen.plane, chosen.head, chosen.row, result,
                       told.n, told.text);
}
