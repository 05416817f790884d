/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NUMA nodes as far as the daemon may use them, and what a cache is to lie on. A host that
 * forbids to say so is served all the same: placement degrades, and tells.
 */
#ifndef KVW_DAEMON_PLACEMENT_H
#define KVW_DAEMON_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/pages.h"
#include "daemon/topology.h"
#include "proto/base/check.h"
#include "proto/layout.h"
#include "proto/placement.h"

struct cache_meta;
struct daemon;

struct placement {
    struct topology topology; /* at least one node; made up, if it is not known */
    struct pages_rights rights;
    bool can_bind; /* there are several nodes, and they can be bound to */
    bool can_ask;
    bool can_move;
    char degraded[256]; /* what this host does not permit; "" when all is well */
    char words[384];    /* the machine, and what can be done with it */
};

/** Look at the host and try what it permits. NULL when there is no memory for it. */
struct placement *placement_open(void);

struct placement *placement_close(struct placement *placement);

/** The daemon's, opened when it is needed first; NULL when there is no memory for it. */
struct placement *placement_of(struct daemon *daemon);

/**
 * Decide on what a cache's data is to lie: pages (meta->wish.pages, with meta->note for what
 * it does not get), and the node of each part.
 *
 * @return 0 with a plan to be freed; -errno with `refusal`: as placement_plan().
 */
KVW_NODISCARD int placement_choose(struct daemon *daemon, struct cache_meta *meta,
                                   const struct kvw_layout *layout,
                                   struct kvw_plan **plan, struct kvw_refusal *refusal);

/** What this host does not permit, in words; "" when all is well, or not yet known. */
const char *placement_degraded(const struct placement *placement);

/** True if this host has more than one NUMA node: a cheap look. */
bool placement_is_worthwhile(void);

#endif
