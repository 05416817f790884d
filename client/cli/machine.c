/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of `kvwheeld --topology`, with tabs between their fields. */
#include "client/cli/machine.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/program.h"
#include "client/start.h"
#include "proto/base/cleanup.h"

#define FIELDS_MAX 9

static bool parse_machine(char **field, struct machine *machine)
{
    machine->is_this_system = strcmp(field[1], "1") == 0;
    snprintf(machine->words, sizeof machine->words, "%s", field[2]);
    snprintf(machine->left_out, sizeof machine->left_out, "%s", field[3]);
    return true;
}

static bool parse_node(char **field, struct machine *machine)
{
    const uint32_t i = machine->nodes.n_nodes;
    struct kvw_topology_node *node = &machine->nodes.node[i];
    uint64_t number[3];
    uint64_t distance;
    uint32_t n = 0;

    for (int f = 0; f < 3; f++) {
        if (!cli_number(field[1 + f], UINT32_MAX, &number[f]))
            return false;
    }
    if (i == KVW_NODES_MAX || !cli_number(field[4], UINT64_MAX, &node->total_bytes) ||
        !cli_number(field[5], UINT64_MAX, &node->give_bytes) ||
        !cli_number(field[6], UINT64_MAX, &machine->n_huge[i]))
        return false;
    node->number = (uint32_t)number[0];
    node->package = (uint32_t)number[1];
    node->n_cpus = (uint32_t)number[2];
    snprintf(node->cpus, sizeof node->cpus, "%s", field[7]);
    for (char *item = strsep(&field[8], " "); item != NULL && n < KVW_NODES_MAX;
         item = strsep(&field[8], " ")) {
        if (!cli_number(item, UINT16_MAX, &distance))
            return false;
        node->distance[n++] = (uint16_t)distance;
    }
    machine->nodes.n_nodes++;
    return true;
}

static bool parse_line(char *line, struct machine *machine)
{
    char *field[FIELDS_MAX] = {NULL};
    int n = 0;

    while (n < FIELDS_MAX && (field[n] = strsep(&line, "\t")) != NULL)
        n++;
    if (n == 4 && strcmp(field[0], "machine") == 0)
        return parse_machine(field, machine);
    return n == FIELDS_MAX && strcmp(field[0], "node") == 0 &&
           parse_node(field, machine);
}

int machine_load(struct machine *machine)
{
    KVW_CLEANUP(kvw_free_cleanup)
    char *text = malloc(PROGRAM_OUTPUT_BYTES);
    char program[PATH_MAX];

    memset(machine, 0, sizeof *machine);
    if (text == NULL)
        return fail(-ENOMEM, "no memory");
    int error = start_find(program);
    if (error < 0)
        return error;
    error = program_ask(program, "--topology", text);
    if (error != 0)
        return fail(error, "%s --topology: %s", program, kvw_strerror(error));
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        char words[200];
        snprintf(words, sizeof words, "%s", line);
        if (line[0] != 0 && !parse_line(line, machine))
            return fail(-EPROTO, "%s --topology says: %s", program, words);
    }
    if (machine->nodes.n_nodes == 0)
        return fail(-EPROTO, "%s --topology names no node", program);
    return 0;
}

json_t *machine_node_json(const struct machine *machine, uint32_t node)
{
    const struct kvw_topology_node *of = &machine->nodes.node[node];
    json_t *distances = json_array();

    for (uint32_t i = 0; i < machine->nodes.n_nodes; i++)
        json_array_append_new(distances, json_integer(of->distance[i]));
    return json_pack("{s:i, s:i, s:s, s:I, s:I, s:o}", "node", (int)of->number,
                     "package", (int)of->package, "cpus", of->cpus, "total_bytes",
                     (json_int_t)of->total_bytes, "give_bytes",
                     (json_int_t)of->give_bytes, "distances", distances);
}
