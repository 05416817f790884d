/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which part of a cache a rank holds: a pure function of the geometry and the rank.
 * Parts are as even as they can be; the first ones get one more where the number does
 * not divide. A part may be empty (more ranks than heads): such a rank still publishes
 * every step.
 */
#ifndef KVW_PROTO_PARTITION_H
#define KVW_PROTO_PARTITION_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/geometry.h"

struct kvw_interval {
    uint32_t begin;
    uint32_t end; /* one past the last; begin == end is empty */
};

/* A rank's coordinates in the grid of parts. */
struct kvw_place {
    uint32_t head_part;
    uint32_t layer_part;
    uint32_t lane_part;
    uint32_t row_part;
};

/** Part `part` of `parts` of the numbers 0..count-1. */
struct kvw_interval partition_interval(uint32_t count, uint32_t parts, uint32_t part);

/** Coordinates of a rank, 0 <= rank < n_ranks. */
struct kvw_place partition_place(const struct kvw_geometry *geometry, uint32_t rank);

/** Heads of a group that a rank holds. */
struct kvw_interval partition_heads(const struct kvw_geometry *geometry, uint32_t group,
                                    uint32_t rank);

/**
 * Layers of a group that a rank holds, as indices into kvw_geometry.model_layer. The
 * model's layers 0..last are split, so that a block's groups stay together.
 */
struct kvw_interval partition_layers(const struct kvw_geometry *geometry,
                                     uint32_t group, uint32_t rank);

/** Lanes that a rank holds. */
struct kvw_interval partition_lanes(const struct kvw_geometry *geometry, uint32_t rank);

/** True if a rank holds at least one head of a layer. */
bool partition_holds_layer(const struct kvw_geometry *geometry, uint32_t layer,
                           uint32_t rank);

/** The set of ranks (bit r is rank r) that hold a lane. */
uint64_t partition_ranks_of_lane(const struct kvw_geometry *geometry, uint32_t lane);

/** The set of ranks that hold at least one head of a layer in a lane. */
uint64_t partition_ranks_of_layer(const struct kvw_geometry *geometry, uint32_t lane,
                                  uint32_t layer);

/** The first row >= `row` that belongs to a row part. */
uint64_t partition_row_next(const struct kvw_geometry_partition *partition,
                            uint32_t row_part, uint64_t row);

/** One past the last row of the run of rows of a part that contains `row`. */
uint64_t partition_row_run_end(const struct kvw_geometry_partition *partition,
                               uint64_t row);

#endif
