/* SPDX-License-Identifier: Apache-2.0 */
/* The table of caches. A removed cache keeps its slot until nobody is attached. */
#include "daemon/cache.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/closer.h"
#include "daemon/host.h"
#include "daemon/link.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

struct cache *cache_find(const struct daemon *daemon, const char *name)
{
    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        struct cache *cache = daemon->caches[i];
        if (cache != NULL && cache->state != CACHE_REMOVED &&
            strcmp(cache->meta.name, name) == 0)
            return cache;
    }
    return NULL;
}

struct cache *cache_by_id(const struct daemon *daemon, uint64_t id)
{
    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        if (daemon->caches[i] != NULL && daemon->caches[i]->meta.id == id)
            return daemon->caches[i];
    }
    return NULL;
}

struct cache *cache_add(struct daemon *daemon)
{
    uint32_t slot = 0;

    while (slot < KVW_CACHES_MAX && daemon->caches[slot] != NULL)
        slot++;
    if (slot == KVW_CACHES_MAX)
        return NULL;
    struct cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL)
        return NULL;
    cache->slot = slot;
    cache->generation = daemon->generation++ & RING_GENERATION_MASK;
    cache->meta_fd = -1;
    cache->expires_ns = NEVER_NS;
    for (uint32_t s = 0; s < N_SEGMENTS; s++)
        cache->segment[s] = SEGMENT_NONE;
    daemon->caches[slot] = cache;
    daemon->n_caches++;
    return cache;
}

int cache_refuse(const struct daemon *daemon, const char *name,
                 struct kvw_refusal *refusal)
{
    if (daemon->n_caches < KVW_CACHES_MAX)
        return refuse(refusal, -ENOMEM, sizeof(struct cache), 0,
                      "cache '%s': the daemon has no memory to note it", name);
    return refuse(refusal, -ENFILE, daemon->n_caches + 1, KVW_CACHES_MAX,
                  "cache '%s': the daemon holds %u caches, at most %u", name,
                  daemon->n_caches, KVW_CACHES_MAX);
}

void cache_free(struct daemon *daemon, struct cache *cache)
{
    KVW_CHECK(cache->n_attachments == 0);
    for (uint32_t s = 0; s < N_SEGMENTS; s++) {
        struct segment *segment = &cache->segment[s];
        if (segment->base != NULL)
            (void)munmap(segment->base, segment->bytes);
        closer_take(daemon->closer, CLOSER_MEMORY, &segment->fd, segment->bytes);
    }
    kvw_fd_cleanup(&cache->meta_fd);
    free(cache->plan);
    daemon->caches[cache->slot] = NULL;
    daemon->n_caches--;
    if (daemon->n_caches == 0)
        daemon->idle_ns = host_now_ns();
    free(cache);
}

bool cache_is_owner(const struct cache *cache, const struct client *client)
{
    return client->peer.uid == 0 || client->peer.uid == cache->meta.uid;
}

bool cache_permits(const struct cache *cache, const struct client *client,
                   uint32_t permission)
{
    uint32_t mode = cache->meta.mode;

    if (client->peer.uid == 0)
        return true;
    if (client->peer.uid == cache->meta.uid)
        mode >>= 6;
    else if (peer_in_group(client->socket, &client->peer, cache->meta.gid))
        mode >>= 3;
    return (mode & permission) == permission;
}

void cache_wake(const struct cache *cache, uint32_t rank)
{
    const uint32_t n_lanes = cache->meta.geometry.n_lanes;

    for (uint32_t lane = 0; lane < n_lanes; lane++) {
        struct kvw_board *board = layout_board(cache->segment[SEGMENT_CONTROL].base,
                                               &cache->layout, n_lanes, rank, lane);
        /* D1, pairs with W2 in client/wait.c: either a waiter sees the new seat, or its
         * sleep finds another event. */
        (void)add_seq_cst(&board->event, 1);
        (void)syscall(SYS_futex, &board->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

void cache_mark_removed(struct daemon *daemon, struct cache *cache)
{
    char name[KEPT_NAME_MAX + 1];

    link_cache_name(cache, name);
    cache->state = CACHE_REMOVED;
    cache->expires_ns = NEVER_NS;
    /* Without a keeper there is nothing to change; a new one is given the new state. */
    if (link_put_cache(daemon, cache) == 0)
        link_drop(daemon, name);
}

void cache_announce_removed(const struct cache *cache)
{
    struct kvw_control_header *header = cache->segment[SEGMENT_CONTROL].base;

    store_relaxed(&header->state, KVW_CONTROL_REMOVED); /* before the events: D1 */
    for (uint32_t rank = 0; rank < cache->meta.geometry.n_ranks; rank++)
        cache_wake(cache, rank);
}

uint64_t cache_remove(struct daemon *daemon, struct cache *cache)
{
    uint64_t total_bytes = cache->total_bytes;

    KVW_CHECK(cache->state == CACHE_READY);
    cache_announce_removed(cache);
    log_line(&daemon->log, LOG_INFO, "cache removed name %s id %llu attachments %u",
             cache->meta.name, (unsigned long long)cache->meta.id,
             cache->n_attachments);
    if (cache->n_attachments == 0) {
        link_drop_cache(daemon, cache);
        cache_free(daemon, cache);
        return total_bytes;
    }
    cache_mark_removed(daemon, cache);
    return 0;
}

void cache_touch(struct cache *cache)
{
    cache->used_ns = host_wall_ns();
    segment_stamp(cache->meta_fd, cache->used_ns);
}

void cache_recall_use(struct cache *cache)
{
    const uint64_t wall_ns = host_wall_ns();

    /* The wall clock can go back. */
    if (!segment_stamped(cache->meta_fd, &cache->used_ns) || cache->used_ns > wall_ns)
        cache->used_ns = wall_ns;
}

void cache_start_expiry(struct cache *cache)
{
    const uint64_t wall_ns = host_wall_ns();
    const uint64_t ttl_ns = cache->meta.ttl_seconds * 1000000000ull;
    const uint64_t unused_ns = wall_ns > cache->used_ns ? wall_ns - cache->used_ns : 0;

    if (cache->meta.lifetime == LIFETIME_TTL)
        cache->expires_ns = host_now_ns() + ttl_ns - min_u64(unused_ns, ttl_ns);
}

void cache_unused(struct daemon *daemon, struct cache *cache)
{
    if (cache->n_attachments > 0)
        return;
    if (cache->state == CACHE_REMOVED) {
        link_drop_cache(daemon, cache);
        cache_free(daemon, cache);
    } else if (cache->meta.lifetime == LIFETIME_JOB) {
        (void)cache_remove(daemon, cache);
    } else {
        cache_start_expiry(cache);
    }
}

uint64_t cache_expire(struct daemon *daemon, uint64_t now_ns)
{
    uint64_t next_ns = NEVER_NS;

    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        struct cache *cache = daemon->caches[i];
        if (cache == NULL || cache->state != CACHE_READY)
            continue;
        if (cache->expires_ns <= now_ns)
            (void)cache_remove(daemon, cache);
        else
            next_ns = min_u64(next_ns, cache->expires_ns);
    }
    return next_ns;
}

uint64_t cache_bytes_used(const struct daemon *daemon, const uint32_t *uid)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        const struct cache *cache = daemon->caches[i];
        if (cache != NULL && (uid == NULL || cache->meta.uid == *uid))
            bytes += cache->total_bytes;
    }
    return bytes;
}

uint64_t cache_bytes_promised(const struct daemon *daemon)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        const struct cache *cache = daemon->caches[i];
        if (cache != NULL && cache->state == CACHE_CREATING)
            bytes += cache->total_bytes - cache->done_bytes;
    }
    return bytes;
}

uint64_t cache_bytes_leaving(const struct daemon *daemon)
{
    return closer_bytes(daemon->closer);
}

uint32_t cache_count(const struct daemon *daemon, uint32_t uid)
{
    uint32_t n_caches = 0;

    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++)
        n_caches += daemon->caches[i] != NULL && daemon->caches[i]->meta.uid == uid;
    return n_caches;
}
