/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins: a reader's hold on rows (PROTOCOL.md, "Readers" and "The holder test"). A pin
 * lies in the pin segment, in the slots of one attachment, and is written by it alone,
 * except that the daemon clears the pins of the dead. The writer never writes a pin.
 *
 * Orders, by label:
 *
 * H1, pin_set(): full fence after the pin, before the writer's claim is looked at.
 * Pairs with B1 (step.c): claim, full fence, pins.
 *
 * H2, pin_clear(): release store of 0, so that reads of the rows stay before it.
 * Pairs with B2, load_pin() here: acquire load of that word, before the pin's other words are
 * looked at, or rows are overwritten.
 *
 * H3, pin_set(): release store of that word, after the others. Pairs with B2.
 *
 * H4, cut_is_held() (cut.c): acquire load of a claim, before the newest record. Pairs with P3
 * (board.c): a begin after a reset lowers the claim, and who sees that sees the reset.
 */
#ifndef KVW_CLIENT_PIN_H
#define KVW_CLIENT_PIN_H

#include <stdbool.h>
#include <stdint.h>

#include "client/cache.h"

/* What a pin holds. */
struct hold {
    uint32_t lane;
    uint32_t group;
    uint64_t ranks; /* whose rows */
    uint64_t generation;
    uint64_t low; /* lowest ring row */
    uint64_t end; /* one past the highest row */
    uint64_t extent_first;
    uint64_t extent_end; /* of the keep extent; equal = none */
    uint32_t kind;       /* enum kvw_pin_kind */
    uint32_t pid;        /* out: of a pin that was found */
};

/** Set a pin. @return its index, or -EMFILE when KVW_PINS_PER_ATTACHMENT are held. Ends
 *  with a full fence (H1). */
KVW_NODISCARD int pin_set(struct kvw_cache *cache, const struct hold *hold);

/** End a pin of pin_set(). */
void pin_clear(struct kvw_cache *cache, uint32_t index);

/** End all pins of this attachment. */
void pin_clear_all(struct kvw_cache *cache);

/* Who is in the way. */
struct pin_holder {
    uint32_t attachment_slot;
    uint32_t pid;
    uint32_t kind;
    uint64_t low;
    uint64_t end;
    uint64_t since_ns;
};

/* Rows that a writer claims: what it will write, and how far in all. */
struct pin_claim {
    uint64_t generation;
    uint64_t at;
    uint64_t claim_end;
    bool steps_only; /* look past the pins of views */
};

/**
 * Look for a pin on rows of this rank that a claim would hurt. The caller has stored
 * its claim and fenced (B1).
 *
 * @return 0 when there is none, 1 with *holder.
 */
int pin_in_the_way(const struct kvw_cache *cache, uint32_t lane, uint32_t group,
                   const struct pin_claim *claim, struct pin_holder *holder);

/** Look for a pin that holds any of rows [first, end) of the keep extent. */
int pin_on_extent(const struct kvw_cache *cache, uint32_t lane, uint32_t group,
                  uint64_t first, uint64_t end, struct pin_holder *holder);

#endif
