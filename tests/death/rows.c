/* SPDX-License-Identifier: Apache-2.0 */
/* See rows.h. */
#include "tests/death/rows.h"

#include <errno.h>
#include <stdbool.h>

enum { LAYERS = 3, HEADS = 4, ELEMS = 8, PLANES = 2, CHUNK_MAX = 4 };

void rows_spec(struct kvw_spec *spec, const char *name, uint32_t n_ranks,
               enum kvw_lifetime lifetime)
{
    kvw_spec_init(spec, name);
    struct kvw_spec_group *group = kvw_spec_add_group(spec, "self", LAYERS, NULL);
    group->n_heads = HEADS;
    group->window_rows = ROWS_WINDOW;
    group->sink_rows = 2;
    group->chunk_rows_max = CHUNK_MAX;
    (void)!kvw_spec_add_plane(group, "k", KVW_F32, ELEMS);
    (void)!kvw_spec_add_plane(group, "v", KVW_F32, ELEMS);
    kvw_spec_split_heads(spec, n_ranks);
    spec->lifetime = (uint32_t)lifetime;
}

/* Exact in a float for every row that a test gets to. */
static float value_of(uint64_t row, uint32_t layer, uint32_t plane, uint32_t head)
{
    return (float)(row * 64 + layer * 16 + plane * 8 + head);
}

static int write_layer(struct kvw_cache *cache, const struct kvw_part *part,
                       uint32_t layer, const struct kvw_item *chunk)
{
    float rows[PLANES][CHUNK_MAX][HEADS][ELEMS];
    struct kvw_source source[PLANES];

    for (uint32_t p = 0; p < PLANES; p++) {
        for (uint32_t r = 0; r < chunk->n; r++)
            for (uint32_t h = 0; h < part->n_heads; h++)
                for (uint32_t e = 0; e < ELEMS; e++)
                    rows[p][r][h][e] =
                        value_of(chunk->row + r, layer, p, part->head_first + h);
        source[p] =
            (struct kvw_source){rows[p], sizeof rows[p][0], sizeof rows[p][0][0]};
    }
    return kvw_update(cache, 0, (struct kvw_layer){layer}, 0, chunk->n, source);
}

int rows_write(struct kvw_cache *cache)
{
    struct kvw_lane_state state;
    struct kvw_part part;

    int error = kvw_cache_part(cache, 0, kvw_cache_rank(cache), &part);
    if (error == 0)
        error = kvw_state(cache, 0, kvw_cache_rank(cache), &state);
    if (error != 0)
        return error;
    const uint64_t row = state.group[0].rows;
    const struct kvw_item chunk = {
        .group = 0, .row = row, .n = 1 + row * 7 % CHUNK_MAX};
    error = kvw_begin(cache, 0, &chunk, 1, NULL);
    for (uint32_t layer = 0; layer < LAYERS && error == 0; layer++)
        error = write_layer(cache, &part, layer, &chunk);
    return error;
}

int rows_roll(struct kvw_cache *cache)
{
    int error = rows_write(cache);

    return error != 0 ? error : kvw_commit(cache, 0, NULL, 0);
}

static bool is_piece_right(const struct kvw_view *view, const struct kvw_piece *piece,
                           uint32_t layer)
{
    for (uint32_t p = 0; p < PLANES; p++) {
        for (uint32_t h = 0; h < view->n_heads; h++) {
            const char *at = kvw_piece_at(&view->plane[p], piece, h);
            for (uint32_t r = 0; r < piece->n_rows; r++) {
                const float *have =
                    (const float *)(const void *)(at + r * view->plane[p].row_bytes);
                const float want =
                    value_of(piece->row + r, layer, p, view->head_first + h);
                for (uint32_t e = 0; e < ELEMS; e++)
                    if (!(have[e] == want))
                        return false;
            }
        }
    }
    return true;
}

static const char *check_layer(struct kvw_cache *cache, uint32_t layer)
{
    struct kvw_view view;

    int error = kvw_get(cache, 0, (struct kvw_layer){layer}, KVW_COMMITTED, &view);
    if (error == -EAGAIN)
        return NULL; /* a fast writer */
    if (error != 0)
        return kvw_last_error();
    uint64_t n_want = view.end_row < ROWS_WINDOW ? view.end_row : ROWS_WINDOW;
    bool is_right = view.n_rows == n_want;
    for (uint32_t i = 0; i < view.n_pieces; i++)
        is_right = is_right && is_piece_right(&view, &view.piece[i], layer);
    error = kvw_release(cache, &view);
    if (error == -KVW_EOVERRUN)
        return NULL;
    if (error != 0)
        return kvw_last_error();
    return is_right ? NULL : "a row of the view is not what was written";
}

const char *rows_check(struct kvw_cache *cache)
{
    const char *wrong = NULL;

    for (uint32_t layer = 0; layer < LAYERS && wrong == NULL; layer++)
        wrong = check_layer(cache, layer);
    return wrong;
}
