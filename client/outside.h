/* SPDX-License-Identifier: Apache-2.0 */
/* What enters the library from outside, beside its sockets: clocks and environment. */
#ifndef KVW_CLIENT_OUTSIDE_H
#define KVW_CLIENT_OUTSIDE_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/** Nanoseconds of a clock. */
uint64_t outside_now_ns(clockid_t clock);

/** vm.max_map_count of the host; the kernel's default when it cannot be read. */
uint64_t outside_mappings_max(void);

/** A variable of the environment; NULL if it is not set, or empty. */
const char *outside_variable(const char *name);

/** The NUMA node of the CPU that this thread runs on; all ones if it cannot be told. */
uint32_t outside_node(void);

/** True if there is more than one NUMA node. */
bool outside_has_nodes(void);

/** The CPUs of a node, or, if it has none, of the nearest that has. @return false if that
 * cannot be told. */
bool outside_cpus_near(uint32_t node, cpu_set_t *cpus);

#endif
