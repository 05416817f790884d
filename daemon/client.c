/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection has at most one receive and one send in flight. Closing is shutdown()
 * first: that ends both, while close() alone would leave them, and the peer, waiting
 * (axboe/liburing issue 932). The struct goes when both have come back.
 *
 * A packet is looked at in the queue before it is taken from there. One that brings
 * descriptors is never taken, unless it is an offer: taking it, with a buffer for them or
 * without, could make this process the one that closes them last (closer.h).
 */
#include "daemon/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/attachment.h"
#include "daemon/closer.h"
#include "daemon/create.h"
#include "daemon/crew.h"
#include "daemon/host.h"
#include "daemon/request.h"
#include "proto/base/cleanup.h"

#define PACKET_FDS_MAX 253u /* SCM_MAX_FD of Linux */
#define OFFERED_MAX 512u    /* descriptors of offers that are not closed yet */

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
    share_leave(daemon, client);
    closer_take(daemon->closer, CLOSER_SOCKETS, &client->socket, 0);
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
        share_leave(daemon, client);
        (void)shutdown(client->socket, SHUT_RDWR);
        for (uint32_t i = 0; i < KVW_ALL_ATTACHMENTS_MAX; i++) {
            struct attachment *attachment = daemon->attachments[i];
            if (attachment != NULL && attachment->client == client)
                attachment->client = NULL;
        }
        if (client->pending == PENDING_CREATE)
            create_abandoned(daemon, client);
        else if (client->pending == PENDING_NUMA)
            crew_cancel(daemon->crew, 0, client->pending_id);
        client->pending = PENDING_NONE;
    }
    free_if_quiet(daemon, client);
}

void client_receive(struct daemon *daemon, struct client *client)
{
    client->receive_body =
        (struct iovec){.iov_base = client->packet, .iov_len = sizeof client->packet};
    client->receive_head =
        (struct msghdr){.msg_iov = &client->receive_body, .msg_iovlen = 1};
    client->is_receiving = true;
    ring_peek(daemon->ring, client->socket, &client->receive_head,
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
                            uint32_t request, int error,
                            const struct kvw_refusal *refusal)
{
    log_peer(&daemon->log, LOG_WARN, "client dropped: %s pid %u uid %u program %s",
             refusal->text, client->peer.pid, client->peer.uid, client->program);
    client->is_last = true;
    client_refuse(daemon, client, request, error, refusal);
}

/* The packet of an offer, and its descriptors. All that a packet can have are accepted,
 * for what is left over the kernel would close here and now. */
static void take_offer(struct daemon *daemon, struct client *client)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(PACKET_FDS_MAX * sizeof(int))];
    } control;
    struct msghdr head = {.msg_control = control.bytes,
                          .msg_controllen = sizeof control.bytes};
    int fd;

    if (recvmsg(client->socket, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
        return;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&head); part != NULL;
         part = CMSG_NXTHDR(&head, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (part->cmsg_len - CMSG_LEN(0)) / sizeof fd; i++) {
            memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
            if (client->n_fds < KVW_MESSAGE_FDS_MAX)
                client->fds[client->n_fds++] = fd;
            else
                closer_take(daemon->closer, CLOSER_OFFERED, &fd, 0);
        }
    }
}

static void close_fds(struct daemon *daemon, struct client *client)
{
    while (client->n_fds > 0)
        closer_take(daemon->closer, CLOSER_OFFERED, &client->fds[--client->n_fds], 0);
}

/* From the queue of the connection, where it was looked at. */
static int take_packet(struct daemon *daemon, struct client *client,
                       const struct kvw_message *message, struct kvw_refusal *refusal)
{
    const bool has_fds = (client->receive_head.msg_flags & MSG_CTRUNC) != 0;

    if (!has_fds) {
        (void)recv(client->socket, NULL, 0, MSG_DONTWAIT | MSG_TRUNC);
        return 0;
    }
    if (message->type != KVW_MESSAGE_OFFER)
        return refuse(refusal, -EPROTO, 0, 1,
                      "a message with descriptors, which only an offer has");
    if (closer_waiting(daemon->closer, CLOSER_OFFERED) > OFFERED_MAX)
        return refuse(refusal, -EAGAIN, 1, 0,
                      "descriptors of other offers are still being closed");
    take_offer(daemon, client);
    return 0;
}

/* Look at a packet. @return 0, or why its client is dropped. */
static int judge_packet(const struct client *client, struct kvw_message *message,
                        struct kvw_refusal *refusal)
{
    if ((client->receive_head.msg_flags & MSG_TRUNC) != 0)
        return refuse(refusal, -EMSGSIZE, client->n_bytes, KVW_MESSAGE_MAX,
                      "a message of more than %u bytes", KVW_MESSAGE_MAX);
    if (message_decode(client->packet, client->n_bytes, message) != 0)
        return refuse(refusal, -EPROTO, 0, client->n_bytes,
                      "a message that does not decode");
    if (!client->is_greeted && message->type != KVW_MESSAGE_HELLO)
        return refuse(refusal, -EPROTO, 0, 0, "the first message must be hello");
    return 0;
}

static void serve_packet(struct daemon *daemon, struct client *client)
{
    struct kvw_message message = {0};
    struct kvw_refusal refusal;

    int error = judge_packet(client, &message, &refusal);
    if (error == 0)
        error = take_packet(daemon, client, &message, &refusal);
    if (error == 0) {
        share_greeted(daemon, client);
        request_serve(daemon, client, &message);
    } else {
        refuse_and_drop(daemon, client, message.request, error, &refusal);
    }
}

void client_received(struct daemon *daemon, const struct ring_event *event)
{
    struct client *client = client_of(daemon, event->tag);

    if (client == NULL)
        return;
    client->is_receiving = false;
    if (client->is_closing)
        free_if_quiet(daemon, client);
    else if (event->result == -EINTR || event->result == -EAGAIN)
        client_receive(daemon, client);
    /* End of file and an empty packet look the same; neither is a request. */
    else if (event->result <= 0)
        client_close(daemon, client);
    else {
        client->n_bytes = (uint32_t)event->result;
        share_wait_turn(daemon, client);
    }
}

bool client_serve_next(struct daemon *daemon)
{
    struct client *client = share_next(daemon);

    if (client == NULL)
        return false;
    /* Serving may close, but not free, it: as if another operation were in flight. */
    client->is_receiving = true;
    serve_packet(daemon, client);
    close_fds(daemon, client);
    client->is_receiving = false;
    if (client->is_closing)
        free_if_quiet(daemon, client);
    else if (!client->is_last && !daemon->is_stopping)
        client_receive(daemon, client);
    return true;
}

/* ---- send ---- */

/* It is our failure, not the client's: nothing may be left of what it was told. */
static void fail_answer(struct daemon *daemon, struct client *client,
                        uint64_t attachment, int error)
{
    log_peer(&daemon->log, LOG_WARN,
             "client dropped: its answer cannot be sent: %s pid %u uid %u program %s",
             strerrordesc_np(-error), client->peer.pid, client->peer.uid,
             client->program);
    attachment_undo(daemon, attachment);
}

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
    struct outgoing *sent = client->first;
    if (event->result < 0) {
        if (event->result != -EPIPE && event->result != -ECONNRESET)
            fail_answer(daemon, client, sent->attachment, event->result);
        client_close(daemon, client);
        return;
    }
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
    bool has_room = client->n_outgoing < KVW_SEND_QUEUE_MAX;
    struct outgoing *outgoing = NULL;
    if (!client->is_closing && has_room)
        outgoing = malloc(sizeof *outgoing + (size_t)n_bytes);
    if (outgoing == NULL) {
        while (reply->n_fds > 0)
            close(reply->fds[--reply->n_fds]);
        if (client->is_closing)
            return;
        if (has_room)
            fail_answer(daemon, client, reply->attachment, -ENOMEM);
        else
            drop(daemon, client, "it does not read its answers");
        client_close(daemon, client);
        return;
    }
    *outgoing = (struct outgoing){.attachment = reply->attachment,
                                  .n_bytes = (uint32_t)n_bytes,
                                  .n_fds = reply->n_fds};
    memcpy(outgoing->fds, reply->fds, sizeof outgoing->fds);
    memcpy(outgoing->bytes, packet, (size_t)n_bytes);
    reply->n_fds = 0;
    enqueue(daemon, client, outgoing);
}

static struct kvw_message refused_message(uint32_t request, int error,
                                          const struct kvw_refusal *refusal)
{
    struct kvw_message message = {.type = KVW_MESSAGE_REFUSED,
                                  .request = request,
                                  .refused = {.error = (uint32_t)-error,
                                              .need = refusal->need,
                                              .have = refusal->have}};

    memcpy(message.refused.text, refusal->text,
           strnlen(refusal->text, sizeof message.refused.text - 1));
    return message;
}

void client_refuse(struct daemon *daemon, struct client *client, uint32_t request,
                   int error, const struct kvw_refusal *refusal)
{
    struct reply reply = {.message = refused_message(request, error, refusal)};

    client_answer(daemon, client, &reply);
}

void client_refuse_socket(int socket, int error, const struct kvw_refusal *refusal)
{
    const struct kvw_message message = refused_message(0, error, refusal);
    uint8_t packet[1024];
    int n_bytes = message_encode(&message, packet, sizeof packet);

    if (n_bytes > 0)
        (void)send(socket, packet, (size_t)n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool client_all_sent(const struct daemon *daemon)
{
    for (uint32_t i = 0; i < KVW_CLIENTS_MAX; i++) {
        if (daemon->clients[i] != NULL && daemon->clients[i]->first != NULL)
            return false;
    }
    return true;
}
