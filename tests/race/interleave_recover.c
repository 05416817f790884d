/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that come back to one step. */
#include "tests/race/interleave.h"

#include <errno.h>

#include "client/step.h"
#include "tests/race/scene.h"

/* ----------------------------------------------------------------- recover ----------
 * Ranks commit at their own pace; one may die anywhere. Then all recover, whoever comes
 * after a dead one too, and go on to the same step. Rows say in which era they were
 * committed: at the end every rank must have the same.
 */

enum { RECOVER_GOAL = 3, RECOVER_ERAS = 8 };

static uint64_t recovered_to[RECOVER_ERAS]; /* step + 1, by era; 0: nobody yet */

static void recover_check(const struct kvw_cache *cache, uint64_t step)
{
    const uint64_t era = lane_of(cache, 0)->record->era;

    if (era >= RECOVER_ERAS)
        explore_fail("recovered again and again");
    if (recovered_to[era] != 0 && recovered_to[era] != step + 1)
        explore_fail("rank %u recovered to step %u in era %u, another to %u",
                     cache->rank, (unsigned)step, (unsigned)era,
                     (unsigned)recovered_to[era] - 1);
    recovered_to[era] = step + 1;
}

static uint64_t recover_ghost(void)
{
    uint64_t digest = 0;

    for (uint32_t era = 0; era < RECOVER_ERAS; era++)
        digest = explore_mix(digest, recovered_to[era]);
    return digest;
}

static void recover_start(void)
{
    for (uint32_t era = 0; era < RECOVER_ERAS; era++)
        recovered_to[era] = 0;
}

/* What an engine does when a rank is missing: recover and look again. */
static bool is_about_a_rank(int error)
{
    return error == -EOWNERDEAD || error == -ESTALE || error == -ETIMEDOUT ||
           error == -KVW_EDIVERGED;
}

/* The newest record in memory, with no operation that the explorer sees. */
static uint64_t peek_era(uint32_t rank)
{
    const struct scene *here = &scene_here;
    const char *board =
        (const char *)layout_board(here->control, &here->layout, 1, rank, 0);
    const uint64_t version = *(const uint64_t *)(const void *)board;
    const char *record = board + here->layout.records_offset +
                         version % KVW_RECORDS * here->layout.record_bytes;
    return ((const uint64_t *)(const void *)record)[KVW_RECORD_WORD_ERA];
}

static int recover_step(struct kvw_cache *cache)
{
    const uint64_t era = lane_of(cache, 0)->record->era;
    const uint64_t row = lane_of(cache, 0)->record->group[0].rows;
    const struct kvw_item chunk = {.row = row, .n = 1};

    int error = kvw_begin(cache, 0, &chunk, 1, NULL);
    if (error != 0)
        return error;
    for (uint32_t rank = 0; rank < scene_here.shape.n_ranks; rank++) {
        if (peek_era(rank) < era)
            explore_fail("rank %u began in era %u while rank %u is in era %u",
                         cache->rank, (unsigned)era, rank, (unsigned)peek_era(rank));
    }
    scene_must(scene_write(cache, 0, scene_stamp(era, row)), "update");
    if (scene_step_of(cache) + 1 == RECOVER_GOAL)
        explore_immortal();
    return kvw_commit(cache, 0, NULL, 0);
}

static void wait_for_successors(void)
{
    for (uint32_t rank = 0; rank < scene_here.shape.n_ranks; rank++) {
        struct kvw_seat *seat =
            layout_seat(scene_here.control, &scene_here.layout, rank);
        while (load_relaxed(&seat->state) == KVW_SEAT_DEAD)
            (void)shim_nanosleep(NULL, NULL);
    }
}

/* Recover, and on to the goal; again when somebody else is missing. */
static void recover_all(uint32_t rank)
{
    for (;;) {
        struct kvw_cache *cache = scene_here.rank[rank];
        uint64_t step;
        scene_settle(cache, 5);
        int error = kvw_recover(cache, 0, KVW_NO_TIMEOUT, &step);
        if (error == 0)
            recover_check(cache, step);
        scene_settle(cache, explore_mix(6, (uint64_t)error));
        while (error == 0 && scene_step_of(cache) < RECOVER_GOAL) {
            error = recover_step(cache);
            scene_settle(cache, explore_mix(7, (uint64_t)error));
        }
        if (error == 0)
            error = kvw_wait_step(cache, 0, KVW_ALL_RANKS, RECOVER_GOAL, 50000000);
        if (error == 0)
            return;
        if (!is_about_a_rank(error))
            scene_must(error, "on after a recovery");
        wait_for_successors();
    }
}

static void recover_work(uint32_t rank, uint64_t steps)
{
    struct kvw_cache *cache = scene_here.rank[rank];

    scene_settle(cache, 3);
    while (scene_step_of(cache) < steps) {
        int error = recover_step(cache);
        scene_settle(cache, explore_mix(4, (uint64_t)error));
        if (error == 0)
            continue;
        if (!is_about_a_rank(error))
            scene_must(error, "a step");
        break;
    }
    recover_all(rank);
}

static void recover_run(void *context)
{
    const uint32_t rank = *(const uint32_t *)context;

    recover_work(rank, rank == 0 ? RECOVER_GOAL - 1 : RECOVER_GOAL - 2);
}

/* Knows nothing of what was going on: tries to commit, as the one before. */
static void recover_run_on(void *context)
{
    const uint32_t rank = *(const uint32_t *)context;

    scene_replace_rank(rank);
    recover_work(rank, RECOVER_GOAL - 1);
}

static void recover_setup(uint32_t n_ranks)
{
    const struct scene_shape shape = {.window_rows = 2,
                                      .slack_chunks = 2,
                                      .n_groups = 1,
                                      .n_ranks = n_ranks,
                                      .pin_policy = KVW_PIN_WAIT,
                                      .timeout_ns = 50000000};
    scene_build(&shape);
    explore_restore(recovered_to, sizeof recovered_to);
    for (uint32_t r = 0; r < n_ranks; r++)
        scene_add_rank(r, recover_run, recover_run_on);
}

static void recover_two_setup(void)
{
    recover_setup(2);
}

static void recover_three_setup(void)
{
    recover_setup(3);
}

static void recover_finish(void)
{
    const struct record first = *scene_record(0);
    const uint64_t slots = scene_here.layout.group[0].ring_rows;

    for (uint32_t rank = 0; rank < scene_here.shape.n_ranks; rank++) {
        const struct record *record = scene_record(rank);
        if (record->step != RECOVER_GOAL || record->era != first.era)
            explore_fail("rank %u ended at step %u, era %u; rank 0 in era %u", rank,
                         (unsigned)record->step, (unsigned)record->era,
                         (unsigned)first.era);
        for (uint64_t row = RECOVER_GOAL - 2; row < RECOVER_GOAL; row++) {
            const char *at[2];
            for (uint32_t i = 0; i < 2; i++)
                at[i] = scene_here.data + layout_row_offset(&scene_here.layout, 0, 0, 0,
                                                            0, i * rank, row % slots);
            const uint64_t own = shim_load_64(at[1], SHIM_RELAXED);
            if (own != shim_load_64(at[0], SHIM_RELAXED) || (uint32_t)own != row + 1)
                explore_fail("rank %u has row %u of another branch than rank 0", rank,
                             (unsigned)row);
        }
    }
}

/* ----------------------------------------------------------------- promise ----------
 * Rank 1 is two steps ahead and recovers. Rank 0 commits a step, promises, and may die;
 * who comes after it tries to commit another one. (Not the other way round: rank 0 looks
 * at its own board first, by an acquire that would hide a missing one.)
 */

static void promise_recover(struct kvw_cache *cache, uint64_t timeout_ns)
{
    uint64_t step;

    for (;;) {
        int error = kvw_recover(cache, 0, timeout_ns, &step);
        if (error == -EOWNERDEAD)
            wait_for_successors();
        else if (error == -ETIMEDOUT && lane_of(cache, 0)->record->era > 0)
            return; /* all had recovered before, and nobody does so again */
        else {
            scene_must(error, "recover");
            recover_check(cache, step);
            return;
        }
    }
}

static void promise_keep(void *context)
{
    promise_recover(scene_here.rank[*(const uint32_t *)context], KVW_NO_TIMEOUT);
}

static void promise_run(void *context)
{
    struct kvw_cache *cache = scene_here.rank[*(const uint32_t *)context];

    int error = scene_step(cache, 1);
    if (error != -ESTALE) /* for a successor: there was a promise */
        scene_must(error, "a step");
    promise_recover(cache, 50000000);
}

static void promise_run_on(void *context)
{
    scene_replace_rank(*(const uint32_t *)context);
    promise_run(context);
}

static void promise_setup(void)
{
    scene_build_ranks(2, 0, 2, 0);
    explore_restore(recovered_to, sizeof recovered_to);
    for (uint32_t i = 0; i < 2; i++)
        scene_must(scene_step(scene_here.rank[1], 1), "a step");
    scene_add_rank(0, promise_run, promise_run_on);
    scene_add_rank(1, promise_keep, NULL);
}

/* ------------------------------------------------------------- lost branch ----------
 * Rank 0 is a step ahead, and goes back: its row 1 is written anew in the same place, and
 * no claim shows it. A reader that holds the old row without a pin must be told.
 */

static void lost_run(void *context)
{
    struct kvw_cache *cache = scene_here.rank[*(const uint32_t *)context];

    scene_must(kvw_recover(cache, 0, KVW_NO_TIMEOUT, NULL), "recover");
    scene_settle(cache, 8);
    scene_must(scene_step(cache, 2), "a step");
}

static void lost_read(void *context)
{
    struct kvw_cache *cache = scene_here.reader[0];
    struct kvw_view view;

    (void)context;
    scene_must(kvw_cut(cache, 0, (struct kvw_layer){0}, 1, KVW_UNPINNED, &view), "cut");
    if (view.step < 2)
        return;
    const uint32_t last = view.n_pieces - 1;
    const uint64_t first_look = scene_read(&view, last, 1, 0);
    const uint64_t second_look = scene_read(&view, last, 1, 0);
    int error = kvw_release(cache, &view);
    if (error == 0 && first_look != second_look)
        explore_fail("row 1 changed under a view, and release says 0");
    if (error != 0 && error != -KVW_EOVERRUN)
        scene_must(error, "release");
}

static void lost_setup(void)
{
    scene_build_ranks(2, 1, 2, 1);
    scene_must(scene_step(scene_here.rank[0], 1), "a step");
    for (uint32_t r = 0; r < 2; r++)
        scene_add_rank(r, lost_run, NULL);
    explore_add(&(struct explore_task){
        .name = "reader", .run = lost_read, .family = 2, .successor = EXPLORE_NOBODY});
}

const struct interleave_case interleave_recover[] = {
    {{"lost-branch", lost_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, 2, 0, 0, 0, 0},
      {EXPLORE_SC, 1, 0, 0, 1, 0},
      {EXPLORE_SC, 2, 0, 0, 1, DEEP},
      {EXPLORE_PSO, 2, 0, 1, 0, DEEP},
      {EXPLORE_SC, 3, 0, 0, 0, DEEP}}},
    {{"promise", promise_setup, recover_start, NULL, recover_ghost},
     {{EXPLORE_SC, ANY, 0, 0, 0, 0},
      {EXPLORE_SC, 2, 1, 0, 0, 0},
      {EXPLORE_PSO, 2, 0, 1, 0, 0},
      {EXPLORE_SC, 3, 0, 0, 1, 0},
      {EXPLORE_PSO, 2, 1, 1, 0, DEEP},
      {EXPLORE_SC, 3, 1, 0, 0, DEEP}}},
    {{"recover", recover_two_setup, recover_start, recover_finish, recover_ghost},
     {{EXPLORE_SC, 0, 1, 0, 0, 0},
      {EXPLORE_SC, 1, 0, 0, 0, 0},
      {EXPLORE_PSO, 1, 0, 1, 0, DEEP},
      {EXPLORE_SC, 1, 1, 0, 0, DEEP},
      {EXPLORE_SC, 2, 0, 0, 0, DEEP},
      {EXPLORE_SC, 1, 0, 0, 1, 0},
      {EXPLORE_SC, 2, 1, 0, 0, DEEP},
      {EXPLORE_PSO, 2, 0, 1, 0, DEEP},
      {EXPLORE_SC, 2, 0, 0, 1, DEEP}}},
    {{"recover-three", recover_three_setup, recover_start, recover_finish,
      recover_ghost},
     {{EXPLORE_SC, 0, 1, 0, 0, 0},
      {EXPLORE_SC, 1, 0, 0, 0, DEEP},
      {EXPLORE_SC, 1, 1, 0, 0, DEEP},
      {EXPLORE_PSO, 1, 0, 1, 0, DEEP}}},
    {{NULL, NULL, NULL, NULL, NULL}, {{EXPLORE_SC, 0, 0, 0, 0, 0}}},
};
