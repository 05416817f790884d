/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From logits to a token, and to the surprise of a token. Pure functions; all sums in
 * double and in the order of the vocabulary. Randomness is a function of (seed, row),
 * so that nothing but the seed has to be kept for a run to go on as it would have gone
 * on.
 */
#ifndef GENERATE_SAMPLE_H
#define GENERATE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

struct sampling {
    bool is_greedy;
    float temperature; /* > 0 */
    uint64_t seed;
};

/** Choose the token that follows row `row`. Greedy: the largest logit, the lowest id of
 *  equals. Else softmax(logits / temperature). NaN logits never win. */
uint32_t sample_token(const struct sampling *sampling, const float *logits,
                      uint32_t vocab, uint64_t row);

/** -log softmax(logits)[id], in nats. */
double sample_nll(const float *logits, uint32_t vocab, uint32_t id);

#endif
