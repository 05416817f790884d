/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases `pages` and `numa`: what huge pages save a worker, and what a node's memory
 * costs the CPUs of each.
 */
#ifndef KVW_BENCH_PAGES_H
#define KVW_BENCH_PAGES_H

#include "bench/bench.h"

/**
 * The same filled cache of 220 MiB on small pages, on transparent huge ones and, if the
 * pool has them, on pages of 2 MiB: attaching and the first look at every 4 KiB of it, and
 * one token's attention over all of it. Minor faults are counted, and said on stderr.
 */
BENCH_NODISCARD int pages_run(struct bench *bench);

/**
 * Reading and writing memory of each NUMA node from CPUs of each: the node x node matrix. A
 * comparison is of the CPUs of one node, its floor their own memory.
 */
BENCH_NODISCARD int numa_run(struct bench *bench);

#endif
