/* SPDX-License-Identifier: Apache-2.0 */
/* New connections: who is at the other end, and whether there is room. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/client.h"
#include "daemon/closer.h"
#include "daemon/host.h"
#include "proto/base/cleanup.h"

#define ACCEPT_RETRY_NS 100000000ull
#define ACCEPTS_AT_ONCE 64u
#define ACCEPT_NS 1000000ull /* of connections, before requests are served again */

/*
 * A poll, not io_uring's own accept: that one waits exclusively, and the ring of a
 * daemon that was just killed takes some milliseconds to go. Its accept, still in the
 * queue of the listener that both share, then takes the one wake-up that was ours, and
 * a client waits until the next one comes (seen in one restart of twelve).
 */
void client_accept(struct daemon *daemon)
{
    daemon->accept_ns = NEVER_NS;
    ring_poll(daemon->ring, daemon->listen_fd, POLLIN,
              (struct ring_tag){.kind = RING_ACCEPT});
}

void client_reserve(struct daemon *daemon)
{
    if (daemon->spare_fd < 0)
        daemon->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Out of descriptors: those who have one and say nothing are hung up on, and, by means of
 * the one in reserve, whoever waits now. At the next look there are some again. */
static void shed(struct daemon *daemon)
{
    struct pollfd waiting = {.fd = daemon->listen_fd, .events = POLLIN};

    for (uint32_t i = 0; i < ACCEPTS_AT_ONCE && share_drop_stranger(daemon); i++)
        ;
    kvw_fd_cleanup(&daemon->spare_fd);
    /* All that wait now, not one at each retry: each of them learns it at once. */
    for (uint32_t i = 0; i < ACCEPTS_AT_ONCE && poll(&waiting, 1, 0) > 0; i++) {
        int fd = accept4(daemon->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            break;
        closer_take(daemon->closer, CLOSER_SOCKETS, &fd, 0);
        log_peer(&daemon->log, LOG_WARN,
                 "connection refused: out of descriptors clients %u",
                 daemon->n_clients);
    }
    client_reserve(daemon);
}

static uint32_t free_slot(const struct daemon *daemon)
{
    uint32_t slot = 0;

    while (slot < KVW_CLIENTS_MAX && daemon->clients[slot] != NULL)
        slot++;
    return slot;
}

/* A place for a new connection, or words why there is none. */
static int welcome(struct daemon *daemon, int *socket, struct kvw_refusal *refusal)
{
    struct peer peer;

    int error = peer_of(*socket, &peer);
    if (error != 0)
        return refuse(refusal, error, 0, 0,
                      "the process at its other end is not known: %s",
                      strerrordesc_np(-error));
    error = share_admit(daemon, &peer, refusal);
    /* Connections that are just being closed have their slots still. */
    uint32_t slot = error == 0 ? free_slot(daemon) : KVW_CLIENTS_MAX;
    struct client *client = slot < KVW_CLIENTS_MAX ? calloc(1, sizeof *client) : NULL;
    if (client == NULL) {
        peer_close(&peer);
        return error != 0
                   ? error
                   : refuse(refusal, -EMFILE, KVW_CLIENTS_MAX + 1, KVW_CLIENTS_MAX,
                            "the daemon serves %u clients, as many as it can",
                            daemon->n_clients);
    }
    client->slot = slot;
    client->generation = daemon->generation++ & RING_GENERATION_MASK;
    client->socket = take_fd(socket);
    client->peer = peer;
    daemon->clients[slot] = client;
    daemon->n_clients++;
    share_enter(daemon, client);
    client_receive(daemon, client);
    return 0;
}

static void take_connection(struct daemon *daemon, int socket)
{
    struct kvw_refusal refusal;

    int error = welcome(daemon, &socket, &refusal);
    if (error == 0)
        return;
    client_refuse_socket(socket, error, &refusal);
    log_peer(&daemon->log, LOG_WARN, "connection refused: %s", refusal.text);
    closer_take(daemon->closer, CLOSER_SOCKETS, &socket, 0);
}

void client_accepted(struct daemon *daemon)
{
    daemon->is_accept_due = false;
    if (daemon->is_stopping)
        return;
    /* The reserve first: what has come back is not for who comes next. */
    client_reserve(daemon);
    const uint64_t end_ns = host_now_ns() + ACCEPT_NS;
    for (uint32_t i = 0; i < ACCEPTS_AT_ONCE && host_now_ns() < end_ns; i++) {
        int fd = accept4(daemon->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            take_connection(daemon, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
                   errno == ENOBUFS) {
            /* Those who wait keep the listener ready: looking again at once would spin.
             */
            shed(daemon);
            daemon->accept_ns = host_now_ns() + ACCEPT_RETRY_NS;
            return;
        } else if (errno == EAGAIN) {
            break;
        }
    }
    client_accept(daemon);
}
