/* SPDX-License-Identifier: Apache-2.0 */
/* Expectations: how they are noted, what every call is checked for (waits, recoveries,
 * vectors of items), and what writes, commit and recover may answer. */
#include "tests/model/oracle_rules.h"

#include <errno.h>

#include "proto/base/check.h"

void expect_init(struct expect *expect)
{
    *expect = (struct expect){.may_succeed = true, .must_succeed = true};
}

void expect_maybe(struct expect *expect, int error)
{
    expect->must_succeed = false;
    KVW_CHECK(expect->n_errors < M_ERRORS);
    for (uint32_t i = 0; i < expect->n_errors; i++) {
        if (expect->error[i] == error)
            return;
    }
    expect->error[expect->n_errors++] = error;
}

void expect_error(struct expect *expect, int error)
{
    expect_maybe(expect, error);
    expect->may_succeed = false;
}

bool expect_allows(const struct expect *expect, int result)
{
    if (result >= 0)
        return expect->may_succeed;
    for (uint32_t i = 0; i < expect->n_errors; i++) {
        if (expect->error[i] == result)
            return true;
    }
    return false;
}

/* A rank is waited for: what a wait with no time says of it. */
static void expect_blocked(const struct oracle *oracle, uint32_t rank,
                           struct expect *expect)
{
    if (oracle->seat[rank] != KVW_SEAT_OWNED)
        expect_error(expect, -EOWNERDEAD);
    if (oracle->seat[rank] != KVW_SEAT_DEAD)
        expect_error(expect, -ETIMEDOUT);
}

void expect_laggards(const struct oracle *oracle, uint32_t lane, uint64_t step,
                     struct expect *expect)
{
    const struct m_lane *of = &oracle->lane[lane];

    for (uint32_t rank = 0; rank < oracle->geometry->n_ranks; rank++) {
        if (of->board[rank].is_held && of->board[rank].step <= step)
            expect_blocked(oracle, rank, expect);
    }
    if (of->outside <= step) { /* nobody to wait for here: it may answer at once */
        expect_error(expect, -ETIMEDOUT);
        expect_error(expect, -EAGAIN);
    }
}

void expect_gate(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                 struct expect *expect)
{
    const struct m_lane *of = &oracle->lane[lane];
    const struct m_board *own = &of->board[rank];
    uint64_t min_step = oracle_min_step(oracle, lane, oracle_ranks(oracle, lane));

    if (own->ask != own->era)
        expect_error(expect, -ESTALE);
    for (uint32_t peer = 0; peer < oracle->geometry->n_ranks; peer++) {
        if (of->board[peer].is_held && of->board[peer].era < own->era)
            expect_blocked(oracle, peer, expect);
    }
    if (own->step + 1 > min_step + KVW_RECORDS - 2)
        expect_laggards(oracle, lane, own->step + 1 - (KVW_RECORDS - 1), expect);
}

bool expect_vector(const struct oracle *oracle, const struct kvw_item *items,
                   uint32_t n_items)
{
    for (uint32_t i = 0; i < n_items; i++) {
        if (items[i].group >= oracle->geometry->n_groups)
            return false;
        for (uint32_t k = 0; k < i; k++) {
            if (items[k].group == items[i].group)
                return false;
        }
    }
    return true;
}

void oracle_expect_write(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                         uint32_t layer, uint64_t row_first, uint64_t n_rows,
                         bool is_gap_refused, struct expect *expect)
{
    const struct m_board *board = &oracle->lane[lane].board[rank];
    uint32_t group = geometry_group_of(oracle->geometry, layer);

    expect_init(expect);
    if (!oracle_holds(oracle, layer, rank))
        expect_error(expect, -ERANGE);
    if (row_first + n_rows > board->group[group].n)
        expect_error(expect, -EINVAL);
    if (is_gap_refused && row_first > oracle_prefix(oracle, lane, rank, layer))
        expect_error(expect, -EINVAL);
}

void oracle_expect_commit(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                          const uint64_t *publish, struct expect *expect)
{
    const struct m_lane *of = &oracle->lane[lane];
    const struct m_board *board = &of->board[rank];

    expect_init(expect);
    if (board->ask != board->era)
        expect_error(expect, -ESTALE);
    if (!board->is_open) {
        expect_error(expect, -EINVAL);
        return;
    }
    bool is_valid = true;
    for (uint32_t layer = 0; layer < oracle->geometry->n_layers; layer++) {
        uint32_t g = geometry_group_of(oracle->geometry, layer);
        uint64_t n = publish == NULL ? board->group[g].n : publish[g];
        if (n > board->group[g].n) {
            expect_error(expect, -EINVAL);
            is_valid = false;
        } else if (oracle_holds(oracle, layer, rank) &&
                   oracle_prefix(oracle, lane, rank, layer) < n) {
            expect_error(expect, -KVW_EINCOMPLETE);
        }
    }
    struct m_record next;
    record_commit(oracle_record(oracle, lane, rank), board->begun, board->n_begun,
                  publish, &next);
    if (is_valid && board->step + 1 < of->n_steps &&
        !record_is_same(oracle, &next, &of->step[board->step + 1].record))
        expect_error(expect, -KVW_EDIVERGED);
}

void oracle_expect_recover(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                           struct expect *expect)
{
    const struct m_lane *of = &oracle->lane[lane];
    uint64_t ask = of->board[rank].era + 1;

    expect_init(expect);
    for (uint32_t peer = 0; peer < oracle->geometry->n_ranks; peer++) {
        if (peer != rank && of->board[peer].is_held && of->board[peer].ask < ask)
            expect_blocked(oracle, peer, expect);
    }
}
