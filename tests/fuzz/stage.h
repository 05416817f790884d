/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The segments of one hostile cache, and a process that writes what it likes into them,
 * also while a call is under way. Each segment lies between two pages that nobody can
 * touch; readers have control and data read-only, as from the daemon. One thread.
 */
#ifndef KVW_TESTS_FUZZ_STAGE_H
#define KVW_TESTS_FUZZ_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/cache.h"
#include "tests/fuzz/input.h"

enum {
    STAGE_CONTROL = 0,
    STAGE_PINS = 1,
    STAGE_DATA = 2,
    STAGE_SEGMENTS = 3,
    STAGE_BYTES_MAX = 4 << 20, /* of a segment */
    STAGE_CACHES = 4,          /* attachments at once */
    STAGE_CHANGES = 8,         /* of a storm */
};

/* A word that the hostile process is going to store. */
struct change {
    uint64_t *word;
    uint64_t value;
    uint64_t after; /* loads of others, from the change before on */
};

struct stage {
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    int fd[STAGE_SEGMENTS];
    uint64_t n_bytes[STAGE_SEGMENTS];
    char *base[STAGE_SEGMENTS];            /* writable */
    char *readable[STAGE_SEGMENTS];        /* the same memory, read-only */
    struct kvw_cache *cache[STAGE_CACHES]; /* NULL = nobody; its pins have its slot */
};

/** Map zeroed segments of these sizes, whole pages up to STAGE_BYTES_MAX. */
void stage_init(struct stage *stage, const uint64_t n_bytes[STAGE_SEGMENTS]);

/** Detach all and unmap. */
void stage_fini(struct stage *stage);

/**
 * Attach as `rank` or KVW_READER in a place that is free.
 *
 * @return as cache_new(), or as mirror_map().
 */
int stage_attach(struct stage *stage, uint32_t place, uint32_t rank);

void stage_detach(struct stage *stage, uint32_t place);

/** Choose a shared word, the likely ones most of the time. */
uint64_t *stage_word(struct stage *stage, struct input *input);

/** Write into a word now. */
void stage_poke(struct stage *stage, struct input *input);

/** Choose words to be written while later calls look at them. */
void stage_storm(struct stage *stage, struct input *input);

/** Before a call of the library: its loads are counted from here, and have a bound. */
void stage_call_begins(void);

#endif
