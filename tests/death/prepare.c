/* SPDX-License-Identifier: Apache-2.0 */
/* See prepare.h. */
#include "tests/death/prepare.h"

#include <errno.h>

#include "client/client.h"

/* --------------------------------------------- chunks, readers ---------- */

/* The next act is a whole chunk. */
void prepare_next_chunk(struct scene *s)
{
    s->act = model_chunk_act(newest(s), model_chunk(0), model_chunk(1));
}

static void small_chunk(struct scene *s)
{
    s->act = model_chunk_act(newest(s), 1, 2);
}

void prepare_begun(struct scene *s)
{
    prepare_next_chunk(s);
    OK(act_begin(s->worker[0], &s->act));
}

void prepare_begun_layer_0(struct scene *s)
{
    prepare_begun(s);
    scene_fill(s, s->worker[0], newest(s), &s->act, 0);
}

void prepare_written(struct scene *s)
{
    prepare_begun(s);
    act_write(s, s->worker[0], newest(s), &s->act, UINT64_MAX);
}

/* Another attempt of the same chunk, with other bytes, is written already. */
void prepare_written_layer_3(struct scene *s)
{
    prepare_written(s);
    s->act.stamp = model_stamp();
    scene_fill(s, s->worker[0], newest(s), &s->act, 3);
}

void prepare_written_in_part(struct scene *s)
{
    prepare_begun(s);
    act_write(s, s->worker[0], newest(s), &s->act, 1);
}

void prepare_written_publish_some(struct scene *s)
{
    prepare_written_in_part(s);
    s->act.publish[0] = 0;
    s->act.publish[1] = 1;
}

void prepare_written_sleeper(struct scene *s)
{
    prepare_written(s);
    store_relaxed(layout_flag(s->live.pins, &s->live.layout, 1, 0, 0), 1);
}

/* A larger chunk is open and written: the next one replaces it. */
void prepare_replaced(struct scene *s)
{
    prepare_written(s);
    small_chunk(s);
}

void prepare_one_group(struct scene *s)
{
    s->act = model_chunk_act(newest(s), 0, model_chunk(1));
}

/* A reader holds the window; one chunk has room beside it, a second one has not. */
void prepare_held(struct scene *s)
{
    scene_hold(s);
    prepare_next_chunk(s);
}

void prepare_held_and_begun(struct scene *s)
{
    scene_hold(s);
    prepare_written(s);
}

void prepare_held_too_long(struct scene *s)
{
    scene_hold(s);
    prepare_next_chunk(s);
    scene_run(s, 0, 1, &s->act);
    prepare_next_chunk(s);
}

void prepare_held_and_waited_for(struct scene *s)
{
    prepare_held_too_long(s);
    s->worker[0]->options.pin_policy = KVW_PIN_WAIT;
    s->worker[0]->options.timeout_ns = KVW_NO_TIMEOUT;
}

void prepare_held_and_revoked(struct scene *s)
{
    prepare_held_too_long(s);
    s->worker[0]->options.pin_policy = KVW_PIN_REVOKE;
}

void prepare_revoked_and_begun(struct scene *s)
{
    prepare_held_and_revoked(s);
    OK(act_begin(s->worker[0], &s->act));
    scene_fill(s, s->worker[0], newest(s), &s->act, 0);
}

void prepare_let_go(struct scene *s)
{
    for (uint32_t i = 0; i < LAYERS; i++)
        OK(kvw_release(s->held.reader, &s->held.view[i]));
    cache_free(s->held.reader);
    s->held.reader = NULL;
}

void prepare_viewed(struct scene *s)
{
    prepare_written_in_part(s);
    OK(kvw_get(s->worker[0], 0, (struct kvw_layer){1}, KVW_COMMITTED, &s->view));
}

void prepare_viewed_thrice(struct scene *s)
{
    prepare_viewed(s);
    for (uint32_t i = 0; i < 3; i++)
        OK(kvw_get(s->worker[0], 0, (struct kvw_layer){i}, KVW_COMMITTED,
                   &s->views[i]));
}

void prepare_reading(struct scene *s)
{
    prepare_begun(s);
    s->reader = stage_attach(&s->live, KVW_READER, SLOT_READER);
}

void prepare_reading_viewed(struct scene *s)
{
    prepare_reading(s);
    OK(kvw_get(s->reader, 0, (struct kvw_layer){2}, KVW_COMMITTED, &s->view));
}

void prepare_reading_written(struct scene *s)
{
    prepare_written(s);
    s->reader = stage_attach(&s->live, KVW_READER, SLOT_READER);
}

/* --------------------------------------------------- other steps ---------- */

static void act_of(struct scene *s, enum act_kind kind, uint64_t row0, uint64_t n0,
                   uint64_t row1, uint64_t n1)
{
    s->act = (struct act){
        .kind = kind,
        .n_items = 2,
        .item = {{.group = 0, .row = row0, .n = n0},
                 {.group = 1, .row = row1, .n = n1, .has_epoch = 1, .epoch = 77}},
    };
}

/* Back to before the last chunk, which was a whole one. */
void prepare_to_truncate(struct scene *s)
{
    prepare_next_chunk(s);
    scene_run(s, 0, s->lane.n_ranks, &s->act);
    act_of(s, ACT_TRUNCATE, rows_of(s, 0) - model_chunk(0), 0,
           rows_of(s, 1) - model_chunk(1) + 1, 0);
}

void prepare_to_truncate_in_sink(struct scene *s)
{
    act_of(s, ACT_TRUNCATE, 1, 0, 0, 0);
}

/* A floor, a kept range and an eviction reach beyond the row. */
void prepare_to_truncate_marks(struct scene *s)
{
    prepare_to_truncate(s);
    const struct act back = s->act;
    struct act act = {.kind = ACT_RESET_LAYER, .layer = 3};
    scene_run(s, 0, 1, &act);
    act_of(s, ACT_KEEP, rows_of(s, 0) - 3, 2, rows_of(s, 1) - 3, 2);
    scene_run(s, 0, 1, &s->act);
    act_of(s, ACT_EVICT, rows_of(s, 0) - 1, 0, rows_of(s, 1), 0);
    scene_run(s, 0, 1, &s->act);
    s->act = back;
}

/* Nothing is dropped but the open chunk. */
void prepare_to_truncate_nothing(struct scene *s)
{
    prepare_written(s);
    act_of(s, ACT_TRUNCATE, rows_of(s, 0), 0, rows_of(s, 1), 0);
}

void prepare_to_truncate_too_low(struct scene *s)
{
    prepare_next_chunk(s);
    scene_run(s, 0, 1, &s->act);
    prepare_next_chunk(s);
}

/* Into the sink, and the next chunk is written: no row of the ring is alive. */
void prepare_truncated_in_sink(struct scene *s)
{
    prepare_to_truncate_in_sink(s);
    scene_run(s, 0, 1, &s->act);
    prepare_begun_layer_0(s);
}

void prepare_to_evict(struct scene *s)
{
    prepare_written(s);
    act_of(s, ACT_EVICT, rows_of(s, 0) - 1, 0, rows_of(s, 1) - 2, 0);
}

static void to_keep(struct scene *s)
{
    act_of(s, ACT_KEEP, rows_of(s, 0) - 3, 2, rows_of(s, 1) - 3, 3);
}

void prepare_to_keep_open(struct scene *s)
{
    prepare_written(s);
    to_keep(s);
}

static void kept(struct scene *s)
{
    uint64_t random = 1;

    to_keep(s);
    scene_run(s, 0, s->lane.n_ranks, &s->act);
    scene_roll(s, 6, &random);
}

static void dropping(struct scene *s)
{
    act_of(s, ACT_KEEP, newest(s)->group[0].kept[0].first, 0,
           newest(s)->group[1].kept[0].first, 0);
}

void prepare_to_drop(struct scene *s)
{
    kept(s);
    dropping(s);
}

/* The extent of a range that was dropped is written again. */
void prepare_to_keep_again(struct scene *s)
{
    prepare_to_drop(s);
    scene_run(s, 0, s->lane.n_ranks, &s->act);
    to_keep(s);
}

/* The same, and somebody has an unpinned view from before it was dropped. */
void prepare_to_keep_again_seen(struct scene *s)
{
    kept(s);
    scene_witness(s);
    dropping(s);
    scene_run(s, 0, 1, &s->act);
    to_keep(s);
}

/* The same, but a reader still holds the range. */
void prepare_to_keep_held(struct scene *s)
{
    kept(s);
    scene_hold(s);
    dropping(s);
    scene_run(s, 0, 1, &s->act);
    prepare_next_chunk(s);
}

void prepare_to_reset(struct scene *s)
{
    kept(s);
    act_of(s, ACT_RESET, 0, 0, 0, 0);
}

void prepare_to_reset_all(struct scene *s)
{
    prepare_to_reset(s);
    s->act.item[1].has_epoch = 0;
}

void prepare_to_reset_one(struct scene *s)
{
    prepare_written(s);
    act_of(s, ACT_RESET, 0, 0, 0, 0);
    s->act.n_items = 1;
}

void prepare_reset_and_begun(struct scene *s)
{
    prepare_to_reset(s);
    scene_run(s, 0, 1, &s->act);
    prepare_begun_layer_0(s);
}

void prepare_reset_and_written(struct scene *s)
{
    prepare_to_reset(s);
    scene_run(s, 0, 1, &s->act);
    prepare_written(s);
}

void prepare_reset_and_held(struct scene *s)
{
    kept(s);
    scene_hold(s);
    act_of(s, ACT_RESET, 0, 0, 0, 0);
    scene_run(s, 0, 1, &s->act);
    prepare_next_chunk(s);
}

void prepare_to_reset_layer(struct scene *s)
{
    prepare_written(s);
    s->act = (struct act){.kind = ACT_RESET_LAYER, .layer = 1};
}

/* The owner died with a chunk half written; the child takes over. */
void prepare_died(struct scene *s)
{
    prepare_written_in_part(s);
    stage_bury(&s->live, 0);
    stage_admit(&s->live, 0);
    s->dead = s->worker[0];
    s->worker[0] = NULL;
}

/* ----------------------------------------------------- two ranks ---------- */

void prepare_peer_ahead(struct scene *s)
{
    prepare_written(s);
    scene_run(s, 1, 2, &s->act);
}

void prepare_peer_ahead_begin(struct scene *s)
{
    prepare_next_chunk(s);
    scene_run(s, 1, 2, &s->act);
}

/* Rank 1 has not committed what rank 0 has: a whole chunk more has no room. */
void prepare_peer_behind(struct scene *s)
{
    prepare_next_chunk(s);
    scene_run(s, 0, 1, &s->act);
    prepare_next_chunk(s);
}

void prepare_peer_behind_waited_for(struct scene *s)
{
    prepare_peer_behind(s);
    s->worker[0]->options.timeout_ns = KVW_NO_TIMEOUT;
}

void prepare_catch_up(struct scene *s)
{
    const struct act act = newest(s)->act;
    scene_run(s, 1, 2, &act);
}

void prepare_to_truncate_second(struct scene *s)
{
    prepare_to_truncate(s);
    scene_run(s, 1, 2, &s->act);
}

void prepare_to_keep_second(struct scene *s)
{
    prepare_to_keep_again(s);
    scene_run(s, 1, 2, &s->act);
}

void prepare_to_evict_second(struct scene *s)
{
    act_of(s, ACT_EVICT, rows_of(s, 0) - 1, 0, rows_of(s, 1) - 2, 0);
    scene_run(s, 1, 2, &s->act);
}

void prepare_peer_published_some(struct scene *s)
{
    prepare_begun(s);
    act_write(s, s->worker[0], newest(s), &s->act, 2);
    s->act.publish[0] = 1;
    s->act.publish[1] = 2;
    scene_run(s, 1, 2, &s->act);
}

/* The peer has claimed the rows that the window before the last chunk needs. */
void prepare_peer_claimed(struct scene *s)
{
    prepare_next_chunk(s);
    scene_run(s, 0, 2, &s->act);
    prepare_next_chunk(s);
    OK(act_begin(s->worker[1], &s->act));
}

void prepare_reading_apart(struct scene *s)
{
    prepare_peer_behind(s);
    s->reader = stage_attach(&s->live, KVW_READER, SLOT_READER);
}

static void promise(struct scene *s)
{
    int error = kvw_recover(s->worker[1], 0, 0, NULL);
    EXPECT(error == -ETIMEDOUT, "recover: %d", error);
}

void prepare_peer_promised(struct scene *s)
{
    prepare_written(s);
    promise(s);
}

void prepare_peer_behind_promised(struct scene *s)
{
    prepare_peer_behind(s);
    promise(s);
}

void prepare_peer_ahead_promised(struct scene *s)
{
    prepare_peer_ahead(s);
    promise(s);
}
