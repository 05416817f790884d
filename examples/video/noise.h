/* SPDX-License-Identifier: Apache-2.0 */
/* The noise that a chunk begins as, and the order of pixels in tokens. */
#ifndef VIDEO_NOISE_H
#define VIDEO_NOISE_H

#include <stdint.h>

/**
 * Normal numbers for a frame: a function of (seed, frame, pass) and the pixel alone, by
 * Philox and Box and Muller ("A Note on the Generation of Random Normal Deviates",
 * 1958).
 *
 * @param out  [out] VIDEO_FRAME_PIXELS, line by line
 */
void noise_frame(uint64_t seed, uint64_t frame, uint32_t pass, float *out);

/** Frames [VIDEO_FRAMES, VIDEO_FRAME_PIXELS] to tokens [VIDEO_ROWS, VIDEO_PIXELS]. */
void tokens_from_frames(const float *frames, float *tokens);

/** The way back. */
void tokens_to_frames(const float *tokens, float *frames);

#endif
