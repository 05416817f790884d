/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What leads up to a call: each leaves the scene as the call finds it, with scene->act
 * as the step that the call is part of or that is to follow. prepare.c says what each
 * does.
 */
#ifndef KVW_TESTS_DEATH_PREPARE_H
#define KVW_TESTS_DEATH_PREPARE_H

#include "tests/death/scene.h"

/** What rank 0 published last, and its rows of a group. */
static inline const struct m_record *newest(const struct scene *s)
{
    return &s->lane.record[s->lane.at[0]];
}

static inline uint64_t rows_of(const struct scene *s, uint32_t group)
{
    return newest(s)->group[group].rows;
}

/* A chunk, readers, an owner that died. */
void prepare_next_chunk(struct scene *s);
void prepare_begun(struct scene *s);
void prepare_begun_layer_0(struct scene *s);
void prepare_written(struct scene *s);
void prepare_written_layer_3(struct scene *s);
void prepare_written_in_part(struct scene *s);
void prepare_written_publish_some(struct scene *s);
void prepare_written_sleeper(struct scene *s);
void prepare_replaced(struct scene *s);
void prepare_one_group(struct scene *s);
void prepare_held(struct scene *s);
void prepare_held_and_begun(struct scene *s);
void prepare_held_too_long(struct scene *s);
void prepare_held_and_waited_for(struct scene *s);
void prepare_held_and_revoked(struct scene *s);
void prepare_revoked_and_begun(struct scene *s);
void prepare_let_go(struct scene *s);
void prepare_viewed(struct scene *s);
void prepare_viewed_thrice(struct scene *s);
void prepare_reading(struct scene *s);
void prepare_reading_viewed(struct scene *s);
void prepare_reading_written(struct scene *s);

/* Other steps. */
void prepare_to_truncate(struct scene *s);
void prepare_to_truncate_in_sink(struct scene *s);
void prepare_to_truncate_marks(struct scene *s);
void prepare_to_truncate_nothing(struct scene *s);
void prepare_to_truncate_too_low(struct scene *s);
void prepare_truncated_in_sink(struct scene *s);
void prepare_to_evict(struct scene *s);
void prepare_to_keep_open(struct scene *s);
void prepare_to_drop(struct scene *s);
void prepare_to_keep_again(struct scene *s);
void prepare_to_keep_again_seen(struct scene *s);
void prepare_to_keep_held(struct scene *s);
void prepare_to_reset(struct scene *s);
void prepare_to_reset_all(struct scene *s);
void prepare_to_reset_one(struct scene *s);
void prepare_reset_and_begun(struct scene *s);
void prepare_reset_and_written(struct scene *s);
void prepare_reset_and_held(struct scene *s);
void prepare_to_reset_layer(struct scene *s);
void prepare_died(struct scene *s);

/* Two ranks. */
void prepare_peer_ahead(struct scene *s);
void prepare_peer_ahead_begin(struct scene *s);
void prepare_peer_behind(struct scene *s);
void prepare_peer_behind_waited_for(struct scene *s);
void prepare_catch_up(struct scene *s);
void prepare_to_truncate_second(struct scene *s);
void prepare_to_keep_second(struct scene *s);
void prepare_to_evict_second(struct scene *s);
void prepare_peer_published_some(struct scene *s);
void prepare_peer_claimed(struct scene *s);
void prepare_reading_apart(struct scene *s);
void prepare_peer_promised(struct scene *s);
void prepare_peer_behind_promised(struct scene *s);
void prepare_peer_ahead_promised(struct scene *s);

#endif
