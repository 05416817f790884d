/* SPDX-License-Identifier: Apache-2.0 */
/* Nehalem and later. The instruction takes 8 bytes and has a latency of 3 cycles, but can
 * begin in each: four rows are computed side by side. */
#include "client/crc32c.h"

#ifdef __x86_64__

#include <string.h>

static uint64_t load(const char *at)
{
    uint64_t word;

    memcpy(&word, at, sizeof word);
    return word;
}

static uint32_t finish(uint64_t crc, const char *at, uint64_t n_bytes)
{
    uint32_t crc32 = (uint32_t)crc;

    for (uint64_t i = 0; i < n_bytes; i++)
        crc32 = __builtin_ia32_crc32qi(crc32, (unsigned char)at[i]);
    return ~crc32;
}

void crc32c_rows_sse42(const char *rows, uint64_t stride_bytes, uint64_t row_bytes,
                       uint64_t n_rows, uint32_t *sums)
{
    const uint64_t words_bytes = row_bytes & ~7ull;

    for (; n_rows >= 4; n_rows -= 4, rows += 4 * stride_bytes) {
        uint64_t crc[4] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
        for (uint64_t i = 0; i < words_bytes; i += 8) {
            for (uint32_t r = 0; r < 4; r++)
                crc[r] =
                    __builtin_ia32_crc32di(crc[r], load(rows + r * stride_bytes + i));
        }
        for (uint32_t r = 0; r < 4; r++)
            *sums++ = finish(crc[r], rows + r * stride_bytes + words_bytes,
                             row_bytes - words_bytes);
    }
    for (; n_rows > 0; n_rows--, rows += stride_bytes) {
        uint64_t crc = UINT32_MAX;
        for (uint64_t i = 0; i < words_bytes; i += 8)
            crc = __builtin_ia32_crc32di(crc, load(rows + i));
        *sums++ = finish(crc, rows + words_bytes, row_bytes - words_bytes);
    }
}

#else

void crc32c_rows_sse42(const char *rows, uint64_t stride_bytes, uint64_t row_bytes,
                       uint64_t n_rows, uint32_t *sums)
{
    crc32c_rows_ref(rows, stride_bytes, row_bytes, n_rows, sums);
}

#endif
