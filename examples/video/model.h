/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The video model of examples/video/model.py as one rank holds it: of every matrix of a
 * layer only the rows that it computes, as in kvwheel-generate: q, k and v of its heads,
 * an even share of what follows. Small matrices are everybody's. Every dot product is
 * computed whole by one rank.
 *
 * The shape is fixed; model.py says what the numbers are.
 */
#ifndef VIDEO_MODEL_H
#define VIDEO_MODEL_H

#include "examples/common/fail.h"
#include "examples/common/matrix.h"
#include "examples/common/ranks.h"
#include "examples/common/weights.h"

#define VIDEO_SIZE 16u  /* pixels of a side of a frame */
#define VIDEO_PATCH 4u  /* pixels of a side of a token */
#define VIDEO_FRAMES 3u /* of a chunk */
#define VIDEO_SIDE (VIDEO_SIZE / VIDEO_PATCH)
#define VIDEO_FRAME_ROWS (VIDEO_SIDE * VIDEO_SIDE)
#define VIDEO_ROWS (VIDEO_FRAMES * VIDEO_FRAME_ROWS) /* of a chunk */
#define VIDEO_PIXELS (VIDEO_PATCH * VIDEO_PATCH)     /* of a token */
#define VIDEO_FRAME_PIXELS (VIDEO_SIZE * VIDEO_SIZE)
#define VIDEO_WINDOW 5u /* chunks, with the sink and the current one */
#define VIDEO_HEADS 4u
#define VIDEO_HEAD_DIM 32u
#define VIDEO_HIDDEN (VIDEO_HEADS * VIDEO_HEAD_DIM)
#define VIDEO_WIDE (4 * VIDEO_HIDDEN)
#define VIDEO_LAYERS 6u
#define VIDEO_WORDS 2u /* tokens of a prompt: how many balls, how fast */
#define VIDEO_BALLS 3u
#define VIDEO_SPEEDS 2u
#define VIDEO_TIMES 32u               /* sines and cosines of the time */
#define VIDEO_STEP (6 * VIDEO_HIDDEN) /* what a time does to a layer */
#define VIDEO_SHIFT 3.0               /* of the times of the passes, towards noise */

struct video_layer {
    struct matrix q, k, v;                   /* of this rank's heads */
    struct matrix cross_q, cross_k, cross_v; /* the same */
    struct matrix out, cross_out, down;      /* a share of VIDEO_HIDDEN */
    struct matrix up;                        /* a share of VIDEO_WIDE */
    float *table;                            /* [VIDEO_STEP] */
};

struct video_model {
    struct weights weights;
    struct video_layer layer[VIDEO_LAYERS];
    struct matrix enter, time_in, time_out, leave;
    float *enter_bias, *time_in_bias, *time_out_bias, *leave_bias;
    float *place;         /* [VIDEO_ROWS, VIDEO_HIDDEN] */
    float *words;         /* [VIDEO_BALLS + VIDEO_SPEEDS, VIDEO_HIDDEN] */
    float *last_table;    /* [2 VIDEO_HIDDEN] */
    uint64_t fingerprint; /* of the file's header and some weights */
};

/** Map the weights of a folder. video_model_close() is allowed afterwards, also on
 *  failure. @return 0 or -EINVAL. */
int video_model_open(const char *folder, struct video_model *model, struct fail *fail);

/** Load what rank `rank` of `n_ranks` computes, which holds `heads`. @return 0, -EINVAL. */
int video_model_load(struct video_model *model, uint32_t n_ranks, uint32_t rank,
                     struct share heads, struct fail *fail);

void video_model_close(struct video_model *model);

#endif
