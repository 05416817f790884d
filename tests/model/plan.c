/* SPDX-License-Identifier: Apache-2.0 */
/* Small numbers on purpose: every corner (a sink that is not full, a chunk as large as
 * the window, the wrap) comes within a few calls. */
#include "tests/model/plan.h"

#include <inttypes.h>
#include <string.h>

static uint32_t pick(uint64_t *seed, uint32_t n)
{
    return (uint32_t)(world_random(seed) >> 33) % n;
}

static void plan_planes(uint64_t *seed, struct kvw_geometry_group *group)
{
    group->n_planes = 1 + pick(seed, 3);
    for (uint32_t p = 0; p < group->n_planes; p++) {
        struct kvw_geometry_plane *plane = &group->plane[p];
        plane->type = (uint8_t)(1 + pick(seed, KVW_GEOMETRY_U32));
        plane->elems = 1 + pick(seed, 9);
        (void)snprintf(plane->name, sizeof plane->name, "p%u", p);
    }
}

static void plan_window(uint64_t *seed, struct kvw_geometry_group *group)
{
    const uint64_t chunk = 1 + pick(seed, 5);
    const bool is_roll = pick(seed, 4) != 0;

    group->kind = pick(seed, 3) == 0 ? KVW_GEOMETRY_ROW : KVW_GEOMETRY_CHUNK;
    group->policy = is_roll ? KVW_GEOMETRY_ROLL : KVW_GEOMETRY_REFUSE;
    group->positions = pick(seed, 3) == 0 ? KVW_GEOMETRY_WINDOW : KVW_GEOMETRY_ABSOLUTE;
    group->sink_rows = pick(seed, 2) == 0 ? 0 : pick(seed, 6);
    group->chunk_rows_max = chunk;
    group->slack_chunks = is_roll ? 1 + pick(seed, 3) : 0;
    uint64_t least = is_roll && group->kind == KVW_GEOMETRY_CHUNK ? chunk : 1;
    group->window_rows = group->sink_rows + least + pick(seed, 8);
    if (!is_roll && group->chunk_rows_max > group->window_rows)
        group->chunk_rows_max = group->window_rows;
    group->keep_rows =
        pick(seed, 3) == 0 ? 0 : 1 + pick(seed, pick(seed, 2) == 0 ? 2 : 7);
}

static void plan_partition(uint64_t *seed, struct kvw_geometry *geometry)
{
    struct kvw_geometry_partition *parts = &geometry->partition;
    uint32_t *part[4] = {&parts->head_parts, &parts->layer_parts, &parts->lane_parts,
                         &parts->row_parts};

    for (int i = 0; i < 4; i++)
        *part[i] = 1;
    for (uint32_t i = pick(seed, 3); i-- > 0;) {
        uint32_t *grown = part[pick(seed, 4)];
        uint32_t by = 2 + pick(seed, 2);
        if (geometry->n_ranks * by > 4 && geometry->n_ranks * by != 6)
            continue;
        *grown *= by;
        geometry->n_ranks *= by;
    }
    parts->row_block = parts->row_parts > 1 ? 1 + pick(seed, 3) : 0;
}

void plan_geometry(uint64_t seed, struct kvw_geometry *geometry)
{
    uint64_t random = world_mix(seed, 11, 17);

    memset(geometry, 0, sizeof *geometry);
    geometry->n_groups = pick(&random, 2) == 0 ? 1 : 1 + pick(&random, M_GROUPS);
    geometry->n_lanes = pick(&random, 2) == 0 ? 1 : 1 + pick(&random, M_LANES);
    geometry->n_ranks = 1;
    for (uint32_t g = 0; g < geometry->n_groups; g++) {
        struct kvw_geometry_group *group = &geometry->group[g];
        (void)snprintf(group->name, sizeof group->name, "g%u", g);
        group->n_layers = 1 + pick(&random, 3);
        group->layer_first = geometry->n_layers;
        group->n_heads = 1 + pick(&random, 4);
        plan_planes(&random, group);
        plan_window(&random, group);
        uint32_t number = pick(&random, 2);
        for (uint32_t i = 0; i < group->n_layers; i++) {
            geometry->model_layer[geometry->n_layers++] = (uint16_t)number;
            number += 1 + pick(&random, 2);
        }
    }
    plan_partition(&random, geometry);
    geometry->has_checksums = pick(&random, 3) != 0;
}

void plan_op(uint64_t seed, uint32_t index, struct op *op)
{
    static const uint8_t weight[OP_KINDS] = {
        [OP_ROUND] = 24,      [OP_ADVANCE] = 24,    [OP_BEGIN] = 12,
        [OP_BEGIN_WRONG] = 4, [OP_UPDATE] = 10,     [OP_SLOTS] = 6,
        [OP_FILL] = 6,        [OP_COMMIT] = 10,     [OP_ABORT] = 4,
        [OP_TRUNCATE] = 7,    [OP_EVICT] = 5,       [OP_KEEP] = 10,
        [OP_RESET] = 2,       [OP_RESET_LAYER] = 3, [OP_HOLD] = 10,
        [OP_RELEASE] = 9,     [OP_RESET_STATE] = 1, [OP_WAIT] = 3,
        [OP_RECOVER] = 2,     [OP_RECOVER_ALL] = 2, [OP_KILL] = 3,
        [OP_ATTACH] = 6,      [OP_DETACH] = 1,      [OP_POLICY] = 3,
        [OP_OUTSIDE] = 1,     [OP_FORBIDDEN] = 1,   [OP_PASS] = 6,
        [OP_ONLOOK] = 8,
    };
    uint64_t random = world_mix(seed, 23, index + 1);
    uint32_t sum = 0;

    for (uint32_t kind = 0; kind < OP_KINDS; kind++)
        sum += weight[kind];
    uint32_t at = pick(&random, sum);
    op->kind = 0;
    while (at >= weight[op->kind])
        at -= weight[op->kind++];
    for (uint32_t i = 0; i < 8; i++)
        op->r[i] = (uint32_t)(world_random(&random) >> 32);
    if (world_random(&random) % 2 == 0)
        op->r[1] = 0; /* one lane sees more than the others */
}

void plan_print(const struct kvw_geometry *geometry, FILE *to)
{
    const struct kvw_geometry_partition *parts = &geometry->partition;

    fprintf(to, "%u ranks (heads %u layers %u lanes %u rows %u of %u), %u lanes%s\n",
            geometry->n_ranks, parts->head_parts, parts->layer_parts, parts->lane_parts,
            parts->row_parts, parts->row_block, geometry->n_lanes,
            geometry->has_checksums ? ", checksums" : "");
    for (uint32_t g = 0; g < geometry->n_groups; g++) {
        const struct kvw_geometry_group *of = &geometry->group[g];
        fprintf(to,
                "  g%u: W %" PRIu64 " S %" PRIu64 " chunk %" PRIu64
                " slack %u keep %" PRIu64
                " %s kind %s positions %s, %u heads, %u planes, model layers",
                g, of->window_rows, of->sink_rows, of->chunk_rows_max, of->slack_chunks,
                of->keep_rows, of->policy == KVW_GEOMETRY_ROLL ? "roll" : "refuse",
                of->kind == KVW_GEOMETRY_ROW ? "row" : "chunk",
                of->positions == KVW_GEOMETRY_WINDOW ? "window" : "absolute",
                of->n_heads, of->n_planes);
        for (uint32_t i = 0; i < of->n_layers; i++)
            fprintf(to, " %u", geometry->model_layer[of->layer_first + i]);
        fprintf(to, "\n");
    }
}
