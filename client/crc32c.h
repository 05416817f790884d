/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-32C (Castagnoli's polynomial 0x1edc6f41, reflected, start and end inverted, as in
 * RFC 3720, appendix B.4) of rows. Every change of up to 32 bits in
 * a row changes it, as does every burst of that length.
 */
#ifndef KVW_CLIENT_CRC32C_H
#define KVW_CLIENT_CRC32C_H

#include <stdint.h>

/** A number for each of `n_rows` rows of `row_bytes`, `stride_bytes` apart. Any alignment. */
typedef void crc32c_rows_fn(const char *rows, uint64_t stride_bytes, uint64_t row_bytes,
                            uint64_t n_rows, uint32_t *sums);

/* Half a byte at a time, for any CPU: what the other is tested against. */
crc32c_rows_fn crc32c_rows_ref;

/* By the instruction of SSE4.2. */
crc32c_rows_fn crc32c_rows_sse42;

/** The best one for this CPU. */
crc32c_rows_fn *crc32c_rows_best(void);

#endif
