/* SPDX-License-Identifier: Apache-2.0 */
/* The command line, parsed once. Strings are borrowed from argv. */
#ifndef VIDEO_OPTIONS_H
#define VIDEO_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "examples/common/fail.h"

#define OPTIONS_FRAMES_MAX 100000u
#define OPTIONS_PROMPTS_MAX 8u
#define OPTIONS_PASSES_MAX 64u

/* What is to be seen from a frame on. */
struct prompt {
    uint32_t first_frame;
    uint32_t balls; /* 1 .. VIDEO_BALLS */
    uint32_t speed; /* 0 slow, 1 fast */
};

/* What a video was begun with, and must be gone on with. */
struct settings {
    uint64_t seed;
    uint32_t passes;
    uint32_t window_frames; /* sink and the chunk itself included */
    uint32_t sink_frames;
    uint32_t n_prompts;
    struct prompt prompt[OPTIONS_PROMPTS_MAX];
};

enum option_given { /* settings that the command line names */
                    GIVEN_SEED = 1u << 0,
                    GIVEN_PASSES = 1u << 1,
                    GIVEN_WINDOW = 1u << 2,
                    GIVEN_SINK = 1u << 3,
                    GIVEN_PROMPT = 1u << 4,
};

struct options {
    const char *model;
    const char *resume;
    const char *png;
    const char *sheet;
    const char *raw;
    const char *socket;
    uint32_t n_frames;
    bool is_json;
    bool is_help;
    uint32_t given; /* enum option_given */
    struct settings settings;
};

/** Parse a command line into a struct options. @return 0, 1 if help is asked for, or
 *  -EINVAL. */
int options_parse(int argc, char **argv, void *parsed, struct fail *fail);

/** The text of --help. */
extern const char options_help[];

/** "slow", "fast". */
const char *options_speed_name(uint32_t speed);

#endif
