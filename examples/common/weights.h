/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weights of a model folder: model.safetensors, or the files that
 * model.safetensors.index.json names. Owns the mappings; read-only after opening.
 */
#ifndef COMMON_WEIGHTS_H
#define COMMON_WEIGHTS_H

#include <stdint.h>

#include "examples/common/fail.h"
#include "examples/common/matrix.h"
#include "examples/common/ranks.h"
#include "examples/common/safetensors.h"

#define WEIGHTS_FILES_MAX 1024u
#define WEIGHTS_INDEX_MAX (64u << 20) /* bytes of the index */

struct weights {
    struct safetensors *file;
    uint32_t n_files;
    char *index_path; /* NULL: a single file */
    void *index;      /* its JSON: weight_map leads from a tensor's name to a file's */
};

/** Open and check every file. weights_close() is allowed afterwards, also on failure.
 *  @return 0 or -EINVAL. */
int weights_open(const char *folder, struct weights *weights, struct fail *fail);

void weights_close(struct weights *weights);

/** A tensor of exactly this shape (n_dims 1 or 2; n_cols is not used with 1), in a type
 *  that can be read. @return it, or NULL with a refusal. */
const struct tensor *weights_get(const struct weights *weights, const char *name,
                                 uint32_t n_dims, uint64_t n_rows, uint64_t n_cols,
                                 struct fail *fail);

/**
 * Rows of a tensor as f32, converted.
 *
 * @param n_cols  Elements of a row (a tensor of one dimension is one row).
 * @param out     [out] n_rows x n_cols
 * @return 0 or -EINVAL (memory).
 */
int tensor_read(const struct tensor *tensor, uint64_t first_row, uint64_t n_rows,
                uint64_t n_cols, float *out, struct fail *fail);

/** Rows [share) of a tensor on the heap, as f32: matrix->w, to be freed also on failure.
 *  @return 0 or -EINVAL (memory). */
int tensor_rows(const struct tensor *tensor, struct share share, uint32_t n_cols,
                struct matrix *matrix, struct fail *fail);

/** A whole tensor on the heap, as f32: to be freed also on failure. @return 0 or -EINVAL
 *  (memory). */
int tensor_vector(const struct tensor *tensor, uint32_t n_elems, float **vector,
                  struct fail *fail);

#endif
