/* SPDX-License-Identifier: Apache-2.0 */
/* Activations: one allocation, cut into buffers. */
#ifndef COMMON_BUFFERS_H
#define COMMON_BUFFERS_H

#include <stddef.h>

#include "examples/common/fail.h"

/** Point *buffer[i] at size[i] floats, all zero, in memory that the caller frees.
 *  @return the memory, or NULL with a refusal */
float *buffers_new(const size_t *size, float **const *buffer, size_t n,
                   struct fail *fail);

#endif
