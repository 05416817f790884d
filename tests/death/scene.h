/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache in memory that processes share, its workers, and what the lane must show. The
 * daemon's part at attach and at death is played here. One thread.
 */
#ifndef KVW_TESTS_DEATH_SCENE_H
#define KVW_TESTS_DEATH_SCENE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/cache.h"
#include "tests/death/model.h"
#include "tests/death/staged.h"

/* Slots of attachments: rank r has slot r. */
enum {
    SLOT_READER = RANKS_MAX, /* a reader that is stepped */
    SLOT_HELD,               /* a reader that holds views all the while */
    SLOT_LOOK,               /* a reader that looks at a copy */
    SLOTS,
};

/* Three segments. */
struct stage {
    struct kvw_layout layout;
    char *control;
    char *pins;
    char *data;
};

/* Views of all layers that a reader has. */
struct held {
    struct kvw_cache *reader; /* NULL: none */
    struct kvw_view view[LAYERS];
    struct m_record record; /* that they show */
};

struct scene {
    struct stage live;
    struct stage copy;
    struct m_lane lane;
    struct kvw_cache *worker[RANKS_MAX]; /* NULL: nobody */
    struct kvw_cache *reader;            /* at SLOT_READER, or NULL */
    struct kvw_cache *dead;              /* to be freed at the end, or NULL */
    struct held held;                    /* pinned */
    struct held witness;                 /* unpinned, of what rank 0 published last */
    struct onlooker onlooker;            /* of what it has staged; the same reader */

    /* The call under test, made by rank 0, and what the call needs. */
    struct act act; /* the step that it is part of, or that is to follow it */
    struct kvw_begun begun[GROUPS];
    struct kvw_view view;
    struct kvw_view views[3];
    char rows[PLANES][CHUNK_MAX][HEADS][ROW_BYTES_MAX]; /* to be written */
    struct kvw_source source[PLANES];
    uint64_t step;
};

/** Count a failure and print it, with the place that test_place() set last. */
void test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void test_place(const char *call, const char *phase, uint64_t instruction);
uint32_t test_failures(void);

#define EXPECT(condition, ...)                          \
    do {                                                \
        if (!(condition))                               \
            test_fail(__FILE__, __LINE__, __VA_ARGS__); \
    } while (0)

/** A call of the library that must succeed. */
#define OK(call)                                                              \
    do {                                                                      \
        int result_ = (call);                                                 \
        EXPECT(result_ == 0, "%s: %d, %s", #call, result_, kvw_last_error()); \
    } while (0)

/** Shared segments of a new cache, poisoned with NaN bytes, and memory for copies. */
void scene_init(struct scene *scene, uint32_t n_ranks);
void scene_fini(struct scene *scene);

/** Copy live segments to the copy. */
void scene_copy(struct scene *scene);

/** Bytes of the pin segment that this cache uses. */
uint64_t stage_pins_used(const struct stage *stage);

/** Its memory, as cache_new() wants it. */
struct cache_segments stage_segments(const struct stage *stage);

/** The daemon admits an owner or a reader (rank KVW_READER); then it attaches. */
void stage_admit(const struct stage *stage, uint32_t rank);
struct kvw_cache *stage_attach(const struct stage *stage, uint32_t rank, uint32_t slot);

/** The daemon learns that the owner of a rank is dead. */
void stage_bury(const struct stage *stage, uint32_t rank);

/** Clear the pins of a slot, as the daemon does. */
void stage_clear_pins(const struct stage *stage, uint32_t slot);

/** Fill scene->rows and scene->source with an act's rows of a layer for a rank. */
void scene_fill(struct scene *scene, const struct kvw_cache *cache,
                const struct m_record *from, const struct act *act, uint32_t layer);

/** Rows that an act begins in the group of a layer. */
uint64_t act_rows(const struct act *act, uint32_t layer);

/** begin of an act's chunk. @return as kvw_begin(). */
int act_begin(struct kvw_cache *cache, const struct act *act);

/** Write `n` rows of every layer of an act's chunk (UINT64_MAX: all). */
void act_write(struct scene *scene, struct kvw_cache *cache,
               const struct m_record *from, const struct act *act, uint64_t n);

/** Commit of an act's chunk. @return as kvw_commit(). */
int act_commit(struct kvw_cache *cache, const struct act *act);

/** Do an act from beginning to end. @return as the first call that fails. With
 * is_checked, staged views and refusals are checked on the way. */
int act_run(struct scene *scene, struct kvw_cache *cache, const struct m_record *from,
            const struct act *act, bool is_checked);

/** Do an act on live ranks [first, end), and note it in the lane. */
void scene_run(struct scene *scene, uint32_t first, uint32_t end,
               const struct act *act);

/** Roll chunks of random sizes until each group has at least this many rows more. */
void scene_roll(struct scene *scene, uint64_t n_rows, uint64_t *random);

/** Let a reader hold views of all layers of the live cache. */
void scene_hold(struct scene *scene);

/** Take views of rank 0's newest record that nothing protects but their release. */
void scene_witness(struct scene *scene);

/** splitmix64 (Steele, Lea and Flood 2014): the state is the seed. */
uint64_t test_random(uint64_t *state);

#endif
