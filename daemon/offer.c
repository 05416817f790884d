/* SPDX-License-Identifier: Apache-2.0 */
/* The place of the one who offers; offer_judge.c has what becomes of the cache. */
#include "daemon/offer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "daemon/attachment.h"
#include "daemon/cache.h"
#include "daemon/link.h"
#include "daemon/offer_judge.h"

static const char *const segment_names[] = {"control", "pins", "data"};

static struct cache *find_cache(const struct daemon *daemon, int control_fd)
{
    const struct segment control = {.fd = control_fd};

    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        struct cache *cache = daemon->caches[i];
        if (cache != NULL &&
            segment_is_same(&control, &cache->segment[SEGMENT_CONTROL]))
            return cache;
    }
    return NULL;
}

static int check_segments(const struct client *client, const struct cache *cache,
                          bool is_reader, struct kvw_refusal *refusal)
{
    for (uint32_t s = 0; s < N_SEGMENTS; s++) {
        const struct segment segment = {.fd = client->fds[s]};
        if (!segment_is_same(&segment, &cache->segment[s]))
            return refuse(refusal, -EINVAL, 0, 0,
                          "offer: the %s segment is not that of cache '%s'",
                          segment_names[s], cache->meta.name);
        if (!is_reader && (fcntl(segment.fd, F_GETFL) & O_ACCMODE) != O_RDWR)
            return refuse(refusal, -EACCES, O_RDWR, 0,
                          "offer: the %s segment cannot be written by its descriptor",
                          segment_names[s]);
    }
    if (!cache_permits(cache, client, is_reader ? CACHE_READ : CACHE_WRITE))
        return refuse(refusal, -EACCES, 0, cache->meta.mode,
                      "offer: cache '%s' of user %u has mode %04o: not for user %u",
                      cache->meta.name, cache->meta.uid, cache->meta.mode,
                      client->peer.uid);
    return 0;
}

/* The seat must say what the worker says: nobody had the rank in between. */
static int check_seat(const struct cache *cache, const struct kvw_message_offer *offer,
                      struct kvw_refusal *refusal)
{
    if (offer->rank >= cache->meta.geometry.n_ranks)
        return refuse(refusal, -ERANGE, offer->rank, cache->meta.geometry.n_ranks,
                      "offer: cache '%s' has no rank %u", cache->meta.name,
                      offer->rank);
    const struct kvw_seat *seat =
        layout_seat(cache->segment[SEGMENT_CONTROL].base, &cache->layout, offer->rank);
    if (cache->owner[offer->rank] != NULL ||
        load_relaxed(&seat->state) != KVW_SEAT_OWNED ||
        load_relaxed(&seat->owner) != offer->attachment ||
        load_relaxed(&seat->incarnation) != offer->incarnation)
        return refuse(refusal, -ESTALE, 0, 0,
                      "offer: rank %u of '%s' is not this worker's any more",
                      offer->rank, cache->meta.name);
    return 0;
}

static int check_place(const struct cache *cache, const struct kvw_message_offer *offer,
                       struct kvw_refusal *refusal)
{
    if (cache->state != CACHE_READY)
        return refuse(refusal, -ESTALE, 0, 0, "offer: cache '%s' was removed",
                      cache->meta.name);
    if (offer->slot >= cache->meta.offered_slots || cache->by_slot[offer->slot] != NULL)
        return refuse(refusal, -ESTALE, offer->slot, cache->meta.offered_slots,
                      "offer: slot %u of '%s' is not this worker's any more",
                      offer->slot, cache->meta.name);
    return offer->rank == KVW_RANK_READER ? 0 : check_seat(cache, offer, refusal);
}

static int place(struct daemon *daemon, struct client *client, struct cache *cache,
                 const struct kvw_message_offer *offer, uint64_t *attachment_id,
                 struct kvw_refusal *refusal)
{
    struct peer peer = {.pidfd = -1};

    int error = check_place(cache, offer, refusal);
    if (error != 0)
        return error;
    error = attachment_open_peer(client, &peer);
    if (error != 0)
        return refuse(refusal, error, 0, 0, "offer: its process is not known: %s",
                      strerrordesc_np(-error));
    struct attachment *attachment =
        attachment_add(daemon, cache, offer->rank, offer->slot, &peer);
    if (attachment == NULL) {
        peer_close(&peer);
        return attachment_refuse(daemon, refusal);
    }
    attachment->id = ++daemon->last_attachment_id;
    attachment->client = client;
    error = link_put_attachment(daemon, attachment);
    if (error != 0) {
        attachment_forget(daemon, attachment);
        return refuse(refusal, error, 0, 0, "offer: it cannot be kept: %s",
                      strerrordesc_np(-error));
    }
    if (offer->rank != KVW_RANK_READER)
        attachment_seat(attachment, offer->incarnation);
    *attachment_id = attachment->id;
    return 0;
}

/* The same place was given to the same process, and the answer was lost. */
static struct attachment *find_own(const struct client *client,
                                   const struct cache *cache,
                                   const struct kvw_message_offer *offer)
{
    struct attachment *attachment =
        offer->slot < KVW_ATTACHMENTS_MAX ? cache->by_slot[offer->slot] : NULL;

    return attachment != NULL && attachment->rank == offer->rank &&
                   attachment->client == NULL &&
                   peer_is_same(&client->peer, &attachment->peer)
               ? attachment
               : NULL;
}

int offer_serve(struct daemon *daemon, struct client *client,
                const struct kvw_message *request, struct reply *reply,
                struct kvw_refusal *refusal)
{
    const struct kvw_message_offer *offer = &request->offer;
    bool is_reader = offer->rank == KVW_RANK_READER;
    bool is_new = false;
    int error = 0;

    if (client->n_fds != N_SEGMENTS)
        return refuse(refusal, -EINVAL, N_SEGMENTS, client->n_fds,
                      "an offer has three descriptors, this one %u", client->n_fds);
    /* Before anything that a file system of the client's own would have to answer. */
    for (uint32_t s = 0; s < N_SEGMENTS; s++) {
        if (fcntl(client->fds[s], F_GET_SEALS) < 0)
            return refuse(refusal, -EINVAL, 0, 0, "offer: the %s segment is no memfd",
                          segment_names[s]);
    }
    struct cache *cache = find_cache(daemon, client->fds[SEGMENT_CONTROL]);
    if (cache == NULL && is_reader)
        return refuse(refusal, -ENOENT, 0, 0,
                      "offer: no worker has brought that cache back yet");
    if (cache != NULL) {
        error = check_segments(client, cache, is_reader, refusal);
    } else {
        error = offer_judge(daemon, client, &cache, refusal);
        is_new = error == 0;
    }
    if (error != 0) {
        log_peer(&daemon->log, LOG_WARN, "offer refused pid %u uid %u: %s",
                 client->peer.pid, client->peer.uid, refusal->text);
        return error;
    }
    struct kvw_message_offered *offered = &reply->message.offered;
    reply->message.type = KVW_MESSAGE_OFFERED;
    *offered =
        (struct kvw_message_offered){.cache = cache->meta.id, .is_adopted = is_new};
    struct attachment *own = find_own(client, cache, offer);
    if (own != NULL) {
        own->client = client;
        offered->attachment = own->id;
        return 0;
    }
    error = place(daemon, client, cache, offer, &offered->attachment, refusal);
    if (error != 0 && is_new) {
        link_drop_cache(daemon, cache);
        cache_free(daemon, cache);
    }
    log_peer(&daemon->log, error == 0 ? LOG_INFO : LOG_WARN,
             "offer %s pid %u rank %d: %s", error != 0 ? "refused" : "taken",
             client->peer.pid, is_reader ? -1 : (int)offer->rank,
             error != 0 ? refusal->text : cache->meta.name);
    return error;
}
