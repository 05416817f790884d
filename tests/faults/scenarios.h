/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done while a call fails. Each scenario leaves nothing behind: what daemon,
 * keeper and this process hold is compared before and after it.
 */
#ifndef KVW_TESTS_FAULTS_SCENARIOS_H
#define KVW_TESTS_FAULTS_SCENARIOS_H

#include <stdbool.h>
#include <stdint.h>

#include "client/client.h"
#include "tests/death/host.h"

#define BASE "base"   /* a cache that is there all the while */
#define TWICE "twice" /* another one, of contiguous groups */

struct scene {
    struct host host;
    struct kvw_client *client;
    struct kvw_cache *cache;
    struct kvw_cache *other;
    const char *wrong; /* what an undo has found, or NULL */
};

struct scenario {
    const char *name;
    uint32_t roles; /* enum fault_role: whose calls fail, one role after another */
    bool replaces_daemon; /* another process is the daemon afterwards */
    bool replaces_keeper;
    bool is_slow; /* a refusal takes a second: --quick makes fewer */
    void (*prepare)(struct scene *scene);
    /* What is done: 0, or a negative errno in words. Done again after a failure. */
    int (*run)(struct scene *scene);
    void (*undo)(struct scene *scene);
};

extern const struct scenario scenarios[];
extern const uint32_t n_scenarios;

/** The caches that are there all the while. @return 0 or a negative errno. */
int scene_begin(struct scene *scene);

/** What the daemon says of itself, over a connection of its own. @return 0 or -errno. */
int scene_status(struct scene *scene, struct kvw_message_status_is *status);

/** Detach, disconnect: whatever there is. */
void scene_leave(struct scene *scene);

#endif
