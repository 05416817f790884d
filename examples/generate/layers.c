/* SPDX-License-Identifier: Apache-2.0 */
/* See common/matrix.c for how it is built. */
#include "examples/generate/layers.h"

#include <math.h>

void rms_norm(const float *x, const float *weight, double eps, uint32_t n,
              uint32_t n_elems, float *out)
{
    for (uint32_t t = 0; t < n; t++) {
        const float *from = x + (size_t)t * n_elems;
        float *to = out + (size_t)t * n_elems;
        double squares = 0;
        for (uint32_t i = 0; i < n_elems; i++)
            squares += (double)from[i] * (double)from[i];
        float factor = (float)(1.0 / sqrt(squares / n_elems + eps));
        for (uint32_t i = 0; i < n_elems; i++)
            to[i] = from[i] * factor * weight[i];
    }
}

void swiglu(float *gate, const float *up, size_t n_elems)
{
    for (size_t i = 0; i < n_elems; i++)
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}
