/* SPDX-License-Identifier: Apache-2.0 */
/* The scenes of the interleaving test and the bounds within which each is explored. */
#ifndef KVW_TESTS_RACE_INTERLEAVE_H
#define KVW_TESTS_RACE_INTERLEAVE_H

#include "tests/race/explore.h"

enum {
    INTERLEAVE_RUNS_MAX = 9, /* and one that ends them */
    ANY = EXPLORE_UNBOUNDED,
    DEEP = 1,
};

struct interleave_run {
    enum explore_model model;
    uint8_t switches;
    uint8_t deaths;
    uint8_t late;
    uint8_t early;
    uint8_t is_deep; /* with --deep only */
};

struct interleave_case {
    struct explore_scene scene;
    struct interleave_run run[INTERLEAVE_RUNS_MAX]; /* one with no bound at all ends */
};

/* Each ends with a case without a name. */
extern const struct interleave_case interleave_board[];
extern const struct interleave_case interleave_pins[];
extern const struct interleave_case interleave_ranks[];
extern const struct interleave_case interleave_recover[];
extern const struct interleave_case interleave_staged[];
extern const struct interleave_case interleave_wait[];

#endif
