/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a cache that went with their node are computed again: the ids are on every node,
 * so all ranks replay them into a scratch cache of the same shape, and each lost part follows
 * it. Parts that were kept are not written; they are compared with the replay.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/generate/session.h"

struct replay {
    struct session *session; /* with parts that were lost */
    struct session scratch;
    const struct model *model;
    session_feed_fn *feed;
    void *context;
    uint32_t *id; /* of the whole text */
    uint64_t *shared;
};

/* Everybody gets the ids of the lowest rank that still has them. */
static int share_text(struct replay *replay, struct fail *fail)
{
    const struct session *session = replay->session;
    const struct ranks *ranks = session->ranks;
    const uint64_t n = session->ids_rows;
    const uint32_t speaker =
        ranks_lowest(ranks, session->has_ids && !session->place.is_new);

    replay->id = malloc(sizeof(replay->id[0]) * (n + 1));
    replay->shared =
        malloc(sizeof(replay->shared[0]) * session->plan.settings.chunk_rows);
    if (replay->id == NULL || replay->shared == NULL)
        (void)fail_memory(fail, "the ids of the text");
    else if (ranks->rank == speaker)
        (void)session_read_ids(session, 0, n, replay->id, fail);
    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    ranks_broadcast(replay->id, sizeof(replay->id[0]) * n, speaker);
    return 0;
}

static int open_scratch(struct replay *replay, struct fail *fail)
{
    const struct session *session = replay->session;
    struct session *scratch = &replay->scratch;

    *scratch = (struct session){
        .plan = session->plan,
        .config = session->config,
        .ranks = session->ranks,
        .socket = session->socket,
    };
    scratch->plan.is_kept = false;
    if (snprintf(scratch->plan.name, sizeof(scratch->plan.name), "%.43s.replay",
                 session->plan.name) < 0)
        return -EINVAL;
    return session_attach(scratch, fail);
}

static int follow(struct replay *replay, struct fail *fail)
{
    int result = kvw_mpi_follow(replay->session->mpi, replay->scratch.mpi, 0);

    if (result < 0)
        return session_refused_mpi(replay->session, fail, "follow", result);
    return 0;
}

/* One step of rows, as the text had them; the ids are there already. */
static int feed_rows(struct replay *replay, uint64_t n, struct fail *fail)
{
    struct session *scratch = &replay->scratch;

    for (uint64_t i = 0; i < n; i++)
        replay->shared[i] = replay->id[scratch->rows + i];
    if (session_begin(scratch, n, 0, fail) != 0)
        return -EINVAL;
    replay->feed(replay->context, scratch, replay->shared, fail);
    if (has_failed(fail) || session_commit(scratch, fail) != 0)
        return -EINVAL;
    return follow(replay, fail);
}

static int run_replay(struct replay *replay, struct fail *fail)
{
    struct session *scratch = &replay->scratch;
    const struct session *session = replay->session;
    const struct prompt text = {replay->id, session->ids_rows};

    if (session_begin_text(scratch, replay->model, &text, fail) == 0)
        (void)follow(replay, fail);
    if (ranks_agree(session->ranks, fail) != 0)
        return -EINVAL;
    while (scratch->rows < session->rows) {
        const uint64_t left = session->rows - scratch->rows;
        const uint64_t most = session->plan.settings.chunk_rows;
        const uint64_t rows = scratch->rows + (left < most ? left : most);
        (void)feed_rows(replay, rows - scratch->rows, fail);
        if (ranks_agree(session->ranks, fail) != 0)
            return -EINVAL;
    }
    return 0;
}

/* Compare what was kept, and bring what was lost to the step of the others. */
static int finish(struct replay *replay, struct fail *fail)
{
    struct session *session = replay->session;
    uint64_t n_rows = 0, n_wrong = 0;
    int result = 0;

    if (!session->place.is_new)
        result =
            kvw_mpi_compare(session->mpi, replay->scratch.mpi, 0, &n_rows, &n_wrong);
    if (result == 0)
        result = kvw_mpi_fill(session->mpi, 0, session->step);
    if (result < 0)
        (void)session_refused_mpi(session, fail, "rebuild", result);
    if (ranks_agree(session->ranks, fail) != 0)
        return -EINVAL;
    n_rows = ranks_sum(n_rows);
    n_wrong = ranks_sum(n_wrong);
    if (ranks_is_first(session->ranks))
        fprintf(stderr,
                "kvwheel-generate: rebuilt %u of %u parts, lost with their node, by "
                "replaying "
                "%" PRIu64 " ids; %" PRIu64
                " kept rows compared with the replay, %" PRIu64 " differ\n",
                session->place.n_new, session->place.n_boxes, session->rows, n_rows,
                n_wrong);
    if (n_wrong > 0)
        (void)fail_set(
            fail, FAIL_RESUME,
            "--resume: %" PRIu64 " of %" PRIu64
            " kept rows of %s are not what the ids give: it was begun by another "
            "model, kernel or version",
            n_wrong, n_rows, session->plan.name);
    return ranks_agree(session->ranks, fail);
}

int session_rebuild(struct session *session, const struct model *model,
                    session_feed_fn *feed, void *context, struct fail *fail)
{
    struct replay replay = {
        .session = session, .model = model, .feed = feed, .context = context};
    int result = share_text(&replay, fail);

    if (result == 0)
        result = open_scratch(&replay, fail);
    if (result == 0)
        result = run_replay(&replay, fail);
    if (result == 0)
        result = finish(&replay, fail);
    session_close(&replay.scratch);
    free(replay.id);
    free(replay.shared);
    return result;
}
