/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of tests/data/window-traces.json (what attention really saw in public
 * implementations), made through the library: the staged view must show just the rows,
 * and the versions of them, that were seen there.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/world.h"

enum { LAYERS = 2, HEADS = 2, CALLS = 274, ROWS_MAX = 512 };

static uint64_t number(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static void make_geometry(const json_t *trace, struct kvw_geometry *geometry)
{
    const json_t *chunks = json_object_get(trace, "chunk_rows");
    struct kvw_geometry_group *group = &geometry->group[0];

    world_geometry(geometry, LAYERS, HEADS);
    group->window_rows = number(trace, "window_rows");
    group->sink_rows = number(trace, "sink_rows");
    for (size_t i = 0; i < json_array_size(chunks); i++) {
        uint64_t rows = (uint64_t)json_integer_value(json_array_get(chunks, i));
        if (rows > group->chunk_rows_max)
            group->chunk_rows_max = rows;
    }
    group->slack_chunks = 1;
    group->n_planes = 2;
    group->plane[0] =
        (struct kvw_geometry_plane){.elems = 5, .type = KVW_GEOMETRY_F32, .name = "k"};
    group->plane[1] =
        (struct kvw_geometry_plane){.elems = 3, .type = KVW_GEOMETRY_BF16, .name = "v"};
}

static uint64_t stamp_of(uint64_t version, uint64_t row, uint32_t layer)
{
    return world_mix(version, row, layer + 1);
}

static int update(struct world *world, uint32_t layer, uint64_t at, uint64_t n_rows,
                  uint64_t version)
{
    static char data[2][ROWS_MAX * 64];
    const struct kvw_geometry_group *group = &world->geometry.group[0];
    struct kvw_source source[2];

    for (uint32_t p = 0; p < 2; p++) {
        int64_t bytes =
            (int64_t)group->plane[p].elems * geometry_elem_bytes(group->plane[p].type);
        source[p] = (struct kvw_source){data[p], HEADS * bytes, bytes};
        for (uint64_t row = 0; row < n_rows; row++) {
            for (uint32_t head = 0; head < HEADS; head++)
                world_fill(data[p] + ((int64_t)row * HEADS + head) * bytes,
                           &group->plane[p], p, head,
                           stamp_of(version, at + row, layer));
        }
    }
    return kvw_update(world->seat[0], 0, (struct kvw_layer){layer}, 0, n_rows, source);
}

/* Version of a row by a list of [first row, count, version]; 0: it was not seen. */
static uint64_t version_of(const json_t *seen, uint64_t row)
{
    for (size_t i = 0; i < json_array_size(seen); i++) {
        const json_t *run = json_array_get(seen, i);
        uint64_t first = (uint64_t)json_integer_value(json_array_get(run, 0));
        uint64_t n = (uint64_t)json_integer_value(json_array_get(run, 1));
        if (row >= first && row < first + n)
            return (uint64_t)json_integer_value(json_array_get(run, 2));
    }
    return 0;
}

static bool compare(const struct world *world, uint32_t layer, const json_t *seen,
                    const struct kvw_view *view)
{
    uint64_t n_want = 0;
    uint64_t n = 0;
    uint64_t row_before = UINT64_MAX;

    for (size_t i = 0; i < json_array_size(seen); i++)
        n_want +=
            (uint64_t)json_integer_value(json_array_get(json_array_get(seen, i), 1));
    for (uint32_t i = 0; i < view->n_pieces; i++) {
        const struct kvw_piece *piece = &view->piece[i];
        for (uint32_t k = 0; k < piece->n_rows; k++, n++) {
            uint64_t row = piece->row + k;
            uint64_t version = version_of(seen, row);
            if (version == 0 || (row_before != UINT64_MAX && row <= row_before))
                return false;
            row_before = row;
            for (uint32_t p = 0; p < view->n_planes; p++) {
                for (uint32_t h = 0; h < view->n_heads; h++) {
                    const char *at =
                        (const char *)kvw_piece_at(&view->plane[p], piece, h) +
                        k * view->plane[p].row_bytes;
                    if (!world_is_filled(at, &world->geometry.group[0].plane[p], p, h,
                                         stamp_of(version, row, layer)))
                        return false;
                }
            }
        }
    }
    return n == n_want && view->n_rows == n;
}

/* One call of a trace. @return what failed, or NULL. */
static const char *replay(struct world *world, const json_t *call, bool is_last)
{
    const struct kvw_item item = {.row = number(call, "at"), .n = number(call, "rows")};

    if (kvw_begin(world->seat[0], 0, &item, 1, NULL) != 0)
        return "begin";
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct kvw_view view;
        if (update(world, layer, item.row, item.n, number(call, "version")) != 0)
            return "update";
        if (kvw_get(world->seat[0], 0, (struct kvw_layer){layer}, KVW_STAGED, &view) !=
            0)
            return "get";
        if (!compare(world, layer, json_object_get(call, "seen"), &view))
            return "other rows are shown";
        if (kvw_release(world->seat[0], &view) != 0)
            return "release";
    }
    if (is_last && kvw_commit(world->seat[0], 0, NULL, 0) != 0)
        return "commit";
    return NULL;
}

static uint32_t replay_trace(const json_t *trace, uint32_t *n_failed)
{
    const json_t *calls = json_object_get(trace, "calls");
    const char *id = json_string_value(json_object_get(trace, "id"));
    struct kvw_geometry geometry;
    struct kvw_refusal refusal;
    struct world world;
    uint32_t n_right = 0;

    make_geometry(trace, &geometry);
    if (geometry_check(&geometry, &refusal) != 0 ||
        world_init(&world, &geometry) != 0 || world_attach(&world, 0) != 0) {
        printf("%s: no cache\n", id);
        *n_failed += 1;
        return 0;
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        const json_t *next = json_array_get(calls, i + 1);
        bool is_last = next == NULL || number(next, "at") != number(call, "at");
        const char *failure = replay(&world, call, is_last);
        if (failure != NULL) {
            printf("%s: call %zu: %s (%s)\n", id, i, failure, kvw_last_error());
            *n_failed += 1;
            break;
        }
        n_right++;
    }
    world_fini(&world);
    return n_right;
}

int main(void)
{
    const char *source = getenv("KVW_SOURCE");
    char path[4096];
    json_error_t error;
    uint32_t n_right = 0;
    uint32_t n_failed = 0;

    (void)snprintf(path, sizeof path, "%s/tests/data/window-traces.json",
                   source != NULL ? source : ".");
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL) {
        printf("%s: %s\n", path, error.text);
        return 1;
    }
    const json_t *traces = json_object_get(root, "traces");
    for (size_t i = 0; i < json_array_size(traces); i++)
        n_right += replay_trace(json_array_get(traces, i), &n_failed);
    printf("%zu traces, %u of %u calls show what was seen\n", json_array_size(traces),
           n_right, CALLS);
    json_decref(root);
    return n_failed == 0 && n_right == CALLS ? 0 : 1;
}
