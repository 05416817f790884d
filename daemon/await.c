/* SPDX-License-Identifier: Apache-2.0 */
/* See await.h. A seat's pid is asked anew each time: no descriptor is held for it. */
#include "daemon/await.h"

#include <errno.h>
#include <unistd.h>

#include "daemon/cache.h"
#include "daemon/host.h"
#include "daemon/peer.h"
#include "proto/base/align.h"

#define SWEEP_SEATS_NS 1000000000ull
/* tests/restart builds a daemon with shorter ones. */
#ifndef AWAIT_PIN_NS
#define AWAIT_PIN_NS 60000000000ull
#endif
#define SWEEP_PINS_NS (AWAIT_PIN_NS / 6)

void await_describe(const struct cache *cache)
{
    struct kvw_control_header *header = cache->segment[SEGMENT_CONTROL].base;

    header->created_ns = cache->meta.created_ns;
    header->ttl_seconds = cache->meta.ttl_seconds;
    header->uid = cache->meta.uid;
    header->gid = cache->meta.gid;
    header->mode = cache->meta.mode;
    header->lifetime = cache->meta.lifetime;
    header->placement = cache->meta.wish.policy;
    header->layout_minor = KVW_LAYOUT_MINOR;
}

static bool is_alive(uint32_t pid)
{
    if (pid == 0)
        return true;
    int fd = peer_pidfd_open(pid);
    if (fd < 0)
        return fd != -ESRCH && fd != -EINVAL;
    struct peer peer = {.pidfd = fd};
    bool is_dead = peer_is_dead(&peer);
    peer_close(&peer);
    return !is_dead;
}

bool await_is_rank(const struct cache *cache, uint32_t rank)
{
    struct kvw_seat *seat =
        layout_seat(cache->segment[SEGMENT_CONTROL].base, &cache->layout, rank);

    if (cache->meta.offered_slots == 0 || cache->owner[rank] != NULL ||
        load_relaxed(&seat->state) != KVW_SEAT_OWNED)
        return false;
    if (is_alive(load_relaxed(&seat->pid)))
        return true;
    store_relaxed(&seat->since_ns, host_wall_ns());
    store_relaxed(&seat->owner, 0);
    store_release(&seat->state, KVW_SEAT_DEAD); /* D2, pairs with W3 */
    cache_wake(cache, rank);
    return false;
}

bool await_is_any(const struct cache *cache)
{
    bool is_any = false;

    for (uint32_t rank = 0; rank < cache->meta.geometry.n_ranks; rank++)
        is_any = await_is_rank(cache, rank) || is_any;
    return is_any;
}

static void sweep_pins(const struct cache *cache, uint64_t now_ns)
{
    void *pins = cache->segment[SEGMENT_PINS].base;

    for (uint32_t slot = 0; slot < cache->meta.offered_slots; slot++) {
        if (cache->by_slot[slot] != NULL)
            continue;
        for (uint32_t i = 0; i < KVW_PINS_PER_ATTACHMENT; i++) {
            struct kvw_pin *pin = layout_pin(pins, &cache->layout, slot, i);
            uint64_t since_ns = load_relaxed(&pin->since_ns);
            if (load_relaxed(&pin->lo_plus_1) != 0 &&
                (since_ns > now_ns || now_ns - since_ns > AWAIT_PIN_NS))
                store_release(&pin->lo_plus_1, 0); /* D3, pairs with B2 */
        }
    }
}

/* The cache may be gone afterwards. */
static uint64_t sweep(struct daemon *daemon, struct cache *cache, uint64_t now_ns)
{
    bool is_any = await_is_any(cache);

    if (cache->is_awaiting && !is_any && cache->n_attachments == 0) {
        cache_touch(cache);
        cache_unused(daemon, cache);
        return NEVER_NS;
    }
    cache->is_awaiting = is_any;
    sweep_pins(cache, now_ns);
    cache->sweep_ns = now_ns + (is_any ? SWEEP_SEATS_NS : SWEEP_PINS_NS);
    return cache->sweep_ns;
}

uint64_t await_sweep(struct daemon *daemon, uint64_t now_ns)
{
    uint64_t next_ns = NEVER_NS;

    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        struct cache *cache = daemon->caches[i];
        if (cache == NULL || cache->meta.offered_slots == 0)
            continue;
        next_ns =
            min_u64(next_ns, cache->sweep_ns <= now_ns ? sweep(daemon, cache, now_ns)
                                                       : cache->sweep_ns);
    }
    return next_ns;
}
