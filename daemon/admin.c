/* SPDX-License-Identifier: Apache-2.0 */
/* REMOVE, KICK, GC and SHUTDOWN: orders, and who may give them. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "daemon/attachment.h"
#include "daemon/cache.h"
#include "daemon/host.h"
#include "daemon/request.h"

static int refuse_not_owner(const struct client *client, const struct cache *cache,
                            struct kvw_refusal *refusal)
{
    return refuse(refusal, -EACCES, cache->meta.uid, client->peer.uid,
                  "cache '%s' belongs to user %u: user %u may not do that",
                  cache->meta.name, cache->meta.uid, client->peer.uid);
}

int admin_remove(struct daemon *daemon, struct client *client,
                 const struct kvw_message *request, struct reply *reply,
                 struct kvw_refusal *refusal)
{
    struct cache *cache = cache_find(daemon, request->remove.name);

    if (cache == NULL)
        return refuse(refusal, -ENOENT, 0, 0, "there is no cache '%s'",
                      request->remove.name);
    if (!cache_is_owner(cache, client))
        return refuse_not_owner(client, cache, refusal);
    if (cache->state == CACHE_CREATING)
        return refuse(refusal, -EBUSY, cache->total_bytes, cache->done_bytes,
                      "cache '%s' is still being created", cache->meta.name);
    if (cache->n_attachments > 0 && !request->remove.is_forced)
        return refuse(refusal, -EBUSY, 0, cache->n_attachments,
                      "cache '%s' has %u attachments; force it, and they learn that it "
                      "is gone",
                      cache->meta.name, cache->n_attachments);
    reply->message.type = KVW_MESSAGE_REMOVED;
    reply->message.removed.cache = cache->meta.id;
    reply->message.removed.freed_bytes = cache_remove(daemon, cache);
    return 0;
}

static int find_kicked(const struct daemon *daemon, const struct kvw_message_kick *kick,
                       struct attachment **out, struct kvw_refusal *refusal)
{
    if (kick->attachment != 0) {
        *out = attachment_find(daemon, kick->attachment);
        if (*out == NULL)
            return refuse(refusal, -ENOENT, 0, 0, "there is no attachment %" PRIu64,
                          kick->attachment);
        return 0;
    }
    const struct cache *cache = cache_find(daemon, kick->name);
    if (cache == NULL)
        return refuse(refusal, -ENOENT, 0, 0, "there is no cache '%s'", kick->name);
    if (kick->rank >= cache->meta.geometry.n_ranks)
        return refuse(refusal, -ERANGE, kick->rank, cache->meta.geometry.n_ranks,
                      "cache '%s' has ranks 0 to %u, asked rank %u", kick->name,
                      cache->meta.geometry.n_ranks - 1, kick->rank);
    *out = cache->owner[kick->rank];
    if (*out == NULL)
        return refuse(refusal, -ESRCH, 0, 0, "rank %u of '%s' is held by nobody",
                      kick->rank, kick->name);
    return 0;
}

int admin_kick(struct daemon *daemon, struct client *client,
               const struct kvw_message *request, struct reply *reply,
               struct kvw_refusal *refusal)
{
    struct attachment *attachment = NULL;

    (void)reply;
    int error = find_kicked(daemon, &request->kick, &attachment, refusal);
    if (error != 0)
        return error;
    if (!cache_is_owner(attachment->cache, client))
        return refuse_not_owner(client, attachment->cache, refusal);
    if (client->pending != PENDING_NONE)
        return refuse(refusal, -EBUSY, 1, 0,
                      "this connection waits for another answer already");
    error = peer_kill(&attachment->peer);
    if (error != 0 && error != -ESRCH)
        return refuse(refusal, error, 0, 0, "pid %u cannot be killed: %s",
                      attachment->peer.pid, strerrordesc_np(-error));
    log_peer(&daemon->log, LOG_INFO, "kicked pid %u cache %s by uid %u",
             attachment->peer.pid, attachment->cache->meta.name, client->peer.uid);
    client->pending = PENDING_KICK;
    client->pending_request = request->request;
    client->pending_id = attachment->id;
    return SERVE_LATER;
}

static bool is_garbage(const struct cache *cache, uint64_t idle_seconds)
{
    uint64_t wall_ns = host_wall_ns();

    if (cache->state != CACHE_READY || cache->n_attachments > 0)
        return false;
    if (cache->meta.lifetime == LIFETIME_JOB || cache->expires_ns <= host_now_ns())
        return true;
    /* The wall clock can go back. */
    return idle_seconds != UINT64_MAX && wall_ns >= cache->used_ns &&
           (wall_ns - cache->used_ns) / 1000000000ull >= idle_seconds;
}

int admin_gc(struct daemon *daemon, struct client *client,
             const struct kvw_message *request, struct reply *reply,
             struct kvw_refusal *refusal)
{
    struct kvw_message_gc_done *done = &reply->message.gc_done;

    (void)refusal;
    reply->message.type = KVW_MESSAGE_GC_DONE;
    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        struct cache *cache = daemon->caches[i];
        if (cache == NULL || !cache_is_owner(cache, client) ||
            !is_garbage(cache, request->gc.idle_seconds))
            continue;
        done->n_caches++;
        done->freed_bytes +=
            request->gc.is_dry_run ? cache->total_bytes : cache_remove(daemon, cache);
    }
    return 0;
}

int admin_shutdown(struct daemon *daemon, struct client *client,
                   const struct kvw_message *request, struct reply *reply,
                   struct kvw_refusal *refusal)
{
    if (client->peer.uid != 0 && client->peer.uid != geteuid())
        return refuse(refusal, -EACCES, geteuid(), client->peer.uid,
                      "the daemon belongs to user %u: user %u may not stop it",
                      geteuid(), client->peer.uid);
    if (daemon->n_caches > 0 && !request->shutdown.is_forced)
        return refuse(refusal, -EBUSY, 0, daemon->n_caches,
                      "the daemon holds %u caches of %" PRIu64
                      " bytes, which would be lost; force it",
                      daemon->n_caches, cache_bytes_used(daemon, NULL));
    reply->message.type = KVW_MESSAGE_STOPPING;
    reply->message.stopping.n_caches = daemon->n_caches;
    daemon_stop(daemon, EXIT_CODE_OK);
    return 0;
}
