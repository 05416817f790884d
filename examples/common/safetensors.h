/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A safetensors file, mapped read-only: u64 header length, a JSON header, then the
 * bytes of the tensors. The file is hostile input: every length, offset and shape is
 * checked when it is opened, so that a tensor that was found can be read without a
 * further check. As the format demands, the tensors fill the file without holes or
 * overlaps.
 *
 * The file must not shrink while it is open. Format: the safetensors README, "Format".
 */
#ifndef COMMON_SAFETENSORS_H
#define COMMON_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "examples/common/fail.h"

#define SAFETENSORS_HEADER_MAX (100u << 20) /* bytes, as in the reference reader */
#define SAFETENSORS_TENSORS_MAX 65536u
#define SAFETENSORS_DIMS_MAX 8u

enum tensor_type {
    TENSOR_F32 = 0,
    TENSOR_F16 = 1,
    TENSOR_BF16 = 2,
    TENSOR_OTHER = 3, /* known to the format, of no use to a Llama */
};

struct tensor {
    const char *name;
    uint32_t type; /* enum tensor_type */
    uint32_t n_dims;
    uint64_t dim[SAFETENSORS_DIMS_MAX];
    const unsigned char *data; /* row-major, little-endian; of any alignment */
    uint64_t n_bytes;
};

struct safetensors {
    char *path; /* heap */
    struct tensor *tensor;
    uint32_t n_tensors;
    const unsigned char *map;
    size_t map_bytes;
    uint64_t header_hash; /* of the header's bytes and the file's length */
    void *json;           /* owns the names */
};

/** Open and check a file. Afterwards safetensors_close() is allowed, also on failure.
 *  @return 0 or -EINVAL. */
int safetensors_open(const char *path, struct safetensors *file, struct fail *fail);

void safetensors_close(struct safetensors *file);

/** The tensor of that name, or NULL. */
const struct tensor *safetensors_find(const struct safetensors *file, const char *name);

/** FNV-1a, 64 bits, of some bytes; `hash` is 0 for the first. */
uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n_bytes);

#endif
