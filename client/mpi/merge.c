/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partial results go round a row group and are merged in the order of its boxes.
 *
 * Member m computes an interval of heads over its box's rows (all of them where a box has
 * one row part) and takes an interval of the result (all of them, or its share). So the
 * message from m to d is what m computes of what d takes. A head's numbers lie together, so a
 * message is a run of the buffer, and can leave as soon as its heads are computed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/mpi/inside.h"

#define TURNS_GATHERED 2u /* computing the second half hides the first one's way */

struct interval intersect(struct interval a, struct interval b)
{
    const uint32_t first = max_u32(a.first, b.first);
    const uint32_t end = min_u32(a.first + a.n, b.first + b.n);

    return (struct interval){first, end > first ? end - first : 0};
}

static struct interval share_of(uint32_t n, uint32_t parts, uint32_t part)
{
    struct interval share;

    kvw_mpi_share(n, parts, part, &share.first, &share.n);
    return share;
}

struct interval team_computes(const struct team *team, uint32_t member)
{
    return share_of(team->n_heads, team->slices, member % team->slices);
}

struct interval team_gets(const struct team *team, uint32_t member)
{
    if (!team->is_by_heads)
        return (struct interval){0, team->n_heads};
    return share_of(team->n_heads, team->n_members, member);
}

size_t team_head_floats(const struct team *team)
{
    return (size_t)team->n_q * (team->head_dim + 1u);
}

size_t team_floats(const struct team *team)
{
    size_t heads = team_computes(team, team->me).n;

    for (uint32_t m = 0; m < team->n_members; m++) {
        if (m != team->me)
            heads += intersect(team_computes(team, m), team_gets(team, team->me)).n;
    }
    return heads * team_head_floats(team);
}

int memory_reserve(struct kvw_mpi *mpi, size_t n_floats)
{
    if (n_floats <= mpi->memory_floats)
        return 0;
    float *larger = realloc(mpi->memory, n_floats * sizeof larger[0]);
    if (larger == NULL)
        return told(-ENOMEM, "attend: no memory for %zu floats", n_floats);
    mpi->memory = larger;
    mpi->memory_floats = n_floats;
    return 0;
}

/* ------------------------------------------------------------------- turns -------- */

static uint32_t n_turns(const struct team *team)
{
    return team->is_by_heads ? team->n_members : TURNS_GATHERED;
}

/* What member `from` computes in a turn. By heads: for the member after it first, for itself
 * last. */
static struct interval turn_of(const struct team *team, uint32_t from, uint32_t turn)
{
    const struct interval computes = team_computes(team, from);

    if (team->is_by_heads) {
        const uint32_t to = (from + 1 + turn) % team->n_members;
        return intersect(computes, team_gets(team, to));
    }
    struct interval part = share_of(computes.n, TURNS_GATHERED, turn);
    part.first += computes.first;
    return part;
}

bool team_turn(const struct team *team, uint32_t turn, struct interval *heads)
{
    if (turn >= n_turns(team))
        return false;
    *heads = turn_of(team, team->me, turn);
    return true;
}

/* Does `to` get what `from` computes in a turn? */
static bool is_for(const struct team *team, uint32_t from, uint32_t turn, uint32_t to)
{
    return !team->is_by_heads || (from + 1 + turn) % team->n_members == to;
}

int team_start(struct team *team, float *memory)
{
    const size_t head_floats = team_head_floats(team);
    int error = 0;

    team->exchange.n = 0;
    team->mine = memory;
    memory += team_computes(team, team->me).n * head_floats;
    for (uint32_t m = 0; m < team->n_members && error == 0; m++) {
        if (m == team->me)
            continue;
        team->theirs[m] = memory;
        for (uint32_t turn = 0; turn < n_turns(team) && error == 0; turn++) {
            if (!is_for(team, m, turn, team->me))
                continue;
            const size_t n_floats = turn_of(team, m, turn).n * head_floats;
            error = exchange_receive(team->mpi, &team->exchange, team->place_first + m,
                                     TAG_PARTIAL, memory, n_floats * sizeof(float));
            memory += n_floats;
        }
    }
    return error;
}

int team_send(struct team *team, uint32_t turn)
{
    const size_t head_floats = team_head_floats(team);
    const struct interval heads = turn_of(team, team->me, turn);
    const size_t n_bytes = heads.n * head_floats * sizeof(float);
    const float *from =
        team->mine + (heads.first - team_computes(team, team->me).first) * head_floats;
    int error = 0;

    for (uint32_t i = 1; i < team->n_members && error == 0; i++) {
        const uint32_t to = (team->me + i) % team->n_members;
        if (!is_for(team, team->me, turn, to))
            continue;
        error = exchange_send(team->mpi, &team->exchange, team->place_first + to,
                              TAG_PARTIAL, from, n_bytes);
        team->mpi->counters.partial_bytes += n_bytes;
    }
    return error != 0 ? error : exchange_poke(team->mpi, &team->exchange);
}

/* ----------------------------------------------------------------- merging -------- */

/* Heads [heads) of what member m computed. */
static struct kvw_attn_part part_of(const struct team *team, uint32_t m,
                                    struct interval heads)
{
    const size_t head_floats = team_head_floats(team);
    const struct interval computes = team_computes(team, m);
    const struct interval there =
        m == team->me ? computes : intersect(computes, team_gets(team, team->me));
    const float *from = (m == team->me ? team->mine : team->theirs[m]) +
                        (heads.first - there.first) * head_floats;

    return (struct kvw_attn_part){
        .out = from,
        .lse = from + (size_t)team->n_q * team->head_dim,
        .out_row_stride = (ptrdiff_t)(team->head_dim * sizeof(float)),
        .out_head_stride = (ptrdiff_t)(head_floats * sizeof(float)),
        .lse_row_stride = sizeof(float),
        .lse_head_stride = (ptrdiff_t)(head_floats * sizeof(float)),
    };
}

/* The heads of one slice: a part from each box, in their order. */
static int merge_slice(const struct team *team, uint32_t slice,
                       const struct team_result *result)
{
    const struct interval due = team_gets(team, team->me);
    const struct interval heads = intersect(team_computes(team, slice), due);
    struct kvw_attn_part parts[KVW_RANKS_MAX];
    const ptrdiff_t skip = (ptrdiff_t)heads.first - (ptrdiff_t)due.first;
    uint32_t n = 0;

    if (heads.n == 0)
        return 0;
    for (uint32_t m = slice; m < team->n_members; m += team->slices)
        parts[n++] = part_of(team, m, heads);
    const struct kvw_merge_args args = {
        .parts = parts,
        .n_parts = n,
        .n_q = team->n_q,
        .n_heads = heads.n,
        .head_dim = team->head_dim,
        .out = (float *)(void *)((char *)result->out + skip * result->out_head_stride),
        .out_row_stride = result->out_row_stride,
        .out_head_stride = result->out_head_stride,
        .lse = result->lse == NULL ? NULL
                                   : (float *)(void *)((char *)result->lse +
                                                       skip * result->lse_head_stride),
        .lse_row_stride = result->lse_row_stride,
        .lse_head_stride = result->lse_head_stride,
    };
    int error = kvw_attn_merge(&args);
    return error == 0 ? 0 : told(error, "merge: refused by the kernels (%d)", error);
}

int team_finish(struct team *team, const struct team_result *result, const char *what)
{
    int error = exchange_wait(team->mpi, &team->exchange, what);

    for (uint32_t slice = 0; slice < team->slices && error == 0; slice++)
        error = merge_slice(team, slice, result);
    return error;
}

/* ---------------------------------------------------- results of other kernels ---- */

static void pack(const struct kvw_mpi_merge *merge, struct team *team)
{
    const size_t head_floats = team_head_floats(team);
    const struct kvw_attn_part *part = &merge->part;

    for (uint32_t head = 0; head < merge->n_heads; head++) {
        float *to = team->mine + head * head_floats;
        float *lse = to + (size_t)merge->n_q * merge->head_dim;
        for (uint32_t i = 0; i < merge->n_q; i++) {
            const ptrdiff_t at =
                i * part->out_row_stride + head * part->out_head_stride;
            const ptrdiff_t lse_at =
                i * part->lse_row_stride + head * part->lse_head_stride;
            memcpy(to + (size_t)i * merge->head_dim, (const char *)part->out + at,
                   merge->head_dim * sizeof(float));
            memcpy(&lse[i], (const char *)part->lse + lse_at, sizeof lse[i]);
        }
    }
}

int kvw_mpi_merge(struct kvw_mpi *mpi, const struct kvw_mpi_merge *merge)
{
    const uint32_t n_members = mpi->grid.parts[AXIS_ROW];
    struct team team = {
        .mpi = mpi,
        .n_members = n_members,
        .me = mpi->place % n_members,
        .slices = 1,
        .n_heads = merge->n_heads,
        .n_q = merge->n_q,
        .head_dim = merge->head_dim,
        .is_by_heads = (merge->flags & KVW_MPI_RESULT_BY_HEADS) != 0,
        .place_first = mpi->place - mpi->place % n_members,
    };
    const struct team_result result = {
        merge->out, merge->out_row_stride, merge->out_head_stride,
        merge->lse, merge->lse_row_stride, merge->lse_head_stride};
    struct interval heads;

    int error = check_whole(mpi, "merge");
    if (error == 0 && (merge->n_heads == 0 || merge->head_dim == 0 ||
                       merge->head_dim > KVW_HEAD_DIM_MAX))
        error = told(-EINVAL, "merge: need heads and a head_dim of 1 to %u",
                     KVW_HEAD_DIM_MAX);
    if (error == 0)
        error = memory_reserve(mpi, team_floats(&team));
    if (error == 0)
        error = team_start(&team, mpi->memory);
    if (error == 0)
        pack(merge, &team);
    for (uint32_t turn = 0; error == 0 && team_turn(&team, turn, &heads); turn++)
        error = team_send(&team, turn);
    if (error != 0) {
        exchange_drop(&team.exchange);
        return error;
    }
    return team_finish(&team, &result, "merge");
}
