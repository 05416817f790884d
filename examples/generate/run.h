/* SPDX-License-Identifier: Apache-2.0 */
/* A run: from options to the last token, the same on every rank. */
#ifndef GENERATE_RUN_H
#define GENERATE_RUN_H

#include "examples/common/fail.h"
#include "examples/common/ranks.h"
#include "examples/generate/options.h"

/** Generate or score. All ranks call it; it ends in agreement. @return 0 or -EINVAL. */
int run_generate(const void *options, struct ranks *ranks, struct fail *fail);

#endif
