/* SPDX-License-Identifier: Apache-2.0 */
/* The token ids to begin with: bytes, a list, or a file to score. */
#ifndef GENERATE_PROMPT_H
#define GENERATE_PROMPT_H

#include <stdint.h>

#include "examples/common/fail.h"
#include "examples/common/ranks.h"
#include "examples/generate/options.h"

#define PROMPT_BYTE_VOCAB 256u /* a vocabulary of bytes */

struct prompt {
    uint32_t *id; /* heap */
    uint64_t n;   /* 0: none was given */
};

/** Make ids of what the options name; every id is below vocab. @return 0 or -EINVAL. */
int prompt_read(const struct options *options, uint32_t vocab, struct prompt *prompt,
                struct fail *fail);

/** Give rank 0's prompt to the others. All ranks call it; it ends in agreement. */
int prompt_share(struct prompt *prompt, const struct ranks *ranks, struct fail *fail);

void prompt_free(struct prompt *prompt);

#endif
