/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caches that came back by an offer (offer.h), and those of their attachments that have
 * not come back with them. Nobody has a pidfd of these: what is known of them is what
 * the control segment says, which their own workers can write. So:
 *
 *   a rank     whose seat is owned is awaited, and given to nobody, while there is a
 *              process with the seat's pid; a pid that we cannot see (0) is awaited for
 *              ever
 *   a slot     of pins that was used is never given to somebody else
 *   a pin      in a slot that nobody came back for vanishes when it is a minute old; a
 *              reader that lives learns it at release, if rows of it were overwritten
 */
#ifndef KVW_DAEMON_AWAIT_H
#define KVW_DAEMON_AWAIT_H

#include "daemon/daemon.h"

/** Write into a cache's header what an adopter of an offer will need to know. */
void await_describe(const struct cache *cache);

/** True if this rank's owner may live and come back. Frees the seat if it is dead. */
bool await_is_rank(const struct cache *cache, uint32_t rank);

/** True if any rank's may. */
bool await_is_any(const struct cache *cache);

/** Free what the dead held. @return when to look again, or NEVER_NS. */
uint64_t await_sweep(struct daemon *daemon, uint64_t now_ns);

#endif
