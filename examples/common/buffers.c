/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes are small numbers of ours: their sum does not overflow. */
#include "examples/common/buffers.h"

#include <stdlib.h>

float *buffers_new(const size_t *size, float **const *buffer, size_t n,
                   struct fail *fail)
{
    size_t total = 1; /* not nothing, for calloc() */
    float *memory;

    for (size_t i = 0; i < n; i++)
        total += size[i];
    memory = calloc(total, sizeof(float));
    if (memory == NULL) {
        (void)fail_memory(fail, "the activations");
        return NULL;
    }
    total = 0;
    for (size_t i = 0; i < n; i++) {
        *buffer[i] = memory + total;
        total += size[i];
    }
    return memory;
}
