/* SPDX-License-Identifier: Apache-2.0 */
/* Counter-based randomness and softmax over a vocabulary. No state. */
#include "examples/generate/sample.h"

#include <math.h>

void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* In [0, 1), 53 bits. */
static double uniform(uint64_t seed, uint64_t row)
{
    const uint32_t counter[4] = {(uint32_t)row, (uint32_t)(row >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t words[4];

    philox(counter, key, words);
    return (double)(((uint64_t)words[1] << 32 | words[0]) >> 11) * 0x1p-53;
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
