/* SPDX-License-Identifier: Apache-2.0 */
/* Hugging Face's names of a Llama's tensors, their shapes, and who loads which rows. */
#include "examples/generate/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/matrix.h"
#include "examples/common/ranks.h"

#define NAME_BYTES 96u

enum { /* the matrices of a layer, in the order of matrix_names */
       LAYER_Q,
       LAYER_K,
       LAYER_V,
       LAYER_O,
       LAYER_GATE,
       LAYER_UP,
       LAYER_DOWN,
       LAYER_MATRICES
};

static const char *const matrix_names[LAYER_MATRICES] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj",
};

static const char *const norm_names[2] = {"input_layernorm",
                                          "post_attention_layernorm"};

/* Rows and columns of a layer's matrix. */
static void matrix_shape(const struct model_config *config, int which, uint32_t *n_rows,
                         uint32_t *n_cols)
{
    uint32_t q_rows = config->n_heads * config->head_dim;
    uint32_t kv_rows = config->n_kv_heads * config->head_dim;

    *n_cols = config->hidden;
    if (which == LAYER_Q) {
        *n_rows = q_rows;
    } else if (which == LAYER_K || which == LAYER_V) {
        *n_rows = kv_rows;
    } else if (which == LAYER_GATE || which == LAYER_UP) {
        *n_rows = config->intermediate;
    } else {
        *n_rows = config->hidden;
        *n_cols = which == LAYER_O ? q_rows : config->intermediate;
    }
}

/* A layer's tensor, checked; which < 0: norm -1 - which. */
static const struct tensor *layer_tensor(const struct model *model, uint32_t layer,
                                         int which, struct fail *fail)
{
    char name[NAME_BYTES];
    uint32_t n_rows, n_cols;

    snprintf(name, sizeof(name), "model.layers.%u.%s.weight", layer,
             which < 0 ? norm_names[-1 - which] : matrix_names[which]);
    if (which < 0)
        return weights_get(&model->weights, name, 1, model->config.hidden, 1, fail);
    matrix_shape(&model->config, which, &n_rows, &n_cols);
    return weights_get(&model->weights, name, 2, n_rows, n_cols, fail);
}

static int check_tensors(struct model *model, struct fail *fail)
{
    const struct model_config *config = &model->config;

    model->embedding = weights_get(&model->weights, "model.embed_tokens.weight", 2,
                                   config->vocab, config->hidden, fail);
    model->output = model->embedding;
    if (!config->is_tied && !has_failed(fail))
        model->output = weights_get(&model->weights, "lm_head.weight", 2, config->vocab,
                                    config->hidden, fail);
    for (uint32_t layer = 0; layer < config->n_layers; layer++) {
        for (int which = -2; which < LAYER_MATRICES; which++) {
            if (has_failed(fail) || layer_tensor(model, layer, which, fail) == NULL)
                return -EINVAL;
        }
    }
    return has_failed(fail) ? -EINVAL : 0;
}

/* The final norm stands for the weights: training moves every element of it. */
static int take_fingerprint(struct model *model, struct fail *fail)
{
    const struct tensor *norm = weights_get(&model->weights, "model.norm.weight", 1,
                                            model->config.hidden, 1, fail);
    uint64_t hash = hash_bytes(0, &model->config.rope_theta, sizeof(double));

    if (norm == NULL)
        return -EINVAL;
    hash = hash_bytes(hash, &model->config.rms_eps, sizeof(double));
    for (uint32_t i = 0; i < model->weights.n_files; i++)
        hash = hash_bytes(hash, &model->weights.file[i].header_hash, sizeof(uint64_t));
    model->fingerprint = hash_bytes(hash, norm->data, norm->n_bytes);

    model->norm = malloc(sizeof(float) * model->config.hidden);
    if (model->norm == NULL)
        return fail_memory(fail, norm->name);
    return tensor_read(norm, 0, 1, model->config.hidden, model->norm, fail);
}

int model_open(const char *folder, struct model *model, struct fail *fail)
{
    *model = (struct model){0};
    if (config_read(folder, &model->config, fail) != 0 ||
        weights_open(folder, &model->weights, fail) != 0 ||
        check_tensors(model, fail) != 0)
        return -EINVAL;
    return take_fingerprint(model, fail);
}

static int load_layer(struct model *model, uint32_t layer, const struct share *shares,
                      struct fail *fail)
{
    struct model_layer *to = &model->layer[layer];
    struct matrix *matrices[LAYER_MATRICES] = {&to->q,    &to->k,  &to->v,   &to->o,
                                               &to->gate, &to->up, &to->down};
    float **norms[2] = {&to->norm_attention, &to->norm_mlp};

    for (int which = -2; which < LAYER_MATRICES; which++) {
        const struct tensor *tensor = layer_tensor(model, layer, which, fail);
        uint32_t n_rows, n_cols;
        int result;
        if (tensor == NULL)
            return -EINVAL;
        if (which < 0) {
            result =
                tensor_vector(tensor, model->config.hidden, norms[-1 - which], fail);
        } else {
            matrix_shape(&model->config, which, &n_rows, &n_cols);
            result = tensor_rows(tensor, shares[which], n_cols, matrices[which], fail);
        }
        if (result != 0)
            return result;
    }
    return 0;
}

int model_load(struct model *model, uint32_t n_ranks, uint32_t rank,
               struct share kv_heads, struct fail *fail)
{
    const struct model_config *config = &model->config;
    const uint32_t group_dim = config->n_heads / config->n_kv_heads * config->head_dim;
    const struct share q = {kv_heads.first * group_dim, kv_heads.n * group_dim};
    const struct share kv = {kv_heads.first * config->head_dim,
                             kv_heads.n * config->head_dim};
    const struct share hidden = share_of(config->hidden, n_ranks, rank);
    const struct share columns = share_of(config->intermediate, n_ranks, rank);
    const struct share shares[LAYER_MATRICES] = {q,       kv,      kv,    hidden,
                                                 columns, columns, hidden};

    model->layer = calloc(config->n_layers, sizeof(model->layer[0]));
    if (model->layer == NULL)
        return fail_memory(fail, "the table of layers");
    for (uint32_t layer = 0; layer < config->n_layers; layer++) {
        if (load_layer(model, layer, shares, fail) != 0)
            return -EINVAL;
    }
    return tensor_rows(model->output, share_of(config->vocab, n_ranks, rank),
                       config->hidden, &model->head, fail);
}

void model_close(struct model *model)
{
    for (uint32_t i = 0; model->layer != NULL && i < model->config.n_layers; i++) {
        struct model_layer *layer = &model->layer[i];
        float *owned[] = {layer->norm_attention,
                          layer->norm_mlp,
                          layer->q.w,
                          layer->k.w,
                          layer->v.w,
                          layer->o.w,
                          layer->gate.w,
                          layer->up.w,
                          layer->down.w};
        for (size_t j = 0; j < sizeof(owned) / sizeof(owned[0]); j++)
            free(owned[j]);
    }
    free(model->layer);
    free(model->norm);
    free(model->head.w);
    weights_close(&model->weights);
    *model = (struct model){0};
}

int model_embed(const struct model *model, uint32_t id, float *out, struct fail *fail)
{
    return tensor_read(model->embedding, id, 1, model->config.hidden, out, fail);
}
