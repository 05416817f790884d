/* SPDX-License-Identifier: Apache-2.0 */
/* Several ranks: cuts, the lead, the holder test, truncate against begin. */
#include "tests/race/interleave.h"

#include <errno.h>

#include "client/step.h"
#include "tests/race/scene.h"

/* Rows of a view of all ranks that are not what every rank commits. */
static uint32_t count_wrong(const struct kvw_view *view)
{
    uint32_t n_wrong = 0;

    for (uint32_t p = 0; p < view->n_pieces; p++) {
        for (uint32_t r = 0; r < view->piece[p].n_rows; r++) {
            const uint64_t row = view->piece[p].row + r;
            for (uint32_t h = 0; h < view->n_heads; h++)
                n_wrong += scene_read(view, p, row, h) != scene_stamp(1, row);
        }
    }
    return n_wrong;
}

/* --------------------------------------------------------------------- cut ----------
 * Two ranks commit; a reader takes views over both: always one step, always its rows.
 */

enum { CUT_FIRST = 2, CUT_LAST = 4 };

static void cut_write(void *context)
{
    struct kvw_cache *cache = scene_here.rank[*(const uint32_t *)context];

    scene_settle(cache, 1);
    while (scene_step_of(cache) < CUT_LAST) {
        scene_must(scene_step(cache, 1), "a step");
        scene_settle(cache, 1);
    }
}

static void cut_read(void *context)
{
    struct kvw_cache *cache = scene_here.reader[0];
    struct kvw_view view;
    uint64_t last = 0;

    (void)context;
    for (uint64_t i = 0; i < 2; i++) {
        explore_settle(explore_mix(i, last));
        scene_must(kvw_get(cache, 0, (struct kvw_layer){0}, KVW_COMMITTED, &view),
                   "cut");
        if (view.n_heads != 2 || view.step < last || view.end_row != view.step)
            explore_fail("a cut at step %u after %u, up to row %u", (unsigned)view.step,
                         (unsigned)last, (unsigned)view.end_row);
        last = view.step;
        const uint32_t n_wrong = count_wrong(&view);
        scene_must(kvw_release(cache, &view), "release");
        if (n_wrong > 0)
            explore_fail("%u rows of a cut at step %u are of others", n_wrong,
                         (unsigned)last);
    }
    explore_settle(last);
}

static void cut_setup(void)
{
    scene_build_ranks(2, 1, 1, CUT_FIRST);
    for (uint32_t r = 0; r < 2; r++)
        scene_add_rank(r, cut_write, NULL);
    explore_add(&(struct explore_task){
        .name = "reader", .run = cut_read, .family = 2, .successor = EXPLORE_NOBODY});
}

static void cut_finish(void)
{
    for (uint32_t r = 0; r < 2; r++) {
        const struct record *record = scene_record(r);
        if (record->step != CUT_LAST || record->group[0].rows != CUT_LAST)
            explore_fail("rank %u ended at step %u", r, (unsigned)record->step);
    }
}

/* -------------------------------------------------------------------- lead ----------
 * Steps without rows: nothing but the lead holds a rank back. A reader that cuts must
 * always find the slowest rank's step in the log of the others.
 */

enum { LEAD_LAST = KVW_RECORDS - 1 };

static void lead_write(void *context)
{
    struct kvw_cache *cache = scene_here.rank[*(const uint32_t *)context];

    scene_settle(cache, 1);
    while (scene_step_of(cache) < LEAD_LAST) {
        scene_must(scene_mark(cache, scene_step_of(cache) + 1), "a step");
        scene_settle(cache, 1);
    }
}

static void lead_read(void *context)
{
    struct kvw_cache *cache = scene_here.reader[0];
    struct kvw_view view;

    (void)context;
    scene_must(kvw_get(cache, 0, (struct kvw_layer){0}, KVW_UNPINNED, &view), "cut");
    if (view.epoch != view.step)
        explore_fail("a cut at step %u has epoch %u", (unsigned)view.step,
                     (unsigned)view.epoch);
}

static void lead_setup(void)
{
    scene_build_ranks(2, 1, 1, 0);
    for (uint32_t r = 0; r < 2; r++)
        scene_add_rank(r, lead_write, NULL);
    explore_add(&(struct explore_task){
        .name = "reader", .run = lead_read, .family = 2, .successor = EXPLORE_NOBODY});
}

/* ----------------------------------------------------------------- holders ----------
 * Rank 1 reads rank 0's rows of its own step, unpinned: its step is the hold. Rank 0 goes
 * on as fast as it may.
 */

static void holders_run(void *context)
{
    struct kvw_cache *cache = scene_here.rank[*(const uint32_t *)context];
    struct kvw_view view;

    for (;;) {
        const uint64_t step = scene_step_of(cache);
        scene_settle(cache, 2);
        scene_must(kvw_wait_step(cache, 0, KVW_ALL_RANKS, step, KVW_NO_TIMEOUT),
                   "wait");
        scene_must(kvw_cut(cache, 0, (struct kvw_layer){0}, 0, KVW_UNPINNED, &view),
                   "cut");
        if (view.step != step || view.end_row != step)
            explore_fail("a rank at step %u cuts at %u", (unsigned)step,
                         (unsigned)view.step);
        const uint32_t n_wrong = count_wrong(&view);
        scene_must(kvw_release(cache, &view), "release");
        if (n_wrong > 0)
            explore_fail("%u rows of step %u were overwritten", n_wrong,
                         (unsigned)step);
        if (step == CUT_LAST)
            return;
        scene_must(scene_step(cache, 1), "a step");
    }
}

static void holders_setup(void)
{
    scene_build_ranks(2, 0, 1, CUT_FIRST);
    scene_add_rank(0, cut_write, NULL);
    scene_add_rank(1, holders_run, NULL);
}

/* The same with a slack of two: a rank may be two steps ahead. */
static void holders_slack_setup(void)
{
    scene_build_ranks(2, 0, 2, CUT_FIRST);
    scene_add_rank(0, cut_write, NULL);
    scene_add_rank(1, holders_run, NULL);
}

/* Going back, and on in the same place: rank 0 truncates and writes row 2 anew, which rank 1
 * still has until it has truncated too.
 */
enum { BACK_FIRST = 3, BACK_TO = 2, BACK_LAST = 5 };

static uint32_t back_wrong(const struct kvw_view *view)
{
    const uint64_t branch = view->step == BACK_LAST ? 2 : 1;
    uint32_t n_wrong = 0;

    for (uint32_t p = 0; p < view->n_pieces; p++) {
        for (uint32_t r = 0; r < view->piece[p].n_rows; r++) {
            const uint64_t row = view->piece[p].row + r;
            const uint64_t stamp = scene_stamp(row < BACK_TO ? 1 : branch, row);
            for (uint32_t h = 0; h < view->n_heads; h++)
                n_wrong += scene_read(view, p, row, h) != stamp;
        }
    }
    return n_wrong;
}

static void back_step(struct kvw_cache *cache)
{
    const struct kvw_item back = {.row = BACK_TO};

    if (scene_step_of(cache) == BACK_FIRST)
        scene_must(kvw_truncate(cache, 0, &back, 1), "truncate");
    else
        scene_must(scene_step(cache, 2), "a step");
    scene_settle(cache, 1);
}

static void back_write(void *context)
{
    struct kvw_cache *cache = scene_here.rank[*(const uint32_t *)context];

    scene_settle(cache, 1);
    while (scene_step_of(cache) < BACK_LAST)
        back_step(cache);
}

static void back_run(void *context)
{
    struct kvw_cache *cache = scene_here.rank[*(const uint32_t *)context];
    struct kvw_view view;

    for (;;) {
        const uint64_t step = scene_step_of(cache);
        scene_settle(cache, 2);
        scene_must(kvw_wait_step(cache, 0, KVW_ALL_RANKS, step, KVW_NO_TIMEOUT),
                   "wait");
        scene_must(kvw_cut(cache, 0, (struct kvw_layer){0}, 0, KVW_UNPINNED, &view),
                   "cut");
        if (view.step != step)
            explore_fail("a rank at step %u cuts at %u", (unsigned)step,
                         (unsigned)view.step);
        /* No release: it would say that rank 0 went back, and the rows are there. */
        const uint32_t n_wrong = back_wrong(&view);
        if (n_wrong > 0)
            explore_fail("%u rows of step %u were overwritten", n_wrong,
                         (unsigned)step);
        if (step == BACK_LAST)
            return;
        back_step(cache);
    }
}

static void back_setup(void)
{
    scene_build_ranks(2, 0, 1, BACK_FIRST);
    scene_add_rank(0, back_write, NULL);
    scene_add_rank(1, back_run, NULL);
}

/* ---------------------------------------------------------------- truncate ----------
 * Three rows are committed. Rank 0 begins a chunk, gives it up and truncates to 2, rank 1
 * truncates to 2 at once. The window at 2 needs row 0, which the chunk takes: whoever
 * comes second must be refused, and never may one rank have gone back where the other
 * cannot follow.
 */

enum { TRUNCATE_STEP = 3, TRUNCATE_TO = 2 };

static int truncate_error[2];
static int truncate_begin_error;

static int truncate_back(uint32_t rank)
{
    const struct kvw_item back = {.row = TRUNCATE_TO};

    int error = kvw_truncate(scene_here.rank[rank], 0, &back, 1);
    if (error != 0 && error != -ERANGE)
        scene_must(error, "truncate");
    return error;
}

static void truncate_begin(void *context)
{
    struct kvw_cache *cache = scene_here.rank[0];
    const struct kvw_item chunk = {.row = TRUNCATE_STEP, .n = 1};

    (void)context;
    truncate_begin_error = kvw_begin(cache, 0, &chunk, 1, NULL);
    if (truncate_begin_error == 0) {
        scene_must(scene_write(cache, 0, scene_stamp(9, TRUNCATE_STEP)), "update");
        scene_must(kvw_abort(cache, 0), "abort");
    } else if (truncate_begin_error != -KVW_EDIVERGED) {
        scene_must(truncate_begin_error, "begin");
    }
    truncate_error[0] = truncate_back(0);
}

static void truncate_run(void *context)
{
    (void)context;
    truncate_error[1] = truncate_back(1);
}

static void truncate_start(void)
{
    truncate_error[0] = truncate_error[1] = truncate_begin_error = 1;
}

static uint64_t truncate_ghost(void)
{
    return explore_mix((uint64_t)truncate_begin_error,
                       (uint64_t)truncate_error[0] << 32 ^ (uint64_t)truncate_error[1]);
}

static void truncate_setup(void)
{
    scene_build_ranks(2, 0, 1, TRUNCATE_STEP);
    explore_restore(truncate_error, sizeof truncate_error);
    explore_restore(&truncate_begin_error, sizeof truncate_begin_error);
    scene_add_rank(0, truncate_begin, NULL);
    scene_add_rank(1, truncate_run, NULL);
}

static void truncate_finish(void)
{
    if (truncate_error[1] == 0 && truncate_error[0] != 0)
        explore_fail("rank 1 went back, and rank 0 cannot: %d", truncate_error[0]);
    if (truncate_error[0] == 0 && truncate_begin_error == 0)
        explore_fail("a window that was overwritten is called whole");
    for (uint32_t rank = 0; rank < 2; rank++) {
        const uint64_t rows = truncate_error[rank] == 0 ? TRUNCATE_TO : TRUNCATE_STEP;
        struct kvw_view view;
        if (scene_record(rank)->group[0].rows != rows)
            explore_fail("rank %u has another number of rows", rank);
        scene_must(kvw_get(scene_here.rank[rank], 0, (struct kvw_layer){0},
                           KVW_UNPINNED, &view),
                   "get");
        if (view.n_rows != 2 || count_wrong(&view) != 0)
            explore_fail("rank %u: a window of %u rows is not whole", rank,
                         (unsigned)rows);
    }
}

const struct interleave_case interleave_ranks[] = {
    {{"cut", cut_setup, NULL, cut_finish, NULL},
     {{EXPLORE_SC, 1, 0, 0, 0, 0},
      {EXPLORE_SC, 2, 0, 0, 0, DEEP},
      {EXPLORE_PSO, 1, 0, 1, 0, DEEP},
      {EXPLORE_SC, 3, 0, 0, 0, DEEP},
      {EXPLORE_PSO, 2, 0, 1, 0, DEEP},
      {EXPLORE_SC, 2, 0, 0, 1, DEEP}}},
    {{"lead", lead_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, 1, 0, 0, 0, 0},
      {EXPLORE_SC, 2, 0, 0, 0, DEEP},
      {EXPLORE_PSO, 1, 0, 1, 0, DEEP},
      {EXPLORE_PSO, 2, 0, 1, 0, DEEP},
      {EXPLORE_SC, 2, 0, 0, 1, DEEP}}},
    {{"holders", holders_setup, NULL, cut_finish, NULL},
     {{EXPLORE_SC, 3, 0, 0, 0, 0},
      {EXPLORE_SC, 2, 0, 0, 1, 0},
      {EXPLORE_PSO, 2, 0, 1, 0, DEEP},
      {EXPLORE_SC, ANY, 0, 0, 0, DEEP}}},
    {{"holders-slack", holders_slack_setup, NULL, cut_finish, NULL},
     {{EXPLORE_SC, 2, 0, 0, 0, 0},
      {EXPLORE_SC, 3, 0, 0, 0, DEEP},
      {EXPLORE_PSO, 2, 0, 1, 0, DEEP},
      {EXPLORE_SC, 2, 0, 0, 1, 0},
      {EXPLORE_SC, ANY, 0, 0, 0, DEEP}}},
    {{"holders-back", back_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, 2, 0, 0, 0, 0},
      {EXPLORE_SC, 3, 0, 0, 0, DEEP},
      {EXPLORE_PSO, 2, 0, 1, 0, DEEP},
      {EXPLORE_SC, 2, 0, 0, 1, DEEP},
      {EXPLORE_SC, ANY, 0, 0, 0, DEEP}}},
    {{"truncate", truncate_setup, truncate_start, truncate_finish, truncate_ghost},
     {{EXPLORE_SC, ANY, 0, 0, 0, 0},
      {EXPLORE_TSO, ANY, 0, 2, 0, 0},
      {EXPLORE_PSO, ANY, 0, 2, 0, 0},
      {EXPLORE_SC, ANY, 0, 0, 1, 0}}},
    {{NULL, NULL, NULL, NULL, NULL}, {{EXPLORE_SC, 0, 0, 0, 0, 0}}},
};
