/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: what is served, and what is refused by the name of the field. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/generate/config.h"

/* A config of small sizes; `more` is put in front of it, so that it wins over nothing:
 * the keys of `more` must not be these. */
#define SIZES                                                                     \
    "\"num_hidden_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 8, " \
    "\"intermediate_size\": 128, \"vocab_size\": 256"
#define LLAMA "\"model_type\": \"llama\""

static struct model_config config;
static struct fail fail;

static int parse(const char *json)
{
    fail = (struct fail){0};
    config = (struct model_config){0};
    return config_parse(json, strlen(json), "config.json", &config, &fail);
}

/* Refused, with these words in the reason. */
static void refuses(const char *json, const char *words)
{
    cr_assert_neq(parse(json), 0, "not refused: %s", json);
    cr_assert_eq(fail.code, FAIL_MODEL);
    cr_assert_not_null(strstr(fail.text, words), "\"%s\" not in: %s", words, fail.text);
    cr_assert_eq(config.hidden, 0, "a refused file must leave nothing behind");
}

Test(config, takes_the_defaults_of_hugging_face)
{
    cr_assert_eq(parse("{" LLAMA ", " SIZES "}"), 0, "%s", fail.text);

    cr_assert_eq(config.n_kv_heads, 8);
    cr_assert_eq(config.head_dim, 8);
    cr_assert_eq(config.is_tied, false);
    cr_assert_float_eq(config.rms_eps, 1e-6, 1e-18);
    cr_assert_float_eq(config.rope_theta, 10000.0, 0);
}

Test(config, reads_every_field)
{
    cr_assert_eq(parse("{" LLAMA ", " SIZES ", \"num_key_value_heads\": 2, "
                       "\"head_dim\": 32, \"tie_word_embeddings\": true, "
                       "\"rms_norm_eps\": 1e-5, \"rope_theta\": 500000, "
                       "\"hidden_act\": \"silu\", \"rope_scaling\": null, "
                       "\"attention_bias\": false, \"mlp_bias\": false}"),
                 0, "%s", fail.text);

    cr_assert_eq(config.n_layers, 2);
    cr_assert_eq(config.hidden, 64);
    cr_assert_eq(config.n_heads, 8);
    cr_assert_eq(config.n_kv_heads, 2);
    cr_assert_eq(config.head_dim, 32);
    cr_assert_eq(config.intermediate, 128);
    cr_assert_eq(config.vocab, 256);
    cr_assert_eq(config.is_tied, true);
    cr_assert_float_eq(config.rms_eps, 1e-5, 1e-18);
    cr_assert_float_eq(config.rope_theta, 500000.0, 0);
}

Test(config, takes_rope_parameters_of_the_default_type)
{
    cr_assert_eq(parse("{" LLAMA ", " SIZES ", \"rope_parameters\": {\"rope_type\": "
                       "\"default\", \"rope_theta\": 1234.0}}"),
                 0, "%s", fail.text);
    cr_assert_float_eq(config.rope_theta, 1234.0, 0);
}

Test(config, refuses_other_architectures)
{
    refuses("{\"model_type\": \"mistral\", " SIZES "}", "model_type");
    refuses("{" SIZES "}", "model_type");
    refuses("{\"model_type\": 7, " SIZES "}", "model_type");
    refuses("{\"model_type\": null, " SIZES "}", "model_type");
    refuses("{" LLAMA ", " SIZES ", \"hidden_act\": \"gelu\"}", "hidden_act");
    refuses("{" LLAMA ", " SIZES ", \"attention_bias\": true}", "attention_bias");
    refuses("{" LLAMA ", " SIZES ", \"mlp_bias\": 1}", "mlp_bias");
    refuses("{" LLAMA ", " SIZES ", \"sliding_window\": 4096}", "sliding_window");
    refuses("{" LLAMA ", " SIZES ", \"quantization_config\": {}}",
            "quantization_config");
}

Test(config, refuses_rope_scaling)
{
    refuses("{" LLAMA ", " SIZES ", \"rope_scaling\": {\"factor\": 8.0}}",
            "rope_scaling");
    refuses("{" LLAMA ", " SIZES ", \"rope_parameters\": {\"rope_type\": \"yarn\"}}",
            "rope_type");
    refuses("{" LLAMA ", " SIZES ", \"rope_parameters\": 3}", "rope_parameters");
}

Test(config, refuses_absurd_numbers)
{
    refuses("{" LLAMA ", " SIZES ", \"head_dim\": 7}", "head_dim");
    refuses("{" LLAMA ", " SIZES ", \"head_dim\": 0}", "head_dim");
    refuses("{" LLAMA ", " SIZES ", \"head_dim\": 2048}", "head_dim");
    refuses("{" LLAMA ", " SIZES ", \"num_key_value_heads\": 3}",
            "num_key_value_heads");
    refuses("{" LLAMA ", " SIZES ", \"num_key_value_heads\": 16}",
            "num_key_value_heads");
    refuses("{" LLAMA ", " SIZES ", \"rms_norm_eps\": -1}", "rms_norm_eps");
    refuses("{" LLAMA ", " SIZES ", \"rms_norm_eps\": 0}", "rms_norm_eps");
    refuses("{" LLAMA ", " SIZES ", \"rope_theta\": \"big\"}", "rope_theta");
    refuses("{" LLAMA ", " SIZES ", \"tie_word_embeddings\": \"no\"}",
            "tie_word_embeddings");
    refuses("{" LLAMA ", \"num_hidden_layers\": 2.5}", "num_hidden_layers");
    refuses("{" LLAMA ", \"num_hidden_layers\": -1}", "num_hidden_layers");
    refuses("{" LLAMA ", \"num_hidden_layers\": 2000000000}", "num_hidden_layers");
    refuses("{" LLAMA ", \"num_hidden_layers\": 2, \"hidden_size\": 0}", "hidden_size");
    refuses("{" LLAMA ", \"num_hidden_layers\": 2}", "hidden_size is missing");
    refuses("{" LLAMA ", \"num_hidden_layers\": 1, \"hidden_size\": 10, "
            "\"num_attention_heads\": 3, \"intermediate_size\": 1, \"vocab_size\": 1}",
            "does not divide");
}

Test(config, refuses_what_is_not_json)
{
    refuses("", "not JSON");
    refuses("{", "not JSON");
    refuses("[]", "not a JSON object");
    refuses("{\"a\": 1, \"a\": 2}", "not JSON");
    refuses("{" LLAMA "} trailing", "not JSON");
    refuses("{\"hidden_size\": 99999999999999999999999}", "not JSON");
}

Test(config, refuses_deep_nesting_without_crashing)
{
    const size_t depth = 1000000;
    char *json = malloc(depth + 1);

    cr_assert_not_null(json);
    memset(json, '[', depth);
    json[depth] = '\0';
    refuses(json, "not JSON");
    free(json);
}

Test(config, survives_every_truncation)
{
    static const char whole[] = "{" LLAMA ", " SIZES ", \"rope_theta\": 1e4}";

    for (size_t n = 0; n + 1 < sizeof whole; n++) {
        fail = (struct fail){0};
        cr_assert_neq(config_parse(whole, n, "config.json", &config, &fail), 0);
    }
}
