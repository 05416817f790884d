/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries come in any order, so attachments wait until all caches are there. An entry
 * that makes no sense is dropped in words; one that cannot be looked at for want of memory
 * or descriptors is not: the start fails, and the keeper starts another one. A cache whose control segment was damaged by
 * a worker is removed: nobody new attaches, who is attached goes on and ends it.
 */
#include "daemon/adopt.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/attachment.h"
#include "daemon/await.h"
#include "daemon/cache.h"
#include "daemon/host.h"
#include "daemon/link.h"
#include "daemon/restart.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

/* Errors of this moment and this process, not of the entry. */
static bool is_shortage(int error)
{
    return error != 0 && error != -EINVAL && error != -EPROTO && error != -E2BIG &&
           error != -ERANGE && error != -EOVERFLOW;
}

/* @return 0: the entry is dropped. A shortage is returned: it is not. */
static int drop_entry(struct daemon *daemon, const char *name, int error,
                      const char *why)
{
    if (is_shortage(error)) {
        log_line(&daemon->log, LOG_ERROR, "entry not adopted now name %s: %s: %s", name,
                 why, strerrordesc_np(-error));
        return error;
    }
    log_line(&daemon->log, LOG_ERROR, "entry dropped name %s: %s", name, why);
    link_drop(daemon, name);
    return 0;
}

/* Meta and sizes: what must hold before anything of the segments is mapped. */
static int adopt_segments(const struct daemon *daemon, struct cache *cache,
                          const int *fds, struct kvw_refusal *refusal)
{
    static const char *const names[] = {"control", "pins", "data"};
    struct segment segment[N_SEGMENTS];

    int error = segment_thaw(fds[0], &cache->meta, sizeof cache->meta);
    if (is_shortage(error))
        return refuse(refusal, error, 0, 0, "the record cannot be read");
    if (error != 0 || cache->meta.magic != CACHE_META_MAGIC)
        return refuse(refusal, -EINVAL, 0, 0, "the record is not one of this daemon");
    cache->meta.name[KVW_NAME_MAX] = 0;
    cache->meta.note[sizeof cache->meta.note - 1] = 0;
    error = geometry_check(&cache->meta.geometry, refusal);
    if (error == 0)
        error = layout_of(&cache->meta.geometry, &cache->layout, refusal);
    if (error != 0)
        return error;
    const uint64_t bytes[] = {cache->layout.control_bytes, cache->layout.pins_bytes,
                              cache->layout.data_bytes};
    for (uint32_t s = 0; s < N_SEGMENTS; s++) {
        error = segment_adopt(&segment[s], fds[1 + s], bytes[s], names[s], refusal);
        if (error != 0)
            return error;
    }
    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        const struct cache *other = daemon->caches[i];
        if (other != NULL && other != cache &&
            segment_is_same(&other->segment[SEGMENT_CONTROL],
                            &segment[SEGMENT_CONTROL]))
            return refuse(refusal, -EINVAL, 0, 0,
                          "its control segment is that of cache '%s'",
                          other->meta.name);
    }
    for (uint32_t s = 0; s < N_SEGMENTS; s++)
        cache->segment[s] = segment[s];
    cache->meta_fd = fds[0];
    cache->total_bytes = bytes[0] + bytes[1] + bytes[2];
    return 0;
}

/* What workers can write. Only compared, never used. */
static int check_control(const struct cache *cache, struct kvw_refusal *refusal)
{
    const struct kvw_control_header *header = cache->segment[SEGMENT_CONTROL].base;
    KVW_CLEANUP(kvw_free_cleanup)
    struct kvw_geometry *geometry = malloc(sizeof *geometry);
    struct kvw_layout layout;

    if (geometry == NULL)
        return refuse(refusal, -ENOMEM, sizeof *geometry, 0, "no memory to check it");
    int error = layout_control_read(header, cache->segment[SEGMENT_CONTROL].bytes,
                                    cache->segment[SEGMENT_PINS].bytes,
                                    cache->segment[SEGMENT_DATA].bytes, geometry,
                                    &layout, refusal);
    if (error != 0)
        return error;
    if (memcmp(geometry, &cache->meta.geometry, sizeof *geometry) != 0)
        return refuse(refusal, -EINVAL, 0, 0,
                      "control segment: its geometry is not the one it was made with");
    if (memcmp(header->uuid, cache->meta.uuid, sizeof header->uuid) != 0)
        return refuse(refusal, -EINVAL, 0, 0,
                      "control segment: its uuid is not the one it was made with");
    return 0;
}

/* The control segment, in words that workers can write, says that it was removed. */
static bool is_marked_removed(const struct cache *cache)
{
    const struct kvw_control_header *header = cache->segment[SEGMENT_CONTROL].base;

    return load_relaxed(&header->state) != KVW_CONTROL_LIVE;
}

static int adopt_cache(struct daemon *daemon, struct store_entry *entry,
                       bool is_removed)
{
    struct kvw_refusal refusal;

    if (entry->n_fds != KEPT_FDS_MAX)
        return drop_entry(daemon, entry->name, -EINVAL, "not four descriptors");
    struct cache *cache = cache_add(daemon);
    if (cache == NULL) {
        int full = cache_refuse(daemon, entry->name, &refusal);
        /* A table of the keeper that is larger than ours makes no sense. */
        return drop_entry(daemon, entry->name, full == -ENFILE ? -EINVAL : full,
                          refusal.text);
    }
    int error = adopt_segments(daemon, cache, entry->fds, &refusal);
    if (error != 0) {
        cache_free(daemon, cache);
        return drop_entry(daemon, entry->name, error, refusal.text);
    }
    entry->n_fds = 0;
    error = segment_map(&cache->segment[SEGMENT_CONTROL]);
    if (error == 0)
        error = segment_map(&cache->segment[SEGMENT_PINS]);
    if (error != 0) {
        cache_free(daemon, cache);
        return drop_entry(daemon, entry->name, error, "its segments cannot be mapped");
    }
    cache->state = CACHE_READY;
    cache_recall_use(cache);
    cache_start_expiry(cache);
    daemon->last_cache_id = max_u64(daemon->last_cache_id, cache->meta.id);
    error = check_control(cache, &refusal);
    if (is_shortage(error))
        return drop_entry(daemon, entry->name, error, refusal.text);
    if (error != 0) {
        log_line(&daemon->log, LOG_ERROR, "cache damaged by a worker name %s: %s",
                 cache->meta.name, refusal.text);
        is_removed = true;
    }
    if (is_removed || is_marked_removed(cache))
        cache_mark_removed(daemon, cache);
    return 0;
}

/* attach.ID.CACHE.RANK.SLOT.UID.PID.SINCE */
struct place {
    uint64_t id;
    uint64_t cache;
    uint32_t rank;
    uint32_t slot;
    uint32_t uid;
    uint32_t pid;
    uint64_t since_ns;
};

static bool parse_place(const char *name, struct place *place)
{
    return sscanf(name,
                  "attach.%" SCNu64 ".%" SCNu64 ".%" SCNu32 ".%" SCNu32 ".%" SCNu32
                  ".%" SCNu32 ".%" SCNu64,
                  &place->id, &place->cache, &place->rank, &place->slot, &place->uid,
                  &place->pid, &place->since_ns) == 7;
}

static int adopt_attachment(struct daemon *daemon, struct store_entry *entry)
{
    struct kvw_refusal refusal;
    struct place place;

    if (entry->n_fds != 1 || !parse_place(entry->name, &place))
        return drop_entry(daemon, entry->name, -EINVAL, "it is no attachment");
    struct cache *cache = cache_by_id(daemon, place.cache);
    if (cache == NULL || place.slot >= KVW_ATTACHMENTS_MAX ||
        cache->by_slot[place.slot] != NULL ||
        (place.rank != KVW_RANK_READER && (place.rank >= cache->meta.geometry.n_ranks ||
                                           cache->owner[place.rank] != NULL)))
        return drop_entry(daemon, entry->name, -EINVAL,
                          "its cache or its place is not there");
    struct peer peer = {.uid = place.uid, .pid = place.pid, .pidfd = entry->fds[0]};
    struct attachment *attachment =
        attachment_add(daemon, cache, place.rank, place.slot, &peer);
    if (attachment == NULL) {
        int full = attachment_refuse(daemon, &refusal);
        return drop_entry(daemon, entry->name, full == -ENFILE ? -EINVAL : full,
                          refusal.text);
    }
    entry->n_fds = 0;
    attachment->id = place.id;
    attachment->since_ns = place.since_ns;
    daemon->last_attachment_id = max_u64(daemon->last_attachment_id, place.id);
    return 0;
}

/*
 * The daemon before may have died between keeper and seat. The entries are the truth: a
 * rank with an entry is owned, and one without is not. The latter's last owner may
 * never have detached properly, so its successor takes over.
 */
static void set_seats(struct cache *cache)
{
    for (uint32_t rank = 0; rank < cache->meta.geometry.n_ranks; rank++) {
        struct kvw_seat *seat =
            layout_seat(cache->segment[SEGMENT_CONTROL].base, &cache->layout, rank);
        const struct attachment *owner = cache->owner[rank];
        uint32_t state = load_relaxed(&seat->state);

        if (owner != NULL &&
            (state != KVW_SEAT_OWNED || load_relaxed(&seat->owner) != owner->id)) {
            /* Owned under another number: it was placed after an offer, which leaves the
             * incarnation as it is. */
            attachment_seat(owner, load_relaxed(&seat->incarnation) +
                                       (state != KVW_SEAT_OWNED));
        } else if (owner == NULL && state == KVW_SEAT_OWNED &&
                   cache->meta.offered_slots == 0) {
            store_relaxed(&seat->owner, 0);
            store_release(&seat->state, KVW_SEAT_DEAD); /* D2, pairs with W3 */
            cache_wake(cache, rank);
        }
    }
}

/* What the daemon before had begun to end, or what nobody can use any more. */
static void settle(struct daemon *daemon, struct cache *cache)
{
    const struct kvw_control_header *header = cache->segment[SEGMENT_CONTROL].base;
    bool was_attached = load_relaxed(&header->attachments_high) > 0;

    set_seats(cache);
    await_describe(cache);
    cache->is_awaiting = cache->n_attachments == 0 && await_is_any(cache);
    if (cache->is_awaiting)
        cache->expires_ns = NEVER_NS;
    if (cache->n_attachments == 0 && !cache->is_awaiting &&
        (cache->state == CACHE_REMOVED ||
         (cache->meta.lifetime == LIFETIME_JOB && was_attached)))
        cache_unused(daemon, cache);
}

static bool is_named(const struct store_entry *entry, const char *prefix)
{
    return strncmp(entry->name, prefix, strlen(prefix)) == 0;
}

int adopt_all(struct daemon *daemon)
{
    struct store_entry *entries = NULL;

    int error = daemon->store->load(daemon, &entries);
    if (error == 0) {
        daemon->listen_fd = store_entry_take(entries, "listen");
        daemon->lock_fd = store_entry_take(entries, "lock");
        if (daemon->listen_fd < 0 || daemon->lock_fd < 0)
            error = -EBADF;
    }
    if (error == 0)
        error = restart_judge(daemon, entries);
    if (error != 0 || daemon->is_holding) {
        daemon->held = entries;
        return error;
    }
    /* Removed ones first: of a cache that is there twice, its change of state was
     * begun. */
    for (struct store_entry *e = entries; e != NULL && error == 0; e = e->next) {
        if (is_named(e, "removed."))
            error = adopt_cache(daemon, e, true);
    }
    for (struct store_entry *e = entries; e != NULL && error == 0; e = e->next) {
        if (is_named(e, "cache."))
            error = adopt_cache(daemon, e, false);
    }
    for (struct store_entry *e = entries; e != NULL && error == 0; e = e->next) {
        if (is_named(e, "attach."))
            error = adopt_attachment(daemon, e);
    }
    store_entries_free(entries);
    if (error != 0)
        return error;
    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        if (daemon->caches[i] != NULL)
            settle(daemon, daemon->caches[i]);
    }
    return restart_adopted(daemon);
}
