/* SPDX-License-Identifier: Apache-2.0 */
/* Specs from config.json: published configs, and files that somebody made to hurt. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/include/kvwheel/kvwheel.h"

static char folder[] = "/tmp/kvwheel-config-XXXXXX";
static char path[64];

static void start(void)
{
    cr_assert_not_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
}

static void stop(void)
{
    (void)unlink(path);
    (void)rmdir(folder);
}

TestSuite(spec_config, .init = start, .fini = stop);

static void write_bytes(const char *bytes, size_t n_bytes)
{
    FILE *file = fopen(path, "we");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, n_bytes, file), n_bytes);
    cr_assert_eq(fclose(file), 0);
}

static int read_as(struct kvw_spec *spec, const char *json, uint32_t type,
                   uint64_t context_rows)
{
    write_bytes(json, strlen(json));
    return kvw_spec_config(spec, path, type, context_rows);
}

/* Published configs, with the fields that do not matter here left out. */

#define MISTRAL_7B                                                                    \
    "{\"architectures\": [\"MistralForCausalLM\"], \"hidden_size\": 4096, "           \
    "\"max_position_embeddings\": 32768, \"model_type\": \"mistral\", "               \
    "\"num_attention_heads\": 32, \"num_hidden_layers\": 32, "                        \
    "\"num_key_value_heads\": 8, \"rope_theta\": 10000.0, \"sliding_window\": 4096, " \
    "\"torch_dtype\": \"bfloat16\"}"

#define LLAMA_31_8B                                                 \
    "{\"hidden_size\": 4096, \"max_position_embeddings\": 131072, " \
    "\"model_type\": \"llama\", \"num_attention_heads\": 32, "      \
    "\"num_hidden_layers\": 32, \"num_key_value_heads\": 8, "       \
    "\"rope_scaling\": {\"factor\": 8.0}, \"torch_dtype\": \"bfloat16\"}"

/* Most of it is left to the defaults of the family. */
#define GEMMA3_4B                                                           \
    "{\"architectures\": [\"Gemma3ForConditionalGeneration\"], "            \
    "\"model_type\": \"gemma3\", \"text_config\": {\"hidden_size\": 2560, " \
    "\"intermediate_size\": 10240, \"model_type\": \"gemma3_text\", "       \
    "\"num_hidden_layers\": 34, \"rope_scaling\": {\"factor\": 8.0}, "      \
    "\"sliding_window\": 1024}, \"torch_dtype\": \"bfloat16\", "            \
    "\"vision_config\": {\"num_attention_heads\": 16, \"num_hidden_layers\": 27}}"

#define GEMMA3_1B                                                                      \
    "{\"head_dim\": 256, \"hidden_size\": 1152, \"max_position_embeddings\": 32768, "  \
    "\"model_type\": \"gemma3_text\", \"num_attention_heads\": 4, "                    \
    "\"num_hidden_layers\": 26, \"num_key_value_heads\": 1, \"sliding_window\": 512, " \
    "\"sliding_window_pattern\": 6, \"torch_dtype\": \"bfloat16\"}"

/* It names no element type: its weights are quantised. */
#define GPT_OSS_20B                                                         \
    "{\"head_dim\": 64, \"hidden_size\": 2880, \"layer_types\": [" S4 S4 S3 \
    "\"sliding_attention\", \"full_attention\"], "                          \
    "\"max_position_embeddings\": 131072, \"model_type\": \"gpt_oss\", "    \
    "\"num_attention_heads\": 64, \"num_hidden_layers\": 24, "              \
    "\"num_key_value_heads\": 8, \"sliding_window\": 128}"
#define S1 "\"sliding_attention\", \"full_attention\", "
#define S3 S1 S1 S1
#define S4 S3 S1

static void expect_same(const struct kvw_spec *spec, const char *preset)
{
    struct kvw_spec want;
    cr_assert_eq(kvw_spec_preset(&want, preset, 0), 0);
    memcpy(want.name, spec->name, sizeof want.name);

    for (uint32_t g = 0; g < want.n_groups; g++)
        cr_expect_eq(memcmp(&spec->group[g], &want.group[g], sizeof want.group[g]), 0,
                     "%s: group %s", preset, want.group[g].name);
    cr_expect_eq(memcmp(spec, &want, sizeof want), 0, "%s", preset);
}

Test(spec_config, published_configs_are_the_presets)
{
    struct kvw_spec spec;

    cr_assert_eq(read_as(&spec, MISTRAL_7B, 0, 0), 0, "%s", kvw_last_error());
    cr_assert_str_eq(spec.name, "mistral");
    expect_same(&spec, "mistral-7b");
    cr_assert_eq(read_as(&spec, GEMMA3_4B, 0, 0), 0, "%s", kvw_last_error());
    expect_same(&spec, "gemma3-4b");
    cr_assert_eq(read_as(&spec, GPT_OSS_20B, 0, 0), 0, "%s", kvw_last_error());
    expect_same(&spec, "gpt-oss-20b");
}

Test(spec_config, llama_is_one_group_that_refuses)
{
    struct kvw_spec spec;

    cr_assert_eq(read_as(&spec, LLAMA_31_8B, 0, 0), 0, "%s", kvw_last_error());

    cr_assert_eq(spec.n_groups, 1);
    cr_assert_str_eq(spec.group[0].name, "self");
    cr_assert_eq(spec.group[0].policy, KVW_REFUSE);
    cr_assert_eq(spec.group[0].window_kind, KVW_WINDOW_ROW);
    cr_assert_eq(spec.group[0].window_rows, 131072);
    cr_assert_eq(spec.group[0].n_heads, 8);
    cr_assert_eq(spec.group[0].plane[0].elems, 128);
    cr_assert_eq(spec.group[0].plane[0].type, KVW_BF16);
    cr_assert_eq(spec.group[0].plane[0].is_rotated, 1);
    cr_assert_eq(spec.group[0].plane[1].is_rotated, 0);
}

Test(spec_config, older_gemma3_configs_have_a_pattern)
{
    struct kvw_spec spec;

    cr_assert_eq(read_as(&spec, GEMMA3_1B, 0, 0), 0, "%s", kvw_last_error());

    cr_assert_eq(spec.n_groups, 2);
    cr_assert_eq(spec.group[0].n_layers, 22);
    cr_assert_eq(spec.group[0].window_rows, 512);
    cr_assert_eq(spec.group[1].n_layers, 4);
    cr_assert_eq(spec.group[1].window_rows, 32768);
    cr_assert_eq(spec.model_layer[22], 5);
    cr_assert_eq(spec.group[0].n_heads, 1);
}

/* The example's model, from the source tree: a folder will do as well. */
Test(spec_config, the_example_model_is_read_from_its_folder)
{
    char model[4096];
    struct kvw_spec spec;
    const char *source = getenv("KVW_SOURCE");
    if (source == NULL)
        cr_skip("KVW_SOURCE is not set");
    (void)snprintf(model, sizeof model, "%s/examples/generate/model", source);

    cr_assert_eq(kvw_spec_config(&spec, model, 0, 0), 0, "%s", kvw_last_error());

    cr_assert_eq(spec.group[0].n_layers, 4);
    cr_assert_eq(spec.group[0].n_heads, 4);
    cr_assert_eq(spec.group[0].plane[0].elems, 32);
    cr_assert_eq(spec.group[0].plane[0].type, KVW_F32);
    cr_assert_eq(spec.group[0].window_rows, 256);
}

Test(spec_config, type_and_context_of_the_caller_win)
{
    struct kvw_spec spec;

    cr_assert_eq(read_as(&spec, GEMMA3_4B, KVW_F32, 8192), 0, "%s", kvw_last_error());
    cr_assert_eq(spec.group[0].plane[0].type, KVW_F32);
    cr_assert_eq(spec.group[0].window_rows, 1024);
    cr_assert_eq(spec.group[1].window_rows, 8192);
    cr_assert_eq(read_as(&spec, LLAMA_31_8B, KVW_I8, 0), -EINVAL);
    cr_assert_eq(read_as(&spec, LLAMA_31_8B, 258, 0), -EINVAL);
    cr_assert_eq(read_as(&spec, LLAMA_31_8B, 0, UINT64_MAX), -E2BIG);
}

#define HEADS "\"num_attention_heads\": 8, \"num_hidden_layers\": 4, \"head_dim\": 64"
#define LLAMA_HEAD "{\"model_type\": \"llama\", \"torch_dtype\": \"float16\", "
#define LLAMA LLAMA_HEAD "\"max_position_embeddings\": 4096, " HEADS

/* Small differences of good configs. */
Test(spec_config, optional_fields_may_be_missing_or_null)
{
    static const struct {
        const char *json;
        uint32_t policy;
        uint64_t window_rows;
        uint32_t n_heads;
    } goods[] = {
        {LLAMA "}", KVW_REFUSE, 4096, 8},
        {LLAMA ", \"num_key_value_heads\": null}", KVW_REFUSE, 4096, 8},
        {LLAMA ", \"sliding_window\": null}", KVW_REFUSE, 4096, 8},
        {LLAMA ", \"sliding_window\": 100}", KVW_ROLL, 100, 8},
        {LLAMA ", \"sliding_window\": 100, \"use_sliding_window\": true}", KVW_ROLL,
         100, 8},
        {LLAMA ", \"sliding_window\": 100, \"use_sliding_window\": false}", KVW_REFUSE,
         4096, 8},
        {LLAMA ", \"sliding_window\": 100, \"layer_types\": [\"full_attention\", "
               "\"full_attention\", \"full_attention\", \"full_attention\"]}",
         KVW_REFUSE, 4096, 8},
        {LLAMA ", \"num_key_value_heads\": 1, \"dtype\": \"bfloat16\"}", KVW_REFUSE,
         4096, 1},
    };

    for (size_t i = 0; i < sizeof goods / sizeof goods[0]; i++) {
        struct kvw_spec spec;
        int error = read_as(&spec, goods[i].json, 0, 0);
        cr_assert_eq(error, 0, "%s: %s", goods[i].json, kvw_last_error());
        cr_expect_eq(spec.n_groups, 1);
        cr_expect_eq(spec.group[0].policy, goods[i].policy, "%s", goods[i].json);
        cr_expect_eq(spec.group[0].window_rows, goods[i].window_rows, "%s",
                     goods[i].json);
        cr_expect_eq(spec.group[0].n_heads, goods[i].n_heads, "%s", goods[i].json);
    }
}

#define GEMMA "{\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 3"

static const struct {
    const char *json;
    const char *words;
} bads[] = {
    {"", "not JSON"},
    {"{", "not JSON"},
    {"[]", "need an object, have an array"},
    {"null", "not JSON"},
    {"{\"model_type\": \"llama\"} x", "not JSON"},
    {"{\"model_type\": \"llama\", \"model_type\": \"mistral\"}", "duplicate"},
    {"\xff\xfe{}", "not JSON"},
    {"{}", "model_type: need a string, have nothing"},
    {"{\"model_type\": 7}", "model_type: need a string, have an integer"},
    {"{\"model_type\": \"bert\"}", "gpt_oss, have 'bert'"},
    {"{\"model_type\": \"b\\u001b[31m\\nt\"}", "have 'b?[31m?t'"},
    {"{\"model_type\": \"gemma3\"}", "text_config: need an object, have nothing"},
    {"{\"model_type\": \"gemma3\", \"text_config\": 3}", "have an integer"},
    {"{\"model_type\": \"gemma3\", \"text_config\": {}}", "model_type: need a string"},
    {"{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\": \"gemma3\"}}",
     "have 'gemma3'"},
    {LLAMA_HEAD "\"num_attention_heads\": 8}", "hidden_size: need 1 to"},
    {LLAMA_HEAD HEADS "}",
     "max_position_embeddings: need 1 to 2147483648, have nothing"},
    {LLAMA_HEAD HEADS ", \"max_position_embeddings\": 0}", "have 0"},
    {LLAMA_HEAD HEADS ", \"max_position_embeddings\": -1}", "have -1"},
    {LLAMA_HEAD HEADS ", \"max_position_embeddings\": 2147483649}", "have 2147483649"},
    {LLAMA_HEAD HEADS ", \"max_position_embeddings\": 4096.0}", "have a float"},
    {LLAMA_HEAD HEADS ", \"max_position_embeddings\": 1e300}", "have a float"},
    {LLAMA_HEAD HEADS ", \"max_position_embeddings\": \"4096\"}", "have a string"},
    {LLAMA_HEAD HEADS ", \"max_position_embeddings\": [4096]}", "have an array"},
    {LLAMA_HEAD HEADS ", \"max_position_embeddings\": true}", "have true"},
    {LLAMA_HEAD HEADS ", \"max_position_embeddings\": 99999999999999999999}",
     "not JSON"},
    {LLAMA ", \"num_key_value_heads\": 0}",
     "num_key_value_heads: need 1 to 65536, have 0"},
    {LLAMA ", \"num_key_value_heads\": 3}",
     "need a divisor of num_attention_heads = 8"},
    {LLAMA ", \"num_key_value_heads\": 16}", "need a divisor"},
    {LLAMA ", \"num_key_value_heads\": 4294967297}", "have 4294967297"},
    {LLAMA ", \"sliding_window\": 0}", "sliding_window: need 1 to 2147483648, have 0"},
    {LLAMA ", \"sliding_window\": -4096}", "have -4096"},
    {LLAMA ", \"sliding_window\": 2147483648}", "group 'self': rows of a layer"},
    {LLAMA ", \"sliding_window\": false}", "have false"},
    {LLAMA ", \"use_sliding_window\": 1}", "use_sliding_window: need true or false"},
    {LLAMA ", \"sliding_window_pattern\": 0, \"sliding_window\": 9}", "pattern"},
    {LLAMA ", \"layer_types\": \"full_attention\"}", "layer_types: need an array"},
    {LLAMA ", \"layer_types\": []}",
     "num_hidden_layers = 4 strings, have an array of 0"},
    {LLAMA ", \"layer_types\": [\"full_attention\", 1, 2, 3]}", "layer 1: need"},
    {LLAMA ", \"layer_types\": [\"linear_attention\", \"\", \"\", \"\"]}",
     "have 'linear_attention'"},
    {LLAMA ", \"layer_types\": [\"full_attention\", \"sliding_attention\", "
           "\"full_attention\", \"full_attention\"]}",
     "layer 1 slides: need a sliding_window, have none"},
    {LLAMA_HEAD "\"num_attention_heads\": 8, \"head_dim\": 64}", "num_hidden_layers"},
    {LLAMA_HEAD "\"num_attention_heads\": 8, \"head_dim\": 64, "
                "\"num_hidden_layers\": 1025}",
     "need 1 to 1024, have 1025"},
    {LLAMA_HEAD "\"num_attention_heads\": 7, \"hidden_size\": 100}", "need it, or"},
    {LLAMA_HEAD "\"num_attention_heads\": 8, \"hidden_size\": 4}", "hidden_size = 4"},
    {LLAMA_HEAD "\"num_attention_heads\": 1, \"hidden_size\": 16777216}", "head_dim"},
    {LLAMA_HEAD "\"num_attention_heads\": 8, \"head_dim\": 65537}", "need 1 to 65536"},
    {LLAMA_HEAD "\"num_attention_heads\": 65537}", "num_attention_heads"},
    {"{\"model_type\": \"llama\", " HEADS "}", "torch_dtype: need float32, bfloat16"},
    {"{\"model_type\": \"llama\", \"torch_dtype\": 16, " HEADS "}", "have an integer"},
    {"{\"model_type\": \"llama\", \"torch_dtype\": \"int8\", " HEADS "}",
     "have 'int8'"},
    {GEMMA ", \"torch_dtype\": \"float64\"}", "have 'float64'"},
    {GEMMA ", \"sliding_window_pattern\": 1025}",
     "sliding_window_pattern: need 1 to 1024"},
    {GEMMA ", \"_sliding_window_pattern\": \"6\"}", "_sliding_window_pattern"},
    {GEMMA ", \"head_dim\": -256}", "head_dim: need 1 to 65536, have -256"},
};

Test(spec_config, absurd_configs_are_refused_in_words)
{
    struct kvw_spec before;
    memset(&before, 0x5a, sizeof before);

    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        struct kvw_spec spec = before;
        int error = read_as(&spec, bads[i].json, 0, 0);

        cr_expect(error == -EINVAL || error == -E2BIG, "%s: %d", bads[i].json, error);
        cr_expect_not_null(strstr(kvw_last_error(), bads[i].words), "%s: '%s'",
                           bads[i].json, kvw_last_error());
        cr_expect_eq(memcmp(&spec, &before, sizeof spec), 0, "%s", bads[i].json);
    }
}

/* Where a value is refused, the words name the file. */
Test(spec_config, refusals_name_the_path)
{
    struct kvw_spec spec;

    cr_assert_eq(read_as(&spec, "{\"model_type\": \"bert\"}", 0, 0), -EINVAL);
    cr_assert_eq(strncmp(kvw_last_error(), path, strlen(path)), 0, "%s",
                 kvw_last_error());
}

Test(spec_config, a_zero_byte_is_not_an_end)
{
    static const char bytes[] = LLAMA "}\0{";
    struct kvw_spec spec;
    write_bytes(bytes, sizeof bytes - 1);

    cr_assert_eq(kvw_spec_config(&spec, path, 0, 0), -EINVAL);
}

Test(spec_config, deep_nesting_is_refused)
{
    static char deep[900000];
    struct kvw_spec spec;

    for (size_t i = 0; i + 5 < sizeof deep; i += 5)
        memcpy(deep + i, "{\"a\":", 5);
    write_bytes(deep, sizeof deep);
    cr_expect_eq(kvw_spec_config(&spec, path, 0, 0), -EINVAL);
    memset(deep, '[', sizeof deep);
    write_bytes(deep, sizeof deep);
    cr_expect_eq(kvw_spec_config(&spec, path, 0, 0), -EINVAL);
}

Test(spec_config, a_file_over_the_bound_is_refused)
{
    static char large[(1 << 20) + 1];
    struct kvw_spec spec;
    memset(large, ' ', sizeof large);
    memcpy(large, LLAMA "}", sizeof LLAMA "}" - 1);

    write_bytes(large, sizeof large - 1);
    cr_expect_eq(kvw_spec_config(&spec, path, 0, 0), 0, "%s", kvw_last_error());
    write_bytes(large, sizeof large);
    cr_expect_eq(kvw_spec_config(&spec, path, 0, 0), -EFBIG);
    cr_expect_not_null(strstr(kvw_last_error(), "1048576"), "%s", kvw_last_error());
}

Test(spec_config, what_is_no_file_is_refused_at_once)
{
    struct kvw_spec spec;

    cr_expect_eq(kvw_spec_config(&spec, "/no/such/folder", 0, 0), -ENOENT);
    cr_expect_eq(kvw_spec_config(&spec, folder, 0, 0), -ENOENT);
    cr_expect_not_null(strstr(kvw_last_error(), "No such file"), "%s",
                       kvw_last_error());
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_eq(kvw_spec_config(&spec, path, 0, 0), -EINVAL);
    cr_expect_eq(kvw_spec_config(&spec, "/dev/zero", 0, 0), -EINVAL);
}

/* Any damage is an answer. */
Test(spec_config, no_changed_byte_crashes_the_reader)
{
    static const char *const configs[] = {MISTRAL_7B, GEMMA3_4B, GPT_OSS_20B};
    static const char changes[] = {0,   '"', '{', '}',  '[',   '-',
                                   '9', '.', 'e', '\\', '\x80'};

    for (size_t c = 0; c < 3; c++) {
        char bytes[2048];
        size_t n_bytes = strlen(configs[c]);
        memcpy(bytes, configs[c], n_bytes);

        for (size_t at = 0; at < n_bytes; at++) {
            struct kvw_spec spec;
            char old = bytes[at];
            bytes[at] = changes[(at + c) % sizeof changes];
            write_bytes(bytes, n_bytes);
            int error = kvw_spec_config(&spec, path, 0, 0);
            cr_assert(error == 0 || error == -EINVAL || error == -E2BIG);
            cr_assert(error != 0 || kvw_spec_check(&spec) == 0);
            bytes[at] = old;
        }
    }
}
