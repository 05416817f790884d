/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax over a vocabulary, and a choice by it. No state. */
#include "examples/generate/sample.h"

#include <math.h>

#include "examples/common/philox.h"

static double uniform(uint64_t seed, uint64_t row)
{
    const uint32_t counter[4] = {(uint32_t)row, (uint32_t)(row >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t words[4];

    philox(counter, key, words);
    return philox_uniform(words[0], words[1]);
}

static uint32_t largest(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;

    for (uint32_t id = 1; id < vocab; id++) {
        if (logits[id] > logits[best] || isnan(logits[best]))
            best = id;
    }
    return best;
}

uint32_t sample_token(const struct sampling *sampling, const float *logits,
                      uint32_t vocab, uint64_t row)
{
    const uint32_t best = largest(logits, vocab);
    const double scale = 1.0 / (double)sampling->temperature;
    double total = 0, left;

    if (sampling->is_greedy)
        return best;
    for (uint32_t id = 0; id < vocab; id++) {
        if (!isnan(logits[id]))
            total += exp(((double)logits[id] - (double)logits[best]) * scale);
    }
    left = uniform(sampling->seed, row) * total;
    for (uint32_t id = 0; id < vocab; id++) {
        if (isnan(logits[id]))
            continue;
        left -= exp(((double)logits[id] - (double)logits[best]) * scale);
        if (left < 0)
            return id;
    }
    return best; /* rounding left a remainder, or the logits are infinite */
}

double sample_nll(const float *logits, uint32_t vocab, uint32_t id)
{
    const double top = (double)logits[largest(logits, vocab)];
    double total = 0;

    for (uint32_t i = 0; i < vocab; i++)
        total += exp((double)logits[i] - top);
    return log(total) + top - (double)logits[id];
}
