/* SPDX-License-Identifier: Apache-2.0 */
/* What happens once, before anything else: directory, single-instance lock, socket. */
#ifndef KVW_DAEMON_START_H
#define KVW_DAEMON_START_H

#include "daemon/options.h"

/**
 * Take the lock beside the socket's path, and listen on the path.
 *
 * A killed io_uring process can hold its lock for some milliseconds, so that a taken
 * lock is tried again for two seconds. Only a stale socket is replaced at the path.
 *
 * @return 0 with two owned descriptors; else an enum exit_code, with `refusal` in
 * words.
 */
KVW_NODISCARD int start_up(const struct options *options, int *listen_fd, int *lock_fd,
                           struct kvw_refusal *refusal);

#endif
