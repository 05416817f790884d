/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One daemon follows another. A new program whose layout is not that of the kept caches
 * adopts nothing, in words. Where there is a program to go back to, it ends and lets
 * that one serve; else it holds: it leaves everything in the store, and answers requests
 * with those words until the right program is installed again.
 */
#ifndef KVW_DAEMON_RESTART_H
#define KVW_DAEMON_RESTART_H

#include "daemon/client.h"
#include "daemon/daemon.h"
#include "daemon/store.h"

/** RESTART. @return 0 or a negative errno. */
KVW_NODISCARD int restart_serve(struct daemon *daemon, struct client *client,
                                const struct kvw_message *request, struct reply *reply,
                                struct kvw_refusal *refusal);

/** STATUS, with what a restart left behind. */
KVW_NODISCARD int restart_status(struct daemon *daemon, struct client *client,
                                 const struct kvw_message *request, struct reply *reply,
                                 struct kvw_refusal *refusal);

/** Whether a daemon that holds may serve this request. @return 0, or -EPROTO or -EBUSY
 * in words. */
KVW_NODISCARD int restart_permits(const struct daemon *daemon,
                                  const struct kvw_message *request,
                                  struct kvw_refusal *refusal);

/**
 * Judge what the store gave: may it be adopted?
 *
 * @return 0: adopt it, or, with daemon->is_holding, leave it where it is. -EPROTO: end,
 * the program before this one goes on. Another -errno: it cannot be told now.
 */
KVW_NODISCARD int restart_judge(struct daemon *daemon, struct store_entry *entries);

/** Everything is adopted: keep whose layout it has. @return 0 or -errno. */
KVW_NODISCARD int restart_adopted(struct daemon *daemon);

#endif
