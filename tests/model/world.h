/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache in one process and without a daemon: segments in plain memory, poisoned with
 * NaN bytes, attachments made by cache_new(), and the few things that the daemon does
 * when a process comes, dies or leaves. One thread.
 *
 * Contents: a row has a 64-bit stamp, and every element of every plane is derived from
 * it, so that a byte from another row, layer, lane, head or version is seen.
 */
#ifndef KVW_TESTS_MODEL_WORLD_H
#define KVW_TESTS_MODEL_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/cache.h"

enum {
    WORLD_RANKS_MAX = 8,
    WORLD_READERS_MAX = 2,
    WORLD_SEATS_MAX =
        WORLD_RANKS_MAX + WORLD_READERS_MAX, /* readers come after ranks */
    WORLD_SLOTS = 32,
    WORLD_GRAVES_MAX = 512,
    WORLD_POISON = 0xff,
};

struct world {
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    char *control;
    char *pins;
    char *data;
    struct kvw_cache *seat[WORLD_SEATS_MAX]; /* NULL = nobody there */
    bool is_slot_used[WORLD_SLOTS];
    struct kvw_cache *grave[WORLD_GRAVES_MAX]; /* forgotten, not freed: they died */
    uint32_t n_graves;
};

/** One group, one lane and one rank; it rolls by chunks and has absolute positions.
 * Window, slack and planes are the caller's to say. */
void world_geometry(struct kvw_geometry *geometry, uint32_t n_layers, uint32_t n_heads);

/** Segments of a checked geometry. @return 0 or -ENOMEM, -E2BIG. */
KVW_NODISCARD int world_init(struct world *world, const struct kvw_geometry *geometry);
void world_fini(struct world *world);

/** Attach a rank (seat < WORLD_RANKS_MAX) or a reader (above). @return as cache_new().
 */
KVW_NODISCARD int world_attach(struct world *world, uint32_t seat);

/** The process of a seat dies: no cleanup; then what the daemon does at its death. */
void world_kill(struct world *world, uint32_t seat);

/** The process of a seat detaches in good order. */
void world_detach(struct world *world, uint32_t seat);

/* Words of the protocol that the documents name. */
uint64_t world_hi(const struct world *world, uint32_t rank, uint32_t lane,
                  uint32_t group);
uint64_t world_want(const struct world *world, uint32_t rank, uint32_t lane,
                    uint32_t group);
uint64_t world_ask(const struct world *world, uint32_t rank, uint32_t lane);
/* Word `index` of the newest record of a board. */
uint64_t world_record(const struct world *world, uint32_t rank, uint32_t lane,
                      uint32_t index);
struct kvw_pin *world_pin(const struct world *world, uint32_t seat, uint32_t index);

/** Address of a row's slot by the canonical layout. */
char *world_row(const struct world *world, uint32_t layer, uint32_t plane,
                uint32_t lane, uint32_t head, uint64_t slot);

/** A number that depends on all of three. */
uint64_t world_mix(uint64_t a, uint64_t b, uint64_t c);

/** Write the elements of one row, head and plane. */
void world_fill(char *to, const struct kvw_geometry_plane *plane, uint32_t plane_index,
                uint32_t head, uint64_t stamp);
/** True if they are what world_fill() writes. */
bool world_is_filled(const char *at, const struct kvw_geometry_plane *plane,
                     uint32_t plane_index, uint32_t head, uint64_t stamp);

/** A generator (splitmix64; Steele, Lea and Flood 2014): the state is the seed. */
uint64_t world_random(uint64_t *state);

#endif
