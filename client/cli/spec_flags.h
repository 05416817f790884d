/* SPDX-License-Identifier: Apache-2.0 */
/* The options of create, size and plan that say what a cache is. */
#ifndef KVW_CLIENT_CLI_SPEC_FLAGS_H
#define KVW_CLIENT_CLI_SPEC_FLAGS_H

#include "client/cli/cli.h"

enum spec_flag {
    SPEC_FLAG_PRESET = 256,
    SPEC_FLAG_CONFIG,
    SPEC_FLAG_DTYPE,
    SPEC_FLAG_KIND,
    SPEC_FLAG_POSITIONS,
    SPEC_FLAG_POLICY,
    SPEC_FLAG_CONTIGUOUS,
    SPEC_FLAG_CHECKSUMS,
    SPEC_FLAG_PLACEMENT,
    SPEC_FLAG_PAGES,
    SPEC_FLAG_NUMBERS, /* from here on each has a whole number */
    SPEC_FLAG_CONTEXT = SPEC_FLAG_NUMBERS,
    SPEC_FLAG_RANKS,
    SPEC_FLAG_LAYER_PARTS,
    SPEC_FLAG_LANE_PARTS,
    SPEC_FLAG_ROW_PARTS,
    SPEC_FLAG_ROW_BLOCK,
    SPEC_FLAG_LANES,
    SPEC_FLAG_GROUP, /* from here on they are of a group in flags */
    SPEC_FLAG_LAYERS = SPEC_FLAG_GROUP,
    SPEC_FLAG_HEADS,
    SPEC_FLAG_HEAD_DIM,
    SPEC_FLAG_WINDOW,
    SPEC_FLAG_CHUNK,
    SPEC_FLAG_SINK,
    SPEC_FLAG_KEEP_ROWS,
    SPEC_FLAG_SLACK,
    SPEC_FLAG_END,
};

#define SPEC_FLAG_OPTIONS                                                \
    {"preset", required_argument, NULL, SPEC_FLAG_PRESET},               \
        {"config", required_argument, NULL, SPEC_FLAG_CONFIG},           \
        {"dtype", required_argument, NULL, SPEC_FLAG_DTYPE},             \
        {"kind", required_argument, NULL, SPEC_FLAG_KIND},               \
        {"positions", required_argument, NULL, SPEC_FLAG_POSITIONS},     \
        {"policy", required_argument, NULL, SPEC_FLAG_POLICY},           \
        {"contiguous", no_argument, NULL, SPEC_FLAG_CONTIGUOUS},         \
        {"checksums", no_argument, NULL, SPEC_FLAG_CHECKSUMS},           \
        {"placement", required_argument, NULL, SPEC_FLAG_PLACEMENT},     \
        {"pages", required_argument, NULL, SPEC_FLAG_PAGES},             \
        {"context", required_argument, NULL, SPEC_FLAG_CONTEXT},         \
        {"ranks", required_argument, NULL, SPEC_FLAG_RANKS},             \
        {"layer-parts", required_argument, NULL, SPEC_FLAG_LAYER_PARTS}, \
        {"lane-parts", required_argument, NULL, SPEC_FLAG_LANE_PARTS},   \
        {"row-parts", required_argument, NULL, SPEC_FLAG_ROW_PARTS},     \
        {"row-block", required_argument, NULL, SPEC_FLAG_ROW_BLOCK},     \
        {"lanes", required_argument, NULL, SPEC_FLAG_LANES},             \
        {"layers", required_argument, NULL, SPEC_FLAG_LAYERS},           \
        {"heads", required_argument, NULL, SPEC_FLAG_HEADS},             \
        {"head-dim", required_argument, NULL, SPEC_FLAG_HEAD_DIM},       \
        {"window", required_argument, NULL, SPEC_FLAG_WINDOW},           \
        {"chunk", required_argument, NULL, SPEC_FLAG_CHUNK},             \
        {"sink", required_argument, NULL, SPEC_FLAG_SINK},               \
        {"keep-rows", required_argument, NULL, SPEC_FLAG_KEEP_ROWS},     \
    {                                                                    \
        "slack", required_argument, NULL, SPEC_FLAG_SLACK                \
    }

struct spec_flags {
    const char *preset;
    const char *config;
    uint32_t dtype; /* enums of the public header; 0 = not given */
    uint32_t kind;
    uint32_t positions;
    uint32_t policy;
    bool is_contiguous;
    bool has_checksums;
    uint32_t pages;
    uint32_t placement;
    uint32_t n_nodes; /* of a map */
    uint16_t node[KVW_RANKS_MAX];
    uint64_t number[SPEC_FLAG_END - SPEC_FLAG_NUMBERS];
    uint64_t given; /* bit SPEC_FLAG_x - SPEC_FLAG_PRESET */
};

/** Take an option. @return CLI_OK; CLI_HELPED or an exit code: told already. */
int spec_flags_take(const struct cli *cli, struct spec_flags *flags, int option,
                    const char *value);

/**
 * The spec of the flags, checked.
 *
 * @param name  Of the cache; NULL for that of the preset or config, or "cache".
 * @return CLI_OK; an exit code: told already.
 */
int spec_flags_spec(const struct cli *cli, const struct spec_flags *flags,
                    const char *name, struct kvw_spec *spec);

/** For commands that take nothing but these options: parse all, give the spec.
 *  @return CLI_OK; CLI_HELPED or an exit code: told already. */
int spec_flags_parse(struct cli *cli, int argc, char **argv, const char *command,
                     struct kvw_spec *spec);

/* Names of the numbers of a spec; "?" for others. */
const char *spec_name_type(uint32_t type);
const char *spec_name_policy(uint32_t policy);
const char *spec_name_kind(uint32_t kind);
const char *spec_name_positions(uint32_t positions);
const char *spec_name_pages(uint32_t pages);

#endif
