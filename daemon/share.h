/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who gets how much of the daemon: places in its table of connections, and turns.
 *
 * Places. No process and no user has more than its share (limits.h), and the last places
 * are for users who have few: so nobody can lock others out. Where a share is used up,
 * the oldest connection of it that has not said hello makes room: half-open ones never
 * keep out a client that speaks. One that says nothing for KVW_HELLO_MS is dropped.
 *
 * Turns. Requests that wait are served in turn: first that of the user who was served
 * longest ago, of that user's processes that which was served longest ago, and so on. A
 * client among thousands of a flood waits for one of their requests, not for all.
 */
#ifndef KVW_DAEMON_SHARE_H
#define KVW_DAEMON_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/geometry.h"
#include "proto/limits.h"

struct client;
struct daemon;
struct peer;

/* What full tables need: two for a connection, one for an attachment, four for a cache;
 * and some for the daemon itself. */
#define SHARE_DESCRIPTORS \
    (2 * KVW_CLIENTS_MAX + KVW_ALL_ATTACHMENTS_MAX + 4 * KVW_CACHES_MAX + 256)

/* What one user, or one process, has. */
struct account {
    uint64_t key;
    uint32_t n_clients; /* 0 = not in use */
    uint64_t turn;      /* when it was served last */
};

struct waiting {
    uint32_t slot; /* of the client */
    uint32_t user; /* accounts */
    uint32_t process;
};

struct shares {
    uint32_t descriptors_max; /* RLIMIT_NOFILE; 0 = as many as are needed */
    uint64_t turn;
    struct account user[KVW_CLIENTS_MAX];
    struct account process[KVW_CLIENTS_MAX];
    struct client *stranger_first; /* said no hello yet, oldest first */
    struct client *stranger_last;
    uint32_t n_waiting;
    struct waiting waiting[KVW_CLIENTS_MAX]; /* in order of arrival */
};

/** True for the user that the daemon runs as, and for root: they could stop it anyway. */
bool share_is_unlimited(uint32_t uid);

/** The most of a table of `n` that one user may have: half; less where the process may
 *  have fewer than SHARE_DESCRIPTORS. */
uint32_t share_of(const struct daemon *daemon, uint32_t n);

/**
 * Whether a new connection of a peer has a place. May drop one that said no hello.
 *
 * @return 0; -EMFILE with `refusal` in words.
 */
KVW_NODISCARD int share_admit(struct daemon *daemon, const struct peer *peer,
                              struct kvw_refusal *refusal);

/** A client came, said hello, is being closed. */
void share_enter(struct daemon *daemon, struct client *client);
void share_greeted(struct daemon *daemon, struct client *client);
void share_leave(struct daemon *daemon, struct client *client);

/** Drop the oldest that said no hello. @return false if there is none. */
bool share_drop_stranger(struct daemon *daemon);

/** Drop those that said no hello for too long. @return when the next one is due. */
uint64_t share_expire(struct daemon *daemon, uint64_t now_ns);

/** A client has a request. */
void share_wait_turn(struct daemon *daemon, const struct client *client);

/** The client whose turn it is; NULL if nobody waits. */
struct client *share_next(struct daemon *daemon);

#endif
