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
    pid_t daemon;
    pid_t keeper;
};

/* What must not grow. */
struct holdings {
    uint32_t n_caches;
    uint32_t n_attachments;
    uint32_t n_clients;
    uint32_t n_owned;       /* seats of the cache */
    uint32_t n_daemon_fds;  /* /proc/PID/fd */
    uint32_t n_daemon_maps; /* /proc/PID/maps */
    uint32_t n_keeper_fds;
};

/** Start a daemon in a folder of its own. It is stopped at exit(), too. @return 0, -1.
 */
int host_start(struct host *host);

/** Stop daemon and keeper. @return true if both have ended. */
bool host_stop(struct host *host);

/** What daemon and keeper hold now. */
void host_look(struct host *host, const char *cache, struct holdings *holdings);

/** Wait until they hold what they held; at most 5 s. @return false, having said what is
 * different. */
bool host_returns_to(struct host *host, const char *cache,
                     const struct holdings *start);

#endif
