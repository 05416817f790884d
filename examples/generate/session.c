/* SPDX-License-Identifier: Apache-2.0 */
/* Attachment, steps and ids of one text. */
#include "examples/generate/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int session_refused_mpi(const struct session *session, struct fail *fail,
                        const char *what, int error)
{
    const char *words = kvw_mpi_last_error();

    if (error == -ETIMEDOUT || error == -EPIPE)
        ranks_abort(session->ranks, words);
    return fail_set(fail, FAIL_CACHE, "kvwheel: %s: %s", what,
                    words[0] != '\0' ? words : kvw_strerror(error));
}

int session_heads(const struct session *session, uint32_t rank, struct share *heads,
                  struct fail *fail)
{
    struct kvw_mpi_place place = {0};
    struct kvw_part part;
    int result = -ERANGE;

    for (uint32_t p = 0; p < session->place.n_places; p++) {
        result = kvw_mpi_place(session->mpi, p, &place);
        if (result < 0 || place.rank == rank)
            break;
    }
    if (result == 0)
        result = kvw_mpi_part(session->mpi, session->group_self, place.place, &part);
    if (result < 0)
        return session_refused_mpi(session, fail, "heads of a rank", result);
    *heads = (struct share){part.head_first, part.n_heads};
    return 0;
}

bool session_gives_heads(const struct session *session, uint32_t rank)
{
    struct kvw_mpi_place place;

    for (uint32_t p = 0; p < session->place.n_places; p++) {
        if (kvw_mpi_place(session->mpi, p, &place) == 0 && place.rank == rank)
            return place.row_part == 0;
    }
    return false;
}

/* Groups, layers and heads of the attached cache. */
static int find_layers(struct session *session, uint32_t rank, struct fail *fail)
{
    const uint32_t n_layers = session->config.n_layers;
    int groups[3] = {kvw_group(session->cache, "self"),
                     kvw_group(session->cache, "ids"),
                     kvw_group(session->cache, "job")};
    int result = 0;

    for (int i = 0; i < 3; i++) {
        if (groups[i] < 0)
            return cache_refused(fail, "groups of the cache", groups[i]);
    }
    session->group_self = (uint32_t)groups[0];
    session->group_ids = (uint32_t)groups[1];
    session->group_job = (uint32_t)groups[2];
    session->self = calloc(n_layers, sizeof(session->self[0]));
    if (session->self == NULL)
        return fail_memory(fail, "the table of layers");
    for (uint32_t i = 0; i < n_layers && result == 0; i++)
        result = kvw_layer_of(session->cache, "self", i, &session->self[i]);
    if (result == 0)
        result = kvw_layer_of(session->cache, "ids", 0, &session->ids);
    if (result == 0)
        result = kvw_layer_of(session->cache, "job", 0, &session->job);
    if (result < 0)
        return cache_refused(fail, "layers of the cache", result);
    return session_heads(session, rank, &session->kv_heads, fail);
}

/* Who holds ids and job: of one box its first rank, else every rank. */
static int find_holder(struct session *session, struct fail *fail)
{
    struct kvw_part part;
    int result = kvw_cache_part(session->cache, session->group_ids,
                                kvw_cache_rank(session->cache), &part);

    if (result < 0)
        return cache_refused(fail, "who holds the ids", result);
    session->has_ids = part.n_heads > 0;
    return 0;
}

/* After a job that died its boxes may stand at different steps: go back to the last one that
 * all have. What was lost has no say, so the largest numbers are those of the text. */
static int settle(struct session *session, struct fail *fail)
{
    struct kvw_lane_state state = {0};
    int result = kvw_mpi_recover(session->mpi, 0, &session->step);

    if (result < 0)
        (void)session_refused_mpi(session, fail, "recover", result);
    else if ((result = kvw_mpi_state(session->mpi, 0, &state)) < 0)
        (void)session_refused_mpi(session, fail, "state", result);
    uint64_t numbers[3] = {state.group[session->group_self].rows,
                           state.group[session->group_ids].rows,
                           state.group[session->group_job].rows};
    if (ranks_agree(session->ranks, fail) != 0)
        return -EINVAL;
    ranks_max(session->ranks, numbers, 3);
    session->rows = numbers[0];
    session->ids_rows = numbers[1];
    session->plan.is_resumed = numbers[2] > 0;
    session->plan.resumed_row = session->rows;
    return 0;
}

int session_attach(struct session *session, struct fail *fail)
{
    struct kvw_mpi_options options;
    struct kvw_spec spec;
    int result;

    (void)session_spec(session, session->ranks, &spec, &options, fail);
    if (ranks_agree(session->ranks, fail) != 0)
        return -EINVAL;
    result = kvw_mpi_init(MPI_COMM_WORLD, &spec, &options, &session->mpi);
    if (result < 0)
        return session_refused_mpi(session, fail, "open", result);
    session->cache = kvw_mpi_cache(session->mpi);
    result = kvw_mpi_place(session->mpi, KVW_READER, &session->place);
    if (result < 0)
        (void)session_refused_mpi(session, fail, "place", result);
    else if (find_layers(session, session->ranks->rank, fail) == 0)
        (void)find_holder(session, fail);
    return ranks_agree(session->ranks, fail);
}

bool session_has_lost(const struct session *session)
{
    return session->place.n_new > 0 && session->step > 0;
}

/* Rank 0: a text that had not begun, in a cache that may have been found. */
static int check_new_text(struct session *session, const struct options *options,
                          const struct prompt *prompt, struct fail *fail)
{
    const uint64_t need = prompt->n + options->n_tokens;

    if (prompt->n == 0)
        return fail_set(fail, FAIL_USAGE,
                        "--resume: the text in %s has not begun: need --prompt",
                        session->plan.name);
    if (need > session->plan.ids_max)
        return fail_set(fail, FAIL_RESUME,
                        "--tokens: %s has room for %" PRIu64
                        " ids, prompt and tokens need "
                        "%" PRIu64 ": begin another cache",
                        session->plan.name, session->plan.ids_max, need);
    session->plan.prompt_rows = prompt->n;
    return 0;
}

int session_open(struct session *session, const struct options *options,
                 const struct model *model, const struct prompt *prompt,
                 const struct ranks *ranks, struct fail *fail)
{
    *session = (struct session){.config = model->config, .ranks = ranks};
    if (session_prepare(session, options, prompt, ranks, fail) != 0 ||
        session_attach(session, fail) != 0 || settle(session, fail) != 0)
        return -EINVAL;

    /* A rank that has the job speaks for all. */
    const uint32_t speaker =
        ranks_lowest(ranks, session->has_ids &&
                                (!session->place.is_new || !session->plan.is_resumed));
    const bool is_speaker = ranks->rank == speaker;
    if (is_speaker && session->plan.is_resumed)
        (void)session_adopt_text(session, options, model, prompt, fail);
    if (is_speaker && !session->plan.is_resumed)
        (void)check_new_text(session, options, prompt, fail);
    if (speaker == ranks->n_ranks)
        (void)fail_set(fail, FAIL_RESUME, "--resume: no rank has the job of %s",
                       session->plan.name);
    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    ranks_broadcast(&session->plan, sizeof(session->plan), speaker);
    if (!session->plan.is_resumed)
        (void)session_begin_text(session, model, prompt, fail);
    return ranks_agree(ranks, fail);
}

void session_close(struct session *session)
{
    kvw_mpi_fini(session->mpi);
    free(session->self);
    *session = (struct session){0};
}

int session_read_ids(const struct session *session, uint64_t first, uint64_t n,
                     uint32_t *id, struct fail *fail)
{
    return cache_read_rows(session->cache, session->ids, "ids", first, n, sizeof(id[0]),
                           id, fail);
}

int session_begin(struct session *session, uint64_t n_rows, uint64_t n_ids,
                  struct fail *fail)
{
    struct kvw_item items[2];
    struct kvw_begun begun[2];
    uint32_t n_items = 0;

    if (n_rows > 0)
        items[n_items++] = (struct kvw_item){
            .group = session->group_self, .row = session->rows, .n = n_rows};
    if (n_ids > 0)
        items[n_items++] = (struct kvw_item){
            .group = session->group_ids, .row = session->ids_rows, .n = n_ids};
    int result = kvw_mpi_begin(session->mpi, 0, items, n_items, begun);
    if (result < 0)
        return session_refused_mpi(session, fail, "begin", result);
    session->open_rows = n_rows;
    session->open_ids = n_ids;
    session->position = begun[0].position;
    return 0;
}

int session_write_ids(struct session *session, const uint32_t *id, struct fail *fail)
{
    const struct kvw_source source = {id, sizeof(id[0]), 0};
    int result =
        kvw_update(session->cache, 0, session->ids, 0, session->open_ids, &source);

    if (result < 0)
        return cache_refused(fail, "update of ids", result);
    session->bytes_written += session->open_ids * sizeof(id[0]);
    return 0;
}

int session_commit(struct session *session, struct fail *fail)
{
    int result = kvw_mpi_commit(session->mpi, 0);

    if (result < 0)
        return session_refused_mpi(session, fail, "commit", result);
    session->rows += session->open_rows;
    session->ids_rows += session->open_ids;
    session->open_rows = 0;
    session->open_ids = 0;
    return 0;
}

uint64_t session_row_bytes(const struct session *session, uint64_t rows)
{
    const uint64_t element_bytes = session->plan.settings.type == KVW_F32 ? 4 : 2;

    return rows * 2 * session->config.n_layers * session->config.n_kv_heads *
           session->config.head_dim * element_bytes;
}
