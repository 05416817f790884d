/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A spec from a Hugging Face config.json. The file may come from anywhere, so it is
 * read up to a bound, parsed strictly (no duplicate keys, no floats for counts), each
 * value is checked against its bounds before it is used, and what it says is printed
 * only after everything but plain characters is masked. Fields that a family's
 * published configs leave out have the defaults of that family's class in the
 * transformers library.
 */
#include "client/include/kvwheel/kvwheel.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/client.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"
#include "proto/limits.h"

#define CONFIG_BYTES_MAX (1u << 20)
#define HEAD_DIM_MAX 65536
#define HIDDEN_MAX (1 << 24)
#define SHOWN_MAX 47

/* 0 = the field must be there (pattern: all layers are alike). */
struct family {
    const char *model_type;
    uint32_t type;     /* of a config without dtype */
    uint32_t heads;    /* num_attention_heads */
    uint32_t kv_heads; /* num_key_value_heads */
    uint32_t head_dim; /* 0: hidden_size / heads */
    uint32_t window;   /* sliding_window */
    uint32_t context;  /* max_position_embeddings */
    uint32_t pattern;  /* every pattern-th layer is global */
};

static const struct family families[] = {
    {.model_type = "llama"},
    {.model_type = "mistral"},
    {.model_type = "gemma3_text",
     .type = KVW_BF16,
     .heads = 8,
     .kv_heads = 4,
     .head_dim = 256,
     .window = 4096,
     .context = 131072,
     .pattern = 6},
    {.model_type = "gpt_oss",
     .type = KVW_BF16,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .window = 128,
     .context = 131072,
     .pattern = 2},
};

#define N_FAMILIES (sizeof families / sizeof families[0])

/* What is read, and how to name it in a refusal. */
struct config {
    const char *path;
    const json_t *root;
    const json_t *text; /* the language model's part; the root, if it is not nested */
    const struct family *family;

    uint32_t n_layers;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t type;
    uint64_t window;  /* 0: no layer slides */
    uint64_t context; /* 0: not said */
    uint32_t n_global;
    bool is_global[KVW_SPEC_LAYERS_MAX];
};

/* A string of the file as it may be printed: short, and no control characters. */
static const char *shown(const char *value, char out[SHOWN_MAX + 1])
{
    size_t length = strnlen(value, SHOWN_MAX);
    for (size_t i = 0; i < length; i++) {
        char c = value[i];
        if (c < ' ' || c > '~')
            c = '?';
        out[i] = c;
    }
    out[length] = 0;
    return out;
}

static const char *kind_of(const json_t *value)
{
    static const char *const kinds[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array",
        [JSON_STRING] = "a string",  [JSON_INTEGER] = "an integer",
        [JSON_REAL] = "a float",     [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };
    return kinds[json_typeof(value)];
}

/* A field of the language model's part; null counts as missing, as it does to the
 * library that wrote it. */
static const json_t *field_of(const struct config *config, const char *name)
{
    const json_t *value = json_object_get(config->text, name);
    return json_is_null(value) ? NULL : value;
}

/* A whole number from 1 to max. Missing: `otherwise`, or a refusal if that is 0. */
static int read_number(const struct config *config, const char *name,
                       uint64_t otherwise, uint64_t max, uint64_t *number)
{
    const json_t *value = field_of(config, name);

    if (value == NULL && otherwise == 0)
        return fail(-EINVAL, "%s: %s: need 1 to %" PRIu64 ", have nothing",
                    config->path, name, max);
    if (value == NULL) {
        *number = otherwise;
        return 0;
    }
    if (!json_is_integer(value))
        return fail(-EINVAL, "%s: %s: need an integer from 1 to %" PRIu64 ", have %s",
                    config->path, name, max, kind_of(value));
    json_int_t have = json_integer_value(value);
    if (have < 1 || (uint64_t)have > max)
        return fail(-EINVAL,
                    "%s: %s: need 1 to %" PRIu64 ", have %" JSON_INTEGER_FORMAT,
                    config->path, name, max, have);
    *number = (uint64_t)have;
    return 0;
}

static int read_count(const struct config *config, const char *name, uint32_t otherwise,
                      uint32_t max, uint32_t *count)
{
    uint64_t number;
    int error = read_number(config, name, otherwise, max, &number);
    if (error == 0)
        *count = (uint32_t)number;
    return error;
}

/* The bytes of config.json, or of that file in a folder. */
static int read_file(const char *path, char **text, size_t *n_bytes)
{
    /* A pipe or a device must not make us wait. */
    const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    KVW_CLEANUP(kvw_fd_cleanup)
    int folder = -1;
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = open(path, flags);
    KVW_CLEANUP(kvw_free_cleanup)
    char *bytes = NULL;
    struct stat status;

    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
        folder = take_fd(&fd);
        fd = openat(folder, "config.json", flags);
    }
    if (fd < 0 || fstat(fd, &status) < 0)
        return fail(-errno, "config '%s': %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return fail(-EINVAL, "config '%s': need a file or a folder", path);

    bytes = malloc(CONFIG_BYTES_MAX + 1);
    if (bytes == NULL)
        return fail(-ENOMEM, "config '%s': no memory for %u bytes", path,
                    CONFIG_BYTES_MAX + 1);
    size_t have = 0;
    while (have <= CONFIG_BYTES_MAX) {
        ssize_t n = read(fd, bytes + have, CONFIG_BYTES_MAX + 1 - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(-errno, "config '%s': %s", path, strerror(errno));
        if (n == 0)
            break;
        have += (size_t)n;
    }
    if (have > CONFIG_BYTES_MAX)
        return fail(-EFBIG, "config '%s': need at most %u bytes, have more", path,
                    CONFIG_BYTES_MAX);
    *text = take_pointer(&bytes);
    *n_bytes = have;
    return 0;
}

static int parse(const char *path, json_t **root)
{
    KVW_CLEANUP(kvw_free_cleanup)
    char *text = NULL;
    char words[SHOWN_MAX + 1];
    json_error_t error;
    size_t n_bytes = 0;

    int result = read_file(path, &text, &n_bytes);
    if (result != 0)
        return result;
    /* The parser itself bounds the depth. */
    json_t *parsed = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (parsed == NULL)
        return fail(-EINVAL, "%s: line %d: not JSON: %s", path, error.line,
                    shown(error.text, words));
    if (!json_is_object(parsed)) {
        result = fail(-EINVAL, "%s: need an object, have %s", path, kind_of(parsed));
        json_decref(parsed);
        return result;
    }
    *root = parsed;
    return 0;
}

/* Which family it is, and where the language model's fields are. */
static int find_family(struct config *config)
{
    char words[SHOWN_MAX + 1];
    const json_t *value = field_of(config, "model_type");

    if (value != NULL && json_is_string(value) &&
        strcmp(json_string_value(value), "gemma3") == 0) {
        const json_t *text = json_object_get(config->root, "text_config");
        if (!json_is_object(text))
            return fail(-EINVAL, "%s: text_config: need an object, have %s",
                        config->path, text == NULL ? "nothing" : kind_of(text));
        config->text = text;
        value = field_of(config, "model_type");
    }
    if (value == NULL || !json_is_string(value))
        return fail(-EINVAL, "%s: model_type: need a string, have %s", config->path,
                    value == NULL ? "nothing" : kind_of(value));
    for (size_t i = 0; i < N_FAMILIES; i++) {
        if (strcmp(families[i].model_type, json_string_value(value)) == 0) {
            config->family = &families[i];
            return 0;
        }
    }
    return fail(
        -EINVAL,
        "%s: model_type: need llama, mistral, gemma3, gemma3_text or gpt_oss, have "
        "'%s'",
        config->path, shown(json_string_value(value), words));
}

static int read_heads(struct config *config)
{
    const struct family *family = config->family;
    uint32_t hidden = 0;

    int error = read_count(config, "num_attention_heads", family->heads, KVW_HEADS_MAX,
                           &config->n_heads);
    if (error == 0)
        error = read_count(config, "num_key_value_heads",
                           family->kv_heads != 0 ? family->kv_heads : config->n_heads,
                           KVW_HEADS_MAX, &config->n_kv_heads);
    if (error != 0)
        return error;
    if (config->n_heads % config->n_kv_heads != 0)
        return fail(
            -EINVAL,
            "%s: num_key_value_heads: need a divisor of num_attention_heads = %u, "
            "have %u",
            config->path, config->n_heads, config->n_kv_heads);
    if (field_of(config, "head_dim") != NULL || family->head_dim != 0)
        return read_count(config, "head_dim", family->head_dim, HEAD_DIM_MAX,
                          &config->head_dim);

    error = read_count(config, "hidden_size", 0, HIDDEN_MAX, &hidden);
    if (error != 0)
        return error;
    if (hidden % config->n_heads != 0 || hidden / config->n_heads > HEAD_DIM_MAX)
        return fail(-EINVAL,
                    "%s: head_dim: need it, or a hidden_size that is 1 to %d times "
                    "num_attention_heads = %u, have hidden_size = %u",
                    config->path, HEAD_DIM_MAX, config->n_heads, hidden);
    config->head_dim = hidden / config->n_heads;
    return 0;
}

/* Element type of k and v: the caller's, else the file's, in either spelling and, for a
 * nested config, at either level. */
static int read_type(struct config *config, uint32_t type)
{
    static const struct {
        const char *name;
        uint32_t type;
    } types[] = {{"float32", KVW_F32}, {"bfloat16", KVW_BF16}, {"float16", KVW_F16}};
    char words[SHOWN_MAX + 1];

    if (type != 0 && type != KVW_F32 && type != KVW_BF16 && type != KVW_F16)
        return fail(-EINVAL,
                    "type of k and v: need 0, f32 = %d, bf16 = %d or f16 = %d, have %u",
                    KVW_F32, KVW_BF16, KVW_F16, type);
    const json_t *value = field_of(config, "dtype");
    if (value == NULL)
        value = field_of(config, "torch_dtype");
    if (value == NULL)
        value = json_object_get(config->root, "dtype");
    if (value == NULL)
        value = json_object_get(config->root, "torch_dtype");
    if (type == 0 && value == NULL)
        type = config->family->type;
    config->type = type;
    if (type != 0)
        return 0;

    if (!json_is_string(value))
        return fail(
            -EINVAL,
            "%s: torch_dtype: need float32, bfloat16 or float16 (or a type from "
            "the caller), have %s",
            config->path, value == NULL ? "nothing" : kind_of(value));
    const char *name = json_string_value(value);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, name) == 0) {
            config->type = types[i].type;
            return 0;
        }
    }
    return fail(
        -EINVAL,
        "%s: torch_dtype: need float32, bfloat16 or float16 (or a type from the "
        "caller), have '%s'",
        config->path, shown(name, words));
}

/* The sliding window: 0 if no layer has one. An explicit null is none; a field that is
 * not there is the family's. */
static int read_window(struct config *config)
{
    const json_t *use = field_of(config, "use_sliding_window");

    if (use != NULL && !json_is_boolean(use))
        return fail(-EINVAL, "%s: use_sliding_window: need true or false, have %s",
                    config->path, kind_of(use));
    config->window = 0;
    if (json_is_false(use) ||
        json_is_null(json_object_get(config->text, "sliding_window")))
        return 0;
    if (field_of(config, "sliding_window") == NULL) {
        config->window = config->family->window;
        return 0;
    }
    return read_number(config, "sliding_window", 0, KVW_ROWS_MAX, &config->window);
}

static int read_layer_types(struct config *config, const json_t *types)
{
    char words[SHOWN_MAX + 1];

    if (!json_is_array(types) || json_array_size(types) != config->n_layers)
        return fail(-EINVAL,
                    "%s: layer_types: need an array of num_hidden_layers = %u strings, "
                    "have %s of %zu",
                    config->path, config->n_layers, kind_of(types),
                    json_array_size(types));
    for (uint32_t i = 0; i < config->n_layers; i++) {
        const json_t *type = json_array_get(types, i);
        const char *name =
            json_is_string(type) ? json_string_value(type) : kind_of(type);

        config->is_global[i] = strcmp(name, "full_attention") == 0;
        if (!config->is_global[i] && strcmp(name, "sliding_attention") != 0)
            return fail(-EINVAL,
                        "%s: layer_types: layer %u: need full_attention or "
                        "sliding_attention, have '%s'",
                        config->path, i, shown(name, words));
        if (!config->is_global[i] && config->window == 0)
            return fail(
                -EINVAL,
                "%s: layer_types: layer %u slides: need a sliding_window, have none",
                config->path, i);
    }
    return 0;
}

/* Which layers see the whole context. */
static int read_layers(struct config *config)
{
    const json_t *types = field_of(config, "layer_types");
    uint32_t pattern = config->family->pattern;

    int error =
        read_count(config, "num_hidden_layers", 0, KVW_LAYERS_MAX, &config->n_layers);
    if (error == 0)
        error = read_window(config);
    if (error != 0)
        return error;
    if (types != NULL) {
        error = read_layer_types(config, types);
    } else {
        /* Gemma 3 has had two names for it. */
        const char *name = field_of(config, "_sliding_window_pattern") != NULL
                               ? "_sliding_window_pattern"
                               : "sliding_window_pattern";
        if (field_of(config, name) != NULL)
            error = read_count(config, name, 0, KVW_LAYERS_MAX, &pattern);
        for (uint32_t i = 0; i < config->n_layers && error == 0; i++)
            config->is_global[i] =
                config->window == 0 || (pattern != 0 && (i + 1) % pattern == 0);
    }
    config->n_global = 0;
    for (uint32_t i = 0; i < config->n_layers && error == 0; i++)
        config->n_global += config->is_global[i] ? 1 : 0;
    return error;
}

/* Rows of the largest chunk, by which a prompt is filled in: as in the presets, a
 * quarter of the sliding window, but 128 to 512. */
static uint64_t prefill_rows(const struct config *config)
{
    return config->window == 0 ? 512 : max_u64(128, min_u64(512, config->window / 4));
}

static int add_group(struct kvw_spec *spec, const struct config *config,
                     const char *name, bool is_global)
{
    uint16_t model_layers[KVW_SPEC_LAYERS_MAX];
    uint32_t n_layers = 0;

    for (uint32_t i = 0; i < config->n_layers; i++) {
        if (config->is_global[i] == is_global)
            model_layers[n_layers++] = (uint16_t)i;
    }
    struct kvw_spec_group *group =
        kvw_spec_add_group(spec, name, n_layers, model_layers);
    if (group == NULL)
        return -E2BIG;
    group->n_heads = config->n_kv_heads;
    group->window_rows = is_global ? config->context : config->window;
    group->window_kind = KVW_WINDOW_ROW;
    group->chunk_rows_max = prefill_rows(config);
    if (is_global) {
        group->policy = KVW_REFUSE;
        group->slack_chunks = 0;
        group->chunk_rows_max = min_u64(group->chunk_rows_max, group->window_rows);
    }
    struct kvw_spec_plane *k =
        kvw_spec_add_plane(group, "k", config->type, config->head_dim);
    struct kvw_spec_plane *v =
        kvw_spec_add_plane(group, "v", config->type, config->head_dim);
    if (k == NULL || v == NULL)
        return -E2BIG;
    k->is_rotated = 1;
    return 0;
}

static int read_config(struct config *config, uint32_t type, uint64_t context_rows)
{
    int error = find_family(config);
    if (error == 0)
        error = read_heads(config);
    if (error == 0)
        error = read_type(config, type);
    if (error == 0)
        error = read_layers(config);
    config->context = context_rows;
    if (error == 0 && config->n_global > 0 && context_rows == 0)
        error = read_number(config, "max_position_embeddings", config->family->context,
                            KVW_ROWS_MAX, &config->context);
    return error;
}

static void json_cleanup(json_t **root)
{
    json_decref(*root);
}

int kvw_spec_config(struct kvw_spec *spec, const char *path, uint32_t type,
                    uint64_t context_rows)
{
    KVW_CLEANUP(json_cleanup)
    json_t *root = NULL;
    struct config config = {.path = path};
    struct kvw_spec made;

    int error = parse(path, &root);
    if (error != 0)
        return error;
    config.root = root;
    config.text = root;
    error = read_config(&config, type, context_rows);
    if (error != 0)
        return error;

    const bool is_mixed = config.n_global != 0 && config.n_global != config.n_layers;
    kvw_spec_init(&made, config.family->model_type);
    if (config.n_global < config.n_layers)
        error = add_group(&made, &config, is_mixed ? "local" : "self", false);
    if (error == 0 && config.n_global > 0)
        error = add_group(&made, &config, is_mixed ? "global" : "self", true);
    if (error == 0)
        error = kvw_spec_check(&made); /* context_rows may be anything */
    if (error == 0)
        *spec = made;
    return error;
}
