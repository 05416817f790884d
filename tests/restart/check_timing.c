/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a node is without a daemon: from kill -9 to the answer of the next one, with
 * a cache of 1 GiB and a worker that rolls another one meanwhile. A keeper starts five
 * daemons at once and then waits, so there are five kills to a keeper.
 *
 * The bound is for a machine that has a processor for us. Before each kill a busy loop
 * measures how many times longer than its processor time anything takes just now; the
 * median of these is how far the bound is stretched. A sanitizer build only prints.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/cache.h"
#include "tests/restart/stage.h"

#define N_STAGES 5
#define N_KILLS 5
#define N_ALL (N_STAGES * N_KILLS)
#define BOUND_NS 100000000ull
#define BUSY_NS 4000000ull /* of processor time */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED true
#else
#define IS_SANITIZED false
#endif

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;

    cr_assert_eq(clock_gettime(clock, &now), 0);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* @return nanoseconds that BUSY_NS of work take now. */
static uint64_t busy_ns(void)
{
    const uint64_t begin_ns = clock_ns(CLOCK_MONOTONIC);
    const uint64_t end_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) + BUSY_NS;

    while (clock_ns(CLOCK_PROCESS_CPUTIME_ID) < end_ns)
        continue;
    return clock_ns(CLOCK_MONOTONIC) - begin_ns;
}

static int compare(const void *a, const void *b)
{
    const uint64_t *x = a;
    const uint64_t *y = b;

    return *x < *y ? -1 : *x > *y;
}

static int create_large(struct stage *stage)
{
    struct kvw_spec spec;

    kvw_spec_init(&spec, "large");
    struct kvw_spec_group *group = kvw_spec_add_group(&spec, "self", 16, NULL);
    group->n_heads = 8;
    group->window_rows = 8192 - 64;
    group->chunk_rows_max = 64;
    cr_assert_not_null(kvw_spec_add_plane(group, "k", KVW_F32, 128));
    cr_assert_not_null(kvw_spec_add_plane(group, "v", KVW_F32, 128));
    return kvw_create(stage->node.client, &spec, NULL, NULL);
}

/* @return nanoseconds until another daemon says that the cache is there. */
static uint64_t kill_once(struct stage *stage, uint64_t n_bytes)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STAT, .stat = {.name = "large"}};
    struct kvw_message answer;
    struct kvw_client *client;
    pid_t pid = node_daemon_pid(&stage->node);
    uint64_t begin_ns = stage_now_ns();

    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_assert_eq(client_open(stage->node.socket, false, &client), 0, "%s",
                 kvw_last_error());
    cr_assert_eq(client_call(client, &request, &answer, NULL, 0, NULL, NULL), 0, "%s",
                 kvw_last_error());
    uint64_t took_ns = stage_now_ns() - begin_ns;
    cr_assert_neq((pid_t)client->daemon_pid, pid);
    cr_assert_geq(answer.stated.data_bytes, n_bytes);
    kvw_disconnect(client);
    return took_ns;
}

Test(timing, of_a_killed_daemon_with_a_gibibyte, .timeout = 150)
{
    uint64_t took_ns[N_ALL];
    uint64_t load_ns[N_ALL];
    uint64_t longest_ns = 0;

    for (int s = 0; s < N_STAGES; s++) {
        struct stage stage;
        struct roller roller;
        struct kvw_spec spec;
        struct kvw_cache *cache;
        stage_start(&stage);
        int error = create_large(&stage);
        if (error == -ENOMEM || error == -EDQUOT) {
            stage_stop(&stage);
            cr_skip_test("needs 1 GiB of memory");
        }
        cr_assert_eq(error, 0, "%s", kvw_last_error());
        cr_assert_eq(kvw_attach(stage.node.client, "large", 0, NULL, &cache), 0);
        node_spec(&spec, "c", 1);
        cr_assert_eq(kvw_create(stage.node.client, &spec, NULL, NULL), 0);
        roller_start(&roller, stage.node.socket, "c", 0);
        for (int k = s * N_KILLS; k < (s + 1) * N_KILLS; k++) {
            load_ns[k] = busy_ns();
            took_ns[k] = kill_once(&stage, 1ull << 30);
        }
        roller_await(&roller, 10);
        if (roller.words->longest_ns > longest_ns)
            longest_ns = roller.words->longest_ns;
        roller_end(&roller);
        kvw_detach(cache);
        stage_stop(&stage);
    }
    qsort(took_ns, N_ALL, sizeof took_ns[0], compare);
    qsort(load_ns, N_ALL, sizeof load_ns[0], compare);
    const uint64_t slower_ns =
        load_ns[N_ALL / 2] > BUSY_NS ? load_ns[N_ALL / 2] : BUSY_NS;
    const uint64_t bound_ns = BOUND_NS / BUSY_NS * slower_ns;

    fprintf(stderr,
            "kill -9 to serving, 1 GiB, %d kills: median %.1f ms, max %.1f ms; longest "
            "chunk of the worker meanwhile %.2f ms; bound %.1f ms\n",
            N_ALL, (double)took_ns[N_ALL / 2] / 1e6, (double)took_ns[N_ALL - 1] / 1e6,
            (double)longest_ns / 1e6, (double)bound_ns / 1e6);
    if (!IS_SANITIZED)
        cr_assert_leq(took_ns[N_ALL - 1], bound_ns);
}
