/* SPDX-License-Identifier: Apache-2.0 */
/* A part's node is read at a page in its middle, where no neighbour's policy reaches. */
#include "daemon/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "proto/partition.h"

/* A byte in the middle of a rank's rows of a layer, in the largest plane. */
static uint64_t middle_of(const struct cache *cache, uint32_t layer, uint32_t rank)
{
    const struct kvw_geometry *geometry = &cache->meta.geometry;
    const uint32_t g = geometry_group_of(geometry, layer);
    const struct kvw_layout_group *placed = &cache->layout.group[g];
    const struct kvw_interval heads = partition_heads(geometry, g, rank);
    const struct kvw_interval lanes = partition_lanes(geometry, rank);
    uint32_t largest = 0;

    for (uint32_t p = 1; p < geometry->group[g].n_planes; p++) {
        if (placed->plane[p].head_bytes > placed->plane[largest].head_bytes)
            largest = p;
    }
    return layout_row_offset(&cache->layout, g, layer - geometry->group[g].layer_first,
                             largest, lanes.begin, heads.begin, 0) +
           placed->plane[largest].head_bytes * (heads.end - heads.begin) / 2;
}

bool plan_holds(const struct kvw_geometry *geometry, uint32_t layer, uint32_t rank)
{
    const struct kvw_interval lanes = partition_lanes(geometry, rank);

    return lanes.begin < lanes.end && partition_holds_layer(geometry, layer, rank);
}

static void read_turns(const struct cache *cache, const struct kvw_topology *nodes,
                       struct kvw_plan *plan)
{
    uint8_t turn[KVW_NODES_MAX];
    uint32_t n = 0;

    while (n < plan->n_turns &&
           (n + 1) * plan->turn_bytes <= cache->layout.data_bytes) {
        uint32_t node =
            placement_node(nodes, pages_find(cache->segment[SEGMENT_DATA].fd,
                                             n * plan->turn_bytes, plan->page_bytes));
        if (node == nodes->n_nodes || (n > 0 && node == turn[0]))
            break;
        turn[n++] = (uint8_t)node;
    }
    if (n > 0) {
        memcpy(plan->turn, turn, n);
        plan->n_turns = n;
    }
}

static void read_nodes(const struct cache *cache, const struct kvw_topology *nodes,
                       struct kvw_plan *plan)
{
    const struct kvw_geometry *geometry = &cache->meta.geometry;
    const uint32_t row_parts = geometry->partition.row_parts;

    for (uint32_t layer = 0; layer < plan->n_layers; layer++) {
        for (uint32_t rank = 0; rank < plan->n_ranks; rank += row_parts) {
            const uint32_t at = layer * plan->n_ranks + rank;
            if (!plan_holds(geometry, layer, rank))
                continue;
            uint32_t node = placement_node(
                nodes, pages_find(cache->segment[SEGMENT_DATA].fd,
                                  middle_of(cache, layer, rank), plan->page_bytes));
            if (node == nodes->n_nodes || node == plan->node[at])
                continue;
            memset(&plan->node[at], (int)node, row_parts);
            memset(&plan->why[at], KVW_WHY_ADOPTED, row_parts);
        }
    }
}

/* What an unhindered host would do, and then what the kernel says. */
int plan_read(const struct daemon *daemon, struct cache *cache)
{
    const struct placement *placement = daemon->placement;
    struct kvw_placement_wish spread = {.pages = cache->meta.wish.pages};
    struct kvw_refusal refusal;
    KVW_CLEANUP(kvw_free_cleanup)
    struct kvw_topology *nodes = malloc(sizeof *nodes);
    KVW_CLEANUP(kvw_free_cleanup)
    struct kvw_plan *plan = calloc(1, sizeof *plan);

    if (nodes == NULL || plan == NULL)
        return -ENOMEM;
    *nodes = placement->topology.nodes;
    for (uint32_t i = 0; i < nodes->n_nodes; i++)
        nodes->node[i].give_bytes = UINT64_MAX;
    int error = placement_plan(&cache->meta.geometry, &cache->layout, nodes,
                               &cache->meta.wish, plan, &refusal);
    if (error != 0) /* its node is gone by now */
        error = placement_plan(&cache->meta.geometry, &cache->layout, nodes, &spread,
                               plan, &refusal);
    if (error != 0)
        return error;
    if (placement->can_bind && plan->n_turns > 0)
        read_turns(cache, nodes, plan);
    else if (placement->can_bind)
        read_nodes(cache, nodes, plan);
    cache->plan = take_pointer(&plan);
    return 0;
}
