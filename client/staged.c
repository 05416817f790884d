/* SPDX-License-Identifier: Apache-2.0 */
/* See staged.h. Nothing here writes a word of another rank, or waits without a deadline. */
#include "client/staged.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "client/client.h"
#include "client/step.h"
#include "client/wait.h"
#include "proto/base/align.h"

/* One rank's part of a chunk. */
struct part {
    bool is_published; /* its rows are committed: no writing can change them */
    uint64_t open;
    uint64_t written;
    uint64_t pass;
};

/* The rank has gone on: what it published of the chunk is there as long as it did not go
 * back since, which a release sees. */
static int read_published(const struct kvw_cache *cache, const struct cut_of *of,
                          const struct cut *cut, uint32_t rank, struct part *part)
{
    struct board_group read = {.group = of->group, .layer = UINT32_MAX};
    struct board_head newest;
    uint64_t version;

    int error = board_find_step(cache, rank, of->lane, cut->step + 1, &version);
    if (error == 0)
        error = board_read_group(cache, rank, of->lane, version, &read);
    if (error == 0)
        error = board_read_head(cache, rank, of->lane, &newest);
    if (error != 0)
        return error == -ENOENT ? -EAGAIN : error;
    *part = (struct part){.is_published = true};
    if (read.record.generation == cut->group.generation &&
        read.record.rows > cut->group.rows &&
        ((newest.rewinds ^ read.head.rewinds) & REWIND_MASK) == 0)
        part->written = read.record.rows - cut->group.rows;
    return 0;
}

/* Rows of a prefix of the chunk, those of other ranks included where rows are split. */
static uint64_t with_others_rows(const struct kvw_cache *cache, uint32_t rank,
                                 uint64_t row, uint64_t written)
{
    const struct kvw_geometry_partition *partition = &cache->geometry.partition;

    if (partition->row_parts <= 1)
        return written;
    const uint32_t row_part = partition_place(&cache->geometry, rank).row_part;
    return partition_row_next(partition, row_part, row + written) - row;
}

/* The rank stands at the cut's step, its newest record at `version`. */
static int read_open(const struct kvw_cache *cache, const struct cut_of *of,
                     const struct cut *cut, uint32_t rank, uint64_t version,
                     struct part *part)
{
    const struct kvw_geometry_group *group = &cache->geometry.group[of->group];
    struct kvw_board *board = board_of(cache, rank, of->lane);
    const shared_u64 *pass_word = board_pass(cache, board, of->layer);

    *part = (struct part){.pass = 0};
    uint64_t base = load_acquire(&board->base);   /* X6, pairs with X5 */
    uint64_t claim = load_acquire(&board->claim); /* X8, pairs with B3 */
    /* X6, pairs with X5. */
    uint64_t open = load_acquire(&board_claim(cache, board, of->group)->open);
    uint64_t pass = load_acquire(pass_word); /* X3, pairs with X2 */
    /* X3, pairs with X2. */
    uint64_t staged = load_acquire(board_staged(cache, board, of->layer));
    fence_acquire(); /* X4, pairs with X1 and X5 */
    if (load_relaxed(&board->claim) != claim || load_relaxed(pass_word) != pass)
        return -EAGAIN;
    if (base != version || open == 0)
        return 0;
    /* Somebody's words: no view may ever show more than a chunk, or than a group holds. */
    if (open > group->chunk_rows_max || (group->policy == KVW_GEOMETRY_REFUSE &&
                                         (cut->group.rows > group->window_rows ||
                                          open > group->window_rows - cut->group.rows)))
        return -KVW_EGONE;
    part->open = open;
    part->pass = pass;
    claim &= UINT32_MAX;
    const bool is_begun = pass >> 32 == claim;
    if (is_begun && (pass & 1) != 0)
        return -EBUSY;
    if (is_begun) /* an even word of this claim came after its count */
        part->written = staged & UINT32_MAX;
    part->written =
        min_u64(open, with_others_rows(cache, rank, cut->group.rows, part->written));
    return 0;
}

static int read_part(const struct kvw_cache *cache, const struct cut_of *of,
                     const struct cut *cut, uint32_t rank, struct part *part)
{
    struct board_head head;

    int error = board_read_head(cache, rank, of->lane, &head);
    if (error != 0)
        return error;
    if (head.step < cut->step)
        return -EAGAIN;
    if (head.step > cut->step)
        return read_published(cache, of, cut, rank, part);
    return read_open(cache, of, cut, rank, head.version, part);
}

static int explain(const struct kvw_cache *cache, const struct cut_of *of,
                   uint32_t rank, int error)
{
    const struct kvw_seat *seat = layout_seat(cache->control, &cache->layout, rank);

    if (error == -EBUSY && load_relaxed(&seat->state) == KVW_SEAT_DEAD)
        return fail(-EOWNERDEAD,
                    "get '%s': rank %u, lane %u: its owner died while it wrote rows of "
                    "layer %u",
                    cache->name, rank, of->lane, of->layer);
    if (error == -EBUSY || error == -EAGAIN)
        return -EAGAIN;
    return fail(error, "get '%s': rank %u, lane %u: its board was wiped or damaged",
                cache->name, rank, of->lane);
}

int staged_look(const struct kvw_cache *cache, const struct cut_of *of,
                const struct cut *cut, struct staged *staged)
{
    const uint64_t ranks = of->ranks & cache->layers[of->layer].ranks;
    bool is_open = true;

    *staged = (struct staged){.written = UINT64_MAX};
    FOR_EACH_RANK(rank, ranks)
    {
        struct part part;

        int error = read_part(cache, of, cut, (uint32_t)rank, &part);
        if (error != 0)
            return explain(cache, of, (uint32_t)rank, error);
        staged->written = min_u64(staged->written, part.written);
        if (part.is_published)
            continue;
        is_open = is_open && part.open != 0 &&
                  (staged->ranks == 0 || part.open == staged->open);
        staged->open = part.open;
        staged->ranks |= 1ull << rank;
        staged->passes += part.pass;
    }
    /* A chunk that is not open everywhere, or not the same one: what is committed. */
    if (!is_open || staged->ranks == 0)
        *staged = (struct staged){.open = 0};
    staged->written = min_u64(staged->written, staged->open);
    if (staged->written == 0) /* nothing is shown that could change */
        staged->ranks = staged->passes = 0;
    return 0;
}

uint64_t staged_passes(const struct kvw_cache *cache, uint32_t lane, uint32_t layer,
                       uint64_t ranks)
{
    uint64_t passes = 0;

    FOR_EACH_RANK(rank, ranks)
    {
        struct kvw_board *board = board_of(cache, (uint32_t)rank, lane);
        passes += load_relaxed(board_pass(cache, board, layer));
    }
    return passes;
}

/* ------------------------------------------------------------------- waiting --------- */

#define WHAT_BYTES 64 /* of a goal in words */

/* What the waits look for. */
struct goal {
    uint32_t layer;
    uint32_t pass;
    bool is_read; /* others' rows of that pass, by the rank waited for */
    uint64_t step;
    uint64_t era; /* of this rank; a reader does not mind */
};

static int pass_reached(struct kvw_cache *cache, uint32_t rank, uint32_t lane,
                        const void *context)
{
    const struct goal *goal = context;
    struct kvw_board *board = board_of(cache, rank, lane);
    const shared_u64 *pass_word = goal->is_read ? board_read(cache, board, goal->layer)
                                                : board_pass(cache, board, goal->layer);
    struct board_head head;

    int error = board_read_head(cache, rank, lane, &head);
    if (error != 0)
        return error;
    if (cache->rank != KVW_READER && load_relaxed(&board->ask) != goal->era)
        return fail(-ESTALE,
                    "wait '%s': rank %u, lane %u: a recovery to era %" PRIu64
                    " is under way: call kvw_recover()",
                    cache->name, rank, lane, load_relaxed(&board->ask));
    if (head.step != goal->step)
        return head.step > goal->step; /* the chunk is published: all of it is there */
    uint64_t base = load_acquire(&board->base);                /* X6, pairs with X5 */
    uint64_t claim = load_acquire(&board->claim) & UINT32_MAX; /* X8, pairs with B3 */
    uint64_t word = load_acquire(pass_word); /* X3, pairs with X2 and X7 */
    if (base != head.version || word >> 32 != claim)
        word = 0; /* of another chunk */
    return (goal->is_read ? word & UINT32_MAX : (word & UINT32_MAX) >> 1) >= goal->pass;
}

/* The step on which the chunk stands that is waited for. */
static int step_of_chunk(const struct kvw_cache *cache, uint32_t lane, uint64_t ranks,
                         struct goal *goal)
{
    if (cache->rank != KVW_READER) {
        const struct record *own = lane_of(cache, lane)->record;
        goal->step = own->step;
        goal->era = own->era;
        return 0;
    }
    goal->step = UINT64_MAX;
    FOR_EACH_RANK(rank, ranks)
    {
        struct board_head head;
        int error = board_read_head(cache, (uint32_t)rank, lane, &head);
        if (error != 0)
            return fail(error, "wait '%s': rank %u, lane %u: its board cannot be read",
                        cache->name, (uint32_t)rank, lane);
        goal->step = min_u64(goal->step, head.step);
    }
    return 0;
}

/* The ranks to wait for, and the rest of the goal. */
static int find_goal(const struct kvw_cache *cache, uint32_t lane, uint32_t rank,
                     struct goal *goal, uint64_t *ranks)
{
    int error = cache->rank == KVW_READER ? 0 : step_check_lane(cache, "wait", lane);
    if (error != 0)
        return error;
    if (lane >= cache->geometry.n_lanes || goal->layer >= cache->geometry.n_layers)
        return fail(-ERANGE, "wait '%s': lane %u of %u, layer %u of %u", cache->name,
                    lane, cache->geometry.n_lanes, goal->layer,
                    cache->geometry.n_layers);
    const uint64_t holders = cache->lane_ranks[lane] & cache->layers[goal->layer].ranks;
    if (rank != KVW_ALL_RANKS &&
        (rank >= cache->geometry.n_ranks || (holders >> rank & 1) == 0))
        return fail(-ERANGE, "wait '%s': rank %u does not hold layer %u of lane %u",
                    cache->name, rank, goal->layer, lane);
    *ranks = rank == KVW_ALL_RANKS ? board_peers(cache, holders) : 1ull << rank;
    error = step_of_chunk(cache, lane, *ranks, goal);
    if (error != 0)
        *ranks = 0;
    return error;
}

static int wait_for_pass(struct kvw_cache *cache, uint32_t lane, uint32_t rank,
                         struct goal *goal, uint64_t timeout_ns)
{
    uint64_t ranks = 0;
    uint64_t deadline_ns = 0;
    char what[WHAT_BYTES];

    int error = find_goal(cache, lane, rank, goal, &ranks);
    FOR_EACH_RANK(each, ranks)
    {
        int holds = pass_reached(cache, (uint32_t)each, lane, goal);
        if (holds > 0)
            continue;
        if (holds < 0)
            return holds;
        if (deadline_ns == 0) { /* the first that there is to wait for */
            deadline_ns = wait_deadline_ns(timeout_ns);
            (void)snprintf(what, sizeof what, "pass %u of layer %u to be %s",
                           goal->pass, goal->layer, goal->is_read ? "read" : "written");
        }
        const struct wait_for wait = {.rank = (uint32_t)each,
                                      .lane = lane,
                                      .condition = pass_reached,
                                      .context = goal,
                                      .what = what,
                                      .deadline_ns = deadline_ns,
                                      .is_unfenced = true,
                                      .group = cache->layers[goal->layer].group};
        error = wait_until(cache, &wait);
        if (error != 0)
            return error;
    }
    return error;
}

int kvw_wait_written(struct kvw_cache *cache, uint32_t lane, uint32_t rank,
                     struct kvw_layer layer, uint32_t pass, uint64_t timeout_ns)
{
    struct goal goal = {.layer = layer.index, .pass = pass};

    return wait_for_pass(cache, lane, rank, &goal, timeout_ns);
}

int kvw_wait_read(struct kvw_cache *cache, uint32_t lane, uint32_t rank,
                  struct kvw_layer layer, uint32_t pass, uint64_t timeout_ns)
{
    struct goal goal = {.layer = layer.index, .pass = pass, .is_read = true};

    return wait_for_pass(cache, lane, rank, &goal, timeout_ns);
}

int kvw_have_read(struct kvw_cache *cache, uint32_t lane_number, struct kvw_layer layer,
                  uint32_t pass)
{
    int error = step_check_lane(cache, "have_read", lane_number);
    if (error != 0)
        return error;
    if (layer.index >= cache->geometry.n_layers || !cache->layers[layer.index].is_held)
        return fail(-ERANGE, "have_read '%s': rank %u does not hold layer %u of %u",
                    cache->name, cache->rank, layer.index, cache->geometry.n_layers);
    const struct lane *lane = lane_of(cache, lane_number);
    if (lane->open[cache->layers[layer.index].group].n == 0)
        return fail(-EINVAL, "have_read '%s': lane %u, layer %u: no chunk is open",
                    cache->name, lane_number, layer.index);
    struct kvw_board *board = board_of(cache, cache->rank, lane_number);
    store_release(board_read(cache, board, layer.index),
                  (lane->claim & UINT32_MAX) << 32 | pass); /* X7, pairs with X3 */
    board_wake(cache, lane_number);
    return 0;
}
