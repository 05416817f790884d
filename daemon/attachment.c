/* SPDX-License-Identifier: Apache-2.0 */
/* From the first to the last moment of an attachment; attach.c decides who gets one. */
#include "daemon/attachment.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "daemon/await.h"
#include "daemon/cache.h"
#include "daemon/host.h"
#include "daemon/link.h"

static struct ring_tag tag_of(const struct attachment *attachment)
{
    return (struct ring_tag){.slot = attachment->index,
                             .generation = attachment->generation,
                             .kind = RING_DEATH};
}

struct attachment *attachment_find(const struct daemon *daemon, uint64_t id)
{
    for (uint32_t i = 0; i < KVW_ALL_ATTACHMENTS_MAX; i++) {
        if (daemon->attachments[i] != NULL && daemon->attachments[i]->id == id)
            return daemon->attachments[i];
    }
    return NULL;
}

static struct kvw_seat *seat_of(const struct cache *cache, uint32_t rank)
{
    return layout_seat(cache->segment[SEGMENT_CONTROL].base, &cache->layout, rank);
}

static void clear_pins(const struct cache *cache, uint32_t slot)
{
    void *pins = cache->segment[SEGMENT_PINS].base;

    /* D3, pairs with B2 in client/pin.c. */
    for (uint32_t i = 0; i < KVW_PINS_PER_ATTACHMENT; i++)
        store_release(&layout_pin(pins, &cache->layout, slot, i)->lo_plus_1, 0);
    store_relaxed(layout_high(pins, &cache->layout, slot), 0);
}

/* Whoever is attached can write pins in anybody's slot. Those in slots that are nobody's
 * go with the next attachment that ends. */
static void clear_forged_pins(const struct cache *cache)
{
    void *pins = cache->segment[SEGMENT_PINS].base;

    for (uint32_t slot = cache->meta.offered_slots; slot < KVW_ATTACHMENTS_MAX;
         slot++) {
        if (cache->by_slot[slot] == NULL &&
            load_relaxed(layout_high(pins, &cache->layout, slot)) != 0)
            clear_pins(cache, slot);
    }
}

struct attachment *attachment_add(struct daemon *daemon, struct cache *cache,
                                  uint32_t rank, uint32_t slot, struct peer *peer)
{
    struct kvw_control_header *header = cache->segment[SEGMENT_CONTROL].base;
    uint32_t index = 0;

    while (index < KVW_ALL_ATTACHMENTS_MAX && daemon->attachments[index] != NULL)
        index++;
    if (index == KVW_ALL_ATTACHMENTS_MAX)
        return NULL;
    struct attachment *attachment = calloc(1, sizeof *attachment);
    if (attachment == NULL)
        return NULL;
    *attachment =
        (struct attachment){.index = index,
                            .generation = daemon->generation++ & RING_GENERATION_MASK,
                            .rank = rank,
                            .slot = slot,
                            .since_ns = host_wall_ns(),
                            .cache = cache,
                            .peer = *peer};
    peer->pidfd = -1;
    daemon->attachments[index] = attachment;
    daemon->n_attachments++;
    cache->by_slot[slot] = attachment;
    cache->n_attachments++;
    cache->expires_ns = NEVER_NS;
    if (rank != KVW_RANK_READER)
        cache->owner[rank] = attachment;
    /* Owners look at this many slots for pins: raised before the slot can be used. */
    if (load_relaxed(&header->attachments_high) <= slot)
        store_relaxed(&header->attachments_high, slot + 1);
    ring_poll(daemon->ring, attachment->peer.pidfd, POLLIN, tag_of(attachment));
    return attachment;
}

void attachment_seat(const struct attachment *attachment, uint64_t incarnation)
{
    struct kvw_seat *seat = seat_of(attachment->cache, attachment->rank);

    store_relaxed(&seat->incarnation, incarnation);
    store_relaxed(&seat->since_ns, attachment->since_ns);
    store_relaxed(&seat->pid, attachment->peer.pid);
    store_relaxed(&seat->owner, attachment->id);
    /* D2, pairs with W3 in client/wait.c. Last: who sees the state sees whose it is. */
    store_release(&seat->state, KVW_SEAT_OWNED);
    cache_wake(attachment->cache, attachment->rank);
}

static void leave_seat(const struct attachment *attachment, enum ending ending)
{
    struct kvw_seat *seat = seat_of(attachment->cache, attachment->rank);

    store_relaxed(&seat->since_ns, host_wall_ns());
    store_relaxed(&seat->owner, 0);
    bool is_dead =
        ending == ENDING_DEAD || (ending == ENDING_UNDONE && attachment->was_dead);
    /* D2, pairs with W3. */
    store_release(&seat->state, is_dead ? KVW_SEAT_DEAD : KVW_SEAT_FREE);
    cache_wake(attachment->cache, attachment->rank);
}

static void tell_kicked(struct daemon *daemon, const struct attachment *attachment)
{
    for (uint32_t i = 0; i < KVW_CLIENTS_MAX; i++) {
        struct client *client = daemon->clients[i];
        if (client == NULL || client->pending != PENDING_KICK ||
            client->pending_id != attachment->id)
            continue;
        struct reply reply = {.message = {.type = KVW_MESSAGE_KICKED,
                                          .request = client->pending_request,
                                          .kicked = {.pid = attachment->peer.pid}}};
        client->pending = PENDING_NONE;
        client_answer(daemon, client, &reply);
    }
}

void attachment_forget(struct daemon *daemon, struct attachment *attachment)
{
    struct cache *cache = attachment->cache;

    ring_poll_cancel(daemon->ring, tag_of(attachment));
    cache->by_slot[attachment->slot] = NULL;
    cache->n_attachments--;
    if (attachment->rank != KVW_RANK_READER)
        cache->owner[attachment->rank] = NULL;
    daemon->attachments[attachment->index] = NULL;
    daemon->n_attachments--;
    peer_close(&attachment->peer);
    free(attachment);
}

void attachment_end(struct daemon *daemon, struct attachment *attachment,
                    enum ending ending)
{
    struct cache *cache = attachment->cache;

    /* Before the store forgets it: a daemon that finds nobody attached knows since when. */
    if (ending != ENDING_UNDONE)
        cache_touch(cache);
    if (attachment->rank != KVW_RANK_READER)
        leave_seat(attachment, ending);
    clear_pins(cache, attachment->slot);
    link_drop_attachment(daemon, attachment);
    tell_kicked(daemon, attachment);
    attachment_forget(daemon, attachment);
    clear_forged_pins(cache);
    if (ending == ENDING_REPLACED)
        return;
    cache->is_awaiting = cache->n_attachments == 0 && await_is_any(cache);
    if (ending == ENDING_UNDONE && cache->state == CACHE_READY) {
        if (cache->n_attachments == 0)
            cache_start_expiry(cache);
    } else if (!cache->is_awaiting) {
        cache_unused(daemon, cache);
    }
}

void attachment_undo(struct daemon *daemon, uint64_t id)
{
    struct attachment *attachment = id == 0 ? NULL : attachment_find(daemon, id);

    if (attachment != NULL)
        attachment_end(daemon, attachment, ENDING_UNDONE);
}

int attachment_refuse(const struct daemon *daemon, struct kvw_refusal *refusal)
{
    if (daemon->n_attachments < KVW_ALL_ATTACHMENTS_MAX)
        return refuse(refusal, -ENOMEM, sizeof(struct attachment), 0,
                      "the daemon has no memory for an attachment");
    return refuse(refusal, -ENFILE, KVW_ALL_ATTACHMENTS_MAX + 1,
                  KVW_ALL_ATTACHMENTS_MAX, "the daemon has %u attachments, at most %u",
                  daemon->n_attachments, KVW_ALL_ATTACHMENTS_MAX);
}

bool attachment_bury(struct daemon *daemon, struct attachment *attachment)
{
    if (!peer_is_dead(&attachment->peer))
        return false;
    log_peer(&daemon->log, LOG_INFO, "attachment died id %llu cache %s rank %d pid %u",
             (unsigned long long)attachment->id, attachment->cache->meta.name,
             attachment->rank == KVW_RANK_READER ? -1 : (int)attachment->rank,
             attachment->peer.pid);
    attachment_end(daemon, attachment, ENDING_DEAD);
    return true;
}

void attachment_event(struct daemon *daemon, const struct ring_event *event)
{
    struct attachment *attachment = event->tag.slot < KVW_ALL_ATTACHMENTS_MAX
                                        ? daemon->attachments[event->tag.slot]
                                        : NULL;

    if (attachment == NULL || attachment->generation != event->tag.generation)
        return;
    /* The pidfd itself says whether, not the completion: that one can be an error. */
    if (!attachment_bury(daemon, attachment))
        ring_poll(daemon->ring, attachment->peer.pidfd, POLLIN, tag_of(attachment));
}
