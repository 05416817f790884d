/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Specs by name: one table per model family, nothing computed that can be written down.
 *
 * Video. A latent frame of Wan at 480x832 is 30 x 52 = 1560 tokens, a chunk 3 frames,
 * and the window counts the sink and the chunk itself. Text is 512 rows, written once
 * per prompt. krea-14b is the realtime recipe of 6 frames, 3 of recomputed context and
 * 3 of its own: the cache is reset for every chunk, so absolute positions stay within 6
 * frames, and the sink is the re-encoded first frame, which the attention bias leaves
 * out.
 *
 * LongSANA (linear attention). A row of `state` is one chunk's sum and a row of `tail`
 * the last frame that entered the temporal convolution. num_cached_blocks is by default
 * all of the one-minute video that the model was trained on: 261 latent frames in
 * chunks of 10, the first one of 11, are 26 chunks, 25 of them past and one its own. A
 * shorter memory is a smaller window_rows (num_cached_blocks + 1).
 *
 * GLM-Image. Condition images of a prompt, one after another; a 1024 x 1024 image is
 * 4096 rows. context_rows makes room for more than one.
 *
 * Language models. A query sees the rows that end at itself, and a prompt is filled in
 * by chunks. The largest chunk is a quarter of the sliding window, but 128 to 512 rows,
 * and the same for all groups, since a step adds to all of them. It is also the slack
 * of a sliding layer: beside the window, Mistral pays 12.5 %, Gemma 3 25 %, gpt-oss 100
 * % (of 256 KiB a layer). Full-attention layers hold the context and refuse more; they
 * have no slack.
 */
#include "client/include/kvwheel/kvwheel.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "client/client.h"

struct plane {
    const char *name; /* NULL ends the list */
    uint32_t type;
    uint32_t elems;
    uint32_t is_rotated;
};

struct group {
    const char *name; /* NULL ends the list */
    const struct plane *planes;
    uint32_t n_layers;
    uint32_t n_heads;
    uint64_t window_rows;
    uint64_t sink_rows;
    uint64_t chunk_rows_max;
    uint32_t policy;
    uint32_t window_kind;
    bool is_context;                         /* context_rows sets its window */
    bool (*is_member)(uint16_t model_layer); /* NULL: every layer */
};

struct preset {
    const char *name;
    const struct group *groups;
};

#define FRAME_ROWS 1560 /* latent 60 x 104 in patches of 2 x 2 */
#define CHUNK_ROWS (3 * FRAME_ROWS)
#define TEXT_ROWS 512
#define CONTEXT_ROWS 131072

static bool is_gemma3_global(uint16_t model_layer)
{
    return model_layer % 6 == 5; /* 5 local : 1 global */
}

static bool is_gemma3_local(uint16_t model_layer)
{
    return model_layer % 6 != 5;
}

static bool is_even(uint16_t model_layer)
{
    return model_layer % 2 == 0;
}

static bool is_odd(uint16_t model_layer)
{
    return model_layer % 2 == 1;
}

/* Keys are stored after rotation, except those of text, which have no position. */
static const struct plane rotated_40[] = {
    {"k", KVW_BF16, 40, 1},
    {"v", KVW_BF16, 40, 0},
    {NULL, 0, 0, 0},
};
static const struct plane rotated_64[] = {
    {"k", KVW_BF16, 64, 1},
    {"v", KVW_BF16, 64, 0},
    {NULL, 0, 0, 0},
};
static const struct plane rotated_128[] = {
    {"k", KVW_BF16, 128, 1},
    {"v", KVW_BF16, 128, 0},
    {NULL, 0, 0, 0},
};
static const struct plane rotated_256[] = {
    {"k", KVW_BF16, 256, 1},
    {"v", KVW_BF16, 256, 0},
    {NULL, 0, 0, 0},
};
static const struct plane text_128[] = {
    {"k", KVW_BF16, 128, 0},
    {"v", KVW_BF16, 128, 0},
    {NULL, 0, 0, 0},
};
/* vk: value channel by key channel, of rotated keys; k_sum: of keys that are not. */
static const struct plane sana_state[] = {
    {"vk", KVW_F32, 112 * 112, 1},
    {"k_sum", KVW_F32, 112, 0},
    {NULL, 0, 0, 0},
};
static const struct plane sana_tail[] = {
    {"tail", KVW_BF16, 2240 * FRAME_ROWS, 0},
    {NULL, 0, 0, 0},
};

#define WAN_CROSS(layers, heads)                                                       \
    {                                                                                  \
        .name = "cross", .planes = text_128, .n_layers = (layers), .n_heads = (heads), \
        .window_rows = TEXT_ROWS, .chunk_rows_max = TEXT_ROWS, .policy = KVW_REFUSE,   \
        .window_kind = KVW_WINDOW_CHUNK                                                \
    }

static const struct group self_forcing[] = {
    {.name = "self",
     .planes = rotated_128,
     .n_layers = 30,
     .n_heads = 12,
     .window_rows = 21 * FRAME_ROWS,
     .chunk_rows_max = CHUNK_ROWS,
     .policy = KVW_ROLL,
     .window_kind = KVW_WINDOW_CHUNK},
    WAN_CROSS(30, 12),
    {.name = NULL},
};

static const struct group longlive[] = {
    {.name = "self",
     .planes = rotated_128,
     .n_layers = 30,
     .n_heads = 12,
     .window_rows = 12 * FRAME_ROWS,
     .sink_rows = 3 * FRAME_ROWS,
     .chunk_rows_max = CHUNK_ROWS,
     .policy = KVW_ROLL,
     .window_kind = KVW_WINDOW_CHUNK},
    WAN_CROSS(30, 12),
    {.name = NULL},
};

static const struct group krea[] = {
    {.name = "self",
     .planes = rotated_128,
     .n_layers = 40,
     .n_heads = 40,
     .window_rows = 6 * FRAME_ROWS,
     .sink_rows = FRAME_ROWS,
     .chunk_rows_max = CHUNK_ROWS,
     .policy = KVW_ROLL,
     .window_kind = KVW_WINDOW_CHUNK},
    WAN_CROSS(40, 40),
    {.name = NULL},
};

static const struct group longsana[] = {
    {.name = "state",
     .planes = sana_state,
     .n_layers = 20,
     .n_heads = 20,
     .window_rows = 25 + 1,
     .chunk_rows_max = 1,
     .policy = KVW_ROLL,
     .window_kind = KVW_WINDOW_CHUNK},
    {.name = "tail",
     .planes = sana_tail,
     .n_layers = 20,
     .n_heads = 1,
     .window_rows = 1,
     .chunk_rows_max = 1,
     .policy = KVW_ROLL,
     .window_kind = KVW_WINDOW_CHUNK},
    {.name = NULL},
};

static const struct group glm_image[] = {
    {.name = "ref",
     .planes = rotated_40,
     .n_layers = 30,
     .n_heads = 64,
     .window_rows = 4096,
     .chunk_rows_max = 4096,
     .policy = KVW_REFUSE,
     .window_kind = KVW_WINDOW_CHUNK,
     .is_context = true},
    {.name = NULL},
};

static const struct group mistral[] = {
    {.name = "self",
     .planes = rotated_128,
     .n_layers = 32,
     .n_heads = 8,
     .window_rows = 4096,
     .chunk_rows_max = 512,
     .policy = KVW_ROLL,
     .window_kind = KVW_WINDOW_ROW},
    {.name = NULL},
};

static const struct group gemma3[] = {
    {.name = "local",
     .planes = rotated_256,
     .n_layers = 29,
     .n_heads = 4,
     .window_rows = 1024,
     .chunk_rows_max = 256,
     .policy = KVW_ROLL,
     .window_kind = KVW_WINDOW_ROW,
     .is_member = is_gemma3_local},
    {.name = "global",
     .planes = rotated_256,
     .n_layers = 5,
     .n_heads = 4,
     .window_rows = CONTEXT_ROWS,
     .chunk_rows_max = 256,
     .policy = KVW_REFUSE,
     .window_kind = KVW_WINDOW_ROW,
     .is_context = true,
     .is_member = is_gemma3_global},
    {.name = NULL},
};

static const struct group gpt_oss[] = {
    {.name = "local",
     .planes = rotated_64,
     .n_layers = 12,
     .n_heads = 8,
     .window_rows = 128,
     .chunk_rows_max = 128,
     .policy = KVW_ROLL,
     .window_kind = KVW_WINDOW_ROW,
     .is_member = is_even},
    {.name = "global",
     .planes = rotated_64,
     .n_layers = 12,
     .n_heads = 8,
     .window_rows = CONTEXT_ROWS,
     .chunk_rows_max = 128,
     .policy = KVW_REFUSE,
     .window_kind = KVW_WINDOW_ROW,
     .is_context = true,
     .is_member = is_odd},
    {.name = NULL},
};

static const struct preset presets[] = {
    {"self-forcing-1.3b", self_forcing},
    {"longlive-1.3b", longlive},
    {"krea-14b", krea},
    {"longsana-2b", longsana},
    {"glm-image", glm_image},
    {"mistral-7b", mistral},
    {"gemma3-4b", gemma3},
    {"gpt-oss-20b", gpt_oss},
};

#define N_PRESETS (sizeof presets / sizeof presets[0])

const char *kvw_spec_preset_name(uint32_t index)
{
    return index < N_PRESETS ? presets[index].name : NULL;
}

static int unknown_preset(const char *name)
{
    char names[256] = "";
    size_t length = 0;

    for (size_t i = 0; i < N_PRESETS && length < sizeof names; i++) {
        int n = snprintf(names + length, sizeof names - length, "%s%s",
                         i == 0 ? "" : ", ", presets[i].name);
        length += n < 0 ? 0 : (size_t)n;
    }
    return fail(-ENOENT, "preset '%.64s': there are %s", name, names);
}

static int add_group(struct kvw_spec *spec, const struct group *from,
                     uint64_t context_rows)
{
    uint16_t model_layers[KVW_SPEC_LAYERS_MAX];
    uint16_t number = 0;

    for (uint32_t i = 0; i < from->n_layers; number++) {
        if (from->is_member == NULL || from->is_member(number))
            model_layers[i++] = number;
    }
    struct kvw_spec_group *group =
        kvw_spec_add_group(spec, from->name, from->n_layers, model_layers);
    if (group == NULL)
        return -E2BIG;
    group->n_heads = from->n_heads;
    group->window_rows = from->window_rows;
    if (from->is_context && context_rows != 0)
        group->window_rows = context_rows;
    group->sink_rows = from->sink_rows;
    group->chunk_rows_max = from->chunk_rows_max;
    if (from->policy == KVW_REFUSE && group->chunk_rows_max > group->window_rows)
        group->chunk_rows_max = group->window_rows;
    group->policy = from->policy;
    group->window_kind = from->window_kind;
    if (from->policy == KVW_REFUSE)
        group->slack_chunks = 0;
    for (const struct plane *p = from->planes; p->name != NULL; p++) {
        struct kvw_spec_plane *plane =
            kvw_spec_add_plane(group, p->name, p->type, p->elems);
        if (plane == NULL)
            return -E2BIG;
        plane->is_rotated = p->is_rotated;
    }
    return 0;
}

int kvw_spec_preset(struct kvw_spec *spec, const char *preset, uint64_t context_rows)
{
    const struct group *groups = NULL;
    struct kvw_spec made;

    for (size_t i = 0; i < N_PRESETS && preset != NULL; i++) {
        if (strcmp(presets[i].name, preset) == 0)
            groups = presets[i].groups;
    }
    if (groups == NULL)
        return unknown_preset(preset == NULL ? "" : preset);

    kvw_spec_init(&made, preset);
    for (const struct group *group = groups; group->name != NULL; group++) {
        int error = add_group(&made, group, context_rows);
        if (error != 0)
            return error;
    }
    int error = kvw_spec_check(&made); /* context_rows may be anything */
    if (error == 0)
        *spec = made;
    return error;
}
