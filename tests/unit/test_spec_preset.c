/* SPDX-License-Identifier: Apache-2.0 */
/* Presets against the figures that are published for these models. */
#include <criterion/criterion.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "client/include/kvwheel/kvwheel.h"

static struct kvw_spec preset(const char *name)
{
    struct kvw_spec spec;
    cr_assert_eq(kvw_spec_preset(&spec, name, 0), 0, "%s: %s", name, kvw_last_error());
    return spec;
}

static uint32_t type_bytes(uint32_t type)
{
    return type == KVW_F32 || type == KVW_U32 ? 4 : type == KVW_BF16 ? 2 : 0;
}

/* Bytes of one row of one layer, over heads and planes. */
static uint64_t row_bytes(const struct kvw_spec_group *group)
{
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < group->n_planes; p++)
        bytes += (uint64_t)group->n_heads * group->plane[p].elems *
                 type_bytes(group->plane[p].type);
    return bytes;
}

/* The window's bytes of one layer; what the ring needs for an open chunk beside it. */
static const struct figure {
    const char *preset;
    const char *group;
    uint32_t n_layers;
    uint32_t policy;
    uint32_t window_kind;
    uint64_t window_rows;
    uint64_t sink_rows;
    uint64_t window_bytes;
    uint32_t slack_percent; /* of the window, rounded up */
} figures[] = {
    {"self-forcing-1.3b", "self", 30, KVW_ROLL, KVW_WINDOW_CHUNK, 32760, 0, 201277440,
     15},
    {"self-forcing-1.3b", "cross", 30, KVW_REFUSE, KVW_WINDOW_CHUNK, 512, 0, 3145728,
     0},
    {"longlive-1.3b", "self", 30, KVW_ROLL, KVW_WINDOW_CHUNK, 18720, 4680, 115015680,
     25},
    {"longlive-1.3b", "cross", 30, KVW_REFUSE, KVW_WINDOW_CHUNK, 512, 0, 3145728, 0},
    {"krea-14b", "self", 40, KVW_ROLL, KVW_WINDOW_CHUNK, 9360, 1560, 191692800, 50},
    {"krea-14b", "cross", 40, KVW_REFUSE, KVW_WINDOW_CHUNK, 512, 0, 10485760, 0},
    {"longsana-2b", "state", 20, KVW_ROLL, KVW_WINDOW_CHUNK, 26, 0, 26 * 1012480, 4},
    {"longsana-2b", "tail", 20, KVW_ROLL, KVW_WINDOW_CHUNK, 1, 0, 6988800, 100},
    {"glm-image", "ref", 30, KVW_REFUSE, KVW_WINDOW_CHUNK, 4096, 0, 41943040, 0},
    {"mistral-7b", "self", 32, KVW_ROLL, KVW_WINDOW_ROW, 4096, 0, 16777216, 13},
    {"gemma3-4b", "local", 29, KVW_ROLL, KVW_WINDOW_ROW, 1024, 0, 4194304, 25},
    {"gemma3-4b", "global", 5, KVW_REFUSE, KVW_WINDOW_ROW, 131072, 0, 536870912, 0},
    {"gpt-oss-20b", "local", 12, KVW_ROLL, KVW_WINDOW_ROW, 128, 0, 262144, 100},
    {"gpt-oss-20b", "global", 12, KVW_REFUSE, KVW_WINDOW_ROW, 131072, 0, 268435456, 0},
};

static const struct kvw_spec_group *group_of(const struct kvw_spec *spec,
                                             const char *name, uint32_t *index)
{
    for (*index = 0; *index < spec->n_groups; (*index)++) {
        if (strcmp(spec->group[*index].name, name) == 0)
            return &spec->group[*index];
    }
    return NULL;
}

Test(spec_preset, figures_are_the_published_ones)
{
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        const struct figure *figure = &figures[i];
        struct kvw_spec spec = preset(figure->preset);
        struct kvw_spec_bytes bytes;
        uint32_t g;
        const struct kvw_spec_group *group = group_of(&spec, figure->group, &g);

        cr_assert_not_null(group, "%s: %s", figure->preset, figure->group);
        cr_assert_eq(kvw_spec_size(&spec, &bytes), 0);
        cr_expect_eq(group->n_layers, figure->n_layers, "%s", figure->preset);
        cr_expect_eq(group->policy, figure->policy, "%s", figure->preset);
        cr_expect_eq(group->window_kind, figure->window_kind, "%s", figure->preset);
        cr_expect_eq(group->window_rows, figure->window_rows, "%s", figure->preset);
        cr_expect_eq(group->sink_rows, figure->sink_rows, "%s", figure->preset);
        cr_expect_eq(group->window_rows * row_bytes(group), figure->window_bytes,
                     "%s %s: %" PRIu64, figure->preset, figure->group,
                     group->window_rows * row_bytes(group));
        /* What is allocated is that and the slack, in whole lines and pages. */
        uint64_t slack = group->slack_chunks * group->chunk_rows_max;
        cr_expect_eq((slack * 100 + group->window_rows - 1) / group->window_rows,
                     figure->slack_percent, "%s %s", figure->preset, figure->group);
        uint64_t rows = group->window_rows + slack;
        cr_expect_geq(bytes.layer_bytes[g], rows * row_bytes(group));
        cr_expect_leq(bytes.layer_bytes[g], rows * row_bytes(group) + 2 * 4096,
                      "%s %s: %" PRIu64, figure->preset, figure->group,
                      bytes.layer_bytes[g]);
    }
}

Test(spec_preset, every_group_of_every_preset_has_its_figure)
{
    uint32_t n_presets = 0;
    uint32_t n_groups = 0;

    for (; kvw_spec_preset_name(n_presets) != NULL; n_presets++) {
        struct kvw_spec spec = preset(kvw_spec_preset_name(n_presets));
        cr_expect_str_eq(spec.name, kvw_spec_preset_name(n_presets));
        n_groups += spec.n_groups;
    }

    cr_assert_eq(n_presets, 8);
    cr_assert_eq(n_groups, sizeof figures / sizeof figures[0]);
    cr_assert_null(kvw_spec_preset_name(UINT32_MAX));
}

/* A chunk's sum and one tail, as the published total counts them: 8,001,280 B a layer.
 */
Test(spec_preset, a_row_of_longsana_is_a_sum_and_a_tail)
{
    struct kvw_spec spec = preset("longsana-2b");

    cr_assert_str_eq(spec.group[0].plane[0].name, "vk");
    cr_assert_eq(spec.group[0].plane[0].type, KVW_F32);
    cr_assert_eq(20 * spec.group[0].plane[0].elems * 4, 20 * 112 * 112 * 4);
    cr_assert_str_eq(spec.group[0].plane[1].name, "k_sum");
    cr_assert_eq(row_bytes(&spec.group[0]) + row_bytes(&spec.group[1]), 8001280);
}

Test(spec_preset, layers_that_differ_have_the_models_numbers)
{
    static const uint16_t gemma_global[] = {5, 11, 17, 23, 29};
    struct kvw_spec gemma = preset("gemma3-4b");
    struct kvw_spec gpt = preset("gpt-oss-20b");

    cr_assert_eq(gemma.n_layers, 34);
    cr_assert_eq(memcmp(&gemma.model_layer[29], gemma_global, sizeof gemma_global), 0);
    for (uint32_t i = 0; i < 29; i++)
        cr_assert_eq(gemma.model_layer[i], i + i / 5);
    for (uint32_t i = 0; i < 12; i++) {
        cr_assert_eq(gpt.model_layer[i], 2 * i);
        cr_assert_eq(gpt.model_layer[12 + i], 2 * i + 1);
    }
}

Test(spec_preset, keys_are_rotated_and_values_and_text_are_not)
{
    for (uint32_t i = 0; kvw_spec_preset_name(i) != NULL; i++) {
        struct kvw_spec spec = preset(kvw_spec_preset_name(i));
        for (uint32_t g = 0; g < spec.n_groups; g++) {
            const struct kvw_spec_group *group = &spec.group[g];
            const uint32_t is_rotated =
                strcmp(group->name, "cross") != 0 && strcmp(group->name, "tail") != 0;
            cr_expect_eq(group->plane[0].is_rotated, is_rotated, "%s", spec.name);
            for (uint32_t p = 1; p < group->n_planes; p++)
                cr_expect_eq(group->plane[p].is_rotated, 0, "%s", spec.name);
            cr_expect_eq(group->positions, KVW_POSITIONS_ABSOLUTE, "%s", spec.name);
        }
    }
}

/* One step adds the same tokens to all layers of a language model. */
Test(spec_preset, groups_of_a_language_model_take_the_same_chunks)
{
    struct kvw_spec gemma = preset("gemma3-4b");
    struct kvw_spec gpt = preset("gpt-oss-20b");

    cr_assert_eq(gemma.group[0].chunk_rows_max, gemma.group[1].chunk_rows_max);
    cr_assert_eq(gpt.group[0].chunk_rows_max, gpt.group[1].chunk_rows_max);
}

Test(spec_preset, context_rows_set_the_window_of_full_layers_only)
{
    struct kvw_spec spec;

    cr_assert_eq(kvw_spec_preset(&spec, "gemma3-4b", 8192), 0);
    cr_assert_eq(spec.group[0].window_rows, 1024);
    cr_assert_eq(spec.group[1].window_rows, 8192);
    cr_assert_eq(kvw_spec_preset(&spec, "gpt-oss-20b", 16), 0);
    cr_assert_eq(spec.group[1].window_rows, 16);
    cr_assert_eq(spec.group[1].chunk_rows_max, 16);
    cr_assert_eq(kvw_spec_preset(&spec, "glm-image", 3 * 4096), 0);
    cr_assert_eq(spec.group[0].window_rows, 3 * 4096);
    cr_assert_eq(kvw_spec_preset(&spec, "mistral-7b", 8192), 0);
    cr_assert_eq(spec.group[0].window_rows, 4096);
    cr_assert_eq(kvw_spec_preset(&spec, "self-forcing-1.3b", 8192), 0);
    cr_assert_eq(spec.group[1].window_rows, 512);
}

Test(spec_preset, an_absurd_context_is_refused_and_changes_nothing)
{
    struct kvw_spec spec = preset("mistral-7b");

    cr_assert_eq(kvw_spec_preset(&spec, "gemma3-4b", UINT64_MAX), -E2BIG);
    cr_assert_not_null(strstr(kvw_last_error(), "group 'global'"), "%s",
                       kvw_last_error());
    cr_assert_str_eq(spec.name, "mistral-7b");
}

Test(spec_preset, an_unknown_name_lists_the_known_ones)
{
    static const char *const unknown[] = {"", "mistral", "mistral-7b ", "MISTRAL-7B"};
    struct kvw_spec spec = preset("mistral-7b");

    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        cr_expect_eq(kvw_spec_preset(&spec, unknown[i], 0), -ENOENT);
        for (uint32_t n = 0; kvw_spec_preset_name(n) != NULL; n++)
            cr_expect_not_null(strstr(kvw_last_error(), kvw_spec_preset_name(n)), "%s",
                               kvw_last_error());
    }
    cr_assert_str_eq(spec.name, "mistral-7b");
}

Test(spec_preset, every_preset_splits_over_ranks)
{
    for (uint32_t i = 0; kvw_spec_preset_name(i) != NULL; i++) {
        struct kvw_spec spec = preset(kvw_spec_preset_name(i));
        struct kvw_spec_bytes bytes;

        kvw_spec_split_heads(&spec, 4);
        cr_expect_eq(kvw_spec_size(&spec, &bytes), 0, "%s", kvw_last_error());
        cr_expect_gt(bytes.rank_bytes[3], 0, "%s", spec.name);
    }
}
