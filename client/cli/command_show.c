/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel show: what a cache is, and where each lane of each rank stands. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/cli.h"
#include "client/cli/numa.h"
#include "client/cli/output.h"
#include "client/cli/parts.h"
#include "client/cli/spec_flags.h"
#include "client/cli/stat.h"
#include "client/spec.h"
#include "proto/layout.h"
#include "proto/placement.h"

/* A cache and, if it could be attached, what it holds. */
struct shown {
    struct stat_cache stat;
    struct kvw_spec spec;
    struct kvw_spec_bytes bytes;
    struct kvw_cache *cache; /* NULL: not attached, see `reason` */
    char reason[640];
};

/* --------------------------------------------------------------- reading ---------- */

/* Attach as a reader, unless leaving again would end the cache. */
static void attach(const struct cli *cli, struct shown *shown)
{
    const struct kvw_message_stated *stated = &shown->stat.stated;

    if (stat_ends_with_a_look(&shown->stat)) {
        snprintf(
            shown->reason, sizeof shown->reason,
            "not read: nobody is attached, and a look would end a cache of lifetime "
            "job");
        return;
    }
    if (kvw_attach(cli->client, stated->name, KVW_READER, NULL, &shown->cache) < 0)
        snprintf(shown->reason, sizeof shown->reason, "not read: %s", kvw_last_error());
}

static int read_cache(const struct cli *cli, const char *name, struct shown *shown)
{
    int result = stat_name(cli, name, &shown->stat);

    if (result < 0)
        return result;
    spec_from_geometry(&shown->stat.geometry, name, &shown->spec);
    result = kvw_spec_size(&shown->spec, &shown->bytes);
    if (result == 0)
        attach(cli, shown);
    return result;
}

/* The state of a lane on a rank. @return false if the rank does not hold the lane, or
 * lost against a fast writer. */
static bool read_state(const struct shown *shown, uint32_t lane, uint32_t rank,
                       struct kvw_lane_state *state)
{
    return kvw_state(shown->cache, lane, rank, state) == 0;
}

/* -------------------------------------------------------------- in words ---------- */

static void print_head(const struct shown *shown)
{
    const struct kvw_message_stated *stated = &shown->stat.stated;
    char text[TEXT_BYTES], more[TEXT_BYTES];

    printf("name       %s (id %llu, %s)\n", stated->name,
           (unsigned long long)stated->cache, shown->stat.uuid);
    printf("bytes      %s, of which rows %s\n", text_bytes(text, stated->total_bytes),
           text_bytes(more, stated->data_bytes));
    parts_print(&shown->stat.geometry);
    printf("lanes      %u\n", shown->spec.n_lanes);
    printf("attached   %u; %u of %u ranks owned\n", stated->n_attachments,
           stated->n_owned, shown->spec.n_ranks);
    printf("lifetime   %s, made %s ago",
           text_lifetime(text, stated->lifetime, stated->ttl_seconds),
           text_age(more, stated->created_ns));
    printf(", used %s%s\n", text_age(text, stated->used_ns),
           stated->used_ns != 0 ? " ago" : "");
    printf("checksums  %s\n", shown->spec.has_checksums ? "yes" : "no");
    printf("owner      %s, mode %04o\n", text_user(text, stated->uid), stated->mode);
    printf("pages      %s, %s of them huge, %s of padding\n",
           spec_name_pages(stated->pages), text_bytes(text, stated->huge_bytes),
           text_bytes(more, stated->padding_bytes));
    if (stated->note[0] != 0)
        printf("note       %s\n", stated->note);
    printf("placement  %s, %llu pages misplaced (--numa counts them)\n\n",
           placement_policy_name(stated->placement),
           (unsigned long long)stated->misplaced_pages);
}

static void print_groups(const struct shown *shown)
{
    struct table table;
    char text[TEXT_BYTES];

    table_init(&table,
               "GROUP|>LAYERS|>HEADS|>WINDOW|>SINK|>CHUNK|>KEEP|>SLACK|POLICY|KIND|"
               "POSITIONS|CONTIGUOUS|>ROWS|>A LAYER|>ALL");
    for (uint32_t g = 0; g < shown->spec.n_groups; g++) {
        const struct kvw_spec_group *group = &shown->spec.group[g];
        table_add(&table, "%s", group->name);
        table_add(&table, "%u", group->n_layers);
        table_add(&table, "%u", group->n_heads);
        table_add(&table, "%llu", (unsigned long long)group->window_rows);
        table_add(&table, "%llu", (unsigned long long)group->sink_rows);
        table_add(&table, "%llu", (unsigned long long)group->chunk_rows_max);
        table_add(&table, "%llu", (unsigned long long)group->keep_rows);
        table_add(&table, "%u", group->slack_chunks);
        table_add(&table, "%s", spec_name_policy(group->policy));
        table_add(&table, "%s", spec_name_kind(group->window_kind));
        table_add(&table, "%s", spec_name_positions(group->positions));
        table_add(&table, "%s", group->is_contiguous ? "yes" : "no");
        table_add(&table, "%llu",
                  (unsigned long long)geometry_rows(&shown->stat.geometry, g));
        table_add(&table, "%s", text_bytes(text, shown->bytes.layer_bytes[g]));
        table_add(&table, "%s", text_bytes(text, shown->bytes.group_bytes[g]));
    }
    table_print(&table);
    table_fini(&table);
    table_init(&table, "GROUP|PLANE|TYPE|>ELEMS|KEYS ARE");
    for (uint32_t g = 0; g < shown->spec.n_groups; g++) {
        for (uint32_t p = 0; p < shown->spec.group[g].n_planes; p++) {
            const struct kvw_spec_plane *plane = &shown->spec.group[g].plane[p];
            table_add(&table, "%s", shown->spec.group[g].name);
            table_add(&table, "%s", plane->name);
            table_add(&table, "%s", spec_name_type(plane->type));
            table_add(&table, "%u", plane->elems);
            table_add(&table, "%s", plane->is_rotated ? "rotated" : "-");
        }
    }
    printf("\n");
    table_print(&table);
    table_fini(&table);
}

static void print_ranks(const struct shown *shown)
{
    printf("\n");
    parts_print_ranks(&shown->stat.geometry);
}

static void print_lanes(const struct shown *shown)
{
    struct kvw_lane_state state;
    struct table table;

    if (shown->cache == NULL) {
        printf("\nlanes %s\n", shown->reason);
        return;
    }
    table_init(&table,
               "LANE|>RANK|OWNED|>STEP|GROUP|>ROWS|>OPEN|>FIRST|>GENERATION|>EPOCH");
    for (uint32_t lane = 0; lane < shown->spec.n_lanes; lane++) {
        for (uint32_t rank = 0; rank < shown->spec.n_ranks; rank++) {
            if (!read_state(shown, lane, rank, &state))
                continue;
            for (uint32_t g = 0; g < state.n_groups; g++) {
                table_add(&table, "%u", lane);
                table_add(&table, "%u", rank);
                table_add(&table, "%s", state.is_owned ? "yes" : "no");
                table_add(&table, "%llu", (unsigned long long)state.step);
                table_add(&table, "%s", shown->spec.group[g].name);
                table_add(&table, "%llu", (unsigned long long)state.group[g].rows);
                table_add(&table, "%llu", (unsigned long long)state.group[g].open);
                table_add(&table, "%llu", (unsigned long long)state.group[g].first);
                table_add(&table, "%llu",
                          (unsigned long long)state.group[g].generation);
                table_add(&table, "%llu", (unsigned long long)state.group[g].epoch);
            }
        }
    }
    printf("\n");
    table_print(&table);
    table_fini(&table);
}

/* --------------------------------------------------------------- as JSON ---------- */

static json_t *planes_json(const struct kvw_spec_group *group)
{
    json_t *planes = json_array();

    for (uint32_t p = 0; p < group->n_planes; p++)
        json_array_append_new(
            planes, json_pack("{s:s, s:s, s:i, s:b}", "name", group->plane[p].name,
                              "type", spec_name_type(group->plane[p].type), "elems",
                              (int)group->plane[p].elems, "rotated",
                              (int)(group->plane[p].is_rotated != 0)));
    return planes;
}

static json_t *groups_json(const struct shown *shown)
{
    json_t *groups = json_array();

    for (uint32_t g = 0; g < shown->spec.n_groups; g++) {
        const struct kvw_spec_group *group = &shown->spec.group[g];
        json_array_append_new(
            groups,
            json_pack(
                "{s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:i, s:s, s:s, s:s, s:b, s:I, "
                "s:I, "
                "s:I, s:o}",
                "name", group->name, "layers", (int)group->n_layers, "heads",
                (int)group->n_heads, "window_rows", (json_int_t)group->window_rows,
                "sink_rows", (json_int_t)group->sink_rows, "chunk_rows_max",
                (json_int_t)group->chunk_rows_max, "keep_rows",
                (json_int_t)group->keep_rows, "slack_chunks", (int)group->slack_chunks,
                "policy", spec_name_policy(group->policy), "kind",
                spec_name_kind(group->window_kind), "positions",
                spec_name_positions(group->positions), "contiguous",
                (int)group->is_contiguous, "rows",
                (json_int_t)geometry_rows(&shown->stat.geometry, g), "layer_bytes",
                (json_int_t)shown->bytes.layer_bytes[g], "bytes",
                (json_int_t)shown->bytes.group_bytes[g], "planes", planes_json(group)));
    }
    return groups;
}

static json_t *state_json(const struct shown *shown, const struct kvw_lane_state *state,
                          uint32_t lane, uint32_t rank)
{
    json_t *groups = json_array();

    for (uint32_t g = 0; g < state->n_groups; g++) {
        const struct kvw_group_state *group = &state->group[g];
        char epoch[TEXT_BYTES]; /* any 64 bits: no JSON number has them all */
        snprintf(epoch, sizeof epoch, "%llu", (unsigned long long)group->epoch);
        json_array_append_new(
            groups,
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:s}", "name",
                      shown->spec.group[g].name, "rows", (json_int_t)group->rows,
                      "open", (json_int_t)group->open, "first",
                      (json_int_t)group->first, "evicted", (json_int_t)group->evicted,
                      "generation", (json_int_t)group->generation, "epoch", epoch));
    }
    return json_pack("{s:i, s:i, s:b, s:I, s:I, s:o}", "lane", (int)lane, "rank",
                     (int)rank, "owned", (int)state->is_owned, "step",
                     (json_int_t)state->step, "era", (json_int_t)state->era, "groups",
                     groups);
}

static json_t *shown_json(const struct shown *shown)
{
    json_t *value = stat_json(&shown->stat);
    json_t *lanes = shown->cache != NULL ? json_array() : json_null();
    struct kvw_lane_state state;

    json_object_set_new(value, "parts", parts_json(&shown->stat.geometry));
    json_object_set_new(value, "groups", groups_json(shown));
    json_object_set_new(value, "rank_parts", parts_ranks_json(&shown->stat.geometry));
    for (uint32_t lane = 0; shown->cache != NULL && lane < shown->spec.n_lanes;
         lane++) {
        for (uint32_t rank = 0; rank < shown->spec.n_ranks; rank++) {
            if (read_state(shown, lane, rank, &state))
                json_array_append_new(lanes, state_json(shown, &state, lane, rank));
        }
    }
    json_object_set_new(value, "states", lanes);
    if (shown->cache == NULL)
        json_object_set_new(value, "states_text", json_string(shown->reason));
    return value;
}

/* ------------------------------------------------------------------ show ---------- */

int command_show(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {{"numa", no_argument, NULL, 'N'},
                                            CLI_OPTIONS};
    struct shown shown = {0};
    char name[KVW_NAME_MAX + 1];
    bool is_numa = false;
    int option;

    while ((option = cli_option(cli, argc, argv, ":h", options)) == 'N')
        is_numa = true;
    if (option != CLI_END)
        return cli_option_exit(option);
    if (argc - optind != 1)
        return cli_usage(cli, "show: one name; see kvwheel ls");
    if (!cli_name(cli, argv[optind], name))
        return CLI_USAGE;
    int result = cli_connect(cli);
    if (result != CLI_OK)
        return result;
    if (is_numa)
        return numa_show(cli, name);
    result = read_cache(cli, name, &shown);
    if (result < 0)
        return cli_fail(cli, result);
    if (cli->is_json) {
        output_json(shown_json(&shown));
    } else {
        print_head(&shown);
        print_groups(&shown);
        print_ranks(&shown);
        print_lanes(&shown);
    }
    kvw_detach(shown.cache);
    return CLI_OK;
}
