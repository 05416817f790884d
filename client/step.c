/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Begin, commit, abort. See step.h for the orders. The other steps are in change.c.
 */
#include "client/step.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>

#include "client/board.h"
#include "client/checksum.h"
#include "client/client.h"
#include "client/gate.h"
#include "client/poison.h"
#include "client/wait.h"
#include "proto/base/align.h"

int step_check_lane(const struct kvw_cache *cache, const char *call, uint32_t lane)
{
    if (cache->rank == KVW_READER)
        return fail(-EACCES, "%s '%s': this attachment is a reader", call, cache->name);
    if (lane < cache->held_lanes.begin || lane >= cache->held_lanes.end)
        return fail(-ERANGE,
                    "%s '%s': rank %u holds %u lanes from lane %u on, not lane %u",
                    call, cache->name, cache->rank,
                    cache->held_lanes.end - cache->held_lanes.begin,
                    cache->held_lanes.begin, lane);
    return 0;
}

int step_check_live(const struct kvw_cache *cache, const char *call,
                    uint32_t lane_number)
{
    const struct kvw_control_header *header =
        (const struct kvw_control_header *)(const void *)cache->control;
    const struct lane *lane = lane_of(cache, lane_number);
    struct kvw_board *board = board_of(cache, cache->rank, lane_number);
    struct kvw_seat *seat = layout_seat(cache->control, &cache->layout, cache->rank);

    if (load_relaxed(&header->state) != KVW_CONTROL_LIVE ||
        load_relaxed(&board->version) == 0)
        return fail(-KVW_EGONE, "%s: '%s' was removed", call, cache->name);
    if (load_relaxed(&seat->incarnation) != cache->incarnation)
        return fail(-ESTALE, "%s '%s': rank %u has another owner, pid %u", call,
                    cache->name, cache->rank, load_relaxed(&seat->pid));
    if (load_relaxed(&board->ask) != lane->record->era)
        return fail(-ESTALE,
                    "%s '%s': rank %u, lane %u: a recovery to era %" PRIu64
                    " is under way: call kvw_recover()",
                    call, cache->name, cache->rank, lane_number,
                    load_relaxed(&board->ask));
    return 0;
}

void step_forget_open(struct kvw_cache *cache, uint32_t lane_number)
{
    struct lane *lane = lane_of(cache, lane_number);
    struct kvw_board *board = board_of(cache, cache->rank, lane_number);

    if (!lane->is_open)
        return;
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        store_relaxed(&board_claim(cache, board, g)->open, 0);
        lane->open[g].n = 0;
    }
    lane->is_open = false;
    lane->claim++;
    store_relaxed(&board->claim, lane->claim);
}

uint64_t step_written(const struct kvw_cache *cache, uint32_t lane_number,
                      uint32_t layer)
{
    const struct lane *lane = lane_of(cache, lane_number);
    const uint32_t group = cache->layers[layer].group;
    const uint64_t n = lane->open[group].n;
    struct kvw_board *board = board_of(cache, cache->rank, lane_number);

    /* Only this process stores the word; another claim's count is void. */
    uint64_t staged = load_relaxed(board_staged(cache, board, layer));
    uint64_t written =
        staged >> 32 == (lane->claim & UINT32_MAX) ? staged & UINT32_MAX : 0;
    if (cache->row_part != UINT32_MAX) {
        uint64_t row = lane->record->group[group].rows;
        uint64_t own = partition_row_next(&cache->geometry.partition, cache->row_part,
                                          row + written);
        written = own - row;
    }
    return min_u64(written, n);
}

uint32_t step_own_runs(const struct kvw_cache *cache, uint32_t lane, uint32_t group,
                       uint64_t row_first, uint64_t n_rows, struct kvw_run *runs)
{
    const struct kvw_group_record *record = &lane_of(cache, lane)->record->group[group];
    const struct kvw_showing showing = {
        .group = &cache->geometry.group[group],
        .partition = &cache->geometry.partition,
        .record = record,
        .ring_rows = cache->layout.group[group].ring_rows,
        .row_part = cache->row_part,
    };
    return rules_runs(&showing, record->rows + row_first,
                      record->rows + row_first + n_rows, runs);
}

static int check_chunk(const struct kvw_cache *cache, const struct record *record,
                       const struct kvw_item *items, uint32_t i)
{
    const struct kvw_item *item = &items[i];

    if (item->group >= cache->geometry.n_groups)
        return fail(-EINVAL, "begin '%s': group: need less than %u, have %u",
                    cache->name, cache->geometry.n_groups, item->group);
    const struct kvw_geometry_group *group = &cache->geometry.group[item->group];
    for (uint32_t j = 0; j < i; j++) {
        if (items[j].group == item->group)
            return fail(-EINVAL, "begin '%s': group '%s' is named twice", cache->name,
                        group->name);
    }
    const uint64_t rows = record->group[item->group].rows;
    if (item->row != rows)
        return fail(
            -EINVAL,
            "begin '%s': group '%s': a chunk starts at the rows committed: need "
            "row %" PRIu64 ", have %" PRIu64,
            cache->name, group->name, rows, item->row);
    if (item->n == 0 || item->n > group->chunk_rows_max)
        return fail(-EINVAL,
                    "begin '%s': group '%s': rows of a chunk: need 1 to %" PRIu64
                    ", have %" PRIu64,
                    cache->name, group->name, group->chunk_rows_max, item->n);
    if (group->policy == KVW_GEOMETRY_REFUSE && rows + item->n > group->window_rows)
        return fail(-ENOSPC,
                    "begin '%s': group '%s' is full: need %" PRIu64
                    " rows, have %" PRIu64 " of %" PRIu64 " left",
                    cache->name, group->name, item->n, group->window_rows - rows,
                    group->window_rows);
    return 0;
}

static bool is_open_already(const struct kvw_cache *cache, const struct lane *lane,
                            const struct kvw_item *items, uint32_t n_items)
{
    if (!lane->is_open)
        return false;
    uint32_t n_open = 0;
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++)
        n_open += lane->open[g].n > 0;
    for (uint32_t i = 0; i < n_items; i++) {
        const struct kvw_group_record *record = &lane->record->group[items[i].group];
        uint64_t epoch = items[i].has_epoch ? items[i].epoch : record->epoch;
        if (lane->open[items[i].group].n != items[i].n ||
            lane->open[items[i].group].epoch != epoch)
            return false;
    }
    return n_open == n_items;
}

static void describe(const struct kvw_cache *cache, const struct record *record,
                     const struct kvw_item *items, uint32_t n_items,
                     struct kvw_begun *begun)
{
    for (uint32_t i = 0; i < n_items && begun != NULL; i++) {
        const struct kvw_geometry_group *group = &cache->geometry.group[items[i].group];
        const struct kvw_group_record *of = &record->group[items[i].group];
        const uint64_t first = rules_window_first(group, of->rows, of->evicted);
        const uint64_t staged =
            rules_staged_first(group, of->rows, of->evicted, items[i].n);
        begun[i] = (struct kvw_begun){
            .row = of->rows,
            .n = items[i].n,
            .position = rules_chunk_position(group, of, items[i].n),
            .evict_first = min_u64(first, of->rows),
            .evict_end = min_u64(staged, of->rows),
        };
    }
}

static void store_wants(struct kvw_cache *cache, uint32_t lane,
                        const struct claims *claims, bool is_dropped)
{
    struct kvw_board *board = board_of(cache, cache->rank, lane);

    for (uint32_t i = 0; i < claims->n_groups; i++) {
        struct kvw_board_claim *claim =
            board_claim(cache, board, claims->claim[i].group);
        store_relaxed(&claim->want,
                      is_dropped ? load_relaxed(&claim->hi) : claims->claim[i].end);
    }
}

/* The claim is granted: the rows below it may go from now on. */
static void open_chunks(struct kvw_cache *cache, uint32_t lane_number,
                        const struct claims *claims, const struct kvw_item *items)
{
    struct lane *lane = lane_of(cache, lane_number);
    struct kvw_board *board = board_of(cache, cache->rank, lane_number);

    step_forget_open(cache, lane_number); /* another claim before other rows are open */
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        lane->open[g].n = 0;
        lane->open[g].epoch = lane->record->group[g].epoch;
    }
    for (uint32_t i = 0; i < claims->n_groups; i++) {
        const uint32_t g = items[i].group;
        store_relaxed(&board_claim(cache, board, g)->hi, claims->claim[i].end);
        lane->open[g].n = items[i].n;
        if (items[i].has_epoch)
            lane->open[g].epoch = items[i].epoch;
    }
    store_release(&board->base, lane->version); /* X5, pairs with X4 and X6 */
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        /* X5, pairs with X4 and X6. */
        store_release(&board_claim(cache, board, g)->open, lane->open[g].n);
    }
    fence_full(); /* B3, pairs with R1 and X8: hi before the rows, open before the claim */
    lane->claim++;
    store_relaxed(&board->claim, lane->claim);
    lane->is_open = true;
}

/* What the next step will publish at most, for the comparison with peers. */
static void record_of_begin(struct kvw_cache *cache, const struct lane *lane,
                            const struct kvw_item *items, uint32_t n_items)
{
    record_copy(cache, cache->scratch, lane->record);
    cache->scratch->step++;
    for (uint32_t i = 0; i < n_items; i++)
        cache->scratch->group[items[i].group].rows += items[i].n;
}

int kvw_begin(struct kvw_cache *cache, uint32_t lane_number,
              const struct kvw_item *items, uint32_t n_items, struct kvw_begun *begun)
{
    struct claims claims = {.n_groups = n_items};

    int error = step_check_lane(cache, "begin", lane_number);
    if (error == 0)
        error = step_check_live(cache, "begin", lane_number);
    if (error != 0)
        return error;
    struct lane *lane = lane_of(cache, lane_number);
    struct kvw_board *board = board_of(cache, cache->rank, lane_number);
    if (n_items == 0 || n_items > cache->geometry.n_groups)
        return fail(-EINVAL, "begin '%s': groups: need 1 to %u, have %u", cache->name,
                    cache->geometry.n_groups, n_items);
    for (uint32_t i = 0; i < n_items; i++) {
        error = check_chunk(cache, lane->record, items, i);
        if (error != 0)
            return error;
        const uint32_t g = items[i].group;
        claims.claim[i].group = g;
        claims.claim[i].at = items[i].row;
        claims.claim[i].end = rules_claim_end(
            &cache->geometry.group[g], items[i].row,
            load_relaxed(&board_claim(cache, board, g)->hi), items[i].n);
    }
    if (!is_open_already(cache, lane, items, n_items)) {
        const uint64_t deadline_ns = wait_deadline_ns(cache->options.timeout_ns);
        error = gate_ranks(cache, lane_number, "begin", &claims, deadline_ns);
        if (error != 0)
            return error;
        store_wants(cache, lane_number, &claims, false);
        fence_full(); /* B1, pairs with H1: want before pins and peers' records */
        error = gate_pins(cache, lane_number, "begin", &claims, deadline_ns);
        record_of_begin(cache, lane, items, n_items);
        if (error == 0)
            error = gate_agree(cache, lane_number, "begin", cache->scratch, &claims);
        if (error != 0) {
            store_wants(cache, lane_number, &claims, true);
            return error;
        }
        open_chunks(cache, lane_number, &claims, items);
        if (cache->is_poisoning)
            poison_open_rows(cache, lane_number);
    }
    describe(cache, lane->record, items, n_items, begun);
    return 0;
}

/* Rows that a commit publishes in each group. */
static int rows_to_keep(const struct kvw_cache *cache, const struct lane *lane,
                        const struct kvw_item *items, uint32_t n_items,
                        uint64_t keep[KVW_GROUPS_MAX])
{
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++)
        keep[g] = lane->open[g].n;
    for (uint32_t i = 0; i < n_items; i++) {
        const uint32_t g = items[i].group;
        if (g >= cache->geometry.n_groups || lane->open[g].n == 0)
            return fail(-EINVAL, "commit '%s': group %u has no open chunk", cache->name,
                        g);
        if (items[i].n == KVW_WHOLE)
            continue;
        if (items[i].n > lane->open[g].n)
            return fail(-EINVAL,
                        "commit '%s': group '%s': need at most the %" PRIu64
                        " rows begun, have %" PRIu64,
                        cache->name, cache->geometry.group[g].name, lane->open[g].n,
                        items[i].n);
        keep[g] = items[i].n;
    }
    return 0;
}

static int check_complete(const struct kvw_cache *cache, uint32_t lane,
                          const uint64_t keep[KVW_GROUPS_MAX])
{
    for (uint32_t layer = 0; layer < cache->geometry.n_layers; layer++) {
        const uint32_t g = cache->layers[layer].group;
        if (keep[g] == 0 || !cache->layers[layer].is_held)
            continue;
        uint64_t written = step_written(cache, lane, layer);
        if (written < keep[g])
            return fail(
                -KVW_EINCOMPLETE,
                "commit '%s': group '%s', layer %u (model layer %u): need %" PRIu64
                " rows written in all planes, have %" PRIu64,
                cache->name, cache->geometry.group[g].name,
                cache->layers[layer].in_group, cache->geometry.model_layer[layer],
                keep[g], written);
    }
    return 0;
}

int kvw_commit(struct kvw_cache *cache, uint32_t lane_number,
               const struct kvw_item *items, uint32_t n_items)
{
    uint64_t keep[KVW_GROUPS_MAX];

    int error = step_check_lane(cache, "commit", lane_number);
    if (error == 0)
        error = step_check_live(cache, "commit", lane_number);
    if (error != 0)
        return error;
    struct lane *lane = lane_of(cache, lane_number);
    if (!lane->is_open)
        return fail(-EINVAL, "commit '%s': lane %u has no open chunk", cache->name,
                    lane_number);
    error = rows_to_keep(cache, lane, items, items == NULL ? 0 : n_items, keep);
    if (error == 0)
        error = check_complete(cache, lane_number, keep);
    if (error != 0)
        return error;

    struct record *next = cache->scratch;
    record_copy(cache, next, lane->record);
    next->step++;
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        next->group[g].rows += keep[g];
        if (lane->open[g].n > 0)
            next->group[g].epoch = lane->open[g].epoch;
    }
    error = gate_agree(cache, lane_number, "commit", next, NULL);
    if (error != 0)
        return error;
    if (cache->geometry.has_checksums)
        checksum_commit(cache, lane_number, keep);
    board_publish(cache, lane_number, next);
    step_forget_open(cache, lane_number);
    return 0;
}

int kvw_abort(struct kvw_cache *cache, uint32_t lane_number)
{
    int error = step_check_lane(cache, "abort", lane_number);
    if (error == 0)
        step_forget_open(cache, lane_number);
    return error;
}
