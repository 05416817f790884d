/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views: read where a rank (or a set of ranks) stands, hold the rows, check that the
 * hold came in time, and describe them in pieces. Nothing is copied.
 *
 * Orders, by label:
 *   R1 acquire fence between reading the rows and looking at `hi` in kvw_release
 *                                             pairs with B3 in step.c: hi, fence, rows
 *   and at the pass words                     pairs with X1 in rows.c: word, fence, rows
 */
#include <errno.h>
#include <stdbool.h>

#include "client/client.h"
#include "client/cut.h"
#include "client/mirror.h"
#include "client/pin.h"
#include "client/staged.h"
#include "client/step.h"
#include "proto/base/align.h"

#define NO_HOLD UINT32_MAX
#define NO_RING_ROWS (UINT64_MAX / 2) /* lowest ring row held, when there is none */

/* A view in the making: whose rows, how far. */
struct viewing {
    uint32_t lane;
    uint32_t layer;
    uint32_t group;
    uint64_t ranks;    /* whose boards are read */
    uint32_t row_part; /* UINT32_MAX: rows of all parts */
    struct kvw_interval heads;
    uint64_t open;    /* rows of the open chunk, 0 = committed view */
    uint64_t written; /* of these */
    bool is_pinned;
    bool is_here;   /* the newest step here, whatever ranks on other nodes have */
    bool is_staged; /* the open chunk as its ranks show it to others */
    struct staged staged;
};

/* Lowest row of the ring that a view shows, for the hold and the check at release. Of the
 * open chunk, only rows of others count: a rank's own change by its own hand alone. */
static uint64_t lowest_ring_row(const struct kvw_geometry_group *group,
                                const struct kvw_group_record *record, uint64_t open,
                                uint64_t others_rows)
{
    uint64_t first = rules_staged_first(group, record->rows, record->evicted, open);
    if (record->rows > first)
        return first;
    first = max_u64(group->sink_rows, record->rows);
    return record->rows + others_rows > first ? first : NO_RING_ROWS;
}

static int hold_rows(struct kvw_cache *cache, const struct viewing *viewing,
                     const struct cut *cut, uint64_t low)
{
    struct hold hold = {
        .lane = viewing->lane,
        .group = viewing->group,
        .ranks = viewing->ranks,
        .generation = cut->group.generation,
        .low = low,
        .end = cut->group.rows,
        .kind = KVW_PIN_OF_VIEW,
    };
    /* The hull of the kept ranges: more than needed at times, never less. */
    for (uint32_t i = 0; i < KVW_KEPT_MAX && cut->group.kept[i].n > 0; i++) {
        const struct kvw_kept *kept = &cut->group.kept[i];
        if (hold.extent_first == hold.extent_end) {
            hold.extent_first = kept->extent;
            hold.extent_end = kept->extent + kept->n;
        }
        hold.extent_first = min_u64(hold.extent_first, kept->extent);
        hold.extent_end = max_u64(hold.extent_end, kept->extent + kept->n);
    }
    return pin_set(cache, &hold);
}

static void describe_view(const struct kvw_cache *cache, const struct viewing *viewing,
                          const struct cut *cut, struct kvw_view *view)
{
    const struct kvw_geometry_group *group = &cache->geometry.group[viewing->group];
    const bool is_mirrored = mirror_planes(cache, viewing->layer, viewing->lane,
                                           viewing->heads, view->plane) != 0;
    const struct kvw_showing showing = {
        .group = group,
        .partition = &cache->geometry.partition,
        .record = &cut->group,
        .ring_rows = cache->layout.group[viewing->group].ring_rows,
        .floor = cut->floor,
        .open = viewing->open,
        .written = viewing->written,
        .row_part = viewing->row_part,
        .is_mirrored = is_mirrored,
    };
    struct kvw_run runs[KVW_PIECES_MAX];

    view->step = cut->step;
    view->epoch = cut->group.epoch;
    view->generation = cut->group.generation;
    view->end_row = cut->group.rows + viewing->written;
    view->window_rows = group->window_rows;
    view->sink_rows = group->sink_rows;
    view->lane = viewing->lane;
    view->layer = viewing->layer;
    view->window_kind = group->kind;
    view->n_planes = group->n_planes;
    view->head_first = viewing->heads.begin;
    view->n_heads = viewing->heads.end - viewing->heads.begin;
    view->hold_rewinds = cut->rewinds;
    view->ranks = viewing->ranks;
    view->hold_staged = viewing->staged.ranks;
    view->hold_passes = viewing->staged.passes;
    if (!is_mirrored)
        cache_planes(cache, viewing->layer, viewing->lane, viewing->heads.begin,
                     view->plane);
    view->n_pieces = rules_show(&showing, runs);
    view->n_rows = 0;
    for (uint32_t i = 0; i < view->n_pieces; i++) {
        view->piece[i] = (struct kvw_piece){
            .row = runs[i].row,
            .position = runs[i].position,
            .n_rows = (uint32_t)runs[i].n,
            .slot = (uint32_t)runs[i].slot,
            .piece_class = runs[i].piece_class,
        };
        view->n_rows += runs[i].n;
    }
}

/* One try: 1 with a view, 0 to be taken again, negative an error. */
static int try_view(struct kvw_cache *cache, struct viewing *viewing,
                    const struct cut_of *of, struct kvw_view *view)
{
    const struct kvw_geometry_group *group = &cache->geometry.group[viewing->group];
    struct cut cut;
    int pin = -1;

    int error = cut_take(cache, of, &cut);
    if (error == 0 && viewing->is_staged) {
        error = staged_look(cache, of, &cut, &viewing->staged);
        viewing->open = viewing->staged.open;
        viewing->written = viewing->staged.written;
        if (error == -EAGAIN)
            return 0;
    }
    if (error != 0)
        return error;
    uint64_t low = lowest_ring_row(group, &cut.group, viewing->open,
                                   viewing->is_staged ? viewing->written : 0);
    if (viewing->is_pinned) {
        pin = hold_rows(cache, viewing, &cut, low);
        if (pin < 0)
            return pin;
    }
    int is_held = cut_is_held(cache, of, &cut, low);
    if (is_held > 0) {
        describe_view(cache, viewing, &cut, view);
        view->hold = pin < 0 ? NO_HOLD : (uint32_t)pin;
        view->hold_low = low;
    } else if (pin >= 0) {
        pin_clear(cache, (uint32_t)pin);
    }
    return is_held;
}

static int make_view(struct kvw_cache *cache, struct viewing *viewing,
                     struct kvw_view *view)
{
    const struct cut_of of = {
        .lane = viewing->lane,
        .group = viewing->group,
        .layer = viewing->layer,
        .ranks = viewing->ranks,
        .is_here = viewing->is_here,
    };

    for (uint32_t tries = 0; tries < KVW_RETRIES_MAX; tries++) {
        int is_made = try_view(cache, viewing, &of, view);
        if (is_made != 0)
            return is_made > 0 ? 0 : is_made;
        spin_pause();
    }
    return fail(
        -EAGAIN,
        "get '%s': lane %u, layer %u: its rows were claimed%s in all of %u tries",
        cache->name, viewing->lane, viewing->layer,
        viewing->is_staged ? " or being written" : "", KVW_RETRIES_MAX);
}

static int check_place(const struct kvw_cache *cache, const char *call, uint32_t lane,
                       struct kvw_layer layer)
{
    if (lane >= cache->geometry.n_lanes || layer.index >= cache->geometry.n_layers)
        return fail(-ERANGE, "%s '%s': lane %u of %u, layer %u of %u", call,
                    cache->name, lane, cache->geometry.n_lanes, layer.index,
                    cache->geometry.n_layers);
    return 0;
}

int kvw_get(struct kvw_cache *cache, uint32_t lane, struct kvw_layer layer,
            uint32_t flags, struct kvw_view *view)
{
    if (cache->rank == KVW_READER)
        return kvw_cut(cache, lane, layer, 0, flags, view);
    int error = step_check_lane(cache, "get", lane);
    if (error == 0)
        error = check_place(cache, "get", lane, layer);
    if (error != 0)
        return error;
    if (!cache->layers[layer.index].is_held)
        return fail(-ERANGE, "get '%s': rank %u does not hold layer %u", cache->name,
                    cache->rank, layer.index);
    const uint32_t g = cache->layers[layer.index].group;
    struct viewing viewing = {
        .lane = lane,
        .layer = layer.index,
        .group = g,
        .ranks = 1ull << cache->rank,
        .row_part = cache->row_part,
        .heads = cache->heads[g],
        .is_pinned = (flags & KVW_UNPINNED) == 0,
        .is_here = true,
    };
    if (flags & KVW_STAGED) {
        viewing.open = lane_of(cache, lane)->open[g].n;
        viewing.written = step_written(cache, lane, layer.index);
    }
    return make_view(cache, &viewing, view);
}

/*
 * The heads and rows of a set of ranks. Their heads must follow each other, and where
 * rows are split, the set must have for every head part either one and the same row
 * part or all.
 */
static int span_of(const struct kvw_cache *cache, uint64_t ranks,
                   struct viewing *viewing)
{
    const struct kvw_geometry *geometry = &cache->geometry;
    const uint32_t row_parts = geometry->partition.row_parts;
    uint64_t rows_of[KVW_RANKS_MAX] = {0}; /* set of row parts, by head part */
    uint32_t first = UINT32_MAX;
    uint32_t last = 0;

    FOR_EACH_RANK(rank, ranks)
    {
        struct kvw_place place = partition_place(geometry, (uint32_t)rank);
        if ((cache->layers[viewing->layer].ranks >> rank & 1) == 0)
            continue;
        rows_of[place.head_part] |= 1ull << place.row_part;
        first = place.head_part < first ? place.head_part : first;
        last = place.head_part > last ? place.head_part : last;
    }
    if (first == UINT32_MAX)
        return fail(-ERANGE, "cut '%s': no rank of the set holds layer %u", cache->name,
                    viewing->layer);
    for (uint32_t part = first; part <= last; part++) {
        uint64_t rows = rows_of[part];
        bool is_all = rows == (row_parts == 64 ? UINT64_MAX : (1ull << row_parts) - 1);
        bool is_one = rows != 0 && (rows & (rows - 1)) == 0;
        if (rows != rows_of[first] || (!is_all && !is_one))
            return fail(
                -EINVAL,
                "cut '%s': the ranks of the set must hold heads that follow each "
                "other, and the same rows of each",
                cache->name);
        viewing->row_part = is_all ? UINT32_MAX : (uint32_t)__builtin_ctzll(rows);
    }
    const uint32_t n_heads = geometry->group[viewing->group].n_heads;
    const uint32_t head_parts = geometry->partition.head_parts;
    viewing->heads.begin = partition_interval(n_heads, head_parts, first).begin;
    viewing->heads.end = partition_interval(n_heads, head_parts, last).end;
    return 0;
}

int kvw_cut(struct kvw_cache *cache, uint32_t lane, struct kvw_layer layer,
            uint64_t ranks, uint32_t flags, struct kvw_view *view)
{
    int error = check_place(cache, "cut", lane, layer);
    if (error != 0)
        return error;
    const uint32_t g = cache->layers[layer.index].group;
    const uint64_t of_lane = cache->lane_ranks[lane];
    const uint64_t of_layer = of_lane & cache->layers[layer.index].ranks;
    if (ranks == 0)
        ranks = of_layer;
    if (ranks == 0 || (ranks & ~of_lane) != 0)
        return fail(-ERANGE, "cut '%s': need ranks of the set %#llx, have %#llx",
                    cache->name, (unsigned long long)of_lane,
                    (unsigned long long)ranks);
    struct viewing viewing = {
        .lane = lane,
        .layer = layer.index,
        .group = g,
        .ranks = ranks,
        .row_part = UINT32_MAX,
        .heads = {0, cache->geometry.group[g].n_heads},
        .is_pinned = (flags & KVW_UNPINNED) == 0,
        .is_here = (flags & KVW_STAGED) != 0, /* where the open chunk is */
        .is_staged = (flags & KVW_STAGED) != 0,
    };
    if (ranks != of_layer) /* who all hold all heads and all rows */
        error = span_of(cache, ranks, &viewing);
    return error != 0 ? error : make_view(cache, &viewing, view);
}

/* A pinned view, or one without kept rows, need not mind dropped ranges. */
static uint64_t rewinds_that_matter(const struct kvw_view *view)
{
    if (view->hold == NO_HOLD) {
        for (uint32_t i = 0; i < view->n_pieces; i++) {
            if (view->piece[i].piece_class == KVW_PIECE_KEPT)
                return UINT64_MAX;
        }
    }
    return REWIND_MASK;
}

int kvw_release(struct kvw_cache *cache, struct kvw_view *view)
{
    const uint32_t group = cache->layers[view->layer].group;
    const uint64_t ring_rows = cache->layout.group[group].ring_rows;
    uint64_t rewinds = 0;
    bool is_clean = true;

    fence_acquire(); /* R1, pairs with B3 and X1 */
    if (staged_passes(cache, view->lane, view->layer, view->hold_staged) !=
        view->hold_passes)
        is_clean = false;
    FOR_EACH_RANK(rank, view->ranks)
    {
        struct kvw_board *board = board_of(cache, (uint32_t)rank, view->lane);
        struct board_head head = {0};
        /* R2, pairs with P3: a begin after a reset lowers it, and who sees that must see
         * the reset's record. */
        uint64_t hi = load_acquire(&board_claim(cache, board, group)->hi);
        if (rules_overwritten(ring_rows, hi) > view->hold_low)
            is_clean = false;
        if (board_read_head(cache, (uint32_t)rank, view->lane, &head) != 0)
            is_clean = false;
        rewinds += head.rewinds;
    }
    if (((rewinds ^ view->hold_rewinds) & rewinds_that_matter(view)) != 0)
        is_clean = false;
    if (view->hold != NO_HOLD)
        pin_clear(cache, view->hold);
    view->hold = NO_HOLD;
    if (!is_clean)
        return fail(
            -KVW_EOVERRUN,
            "release '%s': lane %u, layer %u: rows of the view were overwritten, or "
            "its ranks went back, while it was held",
            cache->name, view->lane, view->layer);
    return 0;
}
