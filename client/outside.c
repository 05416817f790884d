/* SPDX-License-Identifier: Apache-2.0 */
/* The one file of the library that asks for the time, the environment and the host. */
#include "client/outside.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cpus.h"

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

uint32_t outside_node(void)
{
    unsigned cpu;
    unsigned node;

    return getcpu(&cpu, &node) == 0 ? node : UINT32_MAX;
}

#define NODE_PATH "/sys/devices/system/node/"

/* The first line of a file; false if there is none. */
static bool read_line(const char *path, char *line, int line_bytes)
{
    FILE *file = fopen(path, "re");
    bool has_line = file != NULL && fgets(line, line_bytes, file) != NULL;

    if (file != NULL)
        fclose(file);
    return has_line;
}

bool outside_has_nodes(void)
{
    char line[256];

    return read_line(NODE_PATH "online", line, sizeof line) &&
           strpbrk(line, "-,") != NULL;
}

/* Distances are in the order of the nodes that are online. */
bool outside_cpus_near(uint32_t node, cpu_set_t *cpus)
{
    unsigned long nearest = ULONG_MAX;
    char path[128];
    char distances[4096];
    char online[256];
    char list[4096];
    char *at = distances;
    cpu_set_t numbers; /* of nodes: the same kind of list */

    (void)snprintf(path, sizeof path, NODE_PATH "node%u/distance", node);
    if (!read_line(path, distances, sizeof distances) ||
        !read_line(NODE_PATH "online", online, sizeof online))
        return false;
    cpus_parse(online, &numbers);
    CPU_ZERO(cpus);
    for (uint32_t i = 0; i < CPU_SETSIZE; i++) {
        cpu_set_t its;
        if (!CPU_ISSET(i, &numbers))
            continue;
        unsigned long distance = i == node ? 0 : strtoul(at, NULL, 10);
        (void)strtoul(at, &at, 10);
        (void)snprintf(path, sizeof path, NODE_PATH "node%u/cpulist", i);
        if (distance >= nearest || !read_line(path, list, sizeof list))
            continue;
        cpus_parse(list, &its);
        if (CPU_COUNT(&its) > 0) {
            nearest = distance;
            *cpus = its;
        }
    }
    return CPU_COUNT(cpus) > 0;
}
