/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grey PNG files, still or animated. W3C, "Portable Network Graphics (PNG) Specification
 * (Third Edition)", sections 5 and 11.
 */
#ifndef VIDEO_PNG_H
#define VIDEO_PNG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "examples/common/fail.h"

struct png {
    FILE *file;
    const char *path;
    uint32_t width, height;
    uint32_t n_frames;   /* 1: a still picture */
    uint32_t n_written;  /* frames */
    uint32_t sequence;   /* of the animation's chunks */
    uint32_t frame_ms;   /* that each is shown */
    unsigned char *line; /* a frame's lines, each behind its filter byte */
    unsigned char *packed;
    size_t packed_bytes;
};

/** Begin a file. png_close() must follow, also on failure. @return 0 or -EINVAL. */
int png_open(struct png *png, const char *path, uint32_t width, uint32_t height,
             uint32_t n_frames, uint32_t frame_ms, struct fail *fail);

/** Add the next frame, width x height bytes of grey. @return 0 or -EINVAL. */
int png_add(struct png *png, const unsigned char *grey, struct fail *fail);

/** End the file, which is whole once all n_frames were added. @return 0 or -EINVAL. */
int png_close(struct png *png, struct fail *fail);

#endif
