/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers and random geometries for property tests: the same sequence every
 * time, unless $KVW_TEST_SEED says otherwise. Failing assertions print the seed.
 */
#ifndef KVW_TESTS_UNIT_RANDOM_H
#define KVW_TESTS_UNIT_RANDOM_H

#include <stdint.h>

#include "proto/geometry.h"

struct random {
    uint64_t seed; /* of this sequence, for messages */
    uint64_t state;
};

/** A sequence of its own for each `stream`. */
struct random random_init(uint64_t stream);

uint64_t random_u64(struct random *random);

/** 0 <= result < end; end > 0. */
uint64_t random_below(struct random *random, uint64_t end);

/** low <= result <= high. */
uint64_t random_range(struct random *random, uint64_t low, uint64_t high);

/** A geometry that geometry_check() accepts, small enough to walk through every row. */
void random_geometry(struct random *random, struct kvw_geometry *geometry);

#endif
