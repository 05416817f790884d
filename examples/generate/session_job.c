/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job row: what a text was begun with, beside what the spec of the cache says.
 * Sixteen u32 words, the unused ones zero.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/cache.h"
#include "examples/generate/session.h"

#define JOB_MAGIC 0x4757564bu /* "KVWG" */
#define JOB_VERSION 1u

enum { /* words of the row */
       JOB_WORD_MAGIC,
       JOB_WORD_VERSION,
       JOB_WORD_SEED,                              /* low, high */
       JOB_WORD_GREEDY = JOB_WORD_SEED + 2,        /* 0 or 1 */
       JOB_WORD_TEMPERATURE,                       /* bits of the float */
       JOB_WORD_PROMPT,                            /* rows: low, high */
       JOB_WORD_FINGERPRINT = JOB_WORD_PROMPT + 2, /* of the model: low, high */
       JOB_WORD_WINDOW = JOB_WORD_FINGERPRINT + 2, /* the rest: since --row-parts */
       JOB_WORD_SINK,
       JOB_WORD_CHUNK,
       JOB_WORD_KINDS, /* positions, type << 8, row parts << 16 */
       JOB_WORD_ROW_BLOCK,
       JOB_WORD_END,
};

_Static_assert(JOB_WORD_END <= SESSION_JOB_WORDS, "the job fits its row");

static void fill_job(const struct session *session, const struct model *model,
                     uint32_t words[SESSION_JOB_WORDS])
{
    const struct settings *settings = &session->plan.settings;
    const struct sampling *sampling = &settings->sampling;

    memset(words, 0, sizeof(words[0]) * SESSION_JOB_WORDS);
    words[JOB_WORD_MAGIC] = JOB_MAGIC;
    words[JOB_WORD_VERSION] = JOB_VERSION;
    cache_put_u64(&words[JOB_WORD_SEED], sampling->seed);
    words[JOB_WORD_GREEDY] = sampling->is_greedy;
    memcpy(&words[JOB_WORD_TEMPERATURE], &sampling->temperature, sizeof(words[0]));
    cache_put_u64(&words[JOB_WORD_PROMPT], session->plan.prompt_rows);
    cache_put_u64(&words[JOB_WORD_FINGERPRINT], model->fingerprint);
    words[JOB_WORD_WINDOW] = (uint32_t)settings->window_rows;
    words[JOB_WORD_SINK] = (uint32_t)settings->sink_rows;
    words[JOB_WORD_CHUNK] = settings->chunk_rows;
    words[JOB_WORD_KINDS] =
        settings->positions | settings->type << 8 | settings->row_parts << 16;
    words[JOB_WORD_ROW_BLOCK] = settings->row_block;
}

/* Rank 0 writes what the first step publishes. */
static int write_text(struct session *session, const struct model *model,
                      const struct prompt *prompt, struct fail *fail)
{
    uint32_t words[SESSION_JOB_WORDS];
    const struct kvw_source source = {words, sizeof(words), 0};

    fill_job(session, model, words);
    int result = kvw_update(session->cache, 0, session->job, 0, 1, &source);
    if (result < 0)
        return cache_refused(fail, "update of job", result);
    session->bytes_written += sizeof(words);
    return session_write_ids(session, prompt->id, fail);
}

int session_begin_text(struct session *session, const struct model *model,
                       const struct prompt *prompt, struct fail *fail)
{
    const struct kvw_item items[2] = {{.group = session->group_job, .n = 1},
                                      {.group = session->group_ids, .n = prompt->n}};
    int result = kvw_mpi_begin(session->mpi, 0, items, 2, NULL);

    if (result < 0)
        return session_refused_mpi(session, fail, "begin of the prompt", result);
    session->open_ids = prompt->n;
    if (session->has_ids && write_text(session, model, prompt, fail) != 0)
        return -EINVAL;
    return session_commit(session, fail);
}

/* The job row of a box. @return 1, 0 (there is none yet) or -EINVAL. */
static int read_words(struct kvw_cache *cache, struct kvw_layer job, const char *name,
                      uint32_t words[SESSION_JOB_WORDS], struct fail *fail)
{
    struct kvw_view view;
    int result = kvw_get(cache, 0, job, KVW_COMMITTED, &view);

    if (result < 0)
        return cache_refused(fail, "get of job", result);
    if (view.n_pieces > 0)
        memcpy(words, kvw_piece_at(&view.plane[0], &view.piece[0], 0),
               sizeof(words[0]) * SESSION_JOB_WORDS);
    result = kvw_release(cache, &view);
    if (result < 0)
        return cache_refused(fail, "release of job", result);
    if (view.n_pieces == 0)
        return 0;
    if (words[JOB_WORD_MAGIC] != JOB_MAGIC || words[JOB_WORD_VERSION] != JOB_VERSION)
        return fail_set(fail, FAIL_RESUME,
                        "--resume: the cache %s was not made by this version of "
                        "kvwheel-generate",
                        name);
    return 1;
}

int session_read_settings(struct kvw_cache *reader, const char *name,
                          struct settings *settings, struct fail *fail)
{
    uint32_t words[SESSION_JOB_WORDS];
    struct kvw_layer job;
    int result = kvw_layer_of(reader, "job", 0, &job);

    if (result < 0)
        return cache_refused(fail, "the job of the cache", result);
    result = read_words(reader, job, name, words, fail);
    if (result <= 0 || words[JOB_WORD_WINDOW] == 0)
        return result < 0 ? result : 0;
    settings->window_rows = words[JOB_WORD_WINDOW];
    settings->sink_rows = words[JOB_WORD_SINK];
    settings->chunk_rows = words[JOB_WORD_CHUNK];
    settings->positions = words[JOB_WORD_KINDS] & 0xff;
    settings->type = words[JOB_WORD_KINDS] >> 8 & 0xff;
    settings->row_parts = words[JOB_WORD_KINDS] >> 16;
    settings->row_block = words[JOB_WORD_ROW_BLOCK];
    return 1;
}

static int read_job(const struct session *session, uint32_t words[SESSION_JOB_WORDS],
                    struct fail *fail)
{
    const int result =
        read_words(session->cache, session->job, session->plan.name, words, fail);

    if (result != 0)
        return result < 0 ? result : 0;
    return fail_set(fail, FAIL_RESUME, "--resume: the cache %s has no job",
                    session->plan.name);
}

/* Take the sampling of the text, unless another was asked for. */
static int adopt_sampling(struct session *session, const struct options *options,
                          const uint32_t *words, struct fail *fail)
{
    const struct sampling *asked = &options->settings.sampling;
    struct sampling had = {.is_greedy = words[JOB_WORD_GREEDY] != 0,
                           .seed = cache_get_u64(&words[JOB_WORD_SEED])};

    memcpy(&had.temperature, &words[JOB_WORD_TEMPERATURE], sizeof(had.temperature));
    if ((options->given & GIVEN_GREEDY) && !had.is_greedy)
        return fail_set(fail, FAIL_RESUME,
                        "--greedy: the text in %s was begun with sampling",
                        session->plan.name);
    if ((options->given & (GIVEN_SEED | GIVEN_TEMPERATURE)) && had.is_greedy)
        return fail_set(fail, FAIL_RESUME,
                        "--seed, --temperature: the text in %s was begun with --greedy",
                        session->plan.name);
    if ((options->given & GIVEN_SEED) && asked->seed != had.seed)
        return fail_set(fail, FAIL_RESUME,
                        "--seed: the text in %s has %" PRIu64 ", asked for %" PRIu64,
                        session->plan.name, had.seed, asked->seed);
    if ((options->given & GIVEN_TEMPERATURE) &&
        !(asked->temperature == had.temperature))
        return fail_set(
            fail, FAIL_RESUME, "--temperature: the text in %s has %g, asked for %g",
            session->plan.name, (double)had.temperature, (double)asked->temperature);
    session->plan.settings.sampling = had;
    return 0;
}

/* A prompt that is given again must be the one that the text began with. */
static int check_prompt(const struct session *session, const struct prompt *prompt,
                        struct fail *fail)
{
    uint32_t *stored;
    int result;

    if (prompt->n == 0)
        return 0;
    if (prompt->n != session->plan.prompt_rows)
        return fail_set(fail, FAIL_RESUME,
                        "--prompt: the text in %s began with %" PRIu64
                        " tokens, asked for %" PRIu64,
                        session->plan.name, session->plan.prompt_rows, prompt->n);
    stored = malloc(sizeof(stored[0]) * prompt->n);
    if (stored == NULL)
        return fail_memory(fail, "the prompt");
    result = session_read_ids(session, 0, prompt->n, stored, fail);
    if (result == 0 && memcmp(stored, prompt->id, sizeof(stored[0]) * prompt->n) != 0)
        result =
            fail_set(fail, FAIL_RESUME, "--prompt: the text in %s began with another",
                     session->plan.name);
    free(stored);
    return result;
}

int session_adopt_text(struct session *session, const struct options *options,
                       const struct model *model, const struct prompt *prompt,
                       struct fail *fail)
{
    uint32_t words[SESSION_JOB_WORDS];

    if (read_job(session, words, fail) != 0)
        return -EINVAL;
    if (cache_get_u64(&words[JOB_WORD_FINGERPRINT]) != model->fingerprint)
        return fail_set(fail, FAIL_RESUME,
                        "--model: the text in %s was begun with another model",
                        session->plan.name);
    session->plan.prompt_rows = cache_get_u64(&words[JOB_WORD_PROMPT]);
    if (session->plan.prompt_rows == 0 || session->plan.prompt_rows > session->ids_rows)
        return fail_set(fail, FAIL_RESUME,
                        "--resume: %s: the prompt needs 1 to %" PRIu64
                        " rows of ids, the job says %" PRIu64,
                        session->plan.name, session->ids_rows,
                        session->plan.prompt_rows);
    if (session->plan.prompt_rows + options->n_tokens > session->plan.ids_max)
        return fail_set(fail, FAIL_RESUME,
                        "--tokens: %s has room for %" PRIu64
                        " ids, prompt and tokens need "
                        "%" PRIu64 ": begin another cache",
                        session->plan.name, session->plan.ids_max,
                        session->plan.prompt_rows + options->n_tokens);
    if (adopt_sampling(session, options, words, fail) != 0)
        return -EINVAL;
    return check_prompt(session, prompt, fail);
}
