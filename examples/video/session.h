/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of one video, and this rank's attachment to it. One cache with four groups:
 *
 *   self    K (unrotated) and V of every layer; rolls; window kind chunk; split by heads
 *   cross   K and V of the prompt; never rolls; its epoch is the prompt's number from 1
 *   frames  all pixels of the video, from its first; never rolls; held by rank 0
 *   job     one row: seed, passes, prompts, fingerprint of the model
 *
 * The first step publishes the job. Every later one publishes a chunk: its rows of
 * `self`, its frames, and where a prompt begins the rows of `cross`, which is reset before.
 * So the committed rows say all that there is to know about a video.
 *
 * At a prompt switch `self` keeps its rows: sink and window were made under the old prompt.
 */
#ifndef VIDEO_SESSION_H
#define VIDEO_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include <kvwheel/kvwheel.h>

#include "examples/common/cache.h"
#include "examples/common/fail.h"
#include "examples/common/ranks.h"
#include "examples/video/model.h"
#include "examples/video/options.h"

/* What rank 0 finds or decides, and gives to everybody. */
struct session_plan {
    struct settings settings;
    char name[CACHE_NAME_BYTES];
    uint32_t frames_max; /* rows of the group frames */
    bool was_there;      /* the cache existed */
    bool is_resumed;     /* the video had begun */
    bool is_kept;
};

struct session {
    struct kvw_client *client;
    struct kvw_cache *cache;
    struct session_plan plan;
    struct share heads; /* of this rank */
    uint32_t group_self, group_cross, group_frames, group_job;
    struct kvw_layer self[VIDEO_LAYERS], cross[VIDEO_LAYERS], frames, job;
    uint64_t n_frames;      /* committed */
    uint64_t resumed_frame; /* frames that were there */
    uint64_t prompt_epoch;  /* of the rows in cross; 0: none */
    uint64_t position;      /* of the open chunk's first row, in the window */
    uint64_t prompt_writes; /* by this run */
    bool is_prompt_new;     /* the open step writes cross */
};

/** Create or find the cache, attach every rank, recover, and publish the job if the video
 *  has not begun. All ranks call it; it ends in agreement. session_close() is allowed
 *  afterwards. @return 0 or -EINVAL, the same on every rank. */
int session_open(struct session *session, const struct options *options,
                 const struct video_model *model, const struct ranks *ranks,
                 struct fail *fail);

/** Detach. A cache that is not kept goes with its last rank. */
void session_close(struct session *session);

/** Number of the prompt under which a frame is made. */
uint32_t session_prompt(const struct session *session, uint64_t frame);

/** Open the step of the next chunk. */
int session_begin(struct session *session, struct fail *fail);

/** Write the open chunk's frames, f32 [VIDEO_FRAMES, VIDEO_FRAME_PIXELS] (rank 0). */
int session_write_frames(struct session *session, const float *frames,
                         struct fail *fail);

/** Publish the open step. */
int session_commit(struct session *session, struct fail *fail);

/** Read frames [first, first + n) that were committed (rank 0). */
int session_read_frames(const struct session *session, uint64_t first, uint64_t n,
                        float *frames, struct fail *fail);

#endif
