/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library and the oracle side by side: each operation is done on both, and
 * everything that is visible is compared afterwards. A difference is a failure with a
 * text; nothing is done after it. One thread.
 *
 * An operation is a kind and a few random numbers, read against the state at hand: any
 * subset of a list of operations is a list that can be played, which is what makes a
 * failing list shrink.
 */
#ifndef KVW_TESTS_MODEL_PLAY_H
#define KVW_TESTS_MODEL_PLAY_H

#include <stdio.h>

#include "tests/model/oracle.h"
#include "tests/model/world.h"

enum op_kind {
    OP_ROUND,   /* every rank of a lane goes one step on */
    OP_ADVANCE, /* one rank does, whole: begin, write, commit */
    OP_BEGIN,
    OP_BEGIN_WRONG,
    OP_UPDATE,
    OP_SLOTS,
    OP_FILL, /* all that is missing in the open chunk */
    OP_COMMIT,
    OP_ABORT,
    OP_TRUNCATE,
    OP_EVICT,
    OP_KEEP,
    OP_RESET,
    OP_RESET_LAYER,
    OP_RESET_STATE,
    OP_HOLD, /* get or cut, and keep the view */
    OP_RELEASE,
    OP_WAIT,
    OP_PASS,    /* say that a pass was read, or wait for one */
    OP_ONLOOK,  /* look at an open chunk while its rank writes it again */
    OP_RECOVER, /* one rank calls it */
    OP_RECOVER_ALL,
    OP_KILL,
    OP_ATTACH,
    OP_DETACH,
    OP_POLICY,
    OP_OUTSIDE,
    OP_FORBIDDEN, /* what a reader, or the wrong rank, may not do */
    OP_KINDS,
};

struct op {
    uint32_t kind;
    uint32_t r[8];
};

/* A view that somebody keeps. */
struct held {
    bool is_used;
    uint32_t seat;
    uint32_t lane;
    uint32_t layer;
    uint32_t flags;
    uint64_t step;
    uint64_t ranks;
    uint64_t low; /* of the ring rows of the record */
    uint64_t rewinds[M_RANKS];
    bool is_pinned;
    uint32_t pin_index;
    struct m_pin pin;
    struct kvw_view view;
    struct m_chunk chunk; /* of a staged view of others */
    uint64_t digest;      /* of its committed rows, when it was taken */
    uint64_t staged;      /* the same of the other rows */
};

struct player {
    struct world world;
    struct oracle oracle;
    uint64_t n_stamps;
    uint64_t n_calls;
    uint64_t n_views;
    uint64_t n_refused;
    uint64_t coin; /* random numbers of checks, not of operations */
    struct held held[M_HELD];
    FILE *log;    /* every call, or NULL */
    char *before; /* bytes of control and data before a call that may be refused */
    char source[KVW_SPEC_PLANES_MAX][1 << 14];
    bool is_failed;
    char failure[512];
};

/** Everything is at rest and all ranks are attached. @return false: is_failed. */
bool player_init(struct player *player, const struct kvw_geometry *geometry,
                 uint64_t seed, FILE *log);
void player_fini(struct player *player);

/** Do one operation and compare. @return false after a failure. */
bool player_play(struct player *player, const struct op *op);

/** Let go of all, attach all, and run each lane over three windows. */
bool player_finish(struct player *player);

/* ---- play_check.c ---- */

/** Compare everything visible in a lane. */
bool player_check_lane(struct player *player, uint32_t lane);

/* ---- play_verify.c ---- */

/** kvw_verify() by a seat that is taken: nothing is wrong, whoever died where. */
bool player_verify(struct player *player, uint32_t seat);
/** Change a bit of a committed row that a rank shows: just that is found. And back. */
bool player_damage(struct player *player, uint32_t rank, uint32_t lane, uint32_t layer);

/* ---- play_view.c: what is seen ---- */

/** Take a view, compare it, and release it or keep it in `held` (not NULL). */
bool player_view(struct player *player, uint32_t seat, uint32_t lane, uint32_t layer,
                 uint32_t flags, uint64_t ranks, struct held *held);
bool player_release(struct player *player, struct held *held);
/** Pins of the views that are held. @return how many. */
uint32_t player_pins(const struct player *player, struct m_pin pins[M_HELD]);
void player_see_revoked(struct player *player, const struct m_pin *pins,
                        uint32_t n_pins);

/* ---- play_call.c: one call each, done on both sides ---- */

/** Note a failure; returns false. */
bool player_fail(struct player *player, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool player_begin(struct player *player, uint32_t rank, uint32_t lane,
                  const struct kvw_item *items, uint32_t n_items);
bool player_commit(struct player *player, uint32_t rank, uint32_t lane,
                   const uint64_t *publish);
bool player_abort(struct player *player, uint32_t rank, uint32_t lane);
bool player_step(struct player *player, uint32_t rank, uint32_t lane,
                 const struct m_call *call);
bool player_recover(struct player *player, uint32_t rank, uint32_t lane);
/** Make a call that is no commit, on the library alone. @return what it answers. */
KVW_NODISCARD int call_make(struct kvw_cache *cache, uint32_t lane,
                            const struct m_call *call);

/* ---- play_fill.c: rows of the open chunk, written on both sides ---- */

bool player_update(struct player *player, uint32_t rank, uint32_t lane, uint32_t layer,
                   uint64_t row_first, uint64_t n_rows, uint32_t shape);
bool player_slots(struct player *player, uint32_t rank, uint32_t lane, uint32_t layer,
                  uint64_t row_first, uint64_t n_rows, bool is_told);
/** Write whatever is missing for a commit of `n[group]` rows. */
bool player_fill(struct player *player, uint32_t rank, uint32_t lane, const uint64_t *n,
                 uint32_t shape);

#endif
