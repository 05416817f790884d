/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything that rank 0 writes: text or JSON on stdout, progress on stderr, logits in
 * a file. The other ranks have an output too, which writes nothing. A write that fails
 * is a refusal like any other.
 */
#ifndef GENERATE_OUTPUT_H
#define GENERATE_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "examples/common/fail.h"
#include "examples/generate/options.h"

struct output {
    bool is_on; /* rank 0 */
    bool is_json;
    bool is_bytes; /* tokens are bytes */
    FILE *logits;  /* may be NULL */
    double started;
    double reported; /* when progress was last written */
};

/* What a run amounts to. */
struct result {
    const uint32_t *token; /* generated, of the whole text */
    uint64_t n_tokens;
    uint64_t n_new_tokens; /* by this run */
    uint64_t prompt_rows;
    const struct settings *settings;
    const char *kernels; /* name of the variant of attention */
    const char *cache;
    const char *socket; /* may be NULL */
    bool is_kept;
    bool is_boxed; /* each rank has its part in a cache of its own */
    bool is_resumed;
    uint64_t resumed_row;
    uint64_t rows;
    uint64_t bytes_new_rows;
    uint64_t bytes_written;
    uint32_t n_ranks;
    uint32_t n_nodes;
    uint32_t n_rebuilt; /* parts of the cache that were lost and filled */
    bool is_nll;
    double nll; /* nats */
    uint64_t n_scored;
};

int output_open(struct output *output, const struct options *options, bool is_first,
                uint32_t vocab, struct fail *fail);

/** A token of the text; `row` is where it will be fed. */
int output_token(const struct output *output, uint64_t row, uint32_t id,
                 struct fail *fail);

int output_logits(const struct output *output, const float *logits, uint32_t vocab,
                  struct fail *fail);

/** A line on stderr that says where a text goes on. */
void output_resumed(const struct output *output, uint64_t n_done, uint64_t n_all);

/** Now and then a line on stderr; n_all = 0: a text that is only read. */
void output_progress(struct output *output, uint64_t row, uint64_t n_done,
                     uint64_t n_all);

/** The end of a run. */
int output_result(const struct output *output, const struct result *result,
                  struct fail *fail);

/** Close the files; a failure that only shows now is a refusal. */
int output_close(struct output *output, struct fail *fail);

#endif
