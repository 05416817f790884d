/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assertions for our own bugs. Never used on data from a socket, a file, the
 * environment or a page that a worker can write: that is validated and refused.
 */
#ifndef KVW_BASE_CHECK_H
#define KVW_BASE_CHECK_H

#include <stdio.h>
#include <stdlib.h>

/* Always on: once per call, at the boundaries of our own state. */
#define KVW_CHECK(condition)                                  \
    do {                                                      \
        if (!(condition))                                     \
            kvw_check_failed(__FILE__, __LINE__, #condition); \
    } while (0)

/* Only in debug builds: hot paths. */
#ifdef NDEBUG
#define KVW_ASSERT(condition) ((void)sizeof(condition))
#else
#define KVW_ASSERT(condition) KVW_CHECK(condition)
#endif

#define KVW_NODISCARD __attribute__((warn_unused_result))

static inline _Noreturn void kvw_check_failed(const char *file, int line,
                                              const char *condition)
{
    fprintf(stderr, "kvwheel: bug: %s:%d: %s\n", file, line, condition);
    abort();
}

#endif
