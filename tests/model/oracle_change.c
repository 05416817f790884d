/* SPDX-License-Identifier: Apache-2.0 */
/* What a call that succeeds changes: the record that follows from a record, the steps
 * of a lane, and the versions of rows that a rank has committed. */
#include "tests/model/oracle_rules.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/align.h"

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

bool record_is_same(const struct oracle *oracle, const struct m_record *a,
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

void record_commit(const struct m_record *from, const struct kvw_item *items,
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

void record_step(const struct oracle *oracle, const struct m_record *record,
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
    record_commit(record, board->begun, board->n_begun, publish, &next);
    oracle_abort(oracle, rank, lane);
    (void)advance(oracle, rank, lane, &call, &next, false);
}

bool oracle_step(struct oracle *oracle, uint32_t rank, uint32_t lane,
                 const struct m_call *call, const uint64_t *extent)
{
    struct m_record next;

    record_step(oracle, oracle_record(oracle, lane, rank), call, extent, &next);
    oracle_abort(oracle, rank, lane);
    return advance(oracle, rank, lane, call, &next,
                   call->kind == M_TRUNCATE || call->kind == M_RESET);
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
