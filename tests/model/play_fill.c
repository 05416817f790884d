/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the open chunk: by update from sources of all shapes, and by slots and
 * written; what is written is told from all else by its stamp. */
#include "tests/model/play_parts.h"

#include <inttypes.h>
#include <string.h>

#include "proto/base/align.h"

static void touch(struct player *player, uint32_t rank, uint32_t lane, uint32_t layer)
{
    uint32_t g = geometry_group_of(&player->world.geometry, layer);
    struct m_board *board = &player->oracle.lane[lane].board[rank];

    board->group[g].is_touched = true;
    board->layer[layer].is_writing = true;
    board->layer[layer].writes++;
}

static void see_written(struct player *player, uint32_t rank, uint32_t lane,
                        uint32_t layer, uint64_t end)
{
    struct m_layer *of = &player->oracle.lane[lane].board[rank].layer[layer];

    of->prefix = max_u64(of->prefix, end);
    of->is_writing = false;
    of->passes++;
    of->writes++;
}

static uint64_t new_stamp(struct player *player)
{
    return world_mix(++player->n_stamps, 0x5eed, 3);
}

/* Rows of a source in one of several shapes: rows or heads outside, padded, backwards.
 */
static void lay_out(struct player *player, uint32_t p, uint64_t row_bytes,
                    uint32_t n_heads, uint64_t n_rows, uint32_t shape,
                    struct kvw_source *source)
{
    const int64_t pad = shape & 1 ? 3 : 0;
    const int64_t elem = (int64_t)row_bytes;
    const bool is_rows_outside = (shape & 2) != 0;
    const int64_t heads = n_heads > 0 ? n_heads : 1;

    source->row_bytes = is_rows_outside ? (elem + pad) * heads : elem + pad;
    source->head_bytes = is_rows_outside ? elem + pad : (elem + pad) * (int64_t)n_rows;
    char *data = player->source[p];
    KVW_CHECK((uint64_t)(elem + pad) * (uint64_t)heads * n_rows <=
              sizeof player->source[p]);
    memset(data, 0xee, sizeof player->source[p]);
    if ((shape & 4) != 0) {
        data += source->row_bytes * (int64_t)(n_rows - 1);
        source->row_bytes = -source->row_bytes;
    }
    source->data = data;
}

bool player_update(struct player *player, uint32_t rank, uint32_t lane, uint32_t layer,
                   uint64_t row_first, uint64_t n_rows, uint32_t shape)
{
    const uint32_t g = geometry_group_of(&player->world.geometry, layer);
    const struct kvw_geometry_group *of = &player->world.geometry.group[g];
    const struct kvw_part part = oracle_part(&player->oracle, g, rank);
    struct m_board *board = &player->oracle.lane[lane].board[rank];
    struct kvw_source source[KVW_SPEC_PLANES_MAX] = {0};
    uint64_t stamp[M_CHUNK];
    const uint64_t row = oracle_record(&player->oracle, lane, rank)->group[g].rows;
    struct expect expect;
    char text[96];

    for (uint64_t i = 0; i < n_rows; i++)
        stamp[i] = new_stamp(player);
    for (uint32_t p = 0; p < of->n_planes; p++) {
        uint64_t row_bytes =
            (uint64_t)of->plane[p].elems * geometry_elem_bytes(of->plane[p].type);
        lay_out(player, p, row_bytes, part.n_heads, n_rows, shape, &source[p]);
        for (uint64_t i = 0; i < n_rows; i++) {
            if (!oracle_has_row(&player->oracle, rank, row + row_first + i))
                continue;
            for (uint32_t h = 0; h < part.n_heads; h++)
                world_fill((char *)(uintptr_t)source[p].data +
                               (int64_t)i * source[p].row_bytes +
                               (int64_t)h * source[p].head_bytes,
                           &of->plane[p], p, part.head_first + h, stamp[i]);
        }
    }
    oracle_expect_write(&player->oracle, rank, lane, layer, row_first, n_rows, true,
                        &expect);
    call_remember(player);
    int result = kvw_update(player->world.seat[rank], lane, (struct kvw_layer){layer},
                            row_first, n_rows, source);
    (void)snprintf(text, sizeof text, "update layer %u rows %" PRIu64 "+%" PRIu64,
                   layer, row_first, n_rows);
    if (!call_judge(player, text, rank, lane, &expect, result))
        return false;
    if (result < 0)
        return true;
    touch(player, rank, lane, layer);
    memcpy(&board->layer[layer].stamp[row_first], stamp, n_rows * sizeof stamp[0]);
    see_written(player, rank, lane, layer, row_first + n_rows);
    return true;
}

/* Every row of this rank is there once, at its place; and write them all. */
static bool fill_slots(struct player *player, uint32_t rank, uint32_t lane,
                       uint32_t layer, uint64_t row, uint64_t n_rows,
                       const struct kvw_slots *slots, const uint64_t *stamp)
{
    const uint32_t g = geometry_group_of(&player->world.geometry, layer);
    const struct kvw_geometry_group *of = &player->world.geometry.group[g];
    const uint64_t ring = oracle_ring_rows(&player->oracle, g);
    const struct kvw_part part = oracle_part(&player->oracle, g, rank);
    uint64_t next = row;

    if (slots->n_planes != of->n_planes || slots->n_heads != part.n_heads ||
        slots->head_first != part.head_first)
        return player_fail(player, "slots: %u planes, heads %u+%u", slots->n_planes,
                           slots->head_first, slots->n_heads);
    for (uint32_t i = 0; i < slots->n_pieces; i++) {
        const struct kvw_piece *piece = &slots->piece[i];
        for (uint32_t k = 0; k < piece->n_rows; k++, next++) {
            while (next < row + n_rows && !oracle_has_row(&player->oracle, rank, next))
                next++;
            if (piece->row + k != next || next >= row + n_rows)
                return player_fail(player, "slots: row %" PRIu64 ", want %" PRIu64,
                                   piece->row + k, next);
            uint64_t slot = next < of->sink_rows
                                ? next
                                : of->sink_rows + (next - of->sink_rows) % ring;
            for (uint32_t p = 0; p < of->n_planes; p++) {
                for (uint32_t h = 0; h < part.n_heads; h++) {
                    char *at = (char *)kvw_piece_at(&slots->plane[p], piece, h) +
                               k * slots->plane[p].row_bytes;
                    if (at != world_row(&player->world, layer, p, lane,
                                        part.head_first + h, slot))
                        return player_fail(
                            player, "slots: row %" PRIu64 " lies elsewhere", next);
                    world_fill(at, &of->plane[p], p, part.head_first + h,
                               stamp[next - row]);
                }
            }
        }
    }
    while (next < row + n_rows && !oracle_has_row(&player->oracle, rank, next))
        next++;
    if (next != row + n_rows)
        return player_fail(player, "slots: row %" PRIu64 " is missing", next);
    return true;
}

bool player_slots(struct player *player, uint32_t rank, uint32_t lane, uint32_t layer,
                  uint64_t row_first, uint64_t n_rows, bool is_told)
{
    const uint32_t g = geometry_group_of(&player->world.geometry, layer);
    struct m_board *board = &player->oracle.lane[lane].board[rank];
    const uint64_t row = oracle_record(&player->oracle, lane, rank)->group[g].rows;
    struct kvw_slots slots;
    uint64_t stamp[M_CHUNK];
    struct expect expect;
    char text[96];

    oracle_expect_write(&player->oracle, rank, lane, layer, row_first, n_rows, false,
                        &expect);
    call_remember(player);
    int result = kvw_slots(player->world.seat[rank], lane, (struct kvw_layer){layer},
                           row_first, n_rows, &slots);
    (void)snprintf(text, sizeof text, "slots layer %u rows %" PRIu64 "+%" PRIu64, layer,
                   row_first, n_rows);
    if (!call_judge(player, text, rank, lane, &expect, result))
        return false;
    if (result == 0) {
        touch(player, rank, lane, layer);
        for (uint64_t i = 0; i < n_rows; i++)
            stamp[i] = new_stamp(player);
        if (!fill_slots(player, rank, lane, layer, row + row_first, n_rows, &slots,
                        stamp))
            return false;
        memcpy(&board->layer[layer].stamp[row_first], stamp, n_rows * sizeof stamp[0]);
    }
    if (!is_told)
        return true;
    oracle_expect_write(&player->oracle, rank, lane, layer, row_first, n_rows, true,
                        &expect);
    call_remember(player);
    result = kvw_written(player->world.seat[rank], lane, (struct kvw_layer){layer},
                         row_first, n_rows);
    (void)snprintf(text, sizeof text, "written layer %u rows %" PRIu64 "+%" PRIu64,
                   layer, row_first, n_rows);
    if (!call_judge(player, text, rank, lane, &expect, result))
        return false;
    if (result == 0)
        see_written(player, rank, lane, layer, row_first + n_rows);
    return true;
}

bool player_fill(struct player *player, uint32_t rank, uint32_t lane, const uint64_t *n,
                 uint32_t shape)
{
    const struct kvw_geometry *geometry = &player->world.geometry;
    const struct m_board *board = &player->oracle.lane[lane].board[rank];

    for (uint32_t i = 0; i < geometry->n_layers; i++) {
        /* Layers in any order. */
        uint32_t layer = (i * (shape % 2 == 0 ? 1 : geometry->n_layers - 1) + shape) %
                         geometry->n_layers;
        uint32_t g = geometry_group_of(geometry, layer);
        uint64_t want = n == NULL ? board->group[g].n : n[g];
        uint64_t prefix = oracle_prefix(&player->oracle, lane, rank, layer);
        if (prefix >= want || !oracle_holds(&player->oracle, layer, rank))
            continue;
        bool is_slots = (shape >> (8 + i) & 1) != 0;
        if (is_slots
                ? !player_slots(player, rank, lane, layer, prefix, want - prefix, true)
                : !player_update(player, rank, lane, layer, prefix, want - prefix,
                                 shape >> i))
            return false;
    }
    return true;
}
