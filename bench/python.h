/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases whose other side is Python: `python` (what a call costs there and in C) and
 * `roll` (a chunk at the size of a video model, beside torch's ways to roll a window).
 *
 * The Python process runs kvwheel.bench of the package that lies with this build or in its
 * prefix, by $KVWHEEL_PYTHON or /usr/bin/python3, which has Debian's numpy and torch. It
 * takes its own times and tells them, order by order, so that its variants run interleaved
 * with those of C.
 */
#ifndef KVW_BENCH_PYTHON_H
#define KVW_BENCH_PYTHON_H

#include "bench/bench.h"

/** Run the case `python`. */
BENCH_NODISCARD int python_run(struct bench *bench);

/** Run the case `roll`. */
BENCH_NODISCARD int roll_run(struct bench *bench);

#define PYTHON_VARIANTS_MAX 12u

struct python;

/* A variant of the Python process, as the context of a struct bench_variant. */
struct python_variant {
    struct python *python;
    uint32_t index;
    const char *name; /* of the list that python_start() was given */
};

struct python {
    int pid; /* 0: none */
    int to;
    int from;
    uint32_t n_bytes; /* of text that was read and not yet used */
    char text[4096];
    uint32_t n_variants;
    struct python_variant variant[PYTHON_VARIANTS_MAX];
};

/**
 * Start the process and learn which variants it has; without torch it may have fewer.
 *
 * @param names  All that it may have; ends with NULL.
 * @return 0 or negative, in words.
 */
BENCH_NODISCARD int python_start(struct bench *bench, struct python *python,
                                 const char *name_of_case, const char *const *names);

/** End it. Nothing started: nothing to do. */
void python_stop(struct python *python);

/** Have a variant run `n` times and add its samples. @return 0 or negative. */
BENCH_NODISCARD int python_sample(const struct python_variant *variant, uint32_t n,
                                  struct bench_samples *samples);

#endif
