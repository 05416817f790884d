/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: each field is checked for type and range before it is believed. */
#include "examples/generate/config.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "examples/common/file.h"

/* Where a refusal comes from. */
struct reader {
    const char *name;
    const json_t *json;
    struct fail *fail;
};

static int read_count(const struct reader *in, const char *field, uint32_t count_max,
                      uint32_t *count)
{
    const json_t *value = json_object_get(in->json, field);
    json_int_t number;

    if (value == NULL)
        return fail_set(in->fail, FAIL_MODEL, "%s: %s is missing", in->name, field);
    if (!json_is_integer(value))
        return fail_set(in->fail, FAIL_MODEL, "%s: %s: need a whole number", in->name,
                        field);
    number = json_integer_value(value);
    if (number < 1 || number > (json_int_t)count_max)
        return fail_set(in->fail, FAIL_MODEL,
                        "%s: %s: need 1 to %u, have %" JSON_INTEGER_FORMAT, in->name,
                        field, count_max, number);
    *count = (uint32_t)number;
    return 0;
}

/* A field that may be missing or null keeps what *count has. */
static int read_count_or(const struct reader *in, const char *field, uint32_t count_max,
                         uint32_t *count)
{
    const json_t *value = json_object_get(in->json, field);

    if (value == NULL || json_is_null(value))
        return 0;
    return read_count(in, field, count_max, count);
}

static int read_positive(const struct reader *in, const char *field, double value_max,
                         double *number)
{
    const json_t *value = json_object_get(in->json, field);

    if (value == NULL || json_is_null(value))
        return 0;
    if (!json_is_number(value))
        return fail_set(in->fail, FAIL_MODEL, "%s: %s: need a number", in->name, field);
    *number = json_number_value(value);
    if (!(*number > 0) || *number > value_max)
        return fail_set(in->fail, FAIL_MODEL,
                        "%s: %s: need more than 0 and at most %g, have %g", in->name,
                        field, value_max, *number);
    return 0;
}

/* A flag that this program cannot serve when it is set. */
static int refuse_true(const struct reader *in, const char *field)
{
    const json_t *value = json_object_get(in->json, field);

    if (value == NULL || json_is_null(value) || json_is_false(value))
        return 0;
    return fail_set(in->fail, FAIL_MODEL, "%s: %s: only false is served", in->name,
                    field);
}

static int refuse_present(const struct reader *in, const char *field)
{
    const json_t *value = json_object_get(in->json, field);

    if (value == NULL || json_is_null(value))
        return 0;
    return fail_set(in->fail, FAIL_MODEL, "%s: %s is set: that is not served", in->name,
                    field);
}

static int need_word(const struct reader *in, const char *field, const char *word)
{
    const json_t *value = json_object_get(in->json, field);
    const char *have = json_string_value(value);

    if (value == NULL || json_is_null(value))
        return 0;
    if (have != NULL && strcmp(have, word) == 0)
        return 0;
    return fail_set(in->fail, FAIL_MODEL, "%s: %s: need \"%s\", have %s%.60s%s",
                    in->name, field, word, have != NULL ? "\"" : "",
                    have != NULL ? have : "something else", have != NULL ? "\"" : "");
}

/* Newer files hold the base of the rotation in an object of its own. */
static int read_rope(const struct reader *in, struct model_config *config)
{
    const json_t *parameters = json_object_get(in->json, "rope_parameters");

    if (refuse_present(in, "rope_scaling") != 0)
        return -EINVAL;
    if (read_positive(in, "rope_theta", 1e12, &config->rope_theta) != 0)
        return -EINVAL;
    if (parameters == NULL || json_is_null(parameters))
        return 0;
    if (!json_is_object(parameters))
        return fail_set(in->fail, FAIL_MODEL, "%s: rope_parameters: need an object",
                        in->name);

    struct reader inner = {in->name, parameters, in->fail};
    if (need_word(&inner, "rope_type", "default") != 0)
        return -EINVAL;
    return read_positive(&inner, "rope_theta", 1e12, &config->rope_theta);
}

static int read_architecture(const struct reader *in)
{
    static const char *const flags[] = {"attention_bias", "mlp_bias"};
    const json_t *type = json_object_get(in->json, "model_type");

    if (type == NULL)
        return fail_set(in->fail, FAIL_MODEL, "%s: model_type is missing", in->name);
    if (json_is_null(type))
        return fail_set(in->fail, FAIL_MODEL,
                        "%s: model_type: need \"llama\", have null", in->name);
    if (need_word(in, "model_type", "llama") != 0)
        return -EINVAL;
    if (need_word(in, "hidden_act", "silu") != 0)
        return -EINVAL;
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (refuse_true(in, flags[i]) != 0)
            return -EINVAL;
    }
    if (refuse_present(in, "quantization_config") != 0)
        return -EINVAL;
    return refuse_present(in, "sliding_window");
}

static int read_sizes(const struct reader *in, struct model_config *config)
{
    if (read_count(in, "num_hidden_layers", CONFIG_LAYERS_MAX, &config->n_layers) !=
            0 ||
        read_count(in, "hidden_size", CONFIG_HIDDEN_MAX, &config->hidden) != 0 ||
        read_count(in, "num_attention_heads", CONFIG_HEADS_MAX, &config->n_heads) !=
            0 ||
        read_count(in, "intermediate_size", CONFIG_INTERMEDIATE_MAX,
                   &config->intermediate) != 0 ||
        read_count(in, "vocab_size", CONFIG_VOCAB_MAX, &config->vocab) != 0)
        return -EINVAL;
    config->n_kv_heads = config->n_heads;
    return read_count_or(in, "num_key_value_heads", CONFIG_HEADS_MAX,
                         &config->n_kv_heads);
}

static int read_heads(const struct reader *in, struct model_config *config)
{
    if (read_count_or(in, "head_dim", CONFIG_HEAD_DIM_MAX, &config->head_dim) != 0)
        return -EINVAL;
    if (config->head_dim == 0) {
        if (config->hidden % config->n_heads != 0)
            return fail_set(
                in->fail, FAIL_MODEL,
                "%s: num_attention_heads: %u does not divide hidden_size %u, "
                "and there is no head_dim",
                in->name, config->n_heads, config->hidden);
        config->head_dim = config->hidden / config->n_heads;
    }
    if (config->head_dim % 2 != 0 || config->head_dim > CONFIG_HEAD_DIM_MAX)
        return fail_set(in->fail, FAIL_MODEL,
                        "%s: head_dim: need an even number up to %u, have %u", in->name,
                        CONFIG_HEAD_DIM_MAX, config->head_dim);
    if (config->n_heads % config->n_kv_heads != 0)
        return fail_set(
            in->fail, FAIL_MODEL,
            "%s: num_attention_heads: need a multiple of num_key_value_heads "
            "%u, have %u",
            in->name, config->n_kv_heads, config->n_heads);
    return 0;
}

static int read_fields(const struct reader *in, struct model_config *config)
{
    const json_t *tied = json_object_get(in->json, "tie_word_embeddings");

    if (read_architecture(in) != 0 || read_sizes(in, config) != 0 ||
        read_heads(in, config) != 0 || read_rope(in, config) != 0 ||
        read_positive(in, "rms_norm_eps", 1.0, &config->rms_eps) != 0)
        return -EINVAL;
    if (tied != NULL && !json_is_null(tied) && !json_is_boolean(tied))
        return fail_set(in->fail, FAIL_MODEL,
                        "%s: tie_word_embeddings: need true or false", in->name);
    config->is_tied = json_is_true(tied);
    return 0;
}

int config_parse(const char *text, size_t n_bytes, const char *name,
                 struct model_config *config, struct fail *fail)
{
    /* The defaults of Hugging Face's LlamaConfig. */
    struct model_config read = {.rms_eps = 1e-6, .rope_theta = 10000.0};
    json_t *json = file_parse_object(text, n_bytes, name, fail);
    struct reader in = {name, json, fail};
    int result;

    if (json == NULL)
        return -EINVAL;
    result = read_fields(&in, &read);
    json_decref(json);
    if (result == 0)
        *config = read;
    return result;
}

int config_read(const char *folder, struct model_config *config, struct fail *fail)
{
    struct file_text text;
    char *path = file_join(folder, "config.json");
    int result = -EINVAL;

    if (path == NULL)
        return fail_memory(fail, "a path");
    if (file_read(path, CONFIG_BYTES_MAX, FAIL_MODEL, &text, fail) == 0) {
        result = config_parse(text.bytes, text.n_bytes, path, config, fail);
        file_free(&text);
    }
    free(path);
    return result;
}
