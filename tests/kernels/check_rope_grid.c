/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of rotary tables for tokens on a grid. */
#include "tests/kernels/check.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define PAIRS 64u
#define TOKENS 60u

/* 22, 21 and 21 pairs of 64, as video models split them, on 3 x 4 x 5 tokens. */
static struct kvw_rope_grid grid_of(float *cosines, float *sines)
{
    return (struct kvw_rope_grid){
        .cos = cosines,
        .sin = sines,
        .row_stride = PAIRS * sizeof(float),
        .n_axes = 3,
        .size = {3, 4, 5},
        .begin = {7, 0, -2},
        .n_pairs = {22, 21, 21},
        .theta = 10000,
    };
}

static void each_axis_turns_its_pairs(struct check *c)
{
    static float cosines[TOKENS * PAIRS];
    static float sines[TOKENS * PAIRS];
    const struct kvw_rope_grid grid = grid_of(cosines, sines);

    check_that(c, kvw_rope_fill_grid(&grid) == 0, __func__, "it is filled");
    for (uint32_t token = 0; token < TOKENS; token++) {
        const double at[3] = {7.0 + token / 20, token / 5 % 4, -2.0 + token % 5};
        for (uint32_t pair = 0; pair < PAIRS; pair++) {
            const uint32_t axis = pair < 22 ? 0 : pair < 43 ? 1 : 2;
            const uint32_t first[3] = {0, 22, 43};
            const double j = pair - first[axis];
            const double angle = at[axis] * pow(10000, -j / grid.n_pairs[axis]);
            const double x = (double)cosines[token * PAIRS + pair];
            const double y = (double)sines[token * PAIRS + pair];
            /* One rounding to f32, and an angle of a few roundings of a double. */
            const double bound = 2 * U_F32 + 64 * U_F64;
            check_that(c,
                       fabs(x - cos(angle)) <= bound && fabs(y - sin(angle)) <= bound,
                       __func__, "token %u pair %u", token, pair);
        }
    }
}

static void one_axis_is_the_plain_table(struct check *c)
{
    static float a[2][9 * 8];
    static float b[2][9 * 8];
    const struct kvw_rope_grid grid = {.cos = a[0],
                                       .sin = a[1],
                                       .row_stride = 32,
                                       .n_axes = 1,
                                       .size = {9},
                                       .n_pairs = {8},
                                       .theta = 500};
    const struct kvw_rope_spec spec = {.cos = b[0],
                                       .sin = b[1],
                                       .row_stride = 32,
                                       .n_positions = 9,
                                       .n_pairs = 8,
                                       .theta = 500};

    check_that(c, kvw_rope_fill_grid(&grid) == 0 && kvw_rope_fill(&spec) == 0, __func__,
               "both are filled");
    check_that(c, memcmp(a, b, sizeof(a)) == 0, __func__, "the same bits");
}

/* Rotated at frame 3 and moved by 4 frames: as if rotated at frame 7. */
static void a_grid_of_one_token_moves_keys(struct check *c)
{
    float table[3][2][PAIRS];
    float key[2][2 * PAIRS];
    const double frame[3] = {3, 4, 7};

    for (uint32_t d = 0; d < 2 * PAIRS; d++)
        key[0][d] = key[1][d] = (float)random_unit(c);
    for (uint32_t i = 0; i < 3; i++) {
        struct kvw_rope_grid grid = grid_of(table[i][0], table[i][1]);
        memcpy(grid.size, (uint64_t[]){1, 1, 1}, sizeof(grid.size));
        memcpy(grid.begin, (double[]){frame[i], 0, 0}, sizeof(grid.begin));
        check_that(c, kvw_rope_fill_grid(&grid) == 0, __func__, "table %u", i);
        const struct kvw_rope_table rope = {
            .cos = table[i][0], .sin = table[i][1], .n_positions = 1, .n_pairs = PAIRS};
        const struct kvw_rope_args args = {.rows = key[i / 2],
                                           .n_rows = 1,
                                           .n_heads = 1,
                                           .type = KVW_NUM_F32,
                                           .table = &rope};
        check_that(c, kvw_rope_apply(&args) == 0, __func__, "rotation %u", i);
    }
    for (uint32_t d = 0; d < 2 * PAIRS; d++) {
        const double off = fabs((double)key[0][d] - (double)key[1][d]);
        /* Magnitudes up to 2, rotated twice with tables that are rounded. */
        check_that(c, off <= 16 * U_F32, __func__, "element %u is off by %g", d, off);
    }
}

static void bad_grids_are_refused(struct check *c)
{
    static float cosines[TOKENS * PAIRS];
    static float sines[TOKENS * PAIRS];
    struct kvw_rope_grid bad = grid_of(cosines, sines);

    check_that(c, kvw_rope_fill_grid(NULL) == -EINVAL, __func__, "none");
    bad.n_axes = 4;
    check_that(c, kvw_rope_fill_grid(&bad) == -EINVAL, __func__, "four axes");
    bad = grid_of(cosines, NULL);
    check_that(c, kvw_rope_fill_grid(&bad) == -EINVAL, __func__, "no sines");
    bad = grid_of(cosines, sines);
    bad.n_pairs[1] = 0;
    check_that(c, kvw_rope_fill_grid(&bad) == -EINVAL, __func__,
               "an axis without pairs");
    bad.n_pairs[1] = KVW_HEAD_DIM_MAX;
    check_that(c, kvw_rope_fill_grid(&bad) == -ERANGE, __func__, "too many pairs");
    bad = grid_of(cosines, sines);
    bad.theta = 0;
    check_that(c, kvw_rope_fill_grid(&bad) == -EINVAL, __func__, "theta 0");
    bad = grid_of(cosines, sines);
    bad.row_stride = 3;
    check_that(c, kvw_rope_fill_grid(&bad) == -EINVAL, __func__, "a stride of 3");
    check_that(c, cosines[0] == 0, __func__, "something was written");
}

void check_rope_grid(struct check *c)
{
    if (check_begin(c, "rope_grid", "all", 0) == NULL)
        return;
    each_axis_turns_its_pairs(c);
    one_axis_is_the_plain_table(c);
    a_grid_of_one_token_moves_keys(c);
    bad_grids_are_refused(c);
}
