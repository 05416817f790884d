/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a lane must show, step by step, written down from the rules R1 to R9 and without
 * any of the library's arithmetic: records of small numbers, and for each row the stamp
 * of the attempt that wrote it, from which every byte of it follows.
 *
 * The cache: group 0 of window kind `chunk`, group 1 of kind `row`, two layers, two
 * planes and two heads each, one lane; one rank, or two that split the heads.
 */
#ifndef KVW_TESTS_DEATH_MODEL_H
#define KVW_TESTS_DEATH_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "client/include/kvwheel/kvwheel.h"
#include "proto/geometry.h"

enum {
    GROUPS = 2,
    LAYERS_OF_GROUP = 2,
    LAYERS = GROUPS * LAYERS_OF_GROUP,
    PLANES = 2,
    HEADS = 2,
    CHUNK_MAX = 3,     /* of both groups */
    ROW_BYTES_MAX = 8, /* of both planes */
    ROWS_MAX = 96,
    STEPS_MAX = 64,
    RANKS_MAX = 2,
};

struct m_kept {
    uint64_t first;
    uint64_t n;
};

struct m_group {
    uint64_t rows; /* T */
    uint64_t evicted;
    uint64_t generation;
    uint64_t epoch;
    uint32_t n_kept;
    struct m_kept kept[4]; /* ascending */
    uint32_t stamp[ROWS_MAX];
};

enum act_kind {
    ACT_CHUNK, /* begin, write, commit */
    ACT_TRUNCATE,
    ACT_EVICT,
    ACT_KEEP,
    ACT_RESET,
    ACT_RESET_LAYER,
};

/* What leads from one record to the next. */
struct act {
    enum act_kind kind;
    uint32_t n_items;
    struct kvw_item item[GROUPS];
    uint64_t publish[GROUPS]; /* of a chunk: rows that commit publishes, by item */
    uint32_t stamp;           /* of a chunk: of its rows */
    uint32_t layer;           /* of reset layer */
};

struct m_record {
    struct m_group group[GROUPS];
    uint64_t floor[LAYERS];
    struct act act; /* that led here */
};

/* A lane: the records of all steps so far, and the step of each rank. */
struct m_lane {
    uint32_t n_ranks;
    struct m_record record[STEPS_MAX]; /* by step */
    uint64_t at[RANKS_MAX];
};

/** The geometry, checked. */
void model_geometry(uint32_t n_ranks, struct kvw_geometry *geometry);

/** W of a group, and the rows of its largest chunk. */
uint64_t model_window(uint32_t group);
uint64_t model_chunk(uint32_t group);

/** A lane of a new cache. */
void model_init(struct m_lane *lane, uint32_t n_ranks);

/** The step that all ranks have. */
uint64_t model_common(const struct m_lane *lane);

/** A stamp that no row has had. */
uint32_t model_stamp(void);

/** The chunk of n0 and n1 rows (0 = none) that follows a record. */
struct act model_chunk_act(const struct m_record *record, uint64_t n0, uint64_t n1);

/** The record that an act makes of another. */
void model_apply(const struct m_record *from, const struct act *act,
                 struct m_record *to);

/** Bytes of a row of a plane. */
uint32_t model_row_bytes(uint32_t plane);

/** Write a row of a plane and head. */
void model_fill(char *to, uint32_t stamp, uint64_t row, uint32_t layer, uint32_t plane,
                uint32_t head);

/**
 * Compare a view with a record: numbers, rows and every byte of them.
 *
 * @param open,written,stamp  Of the open chunk; 0 rows: a committed view.
 * @return NULL, or in words what is wrong.
 */
const char *model_check_view(const struct m_record *record, const struct kvw_view *view,
                             uint64_t step, uint64_t open, uint64_t written,
                             uint32_t stamp);

/** Compare a view's bytes alone: it was taken of `record`. */
const char *model_check_bytes(const struct m_record *record,
                              const struct kvw_view *view);

/** Compare what kvw_state() says of the groups. */
const char *model_check_state(const struct m_record *record,
                              const struct kvw_lane_state *state);

#endif
