/* SPDX-License-Identifier: Apache-2.0 */
/* One table from message types to the functions that serve them. */
#include "daemon/request.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/attachment.h"
#include "daemon/create.h"
#include "daemon/numa.h"
#include "daemon/offer.h"
#include "daemon/restart.h"
#include "proto/layout.h"

typedef int serve_fn(struct daemon *daemon, struct client *client,
                     const struct kvw_message *request, struct reply *reply,
                     struct kvw_refusal *refusal);

/* A client of another version is told both, and decides for itself; it gets no further.
 */
static int serve_hello(struct daemon *daemon, struct client *client,
                       const struct kvw_message *request, struct reply *reply,
                       struct kvw_refusal *refusal)
{
    const struct kvw_message_hello *hello = &request->hello;
    struct kvw_message_welcome *welcome = &reply->message.welcome;

    if (client->is_greeted)
        return refuse(refusal, -EPROTO, 1, 2, "hello was said already");
    reply->message.type = KVW_MESSAGE_WELCOME;
    *welcome =
        (struct kvw_message_welcome){.protocol = KVW_PROTOCOL_VERSION,
                                     .layout_hash = layout_hash(),
                                     .daemon_epoch = daemon->epoch,
                                     .pid = (uint32_t)getpid(),
                                     .is_embedded = daemon->options->is_embedded};
    memcpy(welcome->version, DAEMON_VERSION, sizeof DAEMON_VERSION);
    memcpy(client->program, hello->program, sizeof client->program);
    for (char *c = client->program; *c != 0; c++) {
        if (*c < ' ' || *c > '~')
            *c = '?';
    }
    client->is_greeted =
        hello->protocol == KVW_PROTOCOL_VERSION && hello->layout_hash == layout_hash();
    client->is_last = !client->is_greeted;
    if (client->is_last)
        log_peer(&daemon->log, LOG_WARN,
                 "client of another version dropped pid %u program %s protocol %u",
                 client->peer.pid, client->program, hello->protocol);
    return 0;
}

static serve_fn *function_of(uint32_t type)
{
    switch (type) {
    case KVW_MESSAGE_HELLO:
        return serve_hello;
    case KVW_MESSAGE_CREATE:
        return create_serve;
    case KVW_MESSAGE_ATTACH:
        return attachment_serve_attach;
    case KVW_MESSAGE_DETACH:
        return attachment_serve_detach;
    case KVW_MESSAGE_RESUME:
        return attachment_serve_resume;
    case KVW_MESSAGE_OFFER:
        return offer_serve;
    case KVW_MESSAGE_STAT:
        return report_stat;
    case KVW_MESSAGE_WHO:
        return report_who;
    case KVW_MESSAGE_STATUS:
        return restart_status;
    case KVW_MESSAGE_REMOVE:
        return admin_remove;
    case KVW_MESSAGE_KICK:
        return admin_kick;
    case KVW_MESSAGE_GC:
        return admin_gc;
    case KVW_MESSAGE_SHUTDOWN:
        return admin_shutdown;
    case KVW_MESSAGE_NUMA:
        return numa_serve;
    case KVW_MESSAGE_MOVE:
        return numa_serve_move;
    case KVW_MESSAGE_RESTART:
        return restart_serve;
    default:
        return NULL;
    }
}

void request_serve(struct daemon *daemon, struct client *client,
                   const struct kvw_message *request)
{
    struct kvw_refusal refusal = {0};
    struct reply reply = {.message = {.request = request->request}};
    serve_fn *serve = function_of(request->type);

    log_line(&daemon->log, LOG_DEBUG, "request %s pid %u", message_name(request->type),
             client->peer.pid);
    int result = restart_permits(daemon, request, &refusal);
    if (result == 0)
        result = serve != NULL ? serve(daemon, client, request, &reply, &refusal)
                               : refuse(&refusal, -EPROTO, 0, request->type,
                                        "%s is an answer, not a request",
                                        message_name(request->type));
    if (result == 0) {
        client_answer(daemon, client, &reply);
        return;
    }
    while (reply.n_fds > 0)
        close(reply.fds[--reply.n_fds]);
    if (result < 0) {
        log_line(&daemon->log, LOG_DEBUG, "refused %s: %s", message_name(request->type),
                 refusal.text);
        client_refuse(daemon, client, request->request, result, &refusal);
    }
}
