/* SPDX-License-Identifier: Apache-2.0 */
/* Whether an offer of segments that nobody has yet may become a cache again. */
#ifndef KVW_DAEMON_OFFER_JUDGE_H
#define KVW_DAEMON_OFFER_JUDGE_H

#include "daemon/client.h"
#include "daemon/daemon.h"

/**
 * Check three descriptors from a client, and adopt the cache that they are.
 *
 * @return 0 with a cache that is ready and kept; else a negative errno in words, and
 * nothing has changed. Descriptors that were taken are -1 in client->fds.
 */
KVW_NODISCARD int offer_judge(struct daemon *daemon, struct client *client,
                              struct cache **cache, struct kvw_refusal *refusal);

#endif
