/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of a Llama decoder beside matrices and attention; like common/matrix.h
 * in one fixed order of operations. */
#ifndef GENERATE_LAYERS_H
#define GENERATE_LAYERS_H

#include <stddef.h>
#include <stdint.h>

/** out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight, over [n, n_elems].
 *  Zhang and Sennrich, "Root Mean Square Layer Normalization" (arXiv 1910.07467). */
void rms_norm(const float *x, const float *weight, double eps, uint32_t n,
              uint32_t n_elems, float *out);

/** gate[i] = gate[i] * sigmoid(gate[i]) * up[i]. Shazeer, "GLU Variants Improve
 *  Transformer" (arXiv 2002.05202). */
void swiglu(float *gate, const float *up, size_t n_elems);

#endif
