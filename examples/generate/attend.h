/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of this rank's heads, on the shared rows themselves: new rows are converted
 * into their slots, and the kernel reads the pieces of the view. No key or value is
 * copied.
 *
 * Positions `window`: keys lie unrotated and are rotated on read, by their index among
 * the rows that the query sees. `absolute`: keys lie rotated by their row number.
 *
 * Where ranks share the rows of the same heads, each attends to its own and the partial
 * results are merged: queries are on all of them, and no key or value moves.
 *
 * A query sees the same rows at the same positions however the text is cut into steps:
 * where the rule `window` gives the queries of a step different positions for one row,
 * each query is a call of its own.
 */
#ifndef GENERATE_ATTEND_H
#define GENERATE_ATTEND_H

#include <kvwheel/kernels.h>

#include "examples/generate/kernels.h"
#include "examples/generate/session.h"

struct attend {
    struct session *session; /* borrowed; see attend_use() */
    struct kernels kernels;
    uint32_t n_heads; /* query heads of this rank */
    uint32_t n_kv_heads;
    uint32_t head_dim;
    bool is_window;               /* positions */
    struct kvw_rope_table window; /* of window positions; owned */
    struct kvw_rope_table chunk;  /* of the open rows' own positions; owned */
    float *tables;                /* the memory of both */
    double *inv_freq;             /* n_pairs */
    struct attend_rows *rows;     /* of one call of the kernel; owned */
    /* Where rows are split: attention over this rank's, before it is merged. */
    float *part;     /* [chunk, n_heads, head_dim]; NULL where they are not */
    float *part_lse; /* [chunk, n_heads] */
};

/** Go on with another session of the same shape. */
void attend_use(struct attend *attend, struct session *session);

/** Prepare for a session that is open; `kernels`: a name that was checked, or NULL.
 *  attend_fini() is allowed also on failure.
 *  @return 0 or -EINVAL */
int attend_init(struct attend *attend, struct session *session, const char *kernels,
                struct fail *fail);

void attend_fini(struct attend *attend);

/** After session_begin(): set the positions of the open rows. */
void attend_step(struct attend *attend);

/** Rotate queries, f32 [open rows, n_heads, head_dim], in place. */
int attend_rotate_queries(const struct attend *attend, float *q, struct fail *fail);

/** Write the open rows' k and v, f32 [open rows, n_kv_heads, head_dim], into a layer.
 * With absolute positions k is rotated in place first. */
int attend_write(const struct attend *attend, uint32_t layer, float *k, const float *v,
                 struct fail *fail);

/** Attend from rotated queries to the layer: out is f32 [open rows, n_heads, head_dim].
 */
int attend_run(const struct attend *attend, uint32_t layer, const float *q, float *out,
               struct fail *fail);

#endif
