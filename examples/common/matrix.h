/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices and vectors. Each result is a pure function of its own inputs, in one fixed
 * order of operations: a dot product comes out the same, bit for bit, whichever rank
 * computes it and however many rows are in the call. That is what makes R ranks give the
 * results of one.
 */
#ifndef COMMON_MATRIX_H
#define COMMON_MATRIX_H

#include <stddef.h>
#include <stdint.h>

/* Rows of a weight matrix, f32 [n_rows, n_cols]. */
struct matrix {
    float *w; /* NULL if n_rows is 0 */
    uint32_t n_rows;
    uint32_t n_cols;
};

/** out[t][r] = dot(m row r, x[t]); x is [n, n_cols], out [n, n_rows]. */
void matrix_apply(const struct matrix *m, const float *x, uint32_t n, float *out);

/** x[i] += y[i]. */
void add_to(float *x, const float *y, size_t n_elems);

#endif
