/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps that change what is committed: truncate, evict, keep, reset. Each takes a
 * vector of groups and is published by one store. All go the same way:
 *
 *   check the arguments -> wait for ranks -> make the next record -> compare with peers
 *   -> forget what is open -> publish
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "client/board.h"
#include "client/checksum.h"
#include "client/client.h"
#include "client/gate.h"
#include "client/pin.h"
#include "client/step.h"
#include "client/wait.h"
#include "proto/base/align.h"

/* A step under way. */
struct change {
    const char *call;
    uint32_t lane;
    const struct kvw_item *items;
    uint32_t n_items;
    uint64_t deadline_ns;
    struct record *next; /* cache->scratch */
};

static int check_items(const struct kvw_cache *cache, const struct change *change)
{
    if (change->n_items == 0 || change->n_items > cache->geometry.n_groups)
        return fail(-EINVAL, "%s '%s': groups: need 1 to %u, have %u", change->call,
                    cache->name, cache->geometry.n_groups, change->n_items);
    for (uint32_t i = 0; i < change->n_items; i++) {
        if (change->items[i].group >= cache->geometry.n_groups)
            return fail(-EINVAL, "%s '%s': group: need less than %u, have %u",
                        change->call, cache->name, cache->geometry.n_groups,
                        change->items[i].group);
        for (uint32_t j = 0; j < i; j++) {
            if (change->items[j].group == change->items[i].group)
                return fail(-EINVAL, "%s '%s': group '%s' is named twice", change->call,
                            cache->name,
                            cache->geometry.group[change->items[i].group].name);
        }
    }
    return 0;
}

/* Arguments common to all, and the next record as a copy of the own one. */
static int change_begin(struct kvw_cache *cache, struct change *change)
{
    int error = step_check_lane(cache, change->call, change->lane);
    if (error == 0)
        error = step_check_live(cache, change->call, change->lane);
    if (error == 0)
        error = check_items(cache, change);
    if (error != 0)
        return error;
    const struct lane *lane = lane_of(cache, change->lane);
    change->deadline_ns = wait_deadline_ns(cache->options.timeout_ns);
    change->next = cache->scratch;
    record_copy(cache, change->next, lane->record);
    change->next->step++;
    for (uint32_t i = 0; i < change->n_items; i++) {
        if (change->items[i].has_epoch)
            change->next->group[change->items[i].group].epoch = change->items[i].epoch;
    }
    return 0;
}

static int wait_for_ranks(struct kvw_cache *cache, const struct change *change)
{
    const struct claims nothing = {0};
    return gate_ranks(cache, change->lane, change->call, &nothing, change->deadline_ns);
}

/* The last test; nothing of the step has been written before it. */
static int agree_with_peers(struct kvw_cache *cache, const struct change *change)
{
    return gate_agree(cache, change->lane, change->call, change->next, NULL);
}

static int change_publish(struct kvw_cache *cache, const struct change *change)
{
    int error = agree_with_peers(cache, change);
    if (error != 0)
        return error;
    step_forget_open(cache, change->lane);
    board_publish(cache, change->lane, change->next);
    return 0;
}

/* ---------------------------------------------------------------- truncate ----------
 */

/*
 * The end of the highest claim of any rank. Up to the sink's end no row of the ring is
 * alive: such a rank's claims are those of an earlier generation, or of a first chunk that
 * overwrites none. Its record is read before its claim: once the record is past the sink,
 * the claim is of this generation.
 */
static uint64_t highest_want(struct kvw_cache *cache, uint32_t lane, uint32_t group)
{
    const uint64_t sink_rows = cache->geometry.group[group].sink_rows;
    uint64_t want = 0;

    FOR_EACH_RANK(rank, cache->lane_ranks[lane])
    {
        struct kvw_board *board = board_of(cache, (uint32_t)rank, lane);
        struct board_group read = {.group = group, .layer = UINT32_MAX};

        if (board_read_group(cache, (uint32_t)rank, lane, 0, &read) == 0 &&
            read.record.rows <= sink_rows)
            continue;
        want = max_u64(want, load_relaxed(&board_claim(cache, board, group)->want));
    }
    return want;
}

/*
 * Whether a window is still whole depends on what every rank has claimed. So the rows
 * are held as a reader's pin would hold them, then every claim is looked at: a begin
 * elsewhere either sees the hold or is seen (PROTOCOL.md, "Truncate").
 */
static int hold_windows(struct kvw_cache *cache, const struct change *change,
                        uint32_t pins[KVW_GROUPS_MAX], uint32_t *n_pins)
{
    const struct lane *lane = lane_of(cache, change->lane);

    for (uint32_t i = 0; i < change->n_items; i++) {
        const uint32_t g = change->items[i].group;
        const struct kvw_group_record *record = &lane->record->group[g];
        const uint64_t to = change->items[i].row;
        const struct hold hold = {
            .lane = change->lane,
            .group = g,
            .ranks = lane->ranks,
            .generation = record->generation,
            .low = rules_window_first(&cache->geometry.group[g], to,
                                      min_u64(record->evicted, to)),
            .end = to,
            .kind = KVW_PIN_OF_STEP,
        };
        int pin = pin_set(cache, &hold); /* H1, pairs with B1 */
        if (pin < 0)
            return pin;
        pins[(*n_pins)++] = (uint32_t)pin;
    }
    for (uint32_t i = 0; i < change->n_items; i++) {
        const uint32_t g = change->items[i].group;
        const struct kvw_geometry_group *group = &cache->geometry.group[g];
        const uint64_t ring_rows = cache->layout.group[g].ring_rows;
        const uint64_t evicted = lane->record->group[g].evicted;
        const uint64_t want = highest_want(cache, change->lane, g);
        if (!rules_can_truncate(group, ring_rows, change->items[i].row, evicted, want))
            return fail(-ERANGE,
                        "truncate '%s': group '%s': the window at row %" PRIu64
                        " is no longer whole: the lowest row now is %" PRIu64
                        " (or anything in the sink of %" PRIu64 ")",
                        cache->name, group->name, change->items[i].row,
                        rules_lowest(group, ring_rows, evicted, want),
                        group->sink_rows);
    }
    return 0;
}

int kvw_truncate(struct kvw_cache *cache, uint32_t lane_number,
                 const struct kvw_item *items, uint32_t n_items)
{
    struct change change = {
        .call = "truncate", .lane = lane_number, .items = items, .n_items = n_items};
    uint32_t pins[KVW_GROUPS_MAX];
    uint32_t n_pins = 0;

    int error = change_begin(cache, &change);
    if (error != 0)
        return error;
    for (uint32_t i = 0; i < n_items; i++) {
        const uint64_t rows =
            lane_of(cache, lane_number)->record->group[items[i].group].rows;
        if (items[i].row > rows)
            return fail(-ERANGE,
                        "truncate '%s': group '%s': need at most the %" PRIu64
                        " rows committed, have %" PRIu64,
                        cache->name, cache->geometry.group[items[i].group].name, rows,
                        items[i].row);
    }
    error = wait_for_ranks(cache, &change);
    if (error == 0)
        error = hold_windows(cache, &change, pins, &n_pins);
    if (error == 0) {
        for (uint32_t i = 0; i < n_items; i++) {
            const struct kvw_geometry_group *group =
                &cache->geometry.group[items[i].group];
            rules_truncate(&change.next->group[items[i].group], items[i].row);
            for (uint32_t l = 0; l < group->n_layers; l++) {
                uint64_t *floor = &change.next->floor[group->layer_first + l];
                *floor = min_u64(*floor, items[i].row);
            }
        }
        change.next->rewinds += REWIND;
        error = change_publish(cache, &change);
    }
    for (uint32_t i = 0; i < n_pins; i++)
        pin_clear(cache, pins[i]);
    return error;
}

/* ------------------------------------------------------------------- evict ----------
 */

int kvw_evict(struct kvw_cache *cache, uint32_t lane, const struct kvw_item *items,
              uint32_t n_items)
{
    struct change change = {
        .call = "evict", .lane = lane, .items = items, .n_items = n_items};

    int error = change_begin(cache, &change);
    if (error != 0)
        return error;
    for (uint32_t i = 0; i < n_items; i++) {
        struct kvw_group_record *record = &change.next->group[items[i].group];
        if (items[i].row < record->evicted || items[i].row > record->rows)
            return fail(-EINVAL,
                        "evict '%s': group '%s': need row %" PRIu64 " to %" PRIu64
                        ", have %" PRIu64,
                        cache->name, cache->geometry.group[items[i].group].name,
                        record->evicted, record->rows, items[i].row);
        record->evicted = items[i].row;
    }
    error = wait_for_ranks(cache, &change);
    return error != 0 ? error : change_publish(cache, &change);
}

/* -------------------------------------------------------------------- keep ----------
 */

/* Copy rows of the ring into the keep extent: this rank's layers, heads and rows. */
static void copy_kept_rows(struct kvw_cache *cache, uint32_t lane_number, uint32_t g,
                           const struct kvw_kept *kept)
{
    const struct kvw_geometry_group *group = &cache->geometry.group[g];
    const struct kvw_layout_group *placed = &cache->layout.group[g];
    const struct kvw_showing showing = {
        .group = group,
        .partition = &cache->geometry.partition,
        .record = &lane_of(cache, lane_number)->record->group[g],
        .ring_rows = placed->ring_rows,
        .row_part = cache->row_part,
    };
    struct kvw_run runs[KVW_PIECES_MAX];
    const uint32_t n_runs =
        rules_runs(&showing, kept->first, kept->first + kept->n, runs);
    const uint64_t extent_slot = group->sink_rows + placed->ring_rows + kept->extent;

    for (uint32_t l = 0; l < group->n_layers; l++) {
        if (!cache->layers[group->layer_first + l].is_held)
            continue;
        for (uint32_t p = 0; p < group->n_planes; p++) {
            for (uint32_t h = cache->heads[g].begin; h < cache->heads[g].end; h++) {
                char *head = cache->data + layout_row_offset(&cache->layout, g, l, p,
                                                             lane_number, h, 0);
                const uint64_t row_bytes = placed->plane[p].row_bytes;
                const struct checksum_of sums = {g, l, p, lane_number, h};
                for (uint32_t r = 0; r < n_runs; r++) {
                    const uint64_t slot = extent_slot + (runs[r].row - kept->first);
                    memcpy(head + slot * row_bytes, head + runs[r].slot * row_bytes,
                           runs[r].n * row_bytes);
                    if (cache->geometry.has_checksums)
                        checksum_copy(cache, &sums, runs[r].slot, slot, runs[r].n);
                }
            }
        }
    }
}

static int drop_kept(const struct kvw_cache *cache, uint32_t g,
                     struct kvw_group_record *record, uint64_t first)
{
    for (uint32_t i = 0; i < KVW_KEPT_MAX; i++) {
        if (record->kept[i].n == 0 || record->kept[i].first != first)
            continue;
        for (uint32_t j = i; j + 1 < KVW_KEPT_MAX; j++)
            record->kept[j] = record->kept[j + 1];
        record->kept[KVW_KEPT_MAX - 1] = (struct kvw_kept){0};
        return 0;
    }
    return fail(-EINVAL, "keep '%s': group '%s': no kept range starts at row %" PRIu64,
                cache->name, cache->geometry.group[g].name, first);
}

static int check_kept(const struct kvw_cache *cache, uint32_t g,
                      const struct kvw_group_record *record, uint64_t first, uint64_t n)
{
    const struct kvw_geometry_group *group = &cache->geometry.group[g];
    const uint64_t low = rules_window_first(group, record->rows, record->evicted);

    if (first < low || n > record->rows || first > record->rows - n)
        return fail(
            -EINVAL,
            "keep '%s': group '%s': need rows of the window behind the sink, %" PRIu64
            "..%" PRIu64 ", have %" PRIu64 " rows from %" PRIu64,
            cache->name, group->name, low, record->rows, n, first);
    for (uint32_t i = 0; i < KVW_KEPT_MAX; i++) {
        const struct kvw_kept *kept = &record->kept[i];
        if (kept->n > 0 && kept->first < first + n && first < kept->first + kept->n)
            return fail(-EINVAL,
                        "keep '%s': group '%s': rows from %" PRIu64
                        " and below %" PRIu64 " are kept already",
                        cache->name, group->name, kept->first, kept->first + kept->n);
    }
    if (record->kept[KVW_KEPT_MAX - 1].n > 0)
        return fail(-EMFILE, "keep '%s': group '%s': %u ranges are kept already",
                    cache->name, group->name, KVW_KEPT_MAX);
    return 0;
}

/* Put a range into a record, ascending by row. */
static int add_kept(const struct kvw_cache *cache, uint32_t g,
                    struct kvw_group_record *record, uint64_t first, uint64_t n,
                    struct kvw_kept *added)
{
    const struct kvw_geometry_group *group = &cache->geometry.group[g];

    int error = check_kept(cache, g, record, first, n);
    if (error != 0)
        return error;
    *added = (struct kvw_kept){.first = first, .n = n};
    if (!rules_place_kept(group, record, n, &added->extent)) {
        uint64_t used = 0;
        for (uint32_t i = 0; i < KVW_KEPT_MAX; i++)
            used += record->kept[i].n;
        return fail(-ENOSPC,
                    "keep '%s': group '%s': need %" PRIu64
                    " rows in a row of the keep extent, have %" PRIu64 " of %" PRIu64
                    " in use",
                    cache->name, group->name, n, used, group->keep_rows);
    }
    uint32_t at = KVW_KEPT_MAX - 1;
    while (at > 0 &&
           (record->kept[at - 1].n == 0 || record->kept[at - 1].first > first)) {
        record->kept[at] = record->kept[at - 1];
        at--;
    }
    record->kept[at] = *added;
    return 0;
}

/* Wait until nobody needs what lies in an extent that is about to be written. */
static int wait_for_extent(struct kvw_cache *cache, const struct change *change,
                           uint32_t g, const struct kvw_kept *added)
{
    const struct claims claims = {
        .extent_group = g,
        .extent_first = added->extent,
        .extent_end = added->extent + added->n,
    };
    int error =
        gate_ranks(cache, change->lane, change->call, &claims, change->deadline_ns);
    if (error == 0)
        error =
            gate_pins(cache, change->lane, change->call, &claims, change->deadline_ns);
    return error;
}

int kvw_keep(struct kvw_cache *cache, uint32_t lane, const struct kvw_item *items,
             uint32_t n_items)
{
    struct change change = {
        .call = "keep", .lane = lane, .items = items, .n_items = n_items};
    struct kvw_kept added[KVW_GROUPS_MAX] = {0};

    int error = change_begin(cache, &change);
    for (uint32_t i = 0; i < n_items && error == 0; i++) {
        const uint32_t g = items[i].group;
        struct kvw_group_record *record = &change.next->group[g];
        error = items[i].n == 0
                    ? drop_kept(cache, g, record, items[i].row)
                    : add_kept(cache, g, record, items[i].row, items[i].n, &added[i]);
    }
    for (uint32_t i = 0; i < n_items && error == 0; i++)
        change.next->rewinds += items[i].n == 0 ? DROP : 0;
    if (error == 0)
        error = wait_for_ranks(cache, &change);
    for (uint32_t i = 0; i < n_items && error == 0; i++) {
        if (added[i].n > 0)
            error = wait_for_extent(cache, &change, items[i].group, &added[i]);
    }
    if (error == 0)
        error = agree_with_peers(cache, &change);
    if (error != 0)
        return error;
    for (uint32_t i = 0; i < n_items; i++) {
        if (added[i].n > 0)
            copy_kept_rows(cache, lane, items[i].group, &added[i]);
    }
    return change_publish(cache, &change);
}

/* ------------------------------------------------------------------- reset ----------
 */

int kvw_reset(struct kvw_cache *cache, uint32_t lane, const struct kvw_item *items,
              uint32_t n_items)
{
    struct kvw_item all[KVW_GROUPS_MAX] = {0};

    if (items == NULL) {
        n_items = cache->geometry.n_groups;
        for (uint32_t g = 0; g < n_items; g++)
            all[g].group = g;
        items = all;
    }
    struct change change = {
        .call = "reset", .lane = lane, .items = items, .n_items = n_items};
    int error = change_begin(cache, &change);
    if (error != 0)
        return error;
    for (uint32_t i = 0; i < n_items; i++) {
        const struct kvw_geometry_group *group = &cache->geometry.group[items[i].group];
        struct kvw_group_record *record = &change.next->group[items[i].group];
        *record = (struct kvw_group_record){.generation = record->generation + 1,
                                            .epoch = record->epoch};
        for (uint32_t l = 0; l < group->n_layers; l++)
            change.next->floor[group->layer_first + l] = 0;
    }
    change.next->rewinds += REWIND;
    error = wait_for_ranks(cache, &change);
    return error != 0 ? error : change_publish(cache, &change);
}

int kvw_reset_layer(struct kvw_cache *cache, uint32_t lane, struct kvw_layer layer)
{
    if (layer.index >= cache->geometry.n_layers)
        return fail(-ERANGE, "reset '%s': layer: need less than %u, have %u",
                    cache->name, cache->geometry.n_layers, layer.index);
    const uint32_t g = cache->layers[layer.index].group;
    const struct kvw_item item = {.group = g};
    struct change change = {
        .call = "reset layer", .lane = lane, .items = &item, .n_items = 1};

    int error = change_begin(cache, &change);
    if (error != 0)
        return error;
    change.next->floor[layer.index] = change.next->group[g].rows;
    error = wait_for_ranks(cache, &change);
    return error != 0 ? error : change_publish(cache, &change);
}

int kvw_reset_state(struct kvw_cache *cache)
{
    if (cache->rank == KVW_READER)
        return fail(-EACCES, "reset '%s': this attachment is a reader", cache->name);
    for (uint32_t lane = cache->held_lanes.begin; lane < cache->held_lanes.end;
         lane++) {
        int error = kvw_reset(cache, lane, NULL, 0);
        if (error != 0)
            return error;
    }
    return 0;
}

int kvw_lowest(struct kvw_cache *cache, uint32_t lane, uint32_t group, uint64_t *row)
{
    struct board_group read = {.group = group, .layer = UINT32_MAX};

    if (lane >= cache->geometry.n_lanes || group >= cache->geometry.n_groups)
        return fail(-ERANGE, "lowest '%s': lane %u of %u, group %u of %u", cache->name,
                    lane, cache->geometry.n_lanes, group, cache->geometry.n_groups);
    const uint64_t ranks = cache->lane_ranks[lane];
    uint32_t rank = cache->rank != KVW_READER && (ranks >> cache->rank & 1)
                        ? cache->rank
                        : (uint32_t)__builtin_ctzll(ranks);
    int error = board_read_group(cache, rank, lane, 0, &read);
    if (error != 0)
        return fail(error, "lowest '%s': rank %u, lane %u: its board cannot be read",
                    cache->name, rank, lane);
    *row = rules_lowest(&cache->geometry.group[group],
                        cache->layout.group[group].ring_rows, read.record.evicted,
                        highest_want(cache, lane, group));
    return 0;
}
