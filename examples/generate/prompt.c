/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes and lists of numbers become ids. No state. */
#include "examples/generate/prompt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/file.h"

static const char separators[] = ", \t\r\n";

static int from_bytes(const char *bytes, size_t n_bytes, struct prompt *prompt,
                      struct fail *fail)
{
    prompt->id = malloc(sizeof(prompt->id[0]) * (n_bytes + 1));
    if (prompt->id == NULL)
        return fail_memory(fail, "the prompt");
    for (size_t i = 0; i < n_bytes; i++)
        prompt->id[i] = (unsigned char)bytes[i];
    prompt->n = n_bytes;
    return 0;
}

static int from_list(const char *name, const char *text, uint32_t vocab,
                     struct prompt *prompt, struct fail *fail)
{
    prompt->id = malloc(sizeof(prompt->id[0]) * (strlen(text) / 2 + 1));
    if (prompt->id == NULL)
        return fail_memory(fail, "the prompt");
    for (text += strspn(text, separators); *text != '\0';
         text += strspn(text, separators)) {
        char *end;
        errno = 0;
        unsigned long long id = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || errno != 0 ||
            (*end != '\0' && strchr(separators, *end) == NULL))
            return fail_set(fail, FAIL_USAGE, "%s: need ids, have %.20s", name, text);
        if (id >= vocab)
            return fail_set(fail, FAIL_USAGE,
                            "%s: need ids below vocab_size %u, have %llu", name, vocab,
                            id);
        prompt->id[prompt->n++] = (uint32_t)id;
        text = end;
    }
    return 0;
}

static int from_file(const struct options *options, uint32_t vocab,
                     struct prompt *prompt, struct fail *fail)
{
    struct file_text text;
    int result;

    if (file_read(options->nll, OPTIONS_ROWS_MAX, FAIL_IO, &text, fail) != 0)
        return -EINVAL;
    if (vocab == PROMPT_BYTE_VOCAB)
        result = from_bytes(text.bytes, text.n_bytes, prompt, fail);
    else
        result = from_list(options->nll, text.bytes, vocab, prompt, fail);
    file_free(&text);
    if (result == 0 && prompt->n < 2)
        return fail_set(
            fail, FAIL_USAGE,
            "--nll: %s: need 2 tokens at least (the first is given), have %llu",
            options->nll, (unsigned long long)prompt->n);
    return result;
}

int prompt_read(const struct options *options, uint32_t vocab, struct prompt *prompt,
                struct fail *fail)
{
    int result = 0;

    *prompt = (struct prompt){0};
    if (options->nll != NULL)
        return from_file(options, vocab, prompt, fail);
    if (options->prompt == NULL && options->prompt_ids == NULL)
        return 0;
    if (options->prompt_ids != NULL)
        result = from_list("--prompt-ids", options->prompt_ids, vocab, prompt, fail);
    else if (vocab == PROMPT_BYTE_VOCAB)
        result = from_bytes(options->prompt, strlen(options->prompt), prompt, fail);
    else
        return fail_set(
            fail, FAIL_USAGE,
            "--prompt: text needs a vocabulary of 256 (bytes), the model has "
            "%u: use --prompt-ids",
            vocab);
    if (result == 0 && prompt->n == 0)
        return fail_set(fail, FAIL_USAGE, "--prompt: need one token at least, have 0");
    return result;
}

int prompt_share(struct prompt *prompt, const struct ranks *ranks, struct fail *fail)
{
    ranks_broadcast(&prompt->n, sizeof(prompt->n), 0);
    if (!ranks_is_first(ranks) && prompt->n > 0) {
        prompt->id = malloc(sizeof(prompt->id[0]) * prompt->n);
        if (prompt->id == NULL)
            (void)fail_memory(fail, "the prompt");
    }
    if (ranks_agree(ranks, fail) != 0)
        return -EINVAL;
    if (prompt->n > 0)
        ranks_broadcast(prompt->id, sizeof(prompt->id[0]) * prompt->n, 0);
    return 0;
}

void prompt_free(struct prompt *prompt)
{
    free(prompt->id);
    *prompt = (struct prompt){0};
}
