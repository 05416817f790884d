/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing of a header is used before it was checked against the length of the file. */
#include "examples/common/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/common/file.h"

#define LENGTH_BYTES 8u /* of the header length that a file begins with */

static const struct {
    const char *name;
    uint32_t n_bytes;
    uint32_t type;
} element_types[] = {
    {"F32", 4, TENSOR_F32},       {"F16", 2, TENSOR_F16},
    {"BF16", 2, TENSOR_BF16},     {"F64", 8, TENSOR_OTHER},
    {"I64", 8, TENSOR_OTHER},     {"I32", 4, TENSOR_OTHER},
    {"I16", 2, TENSOR_OTHER},     {"I8", 1, TENSOR_OTHER},
    {"U64", 8, TENSOR_OTHER},     {"U32", 4, TENSOR_OTHER},
    {"U16", 2, TENSOR_OTHER},     {"U8", 1, TENSOR_OTHER},
    {"BOOL", 1, TENSOR_OTHER},    {"F8_E4M3", 1, TENSOR_OTHER},
    {"F8_E5M2", 1, TENSOR_OTHER},
};

uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n_bytes)
{
    const unsigned char *byte = bytes;

    if (hash == 0)
        hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}

static int refuse(const struct safetensors *file, const char *name, const char *what,
                  struct fail *fail)
{
    return fail_set(fail, FAIL_MODEL, "%s: tensor %.100s: %s", file->path, name, what);
}

/* The type and its bytes per element. */
static int read_type(const struct safetensors *file, const json_t *entry,
                     struct tensor *tensor, uint64_t *element_bytes, struct fail *fail)
{
    const char *have = json_string_value(json_object_get(entry, "dtype"));

    if (have == NULL)
        return refuse(file, tensor->name, "dtype is missing or no string", fail);
    for (size_t i = 0; i < sizeof(element_types) / sizeof(element_types[0]); i++) {
        if (strcmp(have, element_types[i].name) == 0) {
            tensor->type = element_types[i].type;
            *element_bytes = element_types[i].n_bytes;
            return 0;
        }
    }
    return fail_set(fail, FAIL_MODEL,
                    "%s: tensor %.100s: dtype: need F32, F16 or BF16, have %.40s",
                    file->path, tensor->name, have);
}

/* The shape; *n_bytes comes in as the bytes of an element. */
static int read_shape(const struct safetensors *file, const json_t *entry,
                      struct tensor *tensor, uint64_t *n_bytes, struct fail *fail)
{
    const json_t *shape = json_object_get(entry, "shape");

    if (!json_is_array(shape))
        return refuse(file, tensor->name, "shape is missing or no array", fail);
    if (json_array_size(shape) > SAFETENSORS_DIMS_MAX)
        return refuse(file, tensor->name, "shape: more than 8 dimensions", fail);
    tensor->n_dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return refuse(file, tensor->name, "shape: need whole numbers from 0", fail);
        tensor->dim[i] = (uint64_t)json_integer_value(dim);
        if (__builtin_mul_overflow(*n_bytes, tensor->dim[i], n_bytes))
            return refuse(file, tensor->name, "shape: its bytes overflow 64 bits",
                          fail);
    }
    return 0;
}

static int read_offsets(const struct safetensors *file, const json_t *entry,
                        uint64_t data_bytes, struct tensor *tensor, struct fail *fail)
{
    const json_t *pair = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(pair, 0);
    const json_t *last = json_array_get(pair, 1);
    uint64_t begin, end;

    if (json_array_size(pair) != 2 || !json_is_integer(first) ||
        !json_is_integer(last) || json_integer_value(first) < 0 ||
        json_integer_value(last) < 0)
        return refuse(file, tensor->name, "data_offsets: need two whole numbers from 0",
                      fail);
    begin = (uint64_t)json_integer_value(first);
    end = (uint64_t)json_integer_value(last);
    if (begin > end || end > data_bytes)
        return fail_set(
            fail, FAIL_MODEL,
            "%s: tensor %.100s: data_offsets: need begin <= end <= %llu (the "
            "bytes of the file), have %llu and %llu",
            file->path, tensor->name, (unsigned long long)data_bytes,
            (unsigned long long)begin, (unsigned long long)end);
    tensor->n_bytes = end - begin;
    tensor->data = file->map + (file->map_bytes - data_bytes) + begin;
    return 0;
}

static int read_tensor(const struct safetensors *file, const json_t *entry,
                       uint64_t data_bytes, struct tensor *tensor, struct fail *fail)
{
    uint64_t need_bytes = 0;

    if (!json_is_object(entry))
        return refuse(file, tensor->name, "need an object", fail);
    if (read_type(file, entry, tensor, &need_bytes, fail) != 0 ||
        read_shape(file, entry, tensor, &need_bytes, fail) != 0 ||
        read_offsets(file, entry, data_bytes, tensor, fail) != 0)
        return -EINVAL;
    if (tensor->n_bytes != need_bytes)
        return fail_set(
            fail, FAIL_MODEL,
            "%s: tensor %.100s: data_offsets: shape and dtype need %llu bytes, "
            "have %llu",
            file->path, tensor->name, (unsigned long long)need_bytes,
            (unsigned long long)tensor->n_bytes);
    return 0;
}

static int compare_begin(const void *left, const void *right)
{
    const struct tensor *a = left, *b = right;

    if (a->data != b->data)
        return a->data < b->data ? -1 : 1;
    return (a->n_bytes > b->n_bytes) - (a->n_bytes < b->n_bytes);
}

/* Sorted by offset, each tensor must begin where the one before ends. */
static int check_cover(const struct safetensors *file, uint64_t data_bytes,
                       struct fail *fail)
{
    const unsigned char *next = file->map + (file->map_bytes - data_bytes);
    const unsigned char *file_end = file->map + file->map_bytes;

    qsort(file->tensor, file->n_tensors, sizeof(file->tensor[0]), compare_begin);
    for (uint32_t i = 0; i < file->n_tensors; i++) {
        const struct tensor *tensor = &file->tensor[i];
        if (tensor->data < next)
            return refuse(file, tensor->name, "data_offsets overlap another tensor's",
                          fail);
        if (tensor->data > next)
            return refuse(file, tensor->name, "data_offsets leave a hole before it",
                          fail);
        next = tensor->data + tensor->n_bytes;
    }
    if (next != file_end)
        return fail_set(fail, FAIL_MODEL,
                        "%s: %lld bytes behind the last tensor belong to none",
                        file->path, (long long)(file_end - next));
    return 0;
}

static int read_tensors(struct safetensors *file, json_t *json, uint64_t data_bytes,
                        struct fail *fail)
{
    const char *name;
    json_t *entry;

    if (json_object_size(json) > SAFETENSORS_TENSORS_MAX)
        return fail_set(fail, FAIL_MODEL, "%s: tensors: at most %u, have %zu",
                        file->path, SAFETENSORS_TENSORS_MAX, json_object_size(json));
    file->tensor = calloc(json_object_size(json) + 1, sizeof(file->tensor[0]));
    if (file->tensor == NULL)
        return fail_memory(fail, "the table of tensors");
    json_object_foreach(json, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        struct tensor *tensor = &file->tensor[file->n_tensors];
        tensor->name = name;
        if (read_tensor(file, entry, data_bytes, tensor, fail) != 0)
            return -EINVAL;
        file->n_tensors++;
    }
    return check_cover(file, data_bytes, fail);
}

static int read_header(struct safetensors *file, struct fail *fail)
{
    uint64_t header_bytes = 0;
    const unsigned char *header = file->map + LENGTH_BYTES;

    for (uint32_t i = 0; i < LENGTH_BYTES; i++)
        header_bytes |= (uint64_t)file->map[i] << (8 * i);
    if (header_bytes > file->map_bytes - LENGTH_BYTES ||
        header_bytes > SAFETENSORS_HEADER_MAX)
        return fail_set(fail, FAIL_MODEL,
                        "%s: header length: at most %zu bytes follow it, have %llu",
                        file->path, file->map_bytes - LENGTH_BYTES,
                        (unsigned long long)header_bytes);
    if (header_bytes == 0 || header[0] != '{')
        return fail_set(fail, FAIL_MODEL, "%s: header: need '{' first", file->path);

    file->header_hash = hash_bytes(0, &file->map_bytes, sizeof(file->map_bytes));
    file->header_hash = hash_bytes(file->header_hash, header, (size_t)header_bytes);
    file->json =
        file_parse_object((const char *)header, (size_t)header_bytes, file->path, fail);
    if (file->json == NULL)
        return -EINVAL;
    return read_tensors(file, file->json, file->map_bytes - LENGTH_BYTES - header_bytes,
                        fail);
}

static int map_file(int fd, struct safetensors *file, struct fail *fail)
{
    struct stat status;
    void *map;

    if (fstat(fd, &status) != 0)
        return fail_set(fail, FAIL_MODEL, "%s: %s", file->path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return fail_set(fail, FAIL_MODEL, "%s: not a regular file", file->path);
    if (status.st_size < (off_t)LENGTH_BYTES + 2)
        return fail_set(fail, FAIL_MODEL, "%s: size: need %u bytes at least, have %lld",
                        file->path, LENGTH_BYTES + 2, (long long)status.st_size);
    map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return fail_set(fail, FAIL_MODEL, "%s: mmap: %s", file->path, strerror(errno));
    file->map = map;
    file->map_bytes = (size_t)status.st_size;
    return 0;
}

int safetensors_open(const char *path, struct safetensors *file, struct fail *fail)
{
    int fd, result;

    *file = (struct safetensors){.path = strdup(path)};
    if (file->path == NULL)
        return fail_memory(fail, "a path");
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return fail_set(fail, FAIL_MODEL, "%s: %s", path, strerror(errno));
    result = map_file(fd, file, fail);
    close(fd);
    return result == 0 ? read_header(file, fail) : result;
}

void safetensors_close(struct safetensors *file)
{
    if (file->map != NULL)
        munmap((void *)(uintptr_t)file->map, file->map_bytes);
    free(file->tensor);
    json_decref(file->json);
    free(file->path);
    *file = (struct safetensors){0};
}

const struct tensor *safetensors_find(const struct safetensors *file, const char *name)
{
    for (uint32_t i = 0; i < file->n_tensors; i++) {
        if (strcmp(file->tensor[i].name, name) == 0)
            return &file->tensor[i];
    }
    return NULL;
}
