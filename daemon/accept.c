/* SPDX-License-Identifier: Apache-2.0 */
/* New connections: who is at the other end, and whether there is room. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/client.h"
#include "daemon/host.h"
#include "proto/base/cleanup.h"

#define ACCEPT_RETRY_NS 100000000ull
#define ACCEPTS_AT_ONCE 64u

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

/* Out of descriptors: hang up on whoever waits, by means of the one in reserve. */
static void shed(struct daemon *daemon)
{
    struct pollfd waiting = {.fd = daemon->listen_fd, .events = POLLIN};

    kvw_fd_cleanup(&daemon->spare_fd);
    /* All that wait now, not one at each retry: each of them learns it at once. */
    for (uint32_t i = 0; i < ACCEPTS_AT_ONCE && poll(&waiting, 1, 0) > 0; i++) {
        int fd = accept4(daemon->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            break;
        close(fd);
        log_peer(&daemon->log, LOG_WARN,
                 "connection refused: out of descriptors clients %u",
                 daemon->n_clients);
    }
    daemon->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static uint32_t free_slot(const struct daemon *daemon)
{
    uint32_t slot = 0;

    while (slot < KVW_CLIENTS_MAX && daemon->clients[slot] != NULL)
        slot++;
    return slot;
}

/* One packet that says why, if there is room for it, and goodbye. */
static void refuse_connection(int socket, int error, const char *text)
{
    uint8_t packet[1024];
    struct kvw_message message = {.type = KVW_MESSAGE_REFUSED,
                                  .refused = {.error = (uint32_t)-error,
                                              .need = KVW_CLIENTS_MAX + 1,
                                              .have = KVW_CLIENTS_MAX}};

    memcpy(message.refused.text, text, strnlen(text, sizeof message.refused.text - 1));
    int n_bytes = message_encode(&message, packet, sizeof packet);
    if (n_bytes > 0)
        (void)send(socket, packet, (size_t)n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void welcome(struct daemon *daemon, int socket)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int owned = socket;
    uint32_t slot = free_slot(daemon);

    if (slot == KVW_CLIENTS_MAX) {
        refuse_connection(owned, -EMFILE,
                          "the daemon serves as many clients as it can");
        log_peer(&daemon->log, LOG_WARN, "connection refused: clients %u",
                 daemon->n_clients);
        return;
    }
    struct client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return;
    int error = peer_of(owned, &client->peer);
    if (error != 0) {
        log_peer(&daemon->log, LOG_WARN, "connection refused: peer unknown: %s",
                 strerrordesc_np(-error));
        free(client);
        return;
    }
    client->slot = slot;
    client->generation = daemon->generation++ & RING_GENERATION_MASK;
    client->socket = take_fd(&owned);
    daemon->clients[slot] = client;
    daemon->n_clients++;
    client_receive(daemon, client);
}

void client_accepted(struct daemon *daemon)
{
    if (daemon->is_stopping)
        return;
    for (uint32_t i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = accept4(daemon->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            welcome(daemon, fd);
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
