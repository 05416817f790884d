/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A safetensors file from anywhere.
 *
 * Input: a zero byte and the file; or another byte, the JSON of a header, a zero byte
 * and the data, from which the file is made: so a mutation need not get a length right.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/safetensors.h"
#include "tests/fuzz/input.h"

static const char *make_file(struct input *input)
{
    if (input_u8(input) == 0)
        return input_file(input->at, input->left_bytes);
    const uint8_t *zero =
        input->left_bytes == 0 ? NULL : memchr(input->at, 0, input->left_bytes);
    const size_t header_bytes =
        zero == NULL ? input->left_bytes : (size_t)(zero - input->at);
    const size_t data_bytes = zero == NULL ? 0 : input->left_bytes - header_bytes - 1;
    uint8_t *file = malloc(8 + header_bytes + data_bytes);

    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
    if (header_bytes > 0)
        memcpy(file + 8, input->at, header_bytes);
    if (data_bytes > 0)
        memcpy(file + 8 + header_bytes, zero + 1, data_bytes);
    const char *path = input_file(file, 8 + header_bytes + data_bytes);
    free(file);
    return path;
}

static void check_tensors(const struct safetensors *file)
{
    uint64_t n_bytes = 0;
    uint64_t hash = 0;

    for (uint32_t i = 0; i < file->n_tensors; i++) {
        const struct tensor *tensor = &file->tensor[i];
        KVW_CHECK(tensor->data >= file->map + 8);
        KVW_CHECK(tensor->n_bytes <=
                  (uint64_t)(file->map + file->map_bytes - tensor->data));
        KVW_CHECK(tensor->n_dims <= SAFETENSORS_DIMS_MAX);
        KVW_CHECK(safetensors_find(file, tensor->name) == tensor);
        hash = hash_bytes(hash, tensor->data, tensor->n_bytes);
        n_bytes += tensor->n_bytes;
    }
    KVW_CHECK(n_bytes < file->map_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    struct safetensors file;
    struct fail fail = {0};

    int error = safetensors_open(make_file(&input), &file, &fail);
    KVW_CHECK((error == 0) == (fail.code == 0));
    if (error == 0)
        check_tensors(&file);
    else
        KVW_CHECK(fail.code == FAIL_MODEL && fail.text[0] != 0);
    safetensors_close(&file);
    return 0;
}
