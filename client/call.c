/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request and its answer, over a connection that may have been lost. What happens
 * then:
 *
 * 1. The daemon went away before it read the request (the kernel says so): it is sent
 * again to the next daemon, whatever it asks for.
 * 2. It may have read it, and asking twice is the same as asking once (create, detach,
 *    resume, stat, who, status, a dry gc): sent again.
 * 3. An attach whose answer was lost may have left an attachment of which this process
 * does not know, and which would hold the rank until the process ends. It is found by
 * pid, rank and time, ended, and the attach is sent again. A reader's is left and sent
 * again: it holds no rank, and a daemon ends it with the process.
 * 4. Anything else (remove, kick, gc, shutdown): -EPIPE, and the caller may look and
 * decide.
 *
 * A new connection resumes the client's attachments before anything else. One that the
 * new daemon does not know (its keeper died too) stays mapped and usable; nobody else
 * can find it. No daemon is ever started to reconnect: it would know of nothing.
 */
#include "client/client.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client/cache.h"
#include "client/connect.h"
#include "client/outside.h"
#include "client/wire.h"

#define CALL_TRIES 3u /* daemons that may be lost under one call */
#define CALL_MS                                                           \
    60000u /* for an answer, or for progress; removal of a TiB takes long \
            */

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

/* Send once, receive the answer, and progress before it. The connection is closed where
 * an answer could still come that nobody would expect. */
static int exchange(struct kvw_client *client, struct kvw_message *request,
                    struct kvw_message *answer, struct wire_fds *fds,
                    kvw_progress_fn *progress, void *context)
{
    request->request = ++client->request;
    int result = wire_send(client->socket, request, wire_now_ms() + CALL_MS);
    while (result == 0) {
        result = wire_receive(client->socket, client->packet, answer, fds,
                              wire_now_ms() + CALL_MS);
        if (result < 0)
            break;
        if (answer->request == request->request &&
            answer->type == KVW_MESSAGE_PROGRESS &&
            request->type == KVW_MESSAGE_CREATE) {
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

/* exchange() for messages without descriptors and progress. */
static int ask(struct kvw_client *client, struct kvw_message *request,
               struct kvw_message *answer)
{
    struct wire_fds fds;
    int result = exchange(client, request, answer, &fds, NULL, NULL);

    if (result == 0)
        wire_fds_close(&fds, 0);
    return result;
}

/* -------------------------------------------------------- reconnecting ---------- */

static int resume(struct kvw_client *client, uint64_t attachment)
{
    struct kvw_message request = {.type = KVW_MESSAGE_RESUME};
    struct kvw_message answer;

    request.resume.attachment = attachment;
    return ask(client, &request, &answer);
}

/* `request` is what the connection is made for: a detach is of an attachment that is
 * not in the list any more. */
static int resume_all(struct kvw_client *client, const struct kvw_message *request)
{
    int result = 0;

    for (const struct kvw_cache *cache = client->caches; cache != NULL && result == 0;
         cache = cache->next)
        result = resume(client, cache->attachment);
    if (result == 0 && request->type == KVW_MESSAGE_DETACH)
        result = resume(client, request->detach.attachment);
    return result;
}

/* Waits for a daemon that is being started again, but only once: while nobody is there,
 * each later call makes one attempt. */
static int reconnect(struct kvw_client *client, const struct kvw_message *request)
{
    int result = connect_dial(client, client->is_absent ? 0 : CONNECT_HANG_UP_MS);

    client->is_absent = result == -ENOENT || result == -ECONNREFUSED;
    if (client->is_absent)
        return fail(-EPIPE, "the connection is lost: %s", kvw_last_error());
    return result < 0 ? result : resume_all(client, request);
}

static bool is_repeatable(const struct kvw_message *request)
{
    switch (request->type) {
    case KVW_MESSAGE_CREATE:
    case KVW_MESSAGE_DETACH:
    case KVW_MESSAGE_RESUME:
    case KVW_MESSAGE_STAT:
    case KVW_MESSAGE_WHO:
    case KVW_MESSAGE_STATUS:
    case KVW_MESSAGE_ATTACH: /* after a look for what the lost one has left */
        return true;
    case KVW_MESSAGE_GC:
        return request->gc.is_dry_run != 0;
    default:
        return false;
    }
}

/* ------------------------------------------------------- a lost attach ---------- */

static bool is_ours(const struct kvw_client *client, uint64_t attachment)
{
    const struct kvw_cache *cache = client->caches;

    while (cache != NULL && cache->attachment != attachment)
        cache = cache->next;
    return cache != NULL;
}

static int end_attachment(struct kvw_client *client, uint64_t attachment)
{
    struct kvw_message request = {.type = KVW_MESSAGE_DETACH};
    struct kvw_message answer;

    int result = resume(client, attachment);
    if (result < 0)
        return result;
    request.detach.attachment = attachment;
    return ask(client, &request, &answer);
}

/* End what a lost attach has left: an attachment of this process to that rank, made
 * since, and used by no connection. Attachments of the process's other clients are
 * older, or to other ranks. A refusal means that there is none. */
static int end_orphan(struct kvw_client *client,
                      const struct kvw_message_attach *attach, uint64_t since_ns)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STAT};
    struct kvw_message answer;

    memcpy(request.stat.name, attach->name, sizeof request.stat.name);
    int result = ask(client, &request, &answer);
    if (result < 0 || answer.type == KVW_MESSAGE_REFUSED)
        return result;
    request = (struct kvw_message){.type = KVW_MESSAGE_WHO};
    request.who.cache = answer.stated.cache;
    for (uint32_t i = 0; i <= KVW_ATTACHMENTS_MAX; i++) {
        result = ask(client, &request, &answer);
        if (result < 0 || answer.type == KVW_MESSAGE_REFUSED)
            return result;
        const struct kvw_message_who_is *who = &answer.who_is;
        if (who->rank == attach->rank && who->pid == (uint32_t)getpid() &&
            !who->is_connected && who->since_ns >= since_ns &&
            !is_ours(client, who->attachment))
            return end_attachment(client, who->attachment);
        request.who.after = who->attachment;
    }
    return 0;
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
        return fail(result, "%s: no answer from the daemon at %s within %u s", name,
                    client->socket_path, CALL_MS / 1000);
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
    uint64_t since_ns = outside_now_ns(CLOCK_REALTIME);
    bool is_doubtful = false; /* a daemon that is gone may have attached us */
    int result = -EPIPE;

    KVW_CHECK(n_fds <= KVW_MESSAGE_FDS_MAX);
    for (uint32_t i = 0; i < CALL_TRIES; i++) {
        if (client->socket < 0) {
            result = reconnect(client, request);
            if (result == 0 && is_doubtful)
                result = end_orphan(client, &request->attach, since_ns);
            if (is_lost(result) && !client->is_absent)
                continue;
            if (result < 0)
                return result;
        }
        result = exchange(client, request, answer, &got, progress, context);
        if (result == 0)
            return conclude(client, request, answer, &got, fds, n_fds);
        if (!is_lost(result) || (result == -EPIPE && !is_repeatable(request)))
            break;
        if (result == -EPIPE && request->type == KVW_MESSAGE_ATTACH &&
            request->attach.rank != KVW_RANK_READER)
            is_doubtful = true;
    }
    return fail_call(client, request, result);
}
