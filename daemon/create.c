/* SPDX-License-Identifier: Apache-2.0 */
/*
 * While a cache is CREATING exactly one slice of it is in flight: its completion drives
 * the next step, or, when the creation was cancelled, rolls it back.
 */
#include "daemon/create.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/admit.h"
#include "daemon/cache.h"
#include "daemon/host.h"
#include "daemon/link.h"
#include "daemon/request.h"
#include "proto/base/align.h"

static bool waits_for(const struct client *client, const struct cache *cache)
{
    return client != NULL && client->pending == PENDING_CREATE &&
           client->pending_id == cache->meta.id;
}

static void fill_created(struct kvw_message *message, const struct cache *cache,
                         bool existed)
{
    message->type = KVW_MESSAGE_CREATED;
    message->created = (struct kvw_message_created){
        .cache = cache->meta.id,
        .existed = existed,
        .data_bytes = cache->segment[SEGMENT_DATA].bytes,
        .total_bytes = cache->total_bytes,
    };
}

/* Refuse everybody who waits, and forget the creation. */
static void fail(struct daemon *daemon, struct cache *cache, int error,
                 const struct kvw_refusal *refusal)
{
    for (uint32_t i = 0; i < KVW_CLIENTS_MAX; i++) {
        struct client *client = daemon->clients[i];
        if (!waits_for(client, cache))
            continue;
        client->pending = PENDING_NONE;
        client_refuse(daemon, client, client->pending_request, error, refusal);
    }
    log_peer(&daemon->log, LOG_WARN, "creation failed: %s", refusal->text);
    cache_free(daemon, cache);
}

static void fail_with_errno(struct daemon *daemon, struct cache *cache,
                            const char *what, int error)
{
    struct kvw_refusal refusal;

    (void)refuse(&refusal, error, cache->total_bytes, cache->done_bytes,
                 "cache '%s': %s: %s; need %" PRIu64 " bytes, have %" PRIu64,
                 cache->meta.name, what, strerrordesc_np(-error), cache->total_bytes,
                 cache->done_bytes);
    fail(daemon, cache, error, &refusal);
}

static void tell_progress(struct daemon *daemon, const struct cache *cache)
{
    for (uint32_t i = 0; i < KVW_CLIENTS_MAX; i++) {
        struct client *client = daemon->clients[i];
        if (!waits_for(client, cache))
            continue;
        struct reply reply = {
            .message = {.type = KVW_MESSAGE_PROGRESS,
                        .request = client->pending_request,
                        .progress = {.done_bytes = cache->done_bytes,
                                     .total_bytes = cache->total_bytes}}};
        client_answer(daemon, client, &reply);
    }
}

static void tell_created(struct daemon *daemon, const struct cache *cache)
{
    bool existed = false;

    for (uint32_t i = 0; i < KVW_CLIENTS_MAX; i++) {
        struct client *client = daemon->clients[i];
        if (!waits_for(client, cache))
            continue;
        struct reply reply = {.message = {.request = client->pending_request}};
        fill_created(&reply.message, cache, existed);
        existed = true;
        client->pending = PENDING_NONE;
        client_answer(daemon, client, &reply);
    }
}

static void allocate_next(struct daemon *daemon, struct cache *cache)
{
    const struct segment *segment = &cache->segment[cache->allocating];

    ring_allocate(daemon->ring, segment->fd, cache->offset,
                  min_u64(segment->bytes - cache->offset, KVW_ALLOCATE_SLICE_BYTES),
                  (struct ring_tag){.slot = cache->slot,
                                    .generation = cache->generation,
                                    .kind = RING_ALLOCATE});
}

/* Everything is allocated: seal, map, write the first bytes, keep. */
static int finish(struct daemon *daemon, struct cache *cache, const char **what)
{
    struct segment *control = &cache->segment[SEGMENT_CONTROL];
    int error = 0;

    *what = "sealing";
    for (uint32_t s = 0; s < N_SEGMENTS && error == 0; s++)
        error = segment_seal(&cache->segment[s]);
    if (error != 0)
        return error;
    *what = "mapping";
    error = segment_map(control);
    if (error == 0)
        error = segment_map(&cache->segment[SEGMENT_PINS]);
    if (error != 0)
        return error;
    layout_control_init(control->base, &cache->layout, &cache->meta.geometry,
                        cache->meta.name, cache->meta.uuid);
    cache->meta.misplaced_pages =
        placement_misplaced(daemon->placement, cache->segment[SEGMENT_DATA].fd,
                            &cache->meta.geometry, &cache->layout);
    *what = "writing its record";
    cache->meta_fd = segment_freeze("kvwheel:meta", &cache->meta, sizeof cache->meta);
    if (cache->meta_fd < 0)
        return cache->meta_fd;
    *what = "giving it to the keeper";
    cache->state = CACHE_READY;
    error = link_put_cache(daemon, cache);
    if (error != 0)
        cache->state = CACHE_CREATING;
    return error;
}

void create_allocated(struct daemon *daemon, const struct ring_event *event)
{
    struct cache *cache =
        event->tag.slot < KVW_CACHES_MAX ? daemon->caches[event->tag.slot] : NULL;
    const char *what;

    if (cache == NULL || cache->generation != event->tag.generation)
        return;
    if (cache->is_cancelled) {
        log_peer(&daemon->log, LOG_INFO, "creation rolled back name %s",
                 cache->meta.name);
        cache_free(daemon, cache);
        return;
    }
    if (event->result == -EINTR || event->result == -EAGAIN) {
        allocate_next(daemon, cache);
        return;
    }
    if (event->result < 0) {
        fail_with_errno(daemon, cache, "allocating its memory",
                        event->result == -ENOSPC ? -ENOMEM : event->result);
        return;
    }
    const struct segment *segment = &cache->segment[cache->allocating];
    uint64_t slice = min_u64(segment->bytes - cache->offset, KVW_ALLOCATE_SLICE_BYTES);
    cache->offset += slice;
    cache->done_bytes += slice;
    if (cache->offset == segment->bytes) {
        cache->allocating++;
        cache->offset = 0;
    }
    if (cache->allocating < N_SEGMENTS) {
        allocate_next(daemon, cache);
        tell_progress(daemon, cache);
        return;
    }
    int error = finish(daemon, cache, &what);
    if (error != 0) {
        fail_with_errno(daemon, cache, what, error);
        return;
    }
    cache_touch(cache);
    cache_start_expiry(cache);
    log_line(&daemon->log, LOG_INFO, "cache created name %s id %llu bytes %llu uid %u",
             cache->meta.name, (unsigned long long)cache->meta.id,
             (unsigned long long)cache->total_bytes, cache->meta.uid);
    tell_created(daemon, cache);
}

void create_abandoned(struct daemon *daemon, const struct client *gone)
{
    struct cache *cache = cache_by_id(daemon, gone->pending_id);

    if (cache == NULL || cache->state != CACHE_CREATING)
        return;
    for (uint32_t i = 0; i < KVW_CLIENTS_MAX; i++) {
        if (daemon->clients[i] != gone && waits_for(daemon->clients[i], cache))
            return;
    }
    cache->is_cancelled = true;
}

static int make_segments(struct daemon *daemon, struct cache *cache)
{
    static const char *const names[] = {"control", "pins", "data"};
    /* Readers of other users get descriptors; none of them may re-open for writing. The
     * pins are for all who are attached to write. */
    static const uint32_t modes[] = {0400, 0600, 0400};
    const uint64_t bytes[] = {cache->layout.control_bytes, cache->layout.pins_bytes,
                              cache->layout.data_bytes};
    char name[KVW_NAME_MAX + 32];
    int error = 0;

    for (uint32_t s = 0; s < N_SEGMENTS && error == 0; s++) {
        (void)snprintf(name, sizeof name, "kvwheel:%s:%s", cache->meta.name, names[s]);
        error = segment_create(&cache->segment[s], name, bytes[s], modes[s]);
    }
    if (error != 0)
        return error;
    if (daemon->placement == NULL)
        daemon->placement = placement_open();
    placement_spread(daemon->placement, cache->segment[SEGMENT_DATA].fd,
                     &cache->meta.geometry, &cache->layout);
    return 0;
}

/* Bytes are there and permitted: begin. */
static int start(struct daemon *daemon, const struct cache_meta *meta,
                 const struct kvw_layout *layout, struct kvw_refusal *refusal,
                 struct cache **out)
{
    struct cache *cache = cache_add(daemon);

    if (cache == NULL)
        return cache_refuse(daemon, meta->name, refusal);
    cache->meta = *meta;
    cache->meta.id = ++daemon->last_cache_id;
    cache->meta.created_ns = host_wall_ns();
    host_random(cache->meta.uuid, sizeof cache->meta.uuid);
    cache->layout = *layout;
    cache->total_bytes =
        layout->control_bytes + layout->pins_bytes + layout->data_bytes;
    int error = make_segments(daemon, cache);
    if (error != 0) {
        (void)refuse(refusal, error, cache->total_bytes, 0,
                     "cache '%s': its memory cannot be made: %s", meta->name,
                     strerrordesc_np(-error));
        cache_free(daemon, cache);
        return error;
    }
    allocate_next(daemon, cache);
    *out = cache;
    return 0;
}

int create_serve(struct daemon *daemon, struct client *client,
                 const struct kvw_message *request, struct reply *reply,
                 struct kvw_refusal *refusal)
{
    struct cache_meta meta;
    struct kvw_layout layout;

    int error = admit_request(&request->create, &meta, &layout, refusal);
    if (error != 0)
        return error;
    meta.uid = client->peer.uid;
    meta.gid = client->peer.gid;
    struct cache *cache = cache_find(daemon, meta.name);
    if (cache != NULL) {
        error = admit_same(&meta, &cache->meta, refusal);
        if (error != 0)
            return error;
        if (cache->state == CACHE_READY) {
            fill_created(&reply->message, cache, true);
            return 0;
        }
    }
    if (client->pending != PENDING_NONE)
        return refuse(refusal, -EBUSY, 1, 0,
                      "this connection waits for another answer already");
    if (cache == NULL) {
        error = admit_count(daemon, meta.uid, refusal);
        if (error == 0)
            error = admit_bytes(
                daemon, meta.uid,
                layout.control_bytes + layout.pins_bytes + layout.data_bytes, refusal);
        if (error == 0)
            error = start(daemon, &meta, &layout, refusal, &cache);
        if (error != 0)
            return error;
    }
    cache->is_cancelled = false;
    client->pending = PENDING_CREATE;
    client->pending_request = request->request;
    client->pending_id = cache->meta.id;
    return SERVE_LATER;
}
