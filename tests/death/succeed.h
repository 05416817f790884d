/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What others find when a worker has died: readers look at a copy of the segments, then
 * new owners take over on it, finish what was under way and go on for a window.
 */
#ifndef KVW_TESTS_DEATH_SUCCEED_H
#define KVW_TESTS_DEATH_SUCCEED_H

#include "tests/death/scene.h"

/* What a call leads to, and what was seen so far. */
struct outcome {
    uint64_t step[2]; /* of rank 0: before and after the call */
    uint64_t era[2];
    bool is_recovery; /* promises may be pending: nothing goes on without recovery */
    bool is_after;    /* the state after the call was seen */
    uint64_t n_states;
    uint64_t n_takeovers;
};

/** Check the live segments as they are now. Only the copy is changed. */
void succeed_check(struct scene *scene, struct outcome *outcome);

#endif
