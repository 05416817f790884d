/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of 33 layers in two groups: begin, commit and abort, each call timed by itself,
 * with the rows of all layers copied in between. And waits for what has happened. Their
 * floors: the one store or load without which nobody would learn of it.
 */
#include "bench/local.h"

#include <stdatomic.h>

#define CHUNKS_PER_ROUND 8

static int time_begin(void *context, struct bench_samples *samples)
{
    struct local *local = context;
    int error = 0;

    for (int i = 0; i < CHUNKS_PER_ROUND && error == 0; i++) {
        uint64_t begun = bench_now_ns();
        error = local_begin(local);
        bench_add(samples, bench_now_ns() - begun, 1);
        if (error == 0)
            error = local_write(local, 0);
        if (error == 0)
            error = local_commit(local);
    }
    return error;
}

static int time_commit(void *context, struct bench_samples *samples)
{
    struct local *local = context;
    int error = 0;

    for (int i = 0; i < CHUNKS_PER_ROUND && error == 0; i++) {
        error = local_begin(local);
        if (error == 0)
            error = local_write(local, 0);
        uint64_t begun = bench_now_ns();
        if (error == 0)
            error = local_commit(local);
        bench_add(samples, bench_now_ns() - begun, 1);
    }
    return error;
}

static int time_commit_summed(void *context, struct bench_samples *samples)
{
    struct local *local = context;

    local_swap(local);
    int error = time_commit(local, samples);
    local_swap(local);
    return error;
}

static int time_abort(void *context, struct bench_samples *samples)
{
    struct local *local = context;
    int error = 0;

    for (int i = 0; i < CHUNKS_PER_ROUND && error == 0; i++) {
        error = local_begin(local);
        if (error == 0)
            error = local_write(local, 0);
        uint64_t begun = bench_now_ns();
        if (error == 0)
            error = kvw_abort(local->writer, 0);
        bench_add(samples, bench_now_ns() - begun, 1);
    }
    return error;
}

static int store(void *context, uint64_t n_calls)
{
    _Atomic uint64_t *word = context;

    for (uint64_t i = 0; i < n_calls; i++)
        atomic_store_explicit(word, i, memory_order_release);
    return 0;
}

static int load(void *context, uint64_t n_calls)
{
    _Atomic uint64_t *word = context;

    for (uint64_t i = 0; i < n_calls; i++)
        bench_touch(&(uint64_t){atomic_load_explicit(word, memory_order_acquire)});
    return 0;
}

static int wait_for_step(void *context, uint64_t n_calls)
{
    const struct local *local = context;
    int error = 0;

    for (uint64_t i = 0; i < n_calls && error == 0; i++)
        error = kvw_wait_step(local->reader, 0, 0, 1, KVW_NO_TIMEOUT);
    return error;
}

static int wait_for_rows(void *context, uint64_t n_calls)
{
    const struct local *local = context;
    int error = 0;

    for (uint64_t i = 0; i < n_calls && error == 0; i++)
        error = kvw_wait_rows(local->reader, 0, KVW_ALL_RANKS, 0, 1, KVW_NO_TIMEOUT);
    return error;
}

int local_step(struct local *local)
{
    _Atomic uint64_t word = 0;
    const struct bench_variant steps[] = {
        {"begin", {"release store"}, NULL, time_begin, 1, local},
        {"commit", {"release store"}, NULL, time_commit, 1, local},
        {"commit, checksums", {"commit"}, NULL, time_commit_summed, 1, local},
        {"abort", {"release store"}, NULL, time_abort, 1, local},
        {"release store", {NULL}, store, NULL, 0, &word},
    };
    const struct bench_variant waits[] = {
        {"wait for a step", {"acquire load"}, wait_for_step, NULL, 0, local},
        {"wait for rows, all ranks", {"acquire load"}, wait_for_rows, NULL, 0, local},
        {"acquire load", {NULL}, load, NULL, 0, &word},
    };

    int error = bench_compare(local->bench, "step of 33 layers", steps, 5);
    if (error == 0)
        error = bench_compare(local->bench, "wait that is already true", waits, 3);
    return error;
}
