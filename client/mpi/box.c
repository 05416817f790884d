/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the spec of the whole cache to that of one box, and between their row numbers. Pure
 * functions.
 *
 * Where rows are split over boxes a box's window is so large that whatever window of the
 * whole cache finds its rows in it: of any L rows that follow each other a box has at most
 * L / period * mine + min(mine, L mod period).
 */
#include "client/mpi/inside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/partition.h"

static const char *const axis_name[N_AXES] = {"lane", "layer", "head", "row"};

/* ----------------------------------------------------------------- the grid ------- */

static int check_group(const struct kvw_spec *spec, const struct grid *grid,
                       uint64_t whole_groups, uint32_t g)
{
    const struct kvw_spec_group *group = &spec->group[g];
    const bool is_split =
        grid->parts[AXIS_ROW] > grid->in_box[AXIS_ROW] && (whole_groups >> g & 1) == 0;

    if (is_split && (group->keep_rows > 0 || group->is_contiguous))
        return told(
            -ENOTSUP,
            "init: group '%s': where rows are split over boxes there are neither "
            "kept rows nor contiguous rings",
            group->name);
    if (group->n_heads < grid->parts[AXIS_HEAD] && grid->in_box[AXIS_HEAD] > 1 &&
        grid->in_box[AXIS_HEAD] < grid->parts[AXIS_HEAD] &&
        (whole_groups >> g & 1) == 0)
        return told(
            -EINVAL,
            "init: group '%s': %u heads are repeated over %u parts: need boxes of "
            "one head part, have %u",
            group->name, group->n_heads, grid->parts[AXIS_HEAD],
            grid->in_box[AXIS_HEAD]);
    return 0;
}

/* Divide box_ranks among the axes, the innermost first. */
static int divide(struct grid *grid, uint32_t box_ranks)
{
    uint32_t left = box_ranks;

    for (int axis = N_AXES - 1; axis >= 0; axis--) {
        const uint32_t parts = grid->parts[axis];
        grid->in_box[axis] = min_u32(left, parts);
        if (left % grid->in_box[axis] != 0 || parts % grid->in_box[axis] != 0)
            return told(
                -EINVAL,
                "init: box_ranks %u is no box of %u lane x %u layer x %u head x %u "
                "row parts: %s parts cannot be divided so",
                box_ranks, grid->parts[AXIS_LANE], grid->parts[AXIS_LAYER],
                grid->parts[AXIS_HEAD], grid->parts[AXIS_ROW], axis_name[axis]);
        left /= grid->in_box[axis];
    }
    return left == 1 ? 0
                     : told(-EINVAL, "init: box_ranks: at most the %u ranks, have %u",
                            box_ranks / left, box_ranks);
}

int box_grid(const struct kvw_spec *spec, uint64_t whole_groups, uint32_t box_ranks,
             struct grid *grid)
{
    const uint32_t parts[N_AXES] = {spec->lane_parts, spec->layer_parts,
                                    spec->head_parts, spec->row_parts};
    uint64_t product = 1;

    for (int axis = 0; axis < N_AXES; axis++) {
        if (parts[axis] == 0 || parts[axis] > KVW_RANKS_MAX)
            return told(-EINVAL, "init: %s parts: need 1 to %u, have %u",
                        axis_name[axis], KVW_RANKS_MAX, parts[axis]);
        grid->parts[axis] = parts[axis];
        product *= parts[axis];
    }
    if (product != spec->n_ranks)
        return told(
            -EINVAL,
            "init: %u lane x %u layer x %u head x %u row parts need as many ranks, "
            "have %u",
            parts[AXIS_LANE], parts[AXIS_LAYER], parts[AXIS_HEAD], parts[AXIS_ROW],
            spec->n_ranks);
    if ((spec->row_parts > 1) != (spec->row_block > 0))
        return told(
            -EINVAL,
            "init: row_block: need 1 or more where rows are split, else 0; have %u "
            "with %u parts",
            spec->row_block, spec->row_parts);
    int error = divide(grid, box_ranks);
    for (uint32_t g = 0; g < spec->n_groups && error == 0; g++)
        error = check_group(spec, grid, whole_groups, g);
    return error;
}

uint32_t box_part(const struct grid *grid, uint32_t place, enum axis axis)
{
    for (int inner = N_AXES - 1; inner > (int)axis; inner--)
        place /= grid->parts[inner];
    return place % grid->parts[axis];
}

uint32_t box_of_place(const struct grid *grid, uint32_t place, uint32_t *box_rank)
{
    uint32_t box = 0;

    *box_rank = 0;
    for (int axis = 0; axis < N_AXES; axis++) {
        const uint32_t part = box_part(grid, place, (enum axis)axis);
        const uint32_t in_box = grid->in_box[axis];
        box = box * (grid->parts[axis] / in_box) + part / in_box;
        *box_rank = *box_rank * in_box + part % in_box;
    }
    return box;
}

uint32_t box_place(const struct grid *grid, uint32_t box, uint32_t box_rank)
{
    uint32_t place = 0;
    uint32_t stride = 1;

    for (int axis = N_AXES - 1; axis >= 0; axis--) {
        const uint32_t in_box = grid->in_box[axis];
        const uint32_t boxes = grid->parts[axis] / in_box;
        place += (box % boxes * in_box + box_rank % in_box) * stride;
        stride *= grid->parts[axis];
        box /= boxes;
        box_rank /= in_box;
    }
    return place;
}

/* -------------------------------------------------------------- intervals --------- */

/* Neighbouring parts of the numbers 0..count-1. */
static struct interval parts_of(uint32_t count, uint32_t parts, uint32_t part,
                                uint32_t n_parts)
{
    const uint32_t begin = partition_interval(count, parts, part).begin;
    const uint32_t end = partition_interval(count, parts, part + n_parts - 1).end;

    return (struct interval){begin, end - begin};
}

struct interval box_heads(const struct kvw_spec *spec, const struct grid *grid,
                          uint32_t group, uint32_t part, uint32_t n_parts)
{
    const uint32_t n_heads = spec->group[group].n_heads;
    const uint32_t parts = grid->parts[AXIS_HEAD];

    if (n_heads < parts && grid->in_box[AXIS_HEAD] == 1) /* repeated */
        return (struct interval){part * n_heads / parts, 1};
    return parts_of(n_heads, parts, part, n_parts);
}

struct interval box_lanes(const struct kvw_spec *spec, const struct grid *grid,
                          uint32_t part, uint32_t n_parts)
{
    return parts_of(spec->n_lanes, grid->parts[AXIS_LANE], part, n_parts);
}

/* The model's layers 0..last are split, so that a block's groups stay together. */
static uint32_t model_layers(const struct kvw_spec *spec)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < spec->n_layers; i++)
        n = max_u32(n, spec->model_layer[i] + 1u);
    return n;
}

struct interval box_layers(const struct kvw_spec *spec, const struct grid *grid,
                           uint32_t group, uint32_t part, uint32_t n_parts)
{
    const struct interval model =
        parts_of(model_layers(spec), grid->parts[AXIS_LAYER], part, n_parts);
    struct interval held = {0, 0};
    uint32_t first = 0;

    for (uint32_t g = 0; g < group; g++)
        first += spec->group[g].n_layers;
    held.first = first;
    for (uint32_t i = first; i < first + spec->group[group].n_layers; i++) {
        const uint32_t layer = spec->model_layer[i];
        if (layer < model.first)
            held.first = i + 1;
        else if (layer - model.first < model.n)
            held.n++;
    }
    return held;
}

/* ------------------------------------------------------------------- rows --------- */

uint64_t box_rows_before(const struct row_map *rows, uint64_t row)
{
    if (rows->period == 0)
        return row;
    const uint64_t into = row % rows->period;
    const uint64_t part = into <= rows->first               ? 0
                          : into - rows->first < rows->mine ? into - rows->first
                                                            : rows->mine;
    return row / rows->period * rows->mine + part;
}

uint64_t box_row(const struct row_map *rows, uint64_t row_here)
{
    if (rows->period == 0)
        return row_here;
    return row_here / rows->mine * rows->period + rows->first + row_here % rows->mine;
}

/* Most rows of the box among any n rows that follow each other. */
static uint64_t most_rows(const struct row_map *rows, uint64_t n)
{
    const uint64_t rest = rows->period == 0 ? 0 : n % rows->period;

    if (rows->period == 0)
        return n;
    return n / rows->period * rows->mine + (rest < rows->mine ? rest : rows->mine);
}

/* ------------------------------------------------------------------- spec --------- */

static void set_rows(struct kvw_spec_group *group, const struct row_map *rows)
{
    const uint64_t sink = box_rows_before(rows, group->sink_rows);

    if (rows->period == 0)
        return;
    /* One row more: what a query of window kind `row` sees ends at itself, in another box
     * perhaps; and a step without rows here opens one and forgets it. */
    group->window_rows =
        sink + most_rows(rows, group->window_rows - group->sink_rows) + 1;
    group->sink_rows = sink;
    group->chunk_rows_max = most_rows(rows, group->chunk_rows_max);
    group->positions = KVW_POSITIONS_ABSOLUTE; /* of the box's rows they say nothing */
}

/* Part of the box along an axis: the first of its parts. */
static uint32_t first_part(const struct grid *grid, uint32_t box, enum axis axis)
{
    return box_part(grid, box_place(grid, box, 0), axis);
}

static int add_group(const struct kvw_spec *spec, const struct grid *grid, uint32_t box,
                     uint32_t g, struct kvw_spec *out, struct box_group *group)
{
    const uint32_t layer_part = first_part(grid, box, AXIS_LAYER);
    const uint32_t model_first =
        parts_of(model_layers(spec), grid->parts[AXIS_LAYER], layer_part, 1).first;
    struct kvw_spec_group *to = &out->group[out->n_groups];

    group->layers = box_layers(spec, grid, g, layer_part, grid->in_box[AXIS_LAYER]);
    group->is_here = group->layers.n > 0;
    if (!group->is_here)
        return 0;
    group->index = out->n_groups++;
    group->layer_here = out->n_layers;
    *to = spec->group[g];
    to->n_layers = group->layers.n;
    if (!group->is_whole)
        to->n_heads = box_heads(spec, grid, g, first_part(grid, box, AXIS_HEAD),
                                grid->in_box[AXIS_HEAD])
                          .n;
    if (to->window_rows <= to->sink_rows)
        return told(-EINVAL,
                    "init: group '%s': need a window over its sink of %llu rows",
                    to->name, (unsigned long long)to->sink_rows);
    set_rows(to, &group->rows);
    for (uint32_t i = 0; i < group->layers.n; i++)
        out->model_layer[out->n_layers++] =
            (uint16_t)(spec->model_layer[group->layers.first + i] - model_first);
    return 0;
}

/* A box of one layer part only splits no layers, and any numbers will do. */
static int check_layers(const struct kvw_spec *spec, const struct grid *grid,
                        uint32_t box, const struct kvw_spec *out)
{
    const uint32_t n_parts = grid->in_box[AXIS_LAYER];
    const uint32_t need = parts_of(model_layers(spec), grid->parts[AXIS_LAYER],
                                   first_part(grid, box, AXIS_LAYER), n_parts)
                              .n;

    if (out->n_groups == 0 || out->n_lanes == 0)
        return told(
            -EINVAL,
            "init: box %u would hold no %s: need as many of them as parts, or fewer "
            "parts",
            box, out->n_lanes == 0 ? "lane" : "layer");
    if (n_parts > 1 && model_layers(out) != need)
        return told(
            -EINVAL,
            "init: box %u: its model layers end before its layer parts do: take "
            "boxes of one layer part",
            box);
    return 0;
}

int box_spec(const struct kvw_spec *spec, const struct grid *grid,
             uint64_t whole_groups, uint32_t box, struct kvw_spec *out,
             struct box_group group[KVW_GROUPS_MAX])
{
    const uint64_t block = spec->row_block;
    const uint32_t n_boxes = spec->n_ranks / (grid->in_box[0] * grid->in_box[1] *
                                              grid->in_box[2] * grid->in_box[3]);
    const bool is_split = grid->parts[AXIS_ROW] > grid->in_box[AXIS_ROW];
    int error = 0;

    *out = *spec;
    out->n_groups = 0;
    out->n_layers = 0;
    out->lane_parts = grid->in_box[AXIS_LANE];
    out->layer_parts = grid->in_box[AXIS_LAYER];
    out->head_parts = grid->in_box[AXIS_HEAD];
    out->row_parts = grid->in_box[AXIS_ROW];
    out->row_block = out->row_parts > 1 ? spec->row_block : 0;
    out->n_ranks = spec->n_ranks / n_boxes;
    out->n_lanes =
        box_lanes(spec, grid, first_part(grid, box, AXIS_LANE), out->lane_parts).n;
    memset(out->group, 0, sizeof out->group);
    memset(out->model_layer, 0, sizeof out->model_layer);
    if (n_boxes > 1 && snprintf(out->name, sizeof out->name, "%.50s.%uof%u", spec->name,
                                box, n_boxes) >= (int)sizeof out->name)
        return told(-EINVAL, "init: the name has at most 50 letters: %s", spec->name);
    for (uint32_t g = 0; g < spec->n_groups && error == 0; g++) {
        group[g] = (struct box_group){.is_whole = (whole_groups >> g & 1) != 0};
        if (is_split && !group[g].is_whole)
            group[g].rows = (struct row_map){
                .period = block * spec->row_parts,
                .first = block * first_part(grid, box, AXIS_ROW),
                .mine = block * grid->in_box[AXIS_ROW],
            };
        error = add_group(spec, grid, box, g, out, &group[g]);
    }
    return error != 0 ? error : check_layers(spec, grid, box, out);
}
