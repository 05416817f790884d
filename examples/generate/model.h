/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Llama model as one rank holds it. Of every matrix a rank loads only the rows that
 * it computes:
 *
 *   q_proj, k_proj, v_proj   those of its heads
 *   o_proj, down_proj        an even share of the hidden size
 *   gate_proj, up_proj       an even share of the feed-forward columns
 *   lm_head                  an even share of the vocabulary
 *
 * so that every dot product is computed whole by one rank and no sum is split.
 * Activations, not partial sums, go between ranks. The embedding is read from the
 * mapped file, a row at a time; the norms are everybody's.
 */
#ifndef GENERATE_MODEL_H
#define GENERATE_MODEL_H

#include "examples/common/fail.h"
#include "examples/common/matrix.h"
#include "examples/common/ranks.h"
#include "examples/common/weights.h"
#include "examples/generate/config.h"
#include "examples/generate/layers.h"

struct model_layer {
    float *norm_attention;
    float *norm_mlp;
    struct matrix q, k, v, o;
    struct matrix gate, up, down;
};

struct model {
    struct model_config config;
    struct weights weights;
    const struct tensor *embedding;
    const struct tensor *output; /* the embedding if tied */
    struct model_layer *layer;
    float *norm;
    struct matrix head;
    uint64_t fingerprint; /* of config, headers and some weights */
};

/** Read config.json and check that every tensor is there in the right shape, without
 *  loading one. model_close() is allowed afterwards, also on failure. @return 0,
 * -EINVAL */
int model_open(const char *folder, struct model *model, struct fail *fail);

/** Load the rows of rank `rank` of `n_ranks`, which holds the KV heads of `kv_heads`.
 *  @return 0 or -EINVAL. */
int model_load(struct model *model, uint32_t n_ranks, uint32_t rank,
               struct share kv_heads, struct fail *fail);

void model_close(struct model *model);

/** The embedding of a token id < vocab: f32 [hidden]. @return 0 or -EINVAL. */
int model_embed(const struct model *model, uint32_t id, float *out, struct fail *fail);

#endif
