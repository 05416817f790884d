/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of a decoder beside attention. Each result is a pure function of its
 * own inputs, in one fixed order of operations: a dot product comes out the same, bit
 * for bit, whichever rank computes it and however many rows or tokens are in the call.
 * That is what makes R ranks give the logits of one.
 */
#ifndef GENERATE_LAYERS_H
#define GENERATE_LAYERS_H

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

/** out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight, over [n, n_elems].
 *  Zhang and Sennrich, "Root Mean Square Layer Normalization" (arXiv 1910.07467). */
void rms_norm(const float *x, const float *weight, double eps, uint32_t n,
              uint32_t n_elems, float *out);

/** gate[i] = gate[i] * sigmoid(gate[i]) * up[i]. Shazeer, "GLU Variants Improve
 *  Transformer" (arXiv 2002.05202). */
void swiglu(float *gate, const float *up, size_t n_elems);

/** x[i] += y[i]. */
void add_to(float *x, const float *y, size_t n_elems);

#endif
