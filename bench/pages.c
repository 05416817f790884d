/* SPDX-License-Identifier: Apache-2.0 */
/* Each round attaches anew: a page table that is filled already has no faults. */
#include "bench/pages.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <kvwheel/kernels.h>
#include <kvwheel/kvwheel.h>

#define LAYERS 22u
#define HEADS 8u
#define DIM 128u
#define ROWS 2560u /* 10 MiB of K and V in each layer */
#define CHUNK 256u
#define SMALL 4096u
#define N_KINDS 3u

static const char *const kinds[N_KINDS] = {"4 KiB pages", "huge pages (thp)",
                                           "huge pages (2M)"};

struct kind {
    struct kvw_client *client;
    char name[64];
    struct kvw_cache *cache; /* keeps it alive, and attends */
    uint64_t n_faults;       /* of the last attach and first read */
    uint64_t n_bytes;        /* looked at in it */
    bool is_there;
    float *q;
    float *out;
};

struct pages {
    struct kvw_client *client;
    struct kind kind[N_KINDS];
    float q[HEADS * DIM];
    float out[HEADS * DIM];
    char *rows; /* of a chunk: K and V */
};

static uint64_t count_faults(void)
{
    struct rusage usage;

    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_minflt : 0;
}

/* ---------------------------------------------------------------- caches --------- */

static int create(struct kvw_client *client, struct kind *kind, uint32_t pages)
{
    struct kvw_spec spec;

    kvw_spec_init(&spec, kind->name);
    struct kvw_spec_group *group = kvw_spec_add_group(&spec, "self", LAYERS, NULL);
    group->n_heads = HEADS;
    group->window_rows = ROWS - CHUNK;
    group->chunk_rows_max = CHUNK;
    group->window_kind = KVW_WINDOW_ROW;
    spec.pages = pages;
    if (kvw_spec_add_plane(group, "k", KVW_BF16, DIM) == NULL ||
        kvw_spec_add_plane(group, "v", KVW_BF16, DIM) == NULL)
        return bench_fail("spec", -EINVAL);
    int result = kvw_create(client, &spec, NULL, NULL);
    if (result >= 0)
        result = kvw_attach(client, kind->name, 0, NULL, &kind->cache);
    return result < 0 ? bench_fail("create", result) : 0;
}

static int fill(struct kind *kind, const char *rows)
{
    const struct kvw_source sources[2] = {
        {.data = rows, .row_bytes = DIM * 2, .head_bytes = CHUNK * DIM * 2},
        {.data = rows, .row_bytes = DIM * 2, .head_bytes = CHUNK * DIM * 2}};
    struct kvw_begun begun;
    int result = 0;

    for (uint64_t row = 0; row + CHUNK <= ROWS && result >= 0; row += CHUNK) {
        const struct kvw_item item = {.group = 0, .row = row, .n = CHUNK};
        result = kvw_begin(kind->cache, 0, &item, 1, &begun);
        for (uint32_t layer = 0; layer < LAYERS && result >= 0; layer++)
            result = kvw_update(kind->cache, 0, (struct kvw_layer){layer}, 0, CHUNK,
                                sources);
        if (result >= 0)
            result = kvw_commit(kind->cache, 0, NULL, 0);
    }
    return result < 0 ? bench_fail("fill", result) : 0;
}

/* ---------------------------------------------------------------- looks ---------- */

/* One element of each small page of a committed view. */
static uint64_t look_at(const struct kvw_view *view)
{
    uint64_t n_bytes = 0;

    for (uint32_t p = 0; p < view->n_planes; p++) {
        const struct kvw_plane *plane = &view->plane[p];
        for (uint32_t i = 0; i < view->n_pieces; i++) {
            const uint64_t bytes = view->piece[i].n_rows * plane->row_bytes;
            for (uint32_t h = 0; h < view->n_heads; h++) {
                const char *at = plane->base + h * plane->head_bytes +
                                 view->piece[i].slot * plane->row_bytes;
                for (uint64_t b = 0; b < bytes; b += SMALL)
                    bench_touch((const void *)(uintptr_t)at[b]);
                n_bytes += bytes;
            }
        }
    }
    return n_bytes;
}

static int attach_and_look(void *context, struct bench_samples *samples)
{
    struct kind *kind = context;
    struct kvw_cache *reader = NULL;
    static struct kvw_view view;
    uint64_t n_bytes = 0;

    const uint64_t faults = count_faults();
    const uint64_t begun_ns = bench_now_ns();
    int result = kvw_attach(kind->client, kind->name, KVW_READER, NULL, &reader);
    for (uint32_t layer = 0; layer < LAYERS && result >= 0; layer++) {
        result = kvw_cut(reader, 0, (struct kvw_layer){layer}, 1, 0, &view);
        if (result < 0)
            break;
        n_bytes += look_at(&view);
        result = kvw_release(reader, &view);
    }
    bench_add(samples, bench_now_ns() - begun_ns, 1);
    kind->n_faults = count_faults() - faults;
    kind->n_bytes = n_bytes;
    kvw_detach(reader);
    return result < 0 ? bench_fail("attach and look", result) : 0;
}

/* A token's attention over all rows of all layers. */
static int decode(void *context, struct bench_samples *samples)
{
    struct kind *kind = context;
    static struct kvw_view view;
    struct kvw_attn_piece piece[4];
    int result = 0;

    const uint64_t begun_ns = bench_now_ns();
    for (uint32_t layer = 0; layer < LAYERS && result >= 0; layer++) {
        result = kvw_get(kind->cache, 0, (struct kvw_layer){layer}, 0, &view);
        if (result < 0 || view.n_pieces > 4)
            break;
        for (uint32_t i = 0; i < view.n_pieces; i++)
            piece[i] = (struct kvw_attn_piece){
                .k = view.plane[0].base + view.piece[i].slot * view.plane[0].row_bytes,
                .v = view.plane[1].base + view.piece[i].slot * view.plane[1].row_bytes,
                .k_row_stride = (ptrdiff_t)view.plane[0].row_bytes,
                .k_head_stride = (ptrdiff_t)view.plane[0].head_bytes,
                .v_row_stride = (ptrdiff_t)view.plane[1].row_bytes,
                .v_head_stride = (ptrdiff_t)view.plane[1].head_bytes,
                .n_rows = view.piece[i].n_rows,
                .first_row = view.piece[i].row,
                .pos_base = view.piece[i].position,
            };
        const struct kvw_attn_args args = {
            .q = kind->q,
            .q_row_stride = HEADS * DIM * 4,
            .q_head_stride = DIM * 4,
            .n_q = 1,
            .n_q_heads = HEADS,
            .n_kv_heads = HEADS,
            .head_dim_k = DIM,
            .head_dim_v = DIM,
            .kv_type = KVW_NUM_BF16,
            .pieces = piece,
            .n_pieces = view.n_pieces,
            .mask = KVW_ATTN_NONE,
            .scale = 0.088f,
            .out = kind->out,
            .out_row_stride = HEADS * DIM * 4,
            .out_head_stride = DIM * 4,
            .n_threads = 1,
        };
        result = kvw_attn_run(&args);
        if (result >= 0)
            result = kvw_release(kind->cache, &view);
    }
    bench_add(samples, bench_now_ns() - begun_ns, 1);
    return result < 0 ? bench_fail("decode", result) : 0;
}

/* ------------------------------------------------------------------ case --------- */

/* Pages of the pool are measured where the pool has enough of them. */
static bool pool_has_room(void)
{
    unsigned long n_free = 0;
    FILE *file =
        fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "re");

    if (file != NULL) {
        if (fscanf(file, "%lu", &n_free) != 1)
            n_free = 0;
        fclose(file);
    }
    return n_free >= LAYERS * 5 + 1;
}

static int compare(struct bench *bench, struct pages *pages, const char *group,
                   bench_each_fn *each)
{
    struct bench_variant variants[N_KINDS];
    uint32_t n = 0;

    for (uint32_t k = 0; k < N_KINDS; k++) {
        if (!pages->kind[k].is_there)
            continue;
        variants[n++] = (struct bench_variant){.name = kinds[k],
                                               .floor = {k == 0 ? NULL : kinds[0]},
                                               .each = each,
                                               .context = &pages->kind[k]};
    }
    int error = bench_compare(bench, group, variants, n);
    if (error == 0)
        bench_rate(bench, n, (double)pages->kind[0].n_bytes, "GB/s");
    return error;
}

static int prepare(struct pages *pages)
{
    pages->rows = malloc(HEADS * CHUNK * DIM * 2);
    if (pages->rows == NULL)
        return bench_fail("rows", -ENOMEM);
    memset(pages->rows, 0x3c, HEADS * CHUNK * DIM * 2); /* bf16 of some size */
    for (uint32_t i = 0; i < HEADS * DIM; i++)
        pages->q[i] = 0.01f * (float)(i % 13);
    for (uint32_t k = 0; k < N_KINDS; k++) {
        struct kind *kind = &pages->kind[k];
        *kind =
            (struct kind){.client = pages->client, .q = pages->q, .out = pages->out};
        snprintf(kind->name, sizeof kind->name, "bench-pages-%u-%d", k, (int)getpid());
        if (k == 2 && !pool_has_room()) {
            fprintf(stderr,
                    "pages: 2M left out: the pool has less than %u free pages "
                    "of 2 MiB\n",
                    LAYERS * 5 + 1);
            continue;
        }
        int error = create(pages->client, kind, k);
        kind->is_there = error == 0;
        if (error == 0)
            error = fill(kind, pages->rows);
        if (error != 0)
            return error;
    }
    return 0;
}

int pages_run(struct bench *bench)
{
    struct pages *pages = calloc(1, sizeof *pages);

    if (pages == NULL)
        return bench_fail("pages", -ENOMEM);
    int error = bench_connect(bench, &pages->client);
    if (error == 0)
        error = prepare(pages);
    if (error == 0)
        error = compare(bench, pages, "attach and first look at every 4 KiB",
                        attach_and_look);
    for (uint32_t k = 0; k < N_KINDS && error == 0; k++) {
        if (pages->kind[k].is_there)
            fprintf(stderr, "pages: %s: %llu minor faults, attach and first look\n",
                    kinds[k], (unsigned long long)pages->kind[k].n_faults);
    }
    if (error == 0)
        error = compare(bench, pages, "one token's attention over all rows", decode);
    for (uint32_t k = 0; k < N_KINDS; k++)
        kvw_detach(pages->kind[k].cache); /* the cache goes with it: lifetime job */
    kvw_disconnect(pages->client);
    free(pages->rows);
    free(pages);
    return error;
}
