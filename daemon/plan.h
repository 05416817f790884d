/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a cache that another daemon made: found in the kernel's policies. */
#ifndef KVW_DAEMON_PLAN_H
#define KVW_DAEMON_PLAN_H

#include "daemon/daemon.h"

/** Find the plan of an adopted cache. The daemon knows its nodes. @return 0, with
 * cache->plan; -ENOMEM, or as placement_plan(). */
KVW_NODISCARD int plan_read(const struct daemon *daemon, struct cache *cache);

/** True if a rank has rows of a layer. */
bool plan_holds(const struct kvw_geometry *geometry, uint32_t layer, uint32_t rank);

#endif
