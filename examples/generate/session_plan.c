/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's part of opening: find the cache of a text, or make one. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "examples/common/cache.h"
#include "examples/generate/session.h"

#define IDS_ROUND 65536u /* rows */

static int check_settings(const struct settings *settings, struct fail *fail)
{
    if (settings->window_rows > settings->sink_rows)
        return 0;
    return fail_set(fail, FAIL_USAGE,
                    "--window: need more than --sink %" PRIu64 ", have %" PRIu64,
                    settings->sink_rows, settings->window_rows);
}

/* ------------------------------------------------------------- a new cache ----------
 */

static int add_self(struct kvw_spec *spec, const struct session *session)
{
    const struct settings *settings = &session->plan.settings;
    struct kvw_spec_group *group =
        kvw_spec_add_group(spec, "self", session->config.n_layers, NULL);
    struct kvw_spec_plane *k, *v;

    if (group == NULL)
        return -EINVAL;
    group->n_heads = session->config.n_kv_heads;
    group->window_rows = settings->window_rows;
    group->sink_rows = settings->sink_rows;
    group->chunk_rows_max = settings->chunk_rows;
    group->slack_chunks = 1;
    group->policy = KVW_ROLL;
    group->window_kind = KVW_WINDOW_ROW;
    group->positions = settings->positions;
    k = kvw_spec_add_plane(group, "k", settings->type, session->config.head_dim);
    v = kvw_spec_add_plane(group, "v", settings->type, session->config.head_dim);
    if (k == NULL || v == NULL)
        return -EINVAL;
    k->is_rotated = settings->positions == KVW_POSITIONS_ABSOLUTE;
    return 0;
}

int session_spec(const struct session *session, const struct ranks *ranks,
                 struct kvw_spec *spec, struct kvw_mpi_options *options,
                 struct fail *fail)
{
    const struct settings *settings = &session->plan.settings;
    const uint32_t row_parts = settings->row_parts;

    *options = (struct kvw_mpi_options)KVW_MPI_OPTIONS_INIT;
    options->socket_path = session->socket;
    if (check_settings(settings, fail) != 0)
        return -EINVAL;
    kvw_spec_init(spec, session->plan.name);
    spec->n_ranks = ranks->n_ranks;
    spec->head_parts = ranks->n_ranks / row_parts;
    spec->row_parts = row_parts;
    spec->row_block = row_parts > 1 ? settings->row_block : 0;
    spec->lifetime = session->plan.is_kept ? KVW_LIFETIME_KEEP : KVW_LIFETIME_JOB;
    if (add_self(spec, session) != 0 ||
        cache_add_rows(spec, "ids", session->plan.ids_max, KVW_U32, 1) != 0 ||
        cache_add_rows(spec, "job", 1, KVW_U32, SESSION_JOB_WORDS) != 0)
        return cache_refused(fail, "the spec", -EINVAL);
    if (!session->plan.is_boxed) {
        options->box_ranks = ranks->n_ranks;
        if (options->socket_path == NULL)
            options->flags =
                KVW_MPI_START; /* as for one process: it outlives the job */
    } else {
        options->whole_groups = 1u << 1 | 1u << 2; /* ids and job */
    }
    return 0;
}

static int plan_new(struct session *session, const struct options *options,
                    const struct prompt *prompt, struct fail *fail)
{
    uint64_t need = prompt->n + options->n_tokens;

    if (prompt->n == 0)
        return fail_set(fail, FAIL_USAGE,
                        "--resume: there is no cache %s: need --prompt to begin it",
                        session->plan.name);
    if (need > OPTIONS_ROWS_MAX)
        return fail_set(fail, FAIL_USAGE,
                        "--tokens: prompt and tokens: at most %u in all, have %" PRIu64,
                        OPTIONS_ROWS_MAX, need);
    if (session->plan.is_kept) {
        need = (need + IDS_ROUND - 1) / IDS_ROUND * IDS_ROUND;
        if (need < SESSION_KEPT_IDS)
            need = SESSION_KEPT_IDS;
    }
    session->plan.ids_max = need;
    return 0;
}

/* ----------------------------------------------------------- a found cache ----------
 */

/* A number that must be what the model or the command line asks for. */
static int need_equal(const struct session *session, const char *field, uint64_t have,
                      uint64_t need, struct fail *fail)
{
    if (have == need)
        return 0;
    return fail_set(fail, FAIL_RESUME,
                    "%s: the cache %s has %" PRIu64 ", asked for %" PRIu64, field,
                    session->plan.name, have, need);
}

static int need_same_name(const struct session *session, const char *field,
                          const char *have, const char *need, struct fail *fail)
{
    if (strcmp(have, need) == 0)
        return 0;
    return fail_set(fail, FAIL_RESUME, "%s: the cache %s has %s, asked for %s", field,
                    session->plan.name, have, need);
}

/* Is it a cache of this program, for this model and as many ranks? */
static int check_shape(const struct session *session, const struct kvw_spec *spec,
                       uint32_t n_ranks, struct fail *fail)
{
    const struct model_config *config = &session->config;
    const struct kvw_spec_group *self = cache_group(spec, "self");
    const struct kvw_spec_group *ids = cache_group(spec, "ids");
    const struct kvw_spec_group *job = cache_group(spec, "job");

    if (self == NULL || ids == NULL || job == NULL || self->n_planes != 2 ||
        ids->n_planes != 1 || job->n_planes != 1 || spec->n_lanes != 1 ||
        ids->plane[0].type != KVW_U32 || ids->plane[0].elems != 1 ||
        job->plane[0].type != KVW_U32 || job->plane[0].elems != SESSION_JOB_WORDS ||
        self->window_kind != KVW_WINDOW_ROW || spec->head_parts != spec->n_ranks)
        return fail_set(fail, FAIL_RESUME,
                        "--resume: the cache %s was not made by kvwheel-generate",
                        session->plan.name);
    if (need_equal(session, "ranks", spec->n_ranks, n_ranks, fail) != 0 ||
        need_equal(session, "num_hidden_layers", self->n_layers, config->n_layers,
                   fail) ||
        need_equal(session, "num_key_value_heads", self->n_heads, config->n_kv_heads,
                   fail) ||
        need_equal(session, "head_dim", self->plane[0].elems, config->head_dim, fail))
        return -EINVAL;
    return need_equal(session, "head_dim", self->plane[1].elems, config->head_dim,
                      fail);
}

/* Settings that were given must be the cache's; the others become the cache's. */
static int adopt_settings(struct session *session, const struct options *options,
                          const struct kvw_spec_group *self, struct fail *fail)
{
    struct settings *to = &session->plan.settings;
    const uint32_t given = options->given;

    if ((given & GIVEN_WINDOW) &&
        need_equal(session, "--window", self->window_rows, to->window_rows, fail) != 0)
        return -EINVAL;
    if ((given & GIVEN_SINK) &&
        need_equal(session, "--sink", self->sink_rows, to->sink_rows, fail) != 0)
        return -EINVAL;
    if ((given & GIVEN_POSITIONS) &&
        need_same_name(session, "--positions", settings_positions_name(self->positions),
                       settings_positions_name(to->positions), fail) != 0)
        return -EINVAL;
    if ((given & GIVEN_TYPE) &&
        need_same_name(session, "--dtype", settings_type_name(self->plane[0].type),
                       settings_type_name(to->type), fail) != 0)
        return -EINVAL;
    if ((given & GIVEN_CHUNK) && to->chunk_rows > self->chunk_rows_max)
        return fail_set(fail, FAIL_RESUME,
                        "--chunk: the cache %s takes up to %" PRIu64 ", asked for %u",
                        session->plan.name, self->chunk_rows_max, to->chunk_rows);
    to->window_rows = self->window_rows;
    to->sink_rows = self->sink_rows;
    to->positions = self->positions;
    to->type = self->plane[0].type;
    if (!(given & GIVEN_CHUNK))
        to->chunk_rows = (uint32_t)self->chunk_rows_max;
    return 0;
}

/* Look at the cache as a reader. @return 1 found, 0 not there, or -EINVAL. */
static int look(struct session *session, const struct options *options,
                struct kvw_client *client, uint32_t n_ranks, struct fail *fail)
{
    struct kvw_cache *reader = NULL;
    int result = cache_look(client, session->plan.name, &reader, fail);

    if (result <= 0)
        return result;

    const struct kvw_spec *spec = kvw_cache_spec(reader);
    result = check_shape(session, spec, n_ranks, fail);
    if (result == 0)
        result = adopt_settings(session, options, cache_group(spec, "self"), fail);
    if (result == 0)
        session->plan.ids_max = cache_group(spec, "ids")->window_rows;
    kvw_detach(reader);
    return result == 0 ? 1 : result;
}

/* What is given must be what the text was begun with. */
static int adopt_boxed(struct session *session, const struct options *options,
                       const struct settings *had, struct fail *fail)
{
    struct settings *to = &session->plan.settings;
    const struct kvw_spec_group self = {
        .window_rows = had->window_rows,
        .sink_rows = had->sink_rows,
        .positions = had->positions,
        .chunk_rows_max = had->chunk_rows,
        .plane = {{.type = had->type}},
    };

    if ((options->given & GIVEN_ROW_PARTS) &&
        need_equal(session, "--row-parts", had->row_parts, to->row_parts, fail) != 0)
        return -EINVAL;
    if ((options->given & GIVEN_ROW_BLOCK) &&
        need_equal(session, "--row-block", had->row_block, to->row_block, fail) != 0)
        return -EINVAL;
    to->row_parts = had->row_parts;
    to->row_block = had->row_block;
    return adopt_settings(session, options, &self, fail);
}

/* Look for any box of the cache on this node, and in it for the job.
 * @return 1 found, 0 not there, or -EINVAL. */
static int look_for_box(struct session *session, const struct options *options,
                        uint32_t n_ranks, struct fail *fail)
{
    struct kvw_client *client = NULL;
    struct kvw_cache *whole = NULL;
    int found = 0;

    if (kvw_connect_running(options->socket, &client) < 0)
        return 0; /* opening will say so, and name the host */
    for (uint32_t i = 0; i < n_ranks && found == 0; i++) {
        struct settings had = session->plan.settings;
        struct kvw_cache *reader = NULL;
        char name[CACHE_NAME_BYTES + 32];

        snprintf(name, sizeof(name), "%s.%uof%u", session->plan.name, i, n_ranks);
        if (kvw_attach(client, name, KVW_READER, NULL, &reader) < 0)
            continue;
        found = session_read_settings(reader, name, &had, fail);
        const struct kvw_spec_group *ids = cache_group(kvw_cache_spec(reader), "ids");
        if (found > 0 && ids != NULL)
            session->plan.ids_max = ids->window_rows;
        kvw_detach(reader);
        if (found > 0 && adopt_boxed(session, options, &had, fail) != 0)
            found = -EINVAL;
    }
    if (found == 0 &&
        kvw_attach(client, session->plan.name, KVW_READER, NULL, &whole) == 0) {
        kvw_detach(whole);
        if (session->plan.is_boxed)
            found = fail_set(fail, FAIL_RESUME,
                             "--resume: the text in %s was begun on one node, without "
                             "--row-parts, and goes on like that",
                             session->plan.name);
    }
    kvw_disconnect(client);
    return found;
}

/* Several nodes: whoever finds a part of the cache speaks for all. */
static int prepare_boxed(struct session *session, const struct options *options,
                         const struct prompt *prompt, const struct ranks *ranks,
                         struct fail *fail)
{
    const int found = options->resume != NULL
                          ? look_for_box(session, options, ranks->n_ranks, fail)
                          : 0;
    uint32_t speaker;

    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    speaker = ranks_lowest(ranks, found > 0);
    if (speaker == ranks->n_ranks) {
        speaker = 0;
        if (ranks_is_first(ranks))
            (void)plan_new(session, options, prompt, fail);
    }
    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    ranks_broadcast(&session->plan, sizeof(session->plan), speaker);
    return 0;
}

/* One node: rank 0 looks for the cache. */
static int prepare_here(struct session *session, const struct options *options,
                        const struct prompt *prompt, const struct ranks *ranks,
                        struct fail *fail)
{
    struct kvw_client *client = NULL;
    int found = 0;

    if (ranks_is_first(ranks)) {
        int result = kvw_connect(options->socket, &client);
        if (result < 0)
            (void)cache_refused(fail, "connect", result);
        else if (options->resume != NULL)
            found = look(session, options, client, ranks->n_ranks, fail);
        kvw_disconnect(client);
    }
    /* All ranks may have come to the last node of several. */
    if (ranks_is_first(ranks) && options->resume != NULL && found == 0 &&
        !has_failed(fail)) {
        found = look_for_box(session, options, ranks->n_ranks, fail);
        session->plan.is_boxed = found > 0;
    }
    if (ranks_is_first(ranks) && found == 0 && !has_failed(fail))
        (void)plan_new(session, options, prompt, fail);
    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    ranks_broadcast(&session->plan, sizeof(session->plan), 0);
    return 0;
}

static int check_parts(const struct session *session, const struct ranks *ranks,
                       struct fail *fail)
{
    const uint32_t row_parts = session->plan.settings.row_parts;

    if (ranks->n_ranks % row_parts != 0)
        return fail_set(fail, FAIL_RANKS,
                        "--row-parts: need a divisor of %u ranks, have %u",
                        ranks->n_ranks, row_parts);
    if (ranks->n_ranks / row_parts > session->config.n_kv_heads)
        return fail_set(fail, FAIL_RANKS,
                        "ranks: the model's num_key_value_heads allow %u, have %u",
                        session->config.n_kv_heads * row_parts, ranks->n_ranks);
    return 0;
}

int session_prepare(struct session *session, const struct options *options,
                    const struct prompt *prompt, const struct ranks *ranks,
                    struct fail *fail)
{
    int result;

    session->socket = options->socket;
    session->plan.settings = options->settings;
    session->plan.is_kept = options->resume != NULL;
    /* Rows that are split over ranks lie in boxes of their own, on one node as well. */
    session->plan.is_boxed =
        !ranks_are_on_one_node(ranks) || options->settings.row_parts > 1;
    if (options->nll != NULL)
        session->plan.settings.chunk_rows = options->nll_chunk_rows;
    if (options->resume != NULL)
        (void)cache_take_name(options->resume, session->plan.name, fail);
    else
        cache_make_name("generate", session->plan.name);
    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    ranks_broadcast(session->plan.name, sizeof(session->plan.name), 0);
    result = session->plan.is_boxed
                 ? prepare_boxed(session, options, prompt, ranks, fail)
                 : prepare_here(session, options, prompt, ranks, fail);
    if (result == 0)
        (void)check_parts(session, ranks, fail);
    return ranks_agree(ranks, fail);
}
