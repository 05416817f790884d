/* SPDX-License-Identifier: Apache-2.0 */
/* See model.h. */
#include "tests/death/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Window kind chunk: ring of (6 - 2) + 2 rows; row: (5 - 1) + 3. */
static const struct {
    uint64_t window;
    uint64_t sink;
    uint64_t chunk;
    uint64_t keep;
    bool is_row;
} shape[GROUPS] = {{6, 2, 2, 4, false}, {5, 1, 3, 4, true}};

uint64_t model_window(uint32_t group)
{
    return shape[group].window;
}

uint64_t model_chunk(uint32_t group)
{
    return shape[group].chunk;
}

uint32_t model_row_bytes(uint32_t plane)
{
    return plane == 0 ? 8 : 5; /* two f32, five u8 */
}

void model_geometry(uint32_t n_ranks, struct kvw_geometry *geometry)
{
    struct kvw_refusal refusal;

    *geometry = (struct kvw_geometry){
        .n_groups = GROUPS,
        .n_lanes = 1,
        .n_ranks = n_ranks,
        .n_layers = LAYERS,
        .partition = {n_ranks, 1, 1, 1, 0, 0},
        .has_checksums = 1,
    };
    for (uint32_t g = 0; g < GROUPS; g++) {
        struct kvw_geometry_group *group = &geometry->group[g];
        *group = (struct kvw_geometry_group){
            .window_rows = shape[g].window,
            .sink_rows = shape[g].sink,
            .chunk_rows_max = shape[g].chunk,
            .keep_rows = shape[g].keep,
            .slack_chunks = 1,
            .n_layers = LAYERS_OF_GROUP,
            .layer_first = g * LAYERS_OF_GROUP,
            .n_heads = HEADS,
            .n_planes = PLANES,
            .policy = KVW_GEOMETRY_ROLL,
            .kind = shape[g].is_row ? KVW_GEOMETRY_ROW : KVW_GEOMETRY_CHUNK,
            .positions = KVW_GEOMETRY_ABSOLUTE,
            .plane = {{.elems = 2, .type = KVW_GEOMETRY_F32, .name = "k"},
                      {.elems = 5, .type = KVW_GEOMETRY_U8, .name = "v"}},
        };
        group->name[0] = g == 0 ? 'a' : 'b';
        for (uint32_t l = 0; l < LAYERS_OF_GROUP; l++)
            geometry->model_layer[group->layer_first + l] = (uint16_t)l;
    }
    if (geometry_check(geometry, &refusal) != 0) {
        fprintf(stderr, "%s\n", refusal.text);
        abort();
    }
}

void model_init(struct m_lane *lane, uint32_t n_ranks)
{
    memset(lane, 0, sizeof *lane);
    lane->n_ranks = n_ranks;
    for (uint32_t g = 0; g < GROUPS; g++)
        lane->record[0].group[g].generation = 1;
}

uint64_t model_common(const struct m_lane *lane)
{
    return lane->n_ranks == 2 && lane->at[1] < lane->at[0] ? lane->at[1] : lane->at[0];
}

uint32_t model_stamp(void)
{
    static uint32_t stamp;
    return ++stamp;
}

struct act model_chunk_act(const struct m_record *record, uint64_t n0, uint64_t n1)
{
    struct act act = {.kind = ACT_CHUNK, .stamp = model_stamp()};
    const uint64_t n[GROUPS] = {n0, n1};

    for (uint32_t g = 0; g < GROUPS; g++) {
        if (n[g] == 0)
            continue;
        act.publish[act.n_items] = n[g];
        act.item[act.n_items++] = (struct kvw_item){.group = g,
                                                    .row = record->group[g].rows,
                                                    .n = n[g],
                                                    .has_epoch = 1,
                                                    .epoch = act.stamp};
    }
    return act;
}

/* ---------------------------------------------------------- acts ---------- */

static void keep(struct m_group *group, uint64_t first, uint64_t n)
{
    uint32_t at = 0;

    while (at < group->n_kept && group->kept[at].first < first)
        at++;
    if (n == 0) {
        memmove(&group->kept[at], &group->kept[at + 1],
                (group->n_kept - at - 1) * sizeof group->kept[0]);
        group->n_kept--;
        return;
    }
    memmove(&group->kept[at + 1], &group->kept[at],
            (group->n_kept - at) * sizeof group->kept[0]);
    group->kept[at] = (struct m_kept){first, n};
    group->n_kept++;
}

static void truncate_to(struct m_group *group, uint64_t row)
{
    group->rows = row;
    if (group->evicted > row)
        group->evicted = row;
    while (group->n_kept > 0 && group->kept[group->n_kept - 1].first >= row)
        group->n_kept--;
    if (group->n_kept > 0) {
        struct m_kept *last = &group->kept[group->n_kept - 1];
        if (last->first + last->n > row)
            last->n = row - last->first;
    }
}

static void apply_item(struct m_record *to, const struct act *act, uint32_t i)
{
    const struct kvw_item *item = &act->item[i];
    struct m_group *group = &to->group[item->group];
    uint64_t *floor = &to->floor[item->group * LAYERS_OF_GROUP];

    if (item->has_epoch)
        group->epoch = item->epoch;
    switch (act->kind) {
    case ACT_CHUNK:
        for (uint64_t r = 0; r < act->publish[i]; r++)
            group->stamp[group->rows++] = act->stamp;
        break;
    case ACT_TRUNCATE:
        truncate_to(group, item->row);
        for (uint32_t l = 0; l < LAYERS_OF_GROUP; l++)
            floor[l] = floor[l] < item->row ? floor[l] : item->row;
        break;
    case ACT_EVICT:
        group->evicted = item->row;
        break;
    case ACT_KEEP:
        keep(group, item->row, item->n);
        break;
    case ACT_RESET:
        group->rows = group->evicted = 0;
        group->n_kept = 0;
        group->generation++;
        floor[0] = floor[1] = 0;
        break;
    case ACT_RESET_LAYER:
        break;
    }
}

void model_apply(const struct m_record *from, const struct act *act,
                 struct m_record *to)
{
    *to = *from;
    to->act = *act;
    for (uint32_t i = 0; i < act->n_items; i++)
        apply_item(to, act, i);
    if (act->kind == ACT_RESET_LAYER)
        to->floor[act->layer] = to->group[act->layer / LAYERS_OF_GROUP].rows;
}

/* --------------------------------------------------------- bytes ---------- */

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ull + b * 0xbf58476d1ce4e5b9ull +
                 c * 0x94d049bb133111ebull;
    x ^= x >> 29;
    x *= 0xff51afd7ed558ccdull;
    return x ^ (x >> 32);
}

void model_fill(char *to, uint32_t stamp, uint64_t row, uint32_t layer, uint32_t plane,
                uint32_t head)
{
    uint64_t bytes = mix(stamp, row + 1, (layer + 1) << 16 | plane << 8 | head);
    memcpy(to, &bytes, model_row_bytes(plane));
}

static bool row_is_filled(const struct kvw_view *view, const struct kvw_piece *piece,
                          uint64_t row, uint32_t stamp)
{
    char want[ROW_BYTES_MAX];

    for (uint32_t p = 0; p < view->n_planes; p++) {
        for (uint32_t h = 0; h < view->n_heads; h++) {
            const char *have = kvw_piece_at(&view->plane[p], piece, h) +
                               (row - piece->row) * view->plane[p].row_bytes;
            model_fill(want, stamp, row, view->layer, p, view->head_first + h);
            if (memcmp(want, have, model_row_bytes(p)) != 0)
                return false;
        }
    }
    return true;
}

/* --------------------------------------------------------- views ---------- */

static char words[200];

static bool is_kept(const struct m_group *group, uint64_t row)
{
    for (uint32_t i = 0; i < group->n_kept; i++) {
        if (row >= group->kept[i].first &&
            row < group->kept[i].first + group->kept[i].n)
            return true;
    }
    return false;
}

/* R1. */
static bool is_shown(const struct m_record *record, uint32_t layer, uint64_t row,
                     uint64_t open)
{
    const uint32_t g = layer / LAYERS_OF_GROUP;
    const struct m_group *group = &record->group[g];
    const uint64_t behind_sink = shape[g].window - shape[g].sink;
    uint64_t rows = group->rows;

    if (row < record->floor[layer])
        return false;
    if (row >= rows)
        return true; /* of the open chunk */
    if (row < shape[g].sink || is_kept(group, row))
        return true;
    if (open > 0)
        rows += shape[g].is_row ? 1 : open;
    return row >= group->evicted && row + behind_sink >= rows;
}

static const char *check_rows(const struct m_record *record,
                              const struct kvw_view *view, uint64_t open,
                              uint64_t written, uint32_t stamp)
{
    const struct m_group *group = &record->group[view->layer / LAYERS_OF_GROUP];
    const uint64_t end = group->rows + written;
    uint32_t piece = 0;
    uint64_t in_piece = 0;

    for (uint64_t row = 0; row < end; row++) {
        if (!is_shown(record, view->layer, row, open))
            continue;
        if (piece == view->n_pieces || view->piece[piece].row + in_piece != row) {
            snprintf(words, sizeof words, "layer %u: row %" PRIu64 " is not shown",
                     view->layer, row);
            return words;
        }
        if (!row_is_filled(view, &view->piece[piece], row,
                           row < group->rows ? group->stamp[row] : stamp)) {
            snprintf(words, sizeof words, "layer %u: row %" PRIu64 " has other bytes",
                     view->layer, row);
            return words;
        }
        if (++in_piece == view->piece[piece].n_rows) {
            piece++;
            in_piece = 0;
        }
    }
    if (piece == view->n_pieces)
        return NULL;
    snprintf(words, sizeof words, "layer %u: row %" PRIu64 " is shown", view->layer,
             view->piece[piece].row + in_piece);
    return words;
}

const char *model_check_view(const struct m_record *record, const struct kvw_view *view,
                             uint64_t step, uint64_t open, uint64_t written,
                             uint32_t stamp)
{
    const struct m_group *group = &record->group[view->layer / LAYERS_OF_GROUP];

    if (view->step == step && view->epoch == group->epoch &&
        view->generation == group->generation && view->end_row == group->rows + written)
        return check_rows(record, view, open, written, stamp);
    snprintf(words, sizeof words,
             "layer %u: step %" PRIu64 ", epoch %" PRIu64 ", generation %" PRIu64
             ", end %" PRIu64 ", not %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64,
             view->layer, view->step, view->epoch, view->generation, view->end_row,
             step, group->epoch, group->generation, group->rows + written);
    return words;
}

const char *model_check_bytes(const struct m_record *record,
                              const struct kvw_view *view)
{
    return check_rows(record, view, 0, 0, 0);
}

const char *model_check_state(const struct m_record *record,
                              const struct kvw_lane_state *state)
{
    for (uint32_t g = 0; g < GROUPS; g++) {
        const struct kvw_group_state *have = &state->group[g];
        const struct m_group *want = &record->group[g];
        if (have->rows == want->rows && have->evicted == want->evicted &&
            have->generation == want->generation && have->epoch == want->epoch)
            continue;
        snprintf(words, sizeof words,
                 "group %u: rows %" PRIu64 ", evicted %" PRIu64 ", generation %" PRIu64
                 ", not %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                 g, have->rows, have->evicted, have->generation, want->rows,
                 want->evicted, want->generation);
        return words;
    }
    return NULL;
}
