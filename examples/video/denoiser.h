/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass of the model over the open chunk. Every pass overwrites the chunk's rows in
 * every layer of `self`; attention runs on the shared rows, the window's and the chunk's
 * own. What ranks exchange are activations, six times a layer.
 *
 * A rank that fails goes on exchanging (what it sends is of no use), so that nobody waits
 * for it; the next agreement tells the others.
 */
#ifndef VIDEO_DENOISER_H
#define VIDEO_DENOISER_H

#include <kvwheel/kernels.h>

#include "examples/common/ranks.h"
#include "examples/video/model.h"
#include "examples/video/session.h"

struct denoiser {
    struct video_model *model; /* borrowed, as all of these */
    struct session *session;
    const struct ranks *ranks;
    struct ranks_columns heads; /* of attention outputs */
    struct ranks_columns hidden;
    struct ranks_columns wide;  /* of the feed-forward */
    struct kvw_rope_table rope; /* of a window's rows */
    float *memory;              /* of all that follow */
    float *cos, *sin;
    float *x;    /* [VIDEO_ROWS, VIDEO_HIDDEN]: the residual stream */
    float *norm; /* the same */
    float *q, *k, *v;
    float *mine; /* this rank's share of an exchange */
    float *all;  /* what an exchange gives */
    float step[VIDEO_STEP];
};

/** Load this rank's weights and prepare. All ranks call it; it ends in agreement.
 *  denoiser_fini() is allowed also on failure. @return 0 or -EINVAL */
int denoiser_init(struct denoiser *denoiser, struct video_model *model,
                  struct session *session, struct ranks *ranks, struct fail *fail);

void denoiser_fini(struct denoiser *denoiser);

/** Write K and V of the open step's prompt into every layer of `cross`. */
void denoiser_prompt(struct denoiser *denoiser, const struct prompt *prompt,
                     struct fail *fail);

/**
 * One pass.
 *
 * @param tokens  [VIDEO_ROWS, VIDEO_PIXELS]: the chunk at time t
 * @param t       1 noise .. 0 clean
 * @param said    [out] what the chunk is without noise; the same on every rank
 */
void denoiser_pass(struct denoiser *denoiser, const float *tokens, double t,
                   float *said, struct fail *fail);

/** Time of pass `pass`, counted from 0: it falls from 1, and pass `passes` would be at 0. */
double denoiser_time(uint32_t pass, uint32_t passes);

#endif
