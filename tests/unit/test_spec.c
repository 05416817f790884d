/* SPDX-License-Identifier: Apache-2.0 */
/* Specs: their defaults, their refusals in words, their bytes, and the way to a
 * geometry and back. */
#include <criterion/criterion.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "client/spec.h"
#include "proto/layout.h"
#include "tests/unit/random.h"

/* A video cache of two ranks: a rolling group and a refusing one. */
static struct kvw_spec good(void)
{
    struct kvw_spec spec;

    kvw_spec_init(&spec, "a-cache");
    struct kvw_spec_group *self = kvw_spec_add_group(&spec, "self", 3, NULL);
    cr_assert_not_null(self);
    self->n_heads = 4;
    self->window_rows = 12;
    self->sink_rows = 3;
    self->chunk_rows_max = 3;
    cr_assert_not_null(kvw_spec_add_plane(self, "k", KVW_BF16, 8));
    cr_assert_not_null(kvw_spec_add_plane(self, "v", KVW_BF16, 8));
    self->plane[0].is_rotated = 1;
    struct kvw_spec_group *cross = kvw_spec_add_group(&spec, "cross", 3, NULL);
    cr_assert_not_null(cross);
    cross->n_heads = 4;
    cross->window_rows = 16;
    cross->chunk_rows_max = 16;
    cross->policy = KVW_REFUSE;
    cr_assert_not_null(kvw_spec_add_plane(cross, "k", KVW_BF16, 8));
    kvw_spec_split_heads(&spec, 2);
    return spec;
}

Test(spec, init_is_one_lane_and_one_rank)
{
    struct kvw_spec spec;
    memset(&spec, 0xff, sizeof spec);

    kvw_spec_init(&spec, "a-cache");

    cr_assert_eq(spec.size, sizeof spec);
    cr_assert_str_eq(spec.name, "a-cache");
    cr_assert_eq(spec.n_lanes, 1);
    cr_assert_eq(spec.n_ranks, 1);
    cr_assert_eq(spec.head_parts * spec.layer_parts * spec.lane_parts * spec.row_parts,
                 1);
    cr_assert_eq(spec.lifetime, KVW_LIFETIME_JOB);
    cr_assert_eq(spec.mode, 0600);
    cr_assert_eq(spec.n_groups, 0);
}

Test(spec, a_good_one_is_accepted)
{
    struct kvw_spec spec = good();

    cr_assert_eq(kvw_spec_check(&spec), 0, "%s", kvw_last_error());
}

Test(spec, groups_have_defaults_and_numbered_layers)
{
    static const uint16_t numbers[] = {5, 11, 17};
    struct kvw_spec spec;
    kvw_spec_init(&spec, "a-cache");

    struct kvw_spec_group *group = kvw_spec_add_group(&spec, "self", 2, NULL);
    cr_assert_not_null(group);
    cr_assert_not_null(kvw_spec_add_group(&spec, "global", 3, numbers));

    cr_assert_eq(group->policy, KVW_ROLL);
    cr_assert_eq(group->window_kind, KVW_WINDOW_CHUNK);
    cr_assert_eq(group->positions, KVW_POSITIONS_ABSOLUTE);
    cr_assert_eq(group->slack_chunks, 1);
    cr_assert_eq(group->n_heads, 1);
    cr_assert_eq(spec.n_layers, 5);
    static const uint16_t want[] = {0, 1, 5, 11, 17};
    cr_assert_eq(memcmp(spec.model_layer, want, sizeof want), 0);
}

Test(spec, groups_beyond_the_bounds_are_refused_in_words)
{
    struct kvw_spec spec;
    kvw_spec_init(&spec, "a-cache");

    cr_assert_null(kvw_spec_add_group(&spec, "self", 0, NULL));
    cr_assert_not_null(strstr(kvw_last_error(), "layers"));
    cr_assert_null(kvw_spec_add_group(&spec, "self", 1025, NULL));
    cr_assert_not_null(strstr(kvw_last_error(), "1025"));
    cr_assert_null(kvw_spec_add_group(&spec, "a-name-that-is-too-long", 1, NULL));
    cr_assert_not_null(strstr(kvw_last_error(), "at most 15"));
    cr_assert_eq(spec.n_groups, 0);
    for (int i = 0; i < KVW_SPEC_GROUPS_MAX; i++)
        cr_assert_not_null(kvw_spec_add_group(&spec, "g", 60, NULL));
    cr_assert_null(kvw_spec_add_group(&spec, "one-more", 1, NULL));
    cr_assert_not_null(strstr(kvw_last_error(), "at most 16 groups"));
    cr_assert_eq(spec.n_layers, 16 * 60);
    spec.n_groups = 15;
    cr_assert_null(kvw_spec_add_group(&spec, "too-many", 65, NULL));
    cr_assert_eq(spec.n_groups, 15);
}

Test(spec, planes_beyond_the_bounds_are_refused_in_words)
{
    struct kvw_spec spec;
    kvw_spec_init(&spec, "a-cache");
    struct kvw_spec_group *group = kvw_spec_add_group(&spec, "self", 1, NULL);
    cr_assert_not_null(group);

    cr_assert_null(kvw_spec_add_plane(group, "a-name-that-is-too-long", KVW_F32, 1));
    for (int i = 0; i < KVW_SPEC_PLANES_MAX; i++)
        cr_assert_not_null(kvw_spec_add_plane(group, "k", KVW_F32, 1));
    cr_assert_null(kvw_spec_add_plane(group, "one-more", KVW_F32, 1));
    cr_assert_not_null(strstr(kvw_last_error(), "group 'self' can have 8"));
    cr_assert_eq(group->n_planes, 8);
}

/* One change to the good spec, and what is said of it. */
struct wrong {
    const char *what;
    size_t offset;
    size_t bytes;
    uint64_t value;
    int error;
    const char *words;
};

#define AT(member) \
    offsetof(struct kvw_spec, member), sizeof(((struct kvw_spec *)0)->member)

static const struct wrong wrongs[] = {
    {"another version", AT(size), 100, -EINVAL, "have 100"},
    {"no name", AT(name[0]), 0, -EINVAL, "have 0 bytes"},
    {"a path as name", AT(name[1]), '/', -EINVAL, "need 1 to 63 letters"},
    {"a hidden name", AT(name[0]), '.', -EINVAL, "no '.' first"},
    {"lifetime", AT(lifetime), 3, -EINVAL, "lifetime: need 0 to 2, have 3"},
    {"ttl without seconds", AT(lifetime), 1, -EINVAL, "ttl_seconds"},
    {"checksums", AT(has_checksums), 2, -EINVAL, "need 0 or 1, have 2"},
    {"mode", AT(mode), 01600, -EINVAL, "need at most 0777, have 01600"},
    {"placement", AT(placement), 5, -EINVAL, "placement"},
    {"pages", AT(pages), 3, -EINVAL, "pages"},
    {"no groups", AT(n_groups), 0, -EINVAL, "layers of all groups: need 0, have"},
    {"too many groups", AT(n_groups), UINT32_MAX, -E2BIG, "groups: need 1 to 16"},
    {"layers of no group", AT(n_layers), 7, -EINVAL, "need 6, have n_layers = 7"},
    {"layers that overflow", AT(group[1].n_layers), UINT32_MAX, -E2BIG,
     "have 4294967298"},
    {"no lanes", AT(n_lanes), 0, -EINVAL, "lanes: need 1 to 1024, have 0"},
    {"ranks that are not the parts", AT(n_ranks), 3, -EINVAL, "need 2 ranks, have 3"},
    {"too many planes", AT(group[0].n_planes), UINT32_MAX, -E2BIG,
     "planes: need 1 to 8"},
    {"type 258 is not type 2", AT(group[0].plane[0].type), 258, -EINVAL, "no 258"},
    {"policy 257 is not 1", AT(group[0].policy), 257, -EINVAL, "no 257"},
    {"window kind 257 is not 1", AT(group[0].window_kind), 257, -EINVAL, "no 257"},
    {"positions 257 is not 1", AT(group[0].positions), 257, -EINVAL, "no 257"},
    {"type 0", AT(group[0].plane[1].type), 0, -EINVAL,
     "plane 'v': 0 is no element type"},
    {"window", AT(group[0].window_rows), 5, -EINVAL, "need W >= S + chunk = 3 + 3 = 6"},
    {"chunk", AT(group[0].chunk_rows_max), 0, -EINVAL, "largest chunk"},
    {"elements", AT(group[0].plane[1].elems), UINT32_MAX, -E2BIG, "have 4294967295"},
    {"bytes", AT(group[1].plane[0].elems), 1u << 28, 0, ""},
    {"model layers", AT(model_layer[1]), 0, -EINVAL, "must ascend"},
};

Test(spec, each_wrong_value_is_refused_in_words)
{
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        const struct wrong *wrong = &wrongs[i];
        struct kvw_spec spec = good();
        struct kvw_geometry geometry;
        struct kvw_spec_bytes bytes;

        memcpy((char *)&spec + wrong->offset, &wrong->value, wrong->bytes);

        cr_expect_eq(kvw_spec_check(&spec), wrong->error, "%s", wrong->what);
        cr_expect_eq(kvw_spec_size(&spec, &bytes), wrong->error, "%s", wrong->what);
        cr_expect_eq(spec_to_geometry(&spec, &geometry), wrong->error, "%s",
                     wrong->what);
        cr_expect_not_null(strstr(kvw_last_error(), wrong->words), "%s: '%s'",
                           wrong->what, kvw_last_error());
    }
}

Test(spec, names_that_do_not_end_are_refused)
{
    struct kvw_spec spec = good();
    memset(spec.name, 'n', sizeof spec.name);
    cr_assert_eq(kvw_spec_check(&spec), -EINVAL);
    cr_assert_not_null(strstr(kvw_last_error(), "have 64 bytes"), "%s",
                       kvw_last_error());

    spec = good();
    memset(spec.group[0].name, 'g', sizeof spec.group[0].name);
    cr_assert_eq(kvw_spec_check(&spec), -EINVAL);

    spec = good();
    memset(spec.group[0].plane[0].name, 'p', sizeof spec.group[0].plane[0].name);
    cr_assert_eq(kvw_spec_check(&spec), -EINVAL);
}

/* A name that does not fit must not become another name. */
Test(spec, a_name_that_is_too_long_is_left_out)
{
    char name[KVW_NAME_MAX + 2];
    struct kvw_spec spec = good();
    memset(name, 'x', sizeof name);

    name[KVW_NAME_MAX + 1] = 0;
    kvw_spec_init(&spec, name);
    cr_assert_str_eq(spec.name, "");
    name[KVW_NAME_MAX] = 0;
    kvw_spec_init(&spec, name);
    cr_assert_str_eq(spec.name, name);
}

Test(spec, more_bytes_than_a_cache_may_have_are_refused)
{
    struct kvw_spec spec = good();
    spec.group[0].window_rows = 1u << 30;
    spec.group[0].n_heads = 65536;

    cr_assert_eq(kvw_spec_check(&spec), -E2BIG);
    cr_assert_not_null(strstr(kvw_last_error(), "would exceed"), "%s",
                       kvw_last_error());
}

Test(spec, ttl_has_bounds)
{
    struct kvw_spec spec = good();
    spec.lifetime = KVW_LIFETIME_TTL;

    spec.ttl_seconds = 60;
    cr_assert_eq(kvw_spec_check(&spec), 0);
    spec.ttl_seconds = UINT64_MAX;
    cr_assert_eq(kvw_spec_check(&spec), -EINVAL);
}

/* Slack is for rolling; 1 is the default of every group, so it is not an error here. */
Test(spec, a_refusing_group_has_no_slack)
{
    struct kvw_spec spec = good();
    struct kvw_geometry geometry;

    cr_assert_eq(spec.group[1].slack_chunks, 1);
    cr_assert_eq(spec_to_geometry(&spec, &geometry), 0);
    cr_assert_eq(geometry.group[1].slack_chunks, 0);
    cr_assert_eq(geometry_rows(&geometry, 1), 16);
}

Test(spec, a_failed_conversion_writes_nothing)
{
    struct kvw_spec spec = good();
    struct kvw_geometry geometry;
    struct kvw_geometry before;
    struct kvw_spec_bytes bytes = {.total_bytes = 77};
    memset(&geometry, 0x5a, sizeof geometry);
    memcpy(&before, &geometry, sizeof geometry);
    spec.group[1].plane[0].type = 9;

    cr_assert_eq(spec_to_geometry(&spec, &geometry), -EINVAL);
    cr_assert_eq(kvw_spec_size(&spec, &bytes), -EINVAL);

    cr_assert_eq(memcmp(&geometry, &before, sizeof geometry), 0);
    cr_assert_eq(bytes.total_bytes, 77);
}

Test(spec, geometry_of_a_spec_of_a_geometry_is_the_same)
{
    struct random random = random_init(30);

    for (uint32_t round = 0; round < 2000; round++) {
        struct kvw_geometry geometry;
        struct kvw_geometry again;
        struct kvw_spec spec;
        random_geometry(&random, &geometry);

        spec_from_geometry(&geometry, "a-cache", &spec);
        cr_assert_eq(spec_to_geometry(&spec, &again), 0, "seed %" PRIu64 ": %s",
                     random.seed, kvw_last_error());
        cr_assert_eq(memcmp(&geometry, &again, sizeof geometry), 0);
    }
}

/* A program that shows bytes before it asks for them must show the daemon's. */
Test(spec, bytes_are_those_of_the_layout)
{
    struct random random = random_init(31);

    for (uint32_t round = 0; round < 1000; round++) {
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal;
        struct kvw_spec spec;
        struct kvw_spec_bytes bytes;
        uint64_t groups = 0;
        random_geometry(&random, &geometry);
        cr_assert_eq(layout_of(&geometry, &layout, &refusal), 0);

        spec_from_geometry(&geometry, "a-cache", &spec);
        cr_assert_eq(kvw_spec_size(&spec, &bytes), 0);

        cr_assert_eq(bytes.total_bytes,
                     layout.data_bytes + layout.control_bytes + layout.pins_bytes);
        cr_assert_eq(bytes.data_bytes, layout.data_bytes);
        cr_assert_eq(bytes.control_bytes, layout.control_bytes + layout.pins_bytes);
        for (uint32_t g = 0; g < geometry.n_groups; g++) {
            cr_assert_eq(bytes.layer_bytes[g], layout.group[g].layer_bytes);
            groups += bytes.group_bytes[g];
        }
        cr_assert_eq(groups, bytes.data_bytes - bytes.padding_bytes);
    }
}

/* Ranks hold everything once: all their bytes are the data, less what fills up pages.
 */
Test(spec, bytes_of_the_ranks_are_all_bytes)
{
    struct random random = random_init(32);

    for (uint32_t round = 0; round < 1000; round++) {
        struct kvw_geometry geometry;
        struct kvw_spec spec;
        struct kvw_spec_bytes bytes;
        uint64_t ranks = 0;
        random_geometry(&random, &geometry);
        spec_from_geometry(&geometry, "a-cache", &spec);
        cr_assert_eq(kvw_spec_size(&spec, &bytes), 0);

        for (uint32_t rank = 0; rank < 64; rank++)
            ranks += bytes.rank_bytes[rank];

        uint64_t slop = geometry.n_layers * (uint64_t)KVW_PAGE + geometry.n_ranks;
        cr_assert_leq(ranks, bytes.data_bytes);
        cr_assert_gt(ranks + slop + bytes.padding_bytes, bytes.data_bytes,
                     "seed %" PRIu64, random.seed);
    }
}
