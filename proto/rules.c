/* SPDX-License-Identifier: Apache-2.0 */
/* See rules.h. Nothing here keeps state or can fail. */
#include "proto/rules.h"

#include <stddef.h>

#include "proto/base/align.h"

uint64_t rules_window_first(const struct kvw_geometry_group *group, uint64_t rows,
                            uint64_t evicted)
{
    uint64_t behind_sink = group->window_rows - group->sink_rows;
    uint64_t first = rows > behind_sink ? rows - behind_sink : 0;

    return max_u64(max_u64(group->sink_rows, evicted), first);
}

uint64_t rules_staged_first(const struct kvw_geometry_group *group, uint64_t rows,
                            uint64_t evicted, uint64_t n)
{
    if (n > 0)
        rows += group->kind == KVW_GEOMETRY_ROW ? 1 : n;
    return rules_window_first(group, rows, evicted);
}

uint64_t rules_claim_end(const struct kvw_geometry_group *group, uint64_t rows,
                         uint64_t hi, uint64_t n)
{
    /* Up to the sink's end no row of the ring is alive, so what was claimed before (in
     * an earlier generation, or before a truncate into the sink) is void. */
    if (rows <= group->sink_rows)
        return rows + n;
    return max_u64(hi, rows + n);
}

uint64_t rules_overwritten(uint64_t ring_rows, uint64_t end)
{
    return end > ring_rows ? end - ring_rows : 0;
}

bool rules_conflict(const struct kvw_geometry_group *group, uint64_t ring_rows,
                    uint64_t generation, uint64_t at, uint64_t claim_end,
                    const struct kvw_holder *holder)
{
    if (holder->generation != generation || holder->end > at)
        return true;
    return holder->end > group->sink_rows &&
           holder->low < rules_overwritten(ring_rows, claim_end);
}

bool rules_can_truncate(const struct kvw_geometry_group *group, uint64_t ring_rows,
                        uint64_t to, uint64_t evicted, uint64_t want)
{
    if (to <= group->sink_rows)
        return true;
    return rules_window_first(group, to, min_u64(evicted, to)) >=
           rules_overwritten(ring_rows, want);
}

uint64_t rules_lowest(const struct kvw_geometry_group *group, uint64_t ring_rows,
                      uint64_t evicted, uint64_t want)
{
    uint64_t overwritten = rules_overwritten(ring_rows, want);

    if (overwritten <= group->sink_rows)
        return 0;
    if (evicted >= overwritten)
        return overwritten;
    return overwritten + (group->window_rows - group->sink_rows);
}

uint64_t rules_slot(const struct kvw_geometry_group *group, uint64_t ring_rows,
                    uint64_t row)
{
    if (row < group->sink_rows)
        return row;
    return group->sink_rows + (row - group->sink_rows) % ring_rows;
}

void rules_truncate(struct kvw_group_record *record, uint64_t to)
{
    record->rows = to;
    record->evicted = min_u64(record->evicted, to);
    for (uint32_t i = 0; i < KVW_KEPT_MAX; i++) {
        struct kvw_kept *kept = &record->kept[i];
        if (kept->n == 0 || kept->first + kept->n <= to)
            continue;
        if (kept->first < to)
            kept->n = to - kept->first;
        else
            *kept = (struct kvw_kept){0}; /* ascending: those that follow go as well */
    }
}

bool rules_place_kept(const struct kvw_geometry_group *group,
                      const struct kvw_group_record *record, uint64_t n,
                      uint64_t *extent)
{
    uint64_t candidate = 0;

    /* Each pass either moves behind a range in the way or is done: at most
     * KVW_KEPT_MAX + 1 passes. */
    for (uint32_t pass = 0; pass <= KVW_KEPT_MAX; pass++) {
        uint64_t next = candidate;
        for (uint32_t i = 0; i < KVW_KEPT_MAX; i++) {
            const struct kvw_kept *kept = &record->kept[i];
            if (kept->n > 0 && kept->extent < candidate + n &&
                candidate < kept->extent + kept->n)
                next = max_u64(next, kept->extent + kept->n);
        }
        if (candidate + n > group->keep_rows)
            return false;
        if (next == candidate) {
            *extent = candidate;
            return true;
        }
        candidate = next;
    }
    return false;
}

/* Runs under construction. */
struct builder {
    const struct kvw_showing *showing;
    struct kvw_run *runs;
    uint32_t n_runs;
};

/* Where a row lies and how many rows from it on lie in a row: in the sink, in the ring
 * up to its wrap, or in the extent of a kept range. */
static uint64_t place_row(const struct kvw_showing *showing,
                          const struct kvw_kept *kept, uint64_t row, uint64_t *in_a_row)
{
    const uint64_t sink_rows = showing->group->sink_rows;
    const uint64_t rings = showing->is_mirrored ? 2 : 1;
    const uint64_t ring_end = sink_rows + rings * showing->ring_rows;

    if (kept != NULL) {
        *in_a_row = kept->first + kept->n - row;
        return ring_end + kept->extent + (row - kept->first);
    }
    uint64_t slot = rules_slot(showing->group, showing->ring_rows, row);
    *in_a_row = row < sink_rows ? sink_rows - row : ring_end - slot;
    return slot;
}

/* Rows of a part (in the extent of `kept` if given), cut where their slots stop
 * following each other. */
static void add_rows(struct builder *builder, const struct kvw_kept *kept, uint64_t row,
                     uint64_t end, uint64_t position, uint32_t piece_class)
{
    const struct kvw_showing *showing = builder->showing;
    const uint64_t start = row;

    while (row < end) {
        uint64_t run_end = end;
        if (showing->row_part != UINT32_MAX) {
            row = partition_row_next(showing->partition, showing->row_part, row);
            if (row >= end)
                return;
            run_end = min_u64(end, partition_row_run_end(showing->partition, row));
        }
        uint64_t in_a_row;
        uint64_t slot = place_row(showing, kept, row, &in_a_row);
        run_end = min_u64(run_end, row + in_a_row);
        KVW_CHECK(builder->n_runs < KVW_PIECES_MAX); /* geometry_check counted them */
        builder->runs[builder->n_runs++] =
            (struct kvw_run){.row = row,
                             .position = position + (row - start),
                             .slot = slot,
                             .n = run_end - row,
                             .piece_class = piece_class};
        row = run_end;
    }
}

/*
 * Lowest row of the window behind the sink as the last query of an open chunk sees it.
 * For kind `row` it may lie above that of the first query, where the view starts. Kept
 * rows below it are shown as kept, so that no query loses them.
 */
static uint64_t last_query_first(const struct kvw_geometry_group *group,
                                 const struct kvw_group_record *record, uint64_t n)
{
    return rules_window_first(group, record->rows + n, record->evicted);
}

/* Rows of a kept range that are shown as kept: those below `first`. */
static uint64_t kept_shown(const struct kvw_kept *kept, uint64_t first)
{
    if (kept->n == 0 || kept->first >= first)
        return 0;
    return min_u64(kept->n, first - kept->first);
}

/* Rows of the sink and kept rows that a view with n open rows shows. */
static uint64_t always_shown(const struct kvw_geometry_group *group,
                             const struct kvw_group_record *record, uint64_t n)
{
    const uint64_t last = last_query_first(group, record, n);
    uint64_t rows = min_u64(group->sink_rows, record->rows);

    for (uint32_t i = 0; i < KVW_KEPT_MAX && record->kept[i].n > 0; i++)
        rows += kept_shown(&record->kept[i], last);
    return rows;
}

uint64_t rules_chunk_position(const struct kvw_geometry_group *group,
                              const struct kvw_group_record *record, uint64_t n)
{
    if (group->positions == KVW_GEOMETRY_ABSOLUTE)
        return record->rows;
    uint64_t first = rules_staged_first(group, record->rows, record->evicted, n);
    return always_shown(group, record, n) +
           (record->rows > first ? record->rows - first : 0);
}

/* Positions of a view. Relative ones hold for the last query: sink and kept rows are
 * moved up by the rows between the first query's window and the last one's. */
struct positions {
    bool is_absolute;
    uint64_t shift;      /* of sink and kept rows */
    uint64_t past_first; /* the row ... */
    uint64_t past_index; /* ... that has this index */
};

static uint64_t past_position(const struct positions *positions, uint64_t row)
{
    if (positions->is_absolute)
        return row;
    return positions->past_index + (row - positions->past_first);
}

static void show_sink_and_kept(struct builder *builder,
                               const struct positions *positions, uint64_t last)
{
    const struct kvw_showing *showing = builder->showing;
    const struct kvw_group_record *record = showing->record;
    const uint64_t sink_end = min_u64(showing->group->sink_rows, record->rows);
    uint64_t index = positions->shift;

    add_rows(builder, NULL, showing->floor, sink_end,
             positions->is_absolute ? showing->floor : index + showing->floor,
             KVW_RUN_SINK);
    index += sink_end;
    for (uint32_t i = 0; i < KVW_KEPT_MAX && record->kept[i].n > 0; i++) {
        const struct kvw_kept *kept = &record->kept[i];
        const uint64_t n = kept_shown(kept, last);
        const uint64_t row = max_u64(kept->first, showing->floor);
        add_rows(builder, kept, row, kept->first + n,
                 positions->is_absolute ? row : index + (row - kept->first),
                 KVW_RUN_KEPT);
        index += n;
    }
}

/* The window's committed rows, without those that are shown as kept, and then the open
 * chunk's: in a mirrored ring both are one run. */
static void show_past_and_current(struct builder *builder,
                                  const struct positions *positions, uint64_t first,
                                  uint64_t last)
{
    const struct kvw_showing *showing = builder->showing;
    const struct kvw_group_record *record = showing->record;
    const uint64_t end = record->rows + showing->written;
    uint64_t row = max_u64(first, builder->showing->floor);

    for (uint32_t i = 0; i < KVW_KEPT_MAX && record->kept[i].n > 0; i++) {
        const struct kvw_kept *kept = &record->kept[i];
        const uint64_t n = kept_shown(kept, last);
        if (n == 0)
            continue;
        add_rows(builder, NULL, row, min_u64(kept->first, record->rows),
                 past_position(positions, row), KVW_RUN_PAST);
        row = max_u64(row, kept->first + n);
    }
    const uint64_t past_end =
        showing->is_mirrored && row < record->rows ? end : record->rows;
    add_rows(builder, NULL, row, past_end, past_position(positions, row), KVW_RUN_PAST);
    row = max_u64(past_end, showing->floor);
    add_rows(builder, NULL, row, end, past_position(positions, row), KVW_RUN_CURRENT);
}

uint32_t rules_show(const struct kvw_showing *showing, struct kvw_run *runs)
{
    struct builder builder = {.showing = showing, .runs = runs};
    const struct kvw_geometry_group *group = showing->group;
    const struct kvw_group_record *record = showing->record;
    const uint64_t first =
        rules_staged_first(group, record->rows, record->evicted, showing->open);
    const uint64_t last = last_query_first(group, record, showing->open);
    const struct positions positions = {
        .is_absolute = group->positions == KVW_GEOMETRY_ABSOLUTE,
        .shift = last - first,
        .past_first = min_u64(first, record->rows),
        .past_index = always_shown(group, record, showing->open),
    };

    show_sink_and_kept(&builder, &positions, last);
    show_past_and_current(&builder, &positions, first, last);
    return builder.n_runs;
}

uint32_t rules_runs(const struct kvw_showing *showing, uint64_t row, uint64_t end,
                    struct kvw_run *runs)
{
    struct builder builder = {.showing = showing, .runs = runs};

    add_rows(&builder, NULL, row, end, row, KVW_RUN_CURRENT);
    return builder.n_runs;
}
