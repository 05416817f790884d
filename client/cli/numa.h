/* SPDX-License-Identifier: Apache-2.0 */
/* Where the pages of ranks lie, as the daemon and the kernel say. */
#ifndef KVW_CLIENT_CLI_NUMA_H
#define KVW_CLIENT_CLI_NUMA_H

#include "client/cli/cli.h"
#include "proto/limits.h"

/* Pages of 4 KiB by node. */
struct numa_nodes {
    uint32_t n;
    uint32_t number[KVW_NODES_MAX];
    uint64_t n_pages[KVW_NODES_MAX];
};

struct numa_rank {
    uint32_t rank;
    uint32_t node; /* all ones: several */
    uint64_t n_pages;
    uint64_t n_misplaced;
    uint64_t n_unknown;
    struct numa_nodes wanted;
    struct numa_nodes found;
    char why[256];
};

/** Ask for a rank of a cache; with counts, if is_counted. @return as client_call(). */
KVW_NODISCARD int numa_ask(const struct cli *cli, const char *name, uint32_t rank,
                           bool is_counted, struct numa_rank *answer);

/** kvwheel show --numa. @return an exit code. */
int numa_show(struct cli *cli, const char *name);

#endif
