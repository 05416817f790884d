/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template of scores straight from the rows, for micro-tiles of few queries (decode):
 * columns of keys are made in registers and used there, so that nothing is written and
 * rows arrive while others are multiplied. The file that includes it says, before, how a
 * column is used:
 *
 *   few_sum                                  a vector of sums, one for each slot
 *   few_sum few_first(queries, row)          what sums begin with
 *   vec few_column(column, part, type)       what is multiplied; part: 0, or of a column
 *                                            of 16-bit numbers 0 and 1
 *   few_sum few_add(sum, q, column)          q: of one row and unit
 *   vec few_score(sum, queries, row)
 *
 * The order of each sum is that of packed keys.
 */
#ifndef KVW_KERNELS_ATTN_FEW_H
#define KVW_KERNELS_ATTN_FEW_H

#include "kernels/attn_pack.h"
#include "kernels/vec.h"

#ifdef VEC_LANES

/* n_columns: of 32 bits, a multiple of 8; n_parts: units of queries in each. */
INLINE void few_part(const uint32_t n_rows, const uint32_t n_blocks, float *score,
                     const struct attn_queries *queries, const void *const *key,
                     ptrdiff_t ahead, uint32_t n_columns, const uint32_t n_parts,
                     const uint32_t type)
{
    const uint32_t *q = queries->q;
    struct fetcher next = {.row = key, .ahead = ahead, .n_bytes = 4 * n_columns};
    few_sum acc[ATTN_ROWS][2];

    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            acc[i][j] = few_first(queries, i);
    }
    for (uint32_t c = 0; c < n_columns; c += 8) {
        vec column[2][8];
        fetch_more(&next, n_blocks * VEC_LANES / 2);
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            vec_load_columns(column[j], key + j * VEC_LANES, 4 * (size_t)c);
        UNROLLED
        for (uint32_t u = 0; u < 8 * n_parts; u++) {
            vec x[2];
            UNROLLED
            for (uint32_t j = 0; j < n_blocks; j++)
                x[j] = few_column(column[j][u / n_parts], u % n_parts, type);
            UNROLLED
            for (uint32_t i = 0; i < n_rows; i++) {
                UNROLLED
                for (uint32_t j = 0; j < n_blocks; j++)
                    acc[i][j] = few_add(acc[i][j], q + i, x[j]);
            }
            q += n_rows;
        }
    }
    UNROLLED
    for (uint32_t i = 0; i < n_rows; i++) {
        UNROLLED
        for (uint32_t j = 0; j < n_blocks; j++)
            vec_store(&score[i * ATTN_PITCH + j * VEC_LANES],
                      few_score(acc[i][j], queries, i));
    }
}

INLINE void few_rows(const uint32_t n_rows, float *score,
                     const struct attn_queries *queries, const struct attn_tile *tile,
                     const struct attn_span *span, uint32_t n_columns,
                     const uint32_t n_parts, const uint32_t type)
{
    const uint32_t n_blocks = n_rows <= 4 ? 2 : 1;

    for (uint32_t slot = span->begin; slot < span->end; slot += n_blocks * VEC_LANES)
        few_part(n_rows, n_blocks, &score[slot], queries, &tile->k[slot], tile->k_ahead,
                 n_columns, n_parts, type);
}

INLINE void few_any(float *score, const struct attn_queries *queries,
                    const struct attn_tile *tile, const struct attn_span *span,
                    uint32_t n_columns, const uint32_t n_parts, const uint32_t type)
{
    switch (queries->n_rows) {
    case 1:
        few_rows(1, score, queries, tile, span, n_columns, n_parts, type);
        break;
    case 2:
        few_rows(2, score, queries, tile, span, n_columns, n_parts, type);
        break;
    case 4:
        few_rows(4, score, queries, tile, span, n_columns, n_parts, type);
        break;
    case 6:
        few_rows(6, score, queries, tile, span, n_columns, n_parts, type);
        break;
    case 8:
        few_rows(8, score, queries, tile, span, n_columns, n_parts, type);
        break;
    default:
        few_rows(12, score, queries, tile, span, n_columns, n_parts, type);
        break;
    }
}

#endif /* VEC_LANES */

#endif /* KVW_KERNELS_ATTN_FEW_H */
