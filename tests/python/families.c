/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The helpers of families.h, driven by lines on stdin as VideoCache and LinearCache are by
 * test_family_helpers.py, which compares:
 *
 *     chunk ROWS             one chunk of rows whose every element is their position
 *     switch SINK CONTEXT    a new prompt; what is to be run again, is
 *     flush ROWS             leave the sink and so many rows
 *     jump ROWS              later rows are so many later
 *
 * After each line: the positions of the rows that a view shows, and the sum of their first
 * elements.
 *
 *     families NAME ROWS_OF_A_FRAME WINDOW CHUNK SINK   (all in rows)
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvwheel/families.h>
#include <kvwheel/kvwheel.h>

#define ELEMS 8u
#define CHUNK_ROWS_MAX 64u
#define NEXT UINT64_MAX

enum { SELF, CROSS, POSITIONS };

static struct kvw_cache *cache;
static uint64_t epoch;

static void need(bool is_so, const char *what)
{
    if (is_so)
        return;
    fprintf(stderr, "families: %s: %s\n", what, kvw_last_error());
    exit(1);
}

static void write_chunk(uint64_t n_rows, uint64_t position)
{
    float rows[CHUNK_ROWS_MAX][ELEMS];
    const struct kvw_source sources[2] = {{rows, sizeof rows[0], sizeof rows[0]},
                                          {rows, sizeof rows[0], sizeof rows[0]}};
    struct kvw_lane_state state;

    need(n_rows <= CHUNK_ROWS_MAX && kvw_state(cache, 0, 0, &state) == 0, "state");
    const struct kvw_item item = {SELF, 1, state.group[SELF].rows, n_rows, epoch};
    if (position == NEXT)
        need(kvw_position_next(cache, 0, POSITIONS, &position) == 0, "next");
    need(kvw_begin_at(cache, 0, &item, 1, POSITIONS, position, NULL) == 0, "begin");
    for (uint64_t row = 0; row < n_rows; row++) {
        for (uint32_t e = 0; e < ELEMS; e++)
            rows[row][e] = (float)(position + row);
    }
    need(kvw_update(cache, 0, (struct kvw_layer){0}, 0, n_rows, sources) == 0,
         "update");
    need(kvw_commit(cache, 0, NULL, 0) == 0, "commit");
}

static void switch_prompt(uint32_t sink, uint64_t context_rows, uint64_t chunk_rows)
{
    struct kvw_again again;
    const struct kvw_switch how = {.self_group = SELF,
                                   .cross_group = CROSS,
                                   .positions_group = POSITIONS,
                                   .epoch = ++epoch,
                                   .context_rows = context_rows,
                                   .sink = sink};

    need(kvw_switch_prompt(cache, 0, &how, &again) == 0, "switch");
    for (uint32_t i = 0; i < again.n; i++) {
        for (uint64_t at = again.first[i]; at < again.end[i]; at += chunk_rows)
            write_chunk(again.end[i] - at < chunk_rows ? again.end[i] - at : chunk_rows,
                        at);
    }
}

static void show(void)
{
    struct kvw_view view;
    struct kvw_view at;
    float sum[ELEMS];

    need(kvw_get(cache, 0, (struct kvw_layer){0}, KVW_COMMITTED, &view) == 0 &&
             kvw_get(cache, 0, kvw_position_layer(cache, POSITIONS), KVW_COMMITTED,
                     &at) == 0,
         "get");
    need(view.n_pieces == at.n_pieces &&
             memcmp(view.piece, at.piece, view.n_pieces * sizeof at.piece[0]) == 0,
         "positions do not go along");
    for (uint32_t i = 0; i < view.n_pieces; i++) {
        const struct kvw_piece *piece = &view.piece[i];
        for (uint32_t row = 0; row < piece->n_rows; row++) {
            uint32_t position;
            float value;
            memcpy(&position,
                   kvw_piece_at(&at.plane[0], piece, 0) + row * at.plane[0].row_bytes,
                   sizeof position);
            memcpy(&value,
                   kvw_piece_at(&view.plane[0], piece, 0) +
                       row * view.plane[0].row_bytes,
                   sizeof value);
            need((uint32_t)value == position, "a row is not at its position");
            printf("%.0f ", (double)value);
        }
    }
    need(kvw_sum_past(&view, 0, sum) == (int64_t)view.n_rows, "sum");
    printf("sum %.0f epoch %" PRIu64 "\n", (double)sum[ELEMS - 1], view.epoch);
    need(kvw_release(cache, &view) == 0 && kvw_release(cache, &at) == 0, "release");
    (void)fflush(stdout);
}

static void attach(char **argv, uint64_t numbers[4])
{
    static struct kvw_spec spec;
    struct kvw_client *client;

    for (int i = 0; i < 4; i++)
        numbers[i] = strtoull(argv[2 + i], NULL, 10);
    kvw_spec_init(&spec, argv[1]);
    for (int g = 0; g < 2; g++) {
        struct kvw_spec_group *group =
            kvw_spec_add_group(&spec, g == SELF ? "self" : "cross", 1, NULL);
        need(group != NULL && kvw_spec_add_plane(group, "k", KVW_F32, ELEMS) != NULL &&
                 kvw_spec_add_plane(group, "v", KVW_F32, ELEMS) != NULL,
             "spec");
        group->window_rows = g == SELF ? numbers[1] : 8;
        group->chunk_rows_max = g == SELF ? numbers[2] : 8;
        group->sink_rows = g == SELF ? numbers[3] : 0;
        group->policy = g == SELF ? KVW_ROLL : KVW_REFUSE;
    }
    need(kvw_spec_add_positions(&spec, &spec.group[SELF], 1) != NULL, "positions");
    need(kvw_connect(NULL, &client) == 0, "connect");
    need(kvw_create(client, &spec, NULL, NULL) == 0, "create");
    need(kvw_attach(client, spec.name, 0, NULL, &cache) == 0, "attach");
}

int main(int argc, char **argv)
{
    static const uint32_t both[2] = {SELF, POSITIONS};
    uint64_t numbers[4];
    char line[80];
    uint64_t a;
    uint64_t b;

    need(argc == 6, "usage: families NAME FRAME WINDOW CHUNK SINK");
    attach(argv, numbers);
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "chunk %" SCNu64, &a) == 1)
            write_chunk(a, NEXT);
        else if (sscanf(line, "switch %" SCNu64 " %" SCNu64, &a, &b) == 2)
            switch_prompt((uint32_t)a, b, numbers[2]);
        else if (sscanf(line, "flush %" SCNu64, &a) == 1)
            need(kvw_evict_to_last(cache, 0, both, 2, a) == 0, "flush");
        else if (sscanf(line, "jump %" SCNu64, &a) == 1)
            need(kvw_position_jump(cache, 0, POSITIONS, a) == 0, "jump");
        else
            need(false, line);
        show();
    }
    return 0;
}
