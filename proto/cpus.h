/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of CPUs as the kernel writes them: "0-3,8,10-11". */
#ifndef KVW_PROTO_CPUS_H
#define KVW_PROTO_CPUS_H

#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

/* The CPUs of a list; what is no list is the empty set. */
static inline void cpus_parse(const char *list, cpu_set_t *cpus)
{
    CPU_ZERO(cpus);
    while (*list >= '0' && *list <= '9') {
        char *end;
        unsigned long first = strtoul(list, &end, 10);
        unsigned long last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET(cpu, cpus);
        list = *end == ',' ? end + 1 : end;
    }
}

#endif
