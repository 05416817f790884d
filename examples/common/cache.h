/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs on one kept cache do alike: name it, attach to it, go back to what all
 * ranks have, and record a refusal of kvwheel in its own words.
 */
#ifndef COMMON_CACHE_H
#define COMMON_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvwheel/kvwheel.h>

#include "examples/common/fail.h"
#include "examples/common/ranks.h"

#define CACHE_NAME_BYTES 64u

/** Record a refusal of kvwheel: "WHAT: its words". @return -EINVAL */
int cache_refused(struct fail *fail, const char *what, int error);

/** A name that no other run has: "PREFIX-..." */
void cache_make_name(const char *prefix, char name[CACHE_NAME_BYTES]);

/** Add a group that never rolls, of rows of `elems` elements, which may all come in one
 *  step. @return 0 or -EINVAL. */
int cache_add_rows(struct kvw_spec *spec, const char *name, uint64_t rows_max,
                   uint32_t type, uint32_t elems);

/** The group of that name, or NULL. */
const struct kvw_spec_group *cache_group(const struct kvw_spec *spec, const char *name);

/** Take the name that --resume has. @return 0 or -EINVAL. */
int cache_take_name(const char *given, char name[CACHE_NAME_BYTES], struct fail *fail);

/** Attach as a reader, if the cache is there. @return 1, 0 (not there), or -EINVAL. */
int cache_look(struct kvw_client *client, const char *name, struct kvw_cache **reader,
               struct fail *fail);

/** Connect, unless *client is there, and attach as a rank, waiting for a dying owner to be
 *  gone. @return 0 or -EINVAL. */
int cache_attach(const char *socket, struct kvw_client **client, const char *name,
                 uint32_t rank, struct kvw_cache **cache, struct fail *fail);

/** The heads of a group that a rank has. @return 0 or -EINVAL. */
int cache_heads(const struct kvw_cache *cache, uint32_t group, uint32_t rank,
                struct share *heads, struct fail *fail);

/** How often the W - S rolling rows of a window were replaced as a whole. */
uint64_t cache_rolls(uint64_t rows, uint64_t window, uint64_t sink);

/** After a job that died (was_there) its ranks may stand at different steps: go back to
 *  the last one that all of them have. Every rank calls it. @return 0 or -EINVAL. */
int cache_settle(struct kvw_cache *cache, uint32_t rank, bool was_there,
                 struct kvw_lane_state *state, struct fail *fail);

/**
 * Copy committed rows of a layer of one plane, whose rows are row_bytes each.
 *
 * @param what  For the refusal.
 * @return 0 or -EINVAL, also if some of the rows are not there.
 */
int cache_read_rows(struct kvw_cache *cache, struct kvw_layer layer, const char *what,
                    uint64_t first, uint64_t n, size_t row_bytes, void *out,
                    struct fail *fail);

/* A number in two words of a row of KVW_U32. */
static inline void cache_put_u64(uint32_t *words, uint64_t number)
{
    words[0] = (uint32_t)number;
    words[1] = (uint32_t)(number >> 32);
}

static inline uint64_t cache_get_u64(const uint32_t *words)
{
    return words[0] | (uint64_t)words[1] << 32;
}

#endif
