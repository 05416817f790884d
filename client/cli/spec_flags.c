/* SPDX-License-Identifier: Apache-2.0 */
/* From options to a spec. Whether its numbers fit each other is the library's business.
 */
#include "client/cli/spec_flags.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/output.h"
#include "proto/limits.h"

/* ----------------------------------------------------------------- names ---------- */

struct word {
    const char *name;
    uint32_t number;
};

static const struct word types[] = {
    {"f32", KVW_F32}, {"bf16", KVW_BF16}, {"f16", KVW_F16}, {"i8", KVW_I8},
    {"u8", KVW_U8},   {"u32", KVW_U32},   {NULL, 0}};
static const struct word policies[] = {
    {"roll", KVW_ROLL}, {"refuse", KVW_REFUSE}, {NULL, 0}};
static const struct word kinds[] = {
    {"chunk", KVW_WINDOW_CHUNK}, {"row", KVW_WINDOW_ROW}, {NULL, 0}};
static const struct word positions[] = {
    {"absolute", KVW_POSITIONS_ABSOLUTE}, {"window", KVW_POSITIONS_WINDOW}, {NULL, 0}};

/* One more than their numbers: 0 is no word. */
static const struct word pages[] = {{"none", KVW_PAGES_NONE + 1},
                                    {"thp", KVW_PAGES_THP + 1},
                                    {"2M", KVW_PAGES_2M + 1},
                                    {NULL, 0}};

static const char *word_name(const struct word *words, uint32_t number)
{
    for (; words->name != NULL; words++) {
        if (words->number == number)
            return words->name;
    }
    return "?";
}

/* 0 if there is no such word. */
static uint32_t word_number(const struct word *words, const char *name)
{
    while (words->name != NULL && strcmp(words->name, name) != 0)
        words++;
    return words->number;
}

const char *spec_name_type(uint32_t type)
{
    return word_name(types, type);
}

const char *spec_name_policy(uint32_t policy)
{
    return word_name(policies, policy);
}

const char *spec_name_kind(uint32_t kind)
{
    return word_name(kinds, kind);
}

const char *spec_name_positions(uint32_t number)
{
    return word_name(positions, number);
}

const char *spec_name_pages(uint32_t number)
{
    return word_name(pages, number + 1);
}

/* ---------------------------------------------------------------- taking ---------- */

static int take_word(const struct cli *cli, const char *name, const struct word *words,
                     const char *value, uint32_t *number)
{
    char list[128] = "";

    *number = word_number(words, value);
    if (*number != 0)
        return CLI_OK;
    for (; words->name != NULL; words++)
        snprintf(list + strlen(list), sizeof list - strlen(list), " %s", words->name);
    return cli_usage(cli, "%s: need one of%s; have '%s'", name, list, value);
}

static int take_number(const struct cli *cli, struct spec_flags *flags, int option,
                       const char *value)
{
    static const struct {
        const char *name;
        uint64_t max;
    } numbers[SPEC_FLAG_END - SPEC_FLAG_NUMBERS] = {
        [SPEC_FLAG_CONTEXT - SPEC_FLAG_NUMBERS] = {"--context", KVW_ROWS_MAX},
        [SPEC_FLAG_RANKS - SPEC_FLAG_NUMBERS] = {"--ranks", KVW_RANKS_MAX},
        [SPEC_FLAG_LAYER_PARTS - SPEC_FLAG_NUMBERS] = {"--layer-parts", KVW_RANKS_MAX},
        [SPEC_FLAG_LANE_PARTS - SPEC_FLAG_NUMBERS] = {"--lane-parts", KVW_RANKS_MAX},
        [SPEC_FLAG_ROW_PARTS - SPEC_FLAG_NUMBERS] = {"--row-parts", KVW_RANKS_MAX},
        [SPEC_FLAG_ROW_BLOCK - SPEC_FLAG_NUMBERS] = {"--row-block", KVW_ROWS_MAX},
        [SPEC_FLAG_LANES - SPEC_FLAG_NUMBERS] = {"--lanes", KVW_LANES_MAX},
        [SPEC_FLAG_LAYERS - SPEC_FLAG_NUMBERS] = {"--layers", KVW_LAYERS_MAX},
        [SPEC_FLAG_HEADS - SPEC_FLAG_NUMBERS] = {"--heads", KVW_HEADS_MAX},
        [SPEC_FLAG_HEAD_DIM - SPEC_FLAG_NUMBERS] = {"--head-dim", KVW_ELEMS_MAX},
        [SPEC_FLAG_WINDOW - SPEC_FLAG_NUMBERS] = {"--window", KVW_ROWS_MAX},
        [SPEC_FLAG_CHUNK - SPEC_FLAG_NUMBERS] = {"--chunk", KVW_ROWS_MAX},
        [SPEC_FLAG_SINK - SPEC_FLAG_NUMBERS] = {"--sink", KVW_ROWS_MAX},
        [SPEC_FLAG_KEEP_ROWS - SPEC_FLAG_NUMBERS] = {"--keep-rows", KVW_ROWS_MAX},
        [SPEC_FLAG_SLACK - SPEC_FLAG_NUMBERS] = {"--slack", KVW_SLACK_MAX},
    };
    int i = option - SPEC_FLAG_NUMBERS;

    if (!cli_number(value, numbers[i].max, &flags->number[i]))
        return cli_usage(cli, "%s: need a whole number, at most %llu; have '%s'",
                         numbers[i].name, (unsigned long long)numbers[i].max, value);
    return CLI_OK;
}

/* node:N, or map:N,N,... with a node for each rank. */
static bool take_nodes(const char *list, struct spec_flags *flags)
{
    char copy[512];
    char *rest = copy;

    if (strlen(list) >= sizeof copy)
        return false;
    memcpy(copy, list, strlen(list) + 1);
    for (char *item = strsep(&rest, ","); item != NULL; item = strsep(&rest, ",")) {
        uint64_t number;
        if (flags->n_nodes == KVW_RANKS_MAX || !cli_number(item, UINT16_MAX, &number))
            return false;
        flags->node[flags->n_nodes++] = (uint16_t)number;
    }
    return true;
}

static int take_placement(const struct cli *cli, const char *value,
                          struct spec_flags *flags)
{
    bool is_good = true;

    flags->n_nodes = 0;
    if (strcmp(value, "spread") == 0)
        flags->placement = KVW_PLACEMENT_SPREAD;
    else if (strcmp(value, "follow") == 0)
        flags->placement = KVW_PLACEMENT_FOLLOW;
    else if (strcmp(value, "interleave") == 0)
        flags->placement = KVW_PLACEMENT_INTERLEAVE;
    else if (strncmp(value, "map:", 4) == 0) {
        flags->placement = KVW_PLACEMENT_MAP;
        is_good = take_nodes(value + 4, flags);
    } else {
        flags->placement = KVW_PLACEMENT_NODE;
        is_good = strncmp(value, "node:", 5) == 0 && take_nodes(value + 5, flags) &&
                  flags->n_nodes == 1;
    }
    return is_good
               ? CLI_OK
               : cli_usage(cli,
                           "--placement: need spread, follow, interleave, node:N or "
                           "map:N,N,... (a node for each rank); have '%.64s'",
                           value);
}

static int take_pages(const struct cli *cli, const char *value,
                      struct spec_flags *flags)
{
    int result = take_word(cli, "--pages", pages, value, &flags->pages);

    flags->pages -= result == CLI_OK;
    return result;
}

/* --preset help. */
static int list_presets(const struct cli *cli)
{
    json_t *list = json_array();
    const char *name;

    for (uint32_t i = 0; (name = kvw_spec_preset_name(i)) != NULL; i++) {
        if (!cli->is_json)
            printf("%s\n", name);
        json_array_append_new(list, json_string(name));
    }
    if (cli->is_json)
        output_json(json_incref(list));
    json_decref(list);
    return CLI_HELPED;
}

int spec_flags_take(const struct cli *cli, struct spec_flags *flags, int option,
                    const char *value)
{
    flags->given |= 1ull << (option - SPEC_FLAG_PRESET);
    switch (option) {
    case SPEC_FLAG_PRESET:
        flags->preset = value;
        return strcmp(value, "help") == 0 ? list_presets(cli) : CLI_OK;
    case SPEC_FLAG_CONFIG:
        flags->config = value;
        return CLI_OK;
    case SPEC_FLAG_DTYPE:
        return take_word(cli, "--dtype", types, value, &flags->dtype);
    case SPEC_FLAG_KIND:
        return take_word(cli, "--kind", kinds, value, &flags->kind);
    case SPEC_FLAG_POSITIONS:
        return take_word(cli, "--positions", positions, value, &flags->positions);
    case SPEC_FLAG_POLICY:
        return take_word(cli, "--policy", policies, value, &flags->policy);
    case SPEC_FLAG_CONTIGUOUS:
        flags->is_contiguous = true;
        return CLI_OK;
    case SPEC_FLAG_CHECKSUMS:
        flags->has_checksums = true;
        return CLI_OK;
    case SPEC_FLAG_PLACEMENT:
        return take_placement(cli, value, flags);
    case SPEC_FLAG_PAGES:
        return take_pages(cli, value, flags);
    default:
        return take_number(cli, flags, option, value);
    }
}

/* --------------------------------------------------------------- the spec --------- */

static bool is_given(const struct spec_flags *flags, int option)
{
    return (flags->given >> (option - SPEC_FLAG_PRESET) & 1) != 0;
}

static uint64_t number_or(const struct spec_flags *flags, int option, uint64_t other)
{
    return is_given(flags, option) ? flags->number[option - SPEC_FLAG_NUMBERS] : other;
}

static bool has_group_flag(const struct spec_flags *flags)
{
    return flags->given >> (SPEC_FLAG_GROUP - SPEC_FLAG_PRESET) != 0 ||
           flags->kind != 0 || flags->positions != 0 || flags->policy != 0;
}

/* One group of planes k and v. A failure to add is one of the check that follows. */
static int spec_of_flags(const struct cli *cli, const struct spec_flags *flags,
                         struct kvw_spec *spec)
{
    static const int needed[] = {SPEC_FLAG_LAYERS, SPEC_FLAG_HEADS, SPEC_FLAG_HEAD_DIM,
                                 SPEC_FLAG_WINDOW};
    uint32_t type = flags->dtype != 0 ? flags->dtype : KVW_BF16;

    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        if (!is_given(flags, needed[i]))
            return cli_usage(cli, "what is the cache? --preset, --config, or all of "
                                  "--layers --heads --head-dim --window");
    }
    if (is_given(flags, SPEC_FLAG_CONTEXT))
        return cli_usage(cli,
                         "--context goes with --preset and --config; use --window");
    kvw_spec_init(spec, "cache");
    struct kvw_spec_group *group = kvw_spec_add_group(
        spec, "self", (uint32_t)number_or(flags, SPEC_FLAG_LAYERS, 0), NULL);
    if (group == NULL)
        return cli_fail_as(cli, -EINVAL, CLI_USAGE);
    group->n_heads = (uint32_t)number_or(flags, SPEC_FLAG_HEADS, 0);
    group->window_rows = number_or(flags, SPEC_FLAG_WINDOW, 0);
    group->chunk_rows_max = number_or(flags, SPEC_FLAG_CHUNK, 1);
    group->sink_rows = number_or(flags, SPEC_FLAG_SINK, 0);
    group->keep_rows = number_or(flags, SPEC_FLAG_KEEP_ROWS, 0);
    if (flags->kind != 0)
        group->window_kind = flags->kind;
    if (flags->positions != 0)
        group->positions = flags->positions;
    if (flags->policy != 0)
        group->policy = flags->policy;
    group->slack_chunks =
        (uint32_t)number_or(flags, SPEC_FLAG_SLACK, group->slack_chunks);
    uint32_t elems = (uint32_t)number_or(flags, SPEC_FLAG_HEAD_DIM, 0);
    if (kvw_spec_add_plane(group, "k", type, elems) == NULL ||
        kvw_spec_add_plane(group, "v", type, elems) == NULL)
        return cli_fail(cli, -E2BIG);
    return CLI_OK;
}

static int refuse_preset(const struct cli *cli, const char *preset)
{
    char list[512] = "";
    const char *name;

    for (uint32_t i = 0; (name = kvw_spec_preset_name(i)) != NULL; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), " %s", name);
    return cli_usage(cli, "--preset: need one of%s; have '%s'", list, preset);
}

static int spec_of_model(const struct cli *cli, const struct spec_flags *flags,
                         struct kvw_spec *spec)
{
    uint64_t context_rows = number_or(flags, SPEC_FLAG_CONTEXT, 0);

    if (flags->preset != NULL && flags->config != NULL)
        return cli_usage(cli, "either --preset or --config");
    if (has_group_flag(flags))
        return cli_usage(cli, "--layers, --window and the like do not go with a model");
    if (flags->config != NULL) {
        int result = kvw_spec_config(spec, flags->config, flags->dtype, context_rows);
        return result < 0 ? cli_fail(cli, result) : CLI_OK;
    }
    if (flags->dtype != 0)
        return cli_usage(cli, "--dtype does not go with --preset, which has its own");
    int result = kvw_spec_preset(spec, flags->preset, context_rows);
    if (result == -ENOENT)
        return refuse_preset(cli, flags->preset);
    return result < 0 ? cli_fail(cli, result) : CLI_OK;
}

/* Parts of heads are what is left of the ranks. */
static int split(const struct cli *cli, const struct spec_flags *flags,
                 struct kvw_spec *spec)
{
    uint64_t layers = number_or(flags, SPEC_FLAG_LAYER_PARTS, 1);
    uint64_t lanes = number_or(flags, SPEC_FLAG_LANE_PARTS, 1);
    uint64_t rows = number_or(flags, SPEC_FLAG_ROW_PARTS, 1);
    uint64_t product = layers * lanes * rows;
    uint64_t ranks = number_or(flags, SPEC_FLAG_RANKS, product);

    if (product == 0)
        return cli_usage(cli, "--layer-parts, --lane-parts, --row-parts: need at "
                              "least 1 each");
    if (ranks % product != 0)
        return cli_usage(cli,
                         "--ranks: need a multiple of layer x lane x row parts = %llu "
                         "x %llu x %llu = %llu (heads are split in what is left); have "
                         "%llu",
                         (unsigned long long)layers, (unsigned long long)lanes,
                         (unsigned long long)rows, (unsigned long long)product,
                         (unsigned long long)ranks);
    if ((rows > 1) != is_given(flags, SPEC_FLAG_ROW_BLOCK))
        return cli_usage(cli, rows > 1
                                  ? "--row-parts: need --row-block ROWS, too: how many "
                                    "rows in a row are of one rank"
                                  : "--row-block goes with --row-parts 2 or more");
    kvw_spec_split_heads(spec, (uint32_t)ranks);
    spec->head_parts = (uint32_t)(ranks / product);
    spec->layer_parts = (uint32_t)layers;
    spec->lane_parts = (uint32_t)lanes;
    spec->row_parts = (uint32_t)rows;
    spec->row_block = (uint32_t)number_or(flags, SPEC_FLAG_ROW_BLOCK, 0);
    return CLI_OK;
}

int spec_flags_spec(const struct cli *cli, const struct spec_flags *flags,
                    const char *name, struct kvw_spec *spec)
{
    bool is_model = flags->preset != NULL || flags->config != NULL;
    int result =
        is_model ? spec_of_model(cli, flags, spec) : spec_of_flags(cli, flags, spec);

    if (result != CLI_OK)
        return result;
    if (name != NULL && !cli_name(cli, name, spec->name))
        return CLI_USAGE;
    spec->n_lanes = (uint32_t)number_or(flags, SPEC_FLAG_LANES, spec->n_lanes);
    spec->has_checksums = flags->has_checksums;
    for (uint32_t g = 0; g < spec->n_groups; g++)
        spec->group[g].is_contiguous = flags->is_contiguous;
    result = split(cli, flags, spec);
    if (result != CLI_OK)
        return result;
    spec->pages = flags->pages;
    spec->placement = flags->placement;
    memcpy(spec->node, flags->node, sizeof spec->node);
    if (flags->placement == KVW_PLACEMENT_MAP && flags->n_nodes != spec->n_ranks)
        return cli_usage(cli,
                         "--placement map: need %u nodes, one for each rank; have %u",
                         spec->n_ranks, flags->n_nodes);
    result = kvw_spec_check(spec);
    return result < 0 ? cli_fail_as(cli, result, CLI_USAGE) : CLI_OK;
}

int spec_flags_parse(struct cli *cli, int argc, char **argv, const char *command,
                     struct kvw_spec *spec)
{
    static const struct option options[] = {SPEC_FLAG_OPTIONS, CLI_OPTIONS};
    struct spec_flags flags = {0};
    int option;

    while ((option = cli_option(cli, argc, argv, ":h", options)) > 0) {
        int result = spec_flags_take(cli, &flags, option, optarg);
        if (result != CLI_OK)
            return result;
    }
    if (option != CLI_END)
        return option == CLI_HELPED ? CLI_HELPED : CLI_USAGE;
    if (optind != argc)
        return cli_usage(cli, "%s: '%s' is no option; did you mean --preset?", command,
                         argv[optind]);
    return spec_flags_spec(cli, &flags, NULL, spec);
}
