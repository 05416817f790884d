/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closing that may take long. The last close of a descriptor frees what is behind it: a
 * memfd's pages (0.1 s for a GiB), a TCP socket that lingers for as long as its owner
 * said, a file system of a user's own that never answers. Whoever sends us descriptors
 * chooses them, and those in the queue of a connection that is closed go with it. So the
 * loop closes nothing of a client itself; a thread does, and is interrupted where it
 * sleeps.
 */
#ifndef KVW_DAEMON_CLOSER_H
#define KVW_DAEMON_CLOSER_H

#include <stdint.h>

#include "proto/base/check.h"

/* A thread each: what holds one up does not hold up the others. */
enum closer_kind {
    CLOSER_SOCKETS = 0, /* connections, with what lies unread in them */
    CLOSER_OFFERED = 1, /* descriptors that came with an offer */
    CLOSER_MEMORY = 2,  /* segments of caches */
    N_CLOSERS = 3,
};

struct closer;

/** Start the threads. They end with the process. @return 0 or -errno. */
KVW_NODISCARD int closer_open(struct closer **closer);

/** Close a descriptor, soon; `bytes` are given back with it. *fd is -1 afterwards. */
void closer_take(struct closer *closer, enum closer_kind kind, int *fd, uint64_t bytes);

/** Descriptors that wait to be closed, and the bytes that are not given back yet. */
uint32_t closer_waiting(struct closer *closer, enum closer_kind kind);
uint64_t closer_bytes(struct closer *closer);

#endif
