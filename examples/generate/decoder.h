/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of the decoder: ids in, the last hidden state of each out. What ranks
 * exchange, four times a layer, are activations: attention outputs, o_proj's share,
 * feed-forward activations, down_proj's share.
 *
 * A rank that fails goes on exchanging (what it sends is of no use), so that nobody
 * waits for it; ranks_max() of the next step or ranks_agree() tells the others.
 */
#ifndef GENERATE_DECODER_H
#define GENERATE_DECODER_H

#include "examples/common/ranks.h"
#include "examples/generate/attend.h"
#include "examples/generate/model.h"
#include "examples/generate/session.h"

struct decoder {
    struct model *model; /* borrowed, as all of these */
    struct session *session;
    const struct ranks *ranks;
    struct attend attend;
    struct ranks_columns heads; /* of attention outputs */
    struct ranks_columns hidden;
    struct ranks_columns columns; /* of the feed-forward */
    struct ranks_columns vocab;
    float *memory; /* of all that follow */
    float *x;      /* [n, hidden]: the residual stream */
    float *norm;   /* [n, hidden] */
    float *q, *k, *v;
    float *mine; /* this rank's share of an exchange */
    float *up;
    float *all;    /* what an exchange gives */
    float *logits; /* [vocab] */
};

/** Prepare for steps of up to the session's chunk; `kernels` as in attend_init(). All ranks call it; it ends in
 * agreement. decoder_fini() is allowed also on failure. @return 0 or -EINVAL */
int decoder_init(struct decoder *decoder, struct model *model, struct session *session,
                 const char *kernels, struct ranks *ranks, struct fail *fail);

void decoder_fini(struct decoder *decoder);

/** Go on with another session of the same shape and places. */
void decoder_use(struct decoder *decoder, struct session *session);

/** Feed the ids of the session's open rows: writes their K and V into every layer. */
void decoder_feed(struct decoder *decoder, const uint64_t *id, struct fail *fail);

/** Logits behind open row `i` of the last feed, f32 [vocab], on every rank. */
const float *decoder_logits(struct decoder *decoder, uint32_t i);

#endif
