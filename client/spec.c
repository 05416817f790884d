/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Specs: what a caller fills in, and the geometry made of it. A spec is the caller's
 * plain data, so nothing in it is believed: each count is checked before it bounds a
 * loop, each number before it is narrowed. What the numbers must be to each other is
 * geometry_check()'s business, which the daemon runs too.
 */
#include "client/spec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "client/client.h"
#include "proto/layout.h"

_Static_assert(KVW_SPEC_GROUPS_MAX == KVW_GROUPS_MAX, "spec: groups");
_Static_assert(KVW_SPEC_PLANES_MAX == KVW_PLANES_MAX, "spec: planes");
_Static_assert(KVW_SPEC_LAYERS_MAX == KVW_LAYERS_MAX, "spec: layers");
_Static_assert(sizeof(((struct kvw_spec *)0)->name) == KVW_NAME_MAX + 1, "spec: name");
_Static_assert(sizeof(((struct kvw_spec_group *)0)->name) == KVW_SHORT_NAME_MAX + 1,
               "spec: group name");
_Static_assert(sizeof(((struct kvw_spec_plane *)0)->name) == KVW_SHORT_NAME_MAX + 1,
               "spec: plane name");
_Static_assert(sizeof(((struct kvw_spec_bytes *)0)->rank_bytes) == 8 * KVW_RANKS_MAX,
               "spec: ranks");
_Static_assert((int)KVW_F32 == (int)KVW_GEOMETRY_F32 &&
                   (int)KVW_BF16 == (int)KVW_GEOMETRY_BF16 &&
                   (int)KVW_F16 == (int)KVW_GEOMETRY_F16 &&
                   (int)KVW_I8 == (int)KVW_GEOMETRY_I8 &&
                   (int)KVW_U8 == (int)KVW_GEOMETRY_U8 &&
                   (int)KVW_U32 == (int)KVW_GEOMETRY_U32,
               "spec: the numbers of types are those of the geometry");
_Static_assert((int)KVW_ROLL == (int)KVW_GEOMETRY_ROLL &&
                   (int)KVW_REFUSE == (int)KVW_GEOMETRY_REFUSE &&
                   (int)KVW_WINDOW_CHUNK == (int)KVW_GEOMETRY_CHUNK &&
                   (int)KVW_WINDOW_ROW == (int)KVW_GEOMETRY_ROW &&
                   (int)KVW_POSITIONS_ABSOLUTE == (int)KVW_GEOMETRY_ABSOLUTE &&
                   (int)KVW_POSITIONS_WINDOW == (int)KVW_GEOMETRY_WINDOW,
               "spec: the numbers of rules are those of the geometry");
_Static_assert((int)KVW_PLACEMENT_MAP == (int)KVW_PLACE_MAP &&
                   (int)KVW_PLACEMENT_FOLLOW == (int)KVW_PLACE_FOLLOW &&
                   (int)KVW_PLACEMENT_INTERLEAVE == (int)KVW_PLACE_INTERLEAVE &&
                   (int)KVW_PAGES_THP == (int)KVW_GEOMETRY_PAGES_THP &&
                   (int)KVW_PAGES_2M == (int)KVW_GEOMETRY_PAGES_2M,
               "spec: the numbers of placements and pages are those of proto");
_Static_assert(sizeof(((struct kvw_spec *)0)->node) == 2 * KVW_RANKS_MAX,
               "spec: nodes");

/* Copy a name into a zeroed field; one that is too long is left out, so that no check
 * can mistake its beginning for it. */
static bool copy_name(char *field, const char *name, size_t length_max)
{
    size_t length = name == NULL ? 0 : strnlen(name, length_max + 1);
    if (length > length_max)
        return false;
    if (length > 0)
        memcpy(field, name, length);
    return true;
}

void kvw_spec_init(struct kvw_spec *spec, const char *name)
{
    memset(spec, 0, sizeof *spec);
    spec->size = sizeof *spec;
    spec->n_lanes = 1;
    spec->n_ranks = 1;
    spec->head_parts = 1;
    spec->layer_parts = 1;
    spec->lane_parts = 1;
    spec->row_parts = 1;
    spec->lifetime = KVW_LIFETIME_JOB;
    spec->mode = 0600;
    spec->placement = KVW_PLACEMENT_SPREAD;
    /* There is nobody to tell: a name that does not fit stays empty and fails the
     * check. */
    (void)copy_name(spec->name, name, KVW_NAME_MAX);
}

struct kvw_spec_group *kvw_spec_add_group(struct kvw_spec *spec, const char *name,
                                          uint32_t n_layers,
                                          const uint16_t *model_layers)
{
    char field[KVW_SHORT_NAME_MAX + 1] = {0};

    if (!copy_name(field, name, KVW_SHORT_NAME_MAX)) {
        (void)fail(-EINVAL, "add group '%.32s...': a name has at most %u bytes", name,
                   KVW_SHORT_NAME_MAX);
        return NULL;
    }
    if (spec->n_groups >= KVW_GROUPS_MAX) {
        (void)fail(-E2BIG, "add group '%s': a cache has at most %u groups, this has %u",
                   field, KVW_GROUPS_MAX, spec->n_groups);
        return NULL;
    }
    if (spec->n_layers > KVW_LAYERS_MAX || n_layers == 0 ||
        n_layers > KVW_LAYERS_MAX - spec->n_layers) {
        (void)fail(-E2BIG,
                   "add group '%s': layers: need at least 1 and, with the %u of other "
                   "groups, at most %u, have %u",
                   field, spec->n_layers, KVW_LAYERS_MAX, n_layers);
        return NULL;
    }

    struct kvw_spec_group *group = &spec->group[spec->n_groups++];
    memset(group, 0, sizeof *group);
    memcpy(group->name, field, sizeof field);
    group->n_layers = n_layers;
    group->n_heads = 1;
    group->slack_chunks = 1;
    group->policy = KVW_ROLL;
    group->window_kind = KVW_WINDOW_CHUNK;
    group->positions = KVW_POSITIONS_ABSOLUTE;
    for (uint32_t i = 0; i < n_layers; i++)
        spec->model_layer[spec->n_layers + i] =
            model_layers == NULL ? (uint16_t)i : model_layers[i];
    spec->n_layers += n_layers;
    return group;
}

struct kvw_spec_plane *kvw_spec_add_plane(struct kvw_spec_group *group,
                                          const char *name, uint32_t type,
                                          uint32_t elems)
{
    char field[KVW_SHORT_NAME_MAX + 1] = {0};

    if (!copy_name(field, name, KVW_SHORT_NAME_MAX)) {
        (void)fail(-EINVAL, "add plane '%.32s...': a name has at most %u bytes", name,
                   KVW_SHORT_NAME_MAX);
        return NULL;
    }
    if (group->n_planes >= KVW_PLANES_MAX) {
        (void)fail(
            -E2BIG,
            "add plane '%s': group '%.15s' can have %u planes and has %u already",
            field, group->name, KVW_PLANES_MAX, group->n_planes);
        return NULL;
    }

    struct kvw_spec_plane *plane = &group->plane[group->n_planes++];
    memset(plane, 0, sizeof *plane);
    memcpy(plane->name, field, sizeof field);
    plane->type = type;
    plane->elems = elems;
    return plane;
}

void kvw_spec_split_heads(struct kvw_spec *spec, uint32_t n_ranks)
{
    spec->n_ranks = n_ranks;
    spec->head_parts = n_ranks;
    spec->layer_parts = 1;
    spec->lane_parts = 1;
    spec->row_parts = 1;
    spec->row_block = 0;
}

/* What a spec says beside its geometry. */
static int check_rest(const struct kvw_spec *spec)
{
    if (spec->size != sizeof *spec)
        return fail(-EINVAL,
                    "spec: size: need %zu, have %u (made by kvw_spec_init() of another "
                    "version, or not at all)",
                    sizeof *spec, spec->size);
    if (!geometry_name_ok(spec->name, KVW_NAME_MAX))
        return fail(
            -EINVAL,
            "spec: name of the cache: need 1 to %u letters, digits, '_', '-' or "
            "'.', no '.' first, have %zu bytes",
            KVW_NAME_MAX, strnlen(spec->name, sizeof spec->name));
    if (spec->lifetime > KVW_LIFETIME_KEEP)
        return fail(-EINVAL, "spec: lifetime: need %d to %d, have %u", KVW_LIFETIME_JOB,
                    KVW_LIFETIME_KEEP, spec->lifetime);
    if (spec->lifetime == KVW_LIFETIME_TTL &&
        (spec->ttl_seconds == 0 || spec->ttl_seconds > KVW_TTL_SECONDS_MAX))
        return fail(-EINVAL, "spec: ttl_seconds: need 1 to %llu, have %" PRIu64,
                    (unsigned long long)KVW_TTL_SECONDS_MAX, spec->ttl_seconds);
    if (spec->mode > 0777)
        return fail(-EINVAL, "spec: mode: need at most 0777, have 0%o", spec->mode);
    if (spec->placement > KVW_PLACEMENT_MAP)
        return fail(-EINVAL, "spec: placement: need %d (spread) to %d (map), have %u",
                    KVW_PLACEMENT_SPREAD, KVW_PLACEMENT_MAP, spec->placement);
    if (spec->pages > KVW_PAGES_2M)
        return fail(-EINVAL, "spec: pages: need %d (none) to %d (2M), have %u",
                    KVW_PAGES_NONE, KVW_PAGES_2M, spec->pages);
    if (spec->n_groups > KVW_GROUPS_MAX)
        return fail(-E2BIG, "spec: groups: need 1 to %u, have %u", KVW_GROUPS_MAX,
                    spec->n_groups);
    return 0;
}

/* A number that a geometry keeps in a byte. */
static int narrow(const struct kvw_spec_group *group, const char *what, uint32_t value,
                  uint8_t *byte)
{
    if (value > UINT8_MAX)
        return fail(-EINVAL, "group '%.15s': %s: there is no %u", group->name, what,
                    value);
    *byte = (uint8_t)value;
    return 0;
}

static int convert_plane(const struct kvw_spec_group *group, uint32_t p,
                         struct kvw_geometry_plane *to)
{
    const struct kvw_spec_plane *from = &group->plane[p];

    memcpy(to->name, from->name, strnlen(from->name, sizeof from->name));
    to->elems = from->elems;
    to->flags = from->is_rotated != 0 ? KVW_GEOMETRY_ROTATED : 0;
    return narrow(group, "type of a plane", from->type, &to->type);
}

static int convert_group(const struct kvw_spec_group *from, uint32_t layer_first,
                         struct kvw_geometry_group *to)
{
    if (from->n_planes > KVW_PLANES_MAX)
        return fail(-E2BIG, "group '%.15s': planes: need 1 to %u, have %u", from->name,
                    KVW_PLANES_MAX, from->n_planes);
    memcpy(to->name, from->name, strnlen(from->name, sizeof from->name));
    to->window_rows = from->window_rows;
    to->sink_rows = from->sink_rows;
    to->chunk_rows_max = from->chunk_rows_max;
    to->keep_rows = from->keep_rows;
    /* Rows of a refuse group never wrap: its slack would be memory that nobody can use.
     */
    to->slack_chunks = from->policy == KVW_REFUSE ? 0 : from->slack_chunks;
    to->n_layers = from->n_layers;
    to->layer_first = layer_first;
    to->n_heads = from->n_heads;
    to->n_planes = from->n_planes;

    int error = narrow(from, "policy", from->policy, &to->policy);
    if (error == 0)
        error = narrow(from, "window kind", from->window_kind, &to->kind);
    if (error == 0)
        error = narrow(from, "position rule", from->positions, &to->positions);
    if (error == 0)
        error = narrow(from, "is_contiguous", from->is_contiguous, &to->is_contiguous);
    for (uint32_t p = 0; p < from->n_planes && error == 0; p++)
        error = convert_plane(from, p, &to->plane[p]);
    return error;
}

/* The geometry of a spec, and the layout that the daemon will give it. */
static int convert(const struct kvw_spec *spec, struct kvw_geometry *geometry,
                   struct kvw_layout *layout)
{
    struct kvw_refusal refusal;

    int error = check_rest(spec);
    if (error != 0)
        return error;
    *geometry = (struct kvw_geometry){
        .n_groups = spec->n_groups,
        .n_lanes = spec->n_lanes,
        .n_ranks = spec->n_ranks,
        .partition = {.head_parts = spec->head_parts,
                      .layer_parts = spec->layer_parts,
                      .lane_parts = spec->lane_parts,
                      .row_parts = spec->row_parts,
                      .row_block = spec->row_block},
    };
    if (spec->has_checksums > 1)
        return fail(-EINVAL, "spec: has_checksums: need 0 or 1, have %u",
                    spec->has_checksums);
    geometry->has_checksums = (uint8_t)spec->has_checksums;
    geometry->pages = (uint8_t)spec->pages;
    for (uint32_t g = 0; g < spec->n_groups; g++) {
        error = convert_group(&spec->group[g], geometry->n_layers, &geometry->group[g]);
        if (error != 0)
            return error;
        if (spec->group[g].n_layers > KVW_LAYERS_MAX - geometry->n_layers)
            return fail(
                -E2BIG, "spec: layers of all groups: need at most %u, have %" PRIu64,
                KVW_LAYERS_MAX, (uint64_t)geometry->n_layers + spec->group[g].n_layers);
        geometry->n_layers += spec->group[g].n_layers;
    }
    if (geometry->n_layers != spec->n_layers)
        return fail(-EINVAL, "spec: layers of all groups: need %u, have n_layers = %u",
                    geometry->n_layers, spec->n_layers);
    memcpy(geometry->model_layer, spec->model_layer,
           geometry->n_layers * sizeof spec->model_layer[0]);

    error = geometry_check(geometry, &refusal);
    if (error == 0)
        error = layout_of(geometry, layout, &refusal);
    if (error != 0)
        (void)fail_numbers(error, refusal.need, refusal.have, refusal.text);
    return error;
}

int spec_to_geometry(const struct kvw_spec *spec, struct kvw_geometry *geometry)
{
    struct kvw_geometry converted;
    struct kvw_layout layout;

    int error = convert(spec, &converted, &layout);
    if (error == 0)
        *geometry = converted;
    return error;
}

static void group_from_geometry(const struct kvw_geometry_group *from,
                                struct kvw_spec_group *to)
{
    memcpy(to->name, from->name, sizeof to->name);
    to->n_layers = from->n_layers;
    to->n_heads = from->n_heads;
    to->window_rows = from->window_rows;
    to->sink_rows = from->sink_rows;
    to->chunk_rows_max = from->chunk_rows_max;
    to->keep_rows = from->keep_rows;
    to->slack_chunks = from->slack_chunks;
    to->policy = from->policy;
    to->window_kind = from->kind;
    to->positions = from->positions;
    to->is_contiguous = from->is_contiguous;
    to->n_planes = from->n_planes;
    for (uint32_t p = 0; p < from->n_planes; p++) {
        memcpy(to->plane[p].name, from->plane[p].name, sizeof to->plane[p].name);
        to->plane[p].type = from->plane[p].type;
        to->plane[p].elems = from->plane[p].elems;
        to->plane[p].is_rotated = (from->plane[p].flags & KVW_GEOMETRY_ROTATED) != 0;
    }
}

void spec_from_geometry(const struct kvw_geometry *geometry, const char *name,
                        struct kvw_spec *spec)
{
    kvw_spec_init(spec, name);
    spec->n_lanes = geometry->n_lanes;
    spec->n_ranks = geometry->n_ranks;
    spec->head_parts = geometry->partition.head_parts;
    spec->layer_parts = geometry->partition.layer_parts;
    spec->lane_parts = geometry->partition.lane_parts;
    spec->row_parts = geometry->partition.row_parts;
    spec->row_block = geometry->partition.row_block;
    spec->has_checksums = geometry->has_checksums;
    spec->pages = geometry->pages;
    spec->n_groups = geometry->n_groups;
    spec->n_layers = geometry->n_layers;
    for (uint32_t g = 0; g < geometry->n_groups; g++)
        group_from_geometry(&geometry->group[g], &spec->group[g]);
    memcpy(spec->model_layer, geometry->model_layer, sizeof spec->model_layer);
}

int kvw_spec_check(const struct kvw_spec *spec)
{
    struct kvw_geometry geometry;
    struct kvw_layout layout;

    return convert(spec, &geometry, &layout);
}

int kvw_spec_size(const struct kvw_spec *spec, struct kvw_spec_bytes *bytes)
{
    struct kvw_geometry geometry;
    struct kvw_layout layout;

    int error = convert(spec, &geometry, &layout);
    if (error != 0)
        return error;
    *bytes = (struct kvw_spec_bytes){
        .total_bytes = layout.data_bytes + layout.control_bytes + layout.pins_bytes,
        .data_bytes = layout.data_bytes,
        .control_bytes = layout.control_bytes + layout.pins_bytes,
        .padding_bytes = layout.padding_bytes,
    };
    for (uint32_t g = 0; g < geometry.n_groups; g++) {
        bytes->layer_bytes[g] = layout.group[g].layer_bytes;
        bytes->group_bytes[g] =
            layout.group[g].layer_bytes * geometry.group[g].n_layers;
    }
    for (uint32_t rank = 0; rank < geometry.n_ranks; rank++)
        /* Where rows are split it is an even share: which rows those are changes as the
         * window rolls. */
        bytes->rank_bytes[rank] = placement_rank_bytes(&geometry, &layout, rank) /
                                  geometry.partition.row_parts;
    return 0;
}

void spec_wish(const struct kvw_spec *spec, struct kvw_placement_wish *wish)
{
    *wish =
        (struct kvw_placement_wish){.policy = spec->placement, .pages = spec->pages};
    if (spec->placement == KVW_PLACEMENT_NODE)
        wish->n_nodes = 1;
    else if (spec->placement == KVW_PLACEMENT_MAP)
        wish->n_nodes = spec->n_ranks;
    memcpy(wish->node, spec->node, wish->n_nodes * sizeof wish->node[0]);
}
