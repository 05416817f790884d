/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open chunk that is written twice and published, while a reader looks at it: what its
 * release calls clean is one whole pass.
 */
#include "tests/race/interleave.h"

#include <errno.h>

#include "client/step.h"
#include "tests/race/scene.h"

enum { STAGED_FIRST = 2, STAGED_PASSES = 2 };

static void staged_write(void *context)
{
    (void)context;
    struct kvw_cache *cache = scene_here.rank[0];
    const uint64_t row = lane_of(cache, 0)->record->group[0].rows;
    const struct kvw_item chunk = {.row = row, .n = 1};

    scene_settle(cache, 1);
    scene_must(kvw_begin(cache, 0, &chunk, 1, NULL), "begin");
    for (uint64_t pass = 1; pass <= STAGED_PASSES; pass++)
        scene_must(scene_write(cache, 0, scene_stamp(pass, row)), "update");
    scene_must(kvw_commit(cache, 0, NULL, 0), "commit");
}

static void staged_write_on(void *context)
{
    scene_replace_rank(0);
    if (scene_step_of(scene_here.rank[0]) == STAGED_FIRST)
        staged_write(context);
}

static void staged_read(void *context)
{
    struct kvw_cache *cache = scene_here.reader[0];
    struct kvw_view view;

    (void)context;
    int error =
        kvw_get(cache, 0, (struct kvw_layer){0}, KVW_STAGED | KVW_UNPINNED, &view);
    if (error == -EAGAIN || error == -EOWNERDEAD)
        return;
    scene_must(error, "get");
    const uint32_t last = view.n_pieces - 1;
    const uint64_t row = view.piece[last].row + view.piece[last].n_rows - 1;
    const uint64_t first_look = scene_read(&view, last, row, 0);
    const uint64_t second_look = scene_read(&view, last, row, 0);
    error = kvw_release(cache, &view);
    if (error == -KVW_EOVERRUN)
        return;
    scene_must(error, "release");
    if (first_look != second_look || (uint32_t)first_look != row + 1)
        explore_fail("row %u changed under a staged view, and release says 0",
                     (unsigned)row);
}

static void staged_setup(void)
{
    scene_build_ranks(1, 1, 1, STAGED_FIRST);
    scene_add_rank(0, staged_write, staged_write_on);
    explore_add(&(struct explore_task){.name = "reader",
                                       .run = staged_read,
                                       .family = 1,
                                       .successor = EXPLORE_NOBODY});
}

/* A waiter for a pass sleeps without slices: a wake-up that is lost is an error. */
static void exchange_write(void *context)
{
    (void)context;
    struct kvw_cache *cache = scene_here.rank[0];
    const uint64_t row = lane_of(cache, 0)->record->group[0].rows;
    const struct kvw_item chunk = {.row = row, .n = 1};

    scene_must(kvw_begin(cache, 0, &chunk, 1, NULL), "begin");
    for (uint64_t pass = 1; pass <= STAGED_PASSES; pass++)
        scene_must(scene_write(cache, 0, scene_stamp(pass, row)), "update");
}

static void exchange_wait(void *context)
{
    struct kvw_cache *cache = scene_here.reader[0];

    (void)context;
    for (uint32_t pass = 1; pass <= STAGED_PASSES; pass++)
        scene_must(
            kvw_wait_written(cache, 0, 0, (struct kvw_layer){0}, pass, KVW_NO_TIMEOUT),
            "wait for a pass");
}

static void exchange_setup(void)
{
    scene_build_ranks(1, 1, 1, STAGED_FIRST);
    explore_add(&(struct explore_task){
        .name = "writer", .run = exchange_write, .successor = EXPLORE_NOBODY});
    explore_add(&(struct explore_task){.name = "waiter",
                                       .run = exchange_wait,
                                       .family = 1,
                                       .successor = EXPLORE_NOBODY});
}

const struct interleave_case interleave_staged[] = {
    {{"exchange", exchange_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, 3, 0, 0, 0, 0},
      {EXPLORE_TSO, 2, 0, 1, 0, 0},
      {EXPLORE_PSO, 2, 0, 1, 0, 0},
      {EXPLORE_SC, ANY, 0, 0, 0, DEEP},
      {EXPLORE_PSO, 3, 0, 2, 0, DEEP}}},
    {{"staged", staged_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, 3, 0, 0, 0, 0},
      {EXPLORE_SC, 1, 1, 0, 0, 0},
      {EXPLORE_PSO, 1, 0, 1, 0, 0},
      {EXPLORE_SC, 2, 1, 0, 0, DEEP},
      {EXPLORE_PSO, 2, 0, 1, 0, DEEP},
      {EXPLORE_SC, 2, 0, 0, 1, 0},
      {EXPLORE_SC, ANY, 1, 0, 0, DEEP},
      {EXPLORE_PSO, ANY, 0, 1, 0, DEEP}}},
    {{NULL, NULL, NULL, NULL, NULL}, {{EXPLORE_SC, 0, 0, 0, 0, 0}}},
};
