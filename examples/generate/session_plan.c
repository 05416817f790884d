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

static int create(struct session *session, const struct ranks *ranks, struct fail *fail)
{
    struct kvw_spec spec;
    int result;

    if (check_settings(&session->plan.settings, fail) != 0)
        return -EINVAL;
    kvw_spec_init(&spec, session->plan.name);
    kvw_spec_split_heads(&spec, ranks->n_ranks);
    spec.lifetime = session->plan.is_kept ? KVW_LIFETIME_KEEP : KVW_LIFETIME_JOB;
    if (add_self(&spec, session) != 0 ||
        cache_add_rows(&spec, "ids", session->plan.ids_max, KVW_U32, 1) != 0 ||
        cache_add_rows(&spec, "job", 1, KVW_U32, SESSION_JOB_WORDS) != 0)
        return cache_refused(fail, "the spec", -EINVAL);
    result = kvw_create(session->client, &spec, NULL, NULL);
    if (result < 0)
        return cache_refused(fail, "create", result);
    session->plan.was_there = result == 1;
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
                uint32_t n_ranks, struct fail *fail)
{
    struct kvw_cache *reader = NULL;
    int result = cache_look(session->client, session->plan.name, &reader, fail);

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

int session_prepare(struct session *session, const struct options *options,
                    const struct prompt *prompt, const struct ranks *ranks,
                    struct fail *fail)
{
    int result = kvw_connect(options->socket, &session->client);

    if (result < 0)
        return cache_refused(fail, "connect", result);
    session->plan.settings = options->settings;
    session->plan.is_kept = options->resume != NULL;
    if (options->nll != NULL)
        session->plan.settings.chunk_rows = options->nll_chunk_rows;
    if (options->resume != NULL &&
        cache_take_name(options->resume, session->plan.name, fail) != 0)
        return -EINVAL;
    if (options->resume == NULL)
        cache_make_name("generate", session->plan.name);

    if (options->resume != NULL) {
        result = look(session, options, ranks->n_ranks, fail);
        if (result != 0) {
            session->plan.was_there = result > 0;
            return result > 0 ? 0 : result;
        }
    }
    if (plan_new(session, options, prompt, fail) != 0)
        return -EINVAL;
    return create(session, ranks, fail);
}
