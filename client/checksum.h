/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of committed rows, in caches that have them: one of each row, plane and head
 * (crc32c.h), in the word of its slot. It is written between the begin that was granted
 * the slot and the store that publishes the row, so it has the row's own protection: no
 * published window has that slot meanwhile, whoever dies where (decision 0009).
 */
#ifndef KVW_CLIENT_CHECKSUM_H
#define KVW_CLIENT_CHECKSUM_H

#include "client/cache.h"

/* The rows of one head in one lane. */
struct checksum_of {
    uint32_t group;
    uint32_t in_group; /* the layer */
    uint32_t plane;
    uint32_t lane;
    uint32_t head;
};

/** Write the checksums of the first `n_rows[g]` rows of each group's open chunk, of all
 * that this rank holds of them. */
void checksum_commit(struct kvw_cache *cache, uint32_t lane,
                     const uint64_t n_rows[KVW_GROUPS_MAX]);

/** Copy checksums of slots as they are, wrong ones too. */
void checksum_copy(struct kvw_cache *cache, const struct checksum_of *of,
                   uint64_t from_slot, uint64_t to_slot, uint64_t n_rows);

/** Compare rows of slots with their checksums. @return how many from the first on are
 *  right: n_rows, or the index of one that is not. */
uint64_t checksum_compare(const struct kvw_cache *cache, const struct checksum_of *of,
                          uint64_t slot, uint64_t n_rows);

#endif
