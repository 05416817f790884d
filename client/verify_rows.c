/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows against their checksums, while their writer may go on. Nothing is held: a row that
 * differs is judged as kvw_release() judges an unpinned view.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "client/checksum.h"
#include "client/cut.h"
#include "client/verify.h"

enum { ROW_TRIES_MAX = 8 }; /* looks at a layer whose rank goes back meanwhile */

/* Rows of one rank, lane and layer, as the rank published them last. */
struct looking {
    struct verify *verify;
    uint32_t rank;
    uint32_t layer;
    struct cut_of cut_of;
    struct cut cut;
    struct checksum_of of;
    struct kvw_damage found; /* rows that differ, not yet told; n_rows = 0: none */
};

enum verdict { ROW_DAMAGED, ROW_OVERWRITTEN, ROWS_GONE };

/* What to think of a row that differs: as kvw_release() would. */
static enum verdict judge(const struct looking *looking, const struct kvw_run *run,
                          uint64_t row)
{
    const struct kvw_cache *cache = looking->verify->cache;
    const uint32_t g = looking->of.group;
    struct kvw_board *board = board_of(cache, looking->rank, looking->of.lane);
    struct board_head head;

    fence_acquire(); /* R1, pairs with B3 and X1 */
    /* R2, pairs with P3. */
    const uint64_t hi = load_acquire(&board_claim(cache, board, g)->hi);
    if (board_read_head(cache, looking->rank, looking->of.lane, &head) != 0 ||
        head.rewinds != looking->cut.rewinds)
        return ROWS_GONE;
    if (run->piece_class == KVW_RUN_PAST &&
        row < rules_overwritten(cache->layout.group[g].ring_rows, hi))
        return ROW_OVERWRITTEN;
    return ROW_DAMAGED;
}

static void tell_rows(struct looking *looking)
{
    const struct kvw_geometry *geometry = &looking->verify->cache->geometry;
    const struct kvw_geometry_group *group = &geometry->group[looking->of.group];
    struct kvw_damage *found = &looking->found;
    char text[512];

    if (found->n_rows == 0)
        return;
    snprintf(
        text, sizeof text,
        "rank %u, lane %u, group '%s', layer %u (model layer %u), plane '%s', head "
        "%u: rows %" PRIu64 " to %" PRIu64 " are not what was committed",
        found->rank, found->lane, group->name, looking->of.in_group,
        geometry->model_layer[found->layer], group->plane[found->plane].name,
        found->head, found->row, found->row + found->n_rows - 1);
    found->text = text;
    verify_report(looking->verify, found);
    found->text = NULL;
    found->n_rows = 0;
}

static void note_row(struct looking *looking, uint64_t row)
{
    struct kvw_damage *found = &looking->found;

    looking->verify->counts.n_rows_damaged++;
    if (found->n_rows > 0 && row == found->row + found->n_rows) {
        found->n_rows++;
        return;
    }
    tell_rows(looking);
    *found = (struct kvw_damage){
        .kind = KVW_DAMAGE_ROWS,
        .rank = looking->rank,
        .lane = looking->of.lane,
        .layer = looking->layer,
        .plane = looking->of.plane,
        .head = looking->of.head,
        .row = row,
        .n_rows = 1,
    };
}

/* A run of one head. @return false if its rank went back meanwhile. */
static bool check_run(struct looking *looking, const struct kvw_run *run)
{
    struct kvw_verified *counts = &looking->verify->counts;
    uint64_t at = 0;

    for (;;) {
        const uint64_t n_right = checksum_compare(looking->verify->cache, &looking->of,
                                                  run->slot + at, run->n - at);
        counts->n_rows += n_right;
        at += n_right;
        if (at == run->n)
            break;
        switch (judge(looking, run, run->row + at)) {
        case ROWS_GONE:
            return false;
        case ROW_OVERWRITTEN:
            counts->n_rows_skipped++;
            break;
        case ROW_DAMAGED:
            note_row(looking, run->row + at);
            break;
        }
        at++;
    }
    return true;
}

/* Each plane and head in turn. @return false as check_run(). */
static bool check_runs(struct looking *looking, const struct kvw_run *runs,
                       uint32_t n_runs)
{
    const struct kvw_geometry *geometry = &looking->verify->cache->geometry;
    const struct kvw_geometry_group *group = &geometry->group[looking->of.group];
    const struct kvw_interval heads =
        partition_heads(geometry, looking->of.group, looking->rank);

    for (looking->of.plane = 0; looking->of.plane < group->n_planes;
         looking->of.plane++) {
        for (looking->of.head = heads.begin; looking->of.head < heads.end;
             looking->of.head++) {
            bool is_there = true;
            for (uint32_t r = 0; r < n_runs && is_there; r++)
                is_there = check_run(looking, &runs[r]);
            tell_rows(looking);
            if (!is_there)
                return false;
        }
    }
    return true;
}

/* Where a rank goes back (truncate, reset) in the middle, its rows are looked at anew. */
static void check_rows(struct verify *verify, uint32_t rank, uint32_t lane,
                       uint32_t layer)
{
    const struct kvw_cache *cache = verify->cache;
    const struct kvw_geometry *geometry = &cache->geometry;
    const uint32_t g = cache->layers[layer].group;
    struct looking looking = {
        .verify = verify,
        .rank = rank,
        .layer = layer,
        .cut_of = {.lane = lane,
                   .group = g,
                   .layer = layer,
                   .ranks = 1ull << rank,
                   .is_here = true},
        .of = {.group = g, .in_group = cache->layers[layer].in_group, .lane = lane},
    };
    const struct kvw_showing showing = {
        .group = &geometry->group[g],
        .partition = &geometry->partition,
        .record = &looking.cut.group,
        .ring_rows = cache->layout.group[g].ring_rows,
        .row_part = geometry->partition.row_parts > 1
                        ? partition_place(geometry, rank).row_part
                        : UINT32_MAX,
    };
    const struct kvw_verified before = verify->counts;

    for (uint32_t tries = 0; tries < ROW_TRIES_MAX; tries++) {
        struct kvw_showing shown = showing;
        struct kvw_run runs[KVW_PIECES_MAX];

        verify->counts.n_rows = before.n_rows;
        if (cut_take(cache, &looking.cut_of, &looking.cut) != 0)
            return; /* wiped, which is told already, or too fast */
        shown.floor = looking.cut.floor;
        if (check_runs(&looking, runs, rules_show(&shown, runs)))
            return;
    }
    verify->counts.n_rows_skipped +=
        looking.cut.group.rows * geometry->group[g].n_planes;
}

void verify_rows(struct verify *verify, uint32_t rank)
{
    const struct kvw_cache *cache = verify->cache;
    const struct kvw_interval lanes = partition_lanes(&cache->geometry, rank);

    for (uint32_t lane = lanes.begin; lane < lanes.end; lane++) {
        for (uint32_t layer = 0; layer < cache->geometry.n_layers; layer++) {
            if ((cache->layers[layer].ranks >> rank & 1) != 0)
                check_rows(verify, rank, lane, layer);
        }
    }
}
