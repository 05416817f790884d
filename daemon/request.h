/* SPDX-License-Identifier: Apache-2.0 */
/* What a client can ask for. */
#ifndef KVW_DAEMON_REQUEST_H
#define KVW_DAEMON_REQUEST_H

#include "daemon/client.h"
#include "daemon/daemon.h"

#define SERVE_LATER 1 /* the answer comes when something has happened */

/** Serve a decoded request: answer, refuse, or remember it. */
void request_serve(struct daemon *daemon, struct client *client,
                   const struct kvw_message *request);

/* Look, in report.c. Each returns 0 with the reply filled in, or refuses. */
KVW_NODISCARD int report_stat(struct daemon *daemon, struct client *client,
                              const struct kvw_message *request, struct reply *reply,
                              struct kvw_refusal *refusal);
KVW_NODISCARD int report_who(struct daemon *daemon, struct client *client,
                             const struct kvw_message *request, struct reply *reply,
                             struct kvw_refusal *refusal);
/** Look at the host's memory, for status to tell. What it was before stays where that fails:
 *  where no descriptor is left, status is what one asks. */
void report_look(struct daemon *daemon);
KVW_NODISCARD int report_status(struct daemon *daemon, struct client *client,
                                const struct kvw_message *request, struct reply *reply,
                                struct kvw_refusal *refusal);

/* Order, in admin.c. */
KVW_NODISCARD int admin_remove(struct daemon *daemon, struct client *client,
                               const struct kvw_message *request, struct reply *reply,
                               struct kvw_refusal *refusal);
KVW_NODISCARD int admin_kick(struct daemon *daemon, struct client *client,
                             const struct kvw_message *request, struct reply *reply,
                             struct kvw_refusal *refusal);
KVW_NODISCARD int admin_gc(struct daemon *daemon, struct client *client,
                           const struct kvw_message *request, struct reply *reply,
                           struct kvw_refusal *refusal);
KVW_NODISCARD int admin_shutdown(struct daemon *daemon, struct client *client,
                                 const struct kvw_message *request, struct reply *reply,
                                 struct kvw_refusal *refusal);

#endif
