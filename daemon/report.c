/* SPDX-License-Identifier: Apache-2.0 */
/* STAT, WHO and STATUS. What comes from a worker's page is bounded, never believed. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/attachment.h"
#include "daemon/cache.h"
#include "daemon/host.h"
#include "daemon/request.h"
#include "proto/base/align.h"

#define DEGRADED_BYTES sizeof(((struct kvw_message_status_is *)0)->degraded)

/* The first cache, by id, behind `after`. */
static struct cache *cache_after(const struct daemon *daemon, uint64_t after)
{
    struct cache *first = NULL;

    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        struct cache *cache = daemon->caches[i];
        if (cache != NULL && cache->state != CACHE_CREATING && cache->meta.id > after &&
            (first == NULL || cache->meta.id < first->meta.id))
            first = cache;
    }
    return first;
}

static uint32_t count_owned(const struct cache *cache)
{
    uint32_t n_owned = 0;

    for (uint32_t rank = 0; rank < cache->meta.geometry.n_ranks; rank++)
        n_owned += cache->owner[rank] != NULL;
    return n_owned;
}

int report_stat(struct daemon *daemon, struct client *client,
                const struct kvw_message *request, struct reply *reply,
                struct kvw_refusal *refusal)
{
    const struct kvw_message_stat *stat = &request->stat;
    const struct cache *cache;

    (void)client;
    if (stat->name[0] != 0)
        cache = cache_find(daemon, stat->name);
    else
        cache = cache_after(daemon, stat->after);
    if (cache == NULL && stat->name[0] != 0)
        return refuse(refusal, -ENOENT, 0, 0, "there is no cache '%s'", stat->name);
    if (cache == NULL)
        return refuse(refusal, -ENOENT, 0, 0, "there is no cache behind id %" PRIu64,
                      stat->after);
    if (cache->state == CACHE_CREATING)
        return refuse(refusal, -ENOENT, cache->total_bytes, cache->done_bytes,
                      "cache '%s' is still being created: %" PRIu64 " of %" PRIu64
                      " bytes",
                      stat->name, cache->done_bytes, cache->total_bytes);
    const struct cache_meta *meta = &cache->meta;
    struct kvw_message_stated *stated = &reply->message.stated;
    reply->message.type = KVW_MESSAGE_STATED;
    *stated = (struct kvw_message_stated){
        .cache = meta->id,
        .lifetime = meta->lifetime,
        .ttl_seconds = meta->ttl_seconds,
        .mode = meta->mode,
        .uid = meta->uid,
        .state = cache->state == CACHE_REMOVED ? KVW_CONTROL_REMOVED : KVW_CONTROL_LIVE,
        .created_ns = meta->created_ns,
        .used_ns = cache->used_ns,
        .data_bytes = cache->layout.data_bytes,
        .total_bytes = cache->total_bytes,
        .n_attachments = cache->n_attachments,
        .n_owned = count_owned(cache),
        .placement = meta->wish.policy,
        .misplaced_pages = meta->misplaced_pages,
        .pages = meta->wish.pages,
        .huge_bytes = meta->huge_bytes,
        .padding_bytes = cache->layout.padding_bytes,
        .uuid = meta->uuid,
        .uuid_bytes = sizeof meta->uuid,
        .geometry = (const uint8_t *)&meta->geometry,
        .geometry_bytes = sizeof meta->geometry,
    };
    memcpy(stated->name, meta->name, sizeof stated->name);
    memcpy(stated->note, meta->note, sizeof stated->note);
    return 0;
}

/* Who is attached is for those who may be attached themselves. */
static bool may_see(const struct client *client, const struct cache *cache)
{
    return share_is_unlimited(client->peer.uid) ||
           client->peer.uid == cache->meta.uid ||
           cache_permits(cache, client, CACHE_READ) ||
           cache_permits(cache, client, CACHE_WRITE);
}

static struct attachment *attachment_after(const struct daemon *daemon,
                                           const struct client *client, uint64_t cache,
                                           uint64_t after)
{
    struct attachment *first = NULL;

    for (uint32_t i = 0; i < KVW_ALL_ATTACHMENTS_MAX; i++) {
        struct attachment *attachment = daemon->attachments[i];
        if (attachment != NULL && attachment->id > after &&
            (cache == 0 || attachment->cache->meta.id == cache) &&
            (first == NULL || attachment->id < first->id) &&
            may_see(client, attachment->cache))
            first = attachment;
    }
    return first;
}

static void count_pins(const struct attachment *attachment,
                       struct kvw_message_who_is *who_is)
{
    const struct cache *cache = attachment->cache;

    for (uint32_t i = 0; i < KVW_PINS_PER_ATTACHMENT; i++) {
        const struct kvw_pin *pin = layout_pin(cache->segment[SEGMENT_PINS].base,
                                               &cache->layout, attachment->slot, i);
        if (load_relaxed(&pin->lo_plus_1) == 0)
            continue;
        uint64_t since_ns = load_relaxed(&pin->since_ns);
        who_is->pinned_since_ns =
            who_is->n_pins == 0 ? since_ns : min_u64(who_is->pinned_since_ns, since_ns);
        who_is->n_pins++;
    }
}

int report_who(struct daemon *daemon, struct client *client,
               const struct kvw_message *request, struct reply *reply,
               struct kvw_refusal *refusal)
{
    const struct attachment *attachment =
        attachment_after(daemon, client, request->who.cache, request->who.after);
    struct kvw_message_who_is *who_is = &reply->message.who_is;

    if (attachment == NULL)
        return refuse(refusal, -ENOENT, 0, 0,
                      "there is no attachment behind id %" PRIu64, request->who.after);
    reply->message.type = KVW_MESSAGE_WHO_IS;
    *who_is = (struct kvw_message_who_is){.cache = attachment->cache->meta.id,
                                          .attachment = attachment->id,
                                          .rank = attachment->rank,
                                          .slot = attachment->slot,
                                          .pid = attachment->peer.pid,
                                          .uid = attachment->peer.uid,
                                          .since_ns = attachment->since_ns,
                                          .is_connected = attachment->client != NULL};
    count_pins(attachment, who_is);
    host_command(attachment->peer.pid, who_is->command, sizeof who_is->command);
    return 0;
}

static void describe_degraded(const struct daemon *daemon, char text[DEGRADED_BYTES])
{
    const char *placement = placement_degraded(daemon->placement);
    const uint64_t n_fds = host_descriptor_limit();
    char descriptors[128] = "";

    if (n_fds < HOST_DESCRIPTORS_ALL)
        (void)snprintf(descriptors, sizeof descriptors,
                       "at most %" PRIu64 " descriptors of %u (prlimit --pid %d "
                       "--nofile=%u:%u); ",
                       n_fds, HOST_DESCRIPTORS_ALL, (int)getpid(), HOST_DESCRIPTORS_ALL,
                       HOST_DESCRIPTORS_ALL);
    (void)snprintf(text, DEGRADED_BYTES, "%s%s%s%s",
                   daemon->has_peerpidfd
                       ? ""
                       : "no SO_PEERPIDFD before Linux 6.5: peers are known by pid and "
                         "start time; ",
                   daemon->keeper_socket < 0
                       ? "no keeper: the death of the daemon would lose the caches; "
                       : "",
                   descriptors, placement);
    size_t length = strnlen(text, DEGRADED_BYTES - 1);
    if (length >= 2 && text[length - 2] == ';')
        text[length - 2] = 0;
}

void report_look(struct daemon *daemon)
{
    struct host_memory memory;

    if (host_memory(&memory) == 0)
        daemon->available_bytes = memory.available;
}

int report_status(struct daemon *daemon, struct client *client,
                  const struct kvw_message *request, struct reply *reply,
                  struct kvw_refusal *refusal)
{
    struct kvw_message_status_is *status = &reply->message.status_is;

    (void)client;
    (void)request;
    (void)refusal;
    report_look(daemon);
    reply->message.type = KVW_MESSAGE_STATUS_IS;
    *status = (struct kvw_message_status_is){
        .pid = (uint32_t)getpid(),
        .keeper_pid = daemon->keeper_pid,
        .daemon_epoch = daemon->epoch,
        .started_ns = daemon->started_ns,
        .n_caches = daemon->n_caches,
        .n_attachments = daemon->n_attachments,
        .n_clients = daemon->n_clients,
        .bytes_used = cache_bytes_used(daemon, NULL),
        .bytes_quota = daemon->options->quota_bytes,
        .bytes_quota_user = daemon->options->quota_user_bytes,
        .bytes_available = daemon->available_bytes,
        .n_restarts = daemon->options->n_restarts};
    if (placement_of(daemon) != NULL)
        memcpy(status->numa, daemon->placement->words, sizeof status->numa);
    describe_degraded(daemon, status->degraded);
    memcpy(status->socket, daemon->options->socket_path, sizeof status->socket);
    memcpy(status->version, DAEMON_VERSION, sizeof DAEMON_VERSION);
    return 0;
}
