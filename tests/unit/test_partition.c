/* SPDX-License-Identifier: Apache-2.0 */
/* The partition: each byte has the ranks that it should have, and rows follow their
 * rule. */
#include <criterion/criterion.h>

#include <inttypes.h>

#include "proto/partition.h"
#include "tests/unit/random.h"

#define ROUNDS 3000

Test(partition, parts_are_even_and_cover_everything)
{
    static const uint32_t counts[] = {0,  1,  2,  3,  7,     8,
                                      12, 40, 64, 65, 65536, UINT32_MAX};

    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (uint32_t parts = 1; parts <= KVW_RANKS_MAX; parts++) {
            uint32_t end = 0;
            for (uint32_t part = 0; part < parts; part++) {
                struct kvw_interval held = partition_interval(counts[c], parts, part);
                uint32_t n = held.end - held.begin;

                cr_assert_eq(held.begin, end, "%u in %u parts", counts[c], parts);
                cr_assert(n == counts[c] / parts || n == counts[c] / parts + 1);
                cr_assert(part == 0 ||
                          n <= counts[c] / parts + (part < counts[c] % parts ? 1 : 0));
                end = held.end;
            }
            cr_assert_eq(end, counts[c]);
        }
    }
}

/* rank = ((lane_part * layer_parts + layer_part) * head_parts + head_part) * row_parts
 * + row_part, as the public header says. */
Test(partition, places_are_the_inverse_of_the_rank_formula)
{
    struct random random = random_init(2);

    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct kvw_geometry geometry;
        random_geometry(&random, &geometry);
        const struct kvw_geometry_partition *parts = &geometry.partition;

        for (uint32_t rank = 0; rank < geometry.n_ranks; rank++) {
            struct kvw_place at = partition_place(&geometry, rank);
            cr_assert(at.head_part < parts->head_parts);
            cr_assert(at.layer_part < parts->layer_parts);
            cr_assert(at.lane_part < parts->lane_parts);
            cr_assert(at.row_part < parts->row_parts);
            cr_assert_eq(((at.lane_part * parts->layer_parts + at.layer_part) *
                              parts->head_parts +
                          at.head_part) *
                                 parts->row_parts +
                             at.row_part,
                         rank);
        }
    }
}

static bool is_in(struct kvw_interval interval, uint32_t number)
{
    return number >= interval.begin && number < interval.end;
}

/* The set of ranks that hold a head of a layer in a lane, by the intervals alone. */
static uint64_t holders(const struct kvw_geometry *geometry, uint32_t layer,
                        uint32_t head, uint32_t lane)
{
    uint32_t group = geometry_group_of(geometry, layer);
    uint64_t ranks = 0;

    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        if (is_in(partition_layers(geometry, group, rank), layer) &&
            is_in(partition_heads(geometry, group, rank), head) &&
            is_in(partition_lanes(geometry, rank), lane))
            ranks |= 1ull << rank;
    }
    return ranks;
}

Test(partition, every_head_has_one_rank_for_each_row_part)
{
    struct random random = random_init(3);

    for (uint32_t round = 0; round < ROUNDS / 10; round++) {
        struct kvw_geometry geometry;
        random_geometry(&random, &geometry);
        uint32_t row_parts = geometry.partition.row_parts;

        for (uint32_t layer = 0; layer < geometry.n_layers; layer++) {
            uint32_t group = geometry_group_of(&geometry, layer);
            for (uint32_t lane = 0; lane < geometry.n_lanes; lane++) {
                uint64_t of_layer = 0;
                for (uint32_t head = 0; head < geometry.group[group].n_heads; head++) {
                    uint64_t ranks = holders(&geometry, layer, head, lane);
                    uint64_t row_part_seen = 0;

                    for (uint32_t rank = 0; rank < geometry.n_ranks; rank++) {
                        if (ranks >> rank & 1)
                            row_part_seen |=
                                1ull << partition_place(&geometry, rank).row_part;
                    }
                    cr_assert_eq((uint32_t)__builtin_popcountll(ranks), row_parts,
                                 "seed %" PRIu64 " round %u", random.seed, round);
                    cr_assert_eq(row_part_seen, (1ull << row_parts) - 1);
                    of_layer |= ranks;
                }
                cr_assert_eq(partition_ranks_of_layer(&geometry, lane, layer), of_layer,
                             "seed %" PRIu64 " round %u", random.seed, round);
                cr_assert_eq(of_layer & ~partition_ranks_of_lane(&geometry, lane), 0);
            }
        }
    }
}

Test(partition, sets_of_ranks_agree_with_the_intervals)
{
    struct random random = random_init(4);

    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct kvw_geometry geometry;
        random_geometry(&random, &geometry);

        for (uint32_t lane = 0; lane < geometry.n_lanes; lane++) {
            uint64_t ranks = partition_ranks_of_lane(&geometry, lane);
            for (uint32_t rank = 0; rank < geometry.n_ranks; rank++)
                cr_assert_eq(ranks >> rank & 1,
                             is_in(partition_lanes(&geometry, rank), lane) ? 1 : 0);
        }
        for (uint32_t rank = 0; rank < geometry.n_ranks; rank++) {
            for (uint32_t layer = 0; layer < geometry.n_layers; layer++) {
                uint32_t group = geometry_group_of(&geometry, layer);
                struct kvw_interval heads = partition_heads(&geometry, group, rank);
                cr_assert_eq(partition_holds_layer(&geometry, layer, rank),
                             is_in(partition_layers(&geometry, group, rank), layer) &&
                                 heads.begin < heads.end);
            }
        }
    }
}

/* Self- and cross-attention of one block are on one rank: the model's layers are split.
 */
Test(partition, groups_of_one_model_layer_stay_together)
{
    struct random random = random_init(5);

    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct kvw_geometry geometry;
        uint32_t part_of[64];
        random_geometry(&random, &geometry);
        for (size_t i = 0; i < 64; i++)
            part_of[i] = UINT32_MAX;

        for (uint32_t rank = 0; rank < geometry.n_ranks; rank++) {
            uint32_t part = partition_place(&geometry, rank).layer_part;
            for (uint32_t layer = 0; layer < geometry.n_layers; layer++) {
                uint32_t number = geometry.model_layer[layer];
                uint32_t group = geometry_group_of(&geometry, layer);
                if (!is_in(partition_layers(&geometry, group, rank), layer))
                    continue;
                cr_assert(part_of[number] == UINT32_MAX || part_of[number] == part);
                part_of[number] = part;
            }
        }
    }
}

Test(partition, rows_follow_their_definition)
{
    struct random random = random_init(6);

    for (uint32_t round = 0; round < 300; round++) {
        struct kvw_geometry_partition parts = {
            .row_parts = (uint32_t)random_range(&random, 2, 8),
            .row_block = (uint32_t)random_range(&random, 1, 12),
        };
        const uint64_t base =
            random_below(&random, 2) ? 0 : random_below(&random, 1ull << 50);

        for (uint64_t row = base; row < base + 3ull * parts.row_parts * parts.row_block;
             row++) {
            const uint64_t owner = row / parts.row_block % parts.row_parts;

            for (uint32_t part = 0; part < parts.row_parts; part++) {
                uint64_t next = row;
                while (next / parts.row_block % parts.row_parts != part)
                    next++;
                cr_assert_eq(partition_row_next(&parts, part, row), next);
            }
            uint64_t end = row;
            while (end / parts.row_block % parts.row_parts == owner)
                end++;
            cr_assert_eq(partition_row_run_end(&parts, row), end);
        }
    }
}

Test(partition, unsplit_rows_belong_to_everybody)
{
    const struct kvw_geometry_partition parts = {1, 1, 1, 1, 0, 0};

    cr_assert_eq(partition_row_next(&parts, 0, 12345), 12345);
    cr_assert_eq(partition_row_run_end(&parts, 12345), UINT64_MAX);
}
