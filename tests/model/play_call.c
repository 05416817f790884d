/* SPDX-License-Identifier: Apache-2.0 */
/* One call of the library at a time: what it may answer, what it changes, and that a
 * refusal changes nothing. Writes of rows are in play_fill.c. */
#include "tests/model/play_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

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

void call_remember(struct player *player)
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

bool call_judge(struct player *player, const char *call, uint32_t rank, uint32_t lane,
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
    call_remember(player);
    int result = kvw_begin(player->world.seat[rank], lane, items, n_items, begun);
    if (!call_judge(player, text_of("begin", items, n_items, text, sizeof text), rank,
                    lane, &expect, result))
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
    call_remember(player);
    int result =
        kvw_commit(player->world.seat[rank], lane, n_items > 0 ? items : NULL, n_items);
    if (!call_judge(player, text_of("commit", items, n_items, text, sizeof text), rank,
                    lane, &expect, result))
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
    call_remember(player);
    int result = kvw_abort(player->world.seat[rank], lane);
    if (!call_judge(player, "abort", rank, lane, &expect, result))
        return false;
    oracle_abort(&player->oracle, rank, lane);
    return see_claims(player, rank, lane);
}

int call_make(struct kvw_cache *cache, uint32_t lane, const struct m_call *call)
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
    call_remember(player);
    int result = call_make(player->world.seat[rank], lane, call);
    text_of(name[call->kind], call->item, call->n_items, text, sizeof text);
    if (call->kind == M_RESET_LAYER)
        (void)snprintf(text, sizeof text, "reset layer %u", call->layer);
    if (!call_judge(player, text, rank, lane, &expect, result))
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
    call_remember(player);
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
