/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon under attack, and an honest client beside it. Attackers are processes of their
 * own; while they are at work the honest client makes requests over an old connection and
 * over new ones, and takes the time.
 *
 * The reaction of a request is its time less what daemon, keeper and this process waited
 * for a CPU meanwhile (/proc/PID/schedstat): on a loaded machine a bound on the bare time
 * would measure the machine. Both are printed.
 */
#ifndef KVW_TESTS_HOSTILE_SIEGE_H
#define KVW_TESTS_HOSTILE_SIEGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/daemon/raw.h"

/* A sanitizer makes everything slower; the claim is about the program without it. */
#ifdef __SANITIZE_ADDRESS__
#define SIEGE_SLOWER 5u
#else
#define SIEGE_SLOWER 1u
#endif
#define SIEGE_BOUND_NS (SIEGE_SLOWER * 20000000ull) /* of the reaction to any request */
#define SIEGE_NEW_BOUND_NS \
    (SIEGE_SLOWER * 150000000ull) /* of a new client, behind 1024 that knocked */
#define SIEGE_USER 4711u          /* nobody's number: of honest clients */
#define SIEGE_ENEMY 4712u         /* and of attackers */
#define SIEGE_ATTACKERS_MAX 16u

struct siege {
    struct rig rig;
    pid_t daemon;
    pid_t keeper;
    int control; /* an honest connection that was there before */
    uint32_t n_attackers;
    pid_t attacker[SIEGE_ATTACKERS_MAX];
};

/* What the honest client saw. */
struct siege_report {
    uint32_t n_requests;
    uint32_t n_connections; /* new ones, with hello, attach and detach */
    uint64_t longest_ns;    /* of a request */
    uint64_t reaction_ns;   /* the longest */
    uint32_t n_late;        /* reactions beyond the bound */
    uint64_t connect_ns;    /* longest from connect to a place in the cache, reaction */
    uint64_t daemon_cpu_ns; /* while it was watched */
    uint64_t watched_ns;
};

/** What an attacker runs after it said that it is at work, by siege_at_work(). */
typedef void siege_attack(const struct siege *siege);

/** Start a daemon (more options: NULL-terminated, may be NULL) with a cache `honest`. */
void siege_begin(struct siege *siege, const char *const *options);

/** Start an attacker as a user (0: root), and wait until it is at work. */
void siege_attacker(struct siege *siege, siege_attack *attack, uint32_t uid);

/** Of an attacker: everything is prepared. */
void siege_at_work(void);

/** Watch for a while; print what was seen; fail if a reaction was too late. */
struct siege_report siege_watch(struct siege *siege, const char *what, uint32_t ms);

/** End the attackers; the daemon must be the same process, and idle. */
void siege_relieve(struct siege *siege);

/** End attackers and daemon. */
void siege_end(struct siege *siege);

/** Time that a process has spent on a CPU. */
uint64_t siege_cpu_ns(pid_t pid);

/** A connection as another effective user, which the kernel tells the daemon. */
int siege_connect_as(const struct siege *siege, uint32_t uid);

/** HELLO over a connection. @return 0, or the negative error of the refusal. */
int siege_hello(int fd, struct kvw_message *answer);

#endif
