/* SPDX-License-Identifier: Apache-2.0 */
/* A run: from options to the last frame, the same on every rank. */
#ifndef VIDEO_RUN_H
#define VIDEO_RUN_H

#include "examples/common/fail.h"
#include "examples/common/ranks.h"
#include "examples/video/options.h"

/** Make a video. All ranks call it; it ends in agreement. @return 0 or -EINVAL. */
int run_video(const void *options, struct ranks *ranks, struct fail *fail);

#endif
