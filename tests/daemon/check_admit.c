/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a cache may be created, as a pure function: daemon/admit.c without a daemon.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/admit.h"
#include "daemon/cache.h"
#include "daemon/host.h"

/* ------------------------------------------- what is not asked for here ---------- */

uint64_t cache_bytes_used(const struct daemon *daemon, const uint32_t *uid)
{
    (void)daemon;
    (void)uid;
    return 0;
}

uint64_t cache_bytes_promised(const struct daemon *daemon)
{
    (void)daemon;
    return 0;
}

uint64_t cache_bytes_leaving(const struct daemon *daemon)
{
    (void)daemon;
    return 0;
}

static uint32_t caches_here;

uint32_t cache_count(const struct daemon *daemon, uint32_t uid)
{
    (void)daemon;
    (void)uid;
    return caches_here;
}

bool share_is_unlimited(uint32_t uid)
{
    return uid == 0;
}

uint32_t share_of(const struct daemon *daemon, uint32_t n)
{
    (void)daemon;
    return n / 2;
}

int host_memory(struct host_memory *memory)
{
    *memory = (struct host_memory){0};
    return 0;
}

const char *host_memory_warning(void)
{
    return "";
}

static uint64_t mappings_here = 65530;

uint64_t host_mappings_max(void)
{
    return mappings_here;
}

/* ------------------------------------------------------------ mappings ---------- */

static void add_group(struct kvw_geometry *geometry, const char *name,
                      uint32_t n_layers, uint32_t n_heads, uint8_t is_contiguous)
{
    struct kvw_geometry_group *group = &geometry->group[geometry->n_groups++];

    *group = (struct kvw_geometry_group){.window_rows = 1024,
                                         .chunk_rows_max = 16,
                                         .slack_chunks = 1,
                                         .n_layers = n_layers,
                                         .layer_first = geometry->n_layers,
                                         .n_heads = n_heads,
                                         .n_planes = 2,
                                         .policy = KVW_GEOMETRY_ROLL,
                                         .kind = KVW_GEOMETRY_ROW,
                                         .positions = KVW_GEOMETRY_ABSOLUTE,
                                         .is_contiguous = is_contiguous};
    (void)snprintf(group->name, sizeof group->name, "%s", name);
    for (uint32_t p = 0; p < 2; p++)
        group->plane[p] = (struct kvw_geometry_plane){
            .elems = 64, .type = KVW_GEOMETRY_BF16, .name = {p == 0 ? 'k' : 'v'}};
    for (uint32_t i = 0; i < n_layers; i++)
        geometry->model_layer[geometry->n_layers++] = (uint16_t)i;
}

/* 10 layers and 2 planes of 8 heads in 4 lanes, 3 mappings each: 1920; and a group that
 * is not contiguous. */
static struct kvw_geometry geometry_of(uint32_t head_parts, uint32_t layer_parts,
                                       uint32_t lane_parts)
{
    struct kvw_geometry geometry = {.n_lanes = 4,
                                    .n_ranks = head_parts * layer_parts * lane_parts,
                                    .partition = {.head_parts = head_parts,
                                                  .layer_parts = layer_parts,
                                                  .lane_parts = lane_parts,
                                                  .row_parts = 1}};
    struct kvw_refusal refusal;

    add_group(&geometry, "self", 10, 8, 1);
    add_group(&geometry, "cross", 10, 100, 0);
    cr_assert_eq(geometry_check(&geometry, &refusal), 0, "%s", refusal.text);
    return geometry;
}

Test(admit, mappings_of_contiguous_groups_are_counted_to_the_last)
{
    const struct kvw_geometry geometry = geometry_of(1, 1, 1);
    struct kvw_refusal refusal;

    cr_assert_eq(admit_mappings(&geometry, 1920 + 1024, &refusal), 0);
    cr_assert_eq(admit_mappings(&geometry, 1920 + 1023, &refusal), -ENOMEM);
    cr_assert_eq(refusal.need, 1920);
    cr_assert_eq(refusal.have, 1919);
    cr_assert_not_null(strstr(refusal.text, "sysctl -w vm.max_map_count=2944"), "%s",
                       refusal.text);
    cr_assert_eq(admit_mappings(&geometry, 100, &refusal), -ENOMEM);
    cr_assert_eq(refusal.have, 0);
}

/* 3 parts of 8 heads: the first has 3. Of 10 layers in 4 parts, too; of 4 lanes in
 * 3, 2.
 */
Test(admit, mappings_of_the_largest_rank_decide)
{
    const struct kvw_geometry geometry = geometry_of(3, 4, 3);
    const uint64_t need = 3u * 3 * 2 * 2 * 3;
    struct kvw_refusal refusal;

    cr_assert_eq(admit_mappings(&geometry, need + 1024, &refusal), 0, "%s",
                 refusal.text);
    cr_assert_eq(admit_mappings(&geometry, need + 1023, &refusal), -ENOMEM);
    cr_assert_eq(refusal.need, need);
    cr_assert_not_null(strstr(refusal.text, "rank 0 "), "%s", refusal.text);
}

Test(admit, other_groups_need_no_mappings)
{
    struct kvw_geometry geometry = geometry_of(1, 1, 1);
    struct kvw_refusal refusal;

    geometry.group[0].is_contiguous = 0;

    cr_assert_eq(admit_mappings(&geometry, 0, &refusal), 0);
}

Test(admit, request_that_no_rank_could_attach_is_refused)
{
    const struct kvw_geometry geometry = geometry_of(1, 1, 1);
    const struct kvw_message_create request = {.name = "a",
                                               .geometry = (const uint8_t *)&geometry,
                                               .geometry_bytes = sizeof geometry};
    struct cache_meta meta;
    struct kvw_layout layout;
    struct kvw_refusal refusal;

    cr_assert_eq(admit_request(&request, &meta, &layout, &refusal), 0, "%s",
                 refusal.text);
    mappings_here = 2000;
    cr_assert_eq(admit_request(&request, &meta, &layout, &refusal), -ENOMEM);
}

Test(admit, number_of_a_users_caches_is_refused_with_need_and_have)
{
    struct kvw_refusal refusal;

    caches_here = KVW_CACHES_MAX / 2 - 1;
    cr_assert_eq(admit_count(NULL, 1000, &refusal), 0);
    caches_here++;
    cr_assert_eq(admit_count(NULL, 1000, &refusal), -EDQUOT);
    cr_assert_eq(refusal.need, KVW_CACHES_MAX / 2 + 1);
    cr_assert_eq(refusal.have, KVW_CACHES_MAX / 2);
    cr_assert_eq(admit_count(NULL, 0, &refusal), 0, "root is not limited");
}
