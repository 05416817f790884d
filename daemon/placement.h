/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NUMA node the pages of a data segment lie on. A host that forbids to say so is
 * served all the same: placement degrades, and tells.
 */
#ifndef KVW_DAEMON_PLACEMENT_H
#define KVW_DAEMON_PLACEMENT_H

#include <stdint.h>

#include "proto/base/check.h"
#include "proto/layout.h"

struct placement;

/** Look at the host, at the first cache. NULL when there is no memory for it. */
struct placement *placement_open(void);

/** Try whether memory can be bound to each node. @return nodes with memory. */
uint32_t placement_try(struct placement *placement);

struct placement *placement_close(struct placement *placement);

/**
 * Deal whole layers evenly to the NUMA nodes that have memory. Before anything is
 * allocated: later the pages lie where they lie.
 */
void placement_spread(struct placement *placement, int data_fd,
                      const struct kvw_geometry *geometry,
                      const struct kvw_layout *layout);

/** Estimate, from a sample of each layer, the pages that lie on another node than
 * asked. */
uint64_t placement_misplaced(struct placement *placement, int data_fd,
                             const struct kvw_geometry *geometry,
                             const struct kvw_layout *layout);

/** What this host does not permit, in words; "" when all is well. */
const char *placement_degraded(const struct placement *placement);

#endif
