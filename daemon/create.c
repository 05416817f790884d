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
#include "daemon/numa.h"
#include "daemon/request.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

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

/* Data that goes to several nodes, or on huge pages, is not the ring's work: it would be
 * done for one node after the other, and never makes a huge page. */
static bool needs_crew(const struct daemon *daemon, const struct cache *cache)
{
    return cache->allocating == SEGMENT_DATA &&
           (daemon->placement->topology.nodes.n_nodes > 1 ||
            cache->meta.wish.pages != KVW_GEOMETRY_PAGES_NONE);
}

static void allocate_next(struct daemon *daemon, struct cache *cache)
{
    if (needs_crew(daemon, cache)) {
        int error = numa_fill(daemon, cache);
        if (error != 0)
            fail_with_errno(daemon, cache, "starting to allocate its memory", error);
        return;
    }
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

/* Everything is allocated. */
static void complete(struct daemon *daemon, struct cache *cache)
{
    const char *what;

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

/* Nobody waits any more. @return true if it was so. */
static bool roll_back(struct daemon *daemon, struct cache *cache)
{
    if (!cache->is_cancelled)
        return false;
    log_peer(&daemon->log, LOG_INFO, "creation rolled back name %s", cache->meta.name);
    cache_free(daemon, cache);
    return true;
}

void create_allocated(struct daemon *daemon, const struct ring_event *event)
{
    struct cache *cache =
        event->tag.slot < KVW_CACHES_MAX ? daemon->caches[event->tag.slot] : NULL;

    if (cache == NULL || cache->generation != event->tag.generation)
        return;
    if (roll_back(daemon, cache))
        return;
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
    complete(daemon, cache);
}

/* What the cache did not get. Pages that lie elsewhere than a named node said are a
 * refusal; elsewhere they are counted. @return 0 or -errno with `refusal`. */
static int judge(const struct daemon *daemon, struct cache *cache,
                 const struct crew_job *job, struct kvw_refusal *refusal)
{
    struct cache_meta *meta = &cache->meta;
    const struct pages_tally *tally = &job->tally;
    const uint64_t data_bytes = cache->layout.data_bytes;

    meta->misplaced_pages = tally->n_misplaced;
    meta->huge_bytes = tally->huge_bytes;
    if (tally->n_misplaced > 0 && meta->wish.n_nodes > 0 && daemon->placement->can_bind)
        return refuse(
            refusal, -ENOMEM, tally->n_pages, tally->n_pages - tally->n_misplaced,
            "cache '%s': need %" PRIu64 " pages on the nodes that were named, "
            "have %" PRIu64 ": the kernel put the others elsewhere, for want "
            "of room",
            meta->name, tally->n_pages, tally->n_pages - tally->n_misplaced);
    if (meta->wish.pages == KVW_GEOMETRY_PAGES_THP && tally->huge_bytes < data_bytes &&
        meta->note[0] == 0)
        (void)snprintf(
            meta->note, sizeof meta->note,
            "pages thp: %" PRIu64 " of %" PRIu64 " bytes are on huge pages: %s",
            tally->huge_bytes, data_bytes,
            tally->huge_bytes > 0 || pages_can_collapse()
                ? "the others are shared by two nodes, or the kernel found no "
                  "huge page for them"
                : "this kernel makes none of shared memory (Linux 6.1 is "
                  "needed, with CONFIG_TRANSPARENT_HUGEPAGE)");
    return 0;
}

void create_progress(struct daemon *daemon, struct cache *cache, uint64_t data_bytes)
{
    cache->done_bytes =
        cache->layout.control_bytes + cache->layout.pins_bytes + data_bytes;
    if (data_bytes - cache->told_bytes < KVW_ALLOCATE_SLICE_BYTES)
        return;
    cache->told_bytes = data_bytes;
    tell_progress(daemon, cache);
}

void create_filled(struct daemon *daemon, struct cache *cache,
                   const struct crew_job *job)
{
    struct kvw_refusal refusal;

    cache->job = 0;
    if (roll_back(daemon, cache))
        return;
    if (job->error != 0) {
        fail_with_errno(daemon, cache, "allocating its memory", job->error);
        return;
    }
    int error = judge(daemon, cache, job, &refusal);
    if (error != 0) {
        fail(daemon, cache, error, &refusal);
        return;
    }
    cache->done_bytes = cache->total_bytes;
    complete(daemon, cache);
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
    if (cache->job != 0)
        crew_cancel(daemon->crew, 0, cache->job);
}

static int make_segments(struct cache *cache)
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
        error = segment_create(&cache->segment[s], name, bytes[s], modes[s],
                               s == SEGMENT_DATA &&
                                   cache->meta.wish.pages == KVW_GEOMETRY_PAGES_2M);
    }
    return error;
}

/* Bytes are there and permitted: begin. */
static int start(struct daemon *daemon, const struct cache_meta *meta,
                 const struct kvw_layout *layout, struct kvw_plan **plan,
                 struct kvw_refusal *refusal, struct cache **out)
{
    struct cache *cache = cache_add(daemon);

    if (cache == NULL)
        return cache_refuse(daemon, meta->name, refusal);
    cache->meta = *meta;
    cache->meta.id = ++daemon->last_cache_id;
    cache->meta.created_ns = host_wall_ns();
    host_random(cache->meta.uuid, sizeof cache->meta.uuid);
    cache->layout = *layout;
    cache->plan = take_pointer(plan);
    cache->total_bytes =
        layout->control_bytes + layout->pins_bytes + layout->data_bytes;
    int error = make_segments(cache);
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

/* Quotas come before places, but only the place says what comes from the pool. */
static int admit_and_start(struct daemon *daemon, struct cache_meta *meta,
                           const struct kvw_layout *layout, struct kvw_refusal *refusal,
                           struct cache **out)
{
    KVW_CLEANUP(kvw_free_cleanup)
    struct kvw_plan *plan = NULL;
    struct kvw_refusal no_place;

    int error = admit_count(daemon, meta->uid, refusal);
    if (error != 0)
        return error;
    int place_error = placement_choose(daemon, meta, layout, &plan, &no_place);
    error = admit_bytes(
        daemon, meta->uid,
        layout->control_bytes + layout->pins_bytes + layout->data_bytes,
        meta->wish.pages == KVW_GEOMETRY_PAGES_2M ? layout->data_bytes : 0, refusal);
    if (error != 0)
        return error;
    if (place_error != 0) {
        *refusal = no_place;
        return place_error;
    }
    return start(daemon, meta, layout, &plan, refusal, out);
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
        error = admit_and_start(daemon, &meta, &layout, refusal, &cache);
        if (error != 0)
            return error;
    }
    cache->is_cancelled = false;
    client->pending = PENDING_CREATE;
    client->pending_request = request->request;
    client->pending_id = cache->meta.id;
    return SERVE_LATER;
}
