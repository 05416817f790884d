/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's NUMA nodes as hwloc finds them, and what each can give. $HWLOC_SYNTHETIC and
 * $HWLOC_XMLFILE put another machine in its place, for plans; nothing is bound there.
 */
#ifndef KVW_DAEMON_TOPOLOGY_H
#define KVW_DAEMON_TOPOLOGY_H

#include "proto/placement.h"

struct topology {
    bool is_this_system; /* false: made up, what a node can give is all it has */
    struct kvw_topology nodes;
    char left_out[160]; /* what this process may not use, in words; "" = nothing */
    char words[256];    /* the machine in words, for status */
};

/** Look at the host. @return 0; -ENOMEM; -ENODEV (hwloc finds no node with memory). */
KVW_NODISCARD int topology_load(struct topology *topology);

/** Ask the kernel again what each node can give; after topology_load(). */
void topology_refresh(struct topology *topology);

/** Pages of 2 MiB that are free in a node's pool; of all nodes' with UINT32_MAX. */
uint64_t topology_huge_free(uint32_t number);

#endif
