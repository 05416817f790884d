/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The case `generate`: whole runs of kvwheel-generate, one process, by the reference
 * variants of the kernels and by the best that this CPU has. What is timed is what the
 * program itself says: from its prompt to its last token, without the loading of the
 * program and its libraries.
 */
#ifndef KVW_BENCH_GENERATE_H
#define KVW_BENCH_GENERATE_H

#include "bench/bench.h"

/** Run the case. */
int generate_run(struct bench *bench);

/* What a run said at its end. */
struct generate_result {
    uint64_t n_tokens;
    double seconds;
    char kernels[32]; /* of attention */
};

/** Read the last line of what `kvwheel-generate --json` printed.
 *  @return 0 or -EPROTO: it is no result, or one without tokens or time. */
BENCH_NODISCARD int generate_parse(const char *text, size_t n_bytes,
                                   struct generate_result *result);

#endif
