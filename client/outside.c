/* SPDX-License-Identifier: Apache-2.0 */
/* The one file of the library that asks for the time and for the environment. */
#include "client/outside.h"

#include <stdlib.h>

uint64_t outside_now_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

const char *outside_variable(const char *name)
{
    const char *value = getenv(name);

    return value == NULL || value[0] == 0 ? NULL : value;
}
