/* SPDX-License-Identifier: Apache-2.0 */
/* Operations, by who does them (play_rank.c, play_read.c, play_staged.c, play_seats.c),
 * for play.c, which says which one is next. Random numbers are read against the state at
 * hand; what makes no sense in it does nothing. All return false after a failure. */
#ifndef KVW_TESTS_MODEL_PLAY_OPS_H
#define KVW_TESTS_MODEL_PLAY_OPS_H

#include "tests/model/play.h"

/** An attached seat, or UINT32_MAX. */
uint32_t play_seat_of(const struct player *player, uint32_t random);

/* ---- play_rank.c ---- */

bool play_is_behind(const struct player *player, uint32_t rank, uint32_t lane);
/** Make the step that the ranks before have made, by a rank that is behind. */
bool play_follow(struct player *player, uint32_t rank, uint32_t lane,
                 const uint32_t *random);
/** Every attached rank of a lane goes one step on. */
bool play_round(struct player *player, uint32_t lane, const uint32_t *random);
/** Operations that one attached rank of the lane does. */
bool play_on_rank(struct player *player, const struct op *op, uint32_t rank,
                  uint32_t lane);

/* ---- play_read.c ---- */
bool play_hold(struct player *player, uint32_t lane, const uint32_t *random);
bool play_release(struct player *player, uint32_t random);
bool play_wait(struct player *player, uint32_t lane, const uint32_t *random);
bool play_forbidden(struct player *player, uint32_t lane, const uint32_t *random);

/* ---- play_staged.c ---- */
bool play_pass(struct player *player, uint32_t lane, const uint32_t *random);
bool play_onlook(struct player *player, uint32_t lane, const uint32_t *random);

/* ---- play_seats.c ---- */
bool play_leave(struct player *player, uint32_t seat, bool is_death);
bool play_attach(struct player *player, uint32_t random);
bool play_attach_seat(struct player *player, uint32_t seat);
/** UINT64_MAX: no ranks elsewhere. Nothing happens while a rank of the lane is away. */
bool play_set_outside(struct player *player, uint32_t lane, uint64_t step);
bool play_outside(struct player *player, uint32_t lane, uint32_t random);
bool play_recover(struct player *player, uint32_t rank, uint32_t lane);
/** All that must, call recover until nobody must. */
bool play_recover_all(struct player *player, uint32_t lane, uint32_t random);
bool play_reset_state(struct player *player, uint32_t rank);

#endif
