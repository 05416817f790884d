/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Built without contraction into fused multiply-add and without reassociation
 * (CMakeLists.txt), so that the order written here is the order computed.
 */
#include "examples/common/matrix.h"

/* Partial sums of a dot product: enough for any vector width, and always as many, so
 * that the width does not change the result. */
#define DOT_SUMS 16u

static float dot(const float *a, const float *b, uint32_t n_elems)
{
    float sum[DOT_SUMS] = {0};
    uint32_t whole = n_elems - n_elems % DOT_SUMS;

    for (uint32_t i = 0; i < whole; i += DOT_SUMS) {
        for (uint32_t j = 0; j < DOT_SUMS; j++)
            sum[j] += a[i + j] * b[i + j];
    }
    for (uint32_t j = 0; j < n_elems - whole; j++)
        sum[j] += a[whole + j] * b[whole + j];
    for (uint32_t width = DOT_SUMS / 2; width > 0; width /= 2) {
        for (uint32_t j = 0; j < width; j++)
            sum[j] += sum[j + width];
    }
    return sum[0];
}

void matrix_apply(const struct matrix *m, const float *x, uint32_t n, float *out)
{
    for (uint32_t r = 0; r < m->n_rows; r++) {
        const float *row = m->w + (size_t)r * m->n_cols;
        for (uint32_t t = 0; t < n; t++)
            out[(size_t)t * m->n_rows + r] =
                dot(row, x + (size_t)t * m->n_cols, m->n_cols);
    }
}

void add_to(float *x, const float *y, size_t n_elems)
{
    for (size_t i = 0; i < n_elems; i++)
        x[i] += y[i];
}
