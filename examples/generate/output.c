/* SPDX-License-Identifier: Apache-2.0 */
/* stdout is for programs, stderr for people. */
#include "examples/generate/output.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/cache.h"
#include "examples/common/stream.h"
#include "examples/generate/prompt.h"
#include "examples/generate/text.h"

#define PROGRESS_SECONDS 2.0

int output_open(struct output *output, const struct options *options, bool is_first,
                uint32_t vocab, struct fail *fail)
{
    *output = (struct output){
        .is_on = is_first,
        .is_json = options->is_json,
        .is_bytes = vocab == PROMPT_BYTE_VOCAB,
        .started = stream_now(),
        .reported = stream_now(),
    };
    if (!is_first || options->logits == NULL)
        return 0;
    output->logits = fopen(options->logits, "wbe");
    if (output->logits == NULL)
        return fail_set(fail, FAIL_IO, "--logits: %s: %s", options->logits,
                        strerror(errno));
    return 0;
}

int output_token(const struct output *output, uint64_t row, uint32_t id,
                 struct fail *fail)
{
    if (!output->is_on)
        return 0;
    if (output->is_json)
        return stream_json(
            json_pack("{sIsI}", "row", (json_int_t)row, "token", (json_int_t)id), fail);
    if (output->is_bytes)
        fputc((int)id, stdout);
    else
        fprintf(stdout, "%u ", id);
    return stream_check(fail);
}

int output_logits(const struct output *output, const float *logits, uint32_t vocab,
                  struct fail *fail)
{
    if (output->logits == NULL ||
        fwrite(logits, sizeof(float), vocab, output->logits) == vocab)
        return 0;
    return fail_set(fail, FAIL_IO, "--logits: %s", strerror(errno));
}

void output_progress(struct output *output, uint64_t row, uint64_t n_done,
                     uint64_t n_all)
{
    double now;

    if (!output->is_on)
        return;
    now = stream_now();
    if (now - output->reported < PROGRESS_SECONDS)
        return;
    output->reported = now;
    if (n_all == 0) { /* a text that is scored, or only read */
        fprintf(stderr, "kvwheel-generate: row %" PRIu64 ", %.1f s\n", row,
                now - output->started);
        return;
    }
    fprintf(stderr,
            "kvwheel-generate: row %" PRIu64 ", %" PRIu64 " of %" PRIu64
            " tokens, %.1f s\n",
            row, n_done, n_all, now - output->started);
}

void output_resumed(const struct output *output, uint64_t n_done, uint64_t n_all)
{
    if (output->is_on)
        fprintf(stderr,
                "kvwheel-generate: going on after %" PRIu64 " of %" PRIu64
                " tokens; the text so far is printed again\n",
                n_done, n_all);
}

static uint64_t rolls(const struct result *result)
{
    return cache_rolls(result->rows, result->settings->window_rows,
                       result->settings->sink_rows);
}

static json_t *token_list(const struct result *result)
{
    json_t *list = json_array();

    for (uint64_t i = 0; list != NULL && i < result->n_tokens; i++) {
        if (json_array_append_new(list, json_integer((json_int_t)result->token[i])) !=
            0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* NULL only when memory ran out. */
static json_t *spelt(const struct output *output, const struct result *result)
{
    size_t n_bytes = 0;
    char *text;
    json_t *json;

    if (!output->is_bytes)
        return json_null();
    text = text_from_bytes(result->token, result->n_tokens, &n_bytes);
    if (text == NULL)
        return NULL;
    json = json_stringn(text, n_bytes);
    free(text);
    return json;
}

/* What both kinds of results say. */
static json_t *pack_common(const struct output *output, const struct result *result)
{
    const struct settings *settings = result->settings;
    const double seconds = stream_now() - output->started;
    const uint64_t n = result->is_nll ? result->n_scored : result->n_new_tokens;

    return json_pack(
        "{sIsIsIsIsIsIsIsfsfsIsIsIsIsssssssIsbso?ss}", "prompt_tokens",
        (json_int_t)result->prompt_rows, "window", (json_int_t)settings->window_rows,
        "sink", (json_int_t)settings->sink_rows, "rolls", (json_int_t)rolls(result),
        "rows", (json_int_t)result->rows, "bytes_new_rows",
        (json_int_t)result->bytes_new_rows, "bytes_written",
        (json_int_t)result->bytes_written, "seconds", seconds, "tokens_per_second",
        seconds > 0 ? (double)n / seconds : 0.0, "ranks", (json_int_t)result->n_ranks,
        "row_parts", (json_int_t)settings->row_parts, "nodes",
        (json_int_t)result->n_nodes, "rebuilt", (json_int_t)result->n_rebuilt,
        "positions", settings_positions_name(settings->positions), "dtype",
        settings_type_name(settings->type), "kernels", result->kernels, "seed",
        (json_int_t)settings->sampling.seed, "greedy",
        (int)settings->sampling.is_greedy, "resumed_from",
        result->is_resumed ? json_integer((json_int_t)result->resumed_row)
                           : json_null(),
        "cache", result->cache);
}

static int print_result_json(const struct output *output, const struct result *result,
                             struct fail *fail)
{
    json_t *json = pack_common(output, result);
    int failed = json == NULL;

    if (!failed && result->is_nll) {
        failed = json_object_set_new(json, "nll_nats", json_real(result->nll)) != 0 ||
                 json_object_set_new(json, "tokens",
                                     json_integer((json_int_t)result->n_scored)) != 0 ||
                 json_object_set_new(
                     json, output->is_bytes ? "bits_per_byte" : "bits_per_token",
                     json_real(result->nll / M_LN2 / (double)result->n_scored)) != 0;
    } else if (!failed) {
        failed = json_object_set_new(json, "tokens", token_list(result)) != 0 ||
                 json_object_set_new(json, "text", spelt(output, result)) != 0;
    }
    if (failed) {
        json_decref(json);
        return fail_memory(fail, "the result");
    }
    return stream_json(json, fail);
}

static int print_result_text(const struct output *output, const struct result *result,
                             struct fail *fail)
{
    if (result->is_nll)
        fprintf(stdout, "%.17g nats, %" PRIu64 " tokens, %.6f bits per %s\n",
                result->nll, result->n_scored,
                result->nll / M_LN2 / (double)result->n_scored,
                output->is_bytes ? "byte" : "token");
    else if (result->n_tokens > 0)
        fputc('\n', stdout);
    return stream_check(fail);
}

int output_result(const struct output *output, const struct result *result,
                  struct fail *fail)
{
    const double seconds = stream_now() - output->started;
    const uint64_t n = result->is_nll ? result->n_scored : result->n_new_tokens;

    if (!output->is_on)
        return 0;
    if (output->is_json && print_result_json(output, result, fail) != 0)
        return -EINVAL;
    if (!output->is_json && print_result_text(output, result, fail) != 0)
        return -EINVAL;
    fprintf(stderr,
            "kvwheel-generate: %" PRIu64 " tokens in %.2f s, %.1f a second; %" PRIu64
            " rows, window %" PRIu64 " rolled %" PRIu64 " times\n",
            n, seconds, seconds > 0 ? (double)n / seconds : 0.0, result->rows,
            result->settings->window_rows, rolls(result));
    if (result->is_kept && result->is_boxed)
        fprintf(
            stderr,
            "kvwheel-generate: the cache is kept, in parts %s.Nof%u on their nodes: "
            "kvwheel ls, kvwheel rm\n",
            result->cache, result->n_ranks);
    else if (result->is_kept)
        fprintf(
            stderr,
            "kvwheel-generate: the cache is kept; to remove it: %s%s%skvwheel rm %s\n",
            result->socket != NULL ? "KVWHEEL_SOCKET=" : "",
            result->socket != NULL ? result->socket : "",
            result->socket != NULL ? " " : "", result->cache);
    return 0;
}

int output_close(struct output *output, struct fail *fail)
{
    FILE *logits = output->logits;

    output->logits = NULL;
    if (logits == NULL || fclose(logits) == 0)
        return 0;
    return fail_set(fail, FAIL_IO, "--logits: %s", strerror(errno));
}
