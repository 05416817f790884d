/* SPDX-License-Identifier: Apache-2.0 */
/* The open chunk: what begin may answer, the rows that it claims, which pins it goes
 * over, and its end without a commit. */
#include "tests/model/oracle_rules.h"

#include <errno.h>

#include "proto/base/align.h"

static uint64_t open_hi(const struct oracle *oracle, const struct m_board *board,
                        const struct m_group *at, const struct kvw_item *item,
                        bool is_back)
{
    const struct m_open *open = &board->group[item->group];
    uint64_t hi = is_back ? open->hi_before : open->hi;

    if (at->rows <= oracle->geometry->group[item->group].sink_rows)
        return item->row + item->n;
    return max_u64(hi, item->row + item->n);
}

/* True if the open chunk's claim may be taken back, for nothing was done with it. */
static bool may_go_back(const struct m_board *board, uint32_t group)
{
    return board->is_open && board->group[group].n > 0 &&
           !board->group[group].is_touched;
}

static bool is_conflict(const struct oracle *oracle, uint32_t group,
                        uint64_t generation, uint64_t low, uint64_t end,
                        const struct m_group *at, uint64_t hi)
{
    return generation != at->generation || end > at->rows ||
           (end > oracle->geometry->group[group].sink_rows &&
            low + oracle_ring_rows(oracle, group) < hi);
}

static bool is_in_scope(const struct m_pin *pin, uint32_t rank, uint32_t lane,
                        uint32_t group)
{
    return pin->lane == lane && pin->group == group && (pin->ranks >> rank & 1) != 0;
}

static bool is_pin_conflict(const struct oracle *oracle, const struct m_pin *pin,
                            const struct m_group *at, uint64_t hi)
{
    return is_conflict(oracle, pin->group, pin->generation, pin->low, pin->end, at, hi);
}

/* Peers that are ahead may have gone back to a window that the chunk would overwrite on
 * this rank, which could then never follow them. */
static void expect_ahead(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                         uint32_t group, const struct m_group *at, uint64_t hi,
                         struct expect *expect)
{
    const struct m_lane *of = &oracle->lane[lane];
    const uint64_t own = of->board[rank].step;
    uint64_t last = own;

    for (uint32_t peer = 0; peer < oracle->geometry->n_ranks; peer++) {
        if (of->board[peer].is_held && of->board[peer].era == of->board[rank].era)
            last = max_u64(last, of->board[peer].step);
    }
    for (uint64_t step = own + 1; step <= last; step++) {
        const struct m_group *held = &of->step[step].record.group[group];
        if (held->generation == at->generation &&
            held->rows > oracle->geometry->group[group].sink_rows &&
            oracle_low(oracle, group, held, 0) + oracle_ring_rows(oracle, group) < hi)
            expect_error(expect, -KVW_EDIVERGED);
    }
}

/* Records from the slowest rank's to one's own, and pins, against one item. */
static void expect_holders(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                           const struct kvw_item *item, const struct m_pin *pins,
                           uint32_t n_pins, uint32_t policy, struct expect *expect)
{
    const struct m_lane *of = &oracle->lane[lane];
    const struct m_board *own = &of->board[rank];
    const uint32_t group = item->group;
    const struct m_group *at = &oracle_record(oracle, lane, rank)->group[group];
    uint64_t hi = open_hi(oracle, own, at, item, false);
    uint64_t hi_back =
        may_go_back(own, group) ? open_hi(oracle, own, at, item, true) : hi;

    for (uint64_t step = oracle_min_step(oracle, lane, oracle_ranks(oracle, lane));
         step < own->step; step++) {
        const struct m_group *held = &of->step[step].record.group[group];
        uint64_t low = oracle_low(oracle, group, held, 0);
        if (is_conflict(oracle, group, held->generation, low, held->rows, at, hi)) {
            bool is_certain = is_conflict(oracle, group, held->generation, low,
                                          held->rows, at, hi_back);
            expect_laggards(oracle, lane, step, expect);
            expect->may_succeed = expect->may_succeed || !is_certain;
        }
    }
    expect_ahead(oracle, rank, lane, group, at, hi, expect);
    for (uint32_t i = 0; i < n_pins; i++) {
        const struct m_pin *pin = &pins[i];
        if (!is_in_scope(pin, rank, lane, group) ||
            !is_pin_conflict(oracle, pin, at, hi))
            continue;
        bool is_certain = is_pin_conflict(oracle, pin, at, hi_back);
        if (policy == KVW_PIN_REVOKE && pin->seat != rank)
            continue;
        if (policy == KVW_PIN_REVOKE || !is_certain)
            expect_maybe(expect, -EBUSY);
        else
            expect_error(expect, -EBUSY);
    }
}

/* A peer is ahead, and no commit of this chunk is its step. Of the epochs a begin may
 * speak already, or leave them to the commit. */
static void expect_no_divergence(const struct oracle *oracle, uint32_t lane,
                                 uint32_t rank, const struct kvw_item *items,
                                 uint32_t n_items, bool is_repeated,
                                 struct expect *expect)
{
    const struct m_lane *of = &oracle->lane[lane];
    const struct m_record *own = oracle_record(oracle, lane, rank);
    uint64_t publish[M_GROUPS] = {0};
    struct m_record next;

    if (of->board[rank].step + 1 >= of->n_steps)
        return;
    const struct m_record *peer = &of->step[of->board[rank].step + 1].record;
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t g = items[i].group;
        uint64_t grown =
            peer->group[g].rows - own->group[g].rows; /* huge if it shrank */
        publish[g] = min_u64(items[i].n, grown);
    }
    record_commit(own, items, n_items, publish, &next);
    if (record_is_same(oracle, &next, peer))
        return;
    expect_maybe(expect, -KVW_EDIVERGED);
    for (uint32_t g = 0; g < oracle->geometry->n_groups; g++)
        next.group[g].epoch = peer->group[g].epoch;
    if (!is_repeated && !record_is_same(oracle, &next, peer))
        expect_error(expect, -KVW_EDIVERGED);
}

bool oracle_is_same(const struct m_board *board, const struct kvw_item *items,
                    uint32_t n_items)
{
    uint32_t found = 0;

    if (!board->is_open || n_items != board->n_begun)
        return false;
    for (uint32_t i = 0; i < n_items; i++) {
        for (uint32_t k = 0; k < n_items; k++) {
            const struct m_open *open = &board->group[board->begun[k].group];
            uint64_t epoch =
                items[i].has_epoch != 0 ? items[i].epoch : open->epoch_before;
            if (items[i].group == board->begun[k].group &&
                items[i].row == board->begun[k].row && items[i].n == open->n &&
                epoch == open->epoch)
                found |= 1u << k;
        }
    }
    return found == (1u << n_items) - 1;
}

void oracle_expect_begin(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                         const struct kvw_item *items, uint32_t n_items,
                         const struct m_pin *pins, uint32_t n_pins, uint32_t policy,
                         struct expect *expect)
{
    const struct m_board *own = &oracle->lane[lane].board[rank];
    bool is_valid = expect_vector(oracle, items, n_items);

    expect_init(expect);
    if (own->ask != own->era)
        expect_error(expect, -ESTALE);
    if (oracle_is_same(own, items, n_items)) {
        expect_no_divergence(oracle, lane, rank, items, n_items, true, expect);
        return;
    }
    if (!is_valid)
        expect_error(expect, -EINVAL);
    expect_gate(oracle, rank, lane, expect);
    for (uint32_t i = 0; i < n_items; i++) {
        if (items[i].group >= oracle->geometry->n_groups)
            continue;
        const struct kvw_geometry_group *of = &oracle->geometry->group[items[i].group];
        const struct m_group *at =
            &oracle_record(oracle, lane, rank)->group[items[i].group];
        bool is_ok = is_valid && items[i].row == at->rows && items[i].n > 0 &&
                     items[i].n <= of->chunk_rows_max;
        if (!is_ok)
            expect_error(expect, -EINVAL);
        if (of->policy == KVW_GEOMETRY_REFUSE &&
            at->rows + items[i].n > of->window_rows)
            expect_error(expect, -ENOSPC);
        if (is_ok)
            expect_holders(oracle, rank, lane, &items[i], pins, n_pins, policy, expect);
    }
    if (is_valid)
        expect_no_divergence(oracle, lane, rank, items, n_items, false, expect);
}

void oracle_begun(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                  const struct kvw_item *item, struct kvw_begun *begun)
{
    const struct kvw_geometry_group *of = &oracle->geometry->group[item->group];
    const struct m_group *at = &oracle_record(oracle, lane, rank)->group[item->group];
    uint64_t ahead = of->kind == KVW_GEOMETRY_ROW ? 1 : item->n;
    uint64_t low = oracle_low(oracle, item->group, at, 0);
    uint64_t staged_low = oracle_low(oracle, item->group, at, ahead);
    uint64_t before = min_u64(at->rows, of->sink_rows) +
                      (at->rows > staged_low ? at->rows - staged_low : 0);

    /* Kept rows that the chunk's last query does not find in the ring. */
    uint64_t last_low = oracle_low(oracle, item->group, at, item->n);
    for (uint32_t k = 0; k < at->n_kept; k++) {
        for (uint64_t row = at->kept[k].first; row < at->kept[k].first + at->kept[k].n;
             row++)
            before += row < last_low;
    }
    *begun = (struct kvw_begun){.row = item->row, .n = item->n};
    begun->position = of->positions == KVW_GEOMETRY_ABSOLUTE ? item->row : before;
    begun->evict_first = min_u64(low, at->rows);
    begun->evict_end = min_u64(staged_low, at->rows);
}

void oracle_abort(struct oracle *oracle, uint32_t rank, uint32_t lane)
{
    struct m_board *board = &oracle->lane[lane].board[rank];

    if (!board->is_open)
        return;
    board->is_open = false;
    board->claim++;
    for (uint32_t g = 0; g < oracle->geometry->n_groups; g++)
        board->group[g].n = 0;
    for (uint32_t layer = 0; layer < oracle->geometry->n_layers; layer++)
        board->layer[layer].prefix = 0;
}

void oracle_begin(struct oracle *oracle, uint32_t rank, uint32_t lane,
                  const struct kvw_item *items, uint32_t n_items, struct m_pin *pins,
                  uint32_t n_pins)
{
    struct m_board *board = &oracle->lane[lane].board[rank];
    const struct m_record *record = oracle_record(oracle, lane, rank);

    if (oracle_is_same(board, items, n_items))
        return;
    for (uint32_t g = 0; g < oracle->geometry->n_groups; g++) {
        if (!may_go_back(board, g))
            board->group[g].hi_before = board->group[g].hi;
    }
    oracle_abort(oracle, rank, lane);
    for (uint32_t i = 0; i < n_items; i++) {
        struct m_open *open = &board->group[items[i].group];
        const struct m_group *at = &record->group[items[i].group];
        uint64_t hi = open_hi(oracle, board, at, &items[i], false);
        for (uint32_t k = 0; k < n_pins; k++) {
            if (is_in_scope(&pins[k], rank, lane, items[i].group) &&
                is_pin_conflict(oracle, &pins[k], at, hi))
                pins[k].is_revoked = true;
        }
        open->n = items[i].n;
        open->epoch_before = at->epoch;
        open->epoch = items[i].has_epoch != 0 ? items[i].epoch : at->epoch;
        open->is_touched = false;
        /* The board shows which of the two it is: oracle_see_hi(). */
        open->hi = hi;
        board->begun[i] = items[i];
    }
    for (uint32_t layer = 0; layer < oracle->geometry->n_layers; layer++) {
        board->layer[layer].passes = board->layer[layer].read = 0;
        board->layer[layer].is_writing = false;
    }
    board->is_open = true;
    board->n_begun = n_items;
    board->claim++;
}

bool oracle_see_hi(struct oracle *oracle, uint32_t rank, uint32_t lane, uint32_t group,
                   uint64_t hi)
{
    struct m_open *open = &oracle->lane[lane].board[rank].group[group];

    if (hi == open->hi) {
        if (open->n == 0)
            open->hi_before = hi;
        return true;
    }
    const struct m_group *at = &oracle_record(oracle, lane, rank)->group[group];
    if (open->is_touched)
        return false;
    uint64_t back = open->hi_before;
    if (open->n > 0)
        back = at->rows <= oracle->geometry->group[group].sink_rows
                   ? at->rows + open->n
                   : max_u64(back, at->rows + open->n);
    if (hi != back)
        return false;
    open->hi = hi;
    if (open->n == 0)
        open->hi_before = hi;
    return true;
}
