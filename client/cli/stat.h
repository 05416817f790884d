/* SPDX-License-Identifier: Apache-2.0 */
/* Asking for caches and attachments one by one, as ls, show and who do. */
#ifndef KVW_CLIENT_CLI_STAT_H
#define KVW_CLIENT_CLI_STAT_H

#include <jansson.h>

#include "client/cli/cli.h"
#include "proto/geometry.h"

/* A cache as the daemon describes it, its geometry checked. */
struct stat_cache {
    struct kvw_message_stated stated; /* without the bytes fields */
    struct kvw_geometry geometry;
    char uuid[33];
};

/** The cache `name`. @return 0; -ENOENT and other refusals; -EPROTO. */
KVW_NODISCARD int stat_name(const struct cli *cli, const char *name,
                            struct stat_cache *cache);

/** The first cache with an id greater than `after`. @return 1, 0 (none), or as above.
 */
KVW_NODISCARD int stat_next(const struct cli *cli, uint64_t after,
                            struct stat_cache *cache);

/** The first attachment with an id greater than `after`, of a cache (0: of any).
 *  @return 1, 0 (none), or as above. */
KVW_NODISCARD int stat_who(const struct cli *cli, uint64_t cache, uint64_t after,
                           struct kvw_message_who_is *who);

/** True if to attach to the cache for a moment would be its end: its lifetime is job, and
 * nobody is attached. */
bool stat_ends_with_a_look(const struct stat_cache *cache);

/** What ls and show have in common. */
json_t *stat_json(const struct stat_cache *cache);

#endif
