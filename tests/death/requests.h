/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests under which daemons and keepers die, each made by a process of its own: what
 * leads up to it, the request, and what must hold afterwards, whether it happened or
 * not. A request that is made again must do.
 */
#ifndef KVW_TESTS_DEATH_REQUESTS_H
#define KVW_TESTS_DEATH_REQUESTS_H

#include <stdint.h>
#include <sys/types.h>

#include "client/client.h"

#define REQUESTS_CACHE "requests" /* lifetime keep, one rank, nobody attached */

/* One who makes a request. */
struct asker {
    const struct request *request;
    const char *socket;
    struct kvw_client *client;
    struct kvw_cache *cache; /* attached, or NULL */
    pid_t child;             /* an attached process, or 0 */
    pid_t keeper;            /* as of preparation */
    int error;               /* of the request */
};

enum victim {
    VICTIM_DAEMON = 1,
    VICTIM_KEEPER = 2,
};

struct request {
    const char *name;
    uint32_t victims; /* enum victim: who dies under it */
    void (*prepare)(struct asker *);
    int (*call)(struct asker *);
    void (*settle)(struct asker *); /* ... and undo it */
};

extern const struct request requests[];
extern const uint32_t n_requests;

/** The keeper is killed and the daemon hands everything to a new one. */
extern const struct request request_new_keeper;

/** The daemon is dead: whoever asks waits for the next one, which adopts. */
extern const struct request request_adoption;

/** Create REQUESTS_CACHE. @return as kvw_create(). */
int requests_create(struct kvw_client *client);

#endif
