/* SPDX-License-Identifier: Apache-2.0 */
/* Pure checks: nothing is changed here. */
#include "daemon/admit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/cache.h"
#include "daemon/host.h"
#include "proto/base/align.h"
#include "proto/partition.h"

#define MODE_DEFAULT 0600u

/* What a program that attaches maps for contiguous groups, and what it needs beside. */
#define MAPPINGS_PER_HEAD 3u
#define MAPPINGS_LEFT 1024u

/* Left for everybody else: 2 % of memory, at least 64 MiB and at most 1 GiB. */
#define RESERVE_BYTES_MIN (64ull << 20)
#define RESERVE_BYTES_MAX (1ull << 30)

int admit_request(const struct kvw_message_create *request, struct cache_meta *meta,
                  struct kvw_layout *layout, struct kvw_refusal *refusal)
{
    *meta = (struct cache_meta){
        .magic = CACHE_META_MAGIC,
        .ttl_seconds = request->ttl_seconds,
        .mode = request->mode != 0 ? request->mode : MODE_DEFAULT,
        .lifetime = request->lifetime,
        .wish = {.policy = request->placement, .n_nodes = request->nodes_bytes / 2}};
    if (meta->wish.n_nodes > 0)
        memcpy(meta->wish.node, request->nodes, meta->wish.n_nodes * 2ul);
    if (!geometry_name_ok(request->name, KVW_NAME_MAX))
        return refuse(
            refusal, -EINVAL, KVW_NAME_MAX, strlen(request->name),
            "cache name: 1 to %u letters, digits, '_', '-', '.', not a dot first",
            KVW_NAME_MAX);
    memcpy(meta->name, request->name, sizeof meta->name);
    if (request->lifetime > LIFETIME_KEEP)
        return refuse(refusal, -EINVAL, LIFETIME_KEEP, request->lifetime,
                      "cache '%s': there is no lifetime %u", meta->name,
                      request->lifetime);
    if (request->lifetime == LIFETIME_TTL && request->ttl_seconds > KVW_TTL_SECONDS_MAX)
        return refuse(refusal, -EINVAL, KVW_TTL_SECONDS_MAX, request->ttl_seconds,
                      "cache '%s': a ttl of at most %llu seconds, asked %" PRIu64,
                      meta->name, KVW_TTL_SECONDS_MAX, request->ttl_seconds);
    if (request->mode > 0777)
        return refuse(refusal, -EINVAL, 0777, request->mode,
                      "cache '%s': mode %o has bits that are no permissions",
                      meta->name, request->mode);
    if (request->geometry_bytes != sizeof meta->geometry)
        return refuse(refusal, -EINVAL, sizeof meta->geometry, request->geometry_bytes,
                      "cache '%s': a geometry has %zu bytes, this one has %u",
                      meta->name, sizeof meta->geometry, request->geometry_bytes);
    memcpy(&meta->geometry, request->geometry, sizeof meta->geometry);
    int error = geometry_check(&meta->geometry, refusal);
    if (error == 0)
        error = layout_of(&meta->geometry, layout, refusal);
    return error != 0 ? error
                      : admit_mappings(&meta->geometry, host_mappings_max(), refusal);
}

static uint64_t count_mappings(const struct kvw_geometry *geometry, uint32_t rank)
{
    const struct kvw_interval lanes = partition_lanes(geometry, rank);
    uint64_t n_mappings = 0;

    for (uint32_t g = 0; g < geometry->n_groups; g++) {
        const struct kvw_interval layers = partition_layers(geometry, g, rank);
        const struct kvw_interval heads = partition_heads(geometry, g, rank);
        if (geometry->group[g].is_contiguous)
            n_mappings += (uint64_t)MAPPINGS_PER_HEAD * (layers.end - layers.begin) *
                          geometry->group[g].n_planes * (lanes.end - lanes.begin) *
                          (heads.end - heads.begin);
    }
    return n_mappings;
}

int admit_mappings(const struct kvw_geometry *geometry, uint64_t mappings_max,
                   struct kvw_refusal *refusal)
{
    const uint64_t have = mappings_max - min_u64(mappings_max, MAPPINGS_LEFT);
    uint64_t need = 0;
    uint32_t largest = 0;

    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        const uint64_t n_mappings = count_mappings(geometry, rank);
        if (n_mappings > need) {
            need = n_mappings;
            largest = rank;
        }
    }
    if (need <= have)
        return 0;
    return refuse(refusal, -ENOMEM, need, have,
                  "contiguous groups: rank %u needs %" PRIu64
                  " mappings (%u for each layer, plane, lane and head), have %" PRIu64
                  " (vm.max_map_count less %u for the rest of the program): sysctl -w "
                  "vm.max_map_count=%" PRIu64 ", or split over more ranks",
                  largest, need, MAPPINGS_PER_HEAD, have, MAPPINGS_LEFT,
                  need + MAPPINGS_LEFT);
}

static uint64_t reserve_bytes(const struct host_memory *memory)
{
    return min_u64(max_u64(memory->total / 50, RESERVE_BYTES_MIN), RESERVE_BYTES_MAX);
}

static int admit_memory(const struct daemon *daemon, uint64_t total_bytes,
                        struct kvw_refusal *refusal)
{
    const uint64_t promised = cache_bytes_promised(daemon);
    struct host_memory memory;

    int error = host_memory(&memory);
    if (error != 0)
        return refuse(refusal, error, total_bytes, 0,
                      "memory: need %" PRIu64
                      " bytes; how much there is cannot be told now: %s",
                      total_bytes, strerrordesc_np(-error));
    const uint64_t reserve = reserve_bytes(&memory);
    /* What leaves is faster than what comes: it need not be waited for. */
    const uint64_t available = memory.available + cache_bytes_leaving(daemon);
    const uint64_t have = available - min_u64(available, reserve + promised);
    if (total_bytes <= have)
        return 0;
    return refuse(refusal, -ENOMEM, total_bytes, have,
                  "memory: need %" PRIu64 " bytes, have %" PRIu64 " (%" PRIu64
                  " free or reclaimable, less a reserve of %" PRIu64 " and %" PRIu64
                  " for caches being created%s%.150s)",
                  total_bytes, have, available, reserve, promised,
                  memory.limit[0] != 0 ? "; the limit is " : host_memory_warning(),
                  memory.limit);
}

int admit_bytes(const struct daemon *daemon, uint32_t uid, uint64_t total_bytes,
                uint64_t pool_bytes, struct kvw_refusal *refusal)
{
    uint64_t used = cache_bytes_used(daemon, NULL);
    uint64_t quota = daemon->options->quota_bytes;
    uint64_t have = quota - min_u64(quota, used);

    if (total_bytes > have)
        return refuse(refusal, -EDQUOT, total_bytes, have,
                      "quota: need %" PRIu64 " bytes, have %" PRIu64
                      " of the daemon's %" PRIu64 " (caches use %" PRIu64
                      "; kvwheeld --quota)",
                      total_bytes, have, quota, used);
    used = cache_bytes_used(daemon, &uid);
    quota = daemon->options->quota_user_bytes;
    have = quota - min_u64(quota, used);
    if (total_bytes > have)
        return refuse(refusal, -EDQUOT, total_bytes, have,
                      "quota of user %u: need %" PRIu64 " bytes, have %" PRIu64
                      " of %" PRIu64 " (caches use %" PRIu64 "; kvwheeld --quota-user)",
                      uid, total_bytes, have, quota, used);
    return admit_memory(daemon, total_bytes - pool_bytes, refusal);
}

int admit_count(const struct daemon *daemon, uint32_t uid, struct kvw_refusal *refusal)
{
    const uint32_t n_caches = cache_count(daemon, uid);
    const uint32_t most = share_of(daemon, KVW_CACHES_MAX);

    if (share_is_unlimited(uid) || n_caches < most)
        return 0;
    return refuse(refusal, -EDQUOT, n_caches + 1, most,
                  "user %u has %u caches, at most %u for one user", uid, n_caches,
                  most);
}

/* One number of two geometries. */
struct number {
    const char *name;
    uint64_t asked;
    uint64_t there;
};

static const struct number *first_difference(const struct number *numbers, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (numbers[i].asked != numbers[i].there)
            return &numbers[i];
    }
    return NULL;
}

static int refuse_number(const char *cache, const char *where,
                         const struct number *number, struct kvw_refusal *refusal)
{
    return refuse(refusal, -EEXIST, number->asked, number->there,
                  "cache '%s' exists with another spec: %s%s is %" PRIu64
                  " there, asked %" PRIu64,
                  cache, where, number->name, number->there, number->asked);
}

#define NUMBER(field)              \
    {                              \
#field, a->field, b->field \
    }

static int same_group(const char *cache, const struct kvw_geometry_group *a,
                      const struct kvw_geometry_group *b, struct kvw_refusal *refusal)
{
    const struct number numbers[] = {
        NUMBER(window_rows), NUMBER(sink_rows),    NUMBER(chunk_rows_max),
        NUMBER(keep_rows),   NUMBER(slack_chunks), NUMBER(n_layers),
        NUMBER(n_heads),     NUMBER(n_planes),     NUMBER(policy),
        NUMBER(kind),        NUMBER(positions),    NUMBER(is_contiguous)};
    char where[64];
    const struct number *number =
        first_difference(numbers, sizeof numbers / sizeof numbers[0]);

    (void)snprintf(where, sizeof where, "group '%s' ", b->name);
    if (number != NULL)
        return refuse_number(cache, where, number, refusal);
    if (memcmp(a, b, sizeof *a) != 0)
        return refuse(refusal, -EEXIST, 0, 0,
                      "cache '%s' exists with another spec: group '%s' or its planes "
                      "(name, elems, type) differ",
                      cache, b->name);
    return 0;
}

int admit_same(const struct cache_meta *asked, const struct cache_meta *there,
               struct kvw_refusal *refusal)
{
    const struct kvw_geometry *a = &asked->geometry;
    const struct kvw_geometry *b = &there->geometry;
    const struct number numbers[] = {NUMBER(n_groups),
                                     NUMBER(n_lanes),
                                     NUMBER(n_ranks),
                                     NUMBER(n_layers),
                                     NUMBER(partition.head_parts),
                                     NUMBER(partition.layer_parts),
                                     NUMBER(partition.lane_parts),
                                     NUMBER(partition.row_parts),
                                     NUMBER(partition.row_block)};

    if (asked->uid != there->uid)
        return refuse(refusal, -EEXIST, asked->uid, there->uid,
                      "cache '%s' exists and belongs to user %u, not to user %u",
                      there->name, there->uid, asked->uid);
    const struct number *number =
        first_difference(numbers, sizeof numbers / sizeof numbers[0]);
    if (number != NULL)
        return refuse_number(there->name, "", number, refusal);
    for (uint32_t g = 0; g < b->n_groups; g++) {
        int error = same_group(there->name, &a->group[g], &b->group[g], refusal);
        if (error != 0)
            return error;
    }
    if (memcmp(a, b, sizeof *a) != 0)
        return refuse(refusal, -EEXIST, 0, 0,
                      "cache '%s' exists with another spec: the model's layer numbers "
                      "differ",
                      there->name);
    return 0;
}
