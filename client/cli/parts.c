/* SPDX-License-Identifier: Apache-2.0 */
/*
 * People are told the model's numbers of layers, programs those that the library takes
 * as well (kvw_layer.index).
 */
#include "client/cli/parts.h"

#include <stdbool.h>
#include <stdio.h>

#include "client/cli/output.h"
#include "proto/partition.h"

void parts_print(const struct kvw_geometry *geometry)
{
    const struct kvw_geometry_partition *parts = &geometry->partition;

    printf("ranks      %u = %u x %u x %u x %u parts of heads, layers, lanes, rows",
           geometry->n_ranks, parts->head_parts, parts->layer_parts, parts->lane_parts,
           parts->row_parts);
    if (parts->row_parts > 1)
        printf(" (in blocks of %u)", parts->row_block);
    printf("\n");
}

/* "4-7", "4", or "-" for none. */
static const char *text_interval(char text[TEXT_BYTES], uint32_t begin, uint32_t end)
{
    if (begin == end)
        snprintf(text, TEXT_BYTES, "-");
    else if (begin + 1 == end)
        snprintf(text, TEXT_BYTES, "%u", begin);
    else
        snprintf(text, TEXT_BYTES, "%u-%u", begin, end - 1);
    return text;
}

/* Rows r with r mod period within a block. */
static const char *text_rows(char text[TEXT_BYTES], const struct kvw_geometry *geometry,
                             uint32_t rank)
{
    const struct kvw_geometry_partition *parts = &geometry->partition;
    const uint64_t first =
        (uint64_t)partition_place(geometry, rank).row_part * parts->row_block;

    if (parts->row_parts == 1)
        snprintf(text, TEXT_BYTES, "all");
    else
        snprintf(text, TEXT_BYTES, "%llu-%llu of each %llu", (unsigned long long)first,
                 (unsigned long long)(first + parts->row_block - 1),
                 (unsigned long long)parts->row_block * parts->row_parts);
    return text;
}

static void add_rank(struct table *table, const struct kvw_geometry *geometry,
                     uint32_t rank, uint32_t g)
{
    const struct kvw_interval heads = partition_heads(geometry, g, rank);
    const struct kvw_interval layers = partition_layers(geometry, g, rank);
    const struct kvw_interval lanes = partition_lanes(geometry, rank);
    const uint16_t *numbers = geometry->model_layer;
    const bool has_layers = layers.begin < layers.end;
    char text[TEXT_BYTES];

    table_add(table, "%u", rank);
    table_add(table, "%s", geometry->group[g].name);
    table_add(table, "%s", text_interval(text, heads.begin, heads.end));
    table_add(table, "%u", layers.end - layers.begin);
    table_add(table, "%s",
              text_interval(text, has_layers ? numbers[layers.begin] : 0,
                            has_layers ? numbers[layers.end - 1] + 1u : 0));
    table_add(table, "%s", text_interval(text, lanes.begin, lanes.end));
    table_add(table, "%s", text_rows(text, geometry, rank));
}

void parts_print_ranks(const struct kvw_geometry *geometry)
{
    struct table table;

    table_init(&table, ">RANK|GROUP|HEADS|>LAYERS|OF THE MODEL|LANES|ROWS");
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        for (uint32_t g = 0; g < geometry->n_groups; g++)
            add_rank(&table, geometry, rank, g);
    }
    table_print(&table);
    table_fini(&table);
}

json_t *parts_json(const struct kvw_geometry *geometry)
{
    const struct kvw_geometry_partition *parts = &geometry->partition;

    return json_pack("{s:i, s:i, s:i, s:i, s:i}", "heads", (int)parts->head_parts,
                     "layers", (int)parts->layer_parts, "lanes", (int)parts->lane_parts,
                     "rows", (int)parts->row_parts, "row_block", (int)parts->row_block);
}

static json_t *group_json(const struct kvw_geometry *geometry, uint32_t rank,
                          uint32_t g)
{
    const struct kvw_interval heads = partition_heads(geometry, g, rank);
    const struct kvw_interval layers = partition_layers(geometry, g, rank);
    json_t *numbers = json_array();

    for (uint32_t layer = layers.begin; layer < layers.end; layer++)
        json_array_append_new(numbers, json_integer(geometry->model_layer[layer]));
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:o}", "name", geometry->group[g].name,
                     "head_first", (int)heads.begin, "heads",
                     (int)(heads.end - heads.begin), "layer_first", (int)layers.begin,
                     "layers", (int)(layers.end - layers.begin), "model_layers",
                     numbers);
}

json_t *parts_ranks_json(const struct kvw_geometry *geometry)
{
    json_t *ranks = json_array();

    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        const struct kvw_interval lanes = partition_lanes(geometry, rank);
        json_t *groups = json_array();
        for (uint32_t g = 0; g < geometry->n_groups; g++)
            json_array_append_new(groups, group_json(geometry, rank, g));
        json_array_append_new(ranks,
                              json_pack("{s:i, s:i, s:i, s:i, s:o}", "rank", (int)rank,
                                        "lane_first", (int)lanes.begin, "lanes",
                                        (int)(lanes.end - lanes.begin), "row_part",
                                        (int)partition_place(geometry, rank).row_part,
                                        "groups", groups));
    }
    return ranks;
}
