/* SPDX-License-Identifier: Apache-2.0 */
/* What each call may answer, and what a success changes. */
#include "tests/model/oracle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/align.h"

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

/* All that stand at `step` or before are waited for. */
static void expect_laggards(const struct oracle *oracle, uint32_t lane, uint64_t step,
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

/* Recoveries, and the room for one more record. */
static void expect_gate(const struct oracle *oracle, uint32_t rank, uint32_t lane,
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

static bool is_same_kept(const struct m_group *a, const struct m_group *b)
{
    uint32_t n_found = 0;
    for (uint32_t i = 0; i < a->n_kept; i++) {
        for (uint32_t k = 0; k < b->n_kept; k++)
            n_found +=
                a->kept[i].first == b->kept[k].first && a->kept[i].n == b->kept[k].n;
    }
    return a->n_kept == b->n_kept && n_found == a->n_kept;
}

/* Equal but for where kept rows lie. */
static bool is_same_record(const struct oracle *oracle, const struct m_record *a,
                           const struct m_record *b)
{
    for (uint32_t g = 0; g < oracle->geometry->n_groups; g++) {
        const struct m_group *of = &a->group[g];
        const struct m_group *other = &b->group[g];
        if (of->rows != other->rows || of->evicted != other->evicted ||
            of->generation != other->generation || of->epoch != other->epoch ||
            !is_same_kept(of, other))
            return false;
    }
    return memcmp(a->floor, b->floor, sizeof a->floor) == 0;
}

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

/* Ranks that share the rows of a layer share its keep extent: a slot of it may be
 * another rank's each time. */
bool oracle_shares_extent(const struct oracle *oracle, const struct m_pin *pin,
                          uint32_t rank, uint32_t lane, uint32_t group)
{
    const uint32_t row_parts = oracle->geometry->partition.row_parts;
    const uint64_t of_layer = ((1ull << row_parts) - 1) << rank / row_parts * row_parts;

    return pin->lane == lane && pin->group == group && (pin->ranks & of_layer) != 0;
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

/* Numbers of a vector of items: in range, and no group twice. */
static bool is_vector(const struct oracle *oracle, const struct kvw_item *items,
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

static void commit_of(const struct m_record *from, const struct kvw_item *items,
                      uint32_t n_items, const uint64_t *publish, struct m_record *to)
{
    *to = *from;
    for (uint32_t i = 0; i < n_items; i++) {
        struct m_group *at = &to->group[items[i].group];
        at->rows += publish == NULL ? items[i].n : publish[items[i].group];
        if (items[i].has_epoch != 0)
            at->epoch = items[i].epoch;
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
    commit_of(own, items, n_items, publish, &next);
    if (is_same_record(oracle, &next, peer))
        return;
    expect_maybe(expect, -KVW_EDIVERGED);
    for (uint32_t g = 0; g < oracle->geometry->n_groups; g++)
        next.group[g].epoch = peer->group[g].epoch;
    if (!is_repeated && !is_same_record(oracle, &next, peer))
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
    bool is_valid = is_vector(oracle, items, n_items);

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
    commit_of(oracle_record(oracle, lane, rank), board->begun, board->n_begun, publish,
              &next);
    if (is_valid && board->step + 1 < of->n_steps &&
        !is_same_record(oracle, &next, &of->step[board->step + 1].record))
        expect_error(expect, -KVW_EDIVERGED);
}

/* Put a rank at a new step; the lane learns it if the rank is the first. */
static bool advance(struct oracle *oracle, uint32_t rank, uint32_t lane,
                    const struct m_call *call, const struct m_record *next,
                    bool is_rewind)
{
    struct m_lane *of = &oracle->lane[lane];
    struct m_board *board = &of->board[rank];
    uint64_t rewinds = of->step[board->step].rewinds[rank] + (is_rewind ? 1 : 0);
    bool is_same = true;

    board->step++;
    if (board->step == of->n_steps) {
        if (of->n_steps == of->steps_max) {
            of->steps_max *= 2;
            of->step = realloc(of->step, of->steps_max * sizeof *of->step);
            KVW_CHECK(of->step != NULL);
        }
        of->step[of->n_steps++] = (struct m_step){.record = *next, .call = *call};
    } else {
        const struct m_record *first = &of->step[board->step].record;
        for (uint32_t g = 0; g < oracle->geometry->n_groups; g++) {
            for (uint32_t k = 0; k < next->group[g].n_kept; k++)
                is_same =
                    is_same && memcmp(&next->group[g].kept[k], &first->group[g].kept[k],
                                      sizeof(struct m_kept)) == 0;
        }
    }
    of->step[board->step].rewinds[rank] = rewinds;
    return is_same;
}

static void add_version(struct m_layer *layer, struct m_version version)
{
    if (layer->n_versions == layer->versions_max) {
        layer->versions_max = layer->versions_max == 0 ? 64 : 2 * layer->versions_max;
        layer->version =
            realloc(layer->version, layer->versions_max * sizeof *layer->version);
        KVW_CHECK(layer->version != NULL);
    }
    layer->version[layer->n_versions++] = version;
}

void oracle_commit(struct oracle *oracle, uint32_t rank, uint32_t lane,
                   const uint64_t *publish)
{
    struct m_board *board = &oracle->lane[lane].board[rank];
    const struct m_record *record = oracle_record(oracle, lane, rank);
    struct m_call call = {.kind = M_COMMIT, .n_items = board->n_begun};
    struct m_record next;

    for (uint32_t layer = 0; layer < oracle->geometry->n_layers; layer++) {
        uint32_t g = geometry_group_of(oracle->geometry, layer);
        uint64_t n = publish == NULL ? board->group[g].n : publish[g];
        call.publish[g] = n;
        for (uint64_t i = 0; i < n && oracle_holds(oracle, layer, rank); i++)
            add_version(&board->layer[layer],
                        (struct m_version){.row = record->group[g].rows + i,
                                           .generation = record->group[g].generation,
                                           .step = board->step + 1,
                                           .stamp = board->layer[layer].stamp[i]});
        /* Published: the claim was used and stays. */
        if (board->group[g].n > 0)
            board->group[g].hi_before = board->group[g].hi;
    }
    memcpy(call.item, board->begun, sizeof call.item);
    commit_of(record, board->begun, board->n_begun, publish, &next);
    oracle_abort(oracle, rank, lane);
    (void)advance(oracle, rank, lane, &call, &next, false);
}

static void truncate_group(const struct oracle *oracle, uint32_t group, uint64_t row,
                           struct m_record *record)
{
    struct m_group *at = &record->group[group];
    const struct kvw_geometry_group *of = &oracle->geometry->group[group];
    uint32_t n_kept = 0;

    at->rows = row;
    at->evicted = min_u64(at->evicted, row);
    for (uint32_t k = 0; k < at->n_kept; k++) {
        struct m_kept kept = at->kept[k];
        if (kept.first < row) {
            kept.n = min_u64(kept.n, row - kept.first);
            at->kept[n_kept++] = kept;
        }
    }
    at->n_kept = n_kept;
    for (uint32_t i = of->layer_first; i < of->layer_first + of->n_layers; i++)
        record->floor[i] = min_u64(record->floor[i], row);
}

static void keep_group(uint64_t first, uint64_t n, uint64_t extent, struct m_group *at)
{
    uint32_t n_kept = 0;

    if (n > 0) {
        if (at->n_kept == KVW_KEPT_MAX)
            return;
        at->kept[at->n_kept++] =
            (struct m_kept){.first = first, .n = n, .extent = extent};
        return;
    }
    for (uint32_t k = 0; k < at->n_kept; k++) {
        if (at->kept[k].first != first)
            at->kept[n_kept++] = at->kept[k];
    }
    at->n_kept = n_kept;
}

static void reset_group(const struct oracle *oracle, uint32_t group,
                        struct m_record *record)
{
    const struct kvw_geometry_group *of = &oracle->geometry->group[group];
    struct m_group *at = &record->group[group];

    *at = (struct m_group){.generation = at->generation + 1, .epoch = at->epoch};
    for (uint32_t i = of->layer_first; i < of->layer_first + of->n_layers; i++)
        record->floor[i] = 0;
}

/* The record after a call that is valid. */
static void next_of(const struct oracle *oracle, const struct m_record *record,
                    const struct m_call *call, const uint64_t *extent,
                    struct m_record *next)
{
    *next = *record;
    if (call->kind == M_RESET_LAYER)
        next->floor[call->layer] =
            record->group[geometry_group_of(oracle->geometry, call->layer)].rows;
    for (uint32_t i = 0; i < call->n_items; i++) {
        const struct kvw_item *item = &call->item[i];
        struct m_group *at = &next->group[item->group];
        if (call->kind == M_TRUNCATE)
            truncate_group(oracle, item->group, item->row, next);
        else if (call->kind == M_EVICT)
            at->evicted = item->row;
        else if (call->kind == M_KEEP)
            keep_group(item->row, item->n, extent == NULL ? 0 : extent[i], at);
        else if (call->kind == M_RESET)
            reset_group(oracle, item->group, next);
        if (item->has_epoch != 0)
            at->epoch = item->epoch;
    }
    for (uint32_t g = 0;
         g < oracle->geometry->n_groups && call->kind == M_RESET && call->n_items == 0;
         g++)
        reset_group(oracle, g, next);
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
    if (!is_vector(oracle, call->item, call->n_items)) {
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
        next_of(oracle, record, call, NULL, &next);
        if (!is_same_record(oracle, &next, &of->step[board->step + 1].record))
            expect_error(expect, -KVW_EDIVERGED);
    }
}

bool oracle_step(struct oracle *oracle, uint32_t rank, uint32_t lane,
                 const struct m_call *call, const uint64_t *extent)
{
    struct m_record next;

    next_of(oracle, oracle_record(oracle, lane, rank), call, extent, &next);
    oracle_abort(oracle, rank, lane);
    return advance(oracle, rank, lane, call, &next,
                   call->kind == M_TRUNCATE || call->kind == M_RESET);
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

void oracle_recover(struct oracle *oracle, uint32_t rank, uint32_t lane,
                    bool is_successful)
{
    struct m_lane *of = &oracle->lane[lane];
    struct m_board *board = &of->board[rank];
    const uint64_t ranks = oracle_ranks(oracle, lane);
    const uint64_t step = oracle_min_step(oracle, lane, ranks);
    bool is_complete = true;

    board->ask = board->era + 1;
    if (!is_successful)
        return;
    uint64_t rewinds = of->step[board->step].rewinds[rank] + 1;
    oracle_abort(oracle, rank, lane);
    board->era++;
    board->step = step;
    of->step[step].rewinds[rank] = rewinds;
    for (uint32_t layer = 0; layer < oracle->geometry->n_layers; layer++) {
        struct m_layer *rows = &board->layer[layer];
        while (rows->n_versions > 0 && rows->version[rows->n_versions - 1].step > step)
            rows->n_versions--;
    }
    for (uint32_t peer = 0; peer < oracle->geometry->n_ranks; peer++)
        is_complete = is_complete &&
                      ((ranks >> peer & 1) == 0 || of->board[peer].era == board->era);
    if (is_complete)
        of->n_steps = (uint32_t)step + 1;
}
