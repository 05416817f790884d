/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that rank 0 writes: JSON on stdout, progress on stderr, pictures in files. The
 * other ranks do not call it. */
#ifndef VIDEO_OUTPUT_H
#define VIDEO_OUTPUT_H

#include "examples/common/fail.h"
#include "examples/video/session.h"

struct output {
    const struct options *options;
    uint32_t n_ranks;
    double started;
    double reported; /* when progress was last written */
};

void output_open(struct output *output, const struct options *options,
                 uint32_t n_ranks);

/** A line on stderr that says where a video goes on. */
void output_resumed(const struct output *output, const struct session *session);

/** A chunk was made, the session's last one. @return 0 or -EINVAL. */
int output_chunk(struct output *output, const struct session *session,
                 struct fail *fail);

/** Write the files that were asked for, of the first n_frames. @return 0 or -EINVAL. */
int output_pictures(const struct output *output, const struct session *session,
                    struct fail *fail);

/** The end of a run. @return 0 or -EINVAL. */
int output_result(const struct output *output, const struct session *session,
                  struct fail *fail);

#endif
