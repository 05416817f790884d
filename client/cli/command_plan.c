/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel plan: the nodes of a cache's parts, by the function that the daemon uses. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cli.h"
#include "client/cli/machine.h"
#include "client/cli/output.h"
#include "client/cli/spec_flags.h"
#include "client/spec.h"
#include "proto/base/cleanup.h"
#include "proto/partition.h"

/* A cache on a machine. */
struct planned {
    struct kvw_spec spec;
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    struct machine machine;
    struct kvw_plan plan;
    uint64_t node_bytes[KVW_NODES_MAX]; /* of all ranks */
};

/* Layers of a rank in a group that follow each other, on one node for one reason. */
struct run {
    uint32_t begin; /* layers */
    uint32_t end;
    uint32_t node; /* index, or KVW_NODE_TURNS */
    uint32_t why;
};

static bool next_run(const struct planned *planned, uint32_t rank,
                     struct kvw_interval layers, struct run *run)
{
    const struct kvw_plan *plan = &planned->plan;
    const uint32_t begin = run->end;

    if (begin >= layers.end)
        return false;
    *run = (struct run){begin, begin + 1, plan->node[begin * plan->n_ranks + rank],
                        plan->why[begin * plan->n_ranks + rank]};
    while (run->end < layers.end &&
           plan->node[run->end * plan->n_ranks + rank] == run->node &&
           plan->why[run->end * plan->n_ranks + rank] == run->why)
        run->end++;
    return true;
}

/* "2", or "0, 1, 2" of turns. */
static void name_nodes(const struct planned *planned, uint32_t node, char *text,
                       size_t text_bytes)
{
    const struct kvw_plan *plan = &planned->plan;
    const struct kvw_topology *nodes = &planned->machine.nodes;
    size_t length = 0;

    if (node != KVW_NODE_TURNS) {
        snprintf(text, text_bytes, "%u", nodes->node[node].number);
        return;
    }
    for (uint32_t i = 0; i < plan->n_turns && length + 16 < text_bytes; i++)
        length +=
            (size_t)snprintf(text + length, text_bytes - length, "%s%u",
                             i > 0 ? ", " : "", nodes->node[plan->turn[i]].number);
}

/* -------------------------------------------------------------- in words ---------- */

static void print_parts(const struct planned *planned)
{
    const struct kvw_geometry *geometry = &planned->geometry;
    struct table table;
    char nodes[TEXT_BYTES];

    table_init(&table, ">RANK|GROUP|HEADS|LAYERS|NODE|WHY");
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        for (uint32_t g = 0; g < geometry->n_groups; g++) {
            const struct kvw_interval heads = partition_heads(geometry, g, rank);
            const struct kvw_interval layers = partition_layers(geometry, g, rank);
            const uint32_t first = geometry->group[g].layer_first;
            struct run run = {.end = layers.begin};
            while (heads.begin < heads.end && next_run(planned, rank, layers, &run)) {
                name_nodes(planned, run.node, nodes, sizeof nodes);
                table_add(&table, "%u", rank);
                table_add(&table, "%s", geometry->group[g].name);
                table_add(&table, "%u-%u", heads.begin, heads.end - 1);
                table_add(&table, "%u-%u", run.begin - first, run.end - 1 - first);
                table_add(&table, "%s", nodes);
                table_add(&table, "%s", placement_why_text(run.why));
            }
        }
    }
    table_print(&table);
    table_fini(&table);
}

static void print_nodes(const struct planned *planned)
{
    const struct kvw_topology *nodes = &planned->machine.nodes;
    struct table table;
    char text[TEXT_BYTES];

    table_init(&table, ">NODE|>PACKAGE|CPUS|>MEMORY|>CAN GIVE|>OF THIS CACHE");
    for (uint32_t i = 0; i < nodes->n_nodes; i++) {
        const struct kvw_topology_node *node = &nodes->node[i];
        table_add(&table, "%u", node->number);
        table_add(&table, "%u", node->package);
        table_add(&table, "%s", node->n_cpus > 0 ? node->cpus : "none");
        table_add(&table, "%s", text_bytes(text, node->total_bytes));
        table_add(&table, "%s", text_bytes(text, node->give_bytes));
        table_add(&table, "%s", text_bytes(text, planned->node_bytes[i]));
    }
    table_print(&table);
    table_fini(&table);
}

static void print_plan(const struct planned *planned)
{
    const struct machine *machine = &planned->machine;

    printf("machine    %s%s\n", machine->words,
           machine->is_this_system ? "" : " (made up, by hwloc's variables)");
    if (machine->left_out[0] != 0)
        printf("           %s\n", machine->left_out);
    printf("placement  %s, pages %s\n\n", placement_policy_name(planned->plan.policy),
           spec_name_pages(planned->spec.pages));
    print_parts(planned);
    printf("\n");
    print_nodes(planned);
}

/* --------------------------------------------------------------- as JSON ---------- */

static json_t *parts_of_plan_json(const struct planned *planned)
{
    const struct kvw_geometry *geometry = &planned->geometry;
    const struct kvw_topology *nodes = &planned->machine.nodes;
    json_t *parts = json_array();

    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        for (uint32_t g = 0; g < geometry->n_groups; g++) {
            const struct kvw_interval heads = partition_heads(geometry, g, rank);
            const struct kvw_interval layers = partition_layers(geometry, g, rank);
            struct run run = {.end = layers.begin};
            while (heads.begin < heads.end && next_run(planned, rank, layers, &run)) {
                json_t *node = run.node == KVW_NODE_TURNS
                                   ? json_null()
                                   : json_integer(nodes->node[run.node].number);
                json_array_append_new(
                    parts,
                    json_pack("{s:i, s:s, s:i, s:i, s:i, s:i, s:o, s:s}", "rank",
                              (int)rank, "group", geometry->group[g].name, "head_first",
                              (int)heads.begin, "heads", (int)(heads.end - heads.begin),
                              "layer_first", (int)run.begin, "layers",
                              (int)(run.end - run.begin), "node", node, "why",
                              placement_why_text(run.why)));
            }
        }
    }
    return parts;
}

static json_t *nodes_of_plan_json(const struct planned *planned)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < planned->machine.nodes.n_nodes; i++) {
        json_t *node = machine_node_json(&planned->machine, i);
        json_object_set_new(node, "bytes",
                            json_integer((json_int_t)planned->node_bytes[i]));
        json_array_append_new(list, node);
    }
    return list;
}

static json_t *plan_json(const struct planned *planned)
{
    return json_pack("{s:s, s:b, s:s, s:s, s:s, s:I, s:I, s:o, s:o}", "machine",
                     planned->machine.words, "this_system",
                     (int)planned->machine.is_this_system, "left_out",
                     planned->machine.left_out, "placement",
                     placement_policy_name(planned->plan.policy), "pages",
                     spec_name_pages(planned->spec.pages), "data_bytes",
                     (json_int_t)planned->layout.data_bytes, "padding_bytes",
                     (json_int_t)planned->layout.padding_bytes, "parts",
                     parts_of_plan_json(planned), "nodes", nodes_of_plan_json(planned));
}

/* -------------------------------------------------------------- planning ---------- */

static int plan_spec(struct planned *planned)
{
    struct kvw_placement_range range = {0};
    struct kvw_placement_wish wish;
    struct kvw_refusal refusal;

    int error = spec_to_geometry(&planned->spec, &planned->geometry);
    if (error == 0)
        error = machine_load(&planned->machine);
    if (error != 0)
        return error;
    error = layout_of(&planned->geometry, &planned->layout, &refusal);
    spec_wish(&planned->spec, &wish);
    if (error == 0)
        error =
            placement_plan(&planned->geometry, &planned->layout,
                           &planned->machine.nodes, &wish, &planned->plan, &refusal);
    if (error != 0)
        return fail_numbers(error, refusal.need, refusal.have, refusal.text);
    while (placement_range(&planned->geometry, &planned->layout, &planned->plan,
                           range.end, UINT64_MAX / 2, false, &range))
        planned->node_bytes[range.node] += range.end - range.begin;
    return 0;
}

int command_plan(struct cli *cli, int argc, char **argv)
{
    KVW_CLEANUP(kvw_free_cleanup)
    struct planned *planned = calloc(1, sizeof *planned);

    if (planned == NULL)
        return cli_fail(cli, fail(-ENOMEM, "no memory"));
    int result = spec_flags_parse(cli, argc, argv, "plan", &planned->spec);
    if (result != CLI_OK)
        return result;
    result = plan_spec(planned);
    if (result < 0)
        return cli_fail_as(cli, result, CLI_FAILED);
    if (cli->is_json)
        output_json(plan_json(planned));
    else
        print_plan(planned);
    return CLI_OK;
}
