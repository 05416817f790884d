/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cutting the pieces of a call into tiles and parts; which slots of a tile a query sees.
 *
 * Rows that the mask looks at have their number's place in a tile: slot = number modulo
 * the slots of a tile. Rows that everybody sees (mask NONE, KVW_ATTN_ALWAYS) are counted
 * through as long as pieces of that kind follow each other. A part is the tiles of
 * ATTN_PART such numbers or counts, or less where the kind changes. So tiles and parts
 * do not depend on how rows are cut into pieces, and rows that a query does not see do
 * not shift those that it sees.
 */
#ifndef KVW_KERNELS_ATTN_TILE_H
#define KVW_KERNELS_ATTN_TILE_H

#include "kernels/attn_micro.h"

#define ATTN_PART 4096u /* rows; a multiple of ATTN_TILE */

/* Where the next tile begins. */
struct attn_cursor {
    uint64_t row;   /* in the piece */
    uint64_t count; /* rows counted through before it */
    uint32_t piece;
};

/* Which tile that is. */
struct attn_place {
    uint64_t index; /* of the tile: numbers or counts from index * n_slots */
    bool is_numbered;
    bool is_end; /* no more rows */
};

/* Rows that a query sees: all with numbers below end that are below sink_rows or not
 * below lo. */
struct attn_sight {
    uint64_t end;
    uint64_t lo;
};

/* Move over pieces without rows to see, and say where the cursor stands. */
struct attn_place attn_cursor_place(struct attn_cursor *cursor,
                                    const struct kvw_attn_args *args, uint32_t n_slots);

/* Whether two places are of one part. */
bool attn_places_share_part(const struct attn_place *a, const struct attn_place *b,
                            uint32_t n_slots);

/* Move to the next tile; fill this one unless tile is NULL. */
void attn_cursor_take(struct attn_cursor *cursor, const struct kvw_attn_args *args,
                      const struct attn_shape *shape, uint32_t kv_head,
                      struct attn_tile *tile);

struct attn_sight attn_sight_of(const struct kvw_attn_args *args, uint32_t query);

/* Slots of a tile that a query sees, as bits. */
void attn_tile_seen(uint64_t seen[ATTN_WORDS], const struct attn_tile *tile,
                    const struct attn_sight *sight, uint64_t sink_rows);

#endif /* KVW_KERNELS_ATTN_TILE_H */
