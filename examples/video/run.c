/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop over chunks. What a chunk begins with follows from the committed rows and the
 * job alone, so every rank plans the same step, and a resumed run makes the same frames.
 */
#include "examples/video/run.h"

#include <errno.h>

#include "examples/video/denoiser.h"
#include "examples/video/noise.h"
#include "examples/video/output.h"

#define CHUNK_PIXELS (VIDEO_FRAMES * VIDEO_FRAME_PIXELS)

struct run {
    const struct options *options;
    struct ranks *ranks;
    struct video_model model;
    struct session session;
    struct denoiser denoiser;
    struct output output; /* of rank 0 */
};

/* Is some rank in trouble? Then all must stop. */
static bool is_trouble(const struct ranks *ranks, const struct fail *fail)
{
    uint64_t trouble = has_failed(fail);

    ranks_max(ranks, &trouble, 1);
    return trouble != 0;
}

/* From noise to frames: every pass goes a part of the way to what the model says. */
static void denoise(struct run *run, uint64_t first_frame, float *tokens,
                    struct fail *fail)
{
    const struct settings *settings = &run->session.plan.settings;
    float noise[CHUNK_PIXELS], said[CHUNK_PIXELS];

    for (uint32_t i = 0; i < VIDEO_FRAMES; i++)
        noise_frame(settings->seed, first_frame + i, 0,
                    noise + (size_t)i * VIDEO_FRAME_PIXELS);
    tokens_from_frames(noise, tokens);
    for (uint32_t pass = 0; pass < settings->passes; pass++) {
        const double t = denoiser_time(pass, settings->passes);
        const float left = (float)(denoiser_time(pass + 1, settings->passes) / t);
        denoiser_pass(&run->denoiser, tokens, t, said, fail);
        for (uint32_t i = 0; i < CHUNK_PIXELS; i++)
            tokens[i] = said[i] + left * (tokens[i] - said[i]);
    }
    for (uint32_t i = 0; i < CHUNK_PIXELS; i++)
        tokens[i] = tokens[i] < -1 ? -1 : tokens[i] > 1 ? 1 : tokens[i];
}

/* One chunk: noisy passes, a clean one, commit. @return 0 or -EINVAL, when all stop. */
static int step(struct run *run, uint64_t first_frame, struct fail *fail)
{
    struct session *session = &run->session;
    const struct settings *settings = &session->plan.settings;
    const struct prompt *prompt =
        &settings->prompt[session_prompt(session, first_frame)];
    float tokens[CHUNK_PIXELS], said[CHUNK_PIXELS], frames[CHUNK_PIXELS];

    if (!has_failed(fail) && session_begin(session, fail) == 0 &&
        session->is_prompt_new)
        denoiser_prompt(&run->denoiser, prompt, fail);
    if (is_trouble(run->ranks, fail))
        return -EINVAL;
    denoise(run, first_frame, tokens, fail);
    denoiser_pass(&run->denoiser, tokens, 0, said, fail); /* leaves the clean rows */
    if (has_failed(fail))
        return 0; /* is_trouble() of the next step tells the others */
    tokens_to_frames(tokens, frames);
    if (ranks_is_first(run->ranks) && session_write_frames(session, frames, fail) != 0)
        return 0;
    if (session_commit(session, fail) == 0 && ranks_is_first(run->ranks))
        (void)output_chunk(&run->output, session, fail);
    return 0;
}

static int loop(struct run *run, struct fail *fail)
{
    /* Counted here: a rank in trouble goes on counting. */
    uint64_t frame = run->session.n_frames;

    for (; frame < run->options->n_frames; frame += VIDEO_FRAMES) {
        if (step(run, frame, fail) != 0)
            break;
    }
    return ranks_agree(run->ranks, fail);
}

static int open_run(struct run *run, struct fail *fail)
{
    const struct ranks *ranks = run->ranks;

    if (ranks->n_local != ranks->n_ranks)
        (void)fail_set(fail, FAIL_RANKS,
                       "ranks: need all %u on one node, have %u of them here",
                       ranks->n_ranks, ranks->n_local);
    else if (ranks->n_ranks > VIDEO_HEADS)
        (void)fail_set(fail, FAIL_RANKS, "ranks: the model's heads allow %u, have %u",
                       VIDEO_HEADS, ranks->n_ranks);
    else
        (void)video_model_open(run->options->model, &run->model, fail);
    if (ranks_agree(ranks, fail) != 0 ||
        session_open(&run->session, run->options, &run->model, ranks, fail) != 0 ||
        denoiser_init(&run->denoiser, &run->model, &run->session, run->ranks, fail) !=
            0)
        return -EINVAL;
    output_open(&run->output, run->options, ranks->n_ranks);
    if (ranks_is_first(ranks))
        output_resumed(&run->output, &run->session);
    return 0;
}

int run_video(const void *options, struct ranks *ranks, struct fail *fail)
{
    struct run run = {.options = options, .ranks = ranks};
    int result = open_run(&run, fail);

    if (result == 0)
        result = loop(&run, fail);
    if (result == 0) {
        if (ranks_is_first(ranks) &&
            output_pictures(&run.output, &run.session, fail) == 0)
            (void)output_result(&run.output, &run.session, fail);
        result = ranks_agree(ranks, fail);
    }
    denoiser_fini(&run.denoiser);
    session_close(&run.session);
    video_model_close(&run.model);
    return result;
}
