/* SPDX-License-Identifier: Apache-2.0 */
/* The grid of parts, and the block-cyclic rule for rows. No state. */
#include "proto/partition.h"

struct kvw_interval partition_interval(uint32_t count, uint32_t parts, uint32_t part)
{
    uint32_t base = count / parts;
    uint32_t extra = count % parts; /* the first `extra` parts have one more */
    uint32_t begin = part * base + (part < extra ? part : extra);

    return (struct kvw_interval){begin, begin + base + (part < extra ? 1 : 0)};
}

struct kvw_place partition_place(const struct kvw_geometry *geometry, uint32_t rank)
{
    const struct kvw_geometry_partition *parts = &geometry->partition;
    struct kvw_place place;

    place.row_part = rank % parts->row_parts;
    rank /= parts->row_parts;
    place.head_part = rank % parts->head_parts;
    rank /= parts->head_parts;
    place.layer_part = rank % parts->layer_parts;
    place.lane_part = rank / parts->layer_parts;
    return place;
}

struct kvw_interval partition_heads(const struct kvw_geometry *geometry, uint32_t group,
                                    uint32_t rank)
{
    return partition_interval(geometry->group[group].n_heads,
                              geometry->partition.head_parts,
                              partition_place(geometry, rank).head_part);
}

/* One past the highest number of a model's layer. */
static uint32_t model_layers(const struct kvw_geometry *geometry)
{
    uint32_t n_layers = 0;
    for (uint32_t layer = 0; layer < geometry->n_layers; layer++) {
        if (geometry->model_layer[layer] >= n_layers)
            n_layers = geometry->model_layer[layer] + 1u;
    }
    return n_layers;
}

struct kvw_interval partition_layers(const struct kvw_geometry *geometry,
                                     uint32_t group, uint32_t rank)
{
    const struct kvw_geometry_group *of = &geometry->group[group];
    struct kvw_interval model =
        partition_interval(model_layers(geometry), geometry->partition.layer_parts,
                           partition_place(geometry, rank).layer_part);
    struct kvw_interval held = {of->layer_first, of->layer_first};

    /* Model layers ascend within a group, so those of an interval follow each other. */
    for (uint32_t i = 0; i < of->n_layers; i++) {
        uint32_t layer = of->layer_first + i;
        if (geometry->model_layer[layer] < model.begin)
            held.begin = layer + 1;
        if (geometry->model_layer[layer] < model.end)
            held.end = layer + 1;
    }
    if (held.end < held.begin)
        held.end = held.begin;
    return held;
}

struct kvw_interval partition_lanes(const struct kvw_geometry *geometry, uint32_t rank)
{
    return partition_interval(geometry->n_lanes, geometry->partition.lane_parts,
                              partition_place(geometry, rank).lane_part);
}

bool partition_holds_layer(const struct kvw_geometry *geometry, uint32_t layer,
                           uint32_t rank)
{
    uint32_t group = geometry_group_of(geometry, layer);
    struct kvw_interval layers = partition_layers(geometry, group, rank);
    struct kvw_interval heads = partition_heads(geometry, group, rank);

    return layer >= layers.begin && layer < layers.end && heads.begin < heads.end;
}

uint64_t partition_ranks_of_lane(const struct kvw_geometry *geometry, uint32_t lane)
{
    uint64_t ranks = 0;
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        struct kvw_interval lanes = partition_lanes(geometry, rank);
        if (lane >= lanes.begin && lane < lanes.end)
            ranks |= 1ull << rank;
    }
    return ranks;
}

uint64_t partition_ranks_of_layer(const struct kvw_geometry *geometry, uint32_t lane,
                                  uint32_t layer)
{
    uint64_t ranks = partition_ranks_of_lane(geometry, lane);
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        if (!partition_holds_layer(geometry, layer, rank))
            ranks &= ~(1ull << rank);
    }
    return ranks;
}

uint64_t partition_row_next(const struct kvw_geometry_partition *partition,
                            uint32_t row_part, uint64_t row)
{
    if (partition->row_parts == 1)
        return row;
    const uint64_t block = partition->row_block;
    const uint64_t period = block * partition->row_parts;
    const uint64_t begin = row / period * period + row_part * block;

    if (row < begin)
        return begin;
    return row < begin + block ? row : begin + period;
}

uint64_t partition_row_run_end(const struct kvw_geometry_partition *partition,
                               uint64_t row)
{
    if (partition->row_parts == 1)
        return UINT64_MAX;
    return (row / partition->row_block + 1) * partition->row_block;
}
