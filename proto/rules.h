/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of rings and windows: what is visible, what is overwritten, what
 * stands in the way. Pure functions of one group's numbers; PROTOCOL.md, "Rules of
 * arithmetic", has the formulas and why they are what they are. Row numbers are
 * uint64_t and never wrap in practice; a slot is a remainder, taken where memory is
 * touched.
 */
#ifndef KVW_PROTO_RULES_H
#define KVW_PROTO_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/geometry.h"
#include "proto/partition.h"

/* A kept range of a record. extent: its first row in the keep extent. */
struct kvw_kept {
    uint64_t first;
    uint64_t n; /* 0 = unused */
    uint64_t extent;
};

/* What a record says of one group. */
struct kvw_group_record {
    uint64_t rows;       /* T */
    uint64_t evicted;    /* ev */
    uint64_t generation; /* gen */
    uint64_t epoch;
    struct kvw_kept kept[KVW_KEPT_MAX]; /* ascending by first, unused ones last */
};

/** lo: lowest row of the window behind the sink when `rows` rows are committed:
 *  max(S, ev, T - (W - S)). It may be above `rows` while the sink fills. */
uint64_t rules_window_first(const struct kvw_geometry_group *group, uint64_t rows,
                            uint64_t evicted);

/** The same for a view with `n` open rows: kind `chunk` as if T were T + n, kind `row`
 * as the chunk's first query sees it. n = 0: the committed view. */
uint64_t rules_staged_first(const struct kvw_geometry_group *group, uint64_t rows,
                            uint64_t evicted, uint64_t n);

/** hi': end of the claims once rows [rows, rows + n) are claimed on top of `hi`. */
uint64_t rules_claim_end(const struct kvw_geometry_group *group, uint64_t rows,
                         uint64_t hi, uint64_t n);

/** Rows of the ring below this one are overwritten once rows up to `end` are: end - C.
 */
uint64_t rules_overwritten(uint64_t ring_rows, uint64_t end);

/* Somebody who needs rows [.., end) and, of the ring, those from `low` on. */
struct kvw_holder {
    uint64_t generation;
    uint64_t low;
    uint64_t end;
};

/** True if claiming rows from `at` on, up to `claim_end` in all, would hurt a holder.
 */
bool rules_conflict(const struct kvw_geometry_group *group, uint64_t ring_rows,
                    uint64_t generation, uint64_t at, uint64_t claim_end,
                    const struct kvw_holder *holder);

/** True if the window at `to` is whole, given the end of the highest claim of any rank.
 */
bool rules_can_truncate(const struct kvw_geometry_group *group, uint64_t ring_rows,
                        uint64_t to, uint64_t evicted, uint64_t want);

/** The lowest row that rules_can_truncate() allows (anything in the sink is, too). */
uint64_t rules_lowest(const struct kvw_geometry_group *group, uint64_t ring_rows,
                      uint64_t evicted, uint64_t want);

/** Slot of a row: the sink's own, else a remainder. */
uint64_t rules_slot(const struct kvw_geometry_group *group, uint64_t ring_rows,
                    uint64_t row);

/** Apply truncate(to) to a group's record. */
void rules_truncate(struct kvw_group_record *record, uint64_t to);

/**
 * First fit of `n` rows in the keep extent beside the ranges that a record keeps: the
 * same on every rank, since it looks at nothing else.
 *
 * @return true with *extent; false when there is no room for n rows in a row.
 */
bool rules_place_kept(const struct kvw_geometry_group *group,
                      const struct kvw_group_record *record, uint64_t n,
                      uint64_t *extent);

/* A run of rows that lies contiguous in memory. */
struct kvw_run {
    uint64_t row;
    uint64_t position;
    uint64_t slot;
    uint64_t n;
    uint32_t piece_class; /* enum kvw_run_class */
};

/* As enum kvw_piece_class of the public header. */
enum kvw_run_class {
    KVW_RUN_SINK = 1,
    KVW_RUN_KEPT = 2,
    KVW_RUN_PAST = 3,
    KVW_RUN_CURRENT = 4,
};

/* What is to be shown of one layer. */
struct kvw_showing {
    const struct kvw_geometry_group *group;
    const struct kvw_geometry_partition *partition;
    const struct kvw_group_record *record;
    uint64_t ring_rows;
    uint64_t floor;    /* of the layer */
    uint64_t open;     /* rows of the open chunk; 0: the committed view */
    uint64_t written;  /* of these, rows that the layer has so far */
    uint32_t row_part; /* of whom; UINT32_MAX: rows of all parts */
    bool is_mirrored;  /* the ring is mapped twice in a row: no run ends at its wrap,
                          past  and current rows are one run, and the keep extent comes
                          after  the second ring */
};

/**
 * The runs of a view in row order: sink, kept, past, current.
 *
 * @param runs  [out] KVW_PIECES_MAX of them.
 * @return how many.
 */
uint32_t rules_show(const struct kvw_showing *showing, struct kvw_run *runs);

/** Runs of rows [row, end), written or to be written, without class and position. Rows
 * are written through the first ring only, so is_mirrored must be false. */
uint32_t rules_runs(const struct kvw_showing *showing, uint64_t row, uint64_t end,
                    struct kvw_run *runs);

/** Position of the first row of a chunk of n rows, by the group's rule. */
uint64_t rules_chunk_position(const struct kvw_geometry_group *group,
                              const struct kvw_group_record *record, uint64_t n);

#endif
