/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A board against itself: its newest record, the records before it as far back as they are
 * kept, and the words of the open chunk. All that is compared with a record changes only
 * with the version, or in a way that holds before and after.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "client/verify.h"

/* The first contradiction of a board, in words. */
struct contradiction {
    bool is_found;
    char text[256];
};

#define CONTRADICT(contradiction, ...)                                                 \
    do {                                                                               \
        if (!(contradiction)->is_found)                                                \
            snprintf((contradiction)->text, sizeof(contradiction)->text, __VA_ARGS__); \
        (contradiction)->is_found = true;                                              \
    } while (0)

/* Beside what every reader checks of a record before it is used (board.c). */
static void check_record(const struct kvw_cache *cache, const struct record *record,
                         struct contradiction *found)
{
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        const struct kvw_geometry_group *group = &cache->geometry.group[g];
        const struct kvw_group_record *of = &record->group[g];

        if (of->generation == 0)
            CONTRADICT(found, "step %" PRIu64 ", group '%s': generation 0",
                       record->step, group->name);
        if (group->policy == KVW_GEOMETRY_REFUSE && of->rows > group->window_rows)
            CONTRADICT(found,
                       "step %" PRIu64 ", group '%s': rows committed: need at most "
                       "%" PRIu64 ", have %" PRIu64,
                       record->step, group->name, group->window_rows, of->rows);
        for (uint32_t l = 0; l < group->n_layers; l++) {
            const uint64_t floor = record->floor[group->layer_first + l];
            if (floor > of->rows)
                CONTRADICT(found,
                           "step %" PRIu64 ", group '%s', layer %u: floor: need at "
                           "most the %" PRIu64 " rows committed, have %" PRIu64,
                           record->step, group->name, l, of->rows, floor);
        }
    }
}

static void check_claims(const struct kvw_cache *cache, struct kvw_board *board,
                         const struct record *record, struct contradiction *found)
{
    const uint64_t ask = load_relaxed(&board->ask);

    if (ask != record->era && ask != record->era + 1)
        CONTRADICT(found,
                   "recovery promise: need era %" PRIu64 " or the next, have %" PRIu64,
                   record->era, ask);
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        const struct kvw_geometry_group *group = &cache->geometry.group[g];
        struct kvw_board_claim *claim = board_claim(cache, board, g);
        const uint64_t hi = load_relaxed(&claim->hi);
        const uint64_t open = load_relaxed(&claim->open);

        if (hi < record->group[g].rows)
            CONTRADICT(
                found,
                "group '%s': rows declared overwritten: need at least the %" PRIu64
                " committed, have %" PRIu64,
                group->name, record->group[g].rows, hi);
        if (open > group->chunk_rows_max)
            CONTRADICT(found,
                       "group '%s': rows of the open chunk: need at most %" PRIu64
                       ", have %" PRIu64,
                       group->name, group->chunk_rows_max, open);
        for (uint32_t l = 0; l < group->n_layers; l++) {
            const uint64_t staged =
                load_relaxed(board_staged(cache, board, group->layer_first + l)) &
                UINT32_MAX;
            if (staged > group->chunk_rows_max)
                CONTRADICT(found,
                           "group '%s', layer %u: rows written of the open chunk: need "
                           "at most %" PRIu64 ", have %" PRIu64,
                           group->name, l, group->chunk_rows_max, staged);
        }
    }
}

/* A record and the one that was published after it. */
static void check_order(const struct record *before, const struct record *after,
                        struct contradiction *found)
{
    const bool is_recovery = after->era == before->era + 1;

    if (after->era != before->era && !is_recovery)
        CONTRADICT(found, "era %" PRIu64 " follows %" PRIu64, after->era, before->era);
    else if (is_recovery ? after->step > before->step : after->step != before->step + 1)
        CONTRADICT(found,
                   "era %" PRIu64 ": step %" PRIu64 " follows %" PRIu64
                   " of era %" PRIu64,
                   after->era, after->step, before->step, before->era);
    if (after->rewinds < before->rewinds)
        CONTRADICT(found, "step %" PRIu64 ": its count of rewinds went down",
                   after->step);
}

/* 0 with or without a finding; -EAGAIN: somebody published meanwhile. */
static int look(struct verify *verify, uint32_t rank, uint32_t lane,
                struct contradiction *found)
{
    const struct kvw_cache *cache = verify->cache;
    struct kvw_board *board = board_of(cache, rank, lane);
    struct record *after = verify->record;
    struct record *before = verify->before;
    struct board_head newest;

    int error = board_read_record(cache, rank, lane, 0, &newest, after);
    if (error == 0) {
        check_record(cache, after, found);
        check_claims(cache, board, after, found);
    }
    for (uint64_t back = 1;
         back <= KVW_RECORDS - 2 && error == 0 && back < newest.version; back++) {
        struct board_head head;
        error =
            board_read_record(cache, rank, lane, newest.version - back, &head, before);
        if (error != 0)
            break;
        check_record(cache, before, found);
        check_order(before, after, found);
        struct record *swapped = before;
        before = after;
        after = swapped;
    }
    if (error == -EAGAIN)
        return error;
    if (error != 0) {
        CONTRADICT(found, "a record is none: no version, no magic number, or rows that "
                          "its group cannot hold");
        return 0; /* there is no version to compare with, or one that stays */
    }
    fence_acquire(); /* S2, pairs with P1: words before the second look */
    return load_relaxed(&board->version) == newest.version ? 0 : -EAGAIN;
}

void verify_board(struct verify *verify, uint32_t rank, uint32_t lane)
{
    verify->counts.n_boards++;
    for (uint32_t tries = 0; tries < KVW_RETRIES_MAX; tries++) {
        struct contradiction found = {0};
        if (look(verify, rank, lane, &found) != 0)
            continue;
        if (found.is_found)
            verify_tell(verify, KVW_DAMAGE_BOARD, rank, lane,
                        "board of rank %u, lane %u: %s", rank, lane, found.text);
        return;
    }
    verify->counts.n_boards_skipped++;
}
