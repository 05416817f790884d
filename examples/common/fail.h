/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a run ended, in words. Every function that can refuse takes a struct fail,
 * returns 0 or -EINVAL, and leaves one sentence that names the field, what is needed
 * and what there is. The first refusal stays: what follows from it is not reported. One
 * per rank; ranks_agree() makes one of them everybody's.
 */
#ifndef COMMON_FAIL_H
#define COMMON_FAIL_H

#include <stdbool.h>

/* Exit codes of the programs; --help lists them. */
enum fail_code {
    FAIL_OK = 0,
    FAIL_USAGE = 2,  /* flags, prompt */
    FAIL_MODEL = 3,  /* config.json or weights refused */
    FAIL_CACHE = 4,  /* kvwheel: daemon, cache, or a step refused */
    FAIL_RESUME = 5, /* --resume: the cache belongs to another run */
    FAIL_IO = 6,     /* a file or the output could not be read or written */
    FAIL_RANKS = 7,  /* the number or the place of the ranks */
    FAIL_MEMORY = 8, /* out of memory */
};

struct fail {
    int code; /* enum fail_code; 0: nothing failed */
    char text[508];
};

/** Record a refusal, unless there is one. @return -EINVAL, so that callers can forward.
 */
__attribute__((format(printf, 3, 4))) int fail_set(struct fail *fail, int code,
                                                   const char *format, ...);

/** Record that memory ran out for `what`. @return -EINVAL */
int fail_memory(struct fail *fail, const char *what);

static inline bool has_failed(const struct fail *fail)
{
    return fail->code != 0;
}

#endif
