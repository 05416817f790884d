/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attachments: a process's place in a cache. Made by ATTACH; ended by DETACH or by the
 * death of the process, and by nothing else: a connection that is lost changes nothing.
 */
#ifndef KVW_DAEMON_ATTACHMENT_H
#define KVW_DAEMON_ATTACHMENT_H

#include "daemon/client.h"
#include "daemon/daemon.h"

enum ending {
    ENDING_DETACHED = 0, /* the seat is free */
    ENDING_DEAD = 1,     /* the seat waits for a successor, who takes over */
    ENDING_REPLACED = 2, /* detached, by an attach of the same process that follows */
    ENDING_UNDONE = 3,   /* it never was: the seat is as before, the cache stays */
};

KVW_NODISCARD int attachment_serve_attach(struct daemon *daemon, struct client *client,
                                          const struct kvw_message *request,
                                          struct reply *reply,
                                          struct kvw_refusal *refusal);
KVW_NODISCARD int attachment_serve_detach(struct daemon *daemon, struct client *client,
                                          const struct kvw_message *request,
                                          struct reply *reply,
                                          struct kvw_refusal *refusal);
KVW_NODISCARD int attachment_serve_resume(struct daemon *daemon, struct client *client,
                                          const struct kvw_message *request,
                                          struct reply *reply,
                                          struct kvw_refusal *refusal);

/** An attachment by id, or NULL. */
struct attachment *attachment_find(const struct daemon *daemon, uint64_t id);

/**
 * Enter an attachment into the tables and watch its process. Takes the peer on success.
 * The seat and the keeper are the caller's.
 *
 * @return it, or NULL: the table is full, or no memory.
 */
struct attachment *attachment_add(struct daemon *daemon, struct cache *cache,
                                  uint32_t rank, uint32_t slot, struct peer *peer);

/** Write the seat of an attachment's rank: owned from now on. */
void attachment_seat(const struct attachment *attachment, uint64_t incarnation);

/** Undo attachment_add(): seat, pins and store are as they were. */
void attachment_forget(struct daemon *daemon, struct attachment *attachment);

/**
 * A client's process once more, with a pidfd of its own, not a copy of the connection's:
 * systemd's store takes copies of one descriptor for one.
 *
 * @return 0; -ESRCH (it is gone); another -errno.
 */
KVW_NODISCARD int attachment_open_peer(const struct client *client, struct peer *peer);

/** Clear what it leaves, tell who waits, forget it. The cache may be gone afterwards.
 */
void attachment_end(struct daemon *daemon, struct attachment *attachment,
                    enum ending ending);

/** End it if its process is dead, whether or not its pidfd has fired yet. @return true if
 *  so; the cache may be gone then. */
bool attachment_bury(struct daemon *daemon, struct attachment *attachment);

/** End one that its process does not learn of, as if it had never been. 0: none. */
void attachment_undo(struct daemon *daemon, uint64_t id);

/** Say why attachment_add() has failed. @return a negative errno. */
int attachment_refuse(const struct daemon *daemon, struct kvw_refusal *refusal);

/** A pidfd fired. */
void attachment_event(struct daemon *daemon, const struct ring_event *event);

#endif
