/* SPDX-License-Identifier: Apache-2.0 */
/* A geometry from anybody: what is accepted, and each refusal with its need and have.
 */
#include <criterion/criterion.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/geometry.h"
#include "tests/unit/random.h"

/* Two groups (a rolling one, and one that refuses) of a model of four layers. */
static struct kvw_geometry good(void)
{
    struct kvw_geometry geometry = {
        .n_groups = 2,
        .n_lanes = 2,
        .n_ranks = 2,
        .n_layers = 8,
        .partition = {2, 1, 1, 1, 0, 0},
        .group = {{.name = "self",
                   .window_rows = 12,
                   .sink_rows = 3,
                   .chunk_rows_max = 3,
                   .keep_rows = 3,
                   .slack_chunks = 1,
                   .n_layers = 4,
                   .n_heads = 4,
                   .n_planes = 2,
                   .policy = KVW_GEOMETRY_ROLL,
                   .kind = KVW_GEOMETRY_CHUNK,
                   .positions = KVW_GEOMETRY_ABSOLUTE,
                   .plane = {{.elems = 8, .type = KVW_GEOMETRY_BF16, .name = "k"},
                             {.elems = 8, .type = KVW_GEOMETRY_BF16, .name = "v"}}},
                  {.name = "cross",
                   .window_rows = 16,
                   .chunk_rows_max = 16,
                   .n_layers = 4,
                   .layer_first = 4,
                   .n_heads = 4,
                   .n_planes = 1,
                   .policy = KVW_GEOMETRY_REFUSE,
                   .kind = KVW_GEOMETRY_ROW,
                   .positions = KVW_GEOMETRY_WINDOW,
                   .plane = {{.elems = 4, .type = KVW_GEOMETRY_U32, .name = "ids"}}}},
        .model_layer = {0, 1, 2, 3, 0, 1, 2, 3},
    };
    return geometry;
}

Test(geometry, a_good_one_is_accepted)
{
    struct kvw_geometry geometry = good();
    struct kvw_refusal refusal;

    cr_assert_eq(geometry_check(&geometry, &refusal), 0);
    cr_assert_eq(geometry_ring_rows(&geometry, 0), 12 - 3 + 3);
    cr_assert_eq(geometry_rows(&geometry, 0), 12 + 3 + 3);
    cr_assert_eq(geometry_ring_rows(&geometry, 1), 16);
    cr_assert_eq(geometry_rows(&geometry, 1), 16);
    for (uint32_t layer = 0; layer < 8; layer++)
        cr_assert_eq(geometry_group_of(&geometry, layer), layer / 4);
}

/* One change to the good geometry, and what is said of it. */
struct wrong {
    const char *what;
    size_t offset; /* of the member that is changed */
    size_t bytes;
    uint64_t value;
    int error;
    uint64_t need;
    uint64_t have;
    const char *words; /* of the refusal */
};

#define AT(member) \
    offsetof(struct kvw_geometry, member), sizeof(((struct kvw_geometry *)0)->member)

static const struct wrong wrongs[] = {
    {"no groups", AT(n_groups), 0, -EINVAL, 16, 0, "groups"},
    {"too many groups", AT(n_groups), 17, -E2BIG, 16, 17, "groups"},
    {"no lanes", AT(n_lanes), 0, -EINVAL, 1024, 0, "lanes"},
    {"too many lanes", AT(n_lanes), 1025, -E2BIG, 1024, 1025, "lanes"},
    {"no ranks", AT(n_ranks), 0, -EINVAL, 64, 0, "ranks"},
    {"too many ranks", AT(n_ranks), 65, -E2BIG, 64, 65, "ranks"},
    {"no layers", AT(n_layers), 0, -EINVAL, 1024, 0, "layers"},
    {"too many layers", AT(n_layers), 1025, -E2BIG, 1024, 1025, "layers"},
    {"layers that no group has", AT(n_layers), 9, -EINVAL, 8, 9, "layers"},
    {"no head parts", AT(partition.head_parts), 0, -EINVAL, 64, 0, "partition"},
    {"too many layer parts", AT(partition.layer_parts), 65, -E2BIG, 64, 65,
     "partition"},
    {"no lane parts", AT(partition.lane_parts), 0, -EINVAL, 64, 0, "partition"},
    {"no row parts", AT(partition.row_parts), 0, -EINVAL, 64, 0, "partition"},
    {"parts that are not the ranks", AT(partition.head_parts), 3, -EINVAL, 2, 3,
     "3 x 1 x 1 x 1"},
    {"a block without split rows", AT(partition.row_block), 5, -EINVAL, 1, 5,
     "row_block"},
    {"partition reserved", AT(partition.reserved), 1, -EINVAL, 1, 0, "partition"},
    {"checksums, twice", AT(has_checksums), 2, -EINVAL, 1, 2, "checksums"},
    {"pages", AT(pages), 3, -EINVAL, 2, 3, "pages"},
    {"reserved bytes", AT(reserved[3]), 1, -EINVAL, 0, 1, "unused"},
    {"an unused group", AT(group[2].n_heads), 1, -EINVAL, 0, 1, "unused"},
    {"an unused layer", AT(model_layer[8]), 1, -EINVAL, 0, 1, "unused"},
    {"group without a name", AT(group[0].name[0]), 0, -EINVAL, 1, 15, "group 0"},
    {"group name with a space", AT(group[0].name[1]), ' ', -EINVAL, 1, 15, "group 0"},
    {"group name with a dot first", AT(group[0].name[0]), '.', -EINVAL, 1, 15,
     "group 0"},
    {"bytes after a name's end", AT(group[0].name[9]), 'x', -EINVAL, 1, 15, "group 0"},
    {"contiguous, twice", AT(group[0].is_contiguous), 2, -EINVAL, 2, 1, "flag"},
    {"policy 0", AT(group[0].policy), 0, -EINVAL, 2, 0, "policy"},
    {"policy 3", AT(group[0].policy), 3, -EINVAL, 2, 3, "policy"},
    {"window kind 3", AT(group[0].kind), 3, -EINVAL, 2, 1, "window kind"},
    {"position rule 0", AT(group[0].positions), 0, -EINVAL, 2, 1, "position rule"},
    {"group reserved", AT(group[0].reserved[7]), 1, -EINVAL, 2, 1, "group 'self'"},
    {"no heads", AT(group[0].n_heads), 0, -EINVAL, 65536, 0, "heads"},
    {"too many heads", AT(group[0].n_heads), 65537, -E2BIG, 65536, 65537, "heads"},
    {"no planes", AT(group[0].n_planes), 0, -EINVAL, 8, 0, "planes"},
    {"too many planes", AT(group[0].n_planes), 9, -E2BIG, 8, 9, "planes"},
    {"group without layers", AT(group[0].n_layers), 0, -EINVAL, 1024, 0, "layers"},
    {"more layers than the cache", AT(group[1].n_layers), 5, -EINVAL, 1024, 5,
     "layers"},
    {"layers that overlap", AT(group[1].layer_first), 3, -EINVAL, 1024, 4, "from 3"},
    {"model layers that repeat", AT(model_layer[2]), 1, -EINVAL, 2, 1, "ascend"},
    {"model layers that fall", AT(model_layer[6]), 0, -EINVAL, 2, 0, "ascend"},
    {"no window", AT(group[0].window_rows), 0, -EINVAL, 1u << 31, 3, "window 0"},
    {"window too large", AT(group[0].window_rows), (1ull << 31) + 1, -E2BIG, 1u << 31,
     (1ull << 31) + 1, "window"},
    {"window of all ones", AT(group[0].window_rows), UINT64_MAX, -E2BIG, 1u << 31,
     UINT64_MAX, "window"},
    {"sink of all ones", AT(group[0].sink_rows), UINT64_MAX, -E2BIG, 1u << 31,
     UINT64_MAX, "sink"},
    {"keep of all ones", AT(group[0].keep_rows), UINT64_MAX, -E2BIG, 1u << 31,
     UINT64_MAX, "keep"},
    {"no chunk", AT(group[0].chunk_rows_max), 0, -EINVAL, 1u << 31, 0, "chunk"},
    {"chunk of all ones", AT(group[0].chunk_rows_max), UINT64_MAX, -E2BIG, 1u << 31,
     UINT64_MAX, "chunk"},
    {"window that does not hold sink and chunk", AT(group[0].window_rows), 5, -EINVAL,
     6, 5, "W >= S + chunk = 3 + 3 = 6 rows, have W = 5"},
    {"window that is the sink", AT(group[1].sink_rows), 16, -EINVAL, 17, 16,
     "need W > S = 16, have W = 16"},
    {"chunk that never fits", AT(group[1].chunk_rows_max), 17, -EINVAL, 17, 16, "fit"},
    {"no slack", AT(group[0].slack_chunks), 0, -EINVAL, 1, 0, "slack"},
    {"too much slack", AT(group[0].slack_chunks), 1025, -EINVAL, 1, 1025, "slack"},
    {"slack of a refusing group", AT(group[1].slack_chunks), 1, -EINVAL, 0, 1, "slack"},
    {"rows beyond a slot's 32 bits", AT(group[0].keep_rows), 1u << 31, -E2BIG, 1u << 31,
     (1ull << 31) + 15, "rows of a layer"},
    {"plane without a name", AT(group[0].plane[1].name[0]), 0, -EINVAL, 1, 15,
     "plane 1"},
    {"two planes of one name", AT(group[0].plane[1].name[0]), 'k', -EINVAL, 1, 0,
     "two planes are called 'k'"},
    {"type 0", AT(group[0].plane[1].type), 0, -EINVAL, 6, 0, "plane 'v': 0 is no"},
    {"type 7", AT(group[0].plane[1].type), 7, -EINVAL, 6, 7, "plane 'v': 7 is no"},
    {"no elements", AT(group[0].plane[1].elems), 0, -EINVAL, 1u << 28, 0, "elements"},
    {"too many elements", AT(group[0].plane[1].elems), (1u << 28) + 1, -E2BIG, 1u << 28,
     (1u << 28) + 1, "elements"},
    {"unknown flags", AT(group[0].plane[1].flags), 2, -EINVAL, 0, 2, "flags"},
    {"plane reserved", AT(group[0].plane[1].reserved[1]), 1, -EINVAL, 0, 0, "flags"},
    {"an unused plane", AT(group[0].plane[7].elems), 1, -EINVAL, 2, 8, "must be zero"},
};

Test(geometry, each_wrong_value_is_refused_with_need_and_have)
{
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        const struct wrong *wrong = &wrongs[i];
        struct kvw_geometry geometry = good();
        struct kvw_refusal refusal = {0};

        memcpy((char *)&geometry + wrong->offset, &wrong->value, wrong->bytes);
        int error = geometry_check(&geometry, &refusal);

        cr_expect_eq(error, wrong->error, "%s: %d", wrong->what, error);
        cr_expect_eq(refusal.need, wrong->need, "%s: need %" PRIu64 " (%s)",
                     wrong->what, refusal.need, refusal.text);
        cr_expect_eq(refusal.have, wrong->have, "%s: have %" PRIu64 " (%s)",
                     wrong->what, refusal.have, refusal.text);
        cr_expect_not_null(strstr(refusal.text, wrong->words), "%s: '%s'", wrong->what,
                           refusal.text);
    }
}

Test(geometry, two_groups_of_one_name_are_refused)
{
    struct kvw_geometry geometry = good();
    struct kvw_refusal refusal = {0};

    memcpy(geometry.group[1].name, geometry.group[0].name,
           sizeof geometry.group[1].name);

    cr_assert_eq(geometry_check(&geometry, &refusal), -EINVAL);
    cr_assert_str_eq(refusal.text, "two groups are called 'self'");
}

Test(geometry, too_many_boards_are_refused)
{
    struct kvw_geometry geometry = good();
    struct kvw_refusal refusal = {0};

    geometry.n_lanes = 1024;
    geometry.n_ranks = 5;
    geometry.partition.head_parts = 5;

    cr_assert_eq(geometry_check(&geometry, &refusal), -E2BIG);
    cr_assert_eq(refusal.need, 4096);
    cr_assert_eq(refusal.have, 5120);
}

/* A view of split rows has a piece for each block: blocks of one row are too small. */
Test(geometry, split_rows_in_more_pieces_than_a_view_has_are_refused)
{
    struct kvw_geometry geometry = good();
    struct kvw_refusal refusal = {0};

    geometry.partition = (struct kvw_geometry_partition){1, 1, 1, 2, 1, 0};
    geometry.group[0].window_rows = 200;

    cr_assert_eq(geometry_check(&geometry, &refusal), -EINVAL);
    cr_assert_eq(refusal.need, (200 + 3 + 3) / 2 + 20);
    cr_assert_eq(refusal.have, 64);
    geometry.partition.row_block = 4;
    cr_assert_eq(geometry_check(&geometry, &refusal), 0, "%s", refusal.text);
}

Test(geometry, split_rows_need_a_block)
{
    struct kvw_geometry geometry = good();
    struct kvw_refusal refusal = {0};

    geometry.partition = (struct kvw_geometry_partition){1, 1, 1, 2, 0, 0};

    cr_assert_eq(geometry_check(&geometry, &refusal), -EINVAL);
    cr_assert_not_null(strstr(refusal.text, "have 0 with 2 parts"), "%s", refusal.text);
}

Test(geometry, names_are_short_and_plain)
{
    static const struct {
        const char *name;
        int is_ok;
    } names[] = {
        {"k", 1},
        {"Az09_-.", 1},
        {"123456789012345", 1},
        {"1234567890123456", 0},
        {"", 0},
        {".k", 0},
        {"a b", 0},
        {"a/b", 0},
        {"a\n", 0},
        {"\xc3\xa9", 0},
        {"-", 1},
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        cr_expect_eq(geometry_name_ok(names[i].name, 15) != 0, names[i].is_ok, "'%s'",
                     names[i].name);
}

/* A geometry lies in a page that a worker can write: no damage may crash the check, and
 * every refusal has words. */
Test(geometry, no_damage_crashes_the_check)
{
    struct random random = random_init(1);

    for (uint32_t round = 0; round < 20000; round++) {
        struct kvw_geometry geometry;
        struct kvw_refusal refusal = {0};
        uint8_t *bytes = (uint8_t *)&geometry;

        if (round % 2 == 0)
            geometry = good();
        else
            random_geometry(&random, &geometry);
        cr_assert_eq(geometry_check(&geometry, &refusal), 0, "seed %" PRIu64 ": %s",
                     random.seed, refusal.text);
        uint64_t n_bytes = random_range(&random, 1, 4);
        for (uint64_t i = 0; i < n_bytes; i++)
            bytes[random_below(&random,
                               random_below(&random, 2) ? 700 : sizeof geometry)] =
                (uint8_t)random_u64(&random);
        int error = geometry_check(&geometry, &refusal);

        cr_assert(error == 0 || error == -EINVAL || error == -E2BIG);
        cr_assert(error == 0 || refusal.text[0] != 0);
        cr_assert_not_null(memchr(refusal.text, 0, sizeof refusal.text));
    }
}

/* A contiguous ring is whole pages in every plane; what that adds is slack. */
Test(geometry, contiguous_rings_are_whole_pages)
{
    struct kvw_geometry geometry = good();
    struct kvw_refusal refusal = {0};
    struct kvw_geometry_group *group = &geometry.group[0];
    uint64_t least = geometry_ring_rows(&geometry, 0);

    group->is_contiguous = 1;

    cr_assert_eq(geometry_check(&geometry, &refusal), 0, "%s", refusal.text);
    uint64_t rows = geometry_ring_rows(&geometry, 0);
    cr_assert_geq(rows, least);
    for (uint32_t p = 0; p < group->n_planes; p++)
        cr_assert_eq(rows * group->plane[p].elems *
                         geometry_elem_bytes(group->plane[p].type) % 4096,
                     0);
    geometry.partition = (struct kvw_geometry_partition){1, 1, 1, 2, 8, 0};
    cr_assert_eq(geometry_check(&geometry, &refusal), -EINVAL);
    cr_assert_not_null(strstr(refusal.text, "contiguous"), "%s", refusal.text);
}
