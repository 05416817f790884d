/* SPDX-License-Identifier: Apache-2.0 */
/* Counter-based randomness: a function of key and counter, so that nothing but the seed
 * has to be kept for a run to go on as it would have gone on. */
#ifndef COMMON_PHILOX_H
#define COMMON_PHILOX_H

#include <stdint.h>

/** Philox4x32-10: four random words for a counter and a key. Salmon et al., "Parallel
 *  Random Numbers: As Easy as 1, 2, 3" (SC'11), section 3.3. */
void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/** A number in [0, 1) from two of the words, 53 bits. */
double philox_uniform(uint32_t low, uint32_t high);

#endif
