/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only file that knows hwloc. Nodes without memory are left out: nothing can lie
 * there. What a node can give is the kernel's own count of free pages and of file pages
 * that it could drop, less a reserve; shared memory counts as neither.
 */
#include "daemon/topology.h"

#include <errno.h>
#include <hwloc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host.h"
#include "proto/base/align.h"

#define NODE_FILE_BYTES 4096
#define PATH_BYTES 160

/* Left on each node for everybody else: 2 %, at least 16 MiB and at most 1 GiB. */
#define RESERVE_BYTES_MIN (16ull << 20)
#define RESERVE_BYTES_MAX (1ull << 30)

/* --------------------------------------------------------------- kernel ---------- */

/* A line "Node 0 MemFree:  123 kB". */
static uint64_t bytes_of(const char *text, const char *key)
{
    const char *found = strstr(text, key);
    uint64_t kib = 0;

    if (found != NULL)
        (void)sscanf(found + strlen(key), " %" SCNu64, &kib);
    return kib * 1024;
}

static void refresh_node(struct kvw_topology_node *node)
{
    char path[PATH_BYTES];
    char text[NODE_FILE_BYTES];

    (void)snprintf(path, sizeof path, "/sys/devices/system/node/node%u/meminfo",
                   node->number);
    if (host_read_file(path, text, sizeof text) <= 0)
        return; /* as it was */
    const uint64_t have = bytes_of(text, "MemFree:") + bytes_of(text, "Active(file):") +
                          bytes_of(text, "Inactive(file):") +
                          bytes_of(text, "SReclaimable:") / 2;
    const uint64_t reserve =
        min_u64(max_u64(node->total_bytes / 50, RESERVE_BYTES_MIN), RESERVE_BYTES_MAX);
    node->give_bytes = have - min_u64(have, reserve);
}

void topology_refresh(struct topology *topology)
{
    if (!topology->is_this_system)
        return;
    for (uint32_t i = 0; i < topology->nodes.n_nodes; i++)
        refresh_node(&topology->nodes.node[i]);
}

uint64_t topology_huge_free(uint32_t number)
{
    char path[PATH_BYTES];
    uint64_t n_free = 0;

    if (number == UINT32_MAX)
        (void)snprintf(path, sizeof path,
                       "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    else
        (void)snprintf(path, sizeof path,
                       "/sys/devices/system/node/node%u/hugepages/hugepages-2048kB/"
                       "free_hugepages",
                       number);
    (void)host_number(path, &n_free);
    return n_free;
}

/* ---------------------------------------------------------------- hwloc ---------- */

static int by_number(const void *a, const void *b)
{
    const uint32_t number_a = (*(const hwloc_obj_t *)a)->os_index;
    const uint32_t number_b = (*(const hwloc_obj_t *)b)->os_index;

    return (number_a > number_b) - (number_a < number_b);
}

static uint32_t collect(hwloc_topology_t host, hwloc_obj_t objects[KVW_NODES_MAX])
{
    hwloc_obj_t object = NULL;
    uint32_t n = 0;

    while (n < KVW_NODES_MAX) {
        object = hwloc_get_next_obj_by_type(host, HWLOC_OBJ_NUMANODE, object);
        if (object == NULL)
            break;
        if (object->attr->numanode.local_memory > 0)
            objects[n++] = object;
    }
    qsort(objects, n, sizeof objects[0], by_number);
    return n;
}

/* The CPUs of a node of its own. Where nodes share CPUs (memory of a package beside that of
 * its dies, memory that is attached to a package) they are those of the node with fewest,
 * and then of the first. */
static void find_cpus(const hwloc_obj_t objects[], uint32_t n, uint32_t i,
                      struct kvw_topology_node *node)
{
    hwloc_bitmap_t own = hwloc_bitmap_dup(objects[i]->cpuset);

    for (uint32_t j = 0; j < n && own != NULL; j++) {
        const bool is_equal =
            hwloc_bitmap_isequal(objects[i]->cpuset, objects[j]->cpuset) != 0;
        if ((is_equal && j < i) ||
            (!is_equal &&
             hwloc_bitmap_isincluded(objects[j]->cpuset, objects[i]->cpuset)))
            (void)hwloc_bitmap_andnot(own, own, objects[j]->cpuset);
    }
    if (own != NULL && !hwloc_bitmap_iszero(own)) {
        node->n_cpus = (uint32_t)hwloc_bitmap_weight(own);
        (void)hwloc_bitmap_list_snprintf(node->cpus, sizeof node->cpus, own);
    }
    hwloc_bitmap_free(own);
}

static void describe_node(const hwloc_obj_t objects[], uint32_t n, uint32_t i,
                          struct kvw_topology_node *node)
{
    const hwloc_obj_t object = objects[i];

    *node = (struct kvw_topology_node){
        .number = object->os_index,
        .total_bytes = object->attr->numanode.local_memory,
        .give_bytes = object->attr->numanode.local_memory,
    };
    hwloc_obj_t package = object;
    while (package != NULL && package->type != HWLOC_OBJ_PACKAGE)
        package = package->parent;
    if (package != NULL)
        node->package = package->logical_index;
    find_cpus(objects, n, i, node);
}

/* hwloc's matrix goes by its own order of nodes; without one, a package is near. */
static void measure(hwloc_topology_t host, const hwloc_obj_t objects[],
                    struct kvw_topology *nodes)
{
    struct hwloc_distances_s *matrix = NULL;
    unsigned n_matrices = 1;

    for (uint32_t i = 0; i < nodes->n_nodes; i++) {
        for (uint32_t j = 0; j < nodes->n_nodes; j++)
            nodes->node[i].distance[j] =
                i == j                                             ? 10
                : nodes->node[i].package == nodes->node[j].package ? 12
                                                                   : 20;
    }
    if (hwloc_distances_get_by_type(host, HWLOC_OBJ_NUMANODE, &n_matrices, &matrix,
                                    HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) < 0 ||
        n_matrices == 0)
        return;
    for (uint32_t i = 0; i < nodes->n_nodes; i++) {
        for (uint32_t j = 0; j < nodes->n_nodes; j++) {
            hwloc_uint64_t there = 0;
            hwloc_uint64_t back = 0;
            if (hwloc_distances_obj_pair_values(matrix, objects[i], objects[j], &there,
                                                &back) == 0)
                nodes->node[i].distance[j] = (uint16_t)min_u64(there, UINT16_MAX);
        }
    }
    hwloc_distances_release(host, matrix);
}

static void name_left_out(hwloc_topology_t host, char words[160])
{
    hwloc_const_nodeset_t complete = hwloc_topology_get_complete_nodeset(host);
    hwloc_const_nodeset_t allowed = hwloc_topology_get_topology_nodeset(host);
    char list[64];

    words[0] = 0;
    hwloc_bitmap_t missing = hwloc_bitmap_alloc();
    if (missing == NULL || complete == NULL || allowed == NULL ||
        hwloc_bitmap_andnot(missing, complete, allowed) < 0 ||
        hwloc_bitmap_iszero(missing)) {
        hwloc_bitmap_free(missing);
        return;
    }
    (void)hwloc_bitmap_list_snprintf(list, sizeof list, missing);
    (void)snprintf(words, 160,
                   "NUMA nodes %s are left out: offline, or this process's cpuset "
                   "excludes them",
                   list);
    hwloc_bitmap_free(missing);
}

/* "4 NUMA nodes with memory (0-3), 2 to a package; memory only: 3" */
static void describe(struct topology *topology)
{
    const struct kvw_topology *nodes = &topology->nodes;
    uint32_t n_packages = 0;
    uint32_t n_with_cpus = 0;
    size_t length;

    for (uint32_t i = 0; i < nodes->n_nodes; i++) {
        n_packages = (uint32_t)max_u64(n_packages, nodes->node[i].package + 1);
        n_with_cpus += nodes->node[i].n_cpus > 0;
    }
    length = (size_t)snprintf(topology->words, sizeof topology->words,
                              "%u NUMA node%s with memory", nodes->n_nodes,
                              nodes->n_nodes == 1 ? "" : "s");
    if (n_with_cpus > n_packages)
        length += (size_t)snprintf(
            topology->words + length, sizeof topology->words - length,
            ", %u to a package (sub-NUMA clusters)", n_with_cpus / n_packages);
    for (uint32_t i = 0; i < nodes->n_nodes && length + 40 < sizeof topology->words;
         i++) {
        if (nodes->node[i].n_cpus == 0)
            length += (size_t)snprintf(
                topology->words + length, sizeof topology->words - length,
                "; node %u has memory only", nodes->node[i].number);
    }
}

int topology_load(struct topology *topology)
{
    hwloc_obj_t objects[KVW_NODES_MAX];
    hwloc_topology_t host;

    *topology = (struct topology){0};
    if (hwloc_topology_init(&host) < 0)
        return -ENOMEM;
    (void)hwloc_topology_set_cache_types_filter(host, HWLOC_TYPE_FILTER_KEEP_NONE);
    if (hwloc_topology_load(host) < 0) {
        hwloc_topology_destroy(host);
        return -ENODEV;
    }
    topology->is_this_system = hwloc_topology_is_thissystem(host) != 0;
    topology->nodes.n_nodes = collect(host, objects);
    for (uint32_t i = 0; i < topology->nodes.n_nodes; i++)
        describe_node(objects, topology->nodes.n_nodes, i, &topology->nodes.node[i]);
    measure(host, objects, &topology->nodes);
    name_left_out(host, topology->left_out);
    hwloc_topology_destroy(host);
    describe(topology);
    topology_refresh(topology);
    return topology->nodes.n_nodes > 0 ? 0 : -ENODEV;
}
