/* SPDX-License-Identifier: Apache-2.0 */
/* Caches: found, permitted, removed, expired. */
#ifndef KVW_DAEMON_CACHE_H
#define KVW_DAEMON_CACHE_H

#include "daemon/daemon.h"

enum { /* permissions, as in one digit of a file's mode */
       CACHE_READ = 4,
       CACHE_WRITE = 2,
};

/** The cache that has this name now: live or being created. NULL when there is none. */
struct cache *cache_find(const struct daemon *daemon, const char *name);

/** A cache by id, in any state. */
struct cache *cache_by_id(const struct daemon *daemon, uint64_t id);

/** An empty cache in a free slot, or NULL (the table is full, or no memory). */
struct cache *cache_add(struct daemon *daemon);

/** Say why cache_add() has failed for a cache of that name. @return a negative errno. */
int cache_refuse(const struct daemon *daemon, const char *name,
                 struct kvw_refusal *refusal);

/** Close everything of a cache and free its slot. Nobody is attached. */
void cache_free(struct daemon *daemon, struct cache *cache);

/** True if the client may do that with the cache: like a file's owner, group, others.
 */
bool cache_permits(const struct cache *cache, const struct client *client,
                   uint32_t permission);

/** True if the client owns the cache, or is root. */
bool cache_is_owner(const struct cache *cache, const struct client *client);

/** Raise the events of all boards of a rank and wake who sleeps on them. */
void cache_wake(const struct cache *cache, uint32_t rank);

/**
 * Remove a cache: workers learn it from the header; the memory goes when the last of
 * them has detached or died.
 *
 * @return bytes freed at once.
 */
uint64_t cache_remove(struct daemon *daemon, struct cache *cache);

/** Tell the workers, by the header, that their cache is removed. */
void cache_announce_removed(const struct cache *cache);

/** Keep a cache as removed from now on; cache_remove() without telling its workers. */
void cache_mark_removed(struct daemon *daemon, struct cache *cache);

/** An attachment has ended: apply the lifetime. The cache may be gone afterwards. */
void cache_unused(struct daemon *daemon, struct cache *cache);

/** It is used now: gc and the time to live count from here, also for the next daemon (the
 *  record's memfd carries the time). */
void cache_touch(struct cache *cache);

/** Learn from the record when it was used last. */
void cache_recall_use(struct cache *cache);

/** Start (again) the time that an unused cache has to live since its last use. */
void cache_start_expiry(struct cache *cache);

/** Remove what has expired. @return when the next one does, or NEVER_NS. */
uint64_t cache_expire(struct daemon *daemon, uint64_t now_ns);

/** Bytes of all caches, those being created included; of one user, or all with NULL. */
uint64_t cache_bytes_used(const struct daemon *daemon, const uint32_t *uid);

/** Bytes that creations in progress have still to allocate. */
uint64_t cache_bytes_promised(const struct daemon *daemon);

/** Bytes of caches that are gone, on their way back to the system. */
uint64_t cache_bytes_leaving(const struct daemon *daemon);

/** Caches of a user. */
uint32_t cache_count(const struct daemon *daemon, uint32_t uid);

#endif
