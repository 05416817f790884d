/* SPDX-License-Identifier: Apache-2.0 */
/* One file or several behind one lookup by name. */
#include "examples/common/weights.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvwheel/kernels.h>

#include "examples/common/file.h"

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static struct safetensors *file_of(const struct weights *weights, const char *name)
{
    for (uint32_t i = 0; i < weights->n_files; i++) {
        if (strcmp(base_name(weights->file[i].path), name) == 0)
            return &weights->file[i];
    }
    return NULL;
}

/* Open one more file of the folder. */
static int add_file(struct weights *weights, const char *folder, const char *name,
                    struct fail *fail)
{
    char *path = file_join(folder, name);
    int result;

    if (path == NULL)
        return fail_memory(fail, "a path");
    /* Counted before it is opened, so that a failed one is closed too. */
    result = safetensors_open(path, &weights->file[weights->n_files++], fail);
    free(path);
    return result;
}

/* Open the files that the index names, each once. A name stays within the folder. */
static int add_indexed(struct weights *weights, const char *folder, struct fail *fail)
{
    json_t *map = json_object_get(weights->index, "weight_map");
    const char *tensor;
    json_t *value;

    if (!json_is_object(map))
        return fail_set(fail, FAIL_MODEL, "%s: weight_map is missing or no object",
                        weights->index_path);
    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (name == NULL || name[0] == '.' || name[0] == '\0' ||
            strchr(name, '/') != NULL)
            return fail_set(
                fail, FAIL_MODEL,
                "%s: weight_map: %.100s: need the name of a file in the folder",
                weights->index_path, tensor);
        if (file_of(weights, name) != NULL)
            continue;
        if (weights->n_files == WEIGHTS_FILES_MAX)
            return fail_set(fail, FAIL_MODEL, "%s: weight_map: more than %u files",
                            weights->index_path, WEIGHTS_FILES_MAX);
        if (add_file(weights, folder, name, fail) != 0)
            return -EINVAL;
    }
    return 0;
}

static int open_index(struct weights *weights, const char *folder, struct fail *fail)
{
    struct file_text text;

    if (file_read(weights->index_path, WEIGHTS_INDEX_MAX, FAIL_MODEL, &text, fail) != 0)
        return -EINVAL;
    weights->index =
        file_parse_object(text.bytes, text.n_bytes, weights->index_path, fail);
    file_free(&text);
    if (weights->index == NULL)
        return -EINVAL;
    return add_indexed(weights, folder, fail);
}

int weights_open(const char *folder, struct weights *weights, struct fail *fail)
{
    char *index_path = file_join(folder, "model.safetensors.index.json");
    char *single_path = file_join(folder, "model.safetensors");
    int result;

    *weights = (struct weights){0};
    weights->file = calloc(WEIGHTS_FILES_MAX, sizeof(weights->file[0]));
    if (index_path == NULL || single_path == NULL || weights->file == NULL) {
        result = fail_memory(fail, "the table of files");
    } else if (access(single_path, F_OK) == 0 || access(index_path, F_OK) != 0) {
        result = add_file(weights, folder, "model.safetensors", fail);
    } else {
        weights->index_path = index_path;
        index_path = NULL;
        result = open_index(weights, folder, fail);
    }
    free(index_path);
    free(single_path);
    return result;
}

void weights_close(struct weights *weights)
{
    for (uint32_t i = 0; i < weights->n_files; i++)
        safetensors_close(&weights->file[i]);
    free(weights->file);
    free(weights->index_path);
    json_decref(weights->index);
    *weights = (struct weights){0};
}

static const struct tensor *find(const struct weights *weights, const char *name)
{
    if (weights->index == NULL)
        return safetensors_find(&weights->file[0], name);

    const json_t *map = json_object_get(weights->index, "weight_map");
    const char *file = json_string_value(json_object_get(map, name));
    return file != NULL ? safetensors_find(file_of(weights, file), name) : NULL;
}

/* "[2, 3]" of a tensor. */
static void print_shape(const struct tensor *tensor, char *text, size_t n_bytes)
{
    size_t used = (size_t)snprintf(text, n_bytes, "[");

    for (uint32_t i = 0; i < tensor->n_dims && used < n_bytes; i++)
        used += (size_t)snprintf(text + used, n_bytes - used, "%s%llu",
                                 i > 0 ? ", " : "", (unsigned long long)tensor->dim[i]);
    if (used < n_bytes)
        snprintf(text + used, n_bytes - used, "]");
}

const struct tensor *weights_get(const struct weights *weights, const char *name,
                                 uint32_t n_dims, uint64_t n_rows, uint64_t n_cols,
                                 struct fail *fail)
{
    const struct tensor *tensor = find(weights, name);
    struct tensor need = {.n_dims = n_dims, .dim = {n_rows, n_cols}};
    char need_text[64], have_text[192];

    if (tensor == NULL) {
        (void)fail_set(fail, FAIL_MODEL, "%s: tensor %s is missing",
                       weights->index_path != NULL ? weights->index_path
                                                   : weights->file[0].path,
                       name);
        return NULL;
    }
    if (tensor->type == TENSOR_OTHER) {
        (void)fail_set(fail, FAIL_MODEL,
                       "tensor %s: dtype: need F32, F16 or BF16, have another", name);
        return NULL;
    }
    if (tensor->n_dims == n_dims && tensor->dim[0] == n_rows &&
        (n_dims == 1 || tensor->dim[1] == n_cols))
        return tensor;
    print_shape(&need, need_text, sizeof(need_text));
    print_shape(tensor, have_text, sizeof(have_text));
    (void)fail_set(fail, FAIL_MODEL, "tensor %s: shape: the model needs %s, have %s",
                   name, need_text, have_text);
    return NULL;
}

int tensor_read(const struct tensor *tensor, uint64_t first_row, uint64_t n_rows,
                uint64_t n_cols, float *out, struct fail *fail)
{
    const uint64_t element_bytes = tensor->type == TENSOR_F32 ? 4 : 2;
    const uint64_t n_elems = n_rows * n_cols;
    const unsigned char *from = tensor->data + first_row * n_cols * element_bytes;
    void *aligned = NULL;
    int result;

    if (tensor->type == TENSOR_F32) {
        memcpy(out, from, n_elems * element_bytes);
        return 0;
    }
    if ((uintptr_t)from % element_bytes != 0) {
        aligned = malloc(n_elems * element_bytes);
        if (aligned == NULL)
            return fail_memory(fail, tensor->name);
        memcpy(aligned, from, n_elems * element_bytes);
        from = aligned;
    }
    result = kvw_rows_convert(&(struct kvw_convert_args){
        .src = from,
        .src_row_stride = (ptrdiff_t)(n_cols * element_bytes),
        .dst = out,
        .dst_row_stride = (ptrdiff_t)(n_cols * sizeof(float)),
        .n_rows = n_rows,
        .n_heads = 1,
        .n_elems = (uint32_t)n_cols,
        .src_type = tensor->type == TENSOR_F16 ? KVW_NUM_F16 : KVW_NUM_BF16,
        .dst_type = KVW_NUM_F32,
    });
    free(aligned);
    if (result != 0)
        return fail_set(fail, FAIL_MODEL, "tensor %s: conversion failed (%d)",
                        tensor->name, result);
    return 0;
}

int tensor_rows(const struct tensor *tensor, struct share share, uint32_t n_cols,
                struct matrix *matrix, struct fail *fail)
{
    *matrix = (struct matrix){.n_rows = share.n, .n_cols = n_cols};
    if (share.n == 0)
        return 0;
    matrix->w = malloc(sizeof(float) * share.n * n_cols);
    if (matrix->w == NULL)
        return fail_memory(fail, tensor->name);
    return tensor_read(tensor, share.first, share.n, n_cols, matrix->w, fail);
}

int tensor_vector(const struct tensor *tensor, uint32_t n_elems, float **vector,
                  struct fail *fail)
{
    *vector = malloc(sizeof(float) * n_elems);
    if (*vector == NULL)
        return fail_memory(fail, tensor->name);
    return tensor_read(tensor, 0, 1, n_elems, *vector, fail);
}
