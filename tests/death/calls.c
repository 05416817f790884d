/* SPDX-License-Identifier: Apache-2.0 */
/* See calls.h. Rank 0 is the one that is stepped, or a reader. */
#include "tests/death/calls.h"

#include <errno.h>
#include <string.h>

#include "tests/death/prepare.h"

static struct kvw_layer layer(uint32_t index)
{
    return (struct kvw_layer){index};
}

static int run_begin(struct scene *s)
{
    return kvw_begin(s->worker[0], 0, s->act.item, s->act.n_items, s->begun);
}

static int run_update_0(struct scene *s)
{
    return kvw_update(s->worker[0], 0, layer(0), 0, act_rows(&s->act, 0), s->source);
}

static int run_update_3(struct scene *s)
{
    return kvw_update(s->worker[0], 0, layer(3), 0, act_rows(&s->act, 3), s->source);
}

static int run_in_place(struct scene *s)
{
    struct kvw_slots slots;

    int error = kvw_slots(s->worker[0], 0, layer(0), 0, act_rows(&s->act, 0), &slots);
    if (error != 0)
        return error;
    for (uint32_t p = 0; p < slots.n_planes; p++)
        for (uint32_t h = 0; h < slots.n_heads; h++)
            for (uint32_t i = 0; i < slots.n_pieces; i++)
                memset(kvw_piece_at(&slots.plane[p], &slots.piece[i], h), 0xff,
                       slots.piece[i].n_rows * slots.plane[p].row_bytes);
    return kvw_written(s->worker[0], 0, layer(0), 0, act_rows(&s->act, 0));
}

static int look_with(struct scene *s, struct kvw_cache *cache, uint32_t flags)
{
    int error = kvw_get(cache, 0, layer(2), flags, &s->view);
    return error != 0 ? error : kvw_release(cache, &s->view);
}

static int run_get(struct scene *s)
{
    return look_with(s, s->worker[0], KVW_COMMITTED);
}

static int run_get_staged(struct scene *s)
{
    return look_with(s, s->worker[0], KVW_STAGED);
}

static int run_get_unpinned(struct scene *s)
{
    return look_with(s, s->worker[0], KVW_UNPINNED);
}

static int run_release(struct scene *s)
{
    return kvw_release(s->worker[0], &s->view);
}

static int run_cut_staged(struct scene *s)
{
    return look_with(s, s->reader, KVW_STAGED);
}

static int run_have_read(struct scene *s)
{
    int error = kvw_have_read(s->worker[0], 0, layer(2), 1);
    return error != 0
               ? error
               : kvw_wait_written(s->worker[0], 0, 0, layer(2), 1, KVW_NO_TIMEOUT);
}

static int run_cut(struct scene *s)
{
    return look_with(s, s->reader, KVW_COMMITTED);
}

static int run_reader_free(struct scene *s)
{
    cache_free(s->reader);
    return 0;
}

static int run_commit(struct scene *s)
{
    return kvw_commit(s->worker[0], 0, NULL, 0);
}

static int run_commit_some(struct scene *s)
{
    const struct kvw_item publish[GROUPS] = {{.group = 0, .n = s->act.publish[0]},
                                             {.group = 1, .n = s->act.publish[1]}};
    return kvw_commit(s->worker[0], 0, publish, GROUPS);
}

static int run_abort(struct scene *s)
{
    return kvw_abort(s->worker[0], 0);
}

static int run_act(struct scene *s)
{
    return act_run(s, s->worker[0], newest(s), &s->act, false);
}

static int run_truncate_too_low(struct scene *s)
{
    const struct kvw_item items[GROUPS] = {
        {.group = 0, .row = rows_of(s, 0)},
        {.group = 1, .row = rows_of(s, 1) - model_chunk(1) - 1}};
    return kvw_truncate(s->worker[0], 0, items, GROUPS);
}

static int run_truncate_chunk(struct scene *s)
{
    const struct kvw_item item = {.group = 0, .row = rows_of(s, 0) - model_chunk(0)};
    return kvw_truncate(s->worker[0], 0, &item, 1);
}

static int run_evict_too_far(struct scene *s)
{
    const struct kvw_item items[GROUPS] = {{.group = 0, .row = rows_of(s, 0)},
                                           {.group = 1, .row = rows_of(s, 1) + 1}};
    return kvw_evict(s->worker[0], 0, items, GROUPS);
}

static int run_keep_last(struct scene *s)
{
    const struct kvw_item items[GROUPS] = {
        {.group = 0, .row = rows_of(s, 0) - 2, .n = 2},
        {.group = 1, .row = rows_of(s, 1) - 2, .n = 2}};
    return kvw_keep(s->worker[0], 0, items, GROUPS);
}

static int run_reset_state(struct scene *s)
{
    return kvw_reset_state(s->worker[0]);
}

static int run_recover(struct scene *s)
{
    return kvw_recover(s->worker[0], 0, 0, &s->step);
}

static int run_wait(struct scene *s)
{
    int error = kvw_wait_step(s->worker[0], 0, KVW_ALL_RANKS, s->lane.at[0], 0);
    return error != 0 ? error : kvw_wait_rows(s->worker[0], 0, 0, 1, rows_of(s, 1), 0);
}

static int run_detach(struct scene *s)
{
    cache_free(s->worker[0]);
    return 0;
}

static int run_take_over(struct scene *s)
{
    const struct cache_segments segments = stage_segments(&s->live);

    return cache_new(&segments, 0, 0, &s->worker[0]);
}

#define STEP .n_ranks = 1, .is_step = true
#define CALL .n_ranks = 1
#define STEP_OF_2 .n_ranks = 2, .is_step = true
#define CALL_OF_2 .n_ranks = 2

const struct call calls[] = {
    {"begin", CALL, .prepare = prepare_next_chunk, .run = run_begin},
    {"begin of one group", CALL, .prepare = prepare_one_group, .run = run_begin},
    {"begin, the same again", CALL, .prepare = prepare_written_in_part,
     .run = run_begin},
    {"begin that replaces another", CALL, .prepare = prepare_replaced,
     .run = run_begin},
    {"begin, first of all", CALL, .is_fresh = true, .prepare = prepare_next_chunk,
     .run = run_begin},
    {"begin beside a pin", CALL, .prepare = prepare_held, .run = run_begin},
    {"begin against a pin", CALL, .prepare = prepare_held_too_long, .run = run_begin,
     .result = -EBUSY},
    {"begin that waits for a pin", CALL, .prepare = prepare_held_and_waited_for,
     .run = run_begin, .help_at = 3000, .help = prepare_let_go},
    {"begin that revokes a pin", CALL, .prepare = prepare_held_and_revoked,
     .run = run_begin},
    {"begin after reset, against a pin", CALL, .prepare = prepare_reset_and_held,
     .run = run_begin, .result = -EBUSY},
    {"update", CALL, .prepare = prepare_begun_layer_0, .run = run_update_0},
    {"update, first of all", CALL, .is_fresh = true, .prepare = prepare_begun_layer_0,
     .run = run_update_0},
    {"update over another", CALL, .prepare = prepare_written_layer_3,
     .run = run_update_3},
    {"update over a revoked pin", CALL, .prepare = prepare_revoked_and_begun,
     .run = run_update_0},
    {"update after truncate into the sink", CALL, .prepare = prepare_truncated_in_sink,
     .run = run_update_0},
    {"update after reset", CALL, .prepare = prepare_reset_and_begun,
     .run = run_update_0},
    {"slots and written", CALL, .prepare = prepare_begun, .run = run_in_place},
    {"slots and written again", CALL, .prepare = prepare_written, .run = run_in_place},
    {"staged cut by a reader", CALL, .prepare = prepare_reading_written,
     .run = run_cut_staged},
    {"read pass", CALL, .prepare = prepare_written, .run = run_have_read},
    {"get and release", CALL, .prepare = prepare_written_in_part, .run = run_get},
    {"get and release, staged", CALL, .prepare = prepare_written_in_part,
     .run = run_get_staged},
    {"get and release, unpinned", CALL, .prepare = prepare_begun,
     .run = run_get_unpinned},
    {"release", CALL, .prepare = prepare_viewed, .run = run_release},
    {"cut by a reader", CALL, .prepare = prepare_reading, .run = run_cut},
    {"detach of a reader", CALL, .prepare = prepare_reading_viewed,
     .run = run_reader_free},
    {"commit", STEP, .prepare = prepare_written, .run = run_commit},
    {"commit, first of all", STEP, .is_fresh = true, .prepare = prepare_written,
     .run = run_commit},
    {"commit of some rows", STEP, .prepare = prepare_written_publish_some,
     .run = run_commit_some},
    {"commit beside a pin", STEP, .prepare = prepare_held_and_begun, .run = run_commit},
    {"commit while somebody sleeps", STEP, .prepare = prepare_written_sleeper,
     .run = run_commit},
    {"commit after reset", STEP, .prepare = prepare_reset_and_written,
     .run = run_commit},
    {"commit of rows not written", CALL, .prepare = prepare_written_in_part,
     .run = run_commit, .result = -KVW_EINCOMPLETE},
    {"abort", CALL, .is_closed = true, .prepare = prepare_written, .run = run_abort},
    {"truncate", STEP, .prepare = prepare_to_truncate, .run = run_act},
    {"truncate into the sink", STEP, .prepare = prepare_to_truncate_in_sink,
     .run = run_act},
    {"truncate of floor, kept rows, eviction", STEP,
     .prepare = prepare_to_truncate_marks, .run = run_act},
    {"truncate of an open chunk", STEP, .prepare = prepare_to_truncate_nothing,
     .run = run_act},
    {"truncate too low", CALL, .prepare = prepare_to_truncate_too_low,
     .run = run_truncate_too_low, .result = -ERANGE},
    {"evict", STEP, .prepare = prepare_to_evict, .run = run_act},
    {"evict too far", CALL, .prepare = prepare_begun, .run = run_evict_too_far,
     .result = -EINVAL},
    {"keep", STEP, .prepare = prepare_to_keep_open, .run = run_act},
    {"keep, dropped", STEP, .prepare = prepare_to_drop, .run = run_act},
    {"keep again", STEP, .prepare = prepare_to_keep_again, .run = run_act},
    {"keep again, beside an unpinned view", STEP, .prepare = prepare_to_keep_again_seen,
     .run = run_act},
    {"keep against a pin", CALL, .prepare = prepare_to_keep_held, .run = run_keep_last,
     .result = -EBUSY},
    {"reset", STEP, .prepare = prepare_to_reset, .run = run_act},
    {"reset of one group", STEP, .prepare = prepare_to_reset_one, .run = run_act},
    {"reset of all", STEP, .prepare = prepare_to_reset_all, .run = run_reset_state},
    {"reset of a layer", STEP, .prepare = prepare_to_reset_layer, .run = run_act},
    {"recover", CALL, .is_recovery = true, .prepare = prepare_written,
     .run = run_recover},
    {"wait that is true", CALL, .prepare = prepare_begun, .run = run_wait},
    {"detach", CALL, .is_closed = true, .prepare = prepare_viewed_thrice,
     .run = run_detach},
    {"takeover", CALL, .is_closed = true, .prepare = prepare_died,
     .run = run_take_over},

    {"begin of 2", CALL_OF_2, .prepare = prepare_next_chunk, .run = run_begin},
    {"begin of 2, second", CALL_OF_2, .prepare = prepare_peer_ahead_begin,
     .run = run_begin},
    {"begin of 2 that waits", CALL_OF_2, .prepare = prepare_peer_behind_waited_for,
     .run = run_begin, .help_at = 4000, .help = prepare_catch_up},
    {"begin of 2 against a rank behind", CALL_OF_2, .prepare = prepare_peer_behind,
     .run = run_begin, .result = -ETIMEDOUT},
    {"update of 2", CALL_OF_2, .prepare = prepare_begun_layer_0, .run = run_update_0},
    {"commit of 2, first", STEP_OF_2, .prepare = prepare_written, .run = run_commit},
    {"commit of 2, second", STEP_OF_2, .prepare = prepare_peer_ahead,
     .run = run_commit},
    {"truncate of 2, first", STEP_OF_2, .prepare = prepare_to_truncate, .run = run_act},
    {"truncate of 2, second", STEP_OF_2, .prepare = prepare_to_truncate_second,
     .run = run_act},
    {"truncate of 2 against a claim", CALL_OF_2, .prepare = prepare_peer_claimed,
     .run = run_truncate_chunk, .result = -ERANGE},
    {"commit of some rows of 2, second", STEP_OF_2,
     .prepare = prepare_peer_published_some, .run = run_commit_some},
    {"cut of 2 by a reader", CALL_OF_2, .prepare = prepare_reading_apart,
     .run = run_cut},
    {"evict of 2, second", STEP_OF_2, .prepare = prepare_to_evict_second,
     .run = run_act},
    {"keep of 2, first", STEP_OF_2, .prepare = prepare_to_keep_again, .run = run_act},
    {"keep of 2, second", STEP_OF_2, .prepare = prepare_to_keep_second, .run = run_act},
    {"reset of 2, first", STEP_OF_2, .prepare = prepare_to_reset, .run = run_act},
    {"reset of a layer of 2, first", STEP_OF_2, .prepare = prepare_to_reset_layer,
     .run = run_act},
    {"recover of 2, first", CALL_OF_2, .is_recovery = true,
     .prepare = prepare_peer_behind, .run = run_recover, .result = -ETIMEDOUT},
    {"recover of 2, last", CALL_OF_2, .is_recovery = true,
     .prepare = prepare_peer_promised, .run = run_recover},
    {"recover of 2, last, ahead", CALL_OF_2, .is_recovery = true,
     .prepare = prepare_peer_behind_promised, .run = run_recover},
    {"recover of 2, last, behind", CALL_OF_2, .is_recovery = true,
     .prepare = prepare_peer_ahead_promised, .run = run_recover},
};

const uint32_t n_calls = sizeof calls / sizeof calls[0];
