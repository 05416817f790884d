/* SPDX-License-Identifier: Apache-2.0 */
/* Generator: splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
 * generators", 2014). */
#include "tests/unit/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t random_u64(struct random *random)
{
    random->state += 0x9e3779b97f4a7c15ull;
    uint64_t z = random->state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

struct random random_init(uint64_t stream)
{
    const char *seed = getenv("KVW_TEST_SEED");
    struct random random = {.seed = seed == NULL ? 1 : strtoull(seed, NULL, 0)};

    random.state = random.seed * 0x2545f4914f6cdd1dull + stream;
    return random;
}

uint64_t random_below(struct random *random, uint64_t end)
{
    return random_u64(random) % end;
}

uint64_t random_range(struct random *random, uint64_t low, uint64_t high)
{
    return low + random_below(random, high - low + 1);
}

static void random_planes(struct random *random, struct kvw_geometry_group *group)
{
    group->n_planes = (uint32_t)random_range(random, 1, 4);
    for (uint32_t p = 0; p < group->n_planes; p++) {
        struct kvw_geometry_plane *plane = &group->plane[p];
        (void)snprintf(plane->name, sizeof plane->name, "p%u", p);
        plane->type = (uint8_t)random_range(random, 1, 6);
        plane->elems = (uint32_t)random_range(random, 1, 20);
        plane->flags = (uint8_t)random_below(random, 2);
    }
}

static void random_group(struct random *random, struct kvw_geometry *geometry,
                         uint32_t g)
{
    struct kvw_geometry_group *group = &geometry->group[g];

    (void)snprintf(group->name, sizeof group->name, "group-%u", g);
    group->policy = (uint8_t)random_range(random, 1, 2);
    group->kind = (uint8_t)random_range(random, 1, 2);
    group->positions = (uint8_t)random_range(random, 1, 2);
    group->sink_rows = random_below(random, 2) ? random_below(random, 5) : 0;
    group->chunk_rows_max = random_range(random, 1, 6);
    group->window_rows =
        group->sink_rows + group->chunk_rows_max + random_below(random, 8);
    group->keep_rows = random_below(random, 2) ? random_below(random, 4) : 0;
    if (group->policy == KVW_GEOMETRY_ROLL)
        group->slack_chunks = (uint32_t)random_range(random, 1, 3);
    group->n_heads = (uint32_t)random_range(random, 1, 7);
    group->n_layers = (uint32_t)random_range(random, 1, 5);
    group->layer_first = geometry->n_layers;
    uint16_t number = (uint16_t)random_below(random, 3);
    for (uint32_t i = 0; i < group->n_layers; i++) {
        geometry->model_layer[geometry->n_layers++] = number;
        number = (uint16_t)(number + random_range(random, 1, 3));
    }
    random_planes(random, group);
}

void random_geometry(struct random *random, struct kvw_geometry *geometry)
{
    struct kvw_geometry_partition *parts = &geometry->partition;

    memset(geometry, 0, sizeof *geometry);
    geometry->n_groups = (uint32_t)random_range(random, 1, 4);
    geometry->n_lanes = (uint32_t)random_range(random, 1, 5);
    for (uint32_t g = 0; g < geometry->n_groups; g++)
        random_group(random, geometry, g);
    do {
        parts->head_parts = (uint32_t)random_range(random, 1, 9);
        parts->layer_parts = (uint32_t)random_range(random, 1, 6);
        parts->lane_parts = (uint32_t)random_range(random, 1, 6);
        parts->row_parts =
            random_below(random, 2) ? 1 : (uint32_t)random_range(random, 1, 6);
        geometry->n_ranks = parts->head_parts * parts->layer_parts * parts->lane_parts *
                            parts->row_parts;
    } while (geometry->n_ranks > KVW_RANKS_MAX);
    /* Windows have at most 30 rows here, so that blocks of any size fit into a view. */
    parts->row_block = parts->row_parts == 1 ? 0 : (uint32_t)random_range(random, 1, 9);
    geometry->has_checksums = (uint8_t)random_below(random, 2);
    geometry->pages = (uint8_t)random_below(random, 2); /* 2M: not where contiguous */
}
