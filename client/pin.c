/* SPDX-License-Identifier: Apache-2.0 */
/* See pin.h. A pin is one line; its first word is stored last and says that it holds.
 */
#include "client/pin.h"

#include <errno.h>
#include <stdbool.h>

#include "client/client.h"
#include "client/outside.h"
#include "proto/rules.h"

int pin_set(struct kvw_cache *cache, const struct hold *hold)
{
    if (cache->pins_used == UINT64_MAX)
        return fail(-EMFILE, "'%s': %u views are held already; release some",
                    cache->name, KVW_PINS_PER_ATTACHMENT);
    const uint32_t index = (uint32_t)__builtin_ctzll(~cache->pins_used);
    struct kvw_pin *pin = layout_pin(cache->pins, &cache->layout, cache->slot, index);
    shared_u32 *high = layout_high(cache->pins, &cache->layout, cache->slot);

    if (load_relaxed(high) <= index)
        store_relaxed(high, index + 1);
    store_relaxed(&pin->end, hold->end);
    store_relaxed(&pin->generation, hold->generation);
    store_relaxed(&pin->lane_group, (uint64_t)hold->lane << 32 | hold->group);
    store_relaxed(&pin->ranks, hold->ranks);
    store_relaxed(&pin->keep_extent, hold->extent_first << 32 | hold->extent_end);
    store_relaxed(&pin->kind, (uint64_t)cache->pid << 32 | hold->kind);
    /* The coarse clock costs a few nanoseconds; the time is for messages only. */
    store_relaxed(&pin->since_ns, outside_now_ns(CLOCK_MONOTONIC_COARSE));
    store_release(&pin->lo_plus_1, hold->low + 1); /* H3, pairs with B2 */
    cache->pins_used |= 1ull << index;
    fence_full(); /* H1, pairs with B1 */
    return (int)index;
}

void pin_clear(struct kvw_cache *cache, uint32_t index)
{
    struct kvw_pin *pin = layout_pin(cache->pins, &cache->layout, cache->slot, index);

    store_release(&pin->lo_plus_1, 0); /* H2, pairs with B2 */
    cache->pins_used &= ~(1ull << index);
}

void pin_clear_all(struct kvw_cache *cache)
{
    while (cache->pins_used != 0)
        pin_clear(cache, (uint32_t)__builtin_ctzll(cache->pins_used));
}

/* Copy of a pin that is set for a lane and group. */
static bool load_pin(const struct kvw_cache *cache, uint32_t slot, uint32_t index,
                     uint64_t lane_group, struct hold *hold)
{
    struct kvw_pin *pin = layout_pin(cache->pins, &cache->layout, slot, index);
    /* B2, pairs with H2, H3 and D3. */
    uint64_t low_plus_1 = load_acquire(&pin->lo_plus_1);

    if (low_plus_1 == 0 || load_relaxed(&pin->lane_group) != lane_group)
        return false;
    hold->ranks = load_relaxed(&pin->ranks);
    hold->generation = load_relaxed(&pin->generation);
    hold->low = low_plus_1 - 1;
    hold->end = load_relaxed(&pin->end);
    uint64_t extent = load_relaxed(&pin->keep_extent);
    hold->extent_first = extent >> 32;
    hold->extent_end = extent & UINT32_MAX;
    const uint64_t kind = load_relaxed(&pin->kind);
    hold->kind = (uint32_t)kind;
    hold->pid = (uint32_t)(kind >> 32);
    return true;
}

/* What a scan looks for: a claim's rows, or rows of the keep extent. */
struct search {
    const struct kvw_geometry_group *group;
    uint64_t ring_rows;
    const struct pin_claim *claim; /* NULL: the extent */
    uint64_t extent_first;
    uint64_t extent_end;
};

static bool is_in_the_way(const struct search *search, const struct hold *hold,
                          uint32_t rank)
{
    const struct pin_claim *claim = search->claim;

    if (claim == NULL)
        return hold->extent_first < search->extent_end &&
               search->extent_first < hold->extent_end;
    /* A slot of the ring belongs to one rank for ever. (One of the keep extent does
     * not, where rows are split: there the pins of all ranks count.) */
    if ((hold->ranks >> rank & 1) == 0)
        return false;
    if (claim->steps_only && hold->kind == KVW_PIN_OF_VIEW)
        return false;
    const struct kvw_holder holder = {hold->generation, hold->low, hold->end};
    return rules_conflict(search->group, search->ring_rows, claim->generation,
                          claim->at, claim->claim_end, &holder);
}

static int scan(const struct kvw_cache *cache, uint32_t lane, uint32_t group,
                const struct search *search, struct pin_holder *holder)
{
    const struct kvw_control_header *header =
        (const struct kvw_control_header *)(const void *)cache->control;
    const uint64_t lane_group = (uint64_t)lane << 32 | group;

    uint32_t n_slots = load_relaxed(&header->attachments_high);
    if (n_slots > KVW_ATTACHMENTS_MAX)
        n_slots = KVW_ATTACHMENTS_MAX;
    for (uint32_t slot = 0; slot < n_slots; slot++) {
        uint32_t n_pins = load_relaxed(layout_high(cache->pins, &cache->layout, slot));
        if (n_pins > KVW_PINS_PER_ATTACHMENT)
            n_pins = KVW_PINS_PER_ATTACHMENT;
        for (uint32_t index = 0; index < n_pins; index++) {
            struct hold hold;
            if (!load_pin(cache, slot, index, lane_group, &hold) ||
                !is_in_the_way(search, &hold, cache->rank))
                continue;
            struct kvw_pin *pin = layout_pin(cache->pins, &cache->layout, slot, index);
            *holder = (struct pin_holder){
                .attachment_slot = slot,
                .pid = hold.pid,
                .kind = hold.kind,
                .low = hold.low,
                .end = hold.end,
                .since_ns = load_relaxed(&pin->since_ns),
            };
            return 1;
        }
    }
    return 0;
}

int pin_in_the_way(const struct kvw_cache *cache, uint32_t lane, uint32_t group,
                   const struct pin_claim *claim, struct pin_holder *holder)
{
    const struct search search = {
        .group = &cache->geometry.group[group],
        .ring_rows = cache->layout.group[group].ring_rows,
        .claim = claim,
    };
    return scan(cache, lane, group, &search, holder);
}

int pin_on_extent(const struct kvw_cache *cache, uint32_t lane, uint32_t group,
                  uint64_t first, uint64_t end, struct pin_holder *holder)
{
    const struct search search = {.extent_first = first, .extent_end = end};
    return scan(cache, lane, group, &search, holder);
}
