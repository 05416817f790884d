/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes, their rows, and who takes which place: pure functions, tried exhaustively. */
#include <criterion/criterion.h>
#include <errno.h>

#include "client/mpi/inside.h"

static struct kvw_spec make_spec(uint32_t lanes, uint32_t layers, uint32_t heads,
                                 uint32_t rows, uint32_t n_heads)
{
    struct kvw_spec spec;

    kvw_spec_init(&spec, "boxes");
    spec.n_lanes = 3;
    spec.lane_parts = lanes;
    spec.layer_parts = layers;
    spec.head_parts = heads;
    spec.row_parts = rows;
    spec.row_block = rows > 1 ? 4 : 0;
    spec.n_ranks = lanes * layers * heads * rows;
    struct kvw_spec_group *self = kvw_spec_add_group(&spec, "self", 5, NULL);
    self->n_heads = n_heads;
    self->window_rows = 40;
    self->sink_rows = 6;
    self->chunk_rows_max = 7;
    cr_assert_not_null(kvw_spec_add_plane(self, "k", KVW_F32, 8));
    return spec;
}

Test(boxes, places_and_boxes_are_one_to_one)
{
    const uint32_t box_ranks[] = {1, 2, 4, 12};

    for (int i = 0; i < 4; i++) {
        struct kvw_spec spec = make_spec(1, 1, 3, 4, 6);
        struct grid grid;
        bool is_seen[12] = {false};

        cr_assert_eq(box_grid(&spec, 0, box_ranks[i], &grid), 0, "%u", box_ranks[i]);
        for (uint32_t place = 0; place < 12; place++) {
            uint32_t box_rank;
            const uint32_t box = box_of_place(&grid, place, &box_rank);
            const uint32_t at = box * box_ranks[i] + box_rank;
            cr_assert_lt(at, 12u);
            cr_assert(!is_seen[at]);
            is_seen[at] = true;
            cr_assert_eq(box_place(&grid, box, box_rank), place);
        }
    }
}

Test(boxes, what_is_no_box_is_refused_in_words)
{
    struct kvw_spec spec = make_spec(1, 1, 3, 4, 6);
    struct grid grid;

    cr_assert_eq(box_grid(&spec, 0, 3, &grid), -EINVAL); /* 3 of 4 row parts */
    cr_assert_neq(strstr(kvw_mpi_last_error(), "row parts cannot"), NULL, "%s",
                  kvw_mpi_last_error());
    cr_assert_eq(box_grid(&spec, 0, 8, &grid), -EINVAL); /* 2 of 3 head parts */
    spec.group[0].keep_rows = 4;
    cr_assert_eq(box_grid(&spec, 0, 1, &grid), -ENOTSUP);
    cr_assert_eq(box_grid(&spec, 0, 4, &grid), 0, "within a box rows may be kept");
    spec.n_ranks = 11;
    cr_assert_eq(box_grid(&spec, 0, 1, &grid), -EINVAL);
}

/* Every row belongs to one box, boxes number theirs without gaps, and a window of the whole
 * cache always fits into a box's. */
Test(boxes, rows_of_boxes_are_a_partition_and_windows_fit)
{
    for (uint32_t parts = 2; parts <= 4; parts++) {
        struct kvw_spec spec = make_spec(1, 1, 1, parts, 2);
        struct box_group group[KVW_GROUPS_MAX];
        struct kvw_spec of_box;
        struct grid grid;

        cr_assert_eq(box_grid(&spec, 0, 1, &grid), 0);
        uint64_t next[4] = {0};
        for (uint64_t row = 0; row < 300; row++) {
            uint32_t n_owners = 0;
            for (uint32_t box = 0; box < parts; box++) {
                cr_assert_eq(box_spec(&spec, &grid, 0, box, &of_box, group), 0);
                const struct row_map *rows = &group[0].rows;
                const uint64_t here = box_rows_before(rows, row);
                cr_assert_eq(here, next[box]);
                if (box_row(rows, here) == row) {
                    n_owners++;
                    next[box]++;
                }
                /* A query at `row` sees the sink and the rows of the window behind it. */
                const uint64_t recent = 40 - 6;
                const uint64_t low = row + 1 > recent ? row + 1 - recent : 0;
                const uint64_t need =
                    box_rows_before(rows, row + 1) - box_rows_before(rows, low);
                cr_assert_leq(need,
                              of_box.group[0].window_rows - of_box.group[0].sink_rows);
            }
            cr_assert_eq(n_owners, 1);
        }
    }
}

Test(boxes, heads_layers_and_lanes_are_each_in_one_box)
{
    struct kvw_spec spec = make_spec(2, 2, 3, 1, 7);
    struct grid grid;
    uint32_t n_heads = 0, n_layers = 0, n_lanes = 0;

    cr_assert_eq(box_grid(&spec, 0, 1, &grid), 0);
    for (uint32_t part = 0; part < 3; part++) {
        const struct interval heads = box_heads(&spec, &grid, 0, part, 1);
        cr_assert_eq(heads.first, n_heads);
        n_heads += heads.n;
    }
    for (uint32_t part = 0; part < 2; part++) {
        const struct interval layers = box_layers(&spec, &grid, 0, part, 1);
        const struct interval lanes = box_lanes(&spec, &grid, part, 1);
        cr_assert_eq(layers.first, n_layers);
        cr_assert_eq(lanes.first, n_lanes);
        n_layers += layers.n;
        n_lanes += lanes.n;
    }
    cr_assert_eq(n_heads, 7);
    cr_assert_eq(n_layers, 5);
    cr_assert_eq(n_lanes, 3);
}

Test(boxes, fewer_heads_than_parts_are_repeated)
{
    struct kvw_spec spec = make_spec(1, 1, 6, 1, 4);
    struct grid grid;

    cr_assert_eq(box_grid(&spec, 0, 1, &grid), 0);
    for (uint32_t part = 0; part < 6; part++) {
        const struct interval heads = box_heads(&spec, &grid, 0, part, 1);
        cr_assert_eq(heads.first, part * 4 / 6);
        cr_assert_eq(heads.n, 1);
    }
    cr_assert_eq(box_grid(&spec, 0, 2, &grid), -EINVAL);
    cr_assert_eq(box_grid(&spec, 1, 2, &grid), 0, "a whole group is not repeated");
}

/* ------------------------------------------------------------------- places ------- */

static struct placing make_placing(uint32_t n_ranks, uint32_t box_ranks,
                                   const uint32_t *node)
{
    struct placing placing = {.n_ranks = n_ranks, .box_ranks = box_ranks};

    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        placing.node[rank] = node[rank];
        placing.n_nodes = max_u32(placing.n_nodes, node[rank] + 1);
    }
    return placing;
}

Test(places, a_fresh_job_has_places_equal_to_ranks)
{
    const uint32_t node[] = {0, 1, 2, 0, 1, 2};
    struct placing placing = make_placing(6, 1, node);
    struct kvw_spec spec = make_spec(1, 1, 6, 1, 6);
    struct grid grid;
    int rank_of[KVW_RANKS_MAX];
    bool is_new[KVW_RANKS_MAX];

    cr_assert_eq(box_grid(&spec, 0, 1, &grid), 0);
    cr_assert_eq(place_all(&placing, &grid, rank_of, is_new), 0);
    for (int place = 0; place < 6; place++) {
        cr_assert_eq(rank_of[place], place);
        cr_assert(is_new[place]);
    }
}

Test(places, boxes_that_nodes_have_are_taken_there_and_the_newest_first)
{
    const uint32_t node[] = {0, 0, 0, 1, 1, 1};
    struct placing placing = make_placing(6, 1, node);
    struct kvw_spec spec = make_spec(1, 1, 6, 1, 6);
    struct grid grid;
    int rank_of[KVW_RANKS_MAX];
    bool is_new[KVW_RANKS_MAX];

    cr_assert_eq(box_grid(&spec, 0, 1, &grid), 0);
    placing.have[1][0] = 8; /* the first node's is older */
    placing.have[0][0] = 3;
    placing.have[1][1] = 8;
    placing.have[0][5] = 8;
    cr_assert_eq(place_all(&placing, &grid, rank_of, is_new), 0);
    cr_assert_geq(rank_of[0], 3);
    cr_assert_geq(rank_of[1], 3);
    cr_assert_lt(rank_of[5], 3);
    cr_assert(!is_new[0] && !is_new[1] && !is_new[5]);
    cr_assert(is_new[2] && is_new[3] && is_new[4]);
}

Test(places, a_box_that_lags_more_than_boards_keep_counts_as_lost)
{
    const uint32_t node[] = {0, 1};
    struct placing placing = make_placing(2, 1, node);
    struct kvw_spec spec = make_spec(1, 1, 2, 1, 2);
    struct grid grid;
    int rank_of[KVW_RANKS_MAX];
    bool is_new[KVW_RANKS_MAX];

    cr_assert_eq(box_grid(&spec, 0, 1, &grid), 0);
    placing.have[0][0] = 100;
    placing.have[1][1] = 100 - (KVW_RECORDS - 2);
    cr_assert_eq(place_all(&placing, &grid, rank_of, is_new), 0);
    cr_assert(!is_new[0] && !is_new[1]);
    placing.have[1][1]--;
    cr_assert_eq(place_all(&placing, &grid, rank_of, is_new), 0);
    cr_assert(!is_new[0] && is_new[1]);
}

Test(places, a_node_with_too_few_ranks_for_a_box_is_said)
{
    const uint32_t node[] = {0, 0, 0, 1};
    struct placing placing = make_placing(4, 2, node);
    struct kvw_spec spec = make_spec(1, 1, 2, 2, 2);
    struct grid grid;
    int rank_of[KVW_RANKS_MAX];
    bool is_new[KVW_RANKS_MAX];

    cr_assert_eq(box_grid(&spec, 0, 2, &grid), 0);
    cr_assert_eq(place_all(&placing, &grid, rank_of, is_new), -ENOSPC);
    cr_assert_neq(strstr(kvw_mpi_last_error(), "2 ranks of one node"), NULL);
}
