/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain model of the rules of a rolling cache, written from ARCHITECTURE.md and
 * PROTOCOL.md and independent of the library: for every lane the list of steps that its
 * ranks run, for every rank where it stands, what it has open, and the stamp of every
 * row of every layer that it ever committed. No shared memory, no clever arithmetic: it
 * says what each call may answer and which rows each view shows.
 *
 * Where the rules leave a choice (a claim that was never used may be taken back; which
 * of two reasons a refusal names), the model allows each.
 */
#ifndef KVW_TESTS_MODEL_ORACLE_H
#define KVW_TESTS_MODEL_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/include/kvwheel/kvwheel.h"
#include "proto/geometry.h"
#include "proto/layout.h"

enum {
    M_GROUPS = 4,
    M_LAYERS = 16,
    M_LANES = 3,
    M_RANKS = 8,
    M_CHUNK = 16,
    M_SHOWN = 128,
    M_ERRORS = 12,
    M_HELD = 16,
};

struct m_kept {
    uint64_t first;
    uint64_t n;
    uint64_t extent; /* chosen by the library, read from its record */
};

struct m_group {
    uint64_t rows; /* T */
    uint64_t evicted;
    uint64_t generation;
    uint64_t epoch;
    uint32_t n_kept;
    struct m_kept kept[KVW_KEPT_MAX];
};

struct m_record {
    struct m_group group[M_GROUPS];
    uint64_t floor[M_LAYERS];
};

enum m_kind {
    M_COMMIT,
    M_TRUNCATE,
    M_EVICT,
    M_KEEP,
    M_RESET,
    M_RESET_LAYER,
};

/* A call that publishes. Of a commit, `item` is what was begun and `publish` the rows.
 */
struct m_call {
    enum m_kind kind;
    uint32_t n_items;
    uint32_t layer;
    struct kvw_item item[M_GROUPS];
    uint64_t publish[M_GROUPS];
};

struct m_step {
    struct m_record record;
    struct m_call call; /* that led here */
    uint64_t rewinds[M_RANKS];
};

/* One committed row of one rank's layer. */
struct m_version {
    uint64_t row;
    uint64_t generation;
    uint64_t step;
    uint64_t stamp;
};

struct m_layer {
    uint64_t prefix; /* rows of the open chunk that count as written */
    uint64_t writes; /* times that its rows were written or handed out, ever */
    uint32_t passes; /* of these, those of the open chunk that were told */
    uint32_t read;   /* pass of others that the rank has read */
    bool is_writing; /* slots are handed out */
    uint64_t stamp[M_CHUNK];
    struct m_version *version; /* steps ascend */
    uint32_t n_versions;
    uint32_t versions_max;
};

struct m_open {
    uint64_t n; /* rows, 0 = none */
    uint64_t epoch;
    uint64_t epoch_before; /* of the group, where begin names no other */
    uint64_t hi;           /* end of the rows declared overwritten */
    uint64_t hi_before;    /* the same before the open chunk began */
    bool is_touched;       /* a slot was handed out or written since then */
};

/* A rank's part of a lane. */
struct m_board {
    bool is_held;
    bool is_open;
    uint64_t step;
    uint64_t era;
    uint64_t ask;
    uint64_t claim; /* begins so far: tells chunks apart */
    struct kvw_item begun[M_GROUPS];
    uint32_t n_begun;
    struct m_open group[M_GROUPS];
    struct m_layer layer[M_LAYERS];
};

struct m_lane {
    struct m_step *step; /* of the branch that all ranks are on */
    uint32_t n_steps;
    uint32_t steps_max;
    uint64_t outside;
    struct m_board board[M_RANKS];
};

struct oracle {
    const struct kvw_geometry *geometry;
    uint32_t seat[M_RANKS]; /* enum kvw_seat_state */
    struct m_lane lane[M_LANES];
};

/* A reader's hold, by the words that it published. */
struct m_pin {
    uint32_t seat;
    uint32_t lane;
    uint32_t group;
    uint64_t generation;
    uint64_t low;
    uint64_t end;
    uint64_t ranks;
    uint64_t keep_first;
    uint64_t keep_end;
    bool is_revoked; /* a begin went on over it */
};

/* The open chunk of a layer as a view shows it. */
struct m_chunk {
    uint64_t open; /* rows; 0: the view is the committed one */
    uint64_t written;
    bool is_writing;     /* somebody writes the layer now: no view */
    bool is_writer_dead; /* and never will end */
    uint64_t ranks;      /* whose writing would change what is shown */
    uint64_t writes;     /* theirs so far */
};

/* What a call may answer. */
struct expect {
    bool may_succeed;
    bool must_succeed;
    uint32_t n_errors;
    int error[M_ERRORS];
};

/* One visible row. */
struct shown {
    uint64_t row;
    uint64_t position;
    uint64_t slot;
    uint32_t piece_class;
};

void oracle_init(struct oracle *oracle, const struct kvw_geometry *geometry);
void oracle_fini(struct oracle *oracle);

/* ---- who holds what (the rule of ranks in kvwheel.h, computed here once more) ---- */
struct kvw_part oracle_part(const struct oracle *oracle, uint32_t group, uint32_t rank);
bool oracle_holds(const struct oracle *oracle, uint32_t layer, uint32_t rank);
bool oracle_has_row(const struct oracle *oracle, uint32_t rank, uint64_t row);
/* Sets of ranks, one bit each: that hold a lane; and a layer of it too. */
uint64_t oracle_ranks(const struct oracle *oracle, uint32_t lane);
uint64_t oracle_holders(const struct oracle *oracle, uint32_t lane, uint32_t layer);

/* ---- arithmetic ---- */
const struct m_record *oracle_record(const struct oracle *oracle, uint32_t lane,
                                     uint32_t rank);
uint64_t oracle_low(const struct oracle *oracle, uint32_t group,
                    const struct m_group *at, uint64_t ahead);
uint64_t oracle_ring_rows(const struct oracle *oracle, uint32_t group);
uint64_t oracle_min_step(const struct oracle *oracle, uint32_t lane, uint64_t ranks);
bool oracle_may_truncate(const struct oracle *oracle, uint32_t lane, uint32_t rank,
                         uint32_t group, uint64_t row);
uint64_t oracle_lowest(const struct oracle *oracle, uint32_t lane, uint32_t rank,
                       uint32_t group);

/* ---- expectations ---- */
void expect_init(struct expect *expect);
void expect_error(struct expect *expect, int error);
void expect_maybe(struct expect *expect, int error);
bool expect_allows(const struct expect *expect, int result);

bool oracle_shares_extent(const struct oracle *oracle, const struct m_pin *pin,
                          uint32_t rank, uint32_t lane, uint32_t group);

/* Pins that the call goes over by its policy are marked revoked in `pins` when it is
 * applied. `begun` is what a success says. */
void oracle_expect_begin(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                         const struct kvw_item *items, uint32_t n_items,
                         const struct m_pin *pins, uint32_t n_pins, uint32_t policy,
                         struct expect *expect);
/* True for what is open already: the same groups, rows and epochs, in any order. */
bool oracle_is_same(const struct m_board *board, const struct kvw_item *items,
                    uint32_t n_items);
void oracle_begun(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                  const struct kvw_item *item, struct kvw_begun *begun);
void oracle_begin(struct oracle *oracle, uint32_t rank, uint32_t lane,
                  const struct kvw_item *items, uint32_t n_items, struct m_pin *pins,
                  uint32_t n_pins);
void oracle_expect_write(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                         uint32_t layer, uint64_t row_first, uint64_t n_rows,
                         bool is_gap_refused, struct expect *expect);
/* `publish`: rows of each group; NULL: all. */
void oracle_expect_commit(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                          const uint64_t *publish, struct expect *expect);
void oracle_commit(struct oracle *oracle, uint32_t rank, uint32_t lane,
                   const uint64_t *publish);
void oracle_abort(struct oracle *oracle, uint32_t rank, uint32_t lane);
void oracle_expect_step(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                        const struct m_call *call, const struct m_pin *pins,
                        uint32_t n_pins, uint32_t policy, struct expect *expect);
/* `extent` of a new kept range, as the library chose it. False: a peer chose another.
 */
bool oracle_step(struct oracle *oracle, uint32_t rank, uint32_t lane,
                 const struct m_call *call, const uint64_t *extent);
void oracle_expect_recover(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                           struct expect *expect);
void oracle_recover(struct oracle *oracle, uint32_t rank, uint32_t lane,
                    bool is_successful);
/* The end of the claim that the board shows: true if the rules allow it. */
bool oracle_see_hi(struct oracle *oracle, uint32_t rank, uint32_t lane, uint32_t group,
                   uint64_t hi);

/* ---- what is visible ---- */

/* Rows of a view at a step over the row parts of `ranks`, with those of a chunk. `ahead`:
 * rows that the window has moved on. */
uint32_t oracle_shown(const struct oracle *oracle, uint32_t lane, uint32_t layer,
                      uint64_t step, uint64_t ranks, const struct m_chunk *chunk,
                      uint64_t ahead, struct shown *shown);

/* Rows of the open chunk that count as written: those that this rank wrote in one run,
 * and those that are none of its own. */
uint64_t oracle_prefix(const struct oracle *oracle, uint32_t lane, uint32_t rank,
                       uint32_t layer);

/* ---- oracle_staged.c: open chunks as others see them ---- */

/* What a view of a set of ranks at a step shows of the chunk that follows it. */
void oracle_chunk(const struct oracle *oracle, uint32_t lane, uint32_t layer,
                  uint64_t step, uint64_t ranks, struct m_chunk *chunk);
uint64_t oracle_writes(const struct oracle *oracle, uint32_t lane, uint32_t layer,
                       uint64_t ranks);
/* True if a rank has written (or read) a pass of the chunk that follows a step. */
bool oracle_has_pass(const struct oracle *oracle, uint32_t lane, uint32_t rank,
                     uint32_t layer, uint64_t step, uint32_t pass, bool is_read);

/* Stamp of a row: what `rank` wrote; false if it never committed it. */
bool oracle_stamp(const struct oracle *oracle, uint32_t lane, uint32_t rank,
                  uint32_t layer, uint64_t row, uint64_t step, uint64_t *stamp);

#endif
