/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First everything is checked, then a cache comes into being. Header and geometry are
 * read once, into a copy: the worker that offers them can write them at any time.
 */
#include "daemon/offer_judge.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/admit.h"
#include "daemon/cache.h"
#include "daemon/host.h"
#include "daemon/link.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

#define MODE_DEFAULT 0600u
#define SECTOR_BYTES 512u /* of st_blocks */

static const char *const segment_names[] = {"control", "pins", "data"};

/* An offer while it is judged. */
struct offered {
    /* Copies: what lies there may change at any time. */
    struct kvw_control_header header;
    struct kvw_layout layout;
    struct kvw_geometry geometry;
    struct segment segment[N_SEGMENTS]; /* descriptors are the client's, not owned */
};

/* -------------------------------------------------------------- judging ---------- */

/* What the descriptor itself tells, before a byte of it is read. */
static int check_descriptor(int fd, const char *what, uint64_t *bytes,
                            struct kvw_refusal *refusal)
{
    struct stat status;

    if (fstat(fd, &status) < 0 || fcntl(fd, F_GET_SEALS) < 0)
        return refuse(refusal, -EINVAL, 0, 0, "offer: the %s segment is no memfd",
                      what);
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
        return refuse(refusal, -EACCES, O_RDWR, 0,
                      "offer: the %s segment cannot be written by its descriptor",
                      what);
    if (status.st_uid != geteuid())
        return refuse(refusal, -EACCES, geteuid(), status.st_uid,
                      "offer: the %s segment was made by user %u, not by a daemon of "
                      "user %u",
                      what, status.st_uid, geteuid());
    *bytes = (uint64_t)status.st_size;
    if ((uint64_t)status.st_blocks * SECTOR_BYTES < *bytes)
        return refuse(refusal, -EINVAL, *bytes,
                      (uint64_t)status.st_blocks * SECTOR_BYTES,
                      "offer: the %s segment is not fully allocated", what);
    return 0;
}

static int read_control(struct offered *offered, struct kvw_refusal *refusal)
{
    const struct segment *segment = offered->segment;
    const size_t n_bytes = KVW_PAGE + sizeof(struct kvw_geometry);
    KVW_CLEANUP(kvw_free_cleanup)
    char *copy = malloc(n_bytes);

    if (copy == NULL)
        return refuse(refusal, -ENOMEM, n_bytes, 0, "no memory to look at an offer");
    if (pread(segment[SEGMENT_CONTROL].fd, copy, n_bytes, 0) != (ssize_t)n_bytes)
        return refuse(refusal, -EINVAL, n_bytes, segment[SEGMENT_CONTROL].bytes,
                      "offer: the control segment is too short");
    int error = layout_control_read(
        copy, segment[SEGMENT_CONTROL].bytes, segment[SEGMENT_PINS].bytes,
        segment[SEGMENT_DATA].bytes, &offered->geometry, &offered->layout, refusal);
    /* EPROTO would say that this daemon adopts nothing at all. */
    if (error != 0)
        return error == -EPROTO ? -EINVAL : error;
    memcpy(&offered->header, copy, sizeof offered->header);
    return 0;
}

static int check_distinct(const struct daemon *daemon, const struct offered *offered,
                          struct kvw_refusal *refusal)
{
    const struct segment *segment = offered->segment;

    for (uint32_t s = 0; s < N_SEGMENTS; s++) {
        if (segment_is_same(&segment[s], &segment[(s + 1) % N_SEGMENTS]))
            return refuse(refusal, -EINVAL, 0, 0,
                          "offer: one memfd stands for two "
                          "segments");
        for (uint32_t i = 0; i < KVW_CACHES_MAX * N_SEGMENTS; i++) {
            const struct cache *cache = daemon->caches[i / N_SEGMENTS];
            if (cache != NULL &&
                segment_is_same(&segment[s], &cache->segment[i % N_SEGMENTS]))
                return refuse(refusal, -EINVAL, 0, 0,
                              "offer: the %s segment belongs to cache '%s'",
                              segment_names[s], cache->meta.name);
        }
    }
    return 0;
}

static int check_name(const struct daemon *daemon, const struct offered *offered,
                      struct kvw_refusal *refusal)
{
    static const uint8_t nothing[16];
    const struct kvw_control_header *header = &offered->header;
    const struct cache *other = cache_find(daemon, header->name);

    if (header->state != KVW_CONTROL_LIVE)
        return refuse(refusal, -ESTALE, 0, 0, "offer: cache '%s' was removed",
                      header->name);
    if (other != NULL)
        return refuse(refusal, -EEXIST, 0, 0,
                      "offer: there is another cache '%s' by now, made by user %u",
                      header->name, other->meta.uid);
    if (memcmp(header->uuid, nothing, sizeof nothing) == 0)
        return refuse(refusal, -EINVAL, 0, 0, "offer: '%s' has no uuid", header->name);
    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        other = daemon->caches[i];
        if (other != NULL &&
            memcmp(header->uuid, other->meta.uuid, sizeof header->uuid) == 0)
            return refuse(refusal, -EEXIST, 0, 0,
                          "offer: '%s' has the uuid of cache '%s'", header->name,
                          other->meta.name);
    }
    return 0;
}

/* Whose it becomes: nobody's but the peer's own; root may act for everybody. */
static int check_owner(const struct client *client, const struct offered *offered,
                       uint32_t *uid, struct kvw_refusal *refusal)
{
    *uid = offered->header.layout_minor == 0 ? client->peer.uid : offered->header.uid;
    if (client->peer.uid == 0 || client->peer.uid == *uid)
        return 0;
    return refuse(refusal, -ENOENT, *uid, client->peer.uid,
                  "offer: cache '%s' is of user %u, and only a process of that user "
                  "brings it back",
                  offered->header.name, *uid);
}

/* The memory is there already; whether it may be is a question all the same. */
static int check_quota(const struct daemon *daemon, uint32_t uid, uint64_t bytes,
                       struct kvw_refusal *refusal)
{
    int error = admit_count(daemon, uid, refusal);
    if (error != 0)
        return error;
    uint64_t used = cache_bytes_used(daemon, NULL);
    uint64_t have = daemon->options->quota_bytes;

    have -= min_u64(have, used);
    used = cache_bytes_used(daemon, &uid);
    uint64_t have_user = daemon->options->quota_user_bytes;
    have = min_u64(have, have_user - min_u64(have_user, used));
    if (bytes <= have)
        return 0;
    return refuse(refusal, -EDQUOT, bytes, have,
                  "offer: quota: need %" PRIu64 " bytes, have %" PRIu64, bytes, have);
}

/* ------------------------------------------------------------- adopting ---------- */

static void fill_meta(struct daemon *daemon, const struct offered *offered,
                      uint32_t uid, const struct client *client,
                      struct cache_meta *meta)
{
    const struct kvw_control_header *header = &offered->header;
    bool is_described = header->layout_minor > 0;
    uint32_t high = header->attachments_high;

    *meta =
        (struct cache_meta){.magic = CACHE_META_MAGIC,
                            .id = ++daemon->last_cache_id,
                            .created_ns = host_wall_ns(),
                            .uid = uid,
                            .gid = client->peer.gid,
                            .mode = MODE_DEFAULT,
                            .lifetime = LIFETIME_KEEP,
                            .wish.pages = segment_pages(&offered->segment[SEGMENT_DATA],
                                                        offered->geometry.pages),
                            .geometry = offered->geometry};
    memcpy(meta->uuid, header->uuid, sizeof meta->uuid);
    memcpy(meta->name, header->name, sizeof meta->name);
    /* One slot at least: zero would say that it was never offered. */
    meta->offered_slots =
        high == 0 || high > KVW_ATTACHMENTS_MAX ? KVW_ATTACHMENTS_MAX : high;
    if (!is_described)
        return;
    /* The nodes of node and map are nobody's word any more, but the kernel's. */
    if (header->layout_minor > 1 && header->placement <= KVW_PLACE_INTERLEAVE)
        meta->wish.policy = header->placement;
    meta->created_ns = header->created_ns;
    meta->gid = header->gid;
    if (header->mode != 0 && header->mode <= 0777)
        meta->mode = header->mode;
    if (header->lifetime <= LIFETIME_KEEP &&
        header->ttl_seconds <= KVW_TTL_SECONDS_MAX) {
        meta->lifetime = header->lifetime;
        meta->ttl_seconds = header->ttl_seconds;
    }
}

/* The descriptors become the cache's, or stay the client's. */
static int fill_cache(struct cache *cache, struct offered *offered,
                      struct client *client, struct kvw_refusal *refusal)
{
    struct kvw_control_header *header;
    int error = 0;

    cache->layout = offered->layout;
    for (uint32_t s = 0; s < N_SEGMENTS && error == 0; s++) {
        error = segment_adopt(&cache->segment[s], client->fds[s],
                              offered->segment[s].bytes, segment_names[s], refusal);
        if (error == 0)
            client->fds[s] = -1;
    }
    if (error != 0)
        return error;
    error = segment_map(&cache->segment[SEGMENT_CONTROL]);
    if (error == 0)
        error = segment_map(&cache->segment[SEGMENT_PINS]);
    if (error == 0) {
        cache->meta_fd =
            segment_freeze("kvwheel:meta", &cache->meta, sizeof cache->meta);
        error = cache->meta_fd < 0 ? cache->meta_fd : 0;
    }
    if (error != 0)
        return refuse(refusal, error, 0, 0, "offer: '%s' cannot be mapped: %s",
                      cache->meta.name, strerrordesc_np(-error));
    header = cache->segment[SEGMENT_CONTROL].base;
    if (load_relaxed(&header->attachments_high) > KVW_ATTACHMENTS_MAX)
        store_relaxed(&header->attachments_high, KVW_ATTACHMENTS_MAX);
    cache->total_bytes = offered->layout.control_bytes + offered->layout.pins_bytes +
                         offered->layout.data_bytes;
    cache->state = CACHE_READY;
    cache_touch(cache);
    return 0;
}

static int adopt(struct daemon *daemon, struct client *client, struct offered *offered,
                 struct cache **out, struct kvw_refusal *refusal)
{
    uint32_t uid = 0;

    int error = check_name(daemon, offered, refusal);
    if (error == 0)
        error = check_distinct(daemon, offered, refusal);
    if (error == 0)
        error = check_owner(client, offered, &uid, refusal);
    if (error == 0)
        error = check_quota(daemon, uid,
                            offered->layout.control_bytes + offered->layout.pins_bytes +
                                offered->layout.data_bytes,
                            refusal);
    if (error != 0)
        return error;
    struct cache *cache = cache_add(daemon);
    if (cache == NULL)
        return cache_refuse(daemon, offered->header.name, refusal);
    fill_meta(daemon, offered, uid, client, &cache->meta);
    error = fill_cache(cache, offered, client, refusal);
    if (error == 0) {
        error = link_put_cache(daemon, cache);
        if (error != 0)
            (void)refuse(refusal, error, 0, 0, "offer: '%s' cannot be kept: %s",
                         cache->meta.name, strerrordesc_np(-error));
    }
    if (error != 0) {
        cache_free(daemon, cache);
        return error;
    }
    *out = cache;
    return 0;
}

/* Everything that needs no cache yet, then the cache. */
int offer_judge(struct daemon *daemon, struct client *client, struct cache **out,
                struct kvw_refusal *refusal)
{
    KVW_CLEANUP(kvw_free_cleanup)
    struct offered *offered = calloc(1, sizeof *offered);
    int error = 0;

    if (offered == NULL)
        return refuse(refusal, -ENOMEM, sizeof *offered, 0, "no memory for an offer");
    for (uint32_t s = 0; s < N_SEGMENTS && error == 0; s++) {
        offered->segment[s].fd = client->fds[s];
        error = check_descriptor(client->fds[s], segment_names[s],
                                 &offered->segment[s].bytes, refusal);
    }
    /* Seals before the first byte: what is sealed cannot become shorter. */
    for (uint32_t s = 0; s < N_SEGMENTS && error == 0; s++) {
        struct segment ignored;
        error = segment_adopt(&ignored, client->fds[s], offered->segment[s].bytes,
                              segment_names[s], refusal);
    }
    if (error == 0)
        error = read_control(offered, refusal);
    return error != 0 ? error : adopt(daemon, client, offered, out, refusal);
}
