/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of one video; how it is opened is in session_open.c. */
#include "examples/video/session.h"

#include <errno.h>

void session_close(struct session *session)
{
    kvw_detach(session->cache);
    kvw_disconnect(session->client);
    *session = (struct session){0};
}

uint32_t session_prompt(const struct session *session, uint64_t frame)
{
    const struct settings *settings = &session->plan.settings;
    uint32_t number = 0;

    while (number + 1 < settings->n_prompts &&
           settings->prompt[number + 1].first_frame <= frame)
        number++;
    return number;
}

int session_begin(struct session *session, struct fail *fail)
{
    const uint64_t epoch = session_prompt(session, session->n_frames) + 1;
    const struct kvw_item drop = {.group = session->group_cross};
    struct kvw_item items[3] = {
        {.group = session->group_self,
         .row = session->n_frames * VIDEO_FRAME_ROWS,
         .n = VIDEO_ROWS},
        {.group = session->group_frames, .row = session->n_frames, .n = VIDEO_FRAMES},
        {.group = session->group_cross,
         .has_epoch = 1,
         .n = VIDEO_WORDS,
         .epoch = epoch},
    };
    struct kvw_begun begun[3];
    int result = 0;

    session->is_prompt_new = session->prompt_epoch != epoch;
    if (session->is_prompt_new && session->prompt_epoch != 0)
        result = kvw_reset(session->cache, 0, &drop, 1);
    if (result < 0)
        return cache_refused(fail, "reset of cross", result);
    if (session->is_prompt_new)
        session->prompt_epoch = 0;
    result = kvw_begin(session->cache, 0, items, session->is_prompt_new ? 3 : 2, begun);
    if (result < 0)
        return cache_refused(fail, "begin", result);
    session->position = begun[0].position;
    return 0;
}

int session_write_frames(struct session *session, const float *frames,
                         struct fail *fail)
{
    const struct kvw_source source = {frames, sizeof(float) * VIDEO_FRAME_PIXELS, 0};
    int result =
        kvw_update(session->cache, 0, session->frames, 0, VIDEO_FRAMES, &source);

    return result < 0 ? cache_refused(fail, "update of frames", result) : 0;
}

int session_commit(struct session *session, struct fail *fail)
{
    int result = kvw_commit(session->cache, 0, NULL, 0);

    if (result < 0)
        return cache_refused(fail, "commit", result);
    if (session->is_prompt_new) {
        session->prompt_epoch = session_prompt(session, session->n_frames) + 1;
        session->prompt_writes++;
    }
    session->n_frames += VIDEO_FRAMES;
    return 0;
}

int session_read_frames(const struct session *session, uint64_t first, uint64_t n,
                        float *frames, struct fail *fail)
{
    return cache_read_rows(session->cache, session->frames, "frames", first, n,
                           sizeof(float) * VIDEO_FRAME_PIXELS, frames, fail);
}
