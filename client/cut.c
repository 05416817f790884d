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

/* The newest step that all ranks of a set have, in their newest era. */
static int common_step(const struct kvw_cache *cache, uint32_t lane, uint64_t ranks,
                       struct cut *cut)
{
    cut->step = UINT64_MAX;
    cut->era = 0;
    cut->rewinds = 0;
    FOR_EACH_RANK(rank, ranks)
    {
        struct board_head head;
        int error = board_read_head(cache, (uint32_t)rank, lane, &head);
        if (error != 0)
            return error;
        cut->step = min_u64(cut->step, head.step);
        cut->era = max_u64(cut->era, head.era);
        cut->rewinds += head.rewinds;
    }
    return 0;
}

/* One try. 0; -EAGAIN: somebody published meanwhile. */
static int try_cut(const struct kvw_cache *cache, uint32_t lane, uint64_t ranks,
                   uint32_t group, uint32_t layer, struct cut *cut)
{
    bool is_first = true;

    int error = common_step(cache, lane, ranks, cut);
    if (error != 0)
        return error;
    FOR_EACH_RANK(rank, ranks)
    {
        struct kvw_group_record record;
        struct board_head head;
        uint64_t version;
        uint64_t floor = 0;

        error = board_find_step(cache, (uint32_t)rank, lane, cut->step, &version);
        if (error == -ENOENT)
            return -EAGAIN;
        if (error == 0)
            error = board_read_group(cache, (uint32_t)rank, lane, version, group, layer,
                                     &head, &record, &floor);
        if (error != 0)
            return error;
        if (is_first) {
            cut->group = record;
            cut->floor = floor;
        } else if (!same_group(&cut->group, &record) || cut->floor != floor) {
            return -KVW_EDIVERGED;
        }
        is_first = false;
    }
    return 0;
}

/* The usual case: one rank, one record, one second look. */
static int single(const struct kvw_cache *cache, uint32_t lane, uint32_t rank,
                  uint32_t group, uint32_t layer, struct cut *cut)
{
    struct board_head head;

    cut->floor = 0;
    int error = board_read_group(cache, rank, lane, 0, group, layer, &head, &cut->group,
                                 &cut->floor);
    cut->step = head.step;
    cut->era = head.era;
    cut->rewinds = head.rewinds;
    return error;
}

int cut_take(const struct kvw_cache *cache, uint32_t lane, uint64_t ranks,
             uint32_t group, uint32_t layer, struct cut *cut)
{
    int error = -EAGAIN;

    if ((ranks & (ranks - 1)) == 0) {
        error =
            single(cache, lane, (uint32_t)__builtin_ctzll(ranks), group, layer, cut);
    } else {
        /* Ranks that differ at one step while a recovery passes through are looked at
         * again; ranks that go on differing have diverged. */
        for (uint32_t tries = 0;
             tries < KVW_RETRIES_MAX && (error == -EAGAIN || error == -KVW_EDIVERGED);
             tries++)
            error = try_cut(cache, lane, ranks, group, layer, cut);
    }
    if (error == -KVW_EDIVERGED)
        return fail(error,
                    "'%s': lane %u, step %" PRIu64
                    ": the ranks published different records of group '%s'",
                    cache->name, lane, cut->step, cache->geometry.group[group].name);
    if (error == -EAGAIN)
        return fail(error,
                    "'%s': lane %u: its ranks published %u times while it was read",
                    cache->name, lane, KVW_RETRIES_MAX);
    if (error != 0)
        return fail(error, "'%s': lane %u: a board was wiped or damaged", cache->name,
                    lane);
    return 0;
}

int cut_is_held(const struct kvw_cache *cache, uint32_t lane, uint64_t ranks,
                uint32_t group, const struct cut *cut, uint64_t low)
{
    const uint64_t ring_rows = cache->layout.group[group].ring_rows;
    uint64_t rewinds = 0;

    FOR_EACH_RANK(rank, ranks)
    {
        struct kvw_board *board = board_of(cache, (uint32_t)rank, lane);
        struct board_head head;

        /* H1 in pin.c came before this load: either it sees the claim, or the writer
         * sees the pin. */
        uint64_t want = load_relaxed(&board_claim(cache, board, group)->want);
        if (rules_overwritten(ring_rows, want) > low)
            return 0;
        int error = board_read_head(cache, (uint32_t)rank, lane, &head);
        if (error != 0)
            return fail(error, "'%s': rank %u, lane %u: its board cannot be read",
                        cache->name, (uint32_t)rank, lane);
        rewinds += head.rewinds;
    }
    return rewinds == cut->rewinds;
}
