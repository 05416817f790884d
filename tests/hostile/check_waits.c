/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits are tied to lives. Whoever is waited for and dies ends the wait at once; whoever
 * merely stops (SIGSTOP) is waited for until the deadline; and what ends a wait says who,
 * since when, at which row.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cache.h"
#include "client/wait.h"
#include "tests/integration/node.h"

#define OK(call) cr_assert_geq((call), 0, "%s", kvw_last_error())
#define SHORT_NS 300000000ull
#define LONG_NS 20000000000ull
#define SOON_NS 2000000000ull /* of "at once", on a machine with other things to do */

static struct node node;

static void start(void)
{
    node_start(&node, NULL);
}

static void stop(void)
{
    node_stop(&node);
}

TestSuite(waits, .init = start, .fini = stop, .timeout = 60);

/* -------------------------------------------------------------- workers ---------- */

/* Commands: r = roll a chunk; p = pin a view; u = release it. Answers: 0, 'o' for an
 * overrun, or the error. */
static void obey(struct kvw_cache *cache, int commands, int answers)
{
    struct kvw_view view;
    char command;

    while (read(commands, &command, 1) == 1) {
        int result = 0;
        if (command == 'r')
            result = roll_chunk(cache, 4, 1);
        else if (command == 'p')
            result = kvw_get(cache, 0, (struct kvw_layer){1}, KVW_COMMITTED, &view);
        else if (command == 'u')
            result = kvw_release(cache, &view);
        char answer = result == -KVW_EOVERRUN ? 'o' : (char)-result;
        if (write(answers, &answer, 1) != 1)
            _exit(3);
    }
}

static void run_as(const struct node *of, uint32_t rank, int commands, int answers)
{
    struct kvw_client *client;
    struct kvw_cache *cache;

    if (client_open(of->socket, false, &client) != 0 ||
        kvw_attach(client, "c", rank, NULL, &cache) != 0)
        _exit(2);
    obey(cache, commands, answers);
}

static void run_rank_0(const struct node *of, int commands, int answers)
{
    run_as(of, 0, commands, answers);
}

static void run_reader(const struct node *of, int commands, int answers)
{
    run_as(of, KVW_READER, commands, answers);
}

static struct kvw_cache *attach(uint32_t rank, uint32_t policy, uint64_t timeout_ns)
{
    struct kvw_attach_options options = KVW_ATTACH_OPTIONS_INIT;
    struct kvw_cache *cache;

    options.pin_policy = policy;
    options.timeout_ns = timeout_ns;
    OK(kvw_attach(node.client, "c", rank, &options, &cache));
    return cache;
}

static void create(uint32_t n_ranks)
{
    struct kvw_spec spec;

    node_spec(&spec, "c", n_ranks);
    OK(kvw_create(node.client, &spec, NULL, NULL));
}

static void expect(const char *part)
{
    cr_assert_not_null(strstr(kvw_last_error(), part), "no '%s' in: %s", part,
                       kvw_last_error());
}

static void expect_pid(const char *before, pid_t pid)
{
    char text[64];

    (void)snprintf(text, sizeof text, "%s%d", before, pid);
    expect(text);
}

/* Kills a process when this one sleeps: its wait has begun. @return the killer; the time of
 * the death comes through the pipe. */
struct killer {
    pid_t pid;
    int time;
};

static bool sleeps(pid_t pid)
{
    char path[64];
    char state = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return true;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'S';
    fclose(file);
    return state == 'S';
}

static struct killer kill_when_we_sleep(pid_t victim)
{
    struct killer killer;
    const pid_t us = getpid();
    int time[2];

    cr_assert_eq(pipe(time), 0);
    killer.pid = fork();
    if (killer.pid == 0) {
        /* Ten looks in a row: not the sleep of a lock. */
        for (int n = 0; n < 10; n = sleeps(us) ? n + 1 : 0)
            (void)poll(NULL, 0, 3);
        (void)kill(victim, SIGKILL);
        const uint64_t now_ns = wait_now_ns();
        _exit(write(time[1], &now_ns, sizeof now_ns) != sizeof now_ns);
    }
    close(time[1]);
    killer.time = time[0];
    return killer;
}

/* The wait has ended. It must have done so soon after the death. */
static void ended_with(struct killer *killer, const char *what)
{
    const uint64_t now_ns = wait_now_ns();
    uint64_t death_ns = 0;

    cr_assert_eq(read(killer->time, &death_ns, sizeof death_ns), sizeof death_ns);
    close(killer->time);
    waitpid(killer->pid, NULL, 0);
    const uint64_t ns = now_ns > death_ns ? now_ns - death_ns : 0;
    fprintf(stderr, "%s ends %.2f ms after the death\n", what, (double)ns / 1e6);
    cr_assert_lt(ns, SOON_NS, "%s", what);
}

/* -------------------------------------------------------- death of a peer -------- */

/* Both ranks at one step, rank 0 in a process of its own. */
static struct kvw_cache *start_pair(struct worker *worker, uint64_t timeout_ns)
{
    create(2);
    struct kvw_cache *cache = attach(1, KVW_PIN_WAIT, timeout_ns);
    worker_start(&node, run_rank_0, worker);
    for (int chunk = 0; chunk < 6; chunk++) {
        cr_assert_eq(worker_ask(worker, 'r'), 0);
        OK(roll_chunk(cache, 4, 1));
    }
    return cache;
}

Test(waits, wait_for_a_step_or_rows_ends_with_the_rank)
{
    struct worker worker;
    struct kvw_cache *cache = start_pair(&worker, LONG_NS);
    struct killer killer = kill_when_we_sleep(worker.pid);

    cr_assert_eq(kvw_wait_step(cache, 0, 0, 100, KVW_NO_TIMEOUT), -EOWNERDEAD);

    expect("rank 0, lane 0: waited ");
    expect(" for step 100; it stands at step 6, era 0, row 24 of 'self'");
    expect_pid("its owner, pid ", worker.pid);
    ended_with(&killer, "wait for a step");
    cr_assert_eq(kvw_wait_rows(cache, 0, 0, 0, 100, KVW_NO_TIMEOUT), -EOWNERDEAD);
    expect("100 rows of group 'self'");
    worker_kill(&worker);
    kvw_detach(cache);
}

Test(waits, begin_ends_with_the_rank_that_lags)
{
    struct worker worker;
    struct kvw_cache *cache = start_pair(&worker, LONG_NS);
    OK(roll_chunk(cache, 4, 1));
    struct killer killer = kill_when_we_sleep(worker.pid);

    int error = 0;
    for (int chunk = 0; chunk < 8 && error == 0; chunk++)
        error = roll_chunk(cache, 4, 1);

    cr_assert_eq(error, -EOWNERDEAD, "%d", error);
    expect("rank 0, lane 0: waited ");
    expect("row 24 of 'self'");
    expect_pid("its owner, pid ", worker.pid);
    ended_with(&killer, "begin");
    worker_kill(&worker);
    kvw_detach(cache);
}

Test(waits, recovery_ends_with_the_rank_that_is_missing)
{
    struct worker worker;
    struct kvw_cache *cache = start_pair(&worker, LONG_NS);
    struct killer killer = kill_when_we_sleep(worker.pid);
    uint64_t step;

    cr_assert_eq(kvw_recover(cache, 0, KVW_NO_TIMEOUT, &step), -EOWNERDEAD);

    expect("waited ");
    expect("for its recovery");
    expect_pid("its owner, pid ", worker.pid);
    ended_with(&killer, "recover");
    worker_kill(&worker);
    kvw_detach(cache);
}

/* ------------------------------------------------------------- deadlines ---------- */

/* A stopped process is not dead: its rank is waited for, until the deadline. */
Test(waits, stopped_rank_is_waited_for_until_the_deadline)
{
    const struct kvw_item back = {.group = 0, .row = 24};
    struct worker worker;
    struct kvw_cache *cache = start_pair(&worker, SHORT_NS);
    uint64_t step;
    kill(worker.pid, SIGSTOP);

    const uint64_t begun_ns = wait_now_ns();
    cr_assert_eq(kvw_wait_step(cache, 0, 0, 7, SHORT_NS), -ETIMEDOUT);
    expect("for step 7; it stands at step 6, era 0, row 24 of 'self'");
    expect_pid("held by pid ", worker.pid);
    cr_assert_eq(kvw_wait_rows(cache, 0, 0, 0, 28, SHORT_NS), -ETIMEDOUT);
    expect("for 28 rows of group 'self'; it stands at step 6, era 0, row 24 of 'self'");
    int error = 0;
    for (int chunk = 0; chunk < 8 && error == 0; chunk++)
        error = roll_chunk(cache, 4, 1);
    cr_assert_eq(error, -ETIMEDOUT);
    expect_pid("held by pid ", worker.pid);
    expect("row 24 of 'self'");
    error = 0;
    for (int tries = 0; tries < 8 && error == 0; tries++)
        error = kvw_truncate(cache, 0, &back, 1);
    cr_assert_eq(error, -ETIMEDOUT, "%d %s", error, kvw_last_error());
    expect_pid("held by pid ", worker.pid);
    cr_assert_eq(kvw_recover(cache, 0, SHORT_NS, &step), -ETIMEDOUT);
    expect("for its recovery");
    expect_pid("held by pid ", worker.pid);
    const uint64_t waited_ns = wait_now_ns() - begun_ns;

    cr_assert_geq(waited_ns, 5 * SHORT_NS);
    cr_assert_lt(waited_ns, 5 * SHORT_NS + SOON_NS);
    worker_kill(&worker);
    kvw_detach(cache);
}

Test(waits, rank_that_nobody_owns_is_waited_for_until_the_deadline)
{
    create(2);
    struct kvw_cache *cache = attach(1, KVW_PIN_WAIT, SHORT_NS);

    cr_assert_eq(kvw_wait_step(cache, 0, 0, 1, SHORT_NS), -ETIMEDOUT);

    expect("owned by nobody");
    kvw_detach(cache);
}

/* ------------------------------------------------------------------ pins ---------- */

/* A reader with a pin on the newest window; the writer needs its rows soon. */
static struct kvw_cache *start_reader(struct worker *reader, uint32_t policy,
                                      uint64_t timeout_ns)
{
    create(1);
    struct kvw_cache *cache = attach(0, policy, timeout_ns);
    for (int chunk = 0; chunk < 6; chunk++)
        OK(roll_chunk(cache, 4, 1));
    worker_start(&node, run_reader, reader);
    cr_assert_eq(worker_ask(reader, 'p'), 0);
    return cache;
}

static int roll_into_the_pin(struct kvw_cache *cache)
{
    int error = 0;

    for (int chunk = 0; chunk < 6 && error == 0; chunk++)
        error = roll_chunk(cache, 4, 1);
    return error;
}

Test(waits, begin_goes_on_when_the_reader_with_the_pin_dies)
{
    struct worker reader;
    struct kvw_cache *cache = start_reader(&reader, KVW_PIN_WAIT, LONG_NS);
    struct killer killer = kill_when_we_sleep(reader.pid);

    OK(roll_into_the_pin(cache));

    ended_with(&killer, "begin at a pin (and five more chunks)");
    worker_kill(&reader);
    kvw_detach(cache);
}

static void expect_reader(pid_t pid)
{
    expect_pid("pid ", pid);
    expect("has pinned rows up to 23 for ");
    expect("group 'self'");
}

Test(waits, stopped_reader_is_waited_for_until_the_deadline)
{
    struct worker reader;
    struct kvw_cache *cache = start_reader(&reader, KVW_PIN_WAIT, SHORT_NS);
    kill(reader.pid, SIGSTOP);

    const uint64_t begun_ns = wait_now_ns();
    cr_assert_eq(roll_into_the_pin(cache), -EBUSY);

    cr_assert_geq(wait_now_ns() - begun_ns, SHORT_NS);
    cr_assert_lt(wait_now_ns() - begun_ns, SHORT_NS + SOON_NS);
    expect_reader(reader.pid);
    /* It goes on, and so does the writer: nothing was lost on either side. */
    kill(reader.pid, SIGCONT);
    cr_assert_eq(worker_ask(&reader, 'u'), 0);
    OK(roll_into_the_pin(cache));
    worker_end(&reader);
    kvw_detach(cache);
}

Test(waits, stopped_reader_is_answered_at_once)
{
    struct worker reader;
    struct kvw_cache *cache = start_reader(&reader, KVW_PIN_ANSWER, LONG_NS);
    kill(reader.pid, SIGSTOP);

    const uint64_t begun_ns = wait_now_ns();
    cr_assert_eq(roll_into_the_pin(cache), -EBUSY);

    cr_assert_lt(wait_now_ns() - begun_ns, SOON_NS);
    expect_reader(reader.pid);
    kill(reader.pid, SIGCONT);
    cr_assert_eq(worker_ask(&reader, 'u'), 0);
    OK(roll_into_the_pin(cache));
    worker_end(&reader);
    kvw_detach(cache);
}

Test(waits, stopped_reader_is_revoked_and_learns_it_at_release)
{
    struct worker reader;
    struct kvw_cache *cache = start_reader(&reader, KVW_PIN_REVOKE, LONG_NS);
    kill(reader.pid, SIGSTOP);

    const uint64_t begun_ns = wait_now_ns();
    OK(roll_into_the_pin(cache));

    cr_assert_lt(wait_now_ns() - begun_ns, SOON_NS);
    kill(reader.pid, SIGCONT);
    cr_assert_eq(worker_ask(&reader, 'u'), 'o');
    cr_assert_eq(worker_ask(&reader, 'p'), 0);
    cr_assert_eq(worker_ask(&reader, 'u'), 0);
    worker_end(&reader);
    kvw_detach(cache);
}

/* ---------------------------------------------------------------- daemon ---------- */

/* Calls have a deadline; the data path does not ask the daemon. */
Test(waits, stopped_daemon_holds_up_calls_until_their_deadline_and_no_worker)
{
    struct kvw_client *other;
    struct kvw_cache *caches[3];
    create(1);
    struct kvw_cache *cache = attach(0, KVW_PIN_WAIT, LONG_NS);
    OK(client_open(node.socket, false, &other));
    for (int i = 0; i < 3; i++)
        OK(kvw_attach(other, "c", KVW_READER, NULL, &caches[i]));
    const pid_t daemon = node_daemon_pid(&node);
    other->call_ms = 300;
    kill(daemon, SIGSTOP);

    const uint64_t begun_ns = wait_now_ns();
    cr_assert_eq(kvw_remove(other, "c", 0), -ETIMEDOUT);
    expect("no answer from the daemon at ");
    expect_pid(", pid ", daemon);
    expect("within 0.300 s");
    const uint64_t called_ns = wait_now_ns() - begun_ns;
    for (int chunk = 0; chunk < 20; chunk++)
        OK(roll_chunk(cache, 4, 1));
    /* Nor does leaving wait once more, for each of three caches. */
    kvw_disconnect(other);
    const uint64_t all_ns = wait_now_ns() - begun_ns;

    fprintf(stderr,
            "a stopped daemon: call %.0f ms, with 20 chunks and leaving %.0f ms\n",
            (double)called_ns / 1e6, (double)all_ns / 1e6);
    cr_assert_geq(called_ns, 300000000ull);
    cr_assert_lt(all_ns, 300000000ull + SOON_NS);
    cr_assert_eq(client_open(node.socket, false, &other), -ETIMEDOUT);
    expect("did not answer within 7000 ms");
    kill(daemon, SIGCONT);
    kvw_detach(cache);
}

/* A worker that dies while there is no daemon to notice: the next one does. */
Test(waits, wait_ends_though_daemon_and_rank_die_together)
{
    struct worker worker;
    struct kvw_cache *cache = start_pair(&worker, LONG_NS);
    struct killer killer = kill_when_we_sleep(worker.pid);
    kill(node_daemon_pid(&node), SIGKILL);

    cr_assert_eq(kvw_wait_step(cache, 0, 0, 100, KVW_NO_TIMEOUT), -EOWNERDEAD);

    ended_with(&killer, "wait while the daemon is killed, too,");
    worker_kill(&worker);
    kvw_detach(cache);
}
