/* SPDX-License-Identifier: Apache-2.0 */
/* One rank: publication, and taking over after deaths. */
#include "tests/race/interleave.h"

#include <errno.h>
#include <string.h>

#include "client/step.h"
#include "tests/race/scene.h"
#include "tests/race/scene_daemon.h"

/* ------------------------------------------------------------------- board ----------
 * K + 2 steps of two groups, each with its number as epoch; a reader copies the newest
 * record and the oldest that it may. The writer may die anywhere and is replaced.
 */

enum { BOARD_LAST = KVW_RECORDS + 2 };

static struct record *board_copy;

static void board_setup(void)
{
    const struct scene_shape shape = {.window_rows = 1,
                                      .slack_chunks = 1,
                                      .n_groups = 2,
                                      .n_ranks = 1,
                                      .n_readers = 1,
                                      .pin_policy = KVW_PIN_WAIT,
                                      .timeout_ns = KVW_NO_TIMEOUT};
    scene_build(&shape);
    board_copy = record_new(scene_here.reader[0]);
}

static void board_write(void *context)
{
    (void)context;
    struct kvw_cache *cache = scene_here.rank[0];
    uint64_t step = lane_of(cache, 0)->record->step;

    scene_settle(cache, 1);
    while (step < BOARD_LAST) {
        scene_must(scene_mark(cache, ++step), "a step");
        scene_settle(cache, 1);
    }
}

static void board_write_on(void *context)
{
    scene_replace_rank(0);
    board_write(context);
}

/* The record of step s has epoch s in both groups. */
static void board_check(const struct record *record, uint64_t step)
{
    for (uint32_t g = 0; g < 2; g++) {
        if (record->group[g].epoch != step || record->group[g].generation != 1 ||
            record->group[g].rows != 0 || record->floor[g] != 0)
            explore_fail("torn: the record of step %u has epoch %u in group %u",
                         (unsigned)step, (unsigned)record->group[g].epoch, g);
    }
}

static void board_look(void *context)
{
    struct kvw_cache *cache = scene_here.reader[0];
    struct board_head head;
    uint64_t last = 0;

    (void)context;
    for (uint64_t i = 0; i < 2; i++) {
        scene_must(board_read_record(cache, 0, 0, 0, &head, board_copy), "the newest");
        if (head.step < last || head.step + 1 != head.version)
            explore_fail("the newest record, version %u, is of step %u after %u",
                         (unsigned)head.version, (unsigned)head.step, (unsigned)last);
        last = head.step;
        board_check(board_copy, head.step);
        explore_settle(explore_mix(i, last));
        if (last < KVW_RECORDS - 2)
            continue;
        const uint64_t back = head.version - (KVW_RECORDS - 2);
        int error = board_read_record(cache, 0, 0, back, &head, board_copy);
        if (error == 0 && head.step + 1 != back)
            explore_fail("torn: version %u is of step %u", (unsigned)back,
                         (unsigned)head.step);
        if (error == 0)
            board_check(board_copy, head.step);
        else if (error != -EAGAIN)
            scene_must(error, "an older record");
        explore_settle(explore_mix(i, last));
    }
}

static void board_add_tasks(void)
{
    board_setup();
    explore_add(&(struct explore_task){.name = "writer",
                                       .run = board_write,
                                       .family = 0,
                                       .is_mortal = true,
                                       .successor = 1});
    explore_add(&(struct explore_task){.name = "writer2",
                                       .run = board_write_on,
                                       .family = 0,
                                       .is_mortal = true,
                                       .successor = 2,
                                       .is_waiting = true});
    explore_add(&(struct explore_task){.name = "writer3",
                                       .run = board_write_on,
                                       .family = 0,
                                       .successor = EXPLORE_NOBODY,
                                       .is_waiting = true});
    explore_add(&(struct explore_task){
        .name = "reader", .run = board_look, .family = 1, .successor = EXPLORE_NOBODY});
}

static void board_finish(void)
{
    const struct record *record = scene_record(0);

    if (record->step != BOARD_LAST)
        explore_fail("ended at step %u", (unsigned)record->step);
    board_check(record, BOARD_LAST);
}

/* A reader of groups one by one: both at one step. */
static void board_state(void *context)
{
    struct kvw_lane_state state;
    uint64_t last = 0;

    (void)context;
    for (uint64_t i = 0; i < 2; i++) {
        scene_must(kvw_state(scene_here.reader[0], 0, 0, &state), "state");
        if (state.step < last)
            explore_fail("step %u after %u", (unsigned)state.step, (unsigned)last);
        last = state.step;
        if (state.group[0].epoch != last || state.group[1].epoch != last)
            explore_fail("a mix: step %u with epochs %u and %u", (unsigned)last,
                         (unsigned)state.group[0].epoch,
                         (unsigned)state.group[1].epoch);
        explore_settle(explore_mix(i, last));
    }
}

static void board_add_state(void)
{
    board_setup();
    explore_add(&(struct explore_task){.name = "writer",
                                       .run = board_write,
                                       .family = 0,
                                       .is_mortal = true,
                                       .successor = 1});
    explore_add(&(struct explore_task){.name = "writer2",
                                       .run = board_write_on,
                                       .family = 0,
                                       .successor = EXPLORE_NOBODY,
                                       .is_waiting = true});
    explore_add(&(struct explore_task){.name = "reader",
                                       .run = board_state,
                                       .family = 1,
                                       .successor = EXPLORE_NOBODY});
}

/* ---------------------------------------------------------------- takeover ----------
 * A list of steps of all kinds, done by processes that die anywhere, also while they
 * take over. Each goes on at what the board says. A reader looks on, unpinned.
 */

enum { TAKEOVER_LAST = 5 };

static void takeover_setup(void)
{
    const struct scene_shape shape = {.window_rows = 2,
                                      .slack_chunks = 1,
                                      .n_groups = 1,
                                      .n_ranks = 1,
                                      .n_readers = 1,
                                      .pin_policy = KVW_PIN_WAIT,
                                      .timeout_ns = KVW_NO_TIMEOUT};
    scene_build(&shape);
}

/* Rows committed at a step, and the branch of a row that is shown then. */
static const uint64_t takeover_rows[TAKEOVER_LAST + 1] = {0, 1, 2, 3, 2, 3};

static uint64_t takeover_stamp(uint64_t step, uint64_t row)
{
    return scene_stamp(step == 5 && row == 2 ? 2 : 1, row);
}

static void takeover_write(void *context)
{
    (void)context;
    struct kvw_cache *cache = scene_here.rank[0];
    const struct kvw_item back = {.group = 0, .row = 2};
    const struct kvw_item third = {.group = 0, .row = 2, .n = 1};

    for (;;) {
        const uint64_t step = lane_of(cache, 0)->record->step;
        scene_settle(cache, 2);
        if (step == TAKEOVER_LAST)
            return;
        if (step == 2) { /* tried, and given up */
            scene_must(kvw_begin(cache, 0, &third, 1, NULL), "begin");
            scene_must(scene_write(cache, 0, scene_stamp(9, 2)), "update");
            scene_must(kvw_abort(cache, 0), "abort");
        }
        if (step == 3)
            scene_must(kvw_truncate(cache, 0, &back, 1), "truncate");
        else
            scene_must(scene_step(cache, step == 4 ? 2 : 1), "a step");
    }
}

static void takeover_write_on(void *context)
{
    scene_replace_rank(0);
    takeover_write(context);
}

static void takeover_read(void *context)
{
    struct kvw_cache *cache = scene_here.reader[0];
    struct kvw_view view;
    uint64_t last = 0;

    (void)context;
    for (uint64_t i = 0; i < 2; i++) {
        bool is_good = true;
        int error = kvw_get(cache, 0, (struct kvw_layer){0}, KVW_UNPINNED, &view);
        scene_must(error, "get");
        if (view.step < last || view.step > TAKEOVER_LAST ||
            view.end_row != takeover_rows[view.step])
            explore_fail("step %u after %u with %u rows", (unsigned)view.step,
                         (unsigned)last, (unsigned)view.end_row);
        last = view.step;
        for (uint32_t p = 0; p < view.n_pieces; p++) {
            for (uint32_t r = 0; r < view.piece[p].n_rows; r++) {
                const uint64_t row = view.piece[p].row + r;
                is_good &= scene_read(&view, p, row, 0) == takeover_stamp(last, row);
            }
        }
        error = kvw_release(cache, &view);
        if (error == 0 && !is_good)
            explore_fail("rows of step %u were overwritten, and release says 0",
                         (unsigned)last);
        if (error != 0 && error != -KVW_EOVERRUN)
            scene_must(error, "release");
        explore_settle(explore_mix(i, last));
    }
}

static void takeover_add_tasks(void)
{
    takeover_setup();
    explore_add(&(struct explore_task){.name = "writer",
                                       .run = takeover_write,
                                       .family = 0,
                                       .is_mortal = true,
                                       .successor = 1});
    explore_add(&(struct explore_task){.name = "writer2",
                                       .run = takeover_write_on,
                                       .family = 0,
                                       .is_mortal = true,
                                       .successor = 2,
                                       .is_waiting = true});
    explore_add(&(struct explore_task){.name = "writer3",
                                       .run = takeover_write_on,
                                       .family = 0,
                                       .successor = EXPLORE_NOBODY,
                                       .is_waiting = true});
    explore_add(&(struct explore_task){.name = "reader",
                                       .run = takeover_read,
                                       .family = 1,
                                       .successor = EXPLORE_NOBODY});
}

static void takeover_finish(void)
{
    const struct record *record = scene_record(0);
    struct kvw_cache *cache = scene_here.rank[0];
    struct kvw_board *board = board_of(cache, 0, 0);
    const struct kvw_board_claim *claim = board_claim(cache, board, 0);
    struct kvw_view view;

    if (record->step != TAKEOVER_LAST || record->group[0].rows != 3 ||
        record->rewinds != 1)
        explore_fail("ended at step %u with %u rows", (unsigned)record->step,
                     (unsigned)record->group[0].rows);
    if (load_relaxed(&claim->want) != load_relaxed(&claim->hi) ||
        load_relaxed(&claim->hi) != 3 || load_relaxed(&claim->open) != 0)
        explore_fail("claims are left: want %u, hi %u, open %u",
                     (unsigned)load_relaxed(&claim->want),
                     (unsigned)load_relaxed(&claim->hi),
                     (unsigned)load_relaxed(&claim->open));
    scene_must(kvw_get(cache, 0, (struct kvw_layer){0}, KVW_UNPINNED, &view), "get");
    for (uint64_t row = 1; row < 3; row++) {
        uint64_t value = 0;
        for (uint32_t p = 0; p < view.n_pieces; p++) {
            if (row >= view.piece[p].row &&
                row < view.piece[p].row + view.piece[p].n_rows)
                value = scene_read(&view, p, row, 0);
        }
        if (value != takeover_stamp(TAKEOVER_LAST, row))
            explore_fail("row %u has another content at the end", (unsigned)row);
    }
}

/* ----------------------------------------------------------------- hang-up ----------
 * A poll of the owner's pidfd completes while the owner may be stopped or slow, and alive.
 * Who gives its rank away then has two owners. Epochs say whose a record is.
 */

enum { HANGUP_LAST = 3, HANGUP_WRITER = 0 };

static struct kvw_cache *hangup_first;

static void hangup_steps(struct kvw_cache *cache, uint64_t owner)
{
    for (;;) {
        const uint64_t step = lane_of(cache, 0)->record->step;
        scene_settle(cache, owner);
        if (step == HANGUP_LAST)
            return;
        int error = scene_mark(cache, owner * 100 + step + 1);
        if (error == -ESTALE) /* it is told, and too late for what is under way */
            return;
        scene_must(error, "a step");
    }
}

static void hangup_write(void *context)
{
    (void)context;
    hangup_steps(hangup_first, 1);
}

static void hangup_replace(void *context)
{
    (void)context;
    if (!scene_daemon_pidfd_event(0, 0, HANGUP_WRITER))
        return;
    scene_enter_rank(0);
    hangup_steps(scene_here.rank[0], 2);
}

static void hangup_read(void *context)
{
    struct kvw_cache *cache = scene_here.reader[0];
    struct board_head head;
    uint64_t version = 0;
    uint64_t epoch = 0;

    (void)context;
    for (uint64_t i = 0; i < 3; i++) {
        int error =
            board_read_record(cache, 0, 0, i == 2 ? version : 0, &head, board_copy);
        if (error == -EAGAIN)
            return;
        scene_must(error, "a record");
        if (board_copy->group[0].epoch != board_copy->group[1].epoch ||
            (head.step != 0 && board_copy->group[0].epoch % 100 != head.step))
            explore_fail("torn: the record of step %u has epochs %u and %u",
                         (unsigned)head.step, (unsigned)board_copy->group[0].epoch,
                         (unsigned)board_copy->group[1].epoch);
        if (head.version == version && board_copy->group[0].epoch != epoch)
            explore_fail("the record of step %u changed after it was published",
                         (unsigned)head.step);
        version = head.version;
        epoch = board_copy->group[0].epoch;
        explore_settle(explore_mix(explore_mix(i, version), epoch));
    }
}

static void hangup_setup(void)
{
    board_setup();
    hangup_first = scene_here.rank[0];
    explore_add(&(struct explore_task){.name = "writer",
                                       .run = hangup_write,
                                       .family = 0,
                                       .is_mortal = true,
                                       .successor = EXPLORE_NOBODY});
    explore_add(&(struct explore_task){.name = "daemon",
                                       .run = hangup_replace,
                                       .family = 1,
                                       .successor = EXPLORE_NOBODY});
    explore_add(&(struct explore_task){.name = "reader",
                                       .run = hangup_read,
                                       .family = 2,
                                       .successor = EXPLORE_NOBODY});
}

const struct interleave_case interleave_board[] = {
    {{"board", board_add_tasks, NULL, board_finish, NULL},
     {{EXPLORE_SC, ANY, 1, 0, 0, 0},
      {EXPLORE_TSO, ANY, 0, 1, 0, 0},
      {EXPLORE_PSO, ANY, 0, 1, 0, 0},
      {EXPLORE_TSO, ANY, 0, 2, 0, DEEP},
      {EXPLORE_SC, 2, 0, 0, 1, 0},
      {EXPLORE_SC, ANY, 2, 0, 0, DEEP},
      {EXPLORE_PSO, ANY, 1, 1, 0, DEEP},
      {EXPLORE_SC, ANY, 0, 0, 1, DEEP}}},
    {{"board-state", board_add_state, NULL, board_finish, NULL},
     {{EXPLORE_SC, 2, 1, 0, 0, 0},
      {EXPLORE_SC, 2, 2, 0, 0, DEEP},
      {EXPLORE_SC, ANY, 1, 0, 0, DEEP},
      {EXPLORE_PSO, ANY, 0, 1, 0, DEEP}}},
    {{"takeover", takeover_add_tasks, NULL, takeover_finish, NULL},
     {{EXPLORE_SC, 1, 1, 0, 0, 0},
      {EXPLORE_PSO, 2, 0, 1, 0, 0},
      {EXPLORE_SC, 2, 1, 0, 0, DEEP},
      {EXPLORE_SC, 2, 2, 0, 0, DEEP},
      {EXPLORE_SC, ANY, 1, 0, 0, DEEP},
      {EXPLORE_PSO, ANY, 0, 1, 0, DEEP},
      {EXPLORE_PSO, 2, 1, 1, 0, DEEP}}},
    {{"hangup", hangup_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, 2, 1, 0, 0, 0},
      {EXPLORE_SC, 3, 1, 0, 0, DEEP},
      {EXPLORE_PSO, 2, 1, 1, 0, DEEP},
      {EXPLORE_SC, ANY, 1, 0, 0, DEEP}}},
    {{NULL, NULL, NULL, NULL, NULL}, {{EXPLORE_SC, 0, 0, 0, 0, 0}}},
};
