/* SPDX-License-Identifier: Apache-2.0 */
/* What enters the library from outside, beside its sockets: clocks and environment. */
#ifndef KVW_CLIENT_OUTSIDE_H
#define KVW_CLIENT_OUTSIDE_H

#include <stdint.h>
#include <time.h>

/** Nanoseconds of a clock. */
uint64_t outside_now_ns(clockid_t clock);

/** vm.max_map_count of the host; the kernel's default when it cannot be read. */
uint64_t outside_mappings_max(void);

/** A variable of the environment; NULL if it is not set, or empty. */
const char *outside_variable(const char *name);

#endif
