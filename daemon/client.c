/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection has at most one receive and one send in flight. Closing is shutdown()
 * first: that ends both, while close() alone would leave them, and the peer, waiting
 * (axboe/liburing issue 932). The struct goes when both have come back.
 */
#include "daemon/client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/create.h"
#include "daemon/host.h"
#include "daemon/request.h"
#include "proto/base/cleanup.h"

#define ACCEPT_RETRY_NS 100000000ull
#define ACCEPTS_AT_ONCE 64u

static struct ring_tag tag_of(const struct client *client, enum ring_kind kind)
{
    return (struct ring_tag){
        .slot = client->slot, .generation = client->generation, .kind = kind};
}

static struct client *client_of(struct daemon *daemon, struct ring_tag tag)
{
    struct client *client =
        tag.slot < KVW_CLIENTS_MAX ? daemon->clients[tag.slot] : NULL;

    return client != NULL && client->generation == tag.generation ? client : NULL;
}

static void outgoing_free(struct outgoing *outgoing)
{
    while (outgoing->n_fds > 0)
        close(outgoing->fds[--outgoing->n_fds]);
    free(outgoing);
}

void client_free(struct daemon *daemon, struct client *client)
{
    if (client == NULL)
        return;
    while (client->first != NULL) {
        struct outgoing *next = client->first->next;
        outgoing_free(client->first);
        client->first = next;
    }
    kvw_fd_cleanup(&client->socket);
    peer_close(&client->peer);
    daemon->clients[client->slot] = NULL;
    daemon->n_clients--;
    if (daemon->n_clients == 0)
        daemon->idle_ns = host_now_ns();
    free(client);
}

static void free_if_quiet(struct daemon *daemon, struct client *client)
{
    if (client->is_closing && !client->is_receiving && !client->is_sending)
        client_free(daemon, client);
}

void client_close(struct daemon *daemon, struct client *client)
{
    if (!client->is_closing) {
        client->is_closing = true;
        (void)shutdown(client->socket, SHUT_RDWR);
        for (uint32_t i = 0; i < KVW_ALL_ATTACHMENTS_MAX; i++) {
            struct attachment *attachment = daemon->attachments[i];
            if (attachment != NULL && attachment->client == client)
                attachment->client = NULL;
        }
        if (client->pending == PENDING_CREATE)
            create_abandoned(daemon, client);
        client->pending = PENDING_NONE;
    }
    free_if_quiet(daemon, client);
}

static void receive(struct daemon *daemon, struct client *client)
{
    client->receive_body =
        (struct iovec){.iov_base = client->packet, .iov_len = sizeof client->packet};
    /* No room for descriptors: the kernel closes what a peer attaches, and says so. */
    client->receive_head =
        (struct msghdr){.msg_iov = &client->receive_body, .msg_iovlen = 1};
    client->is_receiving = true;
    ring_receive(daemon->ring, client->socket, &client->receive_head,
                 tag_of(client, RING_RECEIVE));
}

static void send_first(struct daemon *daemon, struct client *client)
{
    struct outgoing *outgoing = client->first;

    client->send_body =
        (struct iovec){.iov_base = outgoing->bytes, .iov_len = outgoing->n_bytes};
    client->send_head = (struct msghdr){.msg_iov = &client->send_body, .msg_iovlen = 1};
    if (outgoing->n_fds > 0) {
        size_t n_bytes = outgoing->n_fds * sizeof(int);
        client->send_head.msg_control = client->send_control;
        client->send_head.msg_controllen = CMSG_SPACE(n_bytes);
        struct cmsghdr *part = CMSG_FIRSTHDR(&client->send_head);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(n_bytes);
        memcpy(CMSG_DATA(part), outgoing->fds, n_bytes);
    }
    client->is_sending = true;
    ring_send(daemon->ring, client->socket, &client->send_head,
              tag_of(client, RING_SEND));
}

/* ---- accept ---- */

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
    receive(daemon, client);
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

/* ---- receive ---- */

static void drop(struct daemon *daemon, struct client *client, const char *why)
{
    log_peer(&daemon->log, LOG_WARN, "client dropped: %s pid %u uid %u program %s", why,
             client->peer.pid, client->peer.uid, client->program);
    client_close(daemon, client);
}

/* Tell a client that broke the protocol why it is dropped. */
static void refuse_and_drop(struct daemon *daemon, struct client *client,
                            uint32_t request, int error, const char *text)
{
    struct kvw_refusal refusal;

    (void)refuse(&refusal, error, 0, 0, "%s", text);
    log_peer(&daemon->log, LOG_WARN, "client dropped: %s pid %u uid %u program %s",
             text, client->peer.pid, client->peer.uid, client->program);
    client->is_last = true;
    client_refuse(daemon, client, request, error, &refusal);
}

static void take_packet(struct daemon *daemon, struct client *client, size_t n_bytes)
{
    struct kvw_message message;
    int flags = client->receive_head.msg_flags;

    if ((flags & MSG_TRUNC) != 0) {
        refuse_and_drop(daemon, client, 0, -EMSGSIZE,
                        "a message of more than 16384 bytes");
        return;
    }
    if ((flags & MSG_CTRUNC) != 0) {
        refuse_and_drop(daemon, client, 0, -EPROTO,
                        "a message with descriptors, which no request has");
        return;
    }
    if (message_decode(client->packet, n_bytes, &message) != 0) {
        refuse_and_drop(daemon, client, message.request, -EPROTO,
                        "a message that does not decode");
        return;
    }
    if (!client->is_greeted && message.type != KVW_MESSAGE_HELLO) {
        refuse_and_drop(daemon, client, message.request, -EPROTO,
                        "the first message must be hello");
        return;
    }
    request_serve(daemon, client, &message);
}

void client_received(struct daemon *daemon, const struct ring_event *event)
{
    struct client *client = client_of(daemon, event->tag);

    if (client == NULL)
        return;
    client->is_receiving = false;
    if (client->is_closing) {
        free_if_quiet(daemon, client);
        return;
    }
    if (event->result == -EINTR || event->result == -EAGAIN) {
        receive(daemon, client);
        return;
    }
    /* End of file and an empty packet look the same; neither is a request. */
    if (event->result <= 0) {
        client_close(daemon, client);
        return;
    }
    /* Serving may close, but not free, it: this is another operation in flight. */
    client->is_receiving = true;
    take_packet(daemon, client, (size_t)event->result);
    client->is_receiving = false;
    if (client->is_closing)
        free_if_quiet(daemon, client);
    else if (!client->is_last && !daemon->is_stopping)
        receive(daemon, client);
}

/* ---- send ---- */

void client_sent(struct daemon *daemon, const struct ring_event *event)
{
    struct client *client = client_of(daemon, event->tag);

    if (client == NULL)
        return;
    client->is_sending = false;
    if (client->is_closing) {
        free_if_quiet(daemon, client);
        return;
    }
    if (event->result == -EINTR || event->result == -EAGAIN) {
        send_first(daemon, client);
        return;
    }
    if (event->result < 0) {
        client_close(daemon, client);
        return;
    }
    struct outgoing *sent = client->first;
    client->first = sent->next;
    client->n_outgoing--;
    outgoing_free(sent);
    if (client->first != NULL)
        send_first(daemon, client);
    else if (client->is_last)
        client_close(daemon, client);
}

static void enqueue(struct daemon *daemon, struct client *client,
                    struct outgoing *outgoing)
{
    client->n_outgoing++;
    if (client->first == NULL) {
        client->first = outgoing;
        client->last = outgoing;
        send_first(daemon, client);
    } else {
        client->last->next = outgoing;
        client->last = outgoing;
    }
}

void client_answer(struct daemon *daemon, struct client *client, struct reply *reply)
{
    uint8_t packet[KVW_MESSAGE_MAX];
    int n_bytes = message_encode(&reply->message, packet, sizeof packet);

    /* What we put together ourselves always fits. */
    KVW_CHECK(n_bytes > 0);
    struct outgoing *outgoing = NULL;
    if (!client->is_closing && client->n_outgoing < KVW_SEND_QUEUE_MAX)
        outgoing = malloc(sizeof *outgoing + (size_t)n_bytes);
    if (outgoing == NULL) {
        while (reply->n_fds > 0)
            close(reply->fds[--reply->n_fds]);
        if (!client->is_closing)
            drop(daemon, client, "it does not read its answers");
        return;
    }
    *outgoing = (struct outgoing){.n_bytes = (uint32_t)n_bytes, .n_fds = reply->n_fds};
    memcpy(outgoing->fds, reply->fds, sizeof outgoing->fds);
    memcpy(outgoing->bytes, packet, (size_t)n_bytes);
    reply->n_fds = 0;
    enqueue(daemon, client, outgoing);
}

void client_refuse(struct daemon *daemon, struct client *client, uint32_t request,
                   int error, const struct kvw_refusal *refusal)
{
    struct reply reply = {.message = {.type = KVW_MESSAGE_REFUSED,
                                      .request = request,
                                      .refused = {.error = (uint32_t)-error,
                                                  .need = refusal->need,
                                                  .have = refusal->have}}};

    memcpy(reply.message.refused.text, refusal->text,
           strnlen(refusal->text, sizeof reply.message.refused.text - 1));
    client_answer(daemon, client, &reply);
}

bool client_all_sent(const struct daemon *daemon)
{
    for (uint32_t i = 0; i < KVW_CLIENTS_MAX; i++) {
        if (daemon->clients[i] != NULL && daemon->clients[i]->first != NULL)
            return false;
    }
    return true;
}
