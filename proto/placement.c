/* SPDX-License-Identifier: Apache-2.0 */
/* Deals layers or ranks to nodes, and finds the owner of a byte. No state, no I/O. */
#include "proto/placement.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/align.h"
#include "proto/partition.h"

#define TURN_BYTES_MIN (64ull << 10)
#define TURNS_MAX 16384u /* blocks of an interleaved cache */

/* What is needed while a plan is made. */
struct dealing {
    const struct kvw_geometry *geometry;
    const struct kvw_layout *layout;
    const struct kvw_topology *topology;
    struct kvw_plan *plan;
    struct kvw_refusal *refusal;
    uint32_t n_usable;
    uint8_t usable[KVW_NODES_MAX]; /* nodes that may be chosen unasked */
};

/* -------------------------------------------------------------- owners ---------- */

/* The part in which the number `index` lies; see partition_interval(). */
static uint32_t part_of(uint32_t count, uint32_t parts, uint32_t index)
{
    const uint32_t base = count / parts;
    const uint32_t extra = count % parts;
    const uint32_t in_larger = extra * (base + 1);

    if (index < in_larger)
        return index / (base + 1);
    return extra + (index - in_larger) / base;
}

static uint32_t layer_part_of(const struct kvw_geometry *geometry, uint32_t layer)
{
    uint32_t n_model_layers = 0;

    if (geometry->partition.layer_parts == 1)
        return 0;
    for (uint32_t g = 0; g < geometry->n_groups; g++) { /* they ascend within a group */
        const struct kvw_geometry_group *group = &geometry->group[g];
        const uint32_t last = group->layer_first + group->n_layers - 1;
        if (geometry->model_layer[last] >= n_model_layers)
            n_model_layers = geometry->model_layer[last] + 1u;
    }
    return part_of(n_model_layers, geometry->partition.layer_parts,
                   geometry->model_layer[layer]);
}

/* A byte of a layer: its lane, its part of the heads, and one past the last byte, from
 * the start of the layer, of which that is true. Padding belongs to what is before it. */
struct found {
    uint32_t lane;
    uint32_t head_part;
    uint64_t end;
};

static struct found find_heads(const struct kvw_geometry *geometry,
                               const struct kvw_geometry_group *group,
                               const struct kvw_layout_group *placed, uint64_t byte)
{
    const struct kvw_layout_plane *plane = &placed->plane[0];
    const uint32_t n_heads = group->n_heads;
    uint64_t next = placed->layer_bytes;
    struct found found;

    for (uint32_t p = 1; p < group->n_planes; p++) {
        if (placed->plane[p].offset <= byte)
            plane = &placed->plane[p];
        else if (placed->plane[p].offset < next)
            next = placed->plane[p].offset;
    }
    uint64_t first = plane->offset;
    uint64_t stride = plane->head_bytes;
    if (plane->sums_offset != 0 && byte >= plane->sums_offset) {
        first = plane->sums_offset;
        stride = plane->head_sums_bytes;
    } else if (plane->sums_offset != 0) {
        next = plane->sums_offset;
    }
    const uint64_t n_all = (uint64_t)n_heads * geometry->n_lanes;
    const uint64_t at = min_u64(byte < first ? 0 : (byte - first) / stride, n_all - 1);
    found.lane = (uint32_t)(at / n_heads);
    found.head_part =
        part_of(n_heads, geometry->partition.head_parts, (uint32_t)(at % n_heads));
    const uint64_t end =
        at / n_heads * n_heads +
        partition_interval(n_heads, geometry->partition.head_parts, found.head_part)
            .end;
    found.end = end >= n_all ? next : first + end * stride;
    return found;
}

uint64_t placement_owner(const struct kvw_geometry *geometry,
                         const struct kvw_layout *layout, uint64_t offset,
                         uint32_t *layer, uint32_t *rank)
{
    const struct kvw_geometry_partition *parts = &geometry->partition;
    uint32_t g = geometry->n_groups - 1;

    while (g > 0 && layout->group[g].offset > offset)
        g--;
    const struct kvw_geometry_group *group = &geometry->group[g];
    const struct kvw_layout_group *placed = &layout->group[g];
    /* What fills up the last huge page belongs to the last layer. */
    const uint64_t in_group =
        min_u64((offset - placed->offset) / placed->layer_bytes, group->n_layers - 1);
    const uint64_t start = placed->offset + in_group * placed->layer_bytes;
    const struct found found = find_heads(geometry, group, placed, offset - start);

    *layer = group->layer_first + (uint32_t)in_group;
    *rank = part_of(geometry->n_lanes, parts->lane_parts, found.lane);
    *rank = *rank * parts->layer_parts + layer_part_of(geometry, *layer);
    *rank = (*rank * parts->head_parts + found.head_part) * parts->row_parts;
    return start + found.end > offset ? start + found.end : layout->data_bytes;
}

/* -------------------------------------------------------------- ranges ---------- */

/* The node of a page, and where it may end: the first page that asks again. */
static uint64_t look(const struct kvw_geometry *geometry,
                     const struct kvw_layout *layout, const struct kvw_plan *plan,
                     uint64_t begin, struct kvw_placement_range *range)
{
    const uint64_t half = plan->page_bytes / 2;
    const uint64_t middle = min_u64(begin + half, layout->data_bytes - 1);
    uint32_t layer;

    uint64_t end = placement_owner(geometry, layout, middle, &layer, &range->rank);
    uint32_t node = plan->node[layer * plan->n_ranks + range->rank];
    if (node == KVW_NODE_TURNS) {
        node = plan->turn[begin / plan->turn_bytes % plan->n_turns];
        end = min_u64(end, (begin / plan->turn_bytes + 1) * plan->turn_bytes + half);
    }
    range->node = node;
    if (end >= layout->data_bytes)
        return layout->data_bytes;
    /* The first page whose middle is not before `end`. */
    return min_u64(align_up(max_u64(end, half) - half, plan->page_bytes),
                   layout->data_bytes);
}

bool placement_range(const struct kvw_geometry *geometry,
                     const struct kvw_layout *layout, const struct kvw_plan *plan,
                     uint64_t begin, uint64_t bytes_max, bool is_by_rank,
                     struct kvw_placement_range *range)
{
    struct kvw_placement_range next;

    if (begin >= layout->data_bytes)
        return false;
    range->begin = begin;
    range->end = look(geometry, layout, plan, begin, range);
    while (range->end < layout->data_bytes && range->end - begin < bytes_max) {
        uint64_t end = look(geometry, layout, plan, range->end, &next);
        if (next.node != range->node || (is_by_rank && next.rank != range->rank))
            break;
        range->end = end;
    }
    range->end = min_u64(range->end, begin + bytes_max);
    return true;
}

void placement_count(const struct kvw_geometry *geometry,
                     const struct kvw_layout *layout, const struct kvw_plan *plan,
                     uint32_t rank, uint64_t *bytes)
{
    struct kvw_placement_range range = {0};

    memset(bytes, 0, KVW_NODES_MAX * sizeof *bytes);
    while (placement_range(geometry, layout, plan, range.end, UINT64_MAX / 2, true,
                           &range)) {
        if (range.rank == rank)
            bytes[range.node] += range.end - range.begin;
    }
}

uint64_t placement_rank_bytes(const struct kvw_geometry *geometry,
                              const struct kvw_layout *layout, uint32_t rank)
{
    const struct kvw_interval lanes = partition_lanes(geometry, rank);
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < geometry->n_groups; g++) {
        const struct kvw_interval heads = partition_heads(geometry, g, rank);
        const struct kvw_interval layers = partition_layers(geometry, g, rank);
        uint64_t head_bytes = 0;

        for (uint32_t p = 0; p < geometry->group[g].n_planes; p++)
            head_bytes += layout->group[g].plane[p].head_bytes +
                          layout->group[g].plane[p].head_sums_bytes;
        bytes += head_bytes * (heads.end - heads.begin) * (layers.end - layers.begin) *
                 (lanes.end - lanes.begin);
    }
    return bytes;
}

/* ------------------------------------------------------------- dealing ---------- */

static void find_usable(struct dealing *dealing)
{
    const struct kvw_topology *topology = dealing->topology;

    for (uint32_t i = 0; i < topology->n_nodes; i++) {
        if (topology->node[i].n_cpus > 0)
            dealing->usable[dealing->n_usable++] = (uint8_t)i;
    }
    for (uint32_t i = 0; i < topology->n_nodes && dealing->n_usable == i; i++)
        dealing->usable[dealing->n_usable++] = (uint8_t)i;
}

static uint64_t room_of(const struct dealing *dealing, uint32_t node)
{
    if (dealing->topology->n_nodes == 1)
        return UINT64_MAX;
    const uint64_t give = dealing->topology->node[node].give_bytes;
    return give - min_u64(give, dealing->plan->need_bytes[node]);
}

/* The nearest usable node with room; of equally near ones that with most, then the first.
 * @return n_nodes if there is none. */
static uint32_t nearest(const struct dealing *dealing, uint32_t node, uint64_t bytes)
{
    uint32_t best = dealing->topology->n_nodes;

    for (uint32_t i = 0; i < dealing->n_usable; i++) {
        const uint32_t other = dealing->usable[i];
        const uint16_t *distance = dealing->topology->node[node].distance;
        if (room_of(dealing, other) < bytes)
            continue;
        if (best == dealing->topology->n_nodes || distance[other] < distance[best] ||
            (distance[other] == distance[best] &&
             room_of(dealing, other) > room_of(dealing, best)))
            best = other;
    }
    return best;
}

static int refuse_room(struct dealing *dealing, const char *what, uint64_t need)
{
    char have[200] = "";
    size_t length = 0;
    uint64_t most = 0;

    for (uint32_t i = 0; i < dealing->n_usable && length < sizeof have - 32; i++) {
        const uint32_t node = dealing->usable[i];
        length += (size_t)snprintf(
            have + length, sizeof have - length, "%s%u: %" PRIu64, i > 0 ? ", " : "",
            dealing->topology->node[node].number, room_of(dealing, node));
        most = max_u64(most, room_of(dealing, node));
    }
    return refuse(dealing->refusal, -ENOMEM, need, most,
                  "placement: %s needs %" PRIu64
                  " bytes on one NUMA node, have by node "
                  "%s (free or reclaimable, less a reserve and what was dealt already)",
                  what, need, have);
}

/* Give the bytes to the node, or to the nearest. @return -errno, or the node. */
static int deal(struct dealing *dealing, const char *what, uint32_t node,
                uint64_t bytes, enum kvw_placement_why *why)
{
    *why = dealing->topology->n_nodes == 1 ? KVW_WHY_ONLY : KVW_WHY_DEALT;
    if (room_of(dealing, node) < bytes) {
        node = nearest(dealing, node, bytes);
        *why = KVW_WHY_NEAREST;
        if (node == dealing->topology->n_nodes)
            return refuse_room(dealing, what, bytes);
    }
    dealing->plan->need_bytes[node] += bytes;
    return (int)node;
}

static void set_layer(struct kvw_plan *plan, uint32_t layer, uint32_t node,
                      enum kvw_placement_why why)
{
    memset(&plan->node[layer * plan->n_ranks], (int)node, plan->n_ranks);
    memset(&plan->why[layer * plan->n_ranks], (int)why, plan->n_ranks);
}

/* The layers of each group in as many runs as there are nodes. */
static int deal_layers(struct dealing *dealing)
{
    enum kvw_placement_why why;
    char what[64];

    for (uint32_t g = 0; g < dealing->geometry->n_groups; g++) {
        const struct kvw_geometry_group *group = &dealing->geometry->group[g];
        for (uint32_t l = 0; l < group->n_layers; l++) {
            const uint32_t index =
                (uint32_t)((uint64_t)l * dealing->n_usable / group->n_layers);
            (void)snprintf(what, sizeof what, "layer %u of group '%.15s'", l,
                           group->name);
            int node = deal(dealing, what, dealing->usable[index],
                            dealing->layout->group[g].layer_bytes, &why);
            if (node < 0)
                return node;
            set_layer(dealing->plan, group->layer_first + l, (uint32_t)node, why);
        }
    }
    return 0;
}

/* Parts in the order of ranks, in as many runs as there are nodes. */
static int deal_ranks(struct dealing *dealing)
{
    const uint32_t row_parts = dealing->geometry->partition.row_parts;
    const uint32_t n_parts = dealing->geometry->n_ranks / row_parts;
    enum kvw_placement_why why;
    char what[64];

    for (uint32_t part = 0; part < n_parts; part++) {
        const uint32_t rank = part * row_parts;
        const uint32_t index = part * dealing->n_usable / n_parts;
        (void)snprintf(what, sizeof what, "the part of rank %u", rank);
        int node =
            deal(dealing, what, dealing->usable[index],
                 placement_rank_bytes(dealing->geometry, dealing->layout, rank), &why);
        if (node < 0)
            return node;
        placement_move(dealing->plan, dealing->geometry, rank, (uint32_t)node, why);
    }
    return 0;
}

/* A node without room for its share takes no turns. */
static int deal_turns(struct dealing *dealing)
{
    struct kvw_plan *plan = dealing->plan;
    const uint64_t data_bytes = dealing->layout->data_bytes;
    const uint64_t turn_bytes = max_u64(TURN_BYTES_MIN, plan->page_bytes);
    uint64_t share;

    plan->turn_bytes = turn_bytes;
    while (plan->turn_bytes * TURNS_MAX < data_bytes)
        plan->turn_bytes *= 2;
    plan->n_turns = dealing->n_usable;
    memcpy(plan->turn, dealing->usable, sizeof plan->turn);
    for (;;) {
        uint32_t least = 0;
        share = align_up(data_bytes / plan->n_turns + 1, plan->turn_bytes);
        for (uint32_t i = 1; i < plan->n_turns; i++) {
            if (room_of(dealing, plan->turn[i]) < room_of(dealing, plan->turn[least]))
                least = i;
        }
        if (room_of(dealing, plan->turn[least]) >= share)
            break;
        if (plan->n_turns == 1)
            return refuse_room(dealing, "interleaving", share);
        plan->n_turns--;
        memmove(&plan->turn[least], &plan->turn[least + 1], plan->n_turns - least);
    }
    for (uint32_t layer = 0; layer < plan->n_layers; layer++)
        set_layer(plan, layer, KVW_NODE_TURNS, KVW_WHY_TURNS);
    for (uint32_t i = 0; i < plan->n_turns; i++)
        plan->need_bytes[plan->turn[i]] += min_u64(share, data_bytes);
    return 0;
}

static int refuse_node(struct dealing *dealing, uint32_t number)
{
    char have[160] = "";
    size_t length = 0;

    for (uint32_t i = 0; i < dealing->topology->n_nodes && length < sizeof have - 16;
         i++)
        length +=
            (size_t)snprintf(have + length, sizeof have - length, "%s%u",
                             i > 0 ? ", " : "", dealing->topology->node[i].number);
    return refuse(dealing->refusal, -ENODEV, number, dealing->topology->n_nodes,
                  "placement: there is no NUMA node %u with memory that may be used; "
                  "have %s",
                  number, have);
}

/* The nodes that were asked for: exactly those. */
static int place_asked(struct dealing *dealing, const struct kvw_placement_wish *wish)
{
    const uint32_t row_parts = dealing->geometry->partition.row_parts;

    for (uint32_t rank = 0; rank < dealing->geometry->n_ranks; rank += row_parts) {
        const uint32_t number = wish->node[wish->policy == KVW_PLACE_MAP ? rank : 0];
        const uint32_t node = placement_node(dealing->topology, number);
        if (node == dealing->topology->n_nodes)
            return refuse_node(dealing, number);
        placement_move(dealing->plan, dealing->geometry, rank, node, KVW_WHY_ASKED);
        dealing->plan->need_bytes[node] +=
            placement_rank_bytes(dealing->geometry, dealing->layout, rank);
    }
    for (uint32_t i = 0; i < dealing->topology->n_nodes; i++) {
        const struct kvw_topology_node *node = &dealing->topology->node[i];
        const uint64_t need = dealing->plan->need_bytes[i];
        if (dealing->topology->n_nodes > 1 && need > node->give_bytes)
            return refuse(dealing->refusal, -ENOMEM, need, node->give_bytes,
                          "placement: NUMA node %u: need %" PRIu64
                          " bytes, have %" PRIu64
                          " (free or reclaimable, less a reserve)",
                          node->number, need, node->give_bytes);
    }
    return 0;
}

static int check_wish(const struct kvw_geometry *geometry,
                      const struct kvw_placement_wish *wish,
                      struct kvw_refusal *refusal)
{
    const uint32_t need = wish->policy == KVW_PLACE_NODE  ? 1
                          : wish->policy == KVW_PLACE_MAP ? geometry->n_ranks
                                                          : 0;

    if (wish->policy >= KVW_PLACE_POLICIES)
        return refuse(refusal, -EINVAL, KVW_PLACE_POLICIES - 1, wish->policy,
                      "placement: there is no policy %u", wish->policy);
    if (wish->n_nodes != need)
        return refuse(refusal, -EINVAL, need, wish->n_nodes,
                      "placement %s: need %u nodes, have %u",
                      placement_policy_name(wish->policy), need, wish->n_nodes);
    return 0;
}

int placement_plan(const struct kvw_geometry *geometry, const struct kvw_layout *layout,
                   const struct kvw_topology *topology,
                   const struct kvw_placement_wish *wish, struct kvw_plan *plan,
                   struct kvw_refusal *refusal)
{
    struct dealing dealing = {geometry, layout, topology, plan, refusal, 0, {0}};

    int error = check_wish(geometry, wish, refusal);
    if (error != 0)
        return error;
    if (topology->n_nodes == 0 || topology->n_nodes > KVW_NODES_MAX)
        return refuse(refusal, -ENODEV, 1, topology->n_nodes,
                      "placement: no NUMA node with memory is known");
    plan->policy = wish->policy;
    plan->n_ranks = geometry->n_ranks;
    plan->n_layers = geometry->n_layers;
    plan->page_bytes = wish->pages == KVW_GEOMETRY_PAGES_2M ? KVW_HUGE_PAGE : KVW_PAGE;
    plan->turn_bytes = 0;
    plan->n_turns = 0;
    memset(plan->need_bytes, 0, sizeof plan->need_bytes);
    find_usable(&dealing);
    switch (wish->policy) {
    case KVW_PLACE_SPREAD:
        return deal_layers(&dealing);
    case KVW_PLACE_FOLLOW:
        return deal_ranks(&dealing);
    case KVW_PLACE_INTERLEAVE:
        return deal_turns(&dealing);
    default:
        return place_asked(&dealing, wish);
    }
}

void placement_move(struct kvw_plan *plan, const struct kvw_geometry *geometry,
                    uint32_t rank, uint32_t node, enum kvw_placement_why why)
{
    const uint32_t first = placement_leader(geometry, rank);

    for (uint32_t layer = 0; layer < plan->n_layers; layer++) {
        const uint32_t at = layer * plan->n_ranks + first;
        memset(&plan->node[at], (int)node, geometry->partition.row_parts);
        memset(&plan->why[at], (int)why, geometry->partition.row_parts);
    }
}

uint32_t placement_leader(const struct kvw_geometry *geometry, uint32_t rank)
{
    return rank - rank % geometry->partition.row_parts;
}

uint32_t placement_node(const struct kvw_topology *topology, uint32_t number)
{
    uint32_t i = 0;

    while (i < topology->n_nodes && topology->node[i].number != number)
        i++;
    return i;
}

const char *placement_policy_name(uint32_t policy)
{
    static const char *const names[] = {"spread", "follow", "interleave", "node",
                                        "map"};

    return policy < KVW_PLACE_POLICIES ? names[policy] : "?";
}

const char *placement_why_text(uint32_t why)
{
    static const char *const texts[] = {
        "there is no other node",
        "its even share",
        "the node of its share has no room: the nearest that has",
        "asked for",
        "blocks by turns",
        "its worker runs there",
        "moved there",
        "found there",
        "the host does not let it be placed",
    };

    return why < sizeof texts / sizeof texts[0] ? texts[why] : "?";
}
