/* SPDX-License-Identifier: Apache-2.0 */
/* What truncate, evict, keep and the resets may answer; mostly, whether kept rows find
 * room in the keep extent. */
#include "tests/model/oracle_rules.h"

#include <errno.h>

/* Ranks that share the rows of a layer share its keep extent: a slot of it may be
 * another rank's each time. */
bool oracle_shares_extent(const struct oracle *oracle, const struct m_pin *pin,
                          uint32_t rank, uint32_t lane, uint32_t group)
{
    const uint32_t row_parts = oracle->geometry->partition.row_parts;
    const uint64_t of_layer = ((1ull << row_parts) - 1) << rank / row_parts * row_parts;

    return pin->lane == lane && pin->group == group && (pin->ranks & of_layer) != 0;
}

/* Rows of the keep extent that something still refers to. */
static uint64_t busy_extent(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                            uint32_t group, const struct m_pin *pins, uint32_t n_pins,
                            uint64_t from_step)
{
    const struct m_lane *of = &oracle->lane[lane];
    uint64_t busy = 0;

    for (uint64_t step = from_step; step <= of->board[rank].step; step++) {
        const struct m_group *at = &of->step[step].record.group[group];
        for (uint32_t k = 0; k < at->n_kept; k++)
            busy |= ((1ull << at->kept[k].n) - 1) << at->kept[k].extent;
    }
    for (uint32_t i = 0; i < n_pins; i++) {
        if (oracle_shares_extent(oracle, &pins[i], rank, lane, group) &&
            pins[i].keep_end > 0)
            busy |= ((1ull << (pins[i].keep_end - pins[i].keep_first)) - 1)
                    << pins[i].keep_first;
    }
    return busy;
}

static bool has_gap(uint64_t busy, uint64_t n, uint64_t keep_rows)
{
    for (uint64_t at = 0; at + n <= keep_rows; at++) {
        if ((busy & (((1ull << n) - 1) << at)) == 0)
            return true;
    }
    return false;
}

/* Room for the copy of kept rows: where a peer is ahead, at the peer's place. */
static void expect_extent(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                          const struct kvw_item *item, const struct m_pin *pins,
                          uint32_t n_pins, uint32_t policy, struct expect *expect)
{
    const struct m_lane *of = &oracle->lane[lane];
    const uint64_t keep_rows = oracle->geometry->group[item->group].keep_rows;
    const uint64_t min_step = oracle_min_step(oracle, lane, oracle_ranks(oracle, lane));
    const uint64_t own = of->board[rank].step;
    uint64_t own_busy = busy_extent(oracle, rank, lane, item->group, pins, 0, own);
    uint64_t busy = busy_extent(oracle, rank, lane, item->group, pins, 0, min_step);
    for (uint32_t i = 0; i < n_pins; i++) {
        /* The place is one for all ranks: any pin on it may be respected. */
        if (pins[i].lane == lane && pins[i].group == item->group &&
            pins[i].keep_end > 0)
            expect_maybe(expect, -EBUSY);
    }
    uint64_t all_busy =
        busy_extent(oracle, rank, lane, item->group, pins, n_pins, min_step);

    if (own + 1 < of->n_steps) {
        const struct m_group *peer = &of->step[own + 1].record.group[item->group];
        for (uint32_t k = 0; k < peer->n_kept; k++) {
            uint64_t place = ((1ull << peer->kept[k].n) - 1) << peer->kept[k].extent;
            if (peer->kept[k].first != item->row)
                continue;
            if ((busy & place) != 0)
                expect_laggards(oracle, lane, own, expect);
            else if ((all_busy & place) != 0 && policy != KVW_PIN_REVOKE)
                expect_error(expect, -EBUSY);
        }
        if (all_busy != busy)
            expect_maybe(expect, -EBUSY);
        if (busy != own_busy) {
            bool may_succeed = expect->may_succeed;
            expect_laggards(oracle, lane, own - 1, expect);
            expect->may_succeed = may_succeed;
        }
        return;
    }
    if (!has_gap(own_busy, item->n, keep_rows))
        expect_error(expect, -ENOSPC);
    /* All ranks must choose the same place, whoever is first: a library may choose by
     * the record alone and then wait for just that place. */
    if (busy != own_busy) {
        bool is_certain = !has_gap(busy, item->n, keep_rows);
        bool may_succeed = expect->may_succeed && !is_certain;
        expect_laggards(oracle, lane, own - 1, expect);
        expect->may_succeed = may_succeed;
    }
    if (all_busy != busy) /* no release could tell of it: it need not revoke */
        expect_maybe(expect, -EBUSY);
    if (!has_gap(all_busy, item->n, keep_rows) && policy != KVW_PIN_REVOKE)
        expect_error(expect, -EBUSY);
}

static void expect_keep(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                        const struct kvw_item *item, const struct m_pin *pins,
                        uint32_t n_pins, uint32_t policy, struct expect *expect)
{
    const struct m_group *at = &oracle_record(oracle, lane, rank)->group[item->group];
    uint64_t n_all = item->n;
    bool is_valid = true;
    bool is_there = false;

    for (uint32_t k = 0; k < at->n_kept; k++) {
        const struct m_kept *kept = &at->kept[k];
        n_all += kept->n;
        is_there |= kept->first == item->row;
        if (item->n > 0 && item->row < kept->first + kept->n &&
            kept->first < item->row + item->n)
            is_valid = false;
    }
    if (item->n == 0) {
        if (!is_there)
            expect_error(expect, -EINVAL);
        return;
    }
    if (!is_valid || item->row < oracle_low(oracle, item->group, at, 0) ||
        item->row + item->n > at->rows) {
        expect_error(expect, -EINVAL);
        is_valid = false;
    }
    if (n_all > oracle->geometry->group[item->group].keep_rows) {
        expect_error(expect, -ENOSPC);
        is_valid = false;
    }
    if (at->n_kept == KVW_KEPT_MAX) {
        expect_error(expect, -EMFILE);
        is_valid = false;
    }
    if (is_valid)
        expect_extent(oracle, rank, lane, item, pins, n_pins, policy, expect);
}

void oracle_expect_step(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                        const struct m_call *call, const struct m_pin *pins,
                        uint32_t n_pins, uint32_t policy, struct expect *expect)
{
    const struct m_lane *of = &oracle->lane[lane];
    const struct m_board *board = &of->board[rank];
    const struct m_record *record = oracle_record(oracle, lane, rank);
    struct m_record next;

    expect_init(expect);
    expect_gate(oracle, rank, lane, expect);
    if (call->kind == M_RESET_LAYER && !oracle_holds(oracle, call->layer, rank))
        expect_maybe(expect, -ERANGE);
    if (!expect_vector(oracle, call->item, call->n_items)) {
        expect_error(expect, -EINVAL);
        return;
    }
    for (uint32_t i = 0; i < call->n_items; i++) {
        const struct kvw_item *item = &call->item[i];
        const struct m_group *at = &record->group[item->group];
        if (call->kind == M_TRUNCATE &&
            !oracle_may_truncate(oracle, lane, rank, item->group, item->row)) {
            expect_error(expect, -ERANGE);
            if (item->row > at->rows)
                expect_error(expect, -EINVAL);
        }
        if (call->kind == M_EVICT && (item->row < at->evicted || item->row > at->rows))
            expect_error(expect, -EINVAL);
        if (call->kind == M_KEEP)
            expect_keep(oracle, rank, lane, item, pins, n_pins, policy, expect);
    }
    if (board->step + 1 < of->n_steps) {
        record_step(oracle, record, call, NULL, &next);
        if (!record_is_same(oracle, &next, &of->step[board->step + 1].record))
            expect_error(expect, -KVW_EDIVERGED);
    }
}
