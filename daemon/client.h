/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: accepted, read, answered, dropped. */
#ifndef KVW_DAEMON_CLIENT_H
#define KVW_DAEMON_CLIENT_H

#include "daemon/daemon.h"

/* An answer, with the descriptors that go with it. */
struct reply {
    struct kvw_message message;
    int fds[KVW_MESSAGE_FDS_MAX];
    uint32_t n_fds;
    uint64_t attachment; /* that there is none of if this cannot be sent; 0 = none */
};

/** Wait for connections (again). */
void client_accept(struct daemon *daemon);

/** Have a descriptor in reserve again, if that is possible now. */
void client_reserve(struct daemon *daemon);

/** Connections wait. */
void client_accepted(struct daemon *daemon);

/** Wait for the next message of a client. */
void client_receive(struct daemon *daemon, struct client *client);

/** A completion of receive or send. */
void client_received(struct daemon *daemon, const struct ring_event *event);
void client_sent(struct daemon *daemon, const struct ring_event *event);

/**
 * Queue an answer. Takes its descriptors. A client whose queue is full does not read:
 * it is dropped, nobody waits for it. So is one whose answer cannot be queued or sent for
 * want of memory, and an attachment that it does not learn of is undone.
 */
void client_answer(struct daemon *daemon, struct client *client, struct reply *reply);

/** Queue a refusal in answer to request number `request`. */
void client_refuse(struct daemon *daemon, struct client *client, uint32_t request,
                   int error, const struct kvw_refusal *refusal);

/** One packet that says why, if there is room for it, past any queue. */
void client_refuse_socket(int socket, int error, const struct kvw_refusal *refusal);

/** Serve the request whose turn it is. @return false if there is none. */
bool client_serve_next(struct daemon *daemon);

/** Hang up. Its attachments stay; it is freed when nothing of it is in flight. */
void client_close(struct daemon *daemon, struct client *client);

/** Free a client of which nothing is in flight any more. Accepts NULL. */
void client_free(struct daemon *daemon, struct client *client);

/** True when every connection has got what was queued for it. */
bool client_all_sent(const struct daemon *daemon);

#endif
