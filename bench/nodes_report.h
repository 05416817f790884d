/* SPDX-License-Identifier: Apache-2.0 */
/* What a run across nodes prints, rank 0 alone. */
#ifndef KVW_BENCH_NODES_REPORT_H
#define KVW_BENCH_NODES_REPORT_H

#include "bench/environment.h"
#include "bench/nodes.h"

/** For each case and variant the two columns of OSU's benchmarks, size and latency in us
 *  (the median over samples of the slowest rank); all else in lines that begin with #. */
void nodes_report_text(const struct nodes *nodes,
                       const struct bench_environment *environment);

/** One JSON object: "environment"; "results", an array of {case, bytes, p50_us, p99_us,
 *  max_us, gbps, wrong}; "details", with what else is known of each result, in the same
 *  order; "hosts", the matrix; "verdict". @return 0 or -ENOMEM. */
BENCH_NODISCARD int nodes_report_json(const struct nodes *nodes,
                                      const struct bench_environment *environment,
                                      const char *verdict);

/** The same seven columns with a line of names. */
void nodes_report_csv(const struct nodes *nodes);

/**
 * Hold results against limits: "CASE KEY<=VALUE" with a key of the columns, such as
 * "share.in_place p50_us<=50" or "* wrong<=0"; CASE may be a pattern of fnmatch(). Each
 * limit that is not met, or that no result has the case of, is told on stderr.
 *
 * @return whether all are met and nothing is wrong.
 */
bool nodes_are_valid(const struct nodes *nodes);

/** Whether a limit can be read; used when options are parsed. */
bool nodes_is_limit(const char *text);

/** Draw an SVG file of each case into a folder by gnuplot, or say that it is absent.
 *  @return 0 or negative, in words. */
BENCH_NODISCARD int nodes_plot(const struct nodes *nodes, const char *folder);

#endif
