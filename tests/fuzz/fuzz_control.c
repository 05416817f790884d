/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attachments to a cache whose shared words somebody scribbles over, before and while
 * the library looks at them: no call crashes, hangs or touches anything outside the
 * segments, and all pieces of a view lie within their head.
 *
 * Input: a byte. Even: a geometry as input_geometry() reads it, of which a proper cache
 * is made; then numbered actions, each with its arguments. Odd: a control segment that
 * layout_control_read() judges: the pages of each segment (2 bytes each), a header, in
 * which a layout hash of 0 stands for the right one, a geometry as input_any_geometry()
 * reads it; then pokes of a word, 2 bytes offset and 8 bytes value.
 */
#include <stdlib.h>
#include <string.h>

#include "client/board.h"
#include "client/client.h"
#include "client/owner.h"
#include "client/step.h"
#include "proto/base/align.h"
#include "tests/fuzz/stage.h"

enum {
    ACTIONS_MAX = 64,
    VIEWS_MAX = 8,
};

struct held {
    struct kvw_view view;
    uint32_t place; /* of the attachment that holds it; STAGE_CACHES = none */
};

/* One execution. */
struct play {
    struct stage stage;
    struct input input;
    struct kvw_cache *cache; /* who acts */
    uint32_t place;
    struct held held[VIEWS_MAX];
};

/* Only kvw_attach() and kvw_detach() call the daemon, and nobody calls those here. */
int client_call(struct kvw_client *client, struct kvw_message *request,
                struct kvw_message *answer, int *fds, uint32_t n_fds,
                kvw_progress_fn *progress, void *context)
{
    (void)client, (void)request, (void)answer, (void)fds, (void)n_fds, (void)progress,
        (void)context;
    abort();
}

int owner_attach(struct kvw_client *client, struct kvw_message *request,
                 struct kvw_message *answer, int fds[3], uint64_t timeout_ns)
{
    (void)client, (void)request, (void)answer, (void)fds, (void)timeout_ns;
    abort();
}

static int done(int result)
{
    KVW_CHECK(result <= 0);
    if (result < 0)
        KVW_CHECK(kvw_last_error()[0] != 0 && kvw_strerror(result)[0] != 0);
    return result;
}

/* ------------------------------------------------------------------ checks ----------
 */

static uint64_t sum_of(const char *bytes, uint64_t n_bytes)
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i < n_bytes; i++)
        sum += (uint8_t)bytes[i];
    return sum;
}

/* A piece lies in its head's rows: of the segment, or of the ring mapped twice. */
static void check_piece(const struct kvw_cache *cache, uint32_t g,
                        const struct kvw_plane *plane, const struct kvw_piece *piece,
                        uint32_t n_heads)
{
    const uint64_t data_bytes = cache->layout.data_bytes;
    const struct mirror *mirror = &cache->mirror[g];
    const bool is_mirrored = mirror->base != NULL && plane->base >= mirror->base &&
                             plane->base < mirror->base + mirror->n_bytes;
    const char *begin = is_mirrored ? mirror->base : cache->data;
    const char *end = begin + (is_mirrored ? mirror->n_bytes : data_bytes);
    const uint64_t rows = cache->layout.group[g].rows +
                          (is_mirrored ? cache->layout.group[g].ring_rows : 0);

    KVW_CHECK(piece->n_rows > 0);
    KVW_CHECK((uint64_t)piece->slot + piece->n_rows <= rows);
    for (uint32_t h = 0; h < n_heads; h++) {
        const char *at = kvw_piece_at(plane, piece, h);
        const uint64_t n_bytes = piece->n_rows * plane->row_bytes;
        KVW_CHECK(at >= begin && at < end && n_bytes <= (uint64_t)(end - at));
        (void)sum_of(at, min_u64(n_bytes, KVW_CACHELINE));
        (void)sum_of(at + n_bytes - 1, 1);
    }
}

static void check_view(const struct kvw_cache *cache, const struct kvw_view *view)
{
    const uint32_t g = cache->layers[view->layer].group;
    const struct kvw_geometry_group *group = &cache->geometry.group[g];
    uint64_t n_rows = 0;

    KVW_CHECK(view->n_pieces <= KVW_VIEW_PIECES_MAX);
    KVW_CHECK(view->n_planes == group->n_planes);
    KVW_CHECK(view->head_first + view->n_heads <= group->n_heads);
    for (uint32_t i = 0; i < view->n_pieces; i++) {
        n_rows += view->piece[i].n_rows;
        for (uint32_t p = 0; p < view->n_planes; p++)
            check_piece(cache, g, &view->plane[p], &view->piece[i], view->n_heads);
    }
    KVW_CHECK(view->n_rows == n_rows);
    KVW_CHECK(n_rows <= cache->layout.group[g].rows);
}

/* ------------------------------------------------------------- arguments ------------
 */

static uint32_t any_lane(struct play *play)
{
    return (uint32_t)input_below(&play->input, play->stage.geometry.n_lanes + 1);
}

static struct kvw_layer any_layer(struct play *play)
{
    return (struct kvw_layer){
        (uint32_t)input_below(&play->input, play->stage.geometry.n_layers + 1)};
}

static uint64_t rows_of(const struct play *play, uint32_t lane, uint32_t group)
{
    const struct kvw_cache *cache = play->cache;

    if (cache->lanes == NULL || lane < cache->held_lanes.begin ||
        lane >= cache->held_lanes.end || group >= cache->geometry.n_groups)
        return 0;
    return lane_of(cache, lane)->record->group[group].rows;
}

static uint32_t any_items(struct play *play, uint32_t lane,
                          struct kvw_item items[KVW_GROUPS_MAX])
{
    struct input *input = &play->input;
    const uint32_t n_groups = play->stage.geometry.n_groups;
    const uint32_t n_items = (uint32_t)input_below(input, n_groups + 2);

    for (uint32_t i = 0; i < n_items; i++) {
        items[i] =
            (struct kvw_item){.group = (uint32_t)input_below(input, n_groups + 1),
                              .has_epoch = input_u8(input) & 1,
                              .epoch = 7};
        items[i].row = input_number(input, rows_of(play, lane, items[i].group));
        items[i].n = input_number(input, 1);
    }
    return n_items;
}

/* ----------------------------------------------------------------- actions ----------
 */

static void act_poke(struct play *play)
{
    stage_poke(&play->stage, &play->input);
}

static void act_storm(struct play *play)
{
    stage_storm(&play->stage, &play->input);
}

static void forget_views(struct play *play, uint32_t place)
{
    for (uint32_t i = 0; i < VIEWS_MAX; i++) {
        if (play->held[i].place == place)
            play->held[i].place = STAGE_CACHES;
    }
}

static void act_attach(struct play *play)
{
    struct stage *stage = &play->stage;
    const uint32_t place = (uint32_t)input_below(&play->input, STAGE_CACHES);
    const uint64_t who = input_below(&play->input, stage->geometry.n_ranks + 2);

    forget_views(play, place);
    stage_call_begins();
    stage_detach(stage, place);
    const uint32_t rank = who == 0 ? KVW_READER : (uint32_t)who - 1;
    if (done(stage_attach(stage, place, rank)) == 0)
        stage->cache[place]->options.pin_policy =
            KVW_PIN_WAIT + (uint32_t)input_below(&play->input, 3);
}

static void act_begin(struct play *play)
{
    const uint32_t lane = any_lane(play);
    struct kvw_item items[KVW_GROUPS_MAX];
    struct kvw_begun begun[KVW_GROUPS_MAX];
    const uint32_t n_items = any_items(play, lane, items);

    (void)done(kvw_begin(play->cache, lane, items, n_items, begun));
}

/* Rows from a source that is exactly as large as it is said to be. */
static int update(struct kvw_cache *cache, uint32_t lane, struct kvw_layer layer,
                  uint64_t row_first, uint64_t n_rows)
{
    struct kvw_source sources[KVW_PLANES_MAX] = {0};
    int result;

    if (layer.index < cache->geometry.n_layers) {
        const uint32_t g = cache->layers[layer.index].group;
        const uint32_t n_heads = cache->heads[g].end - cache->heads[g].begin;
        const uint64_t n = min_u64(n_rows, cache->geometry.group[g].chunk_rows_max);
        for (uint32_t p = 0; p < cache->geometry.group[g].n_planes; p++) {
            const uint64_t row_bytes = cache->layout.group[g].plane[p].row_bytes;
            sources[p] =
                (struct kvw_source){calloc(1, n * n_heads * row_bytes),
                                    (int64_t)(n_heads * row_bytes), (int64_t)row_bytes};
        }
    }
    result = done(kvw_update(cache, lane, layer, row_first, n_rows, sources));
    for (uint32_t p = 0; p < KVW_PLANES_MAX; p++)
        free((void *)(uintptr_t)sources[p].data);
    return result;
}

static void act_update(struct play *play)
{
    const uint32_t lane = any_lane(play);
    const struct kvw_layer layer = any_layer(play);
    const uint64_t row_first = input_number(&play->input, 0);

    (void)update(play->cache, lane, layer, row_first, input_number(&play->input, 1));
}

static void act_slots(struct play *play)
{
    struct kvw_cache *cache = play->cache;
    const uint32_t lane = any_lane(play);
    const struct kvw_layer layer = any_layer(play);
    const uint64_t row_first = input_number(&play->input, 0);
    const uint64_t n_rows = input_number(&play->input, 1);
    struct kvw_slots slots;

    if (done(kvw_slots(cache, lane, layer, row_first, n_rows, &slots)) != 0)
        return;
    const uint32_t g = cache->layers[layer.index].group;
    KVW_CHECK(slots.n_pieces <= KVW_VIEW_PIECES_MAX);
    for (uint32_t i = 0; i < slots.n_pieces; i++) {
        for (uint32_t p = 0; p < slots.n_planes; p++) {
            check_piece(cache, g, &slots.plane[p], &slots.piece[i], slots.n_heads);
            for (uint32_t h = 0; h < slots.n_heads; h++)
                memset(kvw_piece_at(&slots.plane[p], &slots.piece[i], h), 1,
                       slots.piece[i].n_rows * slots.plane[p].row_bytes);
        }
    }
    stage_call_begins();
    (void)done(kvw_written(cache, lane, layer, row_first, n_rows));
}

static void act_commit(struct play *play)
{
    const uint32_t lane = any_lane(play);
    struct kvw_item items[KVW_GROUPS_MAX];
    const uint32_t n_items = any_items(play, lane, items);

    (void)done(kvw_commit(play->cache, lane, n_items == 0 ? NULL : items, n_items));
}

static void act_abort(struct play *play)
{
    (void)done(kvw_abort(play->cache, any_lane(play)));
}

/* A whole round, so that few bytes lead far: begin, update all layers, commit. */
static void act_round(struct play *play)
{
    struct kvw_cache *cache = play->cache;
    const uint32_t lane = any_lane(play);
    struct kvw_item items[KVW_GROUPS_MAX] = {0};

    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        const uint64_t most = cache->geometry.group[g].chunk_rows_max;
        items[g].group = g;
        items[g].row = rows_of(play, lane, g);
        items[g].n = 1 + input_below(&play->input, most);
    }
    if (done(kvw_begin(cache, lane, items, cache->geometry.n_groups, NULL)) != 0)
        return;
    for (uint32_t l = 0; l < cache->geometry.n_layers; l++) {
        const uint64_t n = items[cache->layers[l].group].n;
        stage_call_begins();
        if (cache->layers[l].is_held)
            (void)update(cache, lane, (struct kvw_layer){l}, 0, n);
    }
    stage_call_begins();
    (void)done(kvw_commit(cache, lane, NULL, 0));
}

static struct held *free_hold(struct play *play)
{
    for (uint32_t i = 0; i < VIEWS_MAX; i++) {
        if (play->held[i].place == STAGE_CACHES)
            return &play->held[i];
    }
    return NULL;
}

static void act_get(struct play *play)
{
    const uint32_t lane = any_lane(play);
    const struct kvw_layer layer = any_layer(play);
    const uint8_t kind = input_u8(&play->input);
    const uint64_t ranks = kind & 8 ? input_u8(&play->input) : 0;
    struct held *held = free_hold(play);

    if (held == NULL)
        return;
    memset(&held->view, 0xa5, sizeof held->view);
    int error = kind & 4
                    ? kvw_cut(play->cache, lane, layer, ranks, kind & 3, &held->view)
                    : kvw_get(play->cache, lane, layer, kind & 3, &held->view);
    if (done(error) != 0)
        return;
    held->place = play->place;
    check_view(play->cache, &held->view);
}

static void act_release(struct play *play)
{
    struct held *held = &play->held[input_below(&play->input, VIEWS_MAX)];

    if (held->place == STAGE_CACHES)
        return;
    struct kvw_cache *cache = play->stage.cache[held->place];
    check_view(cache, &held->view);
    (void)done(kvw_release(cache, &held->view));
    held->place = STAGE_CACHES;
}

typedef int step_fn(struct kvw_cache *cache, uint32_t lane,
                    const struct kvw_item *items, uint32_t n_items);

static void act_change(struct play *play)
{
    static step_fn *const steps[] = {kvw_truncate, kvw_evict, kvw_keep, kvw_reset};
    step_fn *const step = steps[input_below(&play->input, 4)];
    const uint32_t lane = any_lane(play);
    struct kvw_item items[KVW_GROUPS_MAX];
    const uint32_t n_items = any_items(play, lane, items);

    (void)done(step(play->cache, lane, items, n_items));
}

static void act_reset(struct play *play)
{
    const uint32_t lane = any_lane(play);
    const uint8_t kind = input_u8(&play->input);

    if (kind & 1)
        (void)done(kvw_reset_layer(play->cache, lane, any_layer(play)));
    else if (kind & 2)
        (void)done(kvw_reset(play->cache, lane, NULL, 0));
    else
        (void)done(kvw_reset_state(play->cache));
}

static uint32_t any_rank(struct play *play)
{
    const uint64_t rank = input_below(&play->input, play->stage.geometry.n_ranks + 2);

    return rank == 0 ? KVW_ALL_RANKS : (uint32_t)rank - 1;
}

static void act_look(struct play *play)
{
    const uint32_t lane = any_lane(play);
    const uint32_t rank = any_rank(play);
    const uint32_t group =
        (uint32_t)input_below(&play->input, play->stage.geometry.n_groups + 1);
    struct kvw_lane_state state;
    uint64_t row;

    (void)done(kvw_state(play->cache, lane, rank, &state));
    stage_call_begins();
    (void)done(kvw_lowest(play->cache, lane, group, &row));
}

static void act_wait(struct play *play)
{
    const uint32_t lane = any_lane(play);
    const uint32_t rank = any_rank(play);
    const uint64_t goal = input_number(&play->input, rows_of(play, lane, 0));
    const uint32_t n_groups = play->stage.geometry.n_groups;
    const uint32_t group = (uint32_t)input_below(&play->input, n_groups + 5);
    const struct kvw_layer layer = {(uint32_t)goal % 8};
    const uint32_t pass = (uint32_t)(goal >> 3);

    if (group == 0)
        (void)done(kvw_wait_step(play->cache, lane, rank, goal, 1));
    else if (group == n_groups + 2)
        (void)done(kvw_wait_written(play->cache, lane, rank, layer, pass, 1));
    else if (group == n_groups + 3)
        (void)done(kvw_wait_read(play->cache, lane, rank, layer, pass, 1));
    else if (group == n_groups + 4)
        (void)done(kvw_have_read(play->cache, lane, layer, pass));
    else
        (void)done(kvw_wait_rows(play->cache, lane, rank, group - 1, goal, 1));
}

static void act_recover(struct play *play)
{
    const uint32_t lane = any_lane(play);
    uint64_t step;

    (void)done(kvw_recover(play->cache, lane, 1, &step));
}

static void act_outside(struct play *play)
{
    const uint32_t lane = any_lane(play);
    const uint64_t step = input_number(&play->input, UINT64_MAX);

    (void)done(kvw_outside(play->cache, lane, step));
}

static void count_damage(void *context, const struct kvw_damage *damage)
{
    KVW_CHECK(damage->text[0] != 0);
    ++*(uint64_t *)context;
}

static void act_verify(struct play *play)
{
    struct kvw_verified verified;
    uint64_t n_told = 0;

    int result = kvw_verify(play->cache, count_damage, &n_told, &verified);
    KVW_CHECK(result == (n_told > 0) && verified.n_damages == n_told);
}

/* Numbers in the corpus: new ones go to the end. */
static const struct {
    void (*act)(struct play *play);
    bool needs_nobody;
} actions[] = {
    {act_poke, true},     {act_storm, true},    {act_attach, true},
    {act_begin, false},   {act_update, false},  {act_slots, false},
    {act_commit, false},  {act_abort, false},   {act_round, false},
    {act_get, false},     {act_release, false}, {act_change, false},
    {act_reset, false},   {act_look, false},    {act_wait, false},
    {act_recover, false}, {act_outside, false}, {act_verify, false},
};

#define N_ACTIONS (sizeof actions / sizeof actions[0])

static void act(struct play *play)
{
    const uint8_t number = input_u8(&play->input);

    /* The upper bits choose who acts. */
    play->place = number >> 6;
    play->cache = play->stage.cache[play->place];
    const uint32_t index = (number & 63) % N_ACTIONS;
    stage_call_begins();
    if (play->cache != NULL || actions[index].needs_nobody)
        actions[index].act(play);
}

static void play_all(struct play *play)
{
    for (uint32_t i = 0; i < VIEWS_MAX; i++)
        play->held[i].place = STAGE_CACHES;
    for (uint32_t i = 0; i < ACTIONS_MAX && play->input.left_bytes > 0; i++)
        act(play);
    stage_fini(&play->stage);
}

/* A proper cache, with a writer in place 0 and a reader in place 1. */
static void play_actions(struct play *play)
{
    static const uint8_t uuid[16] = {1};
    struct stage *stage = &play->stage;
    struct kvw_refusal refusal;

    input_geometry(&play->input, &stage->geometry);
    if (geometry_check(&stage->geometry, &refusal) != 0 ||
        layout_of(&stage->geometry, &stage->layout, &refusal) != 0)
        return;
    const uint64_t n_bytes[] = {stage->layout.control_bytes, stage->layout.pins_bytes,
                                stage->layout.data_bytes};
    for (int s = 0; s < STAGE_SEGMENTS; s++) {
        if (n_bytes[s] > STAGE_BYTES_MAX)
            return;
    }
    stage_init(stage, n_bytes);
    layout_control_init(stage->base[STAGE_CONTROL], &stage->layout, &stage->geometry,
                        "fuzz", uuid);
    struct kvw_control_header *header = (void *)stage->base[STAGE_CONTROL];
    store_relaxed(&header->attachments_high, STAGE_CACHES);
    KVW_CHECK(stage_attach(stage, 0, 0) == 0);
    KVW_CHECK(stage_attach(stage, 1, KVW_READER) == 0);
    play_all(play);
}

static void fill_control(struct stage *stage, struct input *input)
{
    struct kvw_control_header *header = (void *)stage->base[STAGE_CONTROL];
    const uint64_t n_bytes = stage->n_bytes[STAGE_CONTROL];

    input_bytes(input, header, sizeof *header);
    if (header->layout_hash == 0)
        header->layout_hash = layout_hash();
    input_any_geometry(input, &stage->geometry);
    memcpy(stage->base[STAGE_CONTROL] + KVW_PAGE, &stage->geometry,
           min_u64(sizeof stage->geometry, n_bytes - KVW_PAGE));
    while (input->left_bytes > 0) {
        const uint64_t at = input_below(input, min_u64(n_bytes, 1u << 16) / 8) * 8;
        *(uint64_t *)(void *)(stage->base[STAGE_CONTROL] + at) = input_u64(input);
    }
}

/* Any control segment: what is taken fits the sizes, and can be attached to. */
static void play_control(struct play *play)
{
    struct stage *stage = &play->stage;
    struct kvw_refusal refusal = {0};
    uint64_t n_bytes[STAGE_SEGMENTS];

    for (int s = 0; s < STAGE_SEGMENTS; s++)
        n_bytes[s] = (1 + input_below(&play->input, STAGE_BYTES_MAX / KVW_PAGE)) *
                     (uint64_t)KVW_PAGE;
    stage_init(stage, n_bytes);
    fill_control(stage, &play->input);
    stage_call_begins();
    int error = layout_control_read(stage->base[STAGE_CONTROL], n_bytes[STAGE_CONTROL],
                                    n_bytes[STAGE_PINS], n_bytes[STAGE_DATA],
                                    &stage->geometry, &stage->layout, &refusal);
    KVW_CHECK(error <= 0);
    if (error == 0) {
        KVW_CHECK(stage->layout.control_bytes == n_bytes[STAGE_CONTROL] &&
                  stage->layout.pins_bytes == n_bytes[STAGE_PINS] &&
                  stage->layout.data_bytes == n_bytes[STAGE_DATA]);
        KVW_CHECK(done(stage_attach(stage, 1, KVW_READER)) == 0);
        for (uint32_t rank = 0; rank < stage->geometry.n_ranks; rank++) {
            stage_detach(stage, 0);
            (void)done(stage_attach(stage, 0, rank));
        }
    } else {
        KVW_CHECK(refusal.text[0] != 0);
    }
    stage_fini(stage);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct play play;

    play = (struct play){.input = {data, size}};
    if (input_u8(&play.input) & 1)
        play_control(&play);
    else
        play_actions(&play);
    return 0;
}
