/* SPDX-License-Identifier: Apache-2.0 */
/* Two reports of a run across nodes (--json) beside each other. */
#ifndef KVW_BENCH_COMPARE_H
#define KVW_BENCH_COMPARE_H

#include "bench/bench.h"

/**
 * Print for each case and size that both have how B's median stands to A's. It counts as
 * slower, or faster, where it is beyond the noise: `bound` and the spread within both runs.
 *
 * @param bound  Such as 0.1: a tenth.
 * @return BENCH_OK; BENCH_INVALID: something is slower, or wrong, or missing in B;
 *         BENCH_FAILED: a file is no such report.
 */
BENCH_NODISCARD int compare_reports(const char *path_a, const char *path_b,
                                    double bound);

#endif
