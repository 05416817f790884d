/* SPDX-License-Identifier: Apache-2.0 */
/* One call of the library at a time: what it may answer, what it changes, and that a
 * refusal changes nothing. */
#include "tests/model/play.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "proto/base/align.h"

bool player_fail(struct player *player, const char *format, ...)
{
    if (!player->is_failed) {
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(player->failure, sizeof player->failure, format, arguments);
        va_end(arguments);
        player->is_failed = true;
        if (player->log != NULL)
            fprintf(player->log, "  FAILURE: %s\n", player->failure);
    }
    return false;
}

static void remember(struct player *player)
{
    memcpy(player->before, player->world.control, player->world.layout.control_bytes);
    memcpy(player->before + player->world.layout.control_bytes, player->world.data,
           player->world.layout.data_bytes);
}

/* What a refused call must not have done: changed one byte. */
static bool is_unchanged(const struct player *player, bool is_control_excepted)
{
    const struct kvw_layout *layout = &player->world.layout;

    return (is_control_excepted || memcmp(player->before, player->world.control,
                                          layout->control_bytes) == 0) &&
           memcmp(player->before + layout->control_bytes, player->world.data,
                  layout->data_bytes) == 0;
}

static bool judge(struct player *player, const char *call, uint32_t rank, uint32_t lane,
                  const struct expect *expect, int result)
{
    player->n_calls++;
    player->n_refused += result < 0;
    if (player->log != NULL)
        fprintf(player->log, "  rank %u lane %u: %s -> %d%s%s\n", rank, lane, call,
                result, result < 0 ? " " : "", result < 0 ? kvw_last_error() : "");
    if (!expect_allows(expect, result)) {
        char want[128] = "0";
        size_t at = expect->may_succeed ? 1 : 0;
        for (uint32_t i = 0; i < expect->n_errors && at + 12 < sizeof want; i++)
            at +=
                (size_t)snprintf(want + at, sizeof want - at, " %d", expect->error[i]);
        return player_fail(player, "rank %u lane %u: %s -> %d (%s), want %s", rank,
                           lane, call, result, result < 0 ? kvw_last_error() : "",
                           want);
    }
    if (result < 0 && !is_unchanged(player, false))
        return player_fail(player, "rank %u lane %u: %s -> %d changed something", rank,
                           lane, call, result);
    return true;
}

static bool see_claims(struct player *player, uint32_t rank, uint32_t lane)
{
    const struct m_lane *of = &player->oracle.lane[lane];
    const struct m_board *board = &of->board[rank];
    uint64_t rewinds =
        world_record(&player->world, rank, lane, KVW_RECORD_WORD_REWINDS);

    /* No view of a branch that was left may validate: rewinds only grow. The upper half
     * of the word counts what keep has used again. */
    rewinds &= UINT32_MAX;
    if (world_record(&player->world, rank, lane, KVW_RECORD_WORD_STEP) != board->step ||
        world_record(&player->world, rank, lane, KVW_RECORD_WORD_ERA) != board->era ||
        rewinds != of->step[board->step].rewinds[rank])
        return player_fail(player,
                           "rank %u lane %u: the newest record has rewinds %" PRIu64
                           ", want %" PRIu64,
                           rank, lane, rewinds, of->step[board->step].rewinds[rank]);
    for (uint32_t g = 0; g < player->world.geometry.n_groups; g++) {
        uint64_t hi = world_hi(&player->world, rank, lane, g);
        if (!oracle_see_hi(&player->oracle, rank, lane, g, hi))
            return player_fail(
                player, "rank %u lane %u group %u: hi is %" PRIu64 ", want %" PRIu64,
                rank, lane, g, hi, player->oracle.lane[lane].board[rank].group[g].hi);
    }
    return true;
}

static uint32_t policy_of(const struct player *player, uint32_t seat)
{
    return player->world.seat[seat]->options.pin_policy;
}

static const char *text_of(const char *name, const struct kvw_item *items,
                           uint32_t n_items, char *text, size_t n_bytes)
{
    size_t at = (size_t)snprintf(text, n_bytes, "%s", name);
    for (uint32_t i = 0; i < n_items && at + 80 < n_bytes; i++) {
        at += (size_t)snprintf(text + at, n_bytes - at, " {g%u row %" PRIu64,
                               items[i].group, items[i].row);
        if (items[i].n > 0)
            at += (size_t)snprintf(text + at, n_bytes - at, " n %" PRIu64, items[i].n);
        if (items[i].has_epoch != 0)
            at += (size_t)snprintf(text + at, n_bytes - at, " epoch %" PRIu64,
                                   items[i].epoch);
        at += (size_t)snprintf(text + at, n_bytes - at, "}");
    }
    return text;
}

bool player_begin(struct player *player, uint32_t rank, uint32_t lane,
                  const struct kvw_item *items, uint32_t n_items)
{
    struct kvw_begun begun[M_GROUPS] = {0};
    struct kvw_begun want[M_GROUPS];
    struct m_pin pins[M_HELD];
    uint32_t n_pins = player_pins(player, pins);
    struct expect expect;
    char text[512];

    oracle_expect_begin(&player->oracle, rank, lane, items, n_items, pins, n_pins,
                        policy_of(player, rank), &expect);
    remember(player);
    int result = kvw_begin(player->world.seat[rank], lane, items, n_items, begun);
    if (!judge(player, text_of("begin", items, n_items, text, sizeof text), rank, lane,
               &expect, result))
        return false;
    if (result < 0)
        return true;
    for (uint32_t i = 0; i < n_items; i++) {
        oracle_begun(&player->oracle, rank, lane, &items[i], &want[i]);
        bool is_empty = want[i].evict_first >= want[i].evict_end;
        if (begun[i].row != want[i].row || begun[i].n != want[i].n ||
            begun[i].position != want[i].position ||
            (is_empty ? begun[i].evict_first != begun[i].evict_end
                      : begun[i].evict_first != want[i].evict_first ||
                            begun[i].evict_end != want[i].evict_end))
            return player_fail(player,
                               "begun of group %u: row %" PRIu64 "+%" PRIu64
                               " position %" PRIu64 " (%" PRIu64 ") evicts %" PRIu64
                               "..%" PRIu64 " (%" PRIu64 "..%" PRIu64 ")",
                               items[i].group, begun[i].row, begun[i].n,
                               begun[i].position, want[i].position,
                               begun[i].evict_first, begun[i].evict_end,
                               want[i].evict_first, want[i].evict_end);
    }
    oracle_begin(&player->oracle, rank, lane, items, n_items, pins, n_pins);
    player_see_revoked(player, pins, n_pins);
    return see_claims(player, rank, lane);
}

static void touch(struct player *player, uint32_t rank, uint32_t lane, uint32_t layer)
{
    uint32_t g = geometry_group_of(&player->world.geometry, layer);
    player->oracle.lane[lane].board[rank].group[g].is_touched = true;
}

static void see_written(struct player *player, uint32_t rank, uint32_t lane,
                        uint32_t layer, uint64_t end)
{
    uint64_t *prefix = &player->oracle.lane[lane].board[rank].layer[layer].prefix;
    *prefix = max_u64(*prefix, end);
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
    remember(player);
    int result = kvw_update(player->world.seat[rank], lane, (struct kvw_layer){layer},
                            row_first, n_rows, source);
    (void)snprintf(text, sizeof text, "update layer %u rows %" PRIu64 "+%" PRIu64,
                   layer, row_first, n_rows);
    if (!judge(player, text, rank, lane, &expect, result))
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
    remember(player);
    int result = kvw_slots(player->world.seat[rank], lane, (struct kvw_layer){layer},
                           row_first, n_rows, &slots);
    (void)snprintf(text, sizeof text, "slots layer %u rows %" PRIu64 "+%" PRIu64, layer,
                   row_first, n_rows);
    if (!judge(player, text, rank, lane, &expect, result))
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
    remember(player);
    result = kvw_written(player->world.seat[rank], lane, (struct kvw_layer){layer},
                         row_first, n_rows);
    (void)snprintf(text, sizeof text, "written layer %u rows %" PRIu64 "+%" PRIu64,
                   layer, row_first, n_rows);
    if (!judge(player, text, rank, lane, &expect, result))
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

bool player_commit(struct player *player, uint32_t rank, uint32_t lane,
                   const uint64_t *publish)
{
    const struct m_board *board = &player->oracle.lane[lane].board[rank];
    struct kvw_item items[M_GROUPS] = {0};
    uint32_t n_items = 0;
    struct expect expect;
    char text[512];

    for (uint32_t g = 0; publish != NULL && g < player->world.geometry.n_groups; g++) {
        if (board->group[g].n > 0)
            items[n_items++] = (struct kvw_item){.group = g, .n = publish[g]};
    }
    oracle_expect_commit(&player->oracle, rank, lane, n_items > 0 ? publish : NULL,
                         &expect);
    remember(player);
    int result =
        kvw_commit(player->world.seat[rank], lane, n_items > 0 ? items : NULL, n_items);
    if (!judge(player, text_of("commit", items, n_items, text, sizeof text), rank, lane,
               &expect, result))
        return false;
    if (result < 0)
        return true;
    oracle_commit(&player->oracle, rank, lane, n_items > 0 ? publish : NULL);
    return see_claims(player, rank, lane);
}

bool player_abort(struct player *player, uint32_t rank, uint32_t lane)
{
    struct expect expect;

    expect_init(&expect);
    remember(player);
    int result = kvw_abort(player->world.seat[rank], lane);
    if (!judge(player, "abort", rank, lane, &expect, result))
        return false;
    oracle_abort(&player->oracle, rank, lane);
    return see_claims(player, rank, lane);
}

static int call_step(struct kvw_cache *cache, uint32_t lane, const struct m_call *call)
{
    switch (call->kind) {
    case M_TRUNCATE:
        return kvw_truncate(cache, lane, call->item, call->n_items);
    case M_EVICT:
        return kvw_evict(cache, lane, call->item, call->n_items);
    case M_KEEP:
        return kvw_keep(cache, lane, call->item, call->n_items);
    case M_RESET:
        return kvw_reset(cache, lane, call->n_items > 0 ? call->item : NULL,
                         call->n_items);
    case M_RESET_LAYER:
        return kvw_reset_layer(cache, lane, (struct kvw_layer){call->layer});
    case M_COMMIT:
    default:
        return -ENOSYS;
    }
}

/* Where the library has put the rows that a call keeps: from its own record. */
static void see_extents(const struct player *player, uint32_t rank, uint32_t lane,
                        const struct m_call *call, uint64_t extent[M_GROUPS])
{
    for (uint32_t i = 0; i < call->n_items && call->kind == M_KEEP; i++) {
        uint32_t base = KVW_RECORD_WORD_GROUPS +
                        call->item[i].group * (uint32_t)KVW_RECORD_GROUP_WORDS + 4;
        for (uint32_t k = 0; k < KVW_KEPT_MAX; k++) {
            uint32_t at = base + 3 * k;
            if (world_record(&player->world, rank, lane, at) == call->item[i].row &&
                world_record(&player->world, rank, lane, at + 1) == call->item[i].n)
                extent[i] = world_record(&player->world, rank, lane, at + 2);
        }
    }
}

bool player_step(struct player *player, uint32_t rank, uint32_t lane,
                 const struct m_call *call)
{
    static const char *const name[] = {
        [M_COMMIT] = "commit", [M_TRUNCATE] = "truncate",
        [M_EVICT] = "evict",   [M_KEEP] = "keep",
        [M_RESET] = "reset",   [M_RESET_LAYER] = "reset layer",
    };
    struct m_pin pins[M_HELD];
    uint32_t n_pins = player_pins(player, pins);
    uint64_t extent[M_GROUPS] = {0};
    struct expect expect;
    char text[512];

    oracle_expect_step(&player->oracle, rank, lane, call, pins, n_pins,
                       policy_of(player, rank), &expect);
    remember(player);
    int result = call_step(player->world.seat[rank], lane, call);
    text_of(name[call->kind], call->item, call->n_items, text, sizeof text);
    if (call->kind == M_RESET_LAYER)
        (void)snprintf(text, sizeof text, "reset layer %u", call->layer);
    if (!judge(player, text, rank, lane, &expect, result))
        return false;
    if (result < 0)
        return true;
    see_extents(player, rank, lane, call, extent);
    for (uint32_t i = 0; i < call->n_items && call->kind == M_KEEP; i++) {
        for (uint32_t k = 0; k < n_pins; k++) {
            if (oracle_shares_extent(&player->oracle, &pins[k], rank, lane,
                                     call->item[i].group) &&
                pins[k].keep_first < extent[i] + call->item[i].n &&
                extent[i] < pins[k].keep_end)
                pins[k].is_revoked = true;
        }
    }
    if (policy_of(player, rank) == KVW_PIN_REVOKE)
        player_see_revoked(player, pins, n_pins);
    if (!oracle_step(&player->oracle, rank, lane, call, extent))
        return player_fail(player,
                           "rank %u lane %u: keeps rows in another extent than "
                           "the ranks before it",
                           rank, lane);
    return see_claims(player, rank, lane);
}

bool player_recover(struct player *player, uint32_t rank, uint32_t lane)
{
    const uint64_t step =
        oracle_min_step(&player->oracle, lane, oracle_ranks(&player->oracle, lane));
    struct expect expect;
    uint64_t seen = UINT64_MAX;

    oracle_expect_recover(&player->oracle, rank, lane, &expect);
    remember(player);
    int result = kvw_recover(player->world.seat[rank], lane, 0, &seen);
    player->n_calls++;
    player->n_refused += result < 0;
    if (player->log != NULL)
        fprintf(player->log, "  rank %u lane %u: recover -> %d step %" PRIu64 " %s\n",
                rank, lane, result, seen, result < 0 ? kvw_last_error() : "");
    if (!expect_allows(&expect, result))
        return player_fail(player, "rank %u lane %u: recover -> %d (%s)", rank, lane,
                           result, result < 0 ? kvw_last_error() : "");
    if (!is_unchanged(player, true))
        return player_fail(player, "recover wrote rows");
    if (result == 0 && seen != step)
        return player_fail(player, "recover: step %" PRIu64 ", want %" PRIu64, seen,
                           step);
    oracle_recover(&player->oracle, rank, lane, result == 0);
    if (result == 0)
        return see_claims(player, rank, lane);
    /* The promise stands; whether the open chunk survives a failed recovery is open. */
    return player_abort(player, rank, lane);
}
