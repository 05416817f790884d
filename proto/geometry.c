/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A geometry comes from a socket or from a page that a worker can write, so each value
 * is checked before anything is computed from it, and each refusal says what is needed.
 */
#include "proto/geometry.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/align.h"

int refuse(struct kvw_refusal *refusal, int error, uint64_t need, uint64_t have,
           const char *format, ...)
{
    refusal->need = need;
    refusal->have = have;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(refusal->text, sizeof refusal->text, format, arguments);
    va_end(arguments);
    return error;
}

uint32_t geometry_elem_bytes(uint8_t type)
{
    switch (type) {
    case KVW_GEOMETRY_F32:
    case KVW_GEOMETRY_U32:
        return 4;
    case KVW_GEOMETRY_BF16:
    case KVW_GEOMETRY_F16:
        return 2;
    case KVW_GEOMETRY_I8:
    case KVW_GEOMETRY_U8:
        return 1;
    default:
        return 0;
    }
}

/* Least number of rows whose bytes are whole pages in every plane: a power of two. */
static uint64_t rows_of_whole_pages(const struct kvw_geometry_group *group)
{
    uint64_t rows = 1;
    for (uint32_t p = 0; p < group->n_planes; p++) {
        const uint64_t row_bytes =
            (uint64_t)group->plane[p].elems * geometry_elem_bytes(group->plane[p].type);
        const uint64_t power = row_bytes & (~row_bytes + 1); /* that divides it */
        if (power < KVW_PAGE)
            rows = max_u64(rows, KVW_PAGE / power);
    }
    return rows;
}

uint64_t geometry_ring_rows(const struct kvw_geometry *geometry, uint32_t g)
{
    const struct kvw_geometry_group *group = &geometry->group[g];
    const struct kvw_geometry_partition *parts = &geometry->partition;
    uint64_t rows = group->window_rows - group->sink_rows;

    if (group->policy == KVW_GEOMETRY_ROLL) {
        rows += group->slack_chunks * group->chunk_rows_max;
        if (parts->row_parts > 1) {
            const uint64_t period = (uint64_t)parts->row_block * parts->row_parts;
            rows = (rows + period - 1) / period * period;
        }
    }
    if (group->is_contiguous)
        rows = align_up(rows, rows_of_whole_pages(group));
    return rows;
}

uint64_t geometry_rows(const struct kvw_geometry *geometry, uint32_t g)
{
    const struct kvw_geometry_group *group = &geometry->group[g];
    return group->sink_rows + geometry_ring_rows(geometry, g) + group->keep_rows;
}

uint32_t geometry_group_of(const struct kvw_geometry *geometry, uint32_t layer)
{
    uint32_t group = 0;
    while (group + 1 < geometry->n_groups &&
           layer >= geometry->group[group + 1].layer_first)
        group++;
    return group;
}

int geometry_name_ok(const char *name, size_t length_max)
{
    size_t length = strnlen(name, length_max + 1);
    if (length == 0 || length > length_max || name[0] == '.')
        return false;
    for (size_t i = 0; i < length; i++) {
        char c = name[i];
        bool is_ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
        if (!is_ok)
            return false;
    }
    return true;
}

static bool all_zero(const void *bytes, size_t n_bytes)
{
    const uint8_t *byte = bytes;
    for (size_t i = 0; i < n_bytes; i++) {
        if (byte[i] != 0)
            return false;
    }
    return true;
}

/* A zero-padded name: no byte may follow its end, so that equal names are equal bytes.
 */
static bool short_name_ok(const char name[KVW_SHORT_NAME_MAX + 1])
{
    if (!geometry_name_ok(name, KVW_SHORT_NAME_MAX))
        return false;
    size_t length = strlen(name);
    return all_zero(name + length, KVW_SHORT_NAME_MAX + 1 - length);
}

/* A count of none is a wrong value; one above its bound has met a limit. */
static int bound_error(uint64_t count)
{
    return count == 0 ? -EINVAL : -E2BIG;
}

static int check_plane(const struct kvw_geometry_group *group, uint32_t p,
                       struct kvw_refusal *refusal)
{
    const struct kvw_geometry_plane *plane = &group->plane[p];

    if (!short_name_ok(plane->name))
        return refuse(
            refusal, -EINVAL, 1, KVW_SHORT_NAME_MAX,
            "group '%s': plane %u: a name is 1 to %u letters, digits, '_', '-' "
            "or '.'",
            group->name, p, KVW_SHORT_NAME_MAX);
    for (uint32_t q = 0; q < p; q++) {
        if (strcmp(group->plane[q].name, plane->name) == 0)
            return refuse(refusal, -EINVAL, p, q,
                          "group '%s': two planes are called '%s'", group->name,
                          plane->name);
    }
    if (geometry_elem_bytes(plane->type) == 0)
        return refuse(refusal, -EINVAL, KVW_GEOMETRY_U32, plane->type,
                      "group '%s': plane '%s': %u is no element type", group->name,
                      plane->name, plane->type);
    if (plane->elems == 0 || plane->elems > KVW_ELEMS_MAX)
        return refuse(
            refusal, bound_error(plane->elems), KVW_ELEMS_MAX, plane->elems,
            "group '%s': plane '%s': elements per row and head: need 1 to %u, "
            "have %u",
            group->name, plane->name, KVW_ELEMS_MAX, plane->elems);
    if ((plane->flags & ~KVW_GEOMETRY_ROTATED) != 0 ||
        !all_zero(plane->reserved, sizeof plane->reserved))
        return refuse(refusal, -EINVAL, 0, plane->flags,
                      "group '%s': plane '%s': unknown flags", group->name,
                      plane->name);
    return 0;
}

/* W, S, the chunk and the slack: the room that the rules R1 and R5 need. */
static int check_window(const struct kvw_geometry *geometry, uint32_t g,
                        struct kvw_refusal *refusal)
{
    const struct kvw_geometry_group *group = &geometry->group[g];
    const uint64_t window = group->window_rows;
    const uint64_t sink = group->sink_rows;
    const uint64_t chunk = group->chunk_rows_max;

    if (window == 0 || window > KVW_ROWS_MAX || sink > KVW_ROWS_MAX ||
        group->keep_rows > KVW_ROWS_MAX)
        return refuse(refusal, bound_error(window), KVW_ROWS_MAX,
                      max_u64(window, max_u64(sink, group->keep_rows)),
                      "group '%s': window, sink and kept rows: need 1 to %u rows, have "
                      "window %" PRIu64 ", sink %" PRIu64 ", keep %" PRIu64,
                      group->name, KVW_ROWS_MAX, window, sink, group->keep_rows);
    if (chunk == 0 || chunk > KVW_ROWS_MAX)
        return refuse(refusal, bound_error(chunk), KVW_ROWS_MAX, chunk,
                      "group '%s': largest chunk: need 1 to %u rows, have %" PRIu64,
                      group->name, KVW_ROWS_MAX, chunk);
    if (group->policy == KVW_GEOMETRY_ROLL && group->kind == KVW_GEOMETRY_CHUNK &&
        window < sink + chunk)
        return refuse(
            refusal, -EINVAL, sink + chunk, window,
            "group '%s': the window includes the sink and the chunk: need W >= S "
            "+ chunk = %" PRIu64 " + %" PRIu64 " = %" PRIu64 " rows, have W = %" PRIu64,
            group->name, sink, chunk, sink + chunk, window);
    if (window <= sink)
        return refuse(
            refusal, -EINVAL, sink + 1, window,
            "group '%s': the window includes the sink and the query's own row: "
            "need W > S = %" PRIu64 ", have W = %" PRIu64,
            group->name, sink, window);
    if (group->policy == KVW_GEOMETRY_REFUSE && chunk > window)
        return refuse(refusal, -EINVAL, chunk, window,
                      "group '%s': the largest chunk does not fit: need W >= %" PRIu64
                      ", have W = %" PRIu64,
                      group->name, chunk, window);
    uint32_t slack_min = group->policy == KVW_GEOMETRY_ROLL ? 1 : 0;
    uint32_t slack_max = group->policy == KVW_GEOMETRY_ROLL ? KVW_SLACK_MAX : 0;
    if (group->slack_chunks < slack_min || group->slack_chunks > slack_max)
        return refuse(refusal, -EINVAL, slack_min, group->slack_chunks,
                      "group '%s': slack: need %u to %u chunks, have %u", group->name,
                      slack_min, slack_max, group->slack_chunks);
    uint64_t rows = geometry_rows(geometry, g);
    if (rows > KVW_ROWS_MAX)
        return refuse(refusal, -E2BIG, KVW_ROWS_MAX, rows,
                      "group '%s': rows of a layer: need at most %u, have %" PRIu64,
                      group->name, KVW_ROWS_MAX, rows);
    return 0;
}

static int check_group_layers(const struct kvw_geometry *geometry, uint32_t g,
                              struct kvw_refusal *refusal)
{
    const struct kvw_geometry_group *group = &geometry->group[g];
    const uint32_t expected_first =
        g == 0 ? 0
               : geometry->group[g - 1].layer_first + geometry->group[g - 1].n_layers;

    if (group->n_layers == 0 || group->n_layers > KVW_LAYERS_MAX ||
        group->layer_first != expected_first ||
        expected_first + group->n_layers > geometry->n_layers)
        return refuse(refusal, -EINVAL, KVW_LAYERS_MAX, group->n_layers,
                      "group '%s': layers: need 1 to %u that follow those of the group "
                      "before, have %u from %u",
                      group->name, KVW_LAYERS_MAX, group->n_layers, group->layer_first);
    for (uint32_t i = 1; i < group->n_layers; i++) {
        const uint16_t *number = &geometry->model_layer[group->layer_first + i];
        if (number[0] <= number[-1])
            return refuse(refusal, -EINVAL, number[-1] + 1u, number[0],
                          "group '%s': model layers must ascend: %u follows %u",
                          group->name, number[0], number[-1]);
    }
    return 0;
}

static int check_group(const struct kvw_geometry *geometry, uint32_t g,
                       struct kvw_refusal *refusal)
{
    const struct kvw_geometry_group *group = &geometry->group[g];

    if (!short_name_ok(group->name))
        return refuse(refusal, -EINVAL, 1, KVW_SHORT_NAME_MAX,
                      "group %u: a name is 1 to %u letters, digits, '_', '-' or '.'", g,
                      KVW_SHORT_NAME_MAX);
    for (uint32_t h = 0; h < g; h++) {
        if (strcmp(geometry->group[h].name, group->name) == 0)
            return refuse(refusal, -EINVAL, g, h, "two groups are called '%s'",
                          group->name);
    }
    if ((group->policy != KVW_GEOMETRY_ROLL && group->policy != KVW_GEOMETRY_REFUSE) ||
        (group->kind != KVW_GEOMETRY_CHUNK && group->kind != KVW_GEOMETRY_ROW) ||
        (group->positions != KVW_GEOMETRY_ABSOLUTE &&
         group->positions != KVW_GEOMETRY_WINDOW) ||
        group->is_contiguous > 1 || !all_zero(group->reserved, sizeof group->reserved))
        return refuse(refusal, -EINVAL, 2, group->policy,
                      "group '%s': unknown policy, window kind, position rule or flag",
                      group->name);
    if (group->is_contiguous && geometry->pages == KVW_GEOMETRY_PAGES_2M)
        return refuse(refusal, -EINVAL, KVW_GEOMETRY_PAGES_THP, geometry->pages,
                      "group '%s': contiguous: a ring is mapped twice by small pages; "
                      "need pages none or thp, have 2M",
                      group->name);
    if (group->n_heads == 0 || group->n_heads > KVW_HEADS_MAX)
        return refuse(refusal, bound_error(group->n_heads), KVW_HEADS_MAX,
                      group->n_heads, "group '%s': heads: need 1 to %u, have %u",
                      group->name, KVW_HEADS_MAX, group->n_heads);
    if (group->n_planes == 0 || group->n_planes > KVW_PLANES_MAX)
        return refuse(refusal, bound_error(group->n_planes), KVW_PLANES_MAX,
                      group->n_planes, "group '%s': planes: need 1 to %u, have %u",
                      group->name, KVW_PLANES_MAX, group->n_planes);
    int error = check_group_layers(geometry, g, refusal);
    for (uint32_t p = 0; p < group->n_planes && error == 0; p++)
        error = check_plane(group, p, refusal);
    if (error == 0)
        error = check_window(geometry, g,
                             refusal); /* a contiguous ring depends on planes */
    if (error == 0 && !all_zero(&group->plane[group->n_planes],
                                (KVW_PLANES_MAX - group->n_planes) *
                                    sizeof(struct kvw_geometry_plane)))
        error = refuse(refusal, -EINVAL, group->n_planes, KVW_PLANES_MAX,
                       "group '%s': planes beyond the last must be zero", group->name);
    return error;
}

static int check_partition(const struct kvw_geometry *geometry,
                           struct kvw_refusal *refusal)
{
    const struct kvw_geometry_partition *partition = &geometry->partition;
    const uint32_t parts[4] = {partition->head_parts, partition->layer_parts,
                               partition->lane_parts, partition->row_parts};
    uint64_t product = 1;

    for (int i = 0; i < 4; i++) {
        if (parts[i] == 0 || parts[i] > KVW_RANKS_MAX)
            return refuse(
                refusal, bound_error(parts[i]), KVW_RANKS_MAX, parts[i],
                "partition: parts of heads, layers, lanes and rows: need 1 to "
                "%u each, have %u, %u, %u, %u",
                KVW_RANKS_MAX, parts[0], parts[1], parts[2], parts[3]);
        product *= parts[i];
    }
    if (product != geometry->n_ranks)
        return refuse(
            refusal, -EINVAL, geometry->n_ranks, product,
            "partition: heads x layers x lanes x rows = %u x %u x %u x %u parts "
            "need %" PRIu64 " ranks, have %u",
            parts[0], parts[1], parts[2], parts[3], product, geometry->n_ranks);
    if ((partition->row_parts > 1) != (partition->row_block > 0) ||
        partition->reserved != 0)
        return refuse(
            refusal, -EINVAL, 1, partition->row_block,
            "partition: row_block is the rows in a row of one rank: need >= 1 "
            "where rows are split, 0 where not; have %u with %u parts",
            partition->row_block, partition->row_parts);
    return 0;
}

/* A view of split rows has a piece for each block of them: it must fit into a view. */
static int check_pieces(const struct kvw_geometry *geometry,
                        struct kvw_refusal *refusal)
{
    const struct kvw_geometry_partition *partition = &geometry->partition;

    if (partition->row_parts == 1)
        return 0;
    uint64_t period = (uint64_t)partition->row_block * partition->row_parts;
    for (uint32_t g = 0; g < geometry->n_groups; g++) {
        const struct kvw_geometry_group *group = &geometry->group[g];
        if (group->is_contiguous)
            return refuse(
                refusal, -EINVAL, 1, partition->row_parts,
                "group '%s': a contiguous group cannot be split by rows: need 1 "
                "row part, have %u",
                group->name, partition->row_parts);
        uint64_t shown = group->window_rows + group->chunk_rows_max + group->keep_rows;
        /* Beside whole blocks: cut ones at the ends of sink, window, chunk and of each
         * kept range, and at the wrap. */
        uint64_t pieces = shown / period + 4 + 4 * KVW_KEPT_MAX;
        if (pieces > KVW_PIECES_MAX)
            return refuse(refusal, -EINVAL, pieces, KVW_PIECES_MAX,
                          "group '%s': %" PRIu64 " rows in blocks of %u need %" PRIu64
                          " pieces, a view has %u: take larger blocks",
                          group->name, shown, partition->row_block, pieces,
                          KVW_PIECES_MAX);
    }
    return 0;
}

int geometry_check(const struct kvw_geometry *geometry, struct kvw_refusal *refusal)
{
    if (geometry->n_groups == 0 || geometry->n_groups > KVW_GROUPS_MAX)
        return refuse(refusal, bound_error(geometry->n_groups), KVW_GROUPS_MAX,
                      geometry->n_groups, "groups: need 1 to %u, have %u",
                      KVW_GROUPS_MAX, geometry->n_groups);
    if (geometry->n_lanes == 0 || geometry->n_lanes > KVW_LANES_MAX)
        return refuse(refusal, bound_error(geometry->n_lanes), KVW_LANES_MAX,
                      geometry->n_lanes, "lanes: need 1 to %u, have %u", KVW_LANES_MAX,
                      geometry->n_lanes);
    if (geometry->n_ranks == 0 || geometry->n_ranks > KVW_RANKS_MAX)
        return refuse(refusal, bound_error(geometry->n_ranks), KVW_RANKS_MAX,
                      geometry->n_ranks, "ranks: need 1 to %u, have %u", KVW_RANKS_MAX,
                      geometry->n_ranks);
    if (geometry->n_ranks * geometry->n_lanes > KVW_BOARDS_MAX)
        return refuse(refusal, -E2BIG, KVW_BOARDS_MAX,
                      geometry->n_ranks * geometry->n_lanes,
                      "ranks x lanes: need at most %u, have %u x %u", KVW_BOARDS_MAX,
                      geometry->n_ranks, geometry->n_lanes);
    if (geometry->has_checksums > 1)
        return refuse(refusal, -EINVAL, 1, geometry->has_checksums,
                      "checksums: need 0 or 1, have %u", geometry->has_checksums);
    if (geometry->pages > KVW_GEOMETRY_PAGES_2M)
        return refuse(refusal, -EINVAL, KVW_GEOMETRY_PAGES_2M, geometry->pages,
                      "pages: need 0 (none), 1 (thp) or 2 (2M), have %u",
                      geometry->pages);
    if (geometry->n_layers == 0 || geometry->n_layers > KVW_LAYERS_MAX)
        return refuse(refusal, bound_error(geometry->n_layers), KVW_LAYERS_MAX,
                      geometry->n_layers, "layers of all groups: need 1 to %u, have %u",
                      KVW_LAYERS_MAX, geometry->n_layers);
    int error = check_partition(geometry, refusal);
    uint32_t n_layers = 0;
    for (uint32_t g = 0; g < geometry->n_groups && error == 0; g++) {
        error = check_group(geometry, g, refusal);
        n_layers += geometry->group[g].n_layers;
    }
    if (error != 0)
        return error;
    if (n_layers != geometry->n_layers)
        return refuse(refusal, -EINVAL, n_layers, geometry->n_layers,
                      "layers of all groups: need %u, have %u", n_layers,
                      geometry->n_layers);
    if (!all_zero(&geometry->group[geometry->n_groups],
                  (KVW_GROUPS_MAX - geometry->n_groups) *
                      sizeof(struct kvw_geometry_group)) ||
        !all_zero(&geometry->model_layer[n_layers],
                  (KVW_LAYERS_MAX - n_layers) * sizeof(uint16_t)) ||
        !all_zero(geometry->reserved, sizeof geometry->reserved))
        return refuse(refusal, -EINVAL, 0, 1,
                      "unused parts of a geometry must be zero");
    return check_pieces(geometry, refusal);
}
