/* SPDX-License-Identifier: Apache-2.0 */
/* stdout is for programs, stderr for people, files to look at. */
#include "examples/video/output.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/stream.h"
#include "examples/video/png.h"

#define PROGRESS_SECONDS 2.0
#define VIDEO_ZOOM 12u /* pixels of the animation for one of a frame */
#define SHEET_ZOOM 2u
#define SHEET_COLUMNS 30u
#define SHEET_GAP 1u
#define FRAME_MS 100u

void output_open(struct output *output, const struct options *options, uint32_t n_ranks)
{
    *output = (struct output){options, n_ranks, stream_now(), stream_now()};
}

void output_resumed(const struct output *output, const struct session *session)
{
    if (session->plan.is_resumed)
        fprintf(stderr, "kvwheel-video: going on after %" PRIu64 " of %u frames\n",
                session->n_frames, output->options->n_frames);
}

int output_chunk(struct output *output, const struct session *session,
                 struct fail *fail)
{
    const uint64_t frame = session->n_frames - VIDEO_FRAMES;
    const struct prompt *prompt =
        &session->plan.settings.prompt[session_prompt(session, frame)];
    const double now = stream_now();

    if (now - output->reported >= PROGRESS_SECONDS) {
        output->reported = now;
        fprintf(stderr, "kvwheel-video: %" PRIu64 " of %u frames, %.1f s\n",
                session->n_frames, output->options->n_frames, now - output->started);
    }
    if (!output->options->is_json)
        return 0;
    return stream_json(json_pack("{sIsIss}", "frame", (json_int_t)frame, "balls",
                                 (json_int_t)prompt->balls, "speed",
                                 options_speed_name(prompt->speed)),
                       fail);
}

/* ------------------------------------------------------------------- pictures ----- */

static unsigned char grey_of(float pixel)
{
    float grey = (pixel + 1) * 127.5f + 0.5f;

    return grey <= 0 ? 0 : grey >= 255 ? 255 : (unsigned char)grey;
}

/* Draw a frame, each pixel zoom x zoom, into lines of `width` bytes. */
static void draw(const float *frame, uint32_t zoom, unsigned char *to, size_t width)
{
    for (uint32_t y = 0; y < VIDEO_SIZE * zoom; y++) {
        for (uint32_t x = 0; x < VIDEO_SIZE * zoom; x++)
            to[y * width + x] = grey_of(frame[y / zoom * VIDEO_SIZE + x / zoom]);
    }
}

static int write_video(const char *path, const float *frames, uint32_t n_frames,
                       struct fail *fail)
{
    const uint32_t side = VIDEO_SIZE * VIDEO_ZOOM;
    unsigned char *grey = malloc((size_t)side * side);
    struct png png = {0};

    if (grey == NULL)
        return fail_memory(fail, path);
    int result = png_open(&png, path, side, side, n_frames, FRAME_MS, fail);
    for (uint32_t i = 0; i < n_frames && result == 0; i++) {
        draw(frames + (size_t)i * VIDEO_FRAME_PIXELS, VIDEO_ZOOM, grey, side);
        result = png_add(&png, grey, fail);
    }
    free(grey);
    return png_close(&png, fail);
}

/* All frames, line by line; the ground behind them changes with the prompt. */
static int write_sheet(const char *path, const struct session *session,
                       const float *frames, uint32_t n_frames, struct fail *fail)
{
    const uint32_t cell = VIDEO_SIZE * SHEET_ZOOM + 2 * SHEET_GAP;
    const uint32_t width = cell * SHEET_COLUMNS;
    const uint32_t height = cell * ((n_frames + SHEET_COLUMNS - 1) / SHEET_COLUMNS);
    unsigned char *grey = calloc((size_t)width, height);
    struct png png = {0};

    if (grey == NULL)
        return fail_memory(fail, path);
    for (uint32_t i = 0; i < n_frames; i++) {
        unsigned char *to = grey + (size_t)(i / SHEET_COLUMNS) * cell * width +
                            (size_t)(i % SHEET_COLUMNS) * cell;
        for (uint32_t y = 0; y < cell; y++)
            memset(to + (size_t)y * width,
                   session_prompt(session, i) % 2 == 0 ? 70 : 160, cell);
        draw(frames + (size_t)i * VIDEO_FRAME_PIXELS, SHEET_ZOOM,
             to + SHEET_GAP * (width + 1), width);
    }
    if (png_open(&png, path, width, height, 1, 0, fail) == 0)
        (void)png_add(&png, grey, fail);
    free(grey);
    return png_close(&png, fail);
}

static int write_raw(const char *path, const float *frames, uint32_t n_frames,
                     struct fail *fail)
{
    const size_t n_elems = (size_t)n_frames * VIDEO_FRAME_PIXELS;
    FILE *file = fopen(path, "wbe");
    size_t n_written = 0;

    if (file != NULL)
        n_written = fwrite(frames, sizeof(frames[0]), n_elems, file);
    if (file == NULL || fclose(file) != 0 || n_written != n_elems)
        return fail_set(fail, FAIL_IO, "%s: %s", path, strerror(errno));
    return 0;
}

int output_pictures(const struct output *output, const struct session *session,
                    struct fail *fail)
{
    const struct options *options = output->options;
    const uint32_t n = options->n_frames;
    float *frames = malloc(sizeof(float) * n * VIDEO_FRAME_PIXELS);

    if (frames == NULL)
        return fail_memory(fail, "the frames");
    int result = session_read_frames(session, 0, n, frames, fail);
    if (result == 0 && options->png != NULL)
        result = write_video(options->png, frames, n, fail);
    if (result == 0 && options->sheet != NULL)
        result = write_sheet(options->sheet, session, frames, n, fail);
    if (result == 0 && options->raw != NULL)
        result = write_raw(options->raw, frames, n, fail);
    free(frames);
    return result;
}

/* --------------------------------------------------------------------- result ----- */

static uint64_t rolls(const struct session *session)
{
    const struct settings *settings = &session->plan.settings;

    return cache_rolls(session->n_frames, settings->window_frames,
                       settings->sink_frames);
}

/* NULL only when memory ran out. */
static json_t *prompt_list(const struct settings *settings)
{
    json_t *list = json_array();

    for (uint32_t i = 0; list != NULL && i < settings->n_prompts; i++) {
        const struct prompt *prompt = &settings->prompt[i];
        json_t *one = json_pack("{sIsIss}", "frame", (json_int_t)prompt->first_frame,
                                "balls", (json_int_t)prompt->balls, "speed",
                                options_speed_name(prompt->speed));
        if (json_array_append_new(list, one) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static int print_result(const struct output *output, const struct session *session,
                        double seconds, uint64_t n_new, struct fail *fail)
{
    const struct session_plan *plan = &session->plan;
    const struct settings *settings = &plan->settings;
    const uint64_t rows = session->n_frames * VIDEO_FRAME_ROWS;
    json_t *prompts = prompt_list(settings);

    if (prompts == NULL)
        return fail_memory(fail, "the prompts");
    return stream_json(
        json_pack("{sIsIsIsIsIsIsosIsIsIsfsfsIsoss}", "frames",
                  (json_int_t)output->options->n_frames, "new_frames",
                  (json_int_t)n_new, "window", (json_int_t)settings->window_frames,
                  "sink", (json_int_t)settings->sink_frames, "passes",
                  (json_int_t)settings->passes, "seed", (json_int_t)settings->seed,
                  "prompts", prompts, "rows", (json_int_t)rows, "rolls",
                  (json_int_t)rolls(session), "prompt_writes",
                  (json_int_t)session->prompt_writes, "seconds", seconds,
                  "frames_per_second", seconds > 0 ? (double)n_new / seconds : 0.0,
                  "ranks", (json_int_t)output->n_ranks, "resumed_from",
                  plan->is_resumed ? json_integer((json_int_t)session->resumed_frame)
                                   : json_null(),
                  "cache", plan->name),
        fail);
}

int output_result(const struct output *output, const struct session *session,
                  struct fail *fail)
{
    const double seconds = stream_now() - output->started;
    const uint64_t n_new = session->n_frames - session->resumed_frame;
    const char *socket = output->options->socket;

    if (output->options->is_json &&
        print_result(output, session, seconds, n_new, fail) != 0)
        return -EINVAL;
    fprintf(stderr,
            "kvwheel-video: %" PRIu64 " frames in %.2f s, %.1f a second; window of %u "
            "frames rolled %" PRIu64 " times\n",
            n_new, seconds, seconds > 0 ? (double)n_new / seconds : 0.0,
            session->plan.settings.window_frames, rolls(session));
    if (output->options->png != NULL)
        fprintf(stderr,
                "kvwheel-video: to look at it, open %s in a web browser: firefox %s\n",
                output->options->png, output->options->png);
    if (session->plan.is_kept)
        fprintf(stderr,
                "kvwheel-video: the cache is kept; to remove it: %s%s%skvwheel "
                "rm %s\n",
                socket != NULL ? "KVWHEEL_SOCKET=" : "", socket != NULL ? socket : "",
                socket != NULL ? " " : "", session->plan.name);
    return 0;
}
