/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process for test_cli.sh: connects to the default socket, which may start a daemon,
 * says the daemon's pid, and, if asked, attaches and stays until its standard input
 * ends.
 *
 *     test_cli_worker [NAME RANK [ROWS]]      RANK "reader": read only
 *
 * With ROWS it commits so many rows first, chunk by chunk; "for-ever": until its standard
 * input ends. A line of its standard input damages the cache, and the same line again puts
 * it right: `row` flips a bit of the row committed last, `board` of a board's newest record,
 * `header` of the header's.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cache.h"
#include "client/client.h"

/* A chunk of the cache's one group, the same in all layers, planes and heads. */
static int add_chunk(struct kvw_cache *cache)
{
    static float data[1 << 14];
    const struct kvw_spec_group *group = &kvw_cache_spec(cache)->group[0];
    const uint64_t n = group->chunk_rows_max;
    struct kvw_source sources[KVW_SPEC_PLANES_MAX];
    struct kvw_lane_state state;

    if (kvw_state(cache, 0, kvw_cache_rank(cache), &state) < 0)
        return 1;
    const struct kvw_item chunk = {.row = state.group[0].rows, .n = n};
    for (uint32_t i = 0; i < sizeof data / sizeof data[0]; i++)
        data[i] = (float)(chunk.row + i);
    for (uint32_t p = 0; p < group->n_planes; p++)
        sources[p] = (struct kvw_source){data + p, 64, 16};
    int error = kvw_begin(cache, 0, &chunk, 1, NULL);
    for (uint32_t layer = 0; layer < group->n_layers && error == 0; layer++)
        error = kvw_update(cache, 0, (struct kvw_layer){layer}, 0, n, sources);
    return error != 0 ? error : kvw_commit(cache, 0, NULL, 0);
}

static int add_rows(struct kvw_cache *cache, uint64_t rows)
{
    int error = 0;

    while (rows > 0 && error == 0) {
        const uint64_t n = kvw_cache_spec(cache)->group[0].chunk_rows_max;
        error = add_chunk(cache);
        rows -= n < rows ? n : rows;
    }
    return error;
}

static int add_for_ever(struct kvw_cache *cache)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    int error = 0;

    while (error == 0 && poll(&input, 1, 0) == 0)
        error = add_chunk(cache);
    return error;
}

static char *newest_record(const struct kvw_cache *cache)
{
    const struct kvw_board *board =
        layout_board(cache->control, &cache->layout, cache->geometry.n_lanes, 0, 0);

    return (char *)(uintptr_t)board + cache->layout.records_offset +
           load_relaxed(&board->version) % KVW_RECORDS * cache->layout.record_bytes;
}

static void damage(struct kvw_cache *cache, const char *what)
{
    const struct kvw_layer layer = {0};
    struct kvw_view view;
    char *byte = NULL;

    if (strcmp(what, "header\n") == 0)
        byte = cache->control;
    if (strcmp(what, "board\n") == 0)
        byte = newest_record(cache);
    if (strcmp(what, "row\n") == 0 && kvw_get(cache, 0, layer, 0, &view) == 0 &&
        kvw_release(cache, &view) == 0) {
        const struct kvw_piece *last = &view.piece[view.n_pieces - 1];
        byte = kvw_piece_at(&view.plane[1], last, 1) +
               (last->n_rows - 1) * view.plane[1].row_bytes;
    }
    if (byte != NULL)
        *byte = (char)(*byte ^ 0x10);
    printf("done\n");
    fflush(stdout);
}

static int work(struct kvw_cache *cache, const char *rows)
{
    char line[64];
    int error = 0;

    printf("attached\n");
    fflush(stdout);
    if (strcmp(rows, "for-ever") == 0)
        error = add_for_ever(cache);
    else
        error = add_rows(cache, strtoull(rows, NULL, 10));
    if (error != 0) {
        fprintf(stderr, "rows: %s\n", kvw_last_error());
        return 1;
    }
    printf("written\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL)
        damage(cache, line);
    return 0;
}

int main(int argc, char **argv)
{
    struct kvw_client *client;
    struct kvw_cache *cache = NULL;
    int result = 0;

    if (kvw_connect(NULL, &client) < 0) {
        fprintf(stderr, "connect: %s\n", kvw_last_error());
        return 1;
    }
    printf("%u\n", client->daemon_pid);
    if (argc >= 3) {
        uint32_t rank = strcmp(argv[2], "reader") == 0
                            ? KVW_READER
                            : (uint32_t)strtoul(argv[2], NULL, 10);
        if (kvw_attach(client, argv[1], rank, NULL, &cache) < 0) {
            fprintf(stderr, "attach: %s\n", kvw_last_error());
            return 1;
        }
        result = work(cache, argc > 3 ? argv[3] : "0");
    }
    kvw_disconnect(client);
    return result;
}
