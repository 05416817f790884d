/* SPDX-License-Identifier: Apache-2.0 */
/* Names. A name says what the next daemon must know and no descriptor tells. */
#include "daemon/link.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/await.h"

void link_cache_name(const struct cache *cache, char name[KEPT_NAME_MAX + 1])
{
    (void)snprintf(name, KEPT_NAME_MAX + 1, "%s.%" PRIu64,
                   cache->state == CACHE_REMOVED ? "removed" : "cache", cache->meta.id);
}

static void attachment_name(const struct attachment *attachment,
                            char name[KEPT_NAME_MAX + 1])
{
    (void)snprintf(
        name, KEPT_NAME_MAX + 1, "attach.%" PRIu64 ".%" PRIu64 ".%u.%u.%u.%u.%" PRIu64,
        attachment->id, attachment->cache->meta.id, attachment->rank, attachment->slot,
        attachment->peer.uid, attachment->peer.pid, attachment->since_ns);
}

static int put_cache(struct daemon *daemon, const struct cache *cache, link_put_fn *put)
{
    char name[KEPT_NAME_MAX + 1];
    const int fds[] = {cache->meta_fd, cache->segment[SEGMENT_CONTROL].fd,
                       cache->segment[SEGMENT_PINS].fd,
                       cache->segment[SEGMENT_DATA].fd};

    link_cache_name(cache, name);
    return put(daemon, name, fds, 4);
}

static int put_attachment(struct daemon *daemon, const struct attachment *attachment,
                          link_put_fn *put)
{
    char name[KEPT_NAME_MAX + 1];

    attachment_name(attachment, name);
    return put(daemon, name, &attachment->peer.pidfd, 1);
}

/* What a daemon that holds has not adopted: its caches, or the rest. */
static int put_held(struct daemon *daemon, link_put_fn *put, bool is_cache)
{
    int error = 0;

    for (const struct store_entry *e = daemon->held; e != NULL && error == 0;
         e = e->next) {
        if (e->n_fds > 0 && e->fds[0] >= 0 && is_cache == (e->n_fds > 1))
            error = put(daemon, e->name, e->fds, e->n_fds);
    }
    return error;
}

int link_put_all(struct daemon *daemon, link_put_fn *put)
{
    int error = put(daemon, "listen", &daemon->listen_fd, 1);

    if (error == 0)
        error = put(daemon, "lock", &daemon->lock_fd, 1);
    if (error == 0 && daemon->stamp_fd >= 0)
        error = put(daemon, "layout", &daemon->stamp_fd, 1);
    /* Attachments first: should we die in between, the next daemon knows a cache with all
     * who are attached, or not at all, and then its workers offer it. A cache without its
     * owners would be given to others, or end, while they write. */
    if (error == 0)
        error = put_held(daemon, put, false);
    for (uint32_t i = 0; i < KVW_ALL_ATTACHMENTS_MAX && error == 0; i++) {
        if (daemon->attachments[i] != NULL)
            error = put_attachment(daemon, daemon->attachments[i], put);
    }
    if (error == 0)
        error = put_held(daemon, put, true);
    for (uint32_t i = 0; i < KVW_CACHES_MAX && error == 0; i++) {
        const struct cache *cache = daemon->caches[i];
        if (cache != NULL && cache->state != CACHE_CREATING)
            error = put_cache(daemon, cache, put);
    }
    return error;
}

int link_put_cache(struct daemon *daemon, const struct cache *cache)
{
    char name[KEPT_NAME_MAX + 1];

    /* A death in between forgets a cache that is removed in any case. */
    if (cache->state == CACHE_REMOVED && !daemon->store->takes_twice) {
        (void)snprintf(name, sizeof name, "cache.%" PRIu64, cache->meta.id);
        link_drop(daemon, name);
    }
    /* In a third place, for the death of this process and of the store. */
    await_describe(cache);
    return put_cache(daemon, cache, daemon->store->put);
}

int link_put_attachment(struct daemon *daemon, const struct attachment *attachment)
{
    return put_attachment(daemon, attachment, daemon->store->put);
}

void link_drop(struct daemon *daemon, const char *name)
{
    daemon->store->drop(daemon, name);
}

void link_drop_cache(struct daemon *daemon, const struct cache *cache)
{
    char name[KEPT_NAME_MAX + 1];

    /* In both states: the change from one to the other may have failed. */
    (void)snprintf(name, sizeof name, "cache.%" PRIu64, cache->meta.id);
    link_drop(daemon, name);
    if (cache->state == CACHE_REMOVED) {
        link_cache_name(cache, name);
        link_drop(daemon, name);
    }
}

void link_drop_attachment(struct daemon *daemon, const struct attachment *attachment)
{
    char name[KEPT_NAME_MAX + 1];

    attachment_name(attachment, name);
    link_drop(daemon, name);
}
