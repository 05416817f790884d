/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening: rank 0 finds the cache of a video or makes one, everybody attaches and goes
 * back to what all have, and the job row is written, or compared with what was asked for.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "examples/video/session.h"

#define KEPT_FRAMES 4096u /* room in a kept cache, at least */

#define JOB_MAGIC 0x5657564bu /* "KVWV" */
#define JOB_VERSION 1u

enum { /* words of the job row */
       JOB_WORD_MAGIC,
       JOB_WORD_VERSION,
       JOB_WORD_SEED,                            /* low, high */
       JOB_WORD_FINGERPRINT = JOB_WORD_SEED + 2, /* of the model: low, high */
       JOB_WORD_PASSES = JOB_WORD_FINGERPRINT + 2,
       JOB_WORD_PROMPTS, /* how many; then frame, balls, speed */
       JOB_WORD_END = JOB_WORD_PROMPTS + 1 + 3 * OPTIONS_PROMPTS_MAX,
};

/* ------------------------------------------------------------------ the cache ----- */

static int add_keys(struct kvw_spec *spec, const char *name,
                    struct kvw_spec_group **group)
{
    *group = kvw_spec_add_group(spec, name, VIDEO_LAYERS, NULL);
    if (*group == NULL)
        return -EINVAL;
    (*group)->n_heads = VIDEO_HEADS;
    if (kvw_spec_add_plane(*group, "k", KVW_F32, VIDEO_HEAD_DIM) == NULL)
        return -EINVAL;
    return kvw_spec_add_plane(*group, "v", KVW_F32, VIDEO_HEAD_DIM) != NULL ? 0
                                                                            : -EINVAL;
}

static int fill_spec(const struct session_plan *plan, uint32_t n_ranks,
                     struct kvw_spec *spec)
{
    struct kvw_spec_group *self, *cross;

    kvw_spec_init(spec, plan->name);
    kvw_spec_split_heads(spec, n_ranks);
    spec->lifetime = plan->is_kept ? KVW_LIFETIME_KEEP : KVW_LIFETIME_JOB;
    if (add_keys(spec, "self", &self) != 0)
        return -EINVAL;
    self->window_rows = plan->settings.window_frames * VIDEO_FRAME_ROWS;
    self->sink_rows = plan->settings.sink_frames * VIDEO_FRAME_ROWS;
    self->chunk_rows_max = VIDEO_ROWS;
    self->policy = KVW_ROLL;
    self->window_kind = KVW_WINDOW_CHUNK;
    self->positions = KVW_POSITIONS_WINDOW;
    if (add_keys(spec, "cross", &cross) != 0)
        return -EINVAL;
    cross->window_rows = VIDEO_WORDS;
    cross->chunk_rows_max = VIDEO_WORDS;
    cross->policy = KVW_REFUSE;
    if (cache_add_rows(spec, "frames", plan->frames_max, KVW_F32, VIDEO_FRAME_PIXELS) !=
        0)
        return -EINVAL;
    return cache_add_rows(spec, "job", 1, KVW_U32, JOB_WORD_END);
}

static int need_equal(const struct session_plan *plan, const char *field, uint64_t have,
                      uint64_t asked, struct fail *fail)
{
    if (have == asked)
        return 0;
    return fail_set(fail, FAIL_RESUME,
                    "%s: the video in %s has %" PRIu64 ", asked for %" PRIu64, field,
                    plan->name, have, asked);
}

/* Sizes that a found cache has: those that were asked for must be the same. */
static int adopt_sizes(struct session_plan *plan, const struct options *options,
                       const struct kvw_spec *spec, struct fail *fail)
{
    const struct kvw_spec_group *self = cache_group(spec, "self");
    const struct kvw_spec_group *frames = cache_group(spec, "frames");
    struct settings *to = &plan->settings;

    if (self == NULL || frames == NULL)
        return fail_set(fail, FAIL_RESUME,
                        "--resume: the cache %s was not made by kvwheel-video",
                        plan->name);
    const uint64_t window = self->window_rows / VIDEO_FRAME_ROWS;
    const uint64_t sink = self->sink_rows / VIDEO_FRAME_ROWS;
    if ((options->given & GIVEN_WINDOW) &&
        need_equal(plan, "--window", window, to->window_frames, fail) != 0)
        return -EINVAL;
    if ((options->given & GIVEN_SINK) &&
        need_equal(plan, "--sink", sink, to->sink_frames, fail) != 0)
        return -EINVAL;
    if (options->n_frames > frames->window_rows)
        return fail_set(fail, FAIL_RESUME,
                        "--frames: the cache %s has room for %" PRIu64
                        ", asked for %u: begin another",
                        plan->name, frames->window_rows, options->n_frames);
    to->window_frames = (uint32_t)window;
    to->sink_frames = (uint32_t)sink;
    plan->frames_max = (uint32_t)frames->window_rows;
    return 0;
}

/* Look at the cache as a reader. @return 1 found, 0 not there, or -EINVAL. */
static int look(struct session *session, const struct options *options,
                struct fail *fail)
{
    struct kvw_cache *reader = NULL;
    int result = cache_look(session->client, session->plan.name, &reader, fail);

    if (result <= 0)
        return result;
    result = adopt_sizes(&session->plan, options, kvw_cache_spec(reader), fail);
    kvw_detach(reader);
    return result == 0 ? 1 : result;
}

/* Rank 0: the sizes of a video that goes on, if it is there. */
static int prepare_kept(struct session *session, const struct options *options,
                        struct fail *fail)
{
    struct session_plan *plan = &session->plan;

    if (cache_take_name(options->resume, plan->name, fail) != 0)
        return -EINVAL;
    if (plan->frames_max < KEPT_FRAMES)
        plan->frames_max = KEPT_FRAMES;

    int result = look(session, options, fail);
    if (result == 0 && plan->settings.n_prompts == 0)
        return fail_set(fail, FAIL_USAGE,
                        "--resume: there is no cache %s: need --prompt to begin it",
                        plan->name);
    return result < 0 ? result : 0;
}

/* Rank 0: name, sizes, and the cache itself. The spec of a found one must be ours. */
static int prepare(struct session *session, const struct options *options,
                   const struct ranks *ranks, struct fail *fail)
{
    struct session_plan *plan = &session->plan;
    struct kvw_spec spec;
    int result = kvw_connect(options->socket, &session->client);

    if (result < 0)
        return cache_refused(fail, "connect", result);
    plan->settings = options->settings;
    plan->is_kept = options->resume != NULL;
    plan->frames_max = options->n_frames;
    cache_make_name("video", plan->name);
    if (plan->is_kept && prepare_kept(session, options, fail) != 0)
        return -EINVAL;
    if (fill_spec(plan, ranks->n_ranks, &spec) != 0)
        return cache_refused(fail, "the spec", -EINVAL);
    result = kvw_create(session->client, &spec, NULL, NULL);
    if (result == -EEXIST)
        return fail_set(fail, FAIL_RESUME,
                        "--resume: the cache %s was made by other ranks than %u or by "
                        "another program: %s",
                        plan->name, ranks->n_ranks, kvw_last_error());
    if (result < 0)
        return cache_refused(fail, "create", result);
    plan->was_there = result == 1;
    return 0;
}

/* ------------------------------------------------------------------- attaching ---- */

static int find_layers(struct session *session, struct fail *fail)
{
    const struct {
        const char *name;
        uint32_t *group;
        struct kvw_layer *layer;
        uint32_t n_layers;
    } groups[] = {{"self", &session->group_self, session->self, VIDEO_LAYERS},
                  {"cross", &session->group_cross, session->cross, VIDEO_LAYERS},
                  {"frames", &session->group_frames, &session->frames, 1},
                  {"job", &session->group_job, &session->job, 1}};

    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        int result = kvw_group(session->cache, groups[i].name);
        if (result >= 0)
            *groups[i].group = (uint32_t)result;
        for (uint32_t j = 0; j < groups[i].n_layers && result >= 0; j++)
            result =
                kvw_layer_of(session->cache, groups[i].name, j, &groups[i].layer[j]);
        if (result < 0)
            return cache_refused(fail, groups[i].name, result);
    }
    return 0;
}

static int attach(struct session *session, const struct options *options,
                  const struct ranks *ranks, struct fail *fail)
{
    struct kvw_lane_state state;

    if (cache_attach(options->socket, &session->client, session->plan.name, ranks->rank,
                     &session->cache, fail) == 0 &&
        find_layers(session, fail) == 0)
        (void)cache_heads(session->cache, session->group_self, ranks->rank,
                          &session->heads, fail);
    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    if (cache_settle(session->cache, ranks->rank, session->plan.was_there, &state,
                     fail) == 0) {
        const struct kvw_group_state *cross = &state.group[session->group_cross];
        session->n_frames = state.group[session->group_frames].rows;
        session->resumed_frame = session->n_frames;
        session->prompt_epoch = cross->rows > 0 ? cross->epoch : 0;
        session->plan.is_resumed = state.group[session->group_job].rows > 0;
    }
    return ranks_agree(ranks, fail);
}

/* --------------------------------------------------------------------- the job ---- */

static void fill_job(const struct session *session, const struct video_model *model,
                     uint32_t words[JOB_WORD_END])
{
    const struct settings *settings = &session->plan.settings;

    memset(words, 0, sizeof(words[0]) * JOB_WORD_END);
    words[JOB_WORD_MAGIC] = JOB_MAGIC;
    words[JOB_WORD_VERSION] = JOB_VERSION;
    cache_put_u64(&words[JOB_WORD_SEED], settings->seed);
    cache_put_u64(&words[JOB_WORD_FINGERPRINT], model->fingerprint);
    words[JOB_WORD_PASSES] = settings->passes;
    words[JOB_WORD_PROMPTS] = settings->n_prompts;
    for (uint32_t i = 0; i < settings->n_prompts; i++) {
        uint32_t *to = &words[JOB_WORD_PROMPTS + 1 + 3 * i];
        to[0] = settings->prompt[i].first_frame;
        to[1] = settings->prompt[i].balls;
        to[2] = settings->prompt[i].speed;
    }
}

/* Publish the job. Every rank; only rank 0, which holds the row, writes. */
static int begin_video(struct session *session, const struct video_model *model,
                       struct fail *fail)
{
    const struct kvw_item item = {.group = session->group_job, .n = 1};
    uint32_t words[JOB_WORD_END];
    const struct kvw_source source = {words, sizeof(words), 0};
    int result = kvw_begin(session->cache, 0, &item, 1, NULL);

    if (result < 0)
        return cache_refused(fail, "begin of the job", result);
    if (kvw_cache_rank(session->cache) == 0) {
        fill_job(session, model, words);
        result = kvw_update(session->cache, 0, session->job, 0, 1, &source);
    }
    if (result == 0)
        result = kvw_commit(session->cache, 0, NULL, 0);
    return result < 0 ? cache_refused(fail, "the job", result) : 0;
}

/* The settings in a job row, which is read like a file. */
static int read_settings(const uint32_t *words, struct settings *to)
{
    to->seed = cache_get_u64(&words[JOB_WORD_SEED]);
    to->passes = words[JOB_WORD_PASSES];
    to->n_prompts = words[JOB_WORD_PROMPTS];
    if (words[JOB_WORD_MAGIC] != JOB_MAGIC || words[JOB_WORD_VERSION] != JOB_VERSION ||
        to->passes == 0 || to->passes > OPTIONS_PASSES_MAX || to->n_prompts == 0 ||
        to->n_prompts > OPTIONS_PROMPTS_MAX)
        return -EINVAL;
    for (uint32_t i = 0; i < to->n_prompts; i++) {
        const uint32_t *from = &words[JOB_WORD_PROMPTS + 1 + 3 * i];
        to->prompt[i] = (struct prompt){from[0], from[1], from[2]};
        if (from[1] == 0 || from[1] > VIDEO_BALLS || from[2] >= VIDEO_SPEEDS)
            return -EINVAL;
    }
    return 0;
}

/* Rank 0: take the settings of the video, unless others were asked for. */
static int adopt_job(struct session *session, const struct options *options,
                     const struct video_model *model, struct fail *fail)
{
    const struct settings *asked = &options->settings;
    struct session_plan *plan = &session->plan;
    uint32_t words[JOB_WORD_END];
    const size_t n_bytes = sizeof(words);

    if (cache_read_rows(session->cache, session->job, "job", 0, 1, n_bytes, words,
                        fail) != 0)
        return -EINVAL;
    if (read_settings(words, &plan->settings) != 0)
        return fail_set(fail, FAIL_RESUME,
                        "--resume: the cache %s was not made by this version of "
                        "kvwheel-video",
                        plan->name);
    if (cache_get_u64(&words[JOB_WORD_FINGERPRINT]) != model->fingerprint)
        return fail_set(fail, FAIL_RESUME,
                        "--model: the video in %s was begun with another model",
                        plan->name);
    if ((options->given & GIVEN_SEED) &&
        need_equal(plan, "--seed", plan->settings.seed, asked->seed, fail) != 0)
        return -EINVAL;
    if ((options->given & GIVEN_PASSES) &&
        need_equal(plan, "--passes", plan->settings.passes, asked->passes, fail) != 0)
        return -EINVAL;
    if ((options->given & GIVEN_PROMPT) &&
        (asked->n_prompts != plan->settings.n_prompts ||
         memcmp(asked->prompt, plan->settings.prompt,
                sizeof(asked->prompt[0]) * asked->n_prompts) != 0))
        return fail_set(fail, FAIL_RESUME,
                        "--prompt: the video in %s was begun with another", plan->name);
    return 0;
}

int session_open(struct session *session, const struct options *options,
                 const struct video_model *model, const struct ranks *ranks,
                 struct fail *fail)
{
    *session = (struct session){0};
    if (ranks_is_first(ranks))
        (void)prepare(session, options, ranks, fail);
    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    ranks_broadcast(&session->plan, sizeof(session->plan), 0);
    if (attach(session, options, ranks, fail) != 0)
        return -EINVAL;
    if (ranks_is_first(ranks) && session->plan.is_resumed)
        (void)adopt_job(session, options, model, fail);
    else if (ranks_is_first(ranks) && session->plan.settings.n_prompts == 0)
        (void)fail_set(
            fail, FAIL_USAGE,
            "--resume: there is no video in %s yet: need --prompt to begin it",
            session->plan.name);
    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    ranks_broadcast(&session->plan, sizeof(session->plan), 0);
    if (!session->plan.is_resumed)
        (void)begin_video(session, model, fail);
    return ranks_agree(ranks, fail);
}
