/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See board.h. Why K records and a second look at the version: a reader may be copying
 * a record while its owner publishes on. A record is overwritten K publications after
 * it was written; its words may be touched by the publication that follows version w +
 * K - 1, so a copy is good as long as the version seen afterwards is at most w + K - 2.
 */
#include "client/board.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/client.h"

static shared_u64 *record_words(const struct kvw_cache *cache, struct kvw_board *board,
                                uint64_t version)
{
    return (shared_u64 *)(void *)((char *)board + cache->layout.records_offset +
                                  version % KVW_RECORDS * cache->layout.record_bytes);
}

struct record *record_new(const struct kvw_cache *cache)
{
    return calloc(1,
                  sizeof(struct record) + cache->geometry.n_layers * sizeof(uint64_t));
}

void record_copy(const struct kvw_cache *cache, struct record *to,
                 const struct record *from)
{
    to->step = from->step;
    to->era = from->era;
    to->rewinds = from->rewinds;
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++)
        to->group[g] = from->group[g];
    for (uint32_t layer = 0; layer < cache->geometry.n_layers; layer++)
        to->floor[layer] = from->floor[layer];
}

static void load_group(const shared_u64 *words, uint32_t g,
                       struct kvw_group_record *record)
{
    words += KVW_RECORD_WORD_GROUPS + g * KVW_RECORD_GROUP_WORDS;
    record->rows = load_relaxed(&words[0]);
    record->evicted = load_relaxed(&words[1]);
    record->generation = load_relaxed(&words[2]);
    record->epoch = load_relaxed(&words[3]);
    for (uint32_t i = 0; i < KVW_KEPT_MAX; i++) {
        record->kept[i].first = load_relaxed(&words[4 + 3 * i]);
        record->kept[i].n = load_relaxed(&words[5 + 3 * i]);
        record->kept[i].extent = load_relaxed(&words[6 + 3 * i]);
    }
}

static void store_group(shared_u64 *words, uint32_t g,
                        const struct kvw_group_record *record)
{
    words += KVW_RECORD_WORD_GROUPS + g * KVW_RECORD_GROUP_WORDS;
    store_relaxed(&words[0], record->rows);
    store_relaxed(&words[1], record->evicted);
    store_relaxed(&words[2], record->generation);
    store_relaxed(&words[3], record->epoch);
    for (uint32_t i = 0; i < KVW_KEPT_MAX; i++) {
        store_relaxed(&words[4 + 3 * i], record->kept[i].first);
        store_relaxed(&words[5 + 3 * i], record->kept[i].n);
        store_relaxed(&words[6 + 3 * i], record->kept[i].extent);
    }
}

static uint64_t floor_word(const struct kvw_cache *cache, uint32_t layer)
{
    return KVW_RECORD_WORD_GROUPS +
           (uint64_t)cache->geometry.n_groups * KVW_RECORD_GROUP_WORDS + layer;
}

/* What a read copies, besides the head. */
struct wanted {
    uint32_t group_first;
    uint32_t group_end;
    struct kvw_group_record *groups; /* of group_first.. */
    uint32_t layer_first;
    uint32_t layer_end;
    uint64_t *floors; /* of layer_first.. */
};

static void load_wanted(const struct kvw_cache *cache, const shared_u64 *words,
                        const struct wanted *wanted)
{
    for (uint32_t g = wanted->group_first; g < wanted->group_end; g++)
        load_group(words, g, &wanted->groups[g - wanted->group_first]);
    for (uint32_t layer = wanted->layer_first; layer < wanted->layer_end; layer++)
        wanted->floors[layer - wanted->layer_first] =
            load_relaxed(&words[floor_word(cache, layer)]);
}

/* A group from shared memory is somebody's word: rows that a layer cannot hold are not
 * used, so that no view ever points outside the segment or has too many pieces. */
static bool group_is_sane(const struct kvw_geometry_group *group,
                          const struct kvw_group_record *record)
{
    const uint64_t rows_max = UINT64_MAX / 4;
    uint64_t kept_rows = 0;
    uint64_t end = group->sink_rows;

    if (record->rows > rows_max || record->evicted > record->rows)
        return false;
    for (uint32_t i = 0; i < KVW_KEPT_MAX; i++) {
        const struct kvw_kept *kept = &record->kept[i];
        if (kept->n == 0)
            continue;
        if (kept->n > group->keep_rows - kept_rows ||
            kept->extent > group->keep_rows - kept->n || kept->first < end ||
            kept->first > record->rows || kept->n > record->rows - kept->first)
            return false;
        kept_rows += kept->n;
        end = kept->first + kept->n; /* ascending, apart from each other */
    }
    return true;
}

/* Copy from the record at `version` (0: the newest), with the second look. */
static int read_record(const struct kvw_cache *cache, uint32_t rank, uint32_t lane,
                       uint64_t version, const struct wanted *wanted,
                       struct board_head *head)
{
    struct kvw_board *board = board_of(cache, rank, lane);

    for (uint32_t tries = 0; tries < KVW_RETRIES_MAX; tries++) {
        uint64_t newest = load_acquire(&board->version); /* S1, pairs with P2 */
        if (newest == 0)
            return -KVW_EGONE;
        uint64_t at = version != 0 ? version : newest;
        const shared_u64 *words = record_words(cache, board, at);
        uint64_t magic = load_relaxed(&words[KVW_RECORD_WORD_MAGIC]);
        head->version = at;
        head->step = load_relaxed(&words[KVW_RECORD_WORD_STEP]);
        head->era = load_relaxed(&words[KVW_RECORD_WORD_ERA]);
        head->rewinds = load_relaxed(&words[KVW_RECORD_WORD_REWINDS]);
        load_wanted(cache, words, wanted);
        fence_acquire(); /* S2, pairs with P1 */
        uint64_t after = load_relaxed(&board->version);
        if (after - at <= KVW_RECORDS - 2) {
            if (magic != KVW_RECORD_MAGIC)
                return -KVW_EGONE;
            for (uint32_t g = wanted->group_first; g < wanted->group_end; g++) {
                if (!group_is_sane(&cache->geometry.group[g],
                                   &wanted->groups[g - wanted->group_first]))
                    return -KVW_EGONE;
            }
            return 0;
        }
        if (version != 0)
            return -EAGAIN; /* that record is gone for good */
    }
    return -EAGAIN;
}

int board_read_head(const struct kvw_cache *cache, uint32_t rank, uint32_t lane,
                    struct board_head *head)
{
    const struct wanted nothing = {0};
    return read_record(cache, rank, lane, 0, &nothing, head);
}

int board_read_group(const struct kvw_cache *cache, uint32_t rank, uint32_t lane,
                     uint64_t version, struct board_group *read)
{
    const bool has_layer = read->layer != UINT32_MAX;
    const struct wanted wanted = {
        .group_first = read->group,
        .group_end = read->group + 1,
        .groups = &read->record,
        .layer_first = has_layer ? read->layer : 0,
        .layer_end = has_layer ? read->layer + 1 : 0,
        .floors = &read->floor,
    };
    read->floor = 0;
    return read_record(cache, rank, lane, version, &wanted, &read->head);
}

int board_read_record(const struct kvw_cache *cache, uint32_t rank, uint32_t lane,
                      uint64_t version, struct board_head *head, struct record *record)
{
    const struct wanted wanted = {
        .group_end = cache->geometry.n_groups,
        .groups = record->group,
        .layer_end = cache->geometry.n_layers,
        .floors = record->floor,
    };
    int error = read_record(cache, rank, lane, version, &wanted, head);
    if (error == 0) {
        record->step = head->step;
        record->era = head->era;
        record->rewinds = head->rewinds;
    }
    return error;
}

int board_find_step(const struct kvw_cache *cache, uint32_t rank, uint32_t lane,
                    uint64_t step, uint64_t *version)
{
    const struct wanted nothing = {0};
    struct board_head newest;

    int error = board_read_head(cache, rank, lane, &newest);
    if (error != 0)
        return error;
    /* Newest first: after a recovery the same step may stand in the log twice. */
    for (uint64_t back = 0; back <= KVW_RECORDS - 2 && back < newest.version; back++) {
        struct board_head head;
        error = read_record(cache, rank, lane, newest.version - back, &nothing, &head);
        if (error != 0)
            return error;
        if (head.step == step) {
            *version = head.version;
            return 0;
        }
        if (head.step < step)
            break;
    }
    return -ENOENT;
}

static void wake_all(shared_u32 *event)
{
    (void)syscall(SYS_futex, event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static shared_u32 *own_flag(struct kvw_cache *cache, uint32_t lane)
{
    return layout_flag(cache->pins, &cache->layout, cache->geometry.n_lanes,
                       cache->rank, lane);
}

uint32_t board_take_flag(struct kvw_cache *cache, uint32_t lane)
{
    shared_u32 *flag = own_flag(cache, lane);

    /* Down before the change is published: a waiter that raises it again in between is
     * seen by the second look in board_notify(). */
    uint32_t was_raised = load_relaxed(flag);
    if (was_raised != 0)
        store_relaxed(flag, 0);
    return was_raised;
}

void board_notify(struct kvw_cache *cache, uint32_t lane, uint32_t was_raised)
{
    struct kvw_board *board = board_of(cache, cache->rank, lane);

    add_seq_cst(&board->event, 1); /* P5, pairs with W2 */
    fence_full(); /* P3, pairs with W1, H4 and R2: the event before the second look */
    if (was_raised != 0 || load_relaxed(own_flag(cache, lane)) != 0)
        wake_all(&board->event);
}

void board_wake(struct kvw_cache *cache, uint32_t lane)
{
    struct kvw_board *board = board_of(cache, cache->rank, lane);

    fence_compiler(); /* P4, pairs with W4: the word before the look at the flag */
    if (board_take_flag(cache, lane) == 0)
        return;
    /* P5, pairs with W2. After the flag: who raised it again meanwhile sees another event,
     * or is woken. */
    add_seq_cst(&board->event, 1);
    wake_all(&board->event);
}

void board_publish(struct kvw_cache *cache, uint32_t lane, const struct record *record)
{
    struct kvw_board *board = board_of(cache, cache->rank, lane);
    struct lane *own = &cache->lanes[lane - cache->held_lanes.begin];
    const uint64_t version = own->version;
    shared_u64 *words = record_words(cache, board, version + 1);

    uint32_t was_raised = board_take_flag(cache, lane);
    fence_streamed();
    fence_release(); /* P1, pairs with S2 */
    store_relaxed(&words[KVW_RECORD_WORD_MAGIC], KVW_RECORD_MAGIC);
    store_relaxed(&words[KVW_RECORD_WORD_STEP], record->step);
    store_relaxed(&words[KVW_RECORD_WORD_ERA], record->era);
    store_relaxed(&words[KVW_RECORD_WORD_REWINDS], record->rewinds);
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++)
        store_group(words, g, &record->group[g]);
    for (uint32_t layer = 0; layer < cache->geometry.n_layers; layer++)
        store_relaxed(&words[floor_word(cache, layer)], record->floor[layer]);
    store_release(&board->version, version + 1); /* P2, pairs with S1 */

    own->version = version + 1;
    if (record != own->record)
        record_copy(cache, own->record, record);
    board_notify(cache, lane, was_raised);
}
