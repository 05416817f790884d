/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R ranks give the same bytes as one: the same steps are made by the one rank of a
 * cache and by all ranks of another that differs in its partition only. After each step
 * every answer, every piece of every view (rows, positions, slots) and every visible
 * byte, at its place in the data segment, must be the same. Ranks are walked in another
 * order each time.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/align.h"
#include "tests/model/plan.h"

struct pair {
    struct world one;
    struct world many;
    uint64_t random;
    uint64_t n_steps;
    uint64_t n_views;
    uint64_t n_refused;
};

static const char *failure(const char *what)
{
    static char text[256];
    (void)snprintf(text, sizeof text, "%s (%s)", what, kvw_last_error());
    return text;
}

static uint32_t pick(struct pair *pair, uint64_t n)
{
    return (uint32_t)(world_random(&pair->random) % n);
}

/* Write rows [0, n) of the open chunk of every layer that the rank of `seat` holds. */
static int write_chunk(struct world *world, uint32_t seat, uint32_t lane,
                       const struct kvw_item *items, uint32_t n_items, uint64_t serial)
{
    static char data[KVW_SPEC_PLANES_MAX][1 << 14];
    struct kvw_source source[KVW_SPEC_PLANES_MAX];

    for (uint32_t i = 0; i < n_items; i++) {
        const struct kvw_geometry_group *of = &world->geometry.group[items[i].group];
        struct kvw_part part;
        int error = kvw_cache_part(world->seat[seat], items[i].group, seat, &part);
        if (error != 0)
            return error;
        for (uint32_t k = 0; k < part.n_layers && part.n_heads > 0; k++) {
            uint32_t layer = part.layer_first + k;
            for (uint32_t p = 0; p < of->n_planes; p++) {
                int64_t bytes = (int64_t)of->plane[p].elems *
                                geometry_elem_bytes(of->plane[p].type);
                source[p] =
                    (struct kvw_source){data[p], bytes, bytes * (int64_t)items[i].n};
                for (uint64_t row = 0; row < items[i].n; row++) {
                    uint64_t stamp = world_mix(serial, items[i].row + row, layer);
                    for (uint32_t h = 0; h < part.n_heads; h++)
                        world_fill(data[p] +
                                       ((int64_t)row + h * (int64_t)items[i].n) * bytes,
                                   &of->plane[p], p, part.head_first + h, stamp);
                }
            }
            error = kvw_update(world->seat[seat], lane, (struct kvw_layer){layer}, 0,
                               items[i].n, source);
            if (error != 0)
                return error;
        }
    }
    return 0;
}

/* One step by one rank. */
static int make_step(struct world *world, uint32_t seat, uint32_t lane,
                     const struct m_call *call, uint64_t serial)
{
    struct kvw_cache *cache = world->seat[seat];
    struct kvw_item publish[M_GROUPS] = {0};

    if (call->kind != M_COMMIT)
        return call_make(cache, lane, call);
    int error = kvw_begin(cache, lane, call->item, call->n_items, NULL);
    if (error == 0)
        error = write_chunk(world, seat, lane, call->item, call->n_items, serial);
    for (uint32_t i = 0; i < call->n_items; i++)
        publish[i] =
            (struct kvw_item){.group = call->item[i].group, .n = call->publish[i]};
    return error != 0 ? error : kvw_commit(cache, lane, publish, call->n_items);
}

/* A step that fits the state of the one rank, mostly. */
static int choose(struct pair *pair, uint32_t lane, struct m_call *call)
{
    struct kvw_lane_state state;
    int error = kvw_state(pair->one.seat[0], lane, 0, &state);
    uint32_t dice = pick(pair, 16);

    if (error != 0)
        return error;
    *call = (struct m_call){.kind = dice < 10            ? M_COMMIT
                                    : dice < 12          ? M_TRUNCATE
                                    : dice < 13          ? M_EVICT
                                    : dice < 15          ? M_KEEP
                                    : pick(pair, 4) != 0 ? M_RESET_LAYER
                                                         : M_RESET};
    call->layer = pick(pair, pair->one.geometry.n_layers);
    for (uint32_t g = 0; g < state.n_groups && call->kind != M_RESET_LAYER; g++) {
        const struct kvw_geometry_group *of = &pair->one.geometry.group[g];
        const struct kvw_group_state *at = &state.group[g];
        struct kvw_item *item = &call->item[call->n_items];
        if (call->n_items > 0 && pick(pair, 3) == 0)
            continue;
        *item = (struct kvw_item){.group = g, .row = at->rows};
        if (call->kind == M_COMMIT) {
            item->n = 1 + pick(pair, of->chunk_rows_max);
            if (of->policy == KVW_GEOMETRY_REFUSE)
                item->n = min_u64(item->n, of->window_rows - at->rows);
            if (item->n == 0)
                continue;
            call->publish[call->n_items] = pick(pair, 4) == 0 ? item->n - 1 : item->n;
        } else if (call->kind == M_TRUNCATE) {
            item->row -= min_u64(at->rows, pick(pair, 4));
        } else if (call->kind == M_EVICT) {
            item->row -= min_u64(at->rows, pick(pair, 3));
        } else if (call->kind == M_KEEP) {
            item->row -= min_u64(at->rows, 1 + pick(pair, 3));
            item->n = pick(pair, 3);
        }
        item->has_epoch = pick(pair, 5) == 0;
        item->epoch = item->has_epoch != 0 ? pick(pair, 100) : 0;
        call->n_items++;
    }
    return 0;
}

/* The piece that holds row `index` of a view, and the row's place in it. */
static const struct kvw_piece *piece_of(const struct kvw_view *view, uint64_t *index)
{
    const struct kvw_piece *piece = view->piece;

    while (*index >= piece->n_rows)
        *index -= (piece++)->n_rows;
    return piece;
}

static const char *compare_row(const struct pair *pair, const struct kvw_view *one,
                               const struct kvw_view *many, uint64_t index)
{
    uint64_t at[2] = {index, index};
    const struct kvw_piece *a = piece_of(one, &at[0]);
    const struct kvw_piece *b = piece_of(many, &at[1]);

    if (a->row + at[0] != b->row + at[1] ||
        a->position + at[0] != b->position + at[1] || a->piece_class != b->piece_class)
        return "another row";
    for (uint32_t p = 0; p < one->n_planes; p++) {
        for (uint32_t h = 0; h < one->n_heads; h++) {
            const char *of_one = (const char *)kvw_piece_at(&one->plane[p], a, h) +
                                 at[0] * one->plane[p].row_bytes;
            const char *of_many = (const char *)kvw_piece_at(&many->plane[p], b, h) +
                                  at[1] * many->plane[p].row_bytes;
            if (of_one - pair->one.data != of_many - pair->many.data)
                return "a row lies elsewhere";
            if (memcmp(of_one, of_many, one->plane[p].row_bytes) != 0)
                return "other bytes";
        }
    }
    return NULL;
}

static const char *compare_layer(struct pair *pair, uint32_t lane, uint32_t layer)
{
    struct kvw_view one;
    struct kvw_view many;
    const struct kvw_layer at = {layer};
    struct kvw_cache *reader = pair->many.seat[WORLD_RANKS_MAX];

    if (kvw_get(pair->one.seat[0], lane, at, KVW_COMMITTED, &one) != 0 ||
        kvw_cut(reader, lane, at, 0, KVW_COMMITTED, &many) != 0)
        return failure("get");
    pair->n_views++;
    if (one.step != many.step || one.epoch != many.epoch ||
        one.generation != many.generation || one.n_rows != many.n_rows ||
        one.end_row != many.end_row || one.n_heads != many.n_heads)
        return "another view";
    for (uint64_t i = 0; i < one.n_rows; i++) {
        const char *text = compare_row(pair, &one, &many, i);
        if (text != NULL)
            return text;
    }
    if (kvw_release(pair->one.seat[0], &one) != 0 || kvw_release(reader, &many) != 0)
        return failure("release");
    return NULL;
}

static bool holds_lane(const struct world *world, uint32_t rank, uint32_t lane)
{
    struct kvw_part part;
    return kvw_cache_part(world->seat[rank], 0, rank, &part) == 0 &&
           lane >= part.lane_first && lane < part.lane_first + part.n_lanes;
}

static const char *play(struct pair *pair, uint32_t lane)
{
    const uint32_t n_ranks = pair->many.geometry.n_ranks;
    const uint32_t first = pick(pair, n_ranks);
    const uint64_t serial = ++pair->n_steps;
    struct m_call call;

    if (choose(pair, lane, &call) != 0)
        return failure("state");
    if (call.kind != M_RESET_LAYER && call.n_items == 0)
        return NULL;
    int want = make_step(&pair->one, 0, lane, &call, serial);
    pair->n_refused += want < 0;
    for (uint32_t i = 0; i < n_ranks; i++) {
        uint32_t rank = (first + i) % n_ranks;
        if (!holds_lane(&pair->many, rank, lane))
            continue;
        int have = make_step(&pair->many, rank, lane, &call, serial);
        if (have != want) {
            static char text[320];
            (void)snprintf(
                text, sizeof text,
                "step of kind %u: rank %u of %u answers %d, one rank %d (%s)",
                (unsigned)call.kind, rank, n_ranks, have, want, kvw_last_error());
            return text;
        }
    }
    for (uint32_t layer = 0; layer < pair->one.geometry.n_layers; layer++) {
        const char *text = compare_layer(pair, lane, layer);
        if (text != NULL)
            return text;
    }
    return NULL;
}

/* A ring of split rows ends with a round of the blocks: windows for which one rank's
 * does so too, so that both are of one size. */
static void make_even(struct kvw_geometry *geometry)
{
    const uint64_t period =
        (uint64_t)geometry->partition.row_block * geometry->partition.row_parts;

    for (uint32_t g = 0; g < geometry->n_groups && period > 0; g++) {
        struct kvw_geometry_group *of = &geometry->group[g];
        uint64_t ring =
            of->window_rows - of->sink_rows + of->slack_chunks * of->chunk_rows_max;
        if (of->policy == KVW_GEOMETRY_ROLL)
            of->window_rows += (period - ring % period) % period;
    }
}

static const char *run(uint64_t seed, uint32_t n_steps, struct pair *total)
{
    struct pair pair = {.random = seed};
    struct kvw_geometry geometry;
    struct kvw_refusal refusal;
    const char *text = NULL;

    plan_geometry(seed, &geometry);
    make_even(&geometry);
    if (geometry_check(&geometry, &refusal) != 0 || geometry.n_ranks == 1)
        return NULL;
    if (world_init(&pair.many, &geometry) != 0)
        return "no memory";
    geometry.n_ranks = 1;
    geometry.partition = (struct kvw_geometry_partition){
        .head_parts = 1, .layer_parts = 1, .lane_parts = 1, .row_parts = 1};
    if (world_init(&pair.one, &geometry) != 0)
        return "no memory";
    int error = world_attach(&pair.one, 0);
    for (uint32_t rank = 0; rank < pair.many.geometry.n_ranks && error == 0; rank++)
        error = world_attach(&pair.many, rank);
    if (error == 0)
        error = world_attach(&pair.many, WORLD_RANKS_MAX);
    if (error != 0)
        text = failure("attach");
    for (uint32_t i = 0; i < n_steps && text == NULL; i++)
        text = play(&pair, pick(&pair, geometry.n_lanes));
    total->n_steps += pair.n_steps;
    total->n_views += pair.n_views;
    total->n_refused += pair.n_refused;
    if (text != NULL)
        plan_print(&pair.many.geometry, stdout);
    world_fini(&pair.one);
    world_fini(&pair.many);
    return text;
}

int main(int argc, char **argv)
{
    if (argc > 1 && argv[1][0] == '-') {
        printf("usage: ranks [SEED [RUNS]]\n"
               "  SEED   seed of the first run (1)\n"
               "  RUNS   runs, each with the seed after the last one's (300)\n");
        return strcmp(argv[1], "--help") == 0 ? 0 : 2;
    }
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t n_runs = argc > 2 ? strtoull(argv[2], NULL, 0) : 300;
    struct pair total = {0};

    printf("ranks: seed %" PRIu64 "\n", seed);
    for (uint64_t i = 0; i < n_runs; i++) {
        const char *text = run(seed + i, 120, &total);
        if (text != NULL) {
            printf("ranks: seed %" PRIu64 ": %s (again: ranks %" PRIu64 " 1)\n",
                   seed + i, text, seed + i);
            return 1;
        }
    }
    printf("%" PRIu64 " steps (%" PRIu64 " refused alike), %" PRIu64
           " views: R ranks and one rank show the same bytes\n",
           total.n_steps, total.n_refused, total.n_views);
    return 0;
}
