/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of the data path that are stepped through, and what leads up to each. */
#ifndef KVW_TESTS_DEATH_CALLS_H
#define KVW_TESTS_DEATH_CALLS_H

#include "tests/death/scene.h"

struct call {
    const char *name;
    uint32_t n_ranks;
    bool is_fresh; /* on a new cache; else three windows were rolled */
    void (*prepare)(struct scene *); /* may be NULL */
    int (*run)(struct scene *);      /* what is stepped */
    int result;                      /* that it must have */
    bool is_step;                    /* rank 0 is at the next step then */
    bool is_closed;                  /* no chunk is open then; so it is after a step */
    bool is_recovery;
    uint64_t help_at;             /* while it waits: at this instruction ... */
    void (*help)(struct scene *); /* ... somebody does this */
};

extern const struct call calls[];
extern const uint32_t n_calls;

#endif
