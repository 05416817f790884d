/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement: every page has one node, the same for the same input; nodes are not
 * overfilled, memory-only ones are left alone unless asked for, and a move changes
 * nothing but the rank that was named.
 */
#include <criterion/criterion.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/partition.h"
#include "proto/placement.h"
#include "tests/unit/random.h"

#define ROUNDS 1500
#define PLENTY (1ull << 40)

static struct kvw_plan plan;
static struct kvw_plan other;

static struct kvw_topology nodes_of(uint32_t n, uint64_t give)
{
    struct kvw_topology topology = {.n_nodes = n};

    for (uint32_t i = 0; i < n; i++) {
        topology.node[i].number = 10 * i;
        topology.node[i].package = i;
        topology.node[i].n_cpus = 4;
        topology.node[i].total_bytes = topology.node[i].give_bytes = give;
        for (uint32_t j = 0; j < n; j++)
            topology.node[i].distance[j] = i == j ? 10 : (uint16_t)(20 + 5 * (i ^ j));
    }
    return topology;
}

static struct kvw_topology random_nodes(struct random *random)
{
    struct kvw_topology topology =
        nodes_of((uint32_t)random_range(random, 1, 6), PLENTY);

    for (uint32_t i = 1; i < topology.n_nodes; i++)
        topology.node[i].n_cpus = (uint32_t)random_below(random, 3);
    return topology;
}

static struct kvw_placement_wish random_wish(struct random *random,
                                             const struct kvw_geometry *geometry,
                                             const struct kvw_topology *topology)
{
    struct kvw_placement_wish wish = {
        .policy = (uint32_t)random_below(random, KVW_PLACE_POLICIES),
        .pages = (uint32_t)random_below(random, 3),
    };

    if (wish.policy == KVW_PLACE_NODE)
        wish.n_nodes = 1;
    else if (wish.policy == KVW_PLACE_MAP)
        wish.n_nodes = geometry->n_ranks;
    for (uint32_t i = 0; i < wish.n_nodes; i++)
        wish.node[i] =
            (uint16_t)topology->node[random_below(random, topology->n_nodes)].number;
    return wish;
}

static void make(struct random *random, struct kvw_geometry *geometry,
                 struct kvw_layout *layout)
{
    struct kvw_refusal refusal;

    random_geometry(random, geometry);
    cr_assert_eq(layout_of(geometry, layout, &refusal), 0);
}

/* The rank of a byte by the layout's own words: the offsets of its heads. */
static bool rank_has_byte(const struct kvw_geometry *geometry,
                          const struct kvw_layout *layout, uint32_t rank, uint64_t byte)
{
    for (uint32_t g = 0; g < geometry->n_groups; g++) {
        const struct kvw_interval heads = partition_heads(geometry, g, rank);
        const struct kvw_interval layers = partition_layers(geometry, g, rank);
        const struct kvw_interval lanes = partition_lanes(geometry, rank);
        for (uint32_t l = layers.begin; l < layers.end; l++) {
            for (uint32_t p = 0; p < geometry->group[g].n_planes; p++) {
                for (uint32_t lane = lanes.begin;
                     lane < lanes.end && heads.begin < heads.end; lane++) {
                    uint64_t first =
                        layout_row_offset(layout, g, l - geometry->group[g].layer_first,
                                          p, lane, heads.begin, 0);
                    uint64_t end = first + layout->group[g].plane[p].head_bytes *
                                               (heads.end - heads.begin);
                    if (byte >= first && byte < end)
                        return true;
                }
            }
        }
    }
    return false;
}

Test(placement, a_byte_of_a_row_belongs_to_the_rank_that_holds_the_row)
{
    struct random random = random_init(71);

    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        make(&random, &geometry, &layout);

        for (uint32_t i = 0; i < 20; i++) {
            const uint32_t g = (uint32_t)random_below(&random, geometry.n_groups);
            const struct kvw_geometry_group *group = &geometry.group[g];
            const uint32_t l = (uint32_t)random_below(&random, group->n_layers);
            const uint64_t offset = layout_row_offset(
                &layout, g, l, (uint32_t)random_below(&random, group->n_planes),
                (uint32_t)random_below(&random, geometry.n_lanes),
                (uint32_t)random_below(&random, group->n_heads),
                random_below(&random, layout.group[g].rows));
            uint32_t layer;
            uint32_t rank;

            uint64_t end = placement_owner(&geometry, &layout, offset, &layer, &rank);

            cr_assert_gt(end, offset);
            cr_assert_eq(layer, group->layer_first + l, "seed %" PRIu64, random.seed);
            cr_assert(rank_has_byte(&geometry, &layout, rank, offset),
                      "rank %u has no byte %" PRIu64 ", seed %" PRIu64, rank, offset,
                      random.seed);
            cr_assert_eq(rank % geometry.partition.row_parts, 0);
        }
    }
}

Test(placement, ranges_cover_every_page_once_and_agree_with_the_middle_of_each)
{
    struct random random = random_init(72);

    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal;
        make(&random, &geometry, &layout);
        const struct kvw_topology topology = random_nodes(&random);
        const struct kvw_placement_wish wish =
            random_wish(&random, &geometry, &topology);
        cr_assert_eq(
            placement_plan(&geometry, &layout, &topology, &wish, &plan, &refusal), 0,
            "%s", refusal.text);

        struct kvw_placement_range range = {0};
        bool by_rank = random_below(&random, 2) == 1;
        uint64_t most = plan.page_bytes * random_range(&random, 1, 100);
        uint64_t end = 0;
        uint32_t n_wrong = 0; /* each assertion is a message to another process */
        while (placement_range(&geometry, &layout, &plan, end, most, by_rank, &range)) {
            n_wrong += range.begin != end || range.end <= range.begin ||
                       range.end - range.begin > most || range.node >= topology.n_nodes;
            for (uint64_t page = range.begin; page < range.end;
                 page += plan.page_bytes) {
                uint64_t middle = page + plan.page_bytes / 2;
                uint32_t layer;
                uint32_t rank;
                if (middle >= layout.data_bytes)
                    middle = layout.data_bytes - 1;
                (void)placement_owner(&geometry, &layout, middle, &layer, &rank);
                uint32_t node = plan.node[layer * plan.n_ranks + rank];
                n_wrong += (node != range.node && node != KVW_NODE_TURNS) ||
                           (by_rank && rank != range.rank);
            }
            end = range.end;
        }
        cr_assert_eq(end, layout.data_bytes);
        cr_assert_eq(n_wrong, 0, "seed %" PRIu64 " round %u", random.seed, round);
    }
}

Test(placement, is_the_same_for_the_same_input)
{
    struct random random = random_init(73);

    for (uint32_t round = 0; round < 300; round++) {
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal;
        make(&random, &geometry, &layout);
        const struct kvw_topology topology = random_nodes(&random);
        const struct kvw_placement_wish wish =
            random_wish(&random, &geometry, &topology);
        memset(&plan, 0, sizeof plan);
        memset(&other, 0, sizeof other);

        cr_assert_eq(
            placement_plan(&geometry, &layout, &topology, &wish, &plan, &refusal), 0);
        cr_assert_eq(
            placement_plan(&geometry, &layout, &topology, &wish, &other, &refusal), 0);

        cr_assert_eq(memcmp(&plan, &other, sizeof plan), 0, "seed %" PRIu64,
                     random.seed);
    }
}

Test(placement, leaves_memory_only_nodes_alone_unless_they_are_named)
{
    struct random random = random_init(74);

    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal;
        struct kvw_placement_range range = {0};
        make(&random, &geometry, &layout);
        const struct kvw_topology topology = random_nodes(&random);
        const struct kvw_placement_wish wish = {
            .policy = (uint32_t)random_below(&random, KVW_PLACE_NODE)};
        cr_assert_eq(
            placement_plan(&geometry, &layout, &topology, &wish, &plan, &refusal), 0);

        while (placement_range(&geometry, &layout, &plan, range.end, UINT64_MAX / 2,
                               false, &range))
            cr_assert_gt(topology.node[range.node].n_cpus, 0, "seed %" PRIu64,
                         random.seed);
    }
}

/* 4 layers of 64 heads x 1024 rows x 64 f32: 16 MiB each. */
static void large(struct kvw_geometry *geometry, struct kvw_layout *layout,
                  uint32_t head_parts)
{
    struct kvw_refusal refusal;

    *geometry = (struct kvw_geometry){
        .n_groups = 1,
        .n_lanes = 1,
        .n_ranks = head_parts,
        .n_layers = 4,
        .partition = {head_parts, 1, 1, 1, 0, 0},
        .group = {{.window_rows = 1023,
                   .chunk_rows_max = 1,
                   .slack_chunks = 1,
                   .n_layers = 4,
                   .n_heads = 64,
                   .n_planes = 1,
                   .policy = KVW_GEOMETRY_ROLL,
                   .kind = KVW_GEOMETRY_CHUNK,
                   .positions = KVW_GEOMETRY_ABSOLUTE,
                   .name = "self",
                   .plane = {{.elems = 64, .type = KVW_GEOMETRY_F32, .name = "k"}}}},
        .model_layer = {0, 1, 2, 3},
    };
    cr_assert_eq(geometry_check(geometry, &refusal), 0, "%s", refusal.text);
    cr_assert_eq(layout_of(geometry, layout, &refusal), 0);
    cr_assert_eq(layout->data_bytes, 64ull << 20);
}

Test(placement, gives_what_one_node_lacks_to_the_nearest_that_has_it)
{
    struct kvw_topology topology = nodes_of(4, PLENTY);
    const struct kvw_placement_wish wish = {.policy = KVW_PLACE_FOLLOW};
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    struct kvw_refusal refusal;
    large(&geometry, &layout, 4);
    topology.node[1].give_bytes = (16ull << 20) - 1; /* one byte short */

    cr_assert_eq(placement_plan(&geometry, &layout, &topology, &wish, &plan, &refusal),
                 0);

    static const uint8_t wanted[] = {0, 0, 2, 3}; /* 0 is nearest to 1 here */
    for (uint32_t rank = 0; rank < 4; rank++)
        cr_assert_eq(plan.node[rank], wanted[rank], "rank %u on %u", rank,
                     plan.node[rank]);
    cr_assert_eq(plan.why[1], KVW_WHY_NEAREST);
    cr_assert_eq(plan.need_bytes[0], 32ull << 20);
}

Test(placement, refuses_with_need_and_have_when_no_node_has_room)
{
    const struct kvw_topology topology = nodes_of(2, 20ull << 20);
    struct kvw_placement_wish wish = {.policy = KVW_PLACE_FOLLOW};
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    struct kvw_refusal refusal;
    large(&geometry, &layout, 4);

    cr_assert_eq(placement_plan(&geometry, &layout, &topology, &wish, &plan, &refusal),
                 -ENOMEM);
    cr_assert_eq(refusal.need, 16ull << 20);
    cr_assert_eq(refusal.have, 4ull << 20);
    wish.policy = KVW_PLACE_NODE;
    wish.n_nodes = 1;
    wish.node[0] = 10;
    cr_assert_eq(placement_plan(&geometry, &layout, &topology, &wish, &plan, &refusal),
                 -ENOMEM);
    cr_assert_eq(refusal.need, 64ull << 20);
    cr_assert_eq(refusal.have, 20ull << 20);
    wish.node[0] = 11;
    cr_assert_eq(placement_plan(&geometry, &layout, &topology, &wish, &plan, &refusal),
                 -ENODEV);
    cr_assert_neq(strstr(refusal.text, "no NUMA node 11"), NULL, "%s", refusal.text);
}

Test(placement, does_not_look_at_room_where_there_is_one_node)
{
    const struct kvw_topology topology = nodes_of(1, 1);
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    struct kvw_refusal refusal;
    large(&geometry, &layout, 4);

    for (uint32_t policy = 0; policy < KVW_PLACE_NODE; policy++) {
        const struct kvw_placement_wish wish = {.policy = policy};
        cr_assert_eq(
            placement_plan(&geometry, &layout, &topology, &wish, &plan, &refusal), 0);
    }
}

Test(placement, lets_no_node_without_room_take_turns)
{
    struct kvw_topology topology = nodes_of(4, PLENTY);
    const struct kvw_placement_wish wish = {.policy = KVW_PLACE_INTERLEAVE};
    struct kvw_placement_range range = {0};
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    struct kvw_refusal refusal;
    uint64_t bytes[4] = {0};
    large(&geometry, &layout, 1);
    topology.node[2].give_bytes = 1 << 20;

    cr_assert_eq(placement_plan(&geometry, &layout, &topology, &wish, &plan, &refusal),
                 0);
    while (placement_range(&geometry, &layout, &plan, range.end, UINT64_MAX / 2, false,
                           &range))
        bytes[range.node] += range.end - range.begin;

    cr_assert_eq(bytes[2], 0);
    for (uint32_t i = 0; i < 4; i++)
        cr_assert(i == 2 || (bytes[i] <= plan.need_bytes[i] &&
                             bytes[i] + 2 * plan.turn_bytes > (64ull << 20) / 3));
}

Test(placement, moves_one_rank_and_no_other)
{
    struct random random = random_init(75);

    for (uint32_t round = 0; round < 500; round++) {
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal;
        make(&random, &geometry, &layout);
        const struct kvw_topology topology = nodes_of(3, PLENTY);
        const struct kvw_placement_wish wish = {.policy = KVW_PLACE_FOLLOW};
        cr_assert_eq(
            placement_plan(&geometry, &layout, &topology, &wish, &plan, &refusal), 0);
        memcpy(&other, &plan, sizeof plan);
        const uint32_t rank = (uint32_t)random_below(&random, geometry.n_ranks);
        const uint32_t node = (uint32_t)random_below(&random, 3);

        placement_move(&plan, &geometry, rank, node, KVW_WHY_MOVED);

        for (uint32_t at = 0; at < plan.n_layers * plan.n_ranks; at++) {
            const uint32_t of = at % plan.n_ranks;
            const bool is_moved =
                placement_leader(&geometry, of) == placement_leader(&geometry, rank);
            cr_assert_eq(plan.node[at], is_moved ? node : other.node[at]);
            cr_assert(is_moved || plan.why[at] == other.why[at]);
        }
    }
}

Test(placement, refuses_wishes_that_make_no_sense)
{
    const struct kvw_topology topology = nodes_of(2, PLENTY);
    static const struct kvw_placement_wish wishes[] = {
        {.policy = KVW_PLACE_POLICIES},
        {.policy = KVW_PLACE_NODE},
        {.policy = KVW_PLACE_SPREAD, .n_nodes = 1},
        {.policy = KVW_PLACE_MAP, .n_nodes = 3},
    };
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    struct kvw_refusal refusal;
    large(&geometry, &layout, 4);

    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++)
        cr_assert_eq(
            placement_plan(&geometry, &layout, &topology, &wishes[i], &plan, &refusal),
            -EINVAL);
}
