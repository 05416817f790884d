/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request and its answer, over a connection that may have been lost. Then:
 *
 * 1. The daemon went away before it read the request (the kernel says so): it is sent
 *    again to the next daemon, whatever it asks for.
 * 2. It may have read it, and asking twice is as good as asking once: sent again. That
 *    is so for create, detach, resume, stat, who, status and a dry gc; and for attach,
 *    since the daemon gives a process its own rank again whose holder has lost its
 *    connection. (A reader may so leave an attachment, which ends with the process.)
 * 3. Anything else (remove, kick, gc, shutdown): -EPIPE; the caller looks and decides.
 *
 * A new connection resumes the client's attachments before anything else. One that the
 * new daemon does not know (its keeper died too) is offered to it (offer.h). If it is
 * refused for good (the rank was given away, the name is another cache's), it gets the
 * number 0: it stays mapped, but nobody else can find it. No daemon is ever started to
 * reconnect: it would know of nothing.
 */
#include "client/client.h"

#include <errno.h>
#include <unistd.h>

#include "client/cache.h"
#include "client/connect.h"
#include "client/offer.h"
#include "client/wire.h"

#define CALL_TRIES 3u /* daemons that may be lost under one call */

static void lose(struct kvw_client *client)
{
    if (client->socket >= 0)
        close(client->socket);
    client->socket = -1;
}

static bool is_lost(int result)
{
    return result == -EPIPE || result == -ECONNRESET;
}

static bool has_progress(uint32_t request)
{
    return request == KVW_MESSAGE_CREATE || request == KVW_MESSAGE_MOVE ||
           request == KVW_MESSAGE_NUMA;
}

/* Send once, with three segments or without (NULL), receive the answer, and progress
 * before it. The connection is closed where an answer could still come that nobody would
 * expect. */
static int exchange(struct kvw_client *client, struct kvw_message *request,
                    const int *segments, struct kvw_message *answer,
                    struct wire_fds *fds, kvw_progress_fn *progress, void *context)
{
    request->request = ++client->request;
    int result = segments == NULL ? wire_send(client->socket, request,
                                              wire_now_ms() + client->call_ms)
                                  : offer_send(client->socket, request, segments,
                                               wire_now_ms() + client->call_ms);
    while (result == 0) {
        result = wire_receive(client->socket, client->packet, answer, fds,
                              wire_now_ms() + client->call_ms);
        if (result < 0)
            break;
        if (answer->request == request->request &&
            answer->type == KVW_MESSAGE_PROGRESS && has_progress(request->type)) {
            wire_fds_close(fds, 0);
            if (progress != NULL)
                progress(context, answer->progress.done_bytes,
                         answer->progress.total_bytes);
            continue;
        }
        if (answer->request == request->request &&
            (answer->type == request->type + 1 || answer->type == KVW_MESSAGE_REFUSED))
            return 0;
        wire_fds_close(fds, 0);
        result = -EPROTO;
    }
    if (result != -EINVAL && result != -EMSGSIZE)
        lose(client);
    return result;
}

/* exchange() for messages without progress, whose answer has no descriptors. */
static int ask_with(struct kvw_client *client, struct kvw_message *request,
                    struct kvw_message *answer, const int *segments)
{
    struct wire_fds fds;
    int result = exchange(client, request, segments, answer, &fds, NULL, NULL);

    if (result == 0)
        wire_fds_close(&fds, 0);
    return result;
}

static int ask(struct kvw_client *client, struct kvw_message *request,
               struct kvw_message *answer)
{
    return ask_with(client, request, answer, NULL);
}

/* -------------------------------------------------------- reconnecting ---------- */

/* What became of an attachment, by the daemon's word. */
enum fate {
    FATE_KNOWN = 0,
    FATE_UNKNOWN = 1, /* the daemon has no such attachment of this process */
    FATE_UNTOLD = 2,  /* it does not say now: later */
};

static int resume(struct kvw_client *client, struct kvw_message *request,
                  enum fate *fate)
{
    struct kvw_message answer;

    int result = ask(client, request, &answer);
    if (result < 0)
        return result;
    *fate = answer.type == KVW_MESSAGE_RESUMED ? FATE_KNOWN
            : answer.refused.error == ENOENT || answer.refused.error == EACCES
                ? FATE_UNKNOWN
                : FATE_UNTOLD;
    return 0;
}

static int offer(struct kvw_client *client, struct kvw_cache *cache)
{
    struct kvw_message request = {.type = KVW_MESSAGE_OFFER};
    struct kvw_message answer;

    cache->is_lost = true;
    if (!offer_request(cache, &request))
        cache->attachment = 0;
    else {
        int result = ask_with(client, &request, &answer, cache->fds);
        if (result < 0)
            return result;
        offer_conclude(cache, &answer);
    }
    return 0;
}

static int resume_cache(struct kvw_client *client, struct kvw_cache *cache)
{
    struct kvw_message request = {
        .type = KVW_MESSAGE_RESUME,
        .resume = {.attachment = cache->attachment, .slot = cache->slot}};
    enum fate fate = FATE_UNTOLD;

    if (cache->attachment == 0)
        return 0;
    offer_identify(cache, &request);
    int result = resume(client, &request, &fate);
    cache->is_lost = fate == FATE_UNTOLD;
    return result == 0 && fate == FATE_UNKNOWN ? offer(client, cache) : result;
}

/* `request` is what the connection is made for: a detach is of an attachment that is
 * not in the list any more. */
static int resume_all(struct kvw_client *client, const struct kvw_message *request)
{
    struct kvw_message detached = {
        .type = KVW_MESSAGE_RESUME,
        .resume = {.attachment = request->detach.attachment,
                   .slot = request->detach.slot,
                   .uuid = request->detach.uuid,
                   .uuid_bytes = request->detach.uuid_bytes}};
    enum fate fate;
    int result = 0;

    for (struct kvw_cache *cache = client->caches; cache != NULL && result == 0;
         cache = cache->next)
        result = resume_cache(client, cache);
    if (result == 0 && request->type == KVW_MESSAGE_DETACH)
        result = resume(client, &detached, &fate);
    return result;
}

/* Those that the daemon did not want yet: a reader's, before a worker of its cache has
 * come back; all of them, while the daemon adopts nothing. */
static int resume_lost(struct kvw_client *client)
{
    int result = 0;

    for (struct kvw_cache *cache = client->caches; cache != NULL && result == 0;
         cache = cache->next) {
        if (cache->is_lost && cache->attachment != 0)
            result = resume_cache(client, cache);
    }
    return result;
}

/* Waits for a daemon that is being started again, but only once: while nobody is there,
 * each later call makes one attempt. */
static int reconnect(struct kvw_client *client, const struct kvw_message *request)
{
    int result = connect_dial(client, client->is_absent ? 0 : CONNECT_HANG_UP_MS);

    client->is_absent = result == -ENOENT || result == -ECONNREFUSED;
    client->is_silent = result == -ETIMEDOUT;
    if (client->is_absent)
        return fail(-EPIPE, "the connection is lost: %s", kvw_last_error());
    return result < 0 ? result : resume_all(client, request);
}

static bool is_repeatable(const struct kvw_message *request)
{
    switch (request->type) {
    case KVW_MESSAGE_ATTACH:
    case KVW_MESSAGE_CREATE:
    case KVW_MESSAGE_DETACH:
    case KVW_MESSAGE_RESTART:
    case KVW_MESSAGE_RESUME:
    case KVW_MESSAGE_STAT:
    case KVW_MESSAGE_WHO:
    case KVW_MESSAGE_STATUS:
        return true;
    case KVW_MESSAGE_GC:
        return request->gc.is_dry_run != 0;
    default:
        return false;
    }
}

/* ------------------------------------------------------------- calling ---------- */

static int check_fds(struct kvw_client *client, const struct kvw_message *request,
                     const struct kvw_message *answer, struct wire_fds *fds,
                     uint32_t n_fds)
{
    if (!fds->is_cut && fds->n_fds >= n_fds)
        return 0;
    uint32_t n_got = fds->n_fds;
    bool is_cut = fds->is_cut;
    wire_fds_close(fds, 0);
    if (answer->type == KVW_MESSAGE_ATTACHED) {
        struct kvw_message detach = {.type = KVW_MESSAGE_DETACH};
        struct kvw_message ignored;
        detach.detach.attachment = answer->attached.attachment;
        (void)!ask(client, &detach, &ignored);
    }
    if (!is_cut)
        return fail(-EPROTO, "%s: %u descriptors came with the answer, need %u",
                    message_name(request->type), n_got, n_fds);
    return fail(-EMFILE, "%s: no room for %u descriptors; raise the limit (ulimit -n)",
                message_name(request->type), n_fds);
}

/* The answer of a daemon that lives: a refusal, or success with its descriptors. */
static int conclude(struct kvw_client *client, const struct kvw_message *request,
                    const struct kvw_message *answer, struct wire_fds *got, int *fds,
                    uint32_t n_fds)
{
    if (answer->type == KVW_MESSAGE_REFUSED) {
        uint32_t error = answer->refused.error;
        wire_fds_close(got, 0);
        if (error == 0 || error > KVW_ELAYOUT)
            return fail(-EPROTO, "%s: refused with error %u",
                        message_name(request->type), error);
        return fail_refused(-(int)error, &answer->refused);
    }
    int result = check_fds(client, request, answer, got, n_fds);
    if (result < 0)
        return result;
    wire_fds_close(got, n_fds);
    for (uint32_t i = 0; i < n_fds; i++)
        fds[i] = got->fd[i];
    return 0;
}

static int fail_call(const struct kvw_client *client, const struct kvw_message *request,
                     int result)
{
    const char *name = message_name(request->type);

    switch (result) {
    case -EPIPE:
    case -ECONNRESET:
        return fail(-EPIPE, "%s: the daemon at %s went away before it answered", name,
                    client->socket_path);
    case -ETIMEDOUT:
        return fail(result,
                    "%s: no answer from the daemon at %s, pid %u, within %.3f s: is it "
                    "stopped?",
                    name, client->socket_path, client->daemon_pid,
                    (double)client->call_ms / 1e3);
    case -EPROTO:
        return fail(result, "%s: the daemon at %s answered with something else", name,
                    client->socket_path);
    case -EINVAL:
    case -EMSGSIZE:
        return fail(-EINVAL, "%s: a name is too long", name);
    default:
        return fail(result, "%s: %s", name, kvw_strerror(result));
    }
}

int client_call(struct kvw_client *client, struct kvw_message *request,
                struct kvw_message *answer, int *fds, uint32_t n_fds,
                kvw_progress_fn *progress, void *context)
{
    struct wire_fds got;
    int result = -EPIPE;

    KVW_CHECK(n_fds <= KVW_MESSAGE_FDS_MAX);
    for (uint32_t i = 0; i < CALL_TRIES; i++) {
        bool is_new = client->socket < 0;
        result = is_new ? reconnect(client, request) : resume_lost(client);
        if (is_lost(result) && !client->is_absent)
            continue;
        if (result < 0)
            return is_new ? result : fail_call(client, request, result);
        result = exchange(client, request, NULL, answer, &got, progress, context);
        client->is_silent = result == -ETIMEDOUT;
        if (result == 0)
            return conclude(client, request, answer, &got, fds, n_fds);
        if (!is_lost(result) || (result == -EPIPE && !is_repeatable(request)))
            break;
    }
    return fail_call(client, request, result);
}
