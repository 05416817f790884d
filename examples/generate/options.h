/* SPDX-License-Identifier: Apache-2.0 */
/* The command line, parsed once. Strings are borrowed from argv. */
#ifndef GENERATE_OPTIONS_H
#define GENERATE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "examples/common/fail.h"
#include "examples/generate/sample.h"

#define OPTIONS_ROWS_MAX (1u << 30) /* of a window, and of a whole text */
#define OPTIONS_CHUNK_MAX 4096u

/* What a text was begun with, and must be gone on with. */
struct settings {
    uint64_t window_rows; /* W */
    uint64_t sink_rows;   /* S < W */
    uint32_t chunk_rows;  /* rows of a step while the prompt is read */
    uint32_t positions;   /* enum kvw_positions */
    uint32_t type;        /* enum kvw_type of K and V */
    uint32_t row_parts;   /* ranks that share the rows of the same heads */
    uint32_t row_block;   /* rows in a row of one of them */
    uint32_t reserved;
    struct sampling sampling;
};

enum option_given { /* settings that the command line names */
                    GIVEN_WINDOW = 1u << 0,
                    GIVEN_SINK = 1u << 1,
                    GIVEN_CHUNK = 1u << 2,
                    GIVEN_POSITIONS = 1u << 3,
                    GIVEN_TYPE = 1u << 4,
                    GIVEN_SEED = 1u << 5,
                    GIVEN_TEMPERATURE = 1u << 6,
                    GIVEN_GREEDY = 1u << 7,
                    GIVEN_ROW_PARTS = 1u << 8,
                    GIVEN_ROW_BLOCK = 1u << 9,
};

struct options {
    const char *model;
    const char *prompt;
    const char *prompt_ids;
    const char *resume;
    const char *nll;
    const char *logits;
    const char *socket;
    const char *kernels; /* a variant's name; NULL: the best */
    uint64_t n_tokens;
    uint32_t nll_chunk_rows;
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

/** "f32", "window" ... of a setting. */
const char *settings_type_name(uint32_t type);
const char *settings_positions_name(uint32_t positions);

#endif
