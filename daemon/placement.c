/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only file that knows hwloc. The policy is stored in the memfd itself by binding a
 * mapping of it; the mapping goes away again. Binding without the strict flag means
 * "preferred": to overfill a strictly bound node is death by the OOM killer.
 */
#include "daemon/placement.h"

#include <errno.h>
#include <hwloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/base/align.h"
#include "proto/base/cleanup.h"

#define NODES_MAX 64
#define SAMPLES 8u /* pages looked at per layer */

struct placement {
    hwloc_topology_t topology;
    uint32_t n_nodes; /* with memory; 0 or 1: nothing to do */
    hwloc_nodeset_t node[NODES_MAX];
    char degraded[160];
};

static void collect_nodes(struct placement *placement)
{
    hwloc_obj_t node = NULL;

    for (;;) {
        node =
            hwloc_get_next_obj_by_type(placement->topology, HWLOC_OBJ_NUMANODE, node);
        if (node == NULL || placement->n_nodes == NODES_MAX)
            return;
        if (node->attr->numanode.local_memory > 0)
            placement->node[placement->n_nodes++] = node->nodeset;
    }
}

struct placement *placement_open(void)
{
    struct placement *placement = calloc(1, sizeof *placement);

    if (placement == NULL || hwloc_topology_init(&placement->topology) < 0) {
        free(placement);
        return NULL;
    }
    (void)hwloc_topology_set_all_types_filter(placement->topology,
                                              HWLOC_TYPE_FILTER_KEEP_NONE);
    if (hwloc_topology_load(placement->topology) < 0) {
        (void)snprintf(placement->degraded, sizeof placement->degraded,
                       "NUMA nodes unknown: hwloc cannot look at this host");
        return placement;
    }
    collect_nodes(placement);
    /* On a made-up topology hwloc says yes and does nothing. */
    if (placement->n_nodes > 1 && !hwloc_topology_is_thissystem(placement->topology)) {
        placement->n_nodes = 0;
        (void)snprintf(
            placement->degraded, sizeof placement->degraded,
            "NUMA placement off: hwloc was given another machine's topology");
    }
    return placement;
}

struct placement *placement_close(struct placement *placement)
{
    if (placement != NULL)
        hwloc_topology_destroy(placement->topology);
    free(placement);
    return NULL;
}

/* The node of a layer: the layers of each group in as many runs as there are nodes. */
static uint32_t node_of(const struct placement *placement,
                        const struct kvw_geometry_group *group, uint32_t layer)
{
    return (uint32_t)((uint64_t)layer * placement->n_nodes / group->n_layers);
}

static bool bind_area(struct placement *placement, void *at, uint64_t bytes,
                      uint32_t node)
{
    if (hwloc_set_area_membind(placement->topology, at, bytes, placement->node[node],
                               HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) == 0)
        return true;
    (void)snprintf(placement->degraded, sizeof placement->degraded,
                   "NUMA placement off: binding to a node is refused (%s); a "
                   "container needs CAP_SYS_NICE or a profile that allows mbind",
                   strerrordesc_np(errno));
    return false;
}

uint32_t placement_try(struct placement *placement)
{
    void *page = mmap(NULL, KVW_PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return placement->n_nodes;
    for (uint32_t i = 0; placement->n_nodes > 1 && i < placement->n_nodes; i++) {
        if (!bind_area(placement, page, KVW_PAGE, i))
            break;
    }
    (void)munmap(page, KVW_PAGE);
    return placement->n_nodes;
}

static void *map_data(int fd, uint64_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    return base == MAP_FAILED ? NULL : base;
}

/* Layers that follow each other and go to one node are one range, hence one call. */
static bool spread_group(struct placement *placement, char *base,
                         const struct kvw_geometry_group *group,
                         const struct kvw_layout_group *placed)
{
    uint32_t begin = 0;

    while (begin < group->n_layers) {
        uint32_t node = node_of(placement, group, begin);
        uint32_t end = begin + 1;

        while (end < group->n_layers && node_of(placement, group, end) == node)
            end++;
        if (!bind_area(placement, base + placed->offset + begin * placed->layer_bytes,
                       (end - begin) * placed->layer_bytes, node))
            return false;
        begin = end;
    }
    return true;
}

void placement_spread(struct placement *placement, int data_fd,
                      const struct kvw_geometry *geometry,
                      const struct kvw_layout *layout)
{
    if (placement == NULL || placement->n_nodes < 2)
        return;
    char *base = map_data(data_fd, layout->data_bytes);
    if (base == NULL)
        return;
    bool is_bound = true;
    for (uint32_t g = 0; g < geometry->n_groups && is_bound; g++)
        is_bound =
            spread_group(placement, base, &geometry->group[g], &layout->group[g]);
    (void)munmap(base, layout->data_bytes);
}

/* Pages of a sample that lie elsewhere. A page must be mapped here to be found. */
static uint32_t misplaced_sample(struct placement *placement, char *layer,
                                 uint64_t layer_bytes, hwloc_const_nodeset_t wanted,
                                 hwloc_nodeset_t found)
{
    uint64_t n_pages = layer_bytes / KVW_PAGE;
    uint64_t n_samples = min_u64(n_pages, SAMPLES);
    uint32_t n_misplaced = 0;

    for (uint64_t i = 0; i < n_samples; i++) {
        char *page = layer + i * n_pages / n_samples * KVW_PAGE;
        if (madvise(page, KVW_PAGE, MADV_POPULATE_READ) < 0 ||
            hwloc_get_area_memlocation(placement->topology, page, KVW_PAGE, found,
                                       HWLOC_MEMBIND_BYNODESET) < 0)
            continue;
        n_misplaced += !hwloc_bitmap_isincluded(found, wanted);
    }
    return n_misplaced;
}

uint64_t placement_misplaced(struct placement *placement, int data_fd,
                             const struct kvw_geometry *geometry,
                             const struct kvw_layout *layout)
{
    uint64_t n_misplaced = 0;

    if (placement == NULL || placement->n_nodes < 2)
        return 0;
    char *base = map_data(data_fd, layout->data_bytes);
    hwloc_nodeset_t found = hwloc_bitmap_alloc();
    for (uint32_t g = 0; g < geometry->n_groups && base != NULL && found != NULL; g++) {
        const struct kvw_geometry_group *group = &geometry->group[g];
        const struct kvw_layout_group *placed = &layout->group[g];
        uint64_t n_pages = placed->layer_bytes / KVW_PAGE;

        for (uint32_t l = 0; l < group->n_layers; l++) {
            uint64_t n = misplaced_sample(
                placement, base + placed->offset + l * placed->layer_bytes,
                placed->layer_bytes, placement->node[node_of(placement, group, l)],
                found);
            n_misplaced += n * n_pages / min_u64(n_pages, SAMPLES);
        }
    }
    hwloc_bitmap_free(found);
    if (base != NULL)
        (void)munmap(base, layout->data_bytes);
    return n_misplaced;
}

const char *placement_degraded(const struct placement *placement)
{
    return placement == NULL ? "" : placement->degraded;
}
