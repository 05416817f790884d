/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that make and check calls (play_call.c, play_fill.c, play_view.c,
 * play_rows.c) use of each other. */
#ifndef KVW_TESTS_MODEL_PLAY_PARTS_H
#define KVW_TESTS_MODEL_PLAY_PARTS_H

#include "tests/model/play.h"

/* ---- play_call.c ---- */

/** Note all bytes of the segments, before a call that may be refused. */
void call_remember(struct player *player);
/** Count and log an answer. @return false if it is not expected, or if a refusal has
 * changed what call_remember() noted. */
bool call_judge(struct player *player, const char *call, uint32_t rank, uint32_t lane,
                const struct expect *expect, int result);

/* ---- play_rows.c ---- */

/* What a view should be. */
struct wanted {
    uint32_t lane;
    uint32_t layer;
    uint64_t step;
    uint64_t ranks;
    bool is_staged;
    bool is_shared;        /* staged, and shown to others than its rank */
    uint64_t staged_epoch; /* of the open chunk: that may be shown too */
    struct m_chunk chunk;
    uint32_t n_shown;
    struct shown shown[M_SHOWN];
};

/** Compare a view; sets what is shown in `wanted`. */
bool view_compare(struct player *player, struct wanted *wanted,
                  const struct kvw_view *view);
/** A number of all bytes of the committed rows that a view shows, or of the others. */
uint64_t view_digest(const struct kvw_view *view, bool is_current);

#endif
