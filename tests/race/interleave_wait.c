/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiters that sleep: a writer publishes, dies anywhere, is buried and perhaps replaced,
 * or the cache is removed. Slices never end here, so a wake-up that is lost is a sleeper
 * that sleeps for ever, and that is an error.
 */
#include "tests/race/interleave.h"

#include <errno.h>

#include "client/step.h"
#include "tests/race/scene.h"
#include "tests/race/scene_daemon.h"

enum { WAIT_GOAL = 2 };

static void wait_build(uint32_t n_readers)
{
    const struct scene_shape shape = {.window_rows = 1,
                                      .slack_chunks = 1,
                                      .n_groups = 1,
                                      .n_ranks = 1,
                                      .n_readers = n_readers,
                                      .pin_policy = KVW_PIN_WAIT,
                                      .timeout_ns = KVW_NO_TIMEOUT};
    scene_build(&shape);
}

static void wait_write(void *context)
{
    (void)context;
    struct kvw_cache *cache = scene_here.rank[0];

    scene_settle(cache, 1);
    while (lane_of(cache, 0)->record->step < WAIT_GOAL) {
        scene_must(scene_mark(cache, 7), "a step");
        scene_settle(cache, 1);
    }
}

static void wait_write_on(void *context)
{
    scene_replace_rank(0);
    wait_write(context);
}

static void wait_bury(void *context)
{
    (void)context;
    scene_bury_rank(0);
}

static void wait_remove(void *context)
{
    (void)context;
    scene_daemon_remove();
}

static bool wait_is_removed;

static void wait_wait(void *context)
{
    struct kvw_cache *cache = scene_here.reader[*(const uint32_t *)context];
    struct board_head head;

    int error = kvw_wait_step(cache, 0, 0, WAIT_GOAL, KVW_NO_TIMEOUT);
    if (error == -EOWNERDEAD && explore_deaths() > 0)
        return;
    if (error == -KVW_EGONE && wait_is_removed)
        return;
    scene_must(error, "wait");
    scene_must(board_read_head(cache, 0, 0, &head), "the newest record");
    if (head.step < WAIT_GOAL)
        explore_fail("a wait for step %u ended at %u", WAIT_GOAL, (unsigned)head.step);
}

static void wait_add(uint32_t n_waiters, explore_fn *successor)
{
    static const uint32_t number[] = {0, 1};
    const bool is_mortal = successor != NULL;

    explore_add(&(struct explore_task){.name = "writer",
                                       .run = wait_write,
                                       .is_mortal = is_mortal,
                                       .successor = is_mortal ? 1 : EXPLORE_NOBODY});
    if (is_mortal)
        explore_add(&(struct explore_task){.name = successor == wait_bury ? "daemon"
                                                                          : "writer2",
                                           .run = successor,
                                           .successor = EXPLORE_NOBODY,
                                           .is_waiting = true});
    for (uint32_t i = 0; i < n_waiters; i++)
        explore_add(&(struct explore_task){.name = i == 0 ? "waiter" : "waiterB",
                                           .run = wait_wait,
                                           .context = (void *)(uintptr_t)&number[i],
                                           .family = 1 + i,
                                           .is_mortal = i == 1,
                                           .successor = EXPLORE_NOBODY});
}

/* The seat is free at first: no owner has died, and none may be called dead. */
static void wait_enter(void *context)
{
    scene_enter_rank(0);
    wait_write(context);
}

static void wait_free_setup(void)
{
    static const uint32_t number = 0;

    wait_is_removed = false;
    wait_build(1);
    scene_daemon_free(0, 0);
    explore_add(&(struct explore_task){
        .name = "writer", .run = wait_enter, .successor = EXPLORE_NOBODY});
    explore_add(&(struct explore_task){.name = "waiter",
                                       .run = wait_wait,
                                       .context = (void *)(uintptr_t)&number,
                                       .family = 1,
                                       .successor = EXPLORE_NOBODY});
}

static void wait_setup(void)
{
    wait_is_removed = false;
    wait_build(1);
    wait_add(1, wait_bury);
}

static void wait_two_setup(void)
{
    wait_is_removed = false;
    wait_build(2);
    wait_add(2, wait_bury);
}

static void wait_replaced_setup(void)
{
    wait_is_removed = false;
    wait_build(1);
    wait_add(1, wait_write_on);
}

static void wait_removed_setup(void)
{
    wait_is_removed = true;
    wait_build(1);
    explore_add(&(struct explore_task){
        .name = "daemon", .run = wait_remove, .successor = EXPLORE_NOBODY});
    static const uint32_t number = 0;
    explore_add(&(struct explore_task){.name = "waiter",
                                       .run = wait_wait,
                                       .context = (void *)(uintptr_t)&number,
                                       .family = 1,
                                       .successor = EXPLORE_NOBODY});
}

const struct interleave_case interleave_wait[] = {
    {{"wait", wait_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, ANY, 1, 0, 0, 0},
      {EXPLORE_TSO, ANY, 1, 1, 0, 0},
      {EXPLORE_PSO, ANY, 1, 1, 0, 0},
      {EXPLORE_PSO, ANY, 1, 2, 0, DEEP},
      {EXPLORE_SC, 3, 1, 0, 1, 0},
      {EXPLORE_SC, ANY, 1, 0, 1, DEEP}}},
    {{"wait-two", wait_two_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, 2, 2, 0, 0, 0},
      {EXPLORE_PSO, 2, 0, 1, 0, 0},
      {EXPLORE_SC, ANY, 2, 0, 0, DEEP},
      {EXPLORE_PSO, 3, 1, 1, 0, DEEP}}},
    {{"wait-replaced", wait_replaced_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, 3, 1, 0, 0, 0},
      {EXPLORE_PSO, 2, 1, 1, 0, 0},
      {EXPLORE_SC, ANY, 1, 0, 0, DEEP},
      {EXPLORE_PSO, ANY, 1, 1, 0, DEEP}}},
    {{"wait-free", wait_free_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, ANY, 0, 0, 0, 0},
      {EXPLORE_PSO, 2, 0, 1, 0, 0},
      {EXPLORE_SC, 3, 0, 0, 1, 0},
      {EXPLORE_PSO, ANY, 0, 1, 0, DEEP},
      {EXPLORE_SC, ANY, 0, 0, 1, DEEP}}},
    {{"wait-removed", wait_removed_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, ANY, 0, 0, 0, 0}, {EXPLORE_PSO, ANY, 0, 2, 0, 0}}},
    {{NULL, NULL, NULL, NULL, NULL}, {{EXPLORE_SC, 0, 0, 0, 0, 0}}},
};
