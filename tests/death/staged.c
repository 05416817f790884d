/* SPDX-License-Identifier: Apache-2.0 */
/* See staged.h. */
#include "tests/death/staged.h"

#include <errno.h>

#include "tests/death/scene.h"

/* FNV-1a (Fowler, Noll, Vo), 64 bits. */
static uint64_t digest_of(const struct kvw_view *view)
{
    uint64_t digest = 0xcbf29ce484222325ull;

    for (uint32_t i = 0; i < view->n_pieces; i++) {
        for (uint32_t p = 0; p < view->n_planes; p++) {
            for (uint32_t h = 0; h < view->n_heads; h++) {
                const char *at = kvw_piece_at(&view->plane[p], &view->piece[i], h);
                const uint64_t n_bytes =
                    view->piece[i].n_rows * view->plane[p].row_bytes;
                for (uint64_t b = 0; b < n_bytes; b++)
                    digest = (digest ^ (uint8_t)at[b]) * 0x100000001b3ull;
            }
        }
    }
    return digest;
}

void onlooker_look(struct kvw_cache *reader, struct onlooker *onlooker)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct kvw_view *view = &onlooker->view[layer];
        int error = kvw_cut(reader, 0, (struct kvw_layer){layer}, 1,
                            KVW_STAGED | KVW_UNPINNED, view);
        EXPECT(error == 0 || error == -EAGAIN || error == -EOWNERDEAD,
               "staged view of layer %u: %d, %s", layer, error, kvw_last_error());
        onlooker->has_view[layer] = error == 0;
        if (error == 0)
            onlooker->digest[layer] = digest_of(view);
    }
}

void onlooker_expect(struct kvw_cache *reader, const struct onlooker *onlooker,
                     const struct m_record *published)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const uint64_t rows = published->group[layer / LAYERS_OF_GROUP].rows;
        EXPECT(!onlooker->has_view[layer] || onlooker->view[layer].end_row == rows,
               "staged view of layer %u: up to row %llu, not %llu", layer,
               (unsigned long long)onlooker->view[layer].end_row,
               (unsigned long long)rows);
        int error = kvw_wait_written(reader, 0, 0, (struct kvw_layer){layer}, 1, 0);
        EXPECT(error == -ETIMEDOUT || error == -EOWNERDEAD,
               "wait for a pass of the next chunk: %d", error);
    }
}

void onlooker_ask(struct kvw_cache *reader, const struct onlooker *onlooker)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        if (!onlooker->has_view[layer])
            continue;
        struct kvw_view view = onlooker->view[layer];
        const bool is_changed = digest_of(&view) != onlooker->digest[layer];
        int error = kvw_release(reader, &view);
        EXPECT(error == -KVW_EOVERRUN || (error == 0 && !is_changed),
               "release of a staged view of layer %u: %d; its rows %s", layer, error,
               is_changed ? "changed" : "did not change");
    }
}
