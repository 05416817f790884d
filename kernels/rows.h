/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of rows and heads, and checks of them, shared by all kernels. Static inline
 * only, for the reason given in num.h.
 */
#ifndef KVW_KERNELS_ROWS_H
#define KVW_KERNELS_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline const void *row_in(const void *base, uint64_t row, ptrdiff_t row_stride,
                                 uint32_t head, ptrdiff_t head_stride)
{
    return (const char *)base + (ptrdiff_t)row * row_stride +
           (ptrdiff_t)head * head_stride;
}

static inline void *row_out(void *base, uint64_t row, ptrdiff_t row_stride,
                            uint32_t head, ptrdiff_t head_stride)
{
    return (char *)base + (ptrdiff_t)row * row_stride + (ptrdiff_t)head * head_stride;
}

/* The scale of a row of a head; 1 where there are none. */
static inline float scale_at(const float *scales, uint64_t row, ptrdiff_t row_stride,
                             uint32_t head, ptrdiff_t head_stride)
{
    return scales == NULL
               ? 1.0f
               : *(const float *)row_in(scales, row, row_stride, head, head_stride);
}

/* Whether all rows from here are aligned to an element. elem_bytes is a power of two.
 */
static inline bool rows_are_aligned(const void *base, ptrdiff_t row_stride,
                                    ptrdiff_t head_stride, size_t elem_bytes)
{
    const uintptr_t all =
        (uintptr_t)base | (uintptr_t)row_stride | (uintptr_t)head_stride;

    return (all & (elem_bytes - 1)) == 0;
}

#endif /* KVW_KERNELS_ROWS_H */
