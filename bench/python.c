/* SPDX-License-Identifier: Apache-2.0 */
/* See python.h: the two cases. */
#include "bench/python.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/local.h"

#define CALLS_PER_ROUND 64u
#define ROLLS_PER_ROUND 1u

/* ------------------------------------------------------------ python ----------- */

/* What a row costs from C: update, get and release in each layer. */
static int run_c(void *context, struct bench_samples *samples)
{
    struct local *local = context;
    struct kvw_view view;
    int error = 0;

    for (uint32_t n = 0; n < CALLS_PER_ROUND && error == 0; n += LOCAL_LAYERS) {
        error = local_begin(local);
        if (error == 0)
            error = local_write(local, LOCAL_LAYERS);
        for (uint32_t i = 0; i < LOCAL_LAYERS && error == 0; i++) {
            const struct kvw_layer layer = {i};
            uint64_t begun = bench_now_ns();
            error = kvw_update(local->writer, 0, layer, 0, 1, local->sources);
            if (error == 0)
                error = kvw_get(local->writer, 0, layer, KVW_STAGED, &view);
            if (error == 0)
                error = kvw_release(local->writer, &view);
            bench_add(samples, bench_now_ns() - begun, 1);
        }
        if (error == 0)
            error = local_commit(local);
    }
    return error;
}

static int run_calls(void *context, struct bench_samples *samples)
{
    return python_sample(context, CALLS_PER_ROUND, samples);
}

static const char of_c[] = "update + get + release, C";

static int compare_calls(struct local *local, struct python *python)
{
    struct bench_variant variants[1 + PYTHON_VARIANTS_MAX] = {
        {.name = of_c, .each = run_c, .context = local}};

    for (uint32_t i = 0; i < python->n_variants; i++)
        variants[1 + i] = (struct bench_variant){.name = python->variant[i].name,
                                                 .floor = {of_c},
                                                 .each = run_calls,
                                                 .context = &python->variant[i]};
    return bench_compare(local->bench, "a row of 16 KiB in a layer", variants,
                         1 + python->n_variants);
}

int python_run(struct bench *bench)
{
    struct kvw_client *client = NULL;
    struct local local;
    struct python python;
    static const char *const names[] = {"update + get + release, Python",
                                        "update + get + release, Python, torch", NULL};

    int error = python_start(bench, &python, "python", names);
    if (error == 0)
        error = bench_connect(bench, &client);
    if (error == 0) {
        error = local_open(&local, bench, client);
        if (error == 0)
            error = compare_calls(&local, &python);
        local_close(&local);
        if (error != 0)
            error = bench_fail("python", error);
    }
    python_stop(&python);
    kvw_disconnect(client);
    return error;
}

/* -------------------------------------------------------------- roll ----------- */

static int run_roll(void *context, struct bench_samples *samples)
{
    return python_sample(context, ROLLS_PER_ROUND, samples);
}

int roll_run(struct bench *bench)
{
    struct bench_variant variants[PYTHON_VARIANTS_MAX];
    struct python python;
    static const char *const names[] = {"kvwheel, update",
                                        "kvwheel, written in place",
                                        "torch, clone + slice assignment, 1 thread",
                                        "torch, clone + slice assignment, 2 threads",
                                        "torch.cat, 1 thread",
                                        "torch.cat, 2 threads",
                                        "torch, through a kept buffer, 1 thread",
                                        "torch, through a kept buffer, 2 threads",
                                        NULL};

    int error = python_start(bench, &python, "roll", names);
    /* kvwheel's own is the first: what others cost is told beside it. */
    for (uint32_t i = 0; i < python.n_variants; i++)
        variants[i] =
            (struct bench_variant){.name = python.variant[i].name,
                                   .floor = {i == 0 ? NULL : python.variant[0].name},
                                   .each = run_roll,
                                   .context = &python.variant[i]};
    if (error == 0) {
        error = bench_compare(bench,
                              "a chunk of 3 frames into a window of 21, one layer of "
                              "Self-Forcing 1.3B",
                              variants, python.n_variants);
        if (error != 0)
            error = bench_fail("roll", error);
    }
    python_stop(&python);
    return error;
}
