/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A geometry from anybody: what geometry_check() takes has a layout in which nothing
 * overlaps or ends outside its segment, parts that hold everything once, and the same
 * geometry again after it was a spec.
 *
 * Input: a geometry as input_any_geometry() reads it; then pokes of 2 bytes offset and
 * 1 byte value.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/include/kvwheel/kvwheel.h"
#include "client/spec.h"
#include "proto/layout.h"
#include "proto/partition.h"
#include "tests/fuzz/input.h"

#define CONTROL_BYTES_MAX (1u << 20) /* that are worth the time to fill in */

static void check_plane_layout(const struct kvw_geometry_group *group,
                               const struct kvw_layout_group *placed, uint32_t p,
                               uint32_t n_lanes)
{
    const struct kvw_layout_plane *plane = &placed->plane[p];
    const uint64_t end = plane->offset + (n_lanes - 1) * plane->lane_bytes +
                         (group->n_heads - 1) * plane->head_bytes +
                         placed->rows * plane->row_bytes;
    const uint64_t next =
        p + 1 < group->n_planes ? placed->plane[p + 1].offset : placed->layer_bytes;

    KVW_CHECK(plane->row_bytes > 0);
    KVW_CHECK(placed->rows * plane->row_bytes <= plane->head_bytes);
    KVW_CHECK(group->n_heads * plane->head_bytes <= plane->lane_bytes);
    KVW_CHECK(end <= next);
    if (group->is_contiguous) {
        const uint64_t ring =
            placed->offset + plane->offset + group->sink_rows * plane->row_bytes;
        KVW_CHECK(ring % KVW_PAGE == 0 && plane->head_bytes % KVW_PAGE == 0);
        KVW_CHECK(placed->ring_rows * plane->row_bytes % KVW_PAGE == 0);
    } else {
        KVW_CHECK((placed->offset + plane->offset) % KVW_CACHELINE == 0);
    }
}

static void check_data(const struct kvw_geometry *geometry,
                       const struct kvw_layout *layout)
{
    uint64_t at = 0;

    for (uint32_t g = 0; g < geometry->n_groups; g++) {
        const struct kvw_geometry_group *group = &geometry->group[g];
        const struct kvw_layout_group *placed = &layout->group[g];

        KVW_CHECK(placed->offset == at && placed->layer_bytes % KVW_PAGE == 0);
        KVW_CHECK(placed->ring_rows >= group->window_rows - group->sink_rows +
                                           group->slack_chunks * group->chunk_rows_max);
        KVW_CHECK(placed->rows ==
                  group->sink_rows + placed->ring_rows + group->keep_rows);
        KVW_CHECK(placed->rows <= KVW_ROWS_MAX);
        for (uint32_t p = 0; p < group->n_planes; p++) {
            check_plane_layout(group, placed, p, geometry->n_lanes);
            const uint64_t last = layout_row_offset(
                layout, g, group->n_layers - 1, p, geometry->n_lanes - 1,
                group->n_heads - 1, placed->rows - 1);
            KVW_CHECK(last < layout->data_bytes &&
                      placed->plane[p].row_bytes <= layout->data_bytes - last);
        }
        at += group->n_layers * placed->layer_bytes;
    }
    KVW_CHECK(layout->data_bytes == at && at <= KVW_BYTES_MAX);
}

/* The places of the inline functions, in order and within the segments. */
static void check_places(const struct kvw_geometry *geometry,
                         const struct kvw_layout *layout)
{
    char *const base = (char *)(uintptr_t)KVW_BYTES_MAX; /* never looked at */
    const uint32_t n_lanes = geometry->n_lanes;
    const uint32_t rank = geometry->n_ranks - 1;
    const uint64_t seats_end =
        (uint64_t)((char *)(layout_seat(base, layout, rank) + 1) - base);
    const uint64_t boards_end =
        (uint64_t)((char *)layout_board(base, layout, n_lanes, rank, n_lanes - 1) -
                   base) +
        layout->board_bytes;
    const uint64_t flags_end =
        (uint64_t)((char *)layout_flag(base, layout, n_lanes, rank, n_lanes - 1) -
                   base) +
        KVW_CACHELINE;
    const uint64_t pins_end =
        (uint64_t)((char *)(layout_pin(base, layout, KVW_ATTACHMENTS_MAX - 1,
                                       KVW_PINS_PER_ATTACHMENT - 1) +
                            1) -
                   base);

    KVW_CHECK(layout->geometry_offset + sizeof *geometry <= layout->seats_offset);
    KVW_CHECK(seats_end <= layout->boards_offset);
    KVW_CHECK(boards_end <= layout->control_bytes);
    KVW_CHECK(layout->claims_offset +
                  geometry->n_groups * sizeof(struct kvw_board_claim) <=
              layout->records_offset);
    KVW_CHECK(layout->record_words * 8ull <= layout->record_bytes);
    KVW_CHECK(layout->records_offset + KVW_RECORDS * layout->record_bytes <=
              layout->staged_offset);
    KVW_CHECK(layout->staged_offset + KVW_LAYER_WORDS * geometry->n_layers * 8ull <=
              layout->board_bytes);
    KVW_CHECK(flags_end <= layout->high_offset);
    KVW_CHECK(layout->high_offset + KVW_ATTACHMENTS_MAX * 4ull <= layout->pins_offset);
    KVW_CHECK(pins_end <= layout->pins_bytes);
    KVW_CHECK((layout->control_bytes | layout->pins_bytes | layout->data_bytes) %
                  KVW_PAGE ==
              0);
}

static void check_interval(struct kvw_interval held, uint32_t begin, uint32_t end)
{
    KVW_CHECK(held.begin >= begin && held.begin <= held.end && held.end <= end);
}

/* Every head of every layer and lane is held by each row part, once. */
static void check_parts(const struct kvw_geometry *geometry)
{
    static uint64_t held[KVW_LAYERS_MAX];

    memset(held, 0, sizeof held);
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        const struct kvw_interval lanes = partition_lanes(geometry, rank);
        check_interval(lanes, 0, geometry->n_lanes);
        for (uint32_t g = 0; g < geometry->n_groups; g++) {
            const struct kvw_geometry_group *group = &geometry->group[g];
            const struct kvw_interval heads = partition_heads(geometry, g, rank);
            const struct kvw_interval layers = partition_layers(geometry, g, rank);
            check_interval(heads, 0, group->n_heads);
            check_interval(layers, group->layer_first,
                           group->layer_first + group->n_layers);
            for (uint32_t layer = layers.begin; layer < layers.end; layer++)
                held[layer] +=
                    (uint64_t)(heads.end - heads.begin) * (lanes.end - lanes.begin);
        }
    }
    for (uint32_t layer = 0; layer < geometry->n_layers; layer++) {
        const uint32_t g = geometry_group_of(geometry, layer);
        KVW_CHECK(g < geometry->n_groups);
        KVW_CHECK(held[layer] == (uint64_t)geometry->group[g].n_heads *
                                     geometry->n_lanes * geometry->partition.row_parts);
    }
    KVW_CHECK(partition_ranks_of_lane(geometry, 0) != 0);
    KVW_CHECK(partition_ranks_of_lane(geometry, geometry->n_lanes - 1) != 0);
}

static void check_row(const struct kvw_geometry_partition *partition, uint64_t row)
{
    uint32_t n_owners = 0;

    for (uint32_t part = 0; part < partition->row_parts; part++) {
        const uint64_t next = partition_row_next(partition, part, row);
        KVW_CHECK(next >= row);
        KVW_CHECK(partition_row_next(partition, part, next) == next);
        KVW_CHECK(partition_row_run_end(partition, next) > next);
        n_owners += next == row;
    }
    KVW_CHECK(n_owners == 1);
}

static void check_spec(const struct kvw_geometry *geometry,
                       const struct kvw_layout *layout)
{
    static struct kvw_spec spec;
    static struct kvw_geometry again;
    struct kvw_spec_bytes bytes;
    uint64_t rank_bytes = 0;

    spec_from_geometry(geometry, "fuzz", &spec);
    KVW_CHECK(spec_to_geometry(&spec, &again) == 0);
    KVW_CHECK(memcmp(geometry, &again, sizeof again) == 0);
    KVW_CHECK(kvw_spec_check(&spec) == 0);
    KVW_CHECK(kvw_spec_size(&spec, &bytes) == 0);
    KVW_CHECK(bytes.total_bytes ==
              layout->data_bytes + layout->control_bytes + layout->pins_bytes);
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++)
        rank_bytes += bytes.rank_bytes[rank];
    KVW_CHECK(rank_bytes <= layout->data_bytes);
}

static void check_control(const struct kvw_geometry *geometry,
                          const struct kvw_layout *layout)
{
    static const uint8_t uuid[16] = {1};
    static struct kvw_geometry read;
    static struct kvw_layout placed;
    struct kvw_refusal refusal;

    if (layout->control_bytes > CONTROL_BYTES_MAX)
        return;
    void *control = aligned_alloc(KVW_PAGE, layout->control_bytes);
    memset(control, 0, layout->control_bytes);
    layout_control_init(control, layout, geometry, "fuzz", uuid);
    KVW_CHECK(layout_control_read(control, layout->control_bytes, layout->pins_bytes,
                                  layout->data_bytes, &read, &placed, &refusal) == 0);
    KVW_CHECK(memcmp(&read, geometry, sizeof read) == 0);
    KVW_CHECK(memcmp(&placed, layout, sizeof placed) == 0);
    KVW_CHECK(layout_control_read(control, layout->control_bytes - KVW_PAGE,
                                  layout->pins_bytes, layout->data_bytes, &read,
                                  &placed, &refusal) == -EINVAL);
    free(control);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kvw_geometry geometry;
    static struct kvw_layout layout;
    struct input input = {data, size};
    struct kvw_refusal refusal = {0};

    input_any_geometry(&input, &geometry);
    while (input.left_bytes > 0) {
        const uint64_t at = input_below(&input, sizeof geometry);
        ((uint8_t *)&geometry)[at] = input_u8(&input);
    }
    int error = geometry_check(&geometry, &refusal);
    if (error == 0)
        error = layout_of(&geometry, &layout, &refusal);
    if (error != 0) {
        KVW_CHECK(error == -EINVAL || error == -E2BIG);
        KVW_CHECK(refusal.text[0] != 0);
        return 0;
    }
    check_data(&geometry, &layout);
    check_places(&geometry, &layout);
    check_parts(&geometry);
    for (uint64_t row = 0; row < 1u << 20; row = row * 3 + 1)
        check_row(&geometry.partition, row + geometry.group[0].window_rows);
    check_spec(&geometry, &layout);
    check_control(&geometry, &layout);
    return 0;
}
