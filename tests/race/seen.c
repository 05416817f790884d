/* SPDX-License-Identifier: Apache-2.0 */
/* See seen.h. Open addressing; 56 bits of a digest, and the switches left, plus 1. */
#include "tests/race/seen.h"

#include <stdlib.h>

static uint64_t *seen;
static size_t n_seen_slots;
static size_t n_seen;

void seen_clear(void)
{
    free(seen);
    n_seen_slots = 1 << 16;
    n_seen = 0;
    seen = calloc(n_seen_slots, sizeof *seen);
    if (seen == NULL)
        abort();
}

static uint64_t *seen_slot(uint64_t *table, size_t n_slots, uint64_t digest)
{
    size_t at = (digest >> 8) & (n_slots - 1);

    while (table[at] != 0 && (table[at] ^ digest) >> 8 != 0)
        at = (at + 1) & (n_slots - 1);
    return &table[at];
}

static void seen_grow(void)
{
    uint64_t *larger = calloc(n_seen_slots * 2, sizeof *larger);

    if (larger == NULL)
        abort();
    for (size_t i = 0; i < n_seen_slots; i++) {
        if (seen[i] != 0)
            *seen_slot(larger, n_seen_slots * 2, seen[i]) = seen[i];
    }
    free(seen);
    seen = larger;
    n_seen_slots *= 2;
}

bool seen_before(uint64_t digest, uint32_t switches_left)
{
    uint64_t *slot = seen_slot(seen, n_seen_slots, digest);
    const uint64_t entry = (digest & ~0xffull) | (switches_left + 1);

    if (*slot != 0) {
        if ((*slot & 0xff) >= switches_left + 1)
            return true;
        *slot = entry;
        return false;
    }
    *slot = entry;
    if (++n_seen * 2 > n_seen_slots)
        seen_grow();
    return false;
}

uint64_t seen_count(void)
{
    return n_seen;
}
