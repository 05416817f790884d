/* SPDX-License-Identifier: Apache-2.0 */
/* What a figure depends on besides the code: one record for each report. */
#ifndef KVW_BENCH_ENVIRONMENT_H
#define KVW_BENCH_ENVIRONMENT_H

#include <stdint.h>

/* "unknown" where the host does not say. */
struct bench_environment {
    char cpu[96];
    uint32_t n_cores; /* that this process may use */
    char kernel[96];
    char governor[32];
    char huge_pages[32];        /* transparent, of anonymous memory */
    char huge_pages_shared[32]; /* of shared memory */
    char clock_source[32];
    double load[3]; /* averages over 1, 5 and 15 minutes, at the start */
    const char *compiler;
    const char *version;
    char date[32]; /* UTC, ISO 8601 */
};

/** Look around. */
void bench_environment_read(struct bench_environment *environment);

#endif
