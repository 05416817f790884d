/* SPDX-License-Identifier: Apache-2.0 */
/* What a run prints on stdout: a table to read, or one JSON object. */
#ifndef KVW_BENCH_REPORT_H
#define KVW_BENCH_REPORT_H

#include "bench/bench.h"
#include "bench/environment.h"

/** A table for each comparison. */
void report_text(const struct bench *bench,
                 const struct bench_environment *environment);

/**
 * One JSON object: "environment", and "results", an array of {case, group, name, unit,
 * n, calls, p50, p99, min, max, floor, ratio, ratio_low, ratio_high, ratios}. The four
 * in front of ratios are those of its first element, or null without one.
 *
 * @return 0 or -ENOMEM.
 */
BENCH_NODISCARD int report_json(const struct bench *bench,
                                const struct bench_environment *environment);

#endif
