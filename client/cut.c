/* SPDX-License-Identifier: Apache-2.0 */
/* See cut.h. */
#include "client/cut.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "client/client.h"
#include "proto/base/align.h"

static bool same_group(const struct kvw_group_record *a,
                       const struct kvw_group_record *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* The newest step that all ranks of a set have, in their newest era; ranks on other
 * nodes count as one more. */
static int common_step(const struct kvw_cache *cache, const struct cut_of *of,
                       struct cut *cut)
{
    cut->step = UINT64_MAX;
    cut->era = 0;
    cut->rewinds = 0;
    FOR_EACH_RANK(rank, of->ranks)
    {
        struct kvw_board *board = board_of(cache, (uint32_t)rank, of->lane);
        struct board_head head;
        int error = board_read_head(cache, (uint32_t)rank, of->lane, &head);
        if (error != 0)
            return error;
        cut->step = min_u64(cut->step, head.step);
        if (!of->is_here)
            cut->step = min_u64(cut->step, load_relaxed(&board->outside));
        cut->era = max_u64(cut->era, head.era);
        cut->rewinds += head.rewinds;
    }
    return 0;
}

/* One try. 0; -EAGAIN: somebody published meanwhile. */
static int try_cut(const struct kvw_cache *cache, const struct cut_of *of,
                   struct cut *cut)
{
    struct board_group read = {.group = of->group, .layer = of->layer};
    bool is_first = true;

    int error = common_step(cache, of, cut);
    if (error != 0)
        return error;
    FOR_EACH_RANK(rank, of->ranks)
    {
        uint64_t version;

        error = board_find_step(cache, (uint32_t)rank, of->lane, cut->step, &version);
        if (error == -ENOENT)
            return -EAGAIN;
        if (error == 0)
            error = board_read_group(cache, (uint32_t)rank, of->lane, version, &read);
        if (error != 0)
            return error;
        if (is_first) {
            cut->group = read.record;
            cut->floor = read.floor;
        } else if (!same_group(&cut->group, &read.record) || cut->floor != read.floor) {
            return -KVW_EDIVERGED;
        }
        is_first = false;
    }
    return 0;
}

/* One rank's newest record: one copy, one second look. */
static int newest(const struct kvw_cache *cache, const struct cut_of *of,
                  struct cut *cut)
{
    struct board_group read = {.group = of->group, .layer = of->layer};
    const uint32_t rank = (uint32_t)__builtin_ctzll(of->ranks);

    int error = board_read_group(cache, rank, of->lane, 0, &read);
    cut->step = read.head.step;
    cut->era = read.head.era;
    cut->rewinds = read.head.rewinds;
    cut->group = read.record;
    cut->floor = read.floor;
    return error;
}

/* True if a rank's newest step is the answer whatever other nodes have: the usual case.
 */
static bool is_newest_enough(const struct kvw_cache *cache, const struct cut_of *of)
{
    if ((of->ranks & (of->ranks - 1)) != 0)
        return false;
    if (of->is_here)
        return true;
    const uint32_t rank = (uint32_t)__builtin_ctzll(of->ranks);
    return load_relaxed(&board_of(cache, rank, of->lane)->outside) == UINT64_MAX;
}

int cut_take(const struct kvw_cache *cache, const struct cut_of *of, struct cut *cut)
{
    int error = -EAGAIN;

    if (is_newest_enough(cache, of))
        error = newest(cache, of, cut);
    else {
        /* Ranks that differ at one step while a recovery passes through are looked at
         * again; ranks that go on differing have diverged. */
        for (uint32_t tries = 0;
             tries < KVW_RETRIES_MAX && (error == -EAGAIN || error == -KVW_EDIVERGED);
             tries++)
            error = try_cut(cache, of, cut);
    }
    if (error == -KVW_EDIVERGED)
        return fail(error,
                    "'%s': lane %u, step %" PRIu64
                    ": the ranks published different records of group '%s'",
                    cache->name, of->lane, cut->step,
                    cache->geometry.group[of->group].name);
    if (error == -EAGAIN)
        return fail(error,
                    "'%s': lane %u: no step that all ranks have was found in %u tries; "
                    "they publish too fast, or one on another node is too far behind",
                    cache->name, of->lane, KVW_RETRIES_MAX);
    if (error != 0)
        return fail(error, "'%s': lane %u: a board was wiped or damaged", cache->name,
                    of->lane);
    return 0;
}

int cut_is_held(const struct kvw_cache *cache, const struct cut_of *of,
                const struct cut *cut, uint64_t low)
{
    const uint64_t ring_rows = cache->layout.group[of->group].ring_rows;
    uint64_t rewinds = 0;

    FOR_EACH_RANK(rank, of->ranks)
    {
        struct kvw_board *board = board_of(cache, (uint32_t)rank, of->lane);
        struct board_head head;

        /* H1 in pin.c came before this load: either it sees the claim, or the writer
         * sees the pin. H4, pairs with P3: as R2 in kvw_release(). */
        uint64_t want = load_acquire(&board_claim(cache, board, of->group)->want);
        if (rules_overwritten(ring_rows, want) > low)
            return 0;
        int error = board_read_head(cache, (uint32_t)rank, of->lane, &head);
        if (error != 0)
            return fail(error, "'%s': rank %u, lane %u: its board cannot be read",
                        cache->name, (uint32_t)rank, of->lane);
        rewinds += head.rewinds;
    }
    return rewinds == cut->rewinds;
}
