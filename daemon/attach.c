/* SPDX-License-Identifier: Apache-2.0 */
/* ATTACH, DETACH and RESUME: who may have a place, and who still has one. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/attachment.h"
#include "daemon/await.h"
#include "daemon/cache.h"
#include "daemon/host.h"
#include "daemon/link.h"
#include "daemon/numa.h"
#include "proto/base/cleanup.h"

/* "2026-01-31 12:00:00 UTC" */
static void format_time(uint64_t wall_ns, char text[32])
{
    time_t seconds = (time_t)(wall_ns / 1000000000ull);
    struct tm parts;

    if (gmtime_r(&seconds, &parts) == NULL ||
        strftime(text, 32, "%Y-%m-%d %H:%M:%S UTC", &parts) == 0)
        text[0] = 0;
}

static int refuse_held(const struct attachment *holder, struct kvw_refusal *refusal)
{
    char since[32];

    format_time(holder->since_ns, since);
    return refuse(refusal, -EBUSY, 0, holder->peer.pid,
                  "rank %u of '%s' is held by pid %u (%s) since %s", holder->rank,
                  holder->cache->meta.name, holder->peer.pid,
                  holder->client != NULL ? "connected" : "which lost its connection",
                  since);
}

/* Its owner may live, and store: it was attached when daemon and keeper were lost. */
static int refuse_awaited(const struct cache *cache, uint32_t rank,
                          struct kvw_refusal *refusal)
{
    const struct kvw_seat *seat =
        layout_seat(cache->segment[SEGMENT_CONTROL].base, &cache->layout, rank);
    uint32_t pid = load_relaxed(&seat->pid);

    return refuse(
        refusal, -EBUSY, 0, pid,
        "rank %u of '%s' was held by pid %u%s when daemon and keeper were lost; "
        "it has not made a call since, and is awaited until it is dead",
        rank, cache->meta.name, pid, pid == 0 ? " (in another PID namespace)" : "");
}

static int find_attachable(const struct daemon *daemon, const char *name,
                           struct cache **out, struct kvw_refusal *refusal)
{
    struct cache *cache = cache_find(daemon, name);

    if (cache == NULL)
        return refuse(refusal, -ENOENT, 0, 0, "there is no cache '%s'", name);
    if (cache->state == CACHE_CREATING)
        return refuse(refusal, -ENOENT, cache->total_bytes, cache->done_bytes,
                      "cache '%s' is still being created: %" PRIu64 " of %" PRIu64
                      " bytes",
                      name, cache->done_bytes, cache->total_bytes);
    *out = cache;
    return 0;
}

static int check_rank(const struct client *client, const struct cache *cache,
                      uint32_t rank, struct kvw_refusal *refusal)
{
    bool is_reader = rank == KVW_RANK_READER;
    uint32_t n_ranks = cache->meta.geometry.n_ranks;

    if (!is_reader && rank >= n_ranks)
        return refuse(refusal, -ERANGE, rank, n_ranks,
                      "cache '%s' has ranks 0 to %u, asked rank %u", cache->meta.name,
                      n_ranks - 1, rank);
    if (!cache_permits(cache, client, is_reader ? CACHE_READ : CACHE_WRITE))
        return refuse(refusal, -EACCES, 0, cache->meta.mode,
                      "cache '%s' of user %u has mode %04o: user %u may not %s it",
                      cache->meta.name, cache->meta.uid, cache->meta.mode,
                      client->peer.uid, is_reader ? "read" : "write");
    return 0;
}

/*
 * A holder that is the asking process itself and has no connection: the answer to its
 * earlier attach was lost with the daemon before this one. It may not be refused its
 * own rank. Its other client, if there is one, learns from its resume that the rank has
 * moved.
 */
static bool is_own_orphan(const struct client *client, const struct attachment *holder)
{
    return holder->client == NULL && peer_is_same(&client->peer, &holder->peer);
}

/* Readers leave a slot for every rank that nobody owns. */
static int find_slot(const struct cache *cache, uint32_t rank, uint32_t *slot,
                     struct kvw_refusal *refusal)
{
    uint32_t n_free = 0;
    uint32_t n_kept = 0;

    for (uint32_t s = KVW_ATTACHMENTS_MAX; s-- > cache->meta.offered_slots;) {
        if (cache->by_slot[s] == NULL) {
            *slot = s;
            n_free++;
        }
    }
    for (uint32_t r = 0; rank == KVW_RANK_READER && r < cache->meta.geometry.n_ranks;
         r++)
        n_kept += cache->owner[r] == NULL;
    if (n_free > n_kept)
        return 0;
    return refuse(refusal, -EMFILE, KVW_ATTACHMENTS_MAX + 1, KVW_ATTACHMENTS_MAX,
                  "cache '%s' has %u attachments, at most %u, of which %u are kept for "
                  "ranks that nobody owns",
                  cache->meta.name, cache->n_attachments, KVW_ATTACHMENTS_MAX, n_kept);
}

/* Of the daemon's places no user takes more than half; in a cache of somebody else too. */
static int check_share(const struct daemon *daemon, const struct client *client,
                       const struct cache *cache, struct kvw_refusal *refusal)
{
    const uint32_t uid = client->peer.uid;
    const uint32_t most = share_of(daemon, KVW_ALL_ATTACHMENTS_MAX);
    uint32_t n_all = 0;
    uint32_t n_here = 0;

    if (share_is_unlimited(uid))
        return 0;
    for (uint32_t i = 0; i < KVW_ALL_ATTACHMENTS_MAX; i++) {
        const struct attachment *attachment = daemon->attachments[i];
        if (attachment == NULL || attachment->peer.uid != uid)
            continue;
        n_all++;
        n_here += attachment->cache == cache;
    }
    if (n_all >= most)
        return refuse(refusal, -EDQUOT, n_all + 1, most,
                      "user %u has %u attachments, at most %u for one user", uid, n_all,
                      most);
    if (uid != cache->meta.uid && n_here >= KVW_ATTACHMENTS_MAX / 2)
        return refuse(refusal, -EDQUOT, n_here + 1, KVW_ATTACHMENTS_MAX / 2,
                      "user %u has %u attachments of cache '%s' of user %u, at most %u",
                      uid, n_here, cache->meta.name, cache->meta.uid,
                      KVW_ATTACHMENTS_MAX / 2);
    return 0;
}

/* Control, pins, data. Owned by the reply, for the cache may be gone before it is sent.
 */
static int open_descriptors(const struct cache *cache, bool is_reader,
                            struct reply *reply)
{
    for (uint32_t s = 0; s < N_SEGMENTS; s++) {
        const struct segment *segment = &cache->segment[s];
        int fd = is_reader && s != SEGMENT_PINS
                     ? segment_reopen_readonly(segment)
                     : fcntl(segment->fd, F_DUPFD_CLOEXEC, 3);

        if (fd < 0)
            return fd == -1 ? -errno : fd;
        reply->fds[reply->n_fds++] = fd;
    }
    return 0;
}

int attachment_open_peer(const struct client *client, struct peer *peer)
{
    int error = peer_of(client->socket, peer);

    if (error != 0 || peer_is_same(&client->peer, peer))
        return error;
    peer_close(peer);
    return -ESRCH;
}

/* The tables, then the store, then the seat; nothing of it on failure. */
static int enter(struct daemon *daemon, struct client *client, struct cache *cache,
                 uint32_t rank, struct reply *reply, struct kvw_refusal *refusal)
{
    struct peer peer = {.pidfd = -1};
    struct kvw_message_attached *attached = &reply->message.attached;
    uint32_t slot = 0;

    int error = check_share(daemon, client, cache, refusal);
    if (error == 0)
        error = find_slot(cache, rank, &slot, refusal);
    if (error != 0)
        return error;
    error = open_descriptors(cache, rank == KVW_RANK_READER, reply);
    if (error == 0)
        error = attachment_open_peer(client, &peer);
    if (error != 0)
        return refuse(
            refusal, error, N_SEGMENTS + 1, 0,
            "attach to '%s': the daemon cannot open the descriptors to give: %s",
            cache->meta.name, strerrordesc_np(-error));
    struct attachment *attachment = attachment_add(daemon, cache, rank, slot, &peer);
    if (attachment == NULL) {
        peer_close(&peer);
        return attachment_refuse(daemon, refusal);
    }
    attachment->id = ++daemon->last_attachment_id;
    attachment->client = client;
    if (rank != KVW_RANK_READER) {
        const struct kvw_seat *seat =
            layout_seat(cache->segment[SEGMENT_CONTROL].base, &cache->layout, rank);
        /* Of the worker's own cache, and for diagnosis: it need not be believed. */
        attached->incarnation = load_relaxed(&seat->incarnation) + 1;
        attachment->was_dead = load_relaxed(&seat->state) == KVW_SEAT_DEAD;
    }
    error = link_put_attachment(daemon, attachment);
    if (error != 0) {
        attachment_end(daemon, attachment, ENDING_UNDONE);
        return refuse(refusal, error, 0, 0,
                      "attach to '%s': the keeper did not take it: %s",
                      cache->meta.name, strerrordesc_np(-error));
    }
    attached->cache = cache->meta.id;
    attached->attachment = attachment->id;
    attached->slot = slot;
    attached->was_dead = attachment->was_dead;
    if (rank != KVW_RANK_READER)
        attachment_seat(attachment, attached->incarnation);
    reply->attachment = attachment->id;
    return 0;
}

int attachment_serve_attach(struct daemon *daemon, struct client *client,
                            const struct kvw_message *request, struct reply *reply,
                            struct kvw_refusal *refusal)
{
    const uint32_t rank = request->attach.rank;
    struct cache *cache = NULL;

    int error = find_attachable(daemon, request->attach.name, &cache, refusal);
    if (error == 0)
        error = check_rank(client, cache, rank, refusal);
    /* Who saw its owner die is not told that it lives. */
    if (error == 0 && rank != KVW_RANK_READER && cache->owner[rank] != NULL &&
        attachment_bury(daemon, cache->owner[rank]))
        error = find_attachable(daemon, request->attach.name, &cache, refusal);
    if (error != 0)
        return error;
    struct attachment *holder = rank == KVW_RANK_READER ? NULL : cache->owner[rank];
    if (holder != NULL && is_own_orphan(client, holder))
        attachment_end(daemon, holder, ENDING_REPLACED);
    else if (holder != NULL)
        return refuse_held(holder, refusal);
    else if (rank != KVW_RANK_READER && await_is_rank(cache, rank))
        return refuse_awaited(cache, rank, refusal);
    reply->message.type = KVW_MESSAGE_ATTACHED;
    error = enter(daemon, client, cache, rank, reply, refusal);
    if (error == 0) {
        cache_touch(cache);
        if (rank != KVW_RANK_READER)
            numa_follow(daemon, cache, rank, request->attach.node);
    } else if (cache->n_attachments == 0 && cache->expires_ns == NEVER_NS) {
        cache_start_expiry(cache); /* as it was before */
    }
    return error;
}

/* What detach and resume say: the number may have been given again by a daemon that
 * found nothing kept. */
struct meant {
    uint64_t id;
    uint32_t slot;
    const uint8_t *uuid;
    uint32_t uuid_bytes; /* 0 = whichever has the number */
};

static bool is_meant(const struct attachment *attachment, const struct meant *meant)
{
    const struct cache_meta *meta = &attachment->cache->meta;

    return meant->uuid_bytes == 0 ||
           (meant->uuid_bytes == sizeof meta->uuid &&
            memcmp(meant->uuid, meta->uuid, sizeof meta->uuid) == 0 &&
            meant->slot == attachment->slot);
}

static int find_own(const struct daemon *daemon, const struct client *client,
                    const struct meant *meant, struct attachment **out,
                    struct kvw_refusal *refusal)
{
    struct attachment *attachment = attachment_find(daemon, meant->id);

    if (attachment == NULL || !is_meant(attachment, meant))
        return refuse(refusal, -ENOENT, 0, 0, "there is no attachment %" PRIu64,
                      meant->id);
    if (!peer_is_same(&client->peer, &attachment->peer))
        return refuse(refusal, -EACCES, attachment->peer.pid, client->peer.pid,
                      "attachment %" PRIu64 " is of pid %u, not of pid %u", meant->id,
                      attachment->peer.pid, client->peer.pid);
    *out = attachment;
    return 0;
}

int attachment_serve_detach(struct daemon *daemon, struct client *client,
                            const struct kvw_message *request, struct reply *reply,
                            struct kvw_refusal *refusal)
{
    struct attachment *attachment = NULL;
    const struct meant meant = {request->detach.attachment, request->detach.slot,
                                request->detach.uuid, request->detach.uuid_bytes};

    int error = find_own(daemon, client, &meant, &attachment, refusal);
    if (error != 0)
        return error;
    attachment_end(daemon, attachment, ENDING_DETACHED);
    reply->message.type = KVW_MESSAGE_DETACHED;
    reply->message.detached.attachment = request->detach.attachment;
    return 0;
}

int attachment_serve_resume(struct daemon *daemon, struct client *client,
                            const struct kvw_message *request, struct reply *reply,
                            struct kvw_refusal *refusal)
{
    struct attachment *attachment = NULL;
    const struct meant meant = {request->resume.attachment, request->resume.slot,
                                request->resume.uuid, request->resume.uuid_bytes};

    int error = find_own(daemon, client, &meant, &attachment, refusal);
    if (error != 0)
        return error;
    attachment->client = client;
    reply->message.type = KVW_MESSAGE_RESUMED;
    reply->message.resumed.attachment = request->resume.attachment;
    return 0;
}
