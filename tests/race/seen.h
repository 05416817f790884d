/* SPDX-License-Identifier: Apache-2.0 */
/* The states that a search has been in. */
#ifndef KVW_TESTS_RACE_SEEN_H
#define KVW_TESTS_RACE_SEEN_H

#include <stdbool.h>
#include <stdint.h>

void seen_clear(void);

/** True if this state was seen with at least as many switches left; else it is now. */
bool seen_before(uint64_t digest, uint32_t switches_left);

uint64_t seen_count(void);

#endif
