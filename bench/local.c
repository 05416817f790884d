/* SPDX-License-Identifier: Apache-2.0 */
/* See local.h. */
#include "bench/local.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int local_begin(struct local *local)
{
    const struct kvw_item items[2] = {{.group = 0, .row = local->rows, .n = 1},
                                      {.group = 1, .row = local->rows, .n = 1}};

    return kvw_begin(local->writer, 0, items, 2, NULL);
}

int local_write(struct local *local, uint32_t first)
{
    const struct kvw_source ids = {&local->ids, sizeof local->ids, sizeof local->ids};
    int error =
        kvw_update(local->writer, 0, (struct kvw_layer){LOCAL_LAYERS}, 0, 1, &ids);

    for (uint32_t layer = first; layer < LOCAL_LAYERS && error == 0; layer++)
        error = kvw_update(local->writer, 0, (struct kvw_layer){layer}, 0, 1,
                           local->sources);
    return error;
}

int local_commit(struct local *local)
{
    int error = kvw_commit(local->writer, 0, NULL, 0);

    if (error == 0)
        local->rows++;
    return error;
}

void local_swap(struct local *local)
{
    struct kvw_cache *writer = local->writer;
    const uint64_t rows = local->rows;

    local->writer = local->summed;
    local->rows = local->summed_rows;
    local->summed = writer;
    local->summed_rows = rows;
}

/* A 32-layer language model whose K and V are bf16, and its tokens. */
static int make_spec(struct kvw_spec *spec, bool has_checksums)
{
    char name[64];

    (void)snprintf(name, sizeof name, "bench-%s-%ld", has_checksums ? "sums" : "local",
                   (long)getpid());
    kvw_spec_init(spec, name);
    spec->has_checksums = has_checksums;
    struct kvw_spec_group *self = kvw_spec_add_group(spec, "self", LOCAL_LAYERS, NULL);
    struct kvw_spec_group *ids = kvw_spec_add_group(spec, "ids", 1, NULL);
    if (self == NULL || ids == NULL)
        return -EINVAL;
    self->n_heads = LOCAL_HEADS;
    self->window_kind = KVW_WINDOW_ROW;
    ids->window_kind = KVW_WINDOW_ROW;
    self->window_rows = ids->window_rows = LOCAL_WINDOW_ROWS;
    self->sink_rows = ids->sink_rows = 4;
    self->chunk_rows_max = ids->chunk_rows_max = 1;
    self->slack_chunks = ids->slack_chunks = LOCAL_RING_ROWS - LOCAL_WINDOW_ROWS;
    if (kvw_spec_add_plane(self, "k", KVW_BF16, LOCAL_HEAD_DIM) == NULL ||
        kvw_spec_add_plane(self, "v", KVW_BF16, LOCAL_HEAD_DIM) == NULL ||
        kvw_spec_add_plane(ids, "ids", KVW_U32, 1) == NULL)
        return -EINVAL;
    return 0;
}

static int open_caches(struct local *local)
{
    struct kvw_spec spec;
    const int64_t head_bytes = LOCAL_HEAD_DIM * 2;

    local->row = calloc(2, LOCAL_PLANE_BYTES);
    if (local->row == NULL)
        return -ENOMEM;
    memset(local->row, 1, 2 * LOCAL_PLANE_BYTES);
    for (size_t plane = 0; plane < 2; plane++)
        local->sources[plane] = (struct kvw_source){
            local->row + plane * LOCAL_PLANE_BYTES, LOCAL_PLANE_BYTES, head_bytes};
    int error = make_spec(&spec, false);
    if (error == 0)
        error = kvw_create(local->client, &spec, NULL, NULL);
    if (error >= 0)
        error = kvw_attach(local->client, spec.name, 0, NULL, &local->writer);
    if (error == 0)
        error = kvw_attach(local->client, spec.name, KVW_READER, NULL, &local->reader);
    if (error == 0)
        error = make_spec(&spec, true);
    if (error == 0)
        error = kvw_create(local->client, &spec, NULL, NULL);
    if (error >= 0)
        error = kvw_attach(local->client, spec.name, 0, NULL, &local->summed);
    return error;
}

/* The whole ring once round and more: every page is mapped, the window is full. */
static int fill(struct local *local)
{
    int error = 0;

    for (uint32_t i = 0; i < 2 * LOCAL_RING_ROWS && error == 0; i++) {
        error = local_begin(local);
        if (error == 0)
            error = local_write(local, 0);
        if (error == 0)
            error = local_commit(local);
    }
    return error;
}

int local_open(struct local *local, struct bench *bench, struct kvw_client *client)
{
    *local = (struct local){.bench = bench, .client = client};
    int error = open_caches(local);
    if (error == 0)
        error = fill(local);
    local_swap(local);
    if (error == 0)
        error = fill(local);
    local_swap(local);
    return error;
}

void local_close(struct local *local)
{
    kvw_detach(local->reader);
    kvw_detach(local->writer); /* the last attachment: the cache goes with it */
    kvw_detach(local->summed);
    free(local->row);
}

static int run_parts(struct bench *bench, struct kvw_client *client)
{
    struct local local;

    int error = local_open(&local, bench, client);
    if (error == 0)
        error = local_update(&local);
    if (error == 0)
        error = local_view(&local);
    if (error == 0)
        error = local_step(&local);
    local_close(&local);
    return error;
}

int local_run(struct bench *bench)
{
    struct kvw_client *client = NULL;
    struct echo *echo = echo_new();
    struct waker *waker = waker_new(bench);
    int error = echo == NULL || waker == NULL ? bench_fail("local: fork", -ENOMEM) : 0;

    if (error == 0)
        error = bench_connect(bench, &client);
    if (error == 0) {
        error = local_attach(bench, client, echo);
        if (error == 0)
            error = run_parts(bench, client);
        if (error == 0)
            error = local_wake(bench, client, waker);
        if (error != 0)
            error = bench_fail("local", error);
    }
    kvw_disconnect(client);
    waker_free(waker);
    echo_free(echo);
    return error;
}
