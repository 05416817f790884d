/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Daemon and keeper were killed together: nobody but the processes that have a cache
 * mapped has it any more. The first of them to reconnect brings the cache back, the
 * others their places in it. What the daemon checks, and what it can only believe, is in
 * PROTOCOL.md, "Offers".
 */
#ifndef KVW_CLIENT_OFFER_H
#define KVW_CLIENT_OFFER_H

#include <stdbool.h>

#include "client/cache.h"
#include "proto/messages.h"

/** Say in a resume which cache is meant. */
void offer_identify(const struct kvw_cache *cache, struct kvw_message *resume);

/** Fill in an offer of a cache. @return false if there is nothing to offer. */
bool offer_request(const struct kvw_cache *cache, struct kvw_message *request);

/** What the daemon answered: the attachment has a new number, none, or waits. */
void offer_conclude(struct kvw_cache *cache, const struct kvw_message *answer);

/** wire_send() with three descriptors. @return as wire_send(). */
KVW_NODISCARD int offer_send(int socket, const struct kvw_message *message,
                             const int *segments, uint64_t deadline_ms);

#endif
