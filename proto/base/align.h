/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic that says when it would not fit. */
#ifndef KVW_BASE_ALIGN_H
#define KVW_BASE_ALIGN_H

#include <stdbool.h>
#include <stdint.h>

/* Round up to a multiple of a power of two. The caller keeps value below 2^63. */
static inline uint64_t align_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

/* product = a * b; false, and nothing written, when it does not fit. */
static inline bool mul_fits(uint64_t a, uint64_t b, uint64_t *product)
{
    uint64_t result;
    if (__builtin_mul_overflow(a, b, &result))
        return false;
    *product = result;
    return true;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
