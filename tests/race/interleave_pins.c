/* SPDX-License-Identifier: Apache-2.0 */
/* Readers that hold rows, against a writer that wants them; kept rows and their extent. */
#include "tests/race/interleave.h"

#include <errno.h>

#include "client/step.h"
#include "tests/race/scene.h"

/* -------------------------------------------------------------------- pins ----------
 * A window of two rows in a ring of three. The writer commits one row after the other;
 * readers take views, read every row and release. A row says which one it is.
 */

enum { PINS_LAST = 5, PINS_VIEWS = 2 };

static uint32_t pins_flags;   /* of kvw_get() */
static bool pins_may_overrun; /* release may say so */

static void pins_build(uint32_t policy, uint32_t n_readers)
{
    const struct scene_shape shape = {.window_rows = 2,
                                      .slack_chunks = 1,
                                      .n_groups = 1,
                                      .n_ranks = 1,
                                      .n_readers = n_readers,
                                      .pin_policy = policy,
                                      .timeout_ns = KVW_NO_TIMEOUT};
    scene_build(&shape);
    for (uint64_t row = 0; row < 2; row++)
        scene_must(scene_step(scene_here.rank[0], 1), "a step");
}

static void pins_write(void *context)
{
    (void)context;
    struct kvw_cache *cache = scene_here.rank[0];

    scene_settle(cache, 1);
    while (lane_of(cache, 0)->record->step < PINS_LAST) {
        scene_must(scene_step(cache, 1), "a step");
        scene_settle(cache, 1);
    }
}

static void pins_write_on(void *context)
{
    scene_replace_rank(0);
    pins_write(context);
}

/* Rows of the view whose content is not theirs. */
static uint32_t count_wrong(const struct kvw_view *view)
{
    uint32_t n_wrong = 0;

    for (uint32_t p = 0; p < view->n_pieces; p++) {
        for (uint32_t r = 0; r < view->piece[p].n_rows; r++) {
            const uint64_t row = view->piece[p].row + r;
            n_wrong += scene_read(view, p, row, 0) != scene_stamp(1, row);
        }
    }
    return n_wrong;
}

static void pins_look(struct kvw_cache *cache)
{
    struct kvw_view view;

    int error = kvw_get(cache, 0, (struct kvw_layer){0}, pins_flags, &view);
    scene_must(error, "get");
    if (view.end_row != view.step || view.n_rows != 2)
        explore_fail("step %u shows %u rows up to %u", (unsigned)view.step,
                     (unsigned)view.n_rows, (unsigned)view.end_row);
    const uint32_t n_wrong = count_wrong(&view);
    error = kvw_release(cache, &view);
    if (error == -KVW_EOVERRUN) {
        if (!pins_may_overrun)
            explore_fail("a pinned view of step %u was overrun", (unsigned)view.step);
        return;
    }
    scene_must(error, "release");
    if (n_wrong > 0)
        explore_fail("%u rows of step %u were overwritten, and release says 0", n_wrong,
                     (unsigned)view.step);
}

static void pins_read(void *context)
{
    const uint32_t reader = *(const uint32_t *)context;

    for (uint64_t i = 0; i < PINS_VIEWS; i++) {
        scene_settle(scene_here.reader[reader], i);
        pins_look(scene_here.reader[reader]);
    }
    scene_settle(scene_here.reader[reader], PINS_VIEWS);
}

/* The next reader gets the dead one's slot, or nobody comes. */
static void pins_read_on(void *context)
{
    const uint32_t reader = *(const uint32_t *)context;

    if (explore_any(2) == 1) {
        scene_bury_reader(reader);
        return;
    }
    scene_replace_reader(reader);
    pins_read(context);
}

static void pins_add(uint32_t n_readers, bool writer_dies, bool reader_dies)
{
    static const uint32_t number[] = {0, 1};

    explore_add(&(struct explore_task){
        .name = "writer", .run = pins_write, .is_mortal = writer_dies, .successor = 1});
    explore_add(&(struct explore_task){.name = "writer2",
                                       .run = pins_write_on,
                                       .is_mortal = writer_dies,
                                       .successor = EXPLORE_NOBODY,
                                       .is_waiting = true});
    for (uint32_t r = 0; r < n_readers; r++) {
        explore_add(&(struct explore_task){
            .name = r == 0 ? "reader" : "readerB",
            .run = pins_read,
            .context = (void *)(uintptr_t)&number[r],
            .family = 1 + r,
            .is_mortal = reader_dies && r == 0,
            .successor = reader_dies && r == 0 ? 3 : EXPLORE_NOBODY});
        if (reader_dies && r == 0)
            explore_add(&(struct explore_task){.name = "reader2",
                                               .run = pins_read_on,
                                               .context = (void *)(uintptr_t)&number[r],
                                               .family = 1 + r,
                                               .successor = EXPLORE_NOBODY,
                                               .is_waiting = true});
    }
}

static void pins_setup(void)
{
    pins_flags = KVW_COMMITTED;
    pins_may_overrun = false;
    pins_build(KVW_PIN_WAIT, 1);
    pins_add(1, true, false);
}

static void pins_two_setup(void)
{
    pins_flags = KVW_COMMITTED;
    pins_may_overrun = false;
    pins_build(KVW_PIN_WAIT, 2);
    pins_add(2, false, false);
}

static void pins_revoke_setup(void)
{
    pins_flags = KVW_COMMITTED;
    pins_may_overrun = true;
    pins_build(KVW_PIN_REVOKE, 1);
    pins_add(1, true, false);
}

static void pins_none_setup(void)
{
    pins_flags = KVW_UNPINNED;
    pins_may_overrun = true;
    pins_build(KVW_PIN_WAIT, 1);
    pins_add(1, true, false);
}

static void pins_reader_dies_setup(void)
{
    pins_flags = KVW_COMMITTED;
    pins_may_overrun = false;
    pins_build(KVW_PIN_WAIT, 1);
    pins_add(1, false, true);
}

static void pins_finish(void)
{
    const struct record *record = scene_record(0);

    if (record->step != PINS_LAST || record->group[0].rows != PINS_LAST)
        explore_fail("ended at step %u", (unsigned)record->step);
}

/* ------------------------------------------------------------------- reset ----------
 * Rows 2 and 3 overwrite row 0; then the lane is reset and begins at row 0 again, which
 * lowers the claims: a view that lost row 0 before must still be told.
 */

enum { RESET_LAST = 6 };

static void reset_write(void *context)
{
    (void)context;
    struct kvw_cache *cache = scene_here.rank[0];

    for (;;) {
        const uint64_t step = lane_of(cache, 0)->record->step;
        scene_settle(cache, 1);
        if (step == RESET_LAST)
            return;
        if (step == 4)
            scene_must(kvw_reset(cache, 0, NULL, 0), "reset");
        else
            scene_must(
                scene_step(cache, lane_of(cache, 0)->record->group[0].generation),
                "a step");
    }
}

static void reset_read(void *context)
{
    struct kvw_cache *cache = scene_here.reader[0];
    struct kvw_view view;
    uint32_t n_wrong = 0;

    (void)context;
    scene_must(kvw_get(cache, 0, (struct kvw_layer){0}, pins_flags, &view), "get");
    for (uint32_t p = 0; p < view.n_pieces; p++) {
        for (uint32_t r = 0; r < view.piece[p].n_rows; r++) {
            const uint64_t row = view.piece[p].row + r;
            n_wrong +=
                scene_read(&view, p, row, 0) != scene_stamp(view.generation, row);
        }
    }
    int error = kvw_release(cache, &view);
    if (error == 0 && n_wrong > 0)
        explore_fail("%u rows of step %u were overwritten, and release says 0", n_wrong,
                     (unsigned)view.step);
    if (error != 0 && error != -KVW_EOVERRUN)
        scene_must(error, "release");
}

static void reset_build(uint32_t flags)
{
    pins_flags = flags;
    pins_build(KVW_PIN_WAIT, 1);
    explore_add(&(struct explore_task){
        .name = "reader", .run = reset_read, .family = 1, .successor = EXPLORE_NOBODY});
    explore_add(&(struct explore_task){
        .name = "writer", .run = reset_write, .successor = EXPLORE_NOBODY});
}

static void reset_setup(void)
{
    reset_build(KVW_UNPINNED);
}

static void reset_pinned_setup(void)
{
    reset_build(KVW_COMMITTED);
}

/* -------------------------------------------------------------------- keep ----------
 * Row 0 is kept, dropped, and its extent given to row 1, while a reader looks.
 */

enum { KEEP_LAST = 8 };

static void keep_step(struct kvw_cache *cache)
{
    const struct kvw_item keep_0 = {.row = 0, .n = 1};
    const struct kvw_item drop_0 = {.row = 0, .n = 0};
    const struct kvw_item keep_1 = {.row = 1, .n = 1};

    switch (lane_of(cache, 0)->record->step) {
    case 3:
        scene_must(kvw_keep(cache, 0, &keep_0, 1), "keep row 0");
        return;
    case 5:
        scene_must(kvw_keep(cache, 0, &drop_0, 1), "drop row 0");
        return;
    case 6:
        scene_must(kvw_keep(cache, 0, &keep_1, 1), "keep row 1");
        return;
    default:
        scene_must(scene_step(cache, 1), "a step");
    }
}

static void keep_write(void *context)
{
    (void)context;
    struct kvw_cache *cache = scene_here.rank[0];

    scene_settle(cache, 1);
    while (lane_of(cache, 0)->record->step < KEEP_LAST) {
        keep_step(cache);
        scene_settle(cache, 1);
    }
}

static void keep_write_on(void *context)
{
    scene_replace_rank(0);
    keep_write(context);
}

/* What a view of a step must show: the rows of the window, and before them ... */
static const uint64_t keep_rows[KEEP_LAST + 1] = {0, 1, 2, 3, 3, 4, 4, 4, 5};
static const uint64_t keep_shown[KEEP_LAST + 1] = {0, 1, 2, 3, 3, 4, 3, 3, 4};

static void keep_look(struct kvw_cache *cache)
{
    struct kvw_view view;

    int error = kvw_get(cache, 0, (struct kvw_layer){0}, pins_flags, &view);
    scene_must(error, "get");
    if (view.end_row != keep_rows[view.step] || view.n_rows != keep_shown[view.step])
        explore_fail("step %u shows %u rows up to %u", (unsigned)view.step,
                     (unsigned)view.n_rows, (unsigned)view.end_row);
    const uint32_t n_wrong = count_wrong(&view);
    error = kvw_release(cache, &view);
    if (error == -KVW_EOVERRUN && pins_may_overrun)
        return;
    scene_must(error, "release");
    if (n_wrong > 0)
        explore_fail("%u rows of step %u were overwritten, and release says 0", n_wrong,
                     (unsigned)view.step);
}

static void keep_read(void *context)
{
    (void)context;
    for (uint64_t i = 0; i < PINS_VIEWS; i++) {
        scene_settle(scene_here.reader[0], i);
        keep_look(scene_here.reader[0]);
    }
    scene_settle(scene_here.reader[0], PINS_VIEWS);
}

static void keep_build(void)
{
    const struct scene_shape shape = {.window_rows = 3,
                                      .keep_rows = 1,
                                      .slack_chunks = 1,
                                      .n_groups = 1,
                                      .n_ranks = 1,
                                      .n_readers = 1,
                                      .pin_policy = KVW_PIN_WAIT,
                                      .timeout_ns = KVW_NO_TIMEOUT};
    scene_build(&shape);
    for (uint32_t i = 0; i < 5; i++)
        keep_step(scene_here.rank[0]);
    explore_add(&(struct explore_task){
        .name = "writer", .run = keep_write, .is_mortal = true, .successor = 1});
    explore_add(&(struct explore_task){.name = "writer2",
                                       .run = keep_write_on,
                                       .successor = EXPLORE_NOBODY,
                                       .is_waiting = true});
    explore_add(&(struct explore_task){
        .name = "reader", .run = keep_read, .family = 1, .successor = EXPLORE_NOBODY});
}

static void keep_setup(void)
{
    pins_flags = KVW_COMMITTED;
    pins_may_overrun = false;
    keep_build();
}

static void keep_none_setup(void)
{
    pins_flags = KVW_UNPINNED;
    pins_may_overrun = true;
    keep_build();
}

static void keep_finish(void)
{
    const struct record *record = scene_record(0);

    if (record->step != KEEP_LAST || record->group[0].kept[0].first != 1 ||
        record->group[0].kept[0].n != 1)
        explore_fail("ended at step %u", (unsigned)record->step);
}

const struct interleave_case interleave_pins[] = {
    {{"pins", pins_setup, NULL, pins_finish, NULL},
     {{EXPLORE_SC, ANY, 0, 0, 0, 0},
      {EXPLORE_SC, 2, 1, 0, 0, 0},
      {EXPLORE_TSO, 3, 0, 1, 0, 0},
      {EXPLORE_PSO, 3, 0, 1, 0, 0},
      {EXPLORE_SC, 2, 0, 0, 1, 0},
      {EXPLORE_SC, ANY, 1, 0, 0, DEEP},
      {EXPLORE_PSO, ANY, 0, 1, 0, DEEP},
      {EXPLORE_PSO, ANY, 0, 2, 0, DEEP}}},
    {{"pins-two", pins_two_setup, NULL, pins_finish, NULL},
     {{EXPLORE_SC, 2, 0, 0, 0, 0},
      {EXPLORE_SC, ANY, 0, 0, 0, DEEP},
      {EXPLORE_PSO, 3, 0, 1, 0, DEEP}}},
    {{"pins-revoke", pins_revoke_setup, NULL, pins_finish, NULL},
     {{EXPLORE_SC, ANY, 0, 0, 0, 0},
      {EXPLORE_PSO, 3, 0, 1, 0, 0},
      {EXPLORE_SC, 2, 0, 0, 1, 0},
      {EXPLORE_SC, ANY, 1, 0, 0, DEEP},
      {EXPLORE_PSO, ANY, 0, 1, 0, DEEP},
      {EXPLORE_SC, ANY, 0, 0, 1, DEEP}}},
    {{"pins-none", pins_none_setup, NULL, pins_finish, NULL},
     {{EXPLORE_SC, ANY, 0, 0, 0, 0},
      {EXPLORE_SC, 2, 1, 0, 0, 0},
      {EXPLORE_PSO, 3, 0, 1, 0, 0},
      {EXPLORE_PSO, ANY, 0, 1, 0, DEEP},
      {EXPLORE_SC, 3, 0, 0, 1, 0},
      {EXPLORE_SC, ANY, 1, 0, 0, DEEP},
      {EXPLORE_SC, ANY, 0, 0, 1, DEEP},
      {EXPLORE_PSO, ANY, 0, 2, 0, DEEP}}},
    {{"pins-reader-dies", pins_reader_dies_setup, NULL, pins_finish, NULL},
     {{EXPLORE_SC, ANY, 1, 0, 0, 0},
      {EXPLORE_PSO, 2, 1, 1, 0, DEEP},
      {EXPLORE_PSO, ANY, 1, 1, 0, DEEP}}},
    {{"reset", reset_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, ANY, 0, 0, 0, 0},
      {EXPLORE_SC, 3, 0, 0, 1, 0},
      {EXPLORE_PSO, 3, 0, 1, 0, 0},
      {EXPLORE_SC, ANY, 0, 0, 1, DEEP}}},
    {{"reset-pinned", reset_pinned_setup, NULL, NULL, NULL},
     {{EXPLORE_SC, ANY, 0, 0, 0, 0},
      {EXPLORE_SC, 3, 0, 0, 1, 0},
      {EXPLORE_PSO, 3, 0, 1, 0, DEEP},
      {EXPLORE_SC, ANY, 0, 0, 1, DEEP}}},
    {{"keep", keep_setup, NULL, keep_finish, NULL},
     {{EXPLORE_SC, ANY, 0, 0, 0, 0},
      {EXPLORE_PSO, 2, 0, 1, 0, 0},
      {EXPLORE_SC, ANY, 1, 0, 0, DEEP},
      {EXPLORE_PSO, ANY, 0, 1, 0, DEEP},
      {EXPLORE_SC, ANY, 0, 0, 1, DEEP}}},
    {{"keep-none", keep_none_setup, NULL, keep_finish, NULL},
     {{EXPLORE_SC, ANY, 0, 0, 0, 0},
      {EXPLORE_PSO, 2, 0, 1, 0, 0},
      {EXPLORE_PSO, ANY, 0, 1, 0, DEEP},
      {EXPLORE_SC, 3, 0, 0, 1, 0},
      {EXPLORE_SC, ANY, 1, 0, 0, DEEP},
      {EXPLORE_SC, ANY, 0, 0, 1, DEEP}}},
    {{NULL, NULL, NULL, NULL, NULL}, {{EXPLORE_SC, 0, 0, 0, 0, 0}}},
};
