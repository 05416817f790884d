/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeper and daemon were killed together. A worker that lives offers the segments that
 * it has mapped, and they are adopted as the cache that they were. The worker's word
 * proves little: PROTOCOL.md, "Offers", says what is checked and what is believed.
 */
#ifndef KVW_DAEMON_OFFER_H
#define KVW_DAEMON_OFFER_H

#include "daemon/client.h"
#include "daemon/daemon.h"

/** OFFER; takes descriptors of the client's message. @return 0 or a negative errno. */
KVW_NODISCARD int offer_serve(struct daemon *daemon, struct client *client,
                              const struct kvw_message *request, struct reply *reply,
                              struct kvw_refusal *refusal);

#endif
