/* SPDX-License-Identifier: Apache-2.0 */
/* The one file of the library that asks for the time, the environment and the host. */
#include "client/outside.h"

#include <stdio.h>
#include <stdlib.h>

uint64_t outside_now_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t outside_mappings_max(void)
{
    unsigned long long mappings = 65530;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "re");

    if (file != NULL) {
        if (fscanf(file, "%llu", &mappings) != 1)
            mappings = 65530;
        fclose(file);
    }
    return mappings;
}

const char *outside_variable(const char *name)
{
    const char *value = getenv(name);

    return value == NULL || value[0] == 0 ? NULL : value;
}
