/* SPDX-License-Identifier: Apache-2.0 */
/* See scene.h. */
#include "tests/race/scene.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/outside.h"
#include "client/owner.h"
#include "client/spec.h"
#include "client/step.h"
#include "proto/base/align.h"
#include "tests/race/scene_daemon.h"
#include "tests/race/shim_calls.h"

#undef snprintf /* texts of reports are wanted */

struct scene scene_here;

static char last_failure[400];
static struct record *newest;

/* ------------------------------------------- what the sources ask of the rest --------
 */

int fail(int error, const char *format, ...)
{
    va_list arguments;

    /* Made in full only where it will be printed: it takes longer than the call. */
    if (explore_is_searching())
        return error;
    va_start(arguments, format);
    (void)vsnprintf(last_failure, sizeof last_failure, format, arguments);
    va_end(arguments);
    return error;
}

const char *kvw_last_error(void)
{
    return last_failure;
}

uint64_t outside_now_ns(clockid_t clock)
{
    (void)clock;
    return explore_now_ns();
}

uint64_t outside_mappings_max(void)
{
    return 65530;
}

uint32_t outside_node(void)
{
    return UINT32_MAX;
}

const char *outside_variable(const char *name)
{
    (void)name;
    return NULL;
}

void spec_from_geometry(const struct kvw_geometry *geometry, const char *name,
                        struct kvw_spec *spec)
{
    (void)geometry;
    (void)name;
    (void)spec;
}

int client_call(struct kvw_client *client, struct kvw_message *request,
                struct kvw_message *answer, int *fds, uint32_t n_fds,
                kvw_progress_fn *progress, void *context)
{
    (void)client;
    (void)request;
    (void)answer;
    (void)fds;
    (void)n_fds;
    (void)progress;
    (void)context;
    abort();
}

int owner_attach(struct kvw_client *client, struct kvw_message *request,
                 struct kvw_message *answer, int fds[3], uint64_t timeout_ns)
{
    (void)client;
    (void)request;
    (void)answer;
    (void)fds;
    (void)timeout_ns;
    abort();
}

/* ------------------------------------------------------------------- build ----------
 */

static uint32_t slot_of_reader(uint32_t reader)
{
    return scene_here.shape.n_ranks + reader;
}

static void make_geometry(const struct scene_shape *shape,
                          struct kvw_geometry *geometry)
{
    *geometry = (struct kvw_geometry){
        .n_groups = shape->n_groups,
        .n_lanes = 1,
        .n_ranks = shape->n_ranks,
        .n_layers = shape->n_groups,
        .partition = {.head_parts = shape->n_ranks,
                      .layer_parts = 1,
                      .lane_parts = 1,
                      .row_parts = 1},
    };
    for (uint32_t g = 0; g < shape->n_groups; g++) {
        geometry->group[g] = (struct kvw_geometry_group){
            .window_rows = shape->window_rows,
            .sink_rows = shape->sink_rows,
            .chunk_rows_max = 1,
            .keep_rows = shape->keep_rows,
            .slack_chunks = shape->slack_chunks,
            .n_layers = 1,
            .layer_first = g,
            .n_heads = shape->n_ranks,
            .n_planes = 1,
            .policy = KVW_GEOMETRY_ROLL,
            .kind = KVW_GEOMETRY_CHUNK,
            .positions = KVW_GEOMETRY_ABSOLUTE,
            .name = {(char)('a' + g)},
            .plane = {{.elems = 2, .type = KVW_GEOMETRY_U32, .name = "k"}},
        };
        geometry->model_layer[g] = (uint16_t)g;
    }
}

static struct kvw_cache *attach(uint32_t rank, uint32_t slot)
{
    const struct scene *here = &scene_here;
    const struct cache_segments segments = {
        {here->control, here->pins, here->data},
        {here->layout.control_bytes, here->layout.pins_bytes, here->layout.data_bytes}};
    struct kvw_cache *cache = NULL;

    int error = cache_new(&segments, rank, slot, &cache);
    if (error != 0)
        explore_fail("attach: %d: %s", error, kvw_last_error());
    cache->options.timeout_ns = here->shape.timeout_ns;
    cache->options.spin_us = 0;
    cache->options.pin_policy = here->shape.pin_policy;
    return cache;
}

/* The parts of an attachment that change. */
static void restore_attachment(struct kvw_cache *cache)
{
    explore_restore(&cache->pins_used, sizeof cache->pins_used);
}

static void name_word(const void *word, char *name, size_t n_bytes);

void scene_build(const struct scene_shape *shape)
{
    static const uint8_t uuid[16] = {1};
    struct scene *here = &scene_here;
    struct kvw_refusal refusal;

    *here = (struct scene){.shape = *shape};
    make_geometry(shape, &here->geometry);
    if (layout_of(&here->geometry, &here->layout, &refusal) != 0)
        abort();
    here->control = explore_shared(here->layout.control_bytes, KVW_PAGE);
    here->pins = explore_shared(here->layout.pins_bytes, KVW_PAGE);
    here->data = explore_shared(here->layout.data_bytes, KVW_PAGE);
    explore_rows(here->data, here->layout.data_bytes);
    layout_control_init(here->control, &here->layout, &here->geometry, "race", uuid);
    explore_set_namer(name_word);
    scene_daemon_init(here->control, here->pins, here->data, &here->geometry,
                      &here->layout);
    for (uint32_t r = 0; r < shape->n_ranks; r++) {
        scene_daemon_enter(r, r);
        here->rank[r] = attach(r, r);
        restore_attachment(here->rank[r]);
    }
    for (uint32_t r = 0; r < shape->n_readers; r++) {
        scene_daemon_enter(KVW_READER, slot_of_reader(r));
        here->reader[r] = attach(KVW_READER, slot_of_reader(r));
        restore_attachment(here->reader[r]);
    }
    newest = record_new(here->rank[0]);
    explore_restore(&here->rank, sizeof here->rank + sizeof here->reader);
}

uint64_t scene_step_of(const struct kvw_cache *cache)
{
    return lane_of(cache, 0)->record->step;
}

/* -------------------------------------------------------------------- ranks ---------
 */

static const uint32_t numbers[] = {0, 1, 2};

void *scene_number(uint32_t number)
{
    return (void *)(uintptr_t)&numbers[number];
}

void scene_add_rank(uint32_t rank, explore_fn *run, explore_fn *successor)
{
    static const char *const names[] = {"rank0", "rank1", "rank2"};
    static const char *const next[] = {"rank0'", "rank1'", "rank2'"};
    const bool is_mortal = successor != NULL;

    int task = explore_add(&(struct explore_task){.name = names[rank],
                                                  .run = run,
                                                  .context = scene_number(rank),
                                                  .family = rank,
                                                  .is_mortal = is_mortal,
                                                  .successor = EXPLORE_NOBODY});
    if (is_mortal) {
        explore_replaced_by(
            task, explore_add(&(struct explore_task){.name = next[rank],
                                                     .run = successor,
                                                     .context = scene_number(rank),
                                                     .family = rank,
                                                     .is_mortal = false,
                                                     .successor = EXPLORE_NOBODY,
                                                     .is_waiting = true}));
    }
}

void scene_build_ranks(uint32_t n_ranks, uint32_t n_readers, uint32_t slack,
                       uint64_t first_step)
{
    const struct scene_shape shape = {.window_rows = 2,
                                      .slack_chunks = slack,
                                      .n_groups = 1,
                                      .n_ranks = n_ranks,
                                      .n_readers = n_readers,
                                      .pin_policy = KVW_PIN_WAIT,
                                      .timeout_ns = KVW_NO_TIMEOUT};
    scene_build(&shape);
    for (uint64_t step = 0; step < first_step; step++) {
        for (uint32_t r = 0; r < n_ranks; r++)
            scene_must(scene_step(scene_here.rank[r], 1), "a step");
    }
}

void scene_bury_rank(uint32_t rank)
{
    scene_daemon_bury(rank, rank);
}

void scene_enter_rank(uint32_t rank)
{
    scene_daemon_enter(rank, rank);
    scene_here.rank[rank] = attach(rank, rank);
}

void scene_replace_rank(uint32_t rank)
{
    scene_daemon_bury(rank, rank);
    scene_enter_rank(rank);
}

void scene_bury_reader(uint32_t reader)
{
    scene_daemon_bury(KVW_READER, slot_of_reader(reader));
}

void scene_replace_reader(uint32_t reader)
{
    scene_daemon_bury(KVW_READER, slot_of_reader(reader));
    scene_daemon_enter(KVW_READER, slot_of_reader(reader));
    scene_here.reader[reader] = attach(KVW_READER, slot_of_reader(reader));
}

/* -------------------------------------------------------------------- calls ---------
 */

uint64_t scene_stamp(uint64_t branch, uint64_t row)
{
    return branch << 32 | (row + 1);
}

void scene_must(int error, const char *what)
{
    if (error != 0)
        explore_fail("%s: %d: %s", what, error, kvw_last_error());
}

int scene_write(struct kvw_cache *cache, uint32_t group, uint64_t stamp)
{
    const struct kvw_source source = {
        .data = &stamp, .row_bytes = sizeof stamp, .head_bytes = sizeof stamp};
    const struct kvw_layer layer = {group};

    return kvw_update(cache, 0, layer, 0, 1, &source);
}

int scene_step(struct kvw_cache *cache, uint64_t branch)
{
    struct kvw_item items[KVW_GROUPS_MAX] = {0};
    const uint32_t n = scene_here.shape.n_groups;

    for (uint32_t g = 0; g < n; g++)
        items[g] = (struct kvw_item){.group = g,
                                     .has_epoch = 1,
                                     .row = lane_of(cache, 0)->record->group[g].rows,
                                     .n = 1,
                                     .epoch = lane_of(cache, 0)->record->step + 1};
    int error = kvw_begin(cache, 0, items, n, NULL);
    for (uint32_t g = 0; g < n && error == 0; g++)
        error = scene_write(cache, g, scene_stamp(branch, items[g].row));
    return error != 0 ? error : kvw_commit(cache, 0, NULL, 0);
}

int scene_mark(struct kvw_cache *cache, uint64_t epoch)
{
    struct kvw_item items[KVW_GROUPS_MAX] = {0};
    const uint32_t n = scene_here.shape.n_groups;

    for (uint32_t g = 0; g < n; g++)
        items[g] = (struct kvw_item){.group = g,
                                     .has_epoch = 1,
                                     .row = lane_of(cache, 0)->record->group[g].evicted,
                                     .epoch = epoch};
    return kvw_evict(cache, 0, items, n);
}

uint64_t scene_read(const struct kvw_view *view, uint32_t piece, uint64_t row,
                    uint32_t head)
{
    const struct kvw_piece *in = &view->piece[piece];
    const char *at = kvw_piece_at(&view->plane[0], in, head) +
                     (row - in->row) * view->plane[0].row_bytes;
    return shim_load_64(at, SHIM_RELAXED);
}

const struct record *scene_record(uint32_t rank)
{
    struct board_head head;

    scene_must(board_read_record(scene_here.rank[0], rank, 0, 0, &head, newest),
               "the newest record");
    return newest;
}

static uint64_t digest_group(uint64_t digest, const struct kvw_group_record *group)
{
    digest = explore_mix(digest, group->rows);
    digest = explore_mix(digest, group->evicted);
    digest = explore_mix(digest, group->generation);
    digest = explore_mix(digest, group->epoch);
    for (uint32_t i = 0; i < KVW_KEPT_MAX; i++)
        digest = explore_mix(explore_mix(digest, group->kept[i].first),
                             group->kept[i].n << 32 | group->kept[i].extent);
    return digest;
}

void scene_settle(const struct kvw_cache *cache, uint64_t digest)
{
    digest = explore_mix(digest, cache->pins_used);
    if (cache->rank != KVW_READER) {
        const struct lane *lane = lane_of(cache, 0);
        digest = explore_mix(explore_mix(digest, lane->version), lane->claim);
        digest = explore_mix(explore_mix(digest, lane->record->step),
                             lane->record->era << 32 | lane->record->rewinds);
        digest = explore_mix(digest, lane->is_open);
        for (uint32_t g = 0; g < scene_here.shape.n_groups; g++) {
            digest = digest_group(digest, &lane->record->group[g]);
            digest = explore_mix(digest, lane->record->floor[g]);
            digest =
                explore_mix(explore_mix(digest, lane->open[g].n), lane->open[g].epoch);
        }
    }
    explore_settle(digest);
}

/* -------------------------------------------------------------------- names ---------
 */

static void name_record_word(uint64_t word, char *name, size_t n_bytes)
{
    static const char *const head[] = {"magic", "step", "era", "rewinds"};
    static const char *const of_group[] = {"rows", "evicted", "generation", "epoch"};
    const uint64_t in_groups = word - KVW_RECORD_WORD_GROUPS;
    const uint64_t group = in_groups / KVW_RECORD_GROUP_WORDS;

    if (word < KVW_RECORD_WORD_GROUPS)
        (void)snprintf(name, n_bytes, "%s", head[word]);
    else if (group >= scene_here.shape.n_groups)
        (void)snprintf(name, n_bytes, "floor");
    else if (in_groups % KVW_RECORD_GROUP_WORDS < 4)
        (void)snprintf(name, n_bytes, "group[%u].%s", (unsigned)group,
                       of_group[in_groups % KVW_RECORD_GROUP_WORDS]);
    else
        (void)snprintf(name, n_bytes, "group[%u].kept", (unsigned)group);
}

static void name_board_word(uint64_t offset, char *name, size_t n_bytes)
{
    static const char *const line[] = {"version", "event", "ask", "outside", "claim"};
    static const char *const of_claim[] = {"want", "hi", "open", "reserved"};
    const struct kvw_layout *layout = &scene_here.layout;
    char word[32];

    if (offset < layout->claims_offset) {
        (void)snprintf(name, n_bytes, "%s", line[offset / 8 % 5]);
    } else if (offset < layout->records_offset) {
        offset -= layout->claims_offset;
        (void)snprintf(name, n_bytes, "%s[%u]", of_claim[offset / 8 % 4],
                       (unsigned)(offset / sizeof(struct kvw_board_claim)));
    } else if (offset < layout->staged_offset) {
        offset -= layout->records_offset;
        name_record_word(offset % layout->record_bytes / 8, word, sizeof word);
        (void)snprintf(name, n_bytes, "rec[%u].%s",
                       (unsigned)(offset / layout->record_bytes), word);
    } else {
        (void)snprintf(name, n_bytes, "staged[%u]",
                       (unsigned)((offset - layout->staged_offset) / 8));
    }
}

static void name_control_word(uint64_t offset, char *name, size_t n_bytes)
{
    static const char *const of_seat[] = {"owner", "incarnation", "since", "state/pid"};
    const struct kvw_layout *layout = &scene_here.layout;
    char word[48];

    if (offset >= layout->boards_offset) {
        offset -= layout->boards_offset;
        name_board_word(offset % layout->board_bytes, word, sizeof word);
        (void)snprintf(name, n_bytes, "board[%u].%s",
                       (unsigned)(offset / layout->board_bytes), word);
    } else if (offset >= layout->seats_offset) {
        offset -= layout->seats_offset;
        (void)snprintf(name, n_bytes, "seat[%u].%s",
                       (unsigned)(offset / sizeof(struct kvw_seat)),
                       of_seat[offset % sizeof(struct kvw_seat) / 8 % 4]);
    } else {
        (void)snprintf(name, n_bytes, "header");
    }
}

static void name_pins_word(uint64_t offset, char *name, size_t n_bytes)
{
    static const char *const of_pin[] = {"lo_plus_1",  "end",   "generation",
                                         "lane_group", "ranks", "keep_extent",
                                         "since",      "kind"};
    const struct kvw_layout *layout = &scene_here.layout;

    if (offset < layout->high_offset) {
        (void)snprintf(name, n_bytes, "flag[%u]", (unsigned)(offset / KVW_CACHELINE));
    } else if (offset < layout->pins_offset) {
        (void)snprintf(name, n_bytes, "high[%u]",
                       (unsigned)((offset - layout->high_offset) / 4));
    } else {
        const uint64_t pin = (offset - layout->pins_offset) / sizeof(struct kvw_pin);
        (void)snprintf(name, n_bytes, "pin[%u][%u].%s",
                       (unsigned)(pin / KVW_PINS_PER_ATTACHMENT),
                       (unsigned)(pin % KVW_PINS_PER_ATTACHMENT),
                       of_pin[offset % sizeof(struct kvw_pin) / 8]);
    }
}

static void name_row(uint64_t offset, char *name, size_t n_bytes)
{
    const struct kvw_layout_group *group = &scene_here.layout.group[0];

    (void)snprintf(name, n_bytes, "layer %u head %u slot %u",
                   (unsigned)(offset / group->layer_bytes),
                   (unsigned)(offset % group->layer_bytes / group->plane[0].head_bytes),
                   (unsigned)(offset % group->plane[0].head_bytes / 8));
}

static void name_word(const void *word, char *name, size_t n_bytes)
{
    const struct scene *here = &scene_here;
    const char *at = word;

    if (at >= here->data)
        name_row((uint64_t)(at - here->data), name, n_bytes);
    else if (at >= here->pins)
        name_pins_word((uint64_t)(at - here->pins), name, n_bytes);
    else
        name_control_word((uint64_t)(at - here->control), name, n_bytes);
}
