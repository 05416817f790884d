/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caches on NUMA nodes: the crew's jobs, NUMA and MOVE, and parts that follow their
 * workers. A part is moved by the kernel, page by page, while it is read and written;
 * whoever touches a page that is on its way waits for it.
 */
#ifndef KVW_DAEMON_NUMA_H
#define KVW_DAEMON_NUMA_H

#include "daemon/client.h"
#include "daemon/crew.h"
#include "daemon/daemon.h"

/* What follows of a cache in a period is at most so many times its bytes. */
#define NUMA_FOLLOW_TIMES 4u
#define NUMA_FOLLOW_NS 60000000000ull

#define NUMA_TELL_NS 100000000ull /* between two words of progress */

/** Have the data of a cache allocated; create_filled() hears of it. @return 0 or -errno. */
KVW_NODISCARD int numa_fill(struct daemon *daemon, struct cache *cache);

/** NUMA. @return 0, SERVE_LATER or a negative errno. */
KVW_NODISCARD int numa_serve(struct daemon *daemon, struct client *client,
                             const struct kvw_message *request, struct reply *reply,
                             struct kvw_refusal *refusal);

/** MOVE. @return SERVE_LATER or a negative errno. */
KVW_NODISCARD int numa_serve_move(struct daemon *daemon, struct client *client,
                                  const struct kvw_message *request,
                                  struct reply *reply, struct kvw_refusal *refusal);

/** A worker took a rank, and runs on the node of that number: the part follows it, if
 * that is the cache's policy and the host permits. */
void numa_follow(struct daemon *daemon, struct cache *cache, uint32_t rank,
                 uint32_t number);

/** Once after adoption: find the plans of caches in the kernel's policies, and move what
 * the daemon before had only begun to move. */
void numa_settle(struct daemon *daemon);

/** The crew has done something. */
void numa_event(struct daemon *daemon);

#endif
