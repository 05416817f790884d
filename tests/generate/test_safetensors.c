/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: honest files are read, lying ones are refused with a reason. */
#include <criterion/criterion.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/common/safetensors.h"
#include "examples/common/weights.h"

static char folder[] = "/tmp/kvwheel-safetensors-XXXXXX";
static char path[96], index_path[96];
static struct fail fail;

static void start(void)
{
    cr_assert_not_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    (void)snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json",
                   folder);
}

static void stop(void)
{
    (void)unlink(path);
    (void)unlink(index_path);
    (void)rmdir(folder);
}

TestSuite(safetensors, .init = start, .fini = stop);

static void write_file(const char *to, const void *bytes, size_t n_bytes)
{
    FILE *file = fopen(to, "we");

    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, n_bytes, file), n_bytes);
    cr_assert_eq(fclose(file), 0);
}

/* A file with this header, a header length, and data bytes 0, 1, 2 ... */
static void write_tensors(const char *header, uint64_t header_bytes, size_t data_bytes)
{
    const size_t text_bytes = strlen(header);
    unsigned char bytes[4096];

    cr_assert_lt(8 + text_bytes + data_bytes, sizeof bytes);
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(header_bytes >> (8 * i));
    memcpy(bytes + 8, header, text_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + text_bytes + i] = (unsigned char)i;
    write_file(path, bytes, 8 + text_bytes + data_bytes);
}

static int open_it(struct safetensors *file)
{
    fail = (struct fail){0};
    return safetensors_open(path, file, &fail);
}

/* The header with its own length is refused, with these words in the reason. */
static void refuses_length(const char *header, uint64_t header_bytes, size_t data_bytes,
                           const char *words)
{
    struct safetensors file;

    write_tensors(header, header_bytes, data_bytes);
    cr_assert_neq(open_it(&file), 0, "not refused: %s", header);
    cr_assert_eq(fail.code, FAIL_MODEL);
    cr_assert_not_null(strstr(fail.text, words), "\"%s\" not in: %s", words, fail.text);
    safetensors_close(&file);
}

static void refuses(const char *header, size_t data_bytes, const char *words)
{
    refuses_length(header, strlen(header), data_bytes, words);
}

#define TENSOR(name, type, shape, offsets)                  \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape \
    ",\"data_offsets\":" offsets "}"

static const char two[] = "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR(
    "a", "F32", "[2,3]", "[0,24]") "," TENSOR("b", "BF16", "[4]", "[24,32]") "}  ";

Test(safetensors, reads_an_honest_file)
{
    struct safetensors file;
    const struct tensor *a, *b;

    write_tensors(two, strlen(two), 32);
    cr_assert_eq(open_it(&file), 0, "%s", fail.text);
    a = safetensors_find(&file, "a");
    b = safetensors_find(&file, "b");

    cr_assert_eq(file.n_tensors, 2);
    cr_assert_null(safetensors_find(&file, "__metadata__"));
    cr_assert_not_null(a);
    cr_assert_eq(a->n_dims, 2);
    cr_assert_eq(a->dim[1], 3);
    cr_assert_eq(a->data[0], 0);
    cr_assert_not_null(b);
    cr_assert_eq(b->type, TENSOR_BF16);
    cr_assert_eq(b->data[0], 24);
    cr_assert_eq(b->n_bytes, 8);
    safetensors_close(&file);
}

Test(safetensors, refuses_a_lying_header_length)
{
    refuses_length(two, UINT64_MAX, 32, "header length");
    refuses_length(two, strlen(two) + 33, 32, "header length");
    refuses_length(two, (uint64_t)INT64_MAX, 32, "header length");
    refuses_length(two, 0, 32, "header");
    refuses_length(two, 10, 32, "not JSON");
    refuses_length(" {}", 3, 0, "header");
}

Test(safetensors, refuses_every_truncation)
{
    struct safetensors file;
    unsigned char bytes[512];
    const size_t whole = 8 + strlen(two) + 32;

    memset(bytes, 0, sizeof bytes);
    bytes[0] = (unsigned char)strlen(two);
    memcpy(bytes + 8, two, strlen(two));
    for (size_t n = 0; n < whole; n++) {
        write_file(path, bytes, n);
        cr_assert_neq(open_it(&file), 0, "%zu of %zu bytes were taken", n, whole);
        safetensors_close(&file);
    }
}

Test(safetensors, refuses_offsets_outside_the_file)
{
    refuses("{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 7, "data_offsets");
    refuses("{" TENSOR("a", "F32", "[2]", "[8,0]") "}", 8, "data_offsets");
    refuses("{" TENSOR("a", "F32", "[2]", "[-8,0]") "}", 8, "data_offsets");
    refuses("{" TENSOR("a", "F32", "[2]", "[0.0,8]") "}", 8, "data_offsets");
    refuses("{" TENSOR("a", "F32", "[2]", "[0]") "}", 8, "data_offsets");
    refuses("{" TENSOR("a", "F32", "[2]", "{}") "}", 8, "data_offsets");
    refuses(
        "{" TENSOR("a", "F32", "[2]", "[9223372036854775800,9223372036854775807]") "}",
        8, "data_offsets");
}

Test(safetensors, refuses_overlaps_holes_and_leftovers)
{
    refuses("{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[2]",
                                                              "[4,12]") "}",
            12, "overlap");
    refuses("{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[2]",
                                                              "[0,8]") "}",
            8, "overlap");
    refuses("{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[1]",
                                                              "[12,16]") "}",
            16, "hole");
    refuses("{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 9, "behind the last tensor");
    refuses("{}", 4, "behind the last tensor");
}

Test(safetensors, refuses_shapes_that_do_not_fit)
{
    refuses("{" TENSOR("a", "F32", "[3]", "[0,8]") "}", 8, "need 12 bytes, have 8");
    refuses("{" TENSOR("a", "F32", "[-2]", "[0,8]") "}", 8, "shape");
    refuses("{" TENSOR("a", "F32", "[2.0]", "[0,8]") "}", 8, "shape");
    refuses("{" TENSOR("a", "F32", "2", "[0,8]") "}", 8, "shape");
    refuses("{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8,
            "dimensions");
    refuses("{" TENSOR("a", "F32", "[4294967296,4294967296,2]", "[0,8]") "}", 8,
            "overflow");
    refuses("{" TENSOR("a", "F32", "[9223372036854775807,4]", "[0,8]") "}", 8,
            "overflow");
}

Test(safetensors, refuses_unknown_types_and_entries)
{
    refuses("{" TENSOR("a", "F31", "[2]", "[0,8]") "}", 8, "dtype");
    refuses("{\"a\":{\"dtype\":3,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype");
    refuses("{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype");
    refuses("{\"a\":[]}", 8, "object");
    refuses("{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("a", "F32", "[2]",
                                                              "[8,16]") "}",
            16, "not JSON");
}

Test(safetensors, refuses_what_is_no_file)
{
    struct safetensors file;

    cr_assert_neq(open_it(&file), 0);
    safetensors_close(&file);
    fail = (struct fail){0};
    cr_assert_neq(safetensors_open(folder, &file, &fail), 0);
    cr_assert_not_null(strstr(fail.text, "not a regular file"), "%s", fail.text);
    safetensors_close(&file);
}

Test(safetensors, reads_bf16_rows_of_any_alignment)
{
    struct safetensors file;
    float row[2];
    /* The data begins at an odd address: the header is one byte too long for it. */
    static const char header[] = "{" TENSOR("a", "BF16", "[2,2]", "[0,8]") "}";
    static const char odd[] = "{" TENSOR("a", "BF16", "[2,2]", "[0,8]") "} ";

    for (int i = 0; i < 2; i++) {
        const char *text = i == 0 ? header : odd;
        write_tensors(text, strlen(text), 8);
        cr_assert_eq(open_it(&file), 0, "%s", fail.text);
        cr_assert_eq(tensor_read(safetensors_find(&file, "a"), 1, 1, 2, row, &fail), 0,
                     "%s", fail.text);

        /* Bytes 4 to 7: bf16 0x0504 and 0x0706. */
        const uint32_t bits[2] = {0x05040000u, 0x07060000u};
        cr_assert_eq(memcmp(row, bits, sizeof bits), 0);
        safetensors_close(&file);
    }
}

/* ------------------------------------------------------------ whole folders ---------
 */

static void refuses_index(const char *json, const char *words)
{
    struct weights weights;

    fail = (struct fail){0};
    write_file(index_path, json, strlen(json));
    cr_assert_neq(weights_open(folder, &weights, &fail), 0, "not refused: %s", json);
    cr_assert_not_null(strstr(fail.text, words), "\"%s\" not in: %s", words, fail.text);
    weights_close(&weights);
}

Test(safetensors, index_stays_within_the_folder)
{
    refuses_index("{\"weight_map\":{\"a\":\"../model.safetensors\"}}", "in the folder");
    refuses_index("{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "in the folder");
    refuses_index("{\"weight_map\":{\"a\":\".hidden\"}}", "in the folder");
    refuses_index("{\"weight_map\":{\"a\":\"\"}}", "in the folder");
    refuses_index("{\"weight_map\":{\"a\":7}}", "in the folder");
    refuses_index("{\"weight_map\":[]}", "weight_map");
    refuses_index("{}", "weight_map");
    refuses_index("{\"weight_map\":{\"a\":\"missing.safetensors\"}}", "No such file");
}

Test(safetensors, get_names_the_shape_it_needs)
{
    struct weights weights;

    fail = (struct fail){0};
    write_tensors(two, strlen(two), 32);
    cr_assert_eq(weights_open(folder, &weights, &fail), 0, "%s", fail.text);

    cr_assert_not_null(weights_get(&weights, "a", 2, 2, 3, &fail));
    cr_assert_null(weights_get(&weights, "a", 2, 3, 2, &fail));
    cr_assert_not_null(strstr(fail.text, "needs [3, 2], have [2, 3]"), "%s", fail.text);
    fail = (struct fail){0};
    cr_assert_null(weights_get(&weights, "c", 1, 4, 1, &fail));
    cr_assert_not_null(strstr(fail.text, "tensor c is missing"), "%s", fail.text);
    weights_close(&weights);
}
