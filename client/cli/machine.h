/* SPDX-License-Identifier: Apache-2.0 */
/* The NUMA nodes of this machine, or of that which hwloc's variables put in its place. */
#ifndef KVW_CLIENT_CLI_MACHINE_H
#define KVW_CLIENT_CLI_MACHINE_H

#include <jansson.h>

#include "client/cli/cli.h"
#include "proto/placement.h"

struct machine {
    bool is_this_system;
    char words[256];    /* in a line */
    char left_out[160]; /* what may not be used; "" = nothing */
    struct kvw_topology nodes;
    uint64_t n_huge[KVW_NODES_MAX]; /* free pages of 2 MiB */
};

/** Ask kvwheeld. @return 0; -ENOEXEC (there is no kvwheeld), -EPROTO (in words). */
KVW_NODISCARD int machine_load(struct machine *machine);

/** What is known of a node, by index: number, package, CPUs, bytes, distances. */
json_t *machine_node_json(const struct machine *machine, uint32_t node);

#endif
