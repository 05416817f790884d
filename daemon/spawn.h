/* SPDX-License-Identifier: Apache-2.0 */
/* Start the other process of the pair, and wait longer when it keeps dying. */
#ifndef KVW_DAEMON_SPAWN_H
#define KVW_DAEMON_SPAWN_H

#include <stdint.h>

#include "daemon/options.h"

struct spawned {
    int socket; /* our end of the pair */
    int pidfd;
    uint32_t pid;
};

/**
 * Start this program in another role, connected by a socket pair.
 *
 * @param role        ROLE_SERVE or ROLE_KEEP.
 * @param n_restarts  Told to the new process.
 * @param daemon_fd   For ROLE_KEEP: a pidfd of the daemon; else -1.
 * @return 0 or -errno.
 */
KVW_NODISCARD int spawn_role(const struct options *options, enum role role,
                             uint32_t n_restarts, int daemon_fd,
                             struct spawned *spawned);

/**
 * Reap a dead process that this one started.
 *
 * @return its signal number, or minus its exit code; 0 when it is not our child.
 */
int spawn_reap(int pidfd);

/* Starts within the last seconds. Zeroed = none. */
struct backoff {
    uint64_t last_ns;
    uint32_t n_recent;
};

/** Note a start now. @return nanoseconds to wait before it. */
uint64_t backoff_delay_ns(struct backoff *backoff, uint64_t now_ns);

#endif
