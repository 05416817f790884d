/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over rows that lie on several ranks: queries come together if need be, each rank
 * attends to the rows of its box, and the partial results are merged (merge.c).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/mpi/inside.h"

#define WHAT_BYTES 128

/* One call: everything that its parts need. */
struct call {
    struct kvw_mpi *mpi;
    const struct kvw_mpi_attend *attend;
    struct sight sight;
    struct team team;
    uint32_t n_per_kv; /* query heads of a KV head */
    bool has_sinks;    /* the logits are counted here */
    const float *q;    /* of all heads, and their strides */
    ptrdiff_t q_row_stride;
    ptrdiff_t q_head_stride;
    char what[WHAT_BYTES];
};

/* The kernel, for heads that are whole groups of KV heads or lie within one. */
static int run_kernel(struct call *call, struct interval heads,
                      const struct team_result *to)
{
    const struct kvw_mpi_attend *attend = call->attend;
    const struct sight *sight = &call->sight;
    const struct kvw_spec_group *group = &call->mpi->spec.group[sight->group];

    sight_turn(call->mpi, &call->sight, heads.first / call->n_per_kv);
    const struct kvw_attn_args args = {
        .q = skip_bytes(call->q, heads.first * call->q_head_stride),
        .q_row_stride = call->q_row_stride,
        .q_head_stride = call->q_head_stride,
        .n_q = attend->n_q,
        .n_q_heads = heads.n,
        .n_kv_heads = heads.n > call->n_per_kv ? heads.n / call->n_per_kv : 1,
        .head_dim_k = sight->head_dim_k,
        .head_dim_v = sight->head_dim_v,
        .kv_type = sight->kv_type,
        .pieces = call->mpi->piece,
        .n_pieces = sight->n_pieces,
        .mask = sight->is_row_kind ? KVW_ATTN_CAUSAL : KVW_ATTN_NONE,
        .q_first_row = attend->q_first_row,
        .window_rows = sight->is_row_kind ? group->window_rows : 0,
        .sink_rows = sight->is_row_kind ? group->sink_rows : 0,
        .scale = attend->scale,
        .softcap = attend->softcap,
        .sink_logits = call->has_sinks ? attend->sink_logits + heads.first : NULL,
        .rope = attend->rope,
        .out = to->out,
        .out_row_stride = to->out_row_stride,
        .out_head_stride = to->out_head_stride,
        .lse = to->lse,
        .lse_row_stride = to->lse_row_stride,
        .lse_head_stride = to->lse_head_stride,
        .n_threads = attend->n_threads,
    };
    int error = kvw_attn_run(&args);
    return error == 0 ? 0 : told(error, "attend: refused by the kernels (%d)", error);
}

/* Any interval of heads: what is left of a KV head, whole ones, the beginning of one. */
static int compute(struct call *call, struct interval heads, struct team_result to)
{
    const uint32_t end = heads.first + heads.n;
    int error = 0;

    for (uint32_t at = heads.first; at < end && error == 0;) {
        const uint32_t into = at % call->n_per_kv;
        const uint32_t left = end - at;
        uint32_t n = left / call->n_per_kv * call->n_per_kv;
        if (into != 0 || n == 0)
            n = min_u32(call->n_per_kv - into, left);
        error = run_kernel(call, (struct interval){at, n}, &to);
        to.out = (float *)(void *)((char *)to.out + n * to.out_head_stride);
        if (to.lse != NULL)
            to.lse = (float *)(void *)((char *)to.lse + n * to.lse_head_stride);
        at += n;
    }
    return error;
}

/* ------------------------------------------------------------------ queries ------- */

static struct interval query_share(const struct team *team, uint32_t member)
{
    struct interval share;

    kvw_mpi_share(team->n_heads, team->n_members, member, &share.first, &share.n);
    return share;
}

/* Floats of a head's queries, packed. */
static size_t query_floats(const struct call *call)
{
    return (size_t)call->attend->n_q * call->sight.head_dim_k;
}

static void pack_queries(const struct call *call, float *all)
{
    const struct kvw_mpi_attend *attend = call->attend;
    const struct interval share = query_share(&call->team, call->team.me);
    const uint32_t dim = call->sight.head_dim_k;

    for (uint32_t head = 0; head < share.n; head++) {
        float *to = all + (share.first + head) * query_floats(call);
        for (uint32_t i = 0; i < attend->n_q; i++) {
            const ptrdiff_t at =
                i * attend->q_row_stride + head * attend->q_head_stride;
            memcpy(to + (size_t)i * dim, skip_bytes(attend->q, at),
                   dim * sizeof(float));
        }
    }
}

/* Give each member the queries that it computes with, and take one's own. */
static int gather_queries(struct call *call, float *all)
{
    const struct team *team = &call->team;
    const size_t floats = query_floats(call);
    const struct interval share = query_share(team, team->me);
    struct exchange exchange = {.n = 0};
    int error = 0;

    pack_queries(call, all);
    for (uint32_t i = 1; i < team->n_members && error == 0; i++) {
        const uint32_t m = (team->me + i) % team->n_members;
        const uint32_t place = team->place_first + m;
        const struct interval theirs =
            intersect(query_share(team, m), team_computes(team, team->me));
        const struct interval ours = intersect(share, team_computes(team, m));
        error = exchange_receive(call->mpi, &exchange, place, TAG_QUERY,
                                 all + theirs.first * floats,
                                 theirs.n * floats * sizeof(float));
        if (error == 0)
            error = exchange_send(call->mpi, &exchange, place, TAG_QUERY,
                                  all + ours.first * floats,
                                  ours.n * floats * sizeof(float));
        call->mpi->counters.query_bytes += ours.n * floats * sizeof(float);
    }
    if (error != 0) {
        exchange_drop(&exchange);
        return error;
    }
    call->q = all;
    call->q_row_stride = (ptrdiff_t)(call->sight.head_dim_k * sizeof(float));
    call->q_head_stride = (ptrdiff_t)(floats * sizeof(float));
    return exchange_wait(call->mpi, &exchange, call->what);
}

/* --------------------------------------------------------------------- call ------- */

static int set_team(struct call *call)
{
    struct kvw_mpi *mpi = call->mpi;
    const struct kvw_mpi_attend *attend = call->attend;
    const uint32_t n_kv = call->sight.view.n_heads;
    const bool is_whole = mpi->group[call->sight.group].is_whole;
    const uint32_t n_members = is_whole ? 1 : mpi->grid.parts[AXIS_ROW];

    if (n_kv == 0 || attend->n_q_heads == 0 || attend->n_q_heads % n_kv != 0)
        return told(-EINVAL,
                    "attend: n_q_heads: need a multiple of %u KV heads, have %u", n_kv,
                    attend->n_q_heads);
    call->n_per_kv = attend->n_q_heads / n_kv;
    call->team = (struct team){
        .mpi = mpi,
        .n_members = n_members,
        .me = mpi->place % n_members,
        .slices = is_whole ? 1 : mpi->grid.in_box[AXIS_ROW],
        .n_heads = attend->n_q_heads,
        .n_q = attend->n_q,
        .head_dim = call->sight.head_dim_v,
        .is_by_heads = (attend->flags & KVW_MPI_RESULT_BY_HEADS) != 0,
        .place_first = mpi->place - mpi->place % n_members,
    };
    /* A logit is counted once: where the first rows are. */
    call->has_sinks =
        attend->sink_logits != NULL && call->team.me / call->team.slices == 0;
    call->q = attend->q;
    call->q_row_stride = attend->q_row_stride;
    call->q_head_stride = attend->q_head_stride;
    snprintf(call->what, sizeof call->what,
             "attend: lane %u, layer %u, step %" PRIu64 ", row %" PRIu64, attend->lane,
             attend->layer.index, call->sight.step, call->sight.row);
    return 0;
}

static int attend_all(struct call *call, const struct team_result *result)
{
    struct team *team = &call->team;
    const size_t head_floats = team_head_floats(team);
    const uint32_t first = team_computes(team, team->me).first;
    struct interval heads;

    int error = team_start(team, call->mpi->memory);
    for (uint32_t turn = 0; error == 0 && team_turn(team, turn, &heads); turn++) {
        float *out = team->mine + (heads.first - first) * head_floats;
        const struct team_result to = {
            out,
            (ptrdiff_t)(team->head_dim * sizeof(float)),
            (ptrdiff_t)(head_floats * sizeof(float)),
            out + (size_t)team->n_q * team->head_dim,
            sizeof(float),
            (ptrdiff_t)(head_floats * sizeof(float)),
        };
        error = compute(call, heads, to);
        if (error == 0)
            error = team_send(team, turn);
    }
    if (error != 0) {
        exchange_drop(&team->exchange);
        return error;
    }
    return team_finish(team, result, call->what);
}

/* With queries in place: alone, or with the others of the row group. */
static int attend_here(struct call *call)
{
    const struct kvw_mpi_attend *attend = call->attend;
    const struct team_result result = {
        attend->out, attend->out_row_stride, attend->out_head_stride,
        attend->lse, attend->lse_row_stride, attend->lse_head_stride};
    const bool is_gathering =
        call->team.n_members > 1 && (attend->flags & KVW_MPI_QUERIES_BY_HEADS) != 0;
    const size_t floats = call->team.n_members > 1 ? team_floats(&call->team) : 0;

    if (attend->n_q == 0)
        return 0;
    int error = memory_reserve(
        call->mpi,
        floats + (is_gathering ? attend->n_q_heads * query_floats(call) : 0));
    if (error == 0 && is_gathering)
        error = gather_queries(call, call->mpi->memory + floats);
    if (error != 0)
        return error;
    if (call->team.n_members == 1)
        return compute(call, (struct interval){0, attend->n_q_heads}, result);
    return attend_all(call, &result);
}

int kvw_mpi_attend(struct kvw_mpi *mpi, const struct kvw_mpi_attend *attend)
{
    struct call call = {.mpi = mpi, .attend = attend};

    int error = sight_begin(mpi, attend, &call.sight);
    if (error != 0)
        return error;
    error = set_team(&call);
    if (error == 0)
        error = attend_here(&call);
    return sight_end(mpi, &call.sight, error);
}
