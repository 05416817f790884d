/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to the daemon costs the data path nothing: an honest worker executes the
 * same number of instructions for a round of begin, update, get, release and commit,
 * counted one by one (ptrace), in peace and under attack.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/death/trace.h"
#include "tests/hostile/siege.h"

#define ROUNDS_BEFORE 12 /* three windows: the ring wraps */
#define N_LAYERS 2u
#define CHUNK_ROWS 4u
#define N_HEADS 2u
#define N_ELEMS 16u

static struct siege siege;

static void setup(void)
{
    static const char *const quiet[] = {"--log-level", "error", NULL};

    if (geteuid() != 0)
        cr_skip_test("needs root");
    siege_begin(&siege, quiet);
}

static void teardown(void)
{
    if (geteuid() == 0)
        siege_end(&siege);
}

TestSuite(instructions, .init = setup, .fini = teardown, .timeout = 120);

/* The clock is looked at again when the kernel has just set it, which under single steps is
 * often: here it stands still. (--wrap, see CMakeLists.txt.) */
uint64_t __real_outside_now_ns(clockid_t clock);
uint64_t __wrap_outside_now_ns(clockid_t clock);

static uint64_t standing_ns;

uint64_t __wrap_outside_now_ns(clockid_t clock)
{
    return standing_ns != 0 ? standing_ns : __real_outside_now_ns(clock);
}

static int play_round(struct kvw_cache *cache, uint64_t row)
{
    static float rows[CHUNK_ROWS][N_HEADS][N_ELEMS];
    const struct kvw_source source = {rows, sizeof rows[0], sizeof rows[0][0]};
    const struct kvw_source sources[2] = {source, source};
    const struct kvw_item chunk = {.group = 0, .row = row, .n = CHUNK_ROWS};
    struct kvw_view view;

    int error = kvw_begin(cache, 0, &chunk, 1, NULL);
    for (uint32_t layer = 0; layer < N_LAYERS && error == 0; layer++) {
        error = kvw_update(cache, 0, (struct kvw_layer){layer}, 0, CHUNK_ROWS, sources);
        if (error == 0)
            error = kvw_get(cache, 0, (struct kvw_layer){layer}, KVW_STAGED, &view);
        if (error == 0)
            error = kvw_release(cache, &view);
    }
    return error != 0 ? error : kvw_commit(cache, 0, NULL, 0);
}

static void make_spec(struct kvw_spec *spec)
{
    kvw_spec_init(spec, "counted");
    struct kvw_spec_group *group = kvw_spec_add_group(spec, "self", N_LAYERS, NULL);
    group->n_heads = N_HEADS;
    group->window_rows = 16;
    group->sink_rows = 2;
    group->chunk_rows_max = CHUNK_ROWS;
    if (kvw_spec_add_plane(group, "k", KVW_F32, N_ELEMS) == NULL ||
        kvw_spec_add_plane(group, "v", KVW_F32, N_ELEMS) == NULL)
        _exit(2);
}

/* A worker: everything but the last round is not counted. */
static void work(void *context)
{
    struct kvw_client *client;
    struct kvw_cache *cache;
    struct kvw_spec spec;
    (void)context;

    make_spec(&spec);
    if (client_open(siege.rig.socket, false, &client) != 0 ||
        kvw_create(client, &spec, NULL, NULL) < 0 ||
        kvw_attach(client, "counted", 0, NULL, &cache) != 0)
        _exit(3);
    for (uint64_t i = 0; i < ROUNDS_BEFORE; i++) {
        if (play_round(cache, i * CHUNK_ROWS) != 0)
            _exit(4);
    }
    standing_ns = __real_outside_now_ns(CLOCK_MONOTONIC);
    trace_stop_here();
    _exit(play_round(cache, (uint64_t)ROUNDS_BEFORE * CHUNK_ROWS) != 0);
}

static bool is_gone(void *context)
{
    struct kvw_message answer;
    (void)context;

    return ask_stat(siege.control, "counted", &answer) != 0;
}

static uint64_t count_round(void)
{
    uint64_t n_steps = 0;
    pid_t pid = trace_start(work, NULL);

    if (pid < 0 || !trace_to_stop(pid))
        return 0;
    while (trace_step(pid))
        n_steps++;
    /* A cache of lifetime job ends with its job. */
    return soon(is_gone, NULL) ? n_steps : 0;
}

/* A process that counts once it is told to. Both are forked before anything else, for the
 * place of an object in memory decides how it is copied. */
struct counter {
    int go;
    int result;
};

static struct counter start_counter(void)
{
    int go[2];
    int result[2];
    char byte;

    cr_assert_eq(pipe(go), 0);
    cr_assert_eq(pipe(result), 0);
    if (fork() == 0) {
        close(go[1]);
        siege.control = raw_open(&siege.rig);
        if (read(go[0], &byte, 1) != 1)
            _exit(1);
        const uint64_t count = count_round();
        _exit(write(result[1], &count, sizeof count) != sizeof count);
    }
    close(go[0]);
    close(result[1]);
    return (struct counter){go[1], result[0]};
}

static uint64_t count(struct counter counter)
{
    uint64_t count = 0;

    cr_assert_eq(write(counter.go, "g", 1), 1);
    cr_assert_eq(read(counter.result, &count, sizeof count), sizeof count);
    close(counter.go);
    close(counter.result);
    return count;
}

/* Everything at once: half-open connections, garbage, requests. */
static void attack(const struct siege *of)
{
    struct kvw_message answer;
    struct kvw_message status = {.type = KVW_MESSAGE_STATUS};

    int fd = raw_open(&of->rig);
    for (int i = 0; i < 300; i++)
        (void)raw_connect(of->rig.socket);
    siege_at_work();
    for (;;) {
        (void)raw_call(fd, &status, &answer);
        int other = raw_connect(of->rig.socket);
        if (other < 0)
            continue;
        (void)send(other, "garbage", 7, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(other);
    }
}

Test(instructions, of_a_round_are_the_same_under_attack)
{
    const struct counter first = start_counter();
    const struct counter second = start_counter();

    const uint64_t in_peace = count(first);
    for (int i = 0; i < 2; i++)
        siege_attacker(&siege, attack, SIEGE_ENEMY);
    const uint64_t in_war = count(second);

    fprintf(stderr, "a round: %lu instructions in peace, %lu under attack\n",
            (unsigned long)in_peace, (unsigned long)in_war);
    cr_assert_gt(in_peace, 1000);
    cr_assert_eq(in_peace, in_war);
}
