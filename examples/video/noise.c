/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of numbers, two from each call of Philox. */
#include "examples/video/noise.h"

#include <math.h>

#include "examples/common/philox.h"
#include "examples/video/model.h"

void noise_frame(uint64_t seed, uint64_t frame, uint32_t pass, float *out)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    for (uint32_t i = 0; i < VIDEO_FRAME_PIXELS; i += 2) {
        const uint32_t counter[4] = {(uint32_t)frame, (uint32_t)(frame >> 32), pass, i};
        uint32_t words[4];
        philox(counter, key, words);
        double radius = sqrt(-2 * log(1 - philox_uniform(words[0], words[1])));
        double angle = 2 * M_PI * philox_uniform(words[2], words[3]);
        out[i] = (float)(radius * cos(angle));
        out[i + 1] = (float)(radius * sin(angle));
    }
}

/* Where pixel `i` of a chunk's frames lies in its tokens. */
static uint32_t place_of(uint32_t i)
{
    const uint32_t frame = i / VIDEO_FRAME_PIXELS;
    const uint32_t y = i / VIDEO_SIZE % VIDEO_SIZE, x = i % VIDEO_SIZE;
    const uint32_t row =
        (frame * VIDEO_SIDE + y / VIDEO_PATCH) * VIDEO_SIDE + x / VIDEO_PATCH;

    return row * VIDEO_PIXELS + y % VIDEO_PATCH * VIDEO_PATCH + x % VIDEO_PATCH;
}

void tokens_from_frames(const float *frames, float *tokens)
{
    for (uint32_t i = 0; i < VIDEO_FRAMES * VIDEO_FRAME_PIXELS; i++)
        tokens[place_of(i)] = frames[i];
}

void tokens_to_frames(const float *tokens, float *frames)
{
    for (uint32_t i = 0; i < VIDEO_FRAMES * VIDEO_FRAME_PIXELS; i++)
        frames[i] = tokens[place_of(i)];
}
