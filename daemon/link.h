/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon puts into its store, and under which names. What a client is told
 * exists is kept before it is told.
 */
#ifndef KVW_DAEMON_LINK_H
#define KVW_DAEMON_LINK_H

#include "daemon/daemon.h"
#include "daemon/store.h"

/** Keep a cache, removed or not, or an attachment. @return 0 or -errno (-EAGAIN: no
 * store, -ENFILE: it is full). */
KVW_NODISCARD int link_put_cache(struct daemon *daemon, const struct cache *cache);
KVW_NODISCARD int link_put_attachment(struct daemon *daemon,
                                      const struct attachment *attachment);

void link_drop_cache(struct daemon *daemon, const struct cache *cache);
void link_drop_attachment(struct daemon *daemon, const struct attachment *attachment);

/** The name of a cache's entry in its present state. */
void link_cache_name(const struct cache *cache, char name[KEPT_NAME_MAX + 1]);

/** Drop an entry by its name. */
void link_drop(struct daemon *daemon, const char *name);

/** A function that puts one entry: that of a store, or a part of it. */
typedef int link_put_fn(struct daemon *daemon, const char *name, const int *fds,
                        uint32_t n_fds);

/** Put everything that the daemon has into a store that has nothing: a cache after those
 * who are attached to it. @return 0, or the first error of `put`. */
KVW_NODISCARD int link_put_all(struct daemon *daemon, link_put_fn *put);

#endif
