/* SPDX-License-Identifier: Apache-2.0 */
/* Names and shapes of the tensors, and who loads which rows. */
#include "examples/video/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME_BYTES 64u

/* Rows of a tensor of n_rows x n_cols. */
static int load(const struct video_model *model, const char *name, uint32_t n_rows,
                struct share share, uint32_t n_cols, struct matrix *matrix,
                struct fail *fail)
{
    const struct tensor *tensor =
        weights_get(&model->weights, name, 2, n_rows, n_cols, fail);

    return tensor != NULL ? tensor_rows(tensor, share, n_cols, matrix, fail) : -EINVAL;
}

static int load_vector(const struct video_model *model, const char *name,
                       uint32_t n_elems, float **vector, struct fail *fail)
{
    const struct tensor *tensor =
        weights_get(&model->weights, name, 1, n_elems, 1, fail);

    return tensor != NULL ? tensor_vector(tensor, n_elems, vector, fail) : -EINVAL;
}

/* A whole matrix of embeddings. */
static int load_table(const struct video_model *model, const char *name,
                      uint32_t n_rows, float **table, struct fail *fail)
{
    struct matrix matrix = {0};
    int result = load(model, name, n_rows, (struct share){0, n_rows}, VIDEO_HIDDEN,
                      &matrix, fail);

    *table = matrix.w;
    return result;
}

/* A linear map with a bias that everybody has whole. */
static int load_map(const struct video_model *model, const char *name, uint32_t n_rows,
                    uint32_t n_cols, struct matrix *matrix, float **bias,
                    struct fail *fail)
{
    char part[NAME_BYTES];

    snprintf(part, sizeof(part), "%s.weight", name);
    if (load(model, part, n_rows, (struct share){0, n_rows}, n_cols, matrix, fail) != 0)
        return -EINVAL;
    snprintf(part, sizeof(part), "%s.bias", name);
    return load_vector(model, part, n_rows, bias, fail);
}

int video_model_open(const char *folder, struct video_model *model, struct fail *fail)
{
    const struct tensor *leave;

    *model = (struct video_model){0};
    if (weights_open(folder, &model->weights, fail) != 0)
        return -EINVAL;
    leave = weights_get(&model->weights, "leave.weight", 2, VIDEO_PIXELS, VIDEO_HIDDEN,
                        fail);
    if (leave == NULL)
        return -EINVAL;
    /* The last matrix stands for the weights: training moves every element of it. */
    model->fingerprint =
        hash_bytes(hash_bytes(0, &model->weights.file[0].header_hash, sizeof(uint64_t)),
                   leave->data, leave->n_bytes);
    return 0;
}

static int load_layer(struct video_model *model, uint32_t i, uint32_t n_ranks,
                      uint32_t rank, struct share heads, struct fail *fail)
{
    struct video_layer *to = &model->layer[i];
    const uint32_t first = heads.first * VIDEO_HEAD_DIM, n = heads.n * VIDEO_HEAD_DIM;
    const struct share hidden = share_of(VIDEO_HIDDEN, n_ranks, rank);
    const struct {
        const char *name;
        uint32_t n_rows;
        struct share share;
        uint32_t n_cols;
        struct matrix *matrix;
    } parts[] = {
        {"qkv", 3 * VIDEO_HIDDEN, {first, n}, VIDEO_HIDDEN, &to->q},
        {"qkv", 3 * VIDEO_HIDDEN, {VIDEO_HIDDEN + first, n}, VIDEO_HIDDEN, &to->k},
        {"qkv", 3 * VIDEO_HIDDEN, {2 * VIDEO_HIDDEN + first, n}, VIDEO_HIDDEN, &to->v},
        {"out", VIDEO_HIDDEN, hidden, VIDEO_HIDDEN, &to->out},
        {"cross_q", VIDEO_HIDDEN, {first, n}, VIDEO_HIDDEN, &to->cross_q},
        {"cross_kv", 2 * VIDEO_HIDDEN, {first, n}, VIDEO_HIDDEN, &to->cross_k},
        {"cross_kv",
         2 * VIDEO_HIDDEN,
         {VIDEO_HIDDEN + first, n},
         VIDEO_HIDDEN,
         &to->cross_v},
        {"cross_out", VIDEO_HIDDEN, hidden, VIDEO_HIDDEN, &to->cross_out},
        {"up", VIDEO_WIDE, share_of(VIDEO_WIDE, n_ranks, rank), VIDEO_HIDDEN, &to->up},
        {"down", VIDEO_HIDDEN, hidden, VIDEO_WIDE, &to->down},
    };
    char name[NAME_BYTES];

    for (size_t part = 0; part < sizeof(parts) / sizeof(parts[0]); part++) {
        snprintf(name, sizeof(name), "layers.%u.%s.weight", i, parts[part].name);
        if (load(model, name, parts[part].n_rows, parts[part].share, parts[part].n_cols,
                 parts[part].matrix, fail) != 0)
            return -EINVAL;
    }
    snprintf(name, sizeof(name), "layers.%u.table", i);
    return load_vector(model, name, VIDEO_STEP, &to->table, fail);
}

int video_model_load(struct video_model *model, uint32_t n_ranks, uint32_t rank,
                     struct share heads, struct fail *fail)
{
    if (load_map(model, "enter", VIDEO_HIDDEN, VIDEO_PIXELS, &model->enter,
                 &model->enter_bias, fail) != 0 ||
        load_map(model, "time_in", VIDEO_HIDDEN, 2 * VIDEO_TIMES, &model->time_in,
                 &model->time_in_bias, fail) != 0 ||
        load_map(model, "time_out", VIDEO_STEP, VIDEO_HIDDEN, &model->time_out,
                 &model->time_out_bias, fail) != 0 ||
        load_map(model, "leave", VIDEO_PIXELS, VIDEO_HIDDEN, &model->leave,
                 &model->leave_bias, fail) != 0 ||
        load_table(model, "place", VIDEO_ROWS, &model->place, fail) != 0 ||
        load_table(model, "words", VIDEO_BALLS + VIDEO_SPEEDS, &model->words, fail) !=
            0 ||
        load_vector(model, "last_table", 2 * VIDEO_HIDDEN, &model->last_table, fail) !=
            0)
        return -EINVAL;
    for (uint32_t i = 0; i < VIDEO_LAYERS; i++) {
        if (load_layer(model, i, n_ranks, rank, heads, fail) != 0)
            return -EINVAL;
    }
    return 0;
}

void video_model_close(struct video_model *model)
{
    float *owned[] = {model->enter.w,       model->time_in.w,  model->time_out.w,
                      model->leave.w,       model->enter_bias, model->time_in_bias,
                      model->time_out_bias, model->leave_bias, model->place,
                      model->words,         model->last_table};

    for (uint32_t i = 0; i < VIDEO_LAYERS; i++) {
        struct video_layer *layer = &model->layer[i];
        float *parts[] = {layer->q.w,       layer->k.w,         layer->v.w,
                          layer->cross_q.w, layer->cross_k.w,   layer->cross_v.w,
                          layer->out.w,     layer->cross_out.w, layer->down.w,
                          layer->up.w,      layer->table};
        for (size_t j = 0; j < sizeof(parts) / sizeof(parts[0]); j++)
            free(parts[j]);
    }
    for (size_t i = 0; i < sizeof(owned) / sizeof(owned[0]); i++)
        free(owned[i]);
    weights_close(&model->weights);
    *model = (struct video_model){0};
}
