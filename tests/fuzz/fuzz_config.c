/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A config.json from anywhere, for both of its readers.
 *
 * Input: a byte for the type of k and v, one for the context, the file.
 */
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "client/include/kvwheel/kvwheel.h"
#include "examples/generate/config.h"
#include "tests/fuzz/input.h"

static void check_spec(const struct input *file, uint32_t type, uint64_t context_rows)
{
    struct kvw_spec before;
    struct kvw_spec spec;

    memset(&before, 0x5a, sizeof before);
    spec = before;
    int error = kvw_spec_config(&spec, input_file(file->at, file->left_bytes), type,
                                context_rows);
    if (error == 0) {
        struct kvw_spec_bytes bytes;
        KVW_CHECK(kvw_spec_check(&spec) == 0);
        KVW_CHECK(kvw_spec_size(&spec, &bytes) == 0 && bytes.data_bytes > 0);
        return;
    }
    KVW_CHECK(error == -EINVAL || error == -E2BIG || error == -EFBIG);
    KVW_CHECK(memcmp(&spec, &before, sizeof spec) == 0);
    /* What the file says is shown, but never to a terminal as it stands. */
    const char *text = kvw_last_error();
    KVW_CHECK(text[0] != 0);
    for (; *text != 0; text++)
        KVW_CHECK(isprint((unsigned char)*text));
}

static void check_model(const struct input *file)
{
    struct model_config config;
    struct fail fail = {0};

    int error = config_parse((const char *)file->at, file->left_bytes, "config.json",
                             &config, &fail);
    KVW_CHECK((error == 0) == (fail.code == 0));
    if (error != 0) {
        KVW_CHECK(fail.code == FAIL_MODEL && fail.text[0] != 0);
        return;
    }
    KVW_CHECK(config.n_layers > 0 && config.n_layers <= CONFIG_LAYERS_MAX);
    KVW_CHECK(config.hidden > 0 && config.hidden <= CONFIG_HIDDEN_MAX);
    KVW_CHECK(config.n_kv_heads > 0 && config.n_heads <= CONFIG_HEADS_MAX);
    KVW_CHECK(config.n_heads % config.n_kv_heads == 0);
    KVW_CHECK(config.head_dim > 0 && config.head_dim <= CONFIG_HEAD_DIM_MAX);
    KVW_CHECK(config.head_dim % 2 == 0);
    KVW_CHECK(config.intermediate > 0 && config.vocab > 0);
    KVW_CHECK(config.rms_eps > 0 && config.rope_theta > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};

    const uint32_t type = input_u8(&input);
    const uint64_t context_rows = input_number(&input, 0);
    check_spec(&input, type, context_rows);
    check_model(&input);
    return 0;
}
