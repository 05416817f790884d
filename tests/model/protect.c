/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proof that rolling moves no row: every committed row lies on pages of its own, which
 * are made read-only, so that one stray store into them is a signal. They stay so
 * through begin, commit, truncate, evict, reset of a layer, get and release, over more
 * than three windows; a row's pages are writable only between the begin that declares
 * its slot free and the commit that follows.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/model/world.h"

enum {
    LAYERS = 2,
    HEADS = 2,
    PLANES = 2,
    SINK = 2,
    WINDOW = 9,
    CHUNK = 3,
    SLACK = 2,
    RING = WINDOW - SINK + SLACK * CHUNK,
};

struct run {
    struct world world;
    uint64_t rows;    /* committed */
    uint64_t evicted; /* below which only the sink is shown */
    uint64_t n_views;
    uint64_t n_protected; /* pages, over all times */
};

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    static const char text[] = "protect: a committed row was written (SIGSEGV)\n";
    (void)signal_number;
    (void)info;
    (void)context;
    if (write(STDOUT_FILENO, text, sizeof text - 1) < 0)
        _exit(2);
    _exit(1);
}

static void make_geometry(struct kvw_geometry *geometry)
{
    struct kvw_geometry_group *group = &geometry->group[0];

    world_geometry(geometry, LAYERS, HEADS);
    group->window_rows = WINDOW;
    group->sink_rows = SINK;
    group->chunk_rows_max = CHUNK;
    group->slack_chunks = SLACK;
    group->n_planes = PLANES;
    /* A row of a head fills whole pages. */
    group->plane[0] = (struct kvw_geometry_plane){
        .elems = 1024, .type = KVW_GEOMETRY_F32, .name = "k"};
    group->plane[1] = (struct kvw_geometry_plane){
        .elems = 4096, .type = KVW_GEOMETRY_BF16, .name = "v"};
}

static bool fail(const char *what, int error)
{
    printf("protect: %s -> %d (%s)\n", what, error, kvw_last_error());
    return false;
}

static uint64_t slot_of(uint64_t row)
{
    return row < SINK ? row : SINK + (row - SINK) % RING;
}

static bool protect_rows(struct run *run, uint64_t row, uint64_t end, int protection)
{
    for (; row < end; row++) {
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            for (uint32_t p = 0; p < PLANES; p++) {
                uint64_t bytes = run->world.layout.group[0].plane[p].row_bytes;
                for (uint32_t head = 0; head < HEADS; head++) {
                    char *at = world_row(&run->world, layer, p, 0, head, slot_of(row));
                    if (mprotect(at, bytes, protection) != 0)
                        return fail("mprotect", -errno);
                    run->n_protected += protection == PROT_READ;
                }
            }
        }
    }
    return true;
}

static uint64_t stamp_of(uint64_t row, uint32_t layer)
{
    return world_mix(row, layer, 99);
}

static bool write_rows(struct run *run, uint64_t n_rows, bool is_slots)
{
    const struct kvw_geometry_group *group = &run->world.geometry.group[0];
    static char data[PLANES][CHUNK * HEADS * 8192];

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct kvw_source source[PLANES];
        struct kvw_slots slots;
        struct kvw_cache *cache = run->world.seat[0];
        const struct kvw_layer at = {layer};
        if (is_slots) {
            int error = kvw_slots(cache, 0, at, 0, n_rows, &slots);
            if (error != 0)
                return fail("slots", error);
        }
        for (uint32_t p = 0; p < PLANES; p++) {
            int64_t bytes = (int64_t)run->world.layout.group[0].plane[p].row_bytes;
            source[p] = (struct kvw_source){data[p], HEADS * bytes, bytes};
            for (uint64_t row = 0; row < n_rows; row++) {
                for (uint32_t head = 0; head < HEADS; head++) {
                    char *to = data[p] + ((int64_t)row * HEADS + head) * bytes;
                    if (is_slots)
                        to = world_row(&run->world, layer, p, 0, head,
                                       slot_of(run->rows + row));
                    world_fill(to, &group->plane[p], p, head,
                               stamp_of(run->rows + row, layer));
                }
            }
        }
        int error = is_slots ? kvw_written(cache, 0, at, 0, n_rows)
                             : kvw_update(cache, 0, at, 0, n_rows, source);
        if (error != 0)
            return fail("update", error);
    }
    return true;
}

static bool look(struct run *run, uint32_t flags)
{
    const struct kvw_geometry_group *group = &run->world.geometry.group[0];

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct kvw_view view;
        int error =
            kvw_get(run->world.seat[0], 0, (struct kvw_layer){layer}, flags, &view);
        if (error != 0)
            return fail("get", error);
        for (uint32_t i = 0; i < view.n_pieces; i++) {
            for (uint32_t p = 0; p < PLANES; p++) {
                const char *at = kvw_piece_at(&view.plane[p], &view.piece[i], 0);
                if (at !=
                    world_row(&run->world, layer, p, 0, 0, slot_of(view.piece[i].row)))
                    return fail("a row has moved", 0);
                if (!world_is_filled(at, &group->plane[p], p, 0,
                                     stamp_of(view.piece[i].row, layer)))
                    return fail("a row has changed", 0);
            }
        }
        error = kvw_release(run->world.seat[0], &view);
        if (error != 0)
            return fail("release", error);
        run->n_views++;
    }
    return true;
}

/* A whole chunk; `n_publish` of its rows are committed. */
static bool add_chunk(struct run *run, uint64_t n_rows, uint64_t n_publish)
{
    const struct kvw_item begin = {.row = run->rows, .n = n_rows};
    const struct kvw_item commit = {.n = n_publish};

    int error = kvw_begin(run->world.seat[0], 0, &begin, 1, NULL);
    if (error != 0)
        return fail("begin", error);
    if (!protect_rows(run, run->rows, run->rows + n_rows, PROT_READ | PROT_WRITE) ||
        !write_rows(run, n_rows, run->rows % 2 == 0) || !look(run, KVW_STAGED))
        return false;
    error = n_publish == n_rows ? kvw_commit(run->world.seat[0], 0, NULL, 0)
                                : kvw_commit(run->world.seat[0], 0, &commit, 1);
    if (error != 0)
        return fail("commit", error);
    run->rows += n_publish;
    return protect_rows(run, run->rows - n_publish, run->rows, PROT_READ) &&
           look(run, KVW_COMMITTED) && look(run, KVW_COMMITTED | KVW_UNPINNED);
}

static bool go_back(struct run *run, uint64_t n_rows)
{
    uint64_t lowest;
    int error = kvw_lowest(run->world.seat[0], 0, 0, &lowest);

    if (error != 0)
        return fail("lowest", error);
    const struct kvw_item item = {.row = run->rows - n_rows};
    if (n_rows > run->rows || item.row < lowest)
        return true;
    error = kvw_truncate(run->world.seat[0], 0, &item, 1);
    if (error != 0)
        return fail("truncate", error);
    run->rows = item.row;
    return look(run, KVW_COMMITTED);
}

static bool play(struct run *run)
{
    uint64_t n_truncated = 0;

    for (uint32_t i = 0; run->rows < 4 * WINDOW + SINK; i++) {
        uint64_t n_rows = i % 4 == 1 ? 1 : CHUNK;
        uint64_t rows = run->rows;
        if (!add_chunk(run, n_rows, i % 5 == 2 && n_rows > 1 ? n_rows - 1 : n_rows))
            return false;
        if (i % 3 == 2) {
            rows = run->rows;
            if (!go_back(run, 1))
                return false;
            n_truncated += rows - run->rows;
        }
        if (i == 12) {
            const struct kvw_item item = {.row = run->rows - 2};
            int error = kvw_evict(run->world.seat[0], 0, &item, 1);
            if (error != 0 || !look(run, KVW_COMMITTED))
                return fail("evict", error);
        }
        if (i == 14) {
            int error = kvw_reset_layer(run->world.seat[0], 0, (struct kvw_layer){1});
            if (error != 0 || !look(run, KVW_COMMITTED))
                return fail("reset_layer", error);
        }
    }
    printf("%" PRIu64 " rows committed (window %d), %" PRIu64 " taken back, %" PRIu64
           " views, %" PRIu64 " protections, no row was written or moved\n",
           run->rows, WINDOW, n_truncated, run->n_views, run->n_protected);
    return n_truncated > 0;
}

int main(void)
{
    static struct run run;
    struct kvw_geometry geometry;
    struct kvw_refusal refusal;
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};

    if (sysconf(_SC_PAGESIZE) != 4096) {
        printf("pages are not 4096 bytes: not checked\n");
        return 77;
    }
    make_geometry(&geometry);
    if (geometry_check(&geometry, &refusal) != 0 ||
        world_init(&run.world, &geometry) != 0 || world_attach(&run.world, 0) != 0)
        return 1;
    if (sigaction(SIGSEGV, &action, NULL) != 0)
        return 1;
    bool is_ok = play(&run);
    if (mprotect(run.world.data, run.world.layout.data_bytes, PROT_READ | PROT_WRITE) !=
        0)
        return 1;
    world_fini(&run.world);
    return is_ok ? 0 : 1;
}
