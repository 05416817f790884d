/* SPDX-License-Identifier: Apache-2.0 */
/* A real daemon for a plain test program, and what it holds at a moment. */
#ifndef KVW_TESTS_DEATH_HOST_H
#define KVW_TESTS_DEATH_HOST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/client.h"

struct host {
    char folder[64];
    char socket[96];
    struct kvw_client *client;
    pid_t daemon; /* as of the last look */
    pid_t keeper;
    pid_t worker; /* looked at as well; 0 = none */
};

/* What must not grow. */
enum holding {
    HOLD_CACHES,
    HOLD_BYTES,
    HOLD_ATTACHMENTS,
    HOLD_CLIENTS,
    HOLD_OWNED,       /* seats of the cache */
    HOLD_DAEMON_FDS,  /* /proc/PID/fd */
    HOLD_DAEMON_MAPS, /* of caches, in /proc/PID/maps */
    HOLD_KEEPER_FDS,
    HOLD_WORKER_FDS,
    HOLD_WORKER_MAPS,
    HOLD_MEMFDS, /* different ones, of all three */
    HOLDINGS,
};

struct holdings {
    uint64_t of[HOLDINGS];
};

/** Start a daemon in a folder of its own. It is stopped at exit(), too. @return 0, -1.
 */
int host_start(struct host *host);

/** Start a daemon there again, after daemon and keeper have ended. @return 0, -1. */
int host_start_again(struct host *host);

/** Stop daemon and keeper. @return true if both have ended. */
bool host_stop(struct host *host);

/** What daemon, keeper and worker hold now. */
void host_look(struct host *host, const char *cache, struct holdings *holdings);

/** Wait until they hold what they held; at most 5 s. @return false, having said what is
 * different. */
bool host_returns_to(struct host *host, const char *cache,
                     const struct holdings *start);

/** Kill the keeper, and wait until the daemon has another one: that one has seen no
 * daemon die, and starts the next ones at once. @return true once it has. */
bool host_renew_keeper(struct host *host);

/** Wait for a process to end, at most 10 s. */
bool host_is_gone(pid_t pid);

#endif
