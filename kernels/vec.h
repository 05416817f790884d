/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vectors of the instruction set that a file is compiled for, under names that do not
 * say which: vec_avx512.h or vec_avx2.h. Elsewhere there are none, VEC_LANES is not
 * defined, and the templates that include this are empty.
 */
#ifndef KVW_KERNELS_VEC_H
#define KVW_KERNELS_VEC_H

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__)
#include "kernels/vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "kernels/vec_avx2.h"
#endif

#endif /* KVW_KERNELS_VEC_H */
