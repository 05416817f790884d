/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sizes of a Llama model, from a Hugging Face config.json. Anything that this
 * program would compute wrongly (rope scaling, biases, another architecture) is refused
 * by name rather than answered with a wrong number.
 */
#ifndef GENERATE_CONFIG_H
#define GENERATE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "examples/common/fail.h"

/* Bounds: above any published Llama, and low enough that no product overflows 64 bits.
 */
#define CONFIG_LAYERS_MAX 1000u
#define CONFIG_HIDDEN_MAX 65536u
#define CONFIG_HEADS_MAX 1024u
#define CONFIG_HEAD_DIM_MAX 1024u
#define CONFIG_INTERMEDIATE_MAX (1u << 20)
#define CONFIG_VOCAB_MAX (1u << 22)
#define CONFIG_BYTES_MAX (1u << 20) /* of the file */

struct model_config {
    uint32_t n_layers;
    uint32_t hidden;
    uint32_t n_heads; /* query heads, a multiple of n_kv_heads */
    uint32_t n_kv_heads;
    uint32_t head_dim; /* even; n_heads * head_dim need not be hidden */
    uint32_t intermediate;
    uint32_t vocab;
    bool is_tied; /* the output matrix is the embedding */
    double rms_eps;
    double rope_theta;
};

/** Read FOLDER/config.json. @return 0 or -EINVAL. */
int config_read(const char *folder, struct model_config *config, struct fail *fail);

/** The same from bytes; `name` is for the refusal. */
int config_parse(const char *text, size_t n_bytes, const char *name,
                 struct model_config *config, struct fail *fail);

#endif
