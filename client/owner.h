/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An attach that waits for the end of whoever holds the rank. The kernel says when: the
 * process is watched by a pidfd of our own, and the daemon, which watches it as well, has
 * the last word.
 */
#ifndef KVW_CLIENT_OWNER_H
#define KVW_CLIENT_OWNER_H

#include "client/client.h"

/**
 * client_call() of an attach; asked again, while it is refused with EBUSY, whenever the
 * process that the refusal names has ended, and once more when the time is over.
 *
 * @param timeout_ns  0 = ask once; KVW_NO_TIMEOUT = no deadline.
 * @param fds         [out] three descriptors, owned by the caller.
 * @return as client_call(); -EBUSY at once for a process that cannot be watched: one of
 *         another PID namespace, or without a descriptor for it.
 */
KVW_NODISCARD int owner_attach(struct kvw_client *client, struct kvw_message *request,
                               struct kvw_message *answer, int fds[3],
                               uint64_t timeout_ns);

#endif
