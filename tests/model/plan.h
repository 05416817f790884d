/* SPDX-License-Identifier: Apache-2.0 */
/* Random geometries and random lists of operations: pure functions of a seed. */
#ifndef KVW_TESTS_MODEL_PLAN_H
#define KVW_TESTS_MODEL_PLAN_H

#include <stdio.h>

#include "tests/model/play.h"

/** A small geometry that geometry_check() accepts. */
void plan_geometry(uint64_t seed, struct kvw_geometry *geometry);
/** Operation `index` of a seed. */
void plan_op(uint64_t seed, uint32_t index, struct op *op);
void plan_print(const struct kvw_geometry *geometry, FILE *to);

#endif
