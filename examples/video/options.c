/* SPDX-License-Identifier: Apache-2.0 */
/* Flags become options; nothing else of the program reads argv. */
#include "examples/video/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/flags.h"
#include "examples/video/model.h"

#define PROMPT_BYTES 64u

const char options_help[] =
    "usage: [mpirun -n R] kvwheel-video --model DIR --prompt TEXT [flags]\n"
    "\n"
    "Films balls that move, bounce and collide, in grey frames of 16 x 16, past any\n"
    "number of windows: a block-causal diffusion transformer, chunk by chunk, each\n"
    "denoised in place in a rolling kvwheel cache, which also has the frames and the\n"
    "seed, so that a run that died goes on where it was. Up to 4 ranks on one node\n"
    "share the heads; the frames are the same for every R.\n"
    "\n"
    "  --model DIR      folder with model.safetensors of examples/video/train.py\n"
    "  --prompt TEXT    how many balls (1 to 3) and how fast: \"2 slow\". Another one\n"
    "                   from frame 150 on: \"2 slow, 150: 3 fast\"; 8 at most. The\n"
    "                   window keeps what it has; the prompt's rows are made anew\n"
    "  --frames N       frames in all, resumed ones included; a multiple of 3 (300)\n"
    "  --passes K       denoising passes of a chunk (6); a clean one follows\n"
    "  --window N       frames that a chunk sees, sink and itself included, 6 to 15\n"
    "                   (15)\n"
    "  --sink N         first frames that never leave, 0 to window - 3 (3)\n"
    "  --seed N         of the noise (0)\n"
    "  --resume NAME    go on with the cache NAME, or begin it; it is kept when the\n"
    "                   run ends or dies. Settings that are not given are the\n"
    "                   cache's; those that differ are refused\n"
    "  --png FILE       write the video as an animated PNG\n"
    "  --sheet FILE     write all frames side by side as a PNG, 30 in a line\n"
    "  --raw FILE       write the frames as raw f32 in [-1, 1], 16 x 16 each\n"
    "  --json           one JSON object a line on stdout: {frame, balls, speed} for\n"
    "                   each chunk made (its first frame and its prompt), then the\n"
    "                   result: frames, new_frames, window, sink, passes, seed,\n"
    "                   prompts, rows, rolls (how often the rolling rows were\n"
    "                   replaced), prompt_writes (by this run), seconds,\n"
    "                   frames_per_second, ranks, resumed_from (frame or null), cache\n"
    "  --socket PATH    of kvwheeld (default: $KVWHEEL_SOCKET, or the user's own)\n"
    "  --help\n"
    "\n"
    "Progress goes to stderr.\n"
    "\n"
    "exit: 0 done, 2 usage, 3 model refused, 4 kvwheel refused, 5 --resume: another\n"
    "run's cache, 6 file or output, 7 number or place of ranks, 8 out of memory\n";

enum { /* long options without a letter */
       FLAG_MODEL = 1,
       FLAG_PROMPT,
       FLAG_FRAMES,
       FLAG_PASSES,
       FLAG_WINDOW,
       FLAG_SINK,
       FLAG_SEED,
       FLAG_RESUME,
       FLAG_PNG,
       FLAG_SHEET,
       FLAG_RAW,
       FLAG_JSON,
       FLAG_SOCKET,
       FLAG_HELP,
};

static const struct option flags[] = {
    {"model", required_argument, NULL, FLAG_MODEL},
    {"prompt", required_argument, NULL, FLAG_PROMPT},
    {"frames", required_argument, NULL, FLAG_FRAMES},
    {"passes", required_argument, NULL, FLAG_PASSES},
    {"window", required_argument, NULL, FLAG_WINDOW},
    {"sink", required_argument, NULL, FLAG_SINK},
    {"seed", required_argument, NULL, FLAG_SEED},
    {"resume", required_argument, NULL, FLAG_RESUME},
    {"png", required_argument, NULL, FLAG_PNG},
    {"sheet", required_argument, NULL, FLAG_SHEET},
    {"raw", required_argument, NULL, FLAG_RAW},
    {"json", no_argument, NULL, FLAG_JSON},
    {"socket", required_argument, NULL, FLAG_SOCKET},
    {"help", no_argument, NULL, FLAG_HELP},
    {NULL, 0, NULL, 0},
};

static const struct flag_word speed_words[] = {{"slow", 0}, {"fast", 1}, {NULL, 0}};

const char *options_speed_name(uint32_t speed)
{
    return flag_name(speed_words, speed);
}

/* Frames come in whole chunks. */
static int parse_frames(const char *name, const char *text, uint32_t frames_max,
                        uint32_t *frames, struct fail *fail)
{
    uint64_t number = 0;

    if (flag_number(name, text, frames_max, &number, fail) != 0)
        return -EINVAL;
    if (number % VIDEO_FRAMES != 0)
        return fail_set(fail, FAIL_USAGE, "%s: need a multiple of %u, have %.40s", name,
                        VIDEO_FRAMES, text);
    *frames = (uint32_t)number;
    return 0;
}

/* "2 slow" or "150: 2 slow". */
static int parse_prompt(char *text, struct settings *to, struct fail *fail)
{
    struct prompt *prompt = &to->prompt[to->n_prompts];
    char *colon = strchr(text, ':'), *rest = colon != NULL ? colon + 1 : text;
    uint32_t before = to->n_prompts > 0 ? prompt[-1].first_frame : 0;
    char *saved = NULL, *balls, *speed, *more;

    *prompt = (struct prompt){0};
    if (colon != NULL) {
        *colon = '\0';
        text += strspn(text, " ");
        if (parse_frames("--prompt: frame", text, OPTIONS_FRAMES_MAX,
                         &prompt->first_frame, fail) != 0)
            return -EINVAL;
    }
    if ((to->n_prompts == 0) != (prompt->first_frame == 0) ||
        (to->n_prompts > 0 && prompt->first_frame <= before))
        return fail_set(fail, FAIL_USAGE,
                        "--prompt: need frames that ascend, the first 0, have %u after "
                        "%u",
                        prompt->first_frame, before);
    balls = strtok_r(rest, " ", &saved);
    speed = strtok_r(NULL, " ", &saved);
    more = strtok_r(NULL, " ", &saved);
    if (balls == NULL || speed == NULL || more != NULL)
        return fail_set(
            fail, FAIL_USAGE,
            "--prompt: need a number of balls and a speed, like \"2 slow\"");
    if (flag_count("--prompt: balls", balls, VIDEO_BALLS, &prompt->balls, fail) != 0 ||
        flag_word("--prompt: speed", speed, speed_words, &prompt->speed, fail) != 0)
        return -EINVAL;
    to->n_prompts++;
    return 0;
}

static int parse_prompts(const char *text, struct settings *to, struct fail *fail)
{
    to->n_prompts = 0;
    for (;;) {
        char one[PROMPT_BYTES];
        size_t n = strcspn(text, ",");
        if (to->n_prompts == OPTIONS_PROMPTS_MAX)
            return fail_set(fail, FAIL_USAGE, "--prompt: need %u at most, have more",
                            OPTIONS_PROMPTS_MAX);
        if (n >= sizeof(one))
            return fail_set(fail, FAIL_USAGE,
                            "--prompt: need fewer than %u letters each, have %zu",
                            PROMPT_BYTES, n);
        memcpy(one, text, n);
        one[n] = '\0';
        if (parse_prompt(one, to, fail) != 0)
            return -EINVAL;
        if (text[n] == '\0')
            return 0;
        text += n + 1;
    }
}

/* A flag that names a setting. */
static int parse_setting(int flag, const char *text, struct options *options,
                         struct fail *fail)
{
    struct settings *to = &options->settings;
    const uint32_t window_max = VIDEO_WINDOW * VIDEO_FRAMES;

    switch (flag) {
    case FLAG_PROMPT:
        options->given |= GIVEN_PROMPT;
        return parse_prompts(text, to, fail);
    case FLAG_PASSES:
        options->given |= GIVEN_PASSES;
        return flag_count("--passes", text, OPTIONS_PASSES_MAX, &to->passes, fail);
    case FLAG_WINDOW:
        options->given |= GIVEN_WINDOW;
        return parse_frames("--window", text, window_max, &to->window_frames, fail);
    case FLAG_SINK:
        options->given |= GIVEN_SINK;
        return parse_frames("--sink", text, window_max, &to->sink_frames, fail);
    case FLAG_SEED:
        options->given |= GIVEN_SEED;
        return flag_number("--seed", text, INT64_MAX, &to->seed, fail);
    case FLAG_FRAMES:
        return parse_frames("--frames", text, OPTIONS_FRAMES_MAX, &options->n_frames,
                            fail);
    default:
        return fail_set(fail, FAIL_USAGE, "unknown flag; --help lists them");
    }
}

static int parse_flag(int flag, const char *text, struct options *options,
                      struct fail *fail)
{
    const struct {
        int flag;
        const char **to;
    } names[] = {{FLAG_MODEL, &options->model}, {FLAG_RESUME, &options->resume},
                 {FLAG_PNG, &options->png},     {FLAG_SHEET, &options->sheet},
                 {FLAG_RAW, &options->raw},     {FLAG_SOCKET, &options->socket}};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].flag == flag) {
            *names[i].to = text;
            return 0;
        }
    }
    if (flag == FLAG_JSON)
        options->is_json = true;
    else if (flag == FLAG_HELP)
        options->is_help = true;
    else
        return parse_setting(flag, text, options, fail);
    return 0;
}

/* What flags say together. */
static int check_together(const struct options *options, struct fail *fail)
{
    const struct settings *settings = &options->settings;

    if (options->model == NULL)
        return fail_set(fail, FAIL_USAGE, "--model: need the folder of a model");
    if (settings->n_prompts == 0 && options->resume == NULL)
        return fail_set(fail, FAIL_USAGE, "--prompt: need one, like \"2 slow\"");
    if (settings->window_frames < 2 * VIDEO_FRAMES)
        return fail_set(fail, FAIL_USAGE, "--window: need %u frames at least, have %u",
                        2 * VIDEO_FRAMES, settings->window_frames);
    if (settings->sink_frames + VIDEO_FRAMES > settings->window_frames)
        return fail_set(
            fail, FAIL_USAGE,
            "--window: need the sink's %u frames and %u of a chunk, have %u",
            settings->sink_frames, VIDEO_FRAMES, settings->window_frames);
    if (options->n_frames == 0)
        return fail_set(fail, FAIL_USAGE, "--frames: need %u at least, have 0",
                        VIDEO_FRAMES);
    return 0;
}

int options_parse(int argc, char **argv, void *parsed, struct fail *fail)
{
    struct options *options = parsed;
    int flag;

    *options = (struct options){
        .n_frames = 300,
        .settings = {.passes = 6,
                     .window_frames = VIDEO_WINDOW * VIDEO_FRAMES,
                     .sink_frames = VIDEO_FRAMES},
    };
    while ((flag = flag_next(argc, argv, flags, fail)) > 0) {
        if (parse_flag(flag, optarg, options, fail) != 0)
            return -EINVAL;
    }
    if (flag < 0 || options->is_help)
        return flag < 0 ? flag : 1;
    return check_together(options, fail);
}
