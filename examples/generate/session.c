/* SPDX-License-Identifier: Apache-2.0 */
/* Attachment, steps and ids of one text. */
#include "examples/generate/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/cache.h"
#include "examples/common/ranks.h"

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
    return cache_heads(session->cache, session->group_self, rank, &session->kv_heads,
                       fail);
}

static int settle(struct session *session, uint32_t rank, struct fail *fail)
{
    struct kvw_lane_state state;

    if (cache_settle(session->cache, rank, session->plan.was_there, &state, fail) != 0)
        return -EINVAL;
    session->rows = state.group[session->group_self].rows;
    session->ids_rows = state.group[session->group_ids].rows;
    session->plan.is_resumed = state.group[session->group_job].rows > 0;
    session->plan.resumed_row = session->rows;
    return 0;
}

static int attach_and_settle(struct session *session, const struct options *options,
                             const struct ranks *ranks, struct fail *fail)
{
    if (cache_attach(options->socket, &session->client, session->plan.name, ranks->rank,
                     &session->cache, fail) == 0)
        (void)find_layers(session, ranks->rank, fail);
    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    (void)settle(session, ranks->rank, fail);
    return ranks_agree(ranks, fail);
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
    *session = (struct session){.config = model->config};
    if (ranks_is_first(ranks))
        (void)session_prepare(session, options, prompt, ranks, fail);
    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    ranks_broadcast(&session->plan, sizeof(session->plan));
    if (attach_and_settle(session, options, ranks, fail) != 0)
        return -EINVAL;

    if (ranks_is_first(ranks) && session->plan.is_resumed)
        (void)session_adopt_text(session, options, model, prompt, fail);
    if (ranks_is_first(ranks) && !session->plan.is_resumed)
        (void)check_new_text(session, options, prompt, fail);
    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    ranks_broadcast(&session->plan, sizeof(session->plan));
    if (!session->plan.is_resumed)
        (void)session_begin_text(session, model, prompt, fail);
    return ranks_agree(ranks, fail);
}

void session_close(struct session *session)
{
    kvw_detach(session->cache);
    kvw_disconnect(session->client);
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
    int result = kvw_begin(session->cache, 0, items, n_items, begun);
    if (result < 0)
        return cache_refused(fail, "begin", result);
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
    int result = kvw_commit(session->cache, 0, NULL, 0);

    if (result < 0)
        return cache_refused(fail, "commit", result);
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
