/* SPDX-License-Identifier: Apache-2.0 */
/* Who is at the other end of a connection, as a thing that tells us when it dies. */
#ifndef KVW_DAEMON_PEER_H
#define KVW_DAEMON_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/check.h"

struct peer {
    uint32_t uid;
    uint32_t gid;
    uint32_t pid; /* 0 when the process is in a PID namespace that we do not see */
    int pidfd;
    uint64_t key; /* the process among those that live; 0 = cannot be told */
};

/**
 * The process that connected.
 *
 * SO_PEERPIDFD where the kernel has it; else pidfd_open of the SO_PEERCRED pid, which
 * is believed only if the start time of that pid does not change meanwhile and the
 * connection is still up.
 *
 * @return 0 with an owned pidfd; -ESRCH (it is gone); another -errno.
 */
KVW_NODISCARD int peer_of(int socket, struct peer *peer);

/** A second, independently owned description of the same process. @return 0 or -errno.
 */
KVW_NODISCARD int peer_copy(const struct peer *from, struct peer *to);

void peer_close(struct peer *peer);

/** True once the process is dead. Its memory is not written by its threads any more. */
bool peer_is_dead(const struct peer *peer);

/** True if both are the same, still living process. */
bool peer_is_same(const struct peer *a, const struct peer *b);

/** True if the connected process is in a group, by its effective or supplementary ones.
 */
bool peer_in_group(int socket, const struct peer *peer, uint32_t gid);

/** Send SIGKILL. @return 0 or -errno. */
KVW_NODISCARD int peer_kill(const struct peer *peer);

/** A pidfd of a pid. @return descriptor or -errno. */
KVW_NODISCARD int peer_pidfd_open(uint32_t pid);

/** True if this kernel answers SO_PEERPIDFD. */
bool peer_has_pidfd_option(int socket);

#endif
