/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creations: refused in words, or allocated slice by slice while the loop goes on. One
 * that nobody waits for any more is rolled back. Nothing is left behind by one that
 * fails.
 */
#ifndef KVW_DAEMON_CREATE_H
#define KVW_DAEMON_CREATE_H

#include "daemon/client.h"
#include "daemon/crew.h"
#include "daemon/daemon.h"

/** CREATE. @return 0 (it was there already), SERVE_LATER, or a negative errno. */
KVW_NODISCARD int create_serve(struct daemon *daemon, struct client *client,
                               const struct kvw_message *request, struct reply *reply,
                               struct kvw_refusal *refusal);

/** A slice is allocated, or has failed. */
void create_allocated(struct daemon *daemon, const struct ring_event *event);

/** The crew has allocated so much of a cache's data; or has ended. */
void create_progress(struct daemon *daemon, struct cache *cache, uint64_t data_bytes);
void create_filled(struct daemon *daemon, struct cache *cache,
                   const struct crew_job *job);

/** A client that waited for a creation is gone. */
void create_abandoned(struct daemon *daemon, const struct client *client);

#endif
