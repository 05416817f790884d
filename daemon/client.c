/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection has at most one receive and one send in flight. Closing is shutdown()
 * first: that ends both, while close() alone would leave them, and the peer, waiting
 * (axboe/liburing issue 932). The struct goes when both have come back.
 */
#include "daemon/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/create.h"
#include "daemon/host.h"
#include "daemon/request.h"
#include "proto/base/cleanup.h"

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

void client_receive(struct daemon *daemon, struct client *client)
{
    client->receive_body =
        (struct iovec){.iov_base = client->packet, .iov_len = sizeof client->packet};
    client->receive_head =
        (struct msghdr){.msg_iov = &client->receive_body,
                        .msg_iovlen = 1,
                        .msg_control = client->receive_control,
                        .msg_controllen = sizeof client->receive_control};
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

/* Own every descriptor that arrived. More than there is room for are closed by the
 * kernel, which says so. */
static void collect_fds(struct client *client)
{
    struct msghdr *head = &client->receive_head;

    for (struct cmsghdr *part = CMSG_FIRSTHDR(head); part != NULL;
         part = CMSG_NXTHDR(head, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n_fds = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n_fds && client->n_fds < KVW_MESSAGE_FDS_MAX; i++) {
            int *fd = &client->fds[client->n_fds++];
            memcpy(fd, CMSG_DATA(part) + i * sizeof *fd, sizeof *fd);
            (void)fcntl(*fd, F_SETFD, FD_CLOEXEC);
        }
    }
}

static void close_fds(struct client *client)
{
    while (client->n_fds > 0)
        kvw_fd_cleanup(&client->fds[--client->n_fds]);
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
                        "a message with more descriptors than any request has");
        return;
    }
    if (message_decode(client->packet, n_bytes, &message) != 0) {
        refuse_and_drop(daemon, client, message.request, -EPROTO,
                        "a message that does not decode");
        return;
    }
    if (client->n_fds > 0 && message.type != KVW_MESSAGE_OFFER) {
        refuse_and_drop(daemon, client, message.request, -EPROTO,
                        "a message with descriptors, which only an offer has");
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
        if (event->result > 0)
            collect_fds(client);
        close_fds(client);
        free_if_quiet(daemon, client);
        return;
    }
    if (event->result == -EINTR || event->result == -EAGAIN) {
        client_receive(daemon, client);
        return;
    }
    /* End of file and an empty packet look the same; neither is a request. */
    if (event->result <= 0) {
        client_close(daemon, client);
        return;
    }
    /* Serving may close, but not free, it: this is another operation in flight. */
    client->is_receiving = true;
    collect_fds(client);
    take_packet(daemon, client, (size_t)event->result);
    close_fds(client);
    client->is_receiving = false;
    if (client->is_closing)
        free_if_quiet(daemon, client);
    else if (!client->is_last && !daemon->is_stopping)
        client_receive(daemon, client);
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
