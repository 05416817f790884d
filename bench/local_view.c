/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Get and release of views: one of each layer is taken, then all are released, and
 * either half is timed. A chunk is open all the while, with all its rows written. The
 * floor of a get is what no protocol with pins can do without: a full fence and a look
 * at what the writer claims.
 */
#include "bench/local.h"

#include <stdatomic.h>

struct viewing {
    struct kvw_cache *cache;
    uint32_t flags;
    bool is_release; /* release is timed, else get */
    struct kvw_view *views;
};

static int take_views(const struct viewing *viewing)
{
    int error = 0;

    for (uint32_t layer = 0; layer < LOCAL_LAYERS && error == 0; layer++)
        error = kvw_get(viewing->cache, 0, (struct kvw_layer){layer}, viewing->flags,
                        &viewing->views[layer]);
    return error;
}

static int end_views(const struct viewing *viewing)
{
    int error = 0;

    for (uint32_t layer = 0; layer < LOCAL_LAYERS && error == 0; layer++)
        error = kvw_release(viewing->cache, &viewing->views[layer]);
    return error;
}

static int time_views(void *context, struct bench_samples *samples)
{
    const struct viewing *viewing = context;
    int error = 0;

    for (int i = 0; i < 4 && error == 0; i++) {
        uint64_t begun = bench_now_ns();
        error = take_views(viewing);
        uint64_t taken = bench_now_ns();
        if (error == 0)
            error = end_views(viewing);
        uint64_t ended = bench_now_ns();
        bench_add(samples, viewing->is_release ? ended - taken : taken - begun,
                  LOCAL_LAYERS);
    }
    return error;
}

static int fence_and_load(void *context, uint64_t n_calls)
{
    _Atomic uint64_t *words = context;

    for (uint64_t i = 0; i < n_calls; i++) {
        atomic_store_explicit(&words[0], i, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        bench_touch(&(uint64_t){atomic_load_explicit(&words[8], memory_order_acquire)});
    }
    return 0;
}

static int compare(const struct local *local, struct kvw_view *views)
{
    static const char floor[] = "store, fence, load";
    _Atomic uint64_t words[16] = {0};
    struct viewing committed = {local->writer, KVW_COMMITTED, false, views};
    struct viewing staged = {local->writer, KVW_STAGED, false, views};
    struct viewing unpinned = {local->writer, KVW_UNPINNED, false, views};
    struct viewing of_reader = {local->reader, KVW_COMMITTED, false, views};
    struct viewing release = {local->writer, KVW_COMMITTED, true, views};
    struct viewing release_unpinned = {local->writer, KVW_UNPINNED, true, views};
    struct viewing release_of_reader = {local->reader, KVW_COMMITTED, true, views};
    const struct bench_variant variants[] = {
        {"get, committed", {floor}, NULL, time_views, LOCAL_LAYERS, &committed},
        {"get, staged", {floor}, NULL, time_views, LOCAL_LAYERS, &staged},
        {"get, unpinned", {floor}, NULL, time_views, LOCAL_LAYERS, &unpinned},
        {"get, of a reader", {floor}, NULL, time_views, LOCAL_LAYERS, &of_reader},
        {"release", {floor}, NULL, time_views, LOCAL_LAYERS, &release},
        {"release, unpinned",
         {floor},
         NULL,
         time_views,
         LOCAL_LAYERS,
         &release_unpinned},
        {"release, of a reader",
         {floor},
         NULL,
         time_views,
         LOCAL_LAYERS,
         &release_of_reader},
        {floor, {NULL}, fence_and_load, NULL, 0, words},
    };

    return bench_compare(local->bench, "view of a layer", variants,
                         sizeof variants / sizeof variants[0]);
}

int local_view(struct local *local)
{
    struct kvw_view views[LOCAL_LAYERS] = {0};

    int error = local_begin(local);
    if (error == 0)
        error = local_write(local, 0);
    if (error == 0)
        error = compare(local, views);
    return error == 0 ? kvw_abort(local->writer, 0) : error;
}
