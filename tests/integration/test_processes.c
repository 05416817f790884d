/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real processes against a real daemon: who dies, who goes on, and what is refused when
 * something runs out. Every cache here is rolled for more than three windows.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cache.h"
#include "client/wire.h"
#include "tests/integration/node.h"

static struct node node;

static void start(void)
{
    node_start(&node, NULL);
}

static void stop(void)
{
    node_stop(&node);
}

TestSuite(processes, .init = start, .fini = stop, .timeout = 60);

/* ----------------------------------------------------------------- workers ----------
 */

#define OK(call) cr_assert_geq((call), 0, "%s", kvw_last_error())

static struct kvw_cache *attach(uint32_t rank)
{
    struct kvw_cache *cache;
    OK(kvw_attach(node.client, "c", rank, NULL, &cache));
    return cache;
}

/* Commands: r = roll and commit a chunk of 4; s = stage a chunk of 3, do not commit;
 * p = pin a view and hold it; d = detach. Answers: 0, or 1 for a failure. */
static void obey(struct kvw_cache *cache, int commands, int answers)
{
    struct kvw_view view;
    char command;

    while (read(commands, &command, 1) == 1) {
        char answer = 0;
        if (command == 'r')
            answer = roll_chunk(cache, 4, 1) != 0;
        else if (command == 's')
            answer = roll_chunk(cache, 3, 0) != 0;
        else if (command == 'p')
            answer =
                kvw_get(cache, 0, (struct kvw_layer){1}, KVW_COMMITTED, &view) != 0;
        else if (command == 'd')
            kvw_detach(cache);
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

static void create(uint32_t n_ranks)
{
    struct kvw_spec spec;
    node_spec(&spec, "c", n_ranks);
    OK(kvw_create(node.client, &spec, NULL, NULL));
}

/* ------------------------------------------------------------------- death ----------
 */

/* A successor goes on at the last commit; what was open is forgotten. */
Test(processes, killed_worker_leaves_its_commits_and_nothing_else)
{
    struct worker worker;
    create(1);
    worker_start(&node, run_rank_0, &worker);
    for (int chunk = 0; chunk < 12; chunk++)
        cr_assert_eq(worker_ask(&worker, 'r'), 0);
    cr_assert_eq(worker_ask(&worker, 's'), 0);

    worker_kill(&worker);

    struct kvw_cache *cache = attach(0);
    cr_assert_eq(check_rows(cache), 48);
    for (int chunk = 0; chunk < 12; chunk++)
        OK(roll_chunk(cache, 4, 1));
    cr_assert_eq(check_rows(cache), 96);
    kvw_detach(cache);
}

/* Workers do not notice that the daemon died; a new one has everything. */
Test(processes, killed_daemon_loses_nothing)
{
    struct worker worker;
    create(2);
    worker_start(&node, run_rank_0, &worker);
    struct kvw_cache *other = attach(1);
    for (int chunk = 0; chunk < 6; chunk++) {
        cr_assert_eq(worker_ask(&worker, 'r'), 0);
        OK(roll_chunk(other, 4, 1));
    }

    kill(node_daemon_pid(&node), SIGKILL);

    for (int chunk = 0; chunk < 6; chunk++) {
        cr_assert_eq(worker_ask(&worker, 'r'), 0);
        OK(roll_chunk(other, 4, 1));
    }
    struct kvw_cache *reader = attach(KVW_READER);
    cr_assert_eq(check_rows(reader), 48);
    struct kvw_cache *second;
    cr_assert_eq(kvw_attach(node.client, "c", 0, NULL, &second), -EBUSY);
    kvw_detach(reader);
    kvw_detach(other);
    worker_end(&worker);
}

/* The keeper's death, then the daemon's: the second keeper has everything too. */
Test(processes, killed_keeper_is_replaced)
{
    create(1);
    struct kvw_cache *cache = attach(0);
    for (int chunk = 0; chunk < 10; chunk++)
        OK(roll_chunk(cache, 4, 1));
    pid_t keeper = node_keeper_pid(&node);

    kill(keeper, SIGKILL);
    for (int tries = 0; tries < 500 && (node_keeper_pid(&node) == keeper ||
                                        node_keeper_pid(&node) == 0);
         tries++)
        poll(NULL, 0, 10); /* until the daemon has its new keeper */
    kill(node_daemon_pid(&node), SIGKILL);

    struct kvw_cache *reader = attach(KVW_READER);
    cr_assert_eq(check_rows(reader), 40);
    kvw_detach(reader);
    kvw_detach(cache);
}

Test(processes, second_writer_is_refused_with_the_first_ones_pid)
{
    struct worker worker;
    struct kvw_cache *second;
    char pid[32];
    create(1);
    worker_start(&node, run_rank_0, &worker);
    cr_assert_eq(worker_ask(&worker, 'r'), 0);

    int error = kvw_attach(node.client, "c", 0, NULL, &second);

    cr_assert_eq(error, -EBUSY);
    snprintf(pid, sizeof pid, "%d", worker.pid);
    cr_assert_not_null(strstr(kvw_last_error(), pid), "%s", kvw_last_error());
    worker_end(&worker);
}

/* SIGSTOP is not death: the rank is kept. SIGKILL is. */
Test(processes, stopped_worker_keeps_its_rank_until_it_is_dead)
{
    struct worker worker;
    struct kvw_cache *cache;
    create(1);
    worker_start(&node, run_rank_0, &worker);
    cr_assert_eq(worker_ask(&worker, 'r'), 0);
    kill(worker.pid, SIGSTOP);

    cr_assert_eq(kvw_attach(node.client, "c", 0, NULL, &cache), -EBUSY);

    worker_kill(&worker);
    cache = attach(0); /* who saw it die is not told that it lives */
    cr_assert_eq(check_rows(cache), 4);
    kvw_detach(cache);
}

static int attach_patiently(uint64_t timeout_ns, struct kvw_cache **cache)
{
    struct kvw_attach_options options = KVW_ATTACH_OPTIONS_INIT;

    options.owner_timeout_ns = timeout_ns;
    return kvw_attach(node.client, "c", 0, &options, cache);
}

Test(processes, attach_waits_for_the_end_of_who_holds_the_rank)
{
    struct worker worker;
    struct kvw_cache *cache;
    create(1);
    worker_start(&node, run_rank_0, &worker);
    cr_assert_eq(worker_ask(&worker, 'r'), 0);
    pid_t killer = fork();
    if (killer == 0) {
        poll(NULL, 0,
             50); /* likely, not surely, after the wait has begun: both must work */
        kill(worker.pid, SIGKILL);
        _exit(0);
    }

    OK(attach_patiently(KVW_NO_TIMEOUT, &cache));

    cr_assert_eq(check_rows(cache), 4);
    waitpid(killer, NULL, 0);
    worker_kill(&worker);
    kvw_detach(cache);
}

Test(processes, attach_waits_no_longer_than_it_was_told)
{
    struct worker worker;
    struct kvw_cache *cache;
    char pid[32];
    create(1);
    worker_start(&node, run_rank_0, &worker);
    cr_assert_eq(worker_ask(&worker, 'r'), 0);
    const uint64_t begin_ms = wire_now_ms();

    cr_assert_eq(attach_patiently(50000000, &cache), -EBUSY);

    cr_assert_geq(wire_now_ms() - begin_ms, 50);
    snprintf(pid, sizeof pid, "%d", worker.pid);
    cr_assert_not_null(strstr(kvw_last_error(), pid), "%s", kvw_last_error());
    worker_end(&worker);
}

/* It lives on; the daemon is asked once more. */
Test(processes, attach_sees_a_detach_when_the_time_is_over)
{
    struct worker worker;
    struct kvw_cache *cache;
    create(1);
    worker_start(&node, run_rank_0, &worker);
    cr_assert_eq(worker_ask(&worker, 'r'), 0);
    cr_assert_eq(write(worker.commands, "d", 1), 1);

    OK(attach_patiently(300000000, &cache));

    char answer = 1;
    cr_assert_eq(read(worker.answers, &answer, 1), 1);
    cr_assert_eq(answer, 0);
    kvw_detach(cache);
    worker_end(&worker);
}

Test(processes, wait_ends_when_whom_it_waits_for_dies)
{
    struct worker worker;
    create(2);
    struct kvw_cache *cache = attach(1);
    worker_start(&node, run_rank_0, &worker);
    cr_assert_eq(worker_ask(&worker, 'r'), 0);
    OK(kvw_wait_step(cache, 0, 0, 1, KVW_NO_TIMEOUT));
    pid_t killer = fork();
    if (killer == 0) {
        poll(NULL, 0,
             50); /* likely, not surely, after the wait has begun: both must work */
        kill(worker.pid, SIGKILL);
        _exit(0);
    }

    cr_assert_eq(kvw_wait_step(cache, 0, 0, 100, KVW_NO_TIMEOUT), -EOWNERDEAD);

    cr_assert_not_null(strstr(kvw_last_error(), "step 100"), "%s", kvw_last_error());
    waitpid(killer, NULL, 0);
    worker_kill(&worker);
    kvw_detach(cache);
}

Test(processes, pin_of_a_killed_reader_vanishes)
{
    struct worker reader;
    struct kvw_cache *cache;
    struct kvw_attach_options patient = KVW_ATTACH_OPTIONS_INIT;
    patient.timeout_ns = 20000000000ull;
    create(1);
    OK(kvw_attach(node.client, "c", 0, &patient, &cache));
    for (int chunk = 0; chunk < 10; chunk++)
        OK(roll_chunk(cache, 4, 1));
    worker_start(&node, run_reader, &reader);
    cr_assert_eq(worker_ask(&reader, 'p'), 0);

    worker_kill(&reader);

    for (int chunk = 0; chunk < 10; chunk++)
        OK(roll_chunk(cache, 4, 1));
    cr_assert_eq(check_rows(cache), 80);
    kvw_detach(cache);
}

Test(processes, pin_of_a_stopped_reader_is_answered_with_its_name)
{
    struct worker reader;
    struct kvw_cache *cache;
    struct kvw_attach_options options = KVW_ATTACH_OPTIONS_INIT;
    options.pin_policy = KVW_PIN_ANSWER;
    create(1);
    OK(kvw_attach(node.client, "c", 0, &options, &cache));
    for (int chunk = 0; chunk < 10; chunk++)
        OK(roll_chunk(cache, 4, 1));
    worker_start(&node, run_reader, &reader);
    cr_assert_eq(worker_ask(&reader, 'p'), 0);
    kill(reader.pid, SIGSTOP);

    int error = 0;
    for (int chunk = 0; chunk < 10 && error == 0; chunk++)
        error = roll_chunk(cache, 4, 1);

    cr_assert_eq(error, -EBUSY);
    cr_assert_not_null(strstr(kvw_last_error(), "attachment"), "%s", kvw_last_error());
    worker_kill(&reader);
    kvw_detach(cache);
}

/* Two ranks, one of them killed with one commit more than the other: both come back. */
Test(processes, ranks_recover_to_the_smallest_step)
{
    struct worker worker;
    create(2);
    struct kvw_cache *first = attach(1);
    worker_start(&node, run_rank_0, &worker);
    for (int chunk = 0; chunk < 10; chunk++) {
        cr_assert_eq(worker_ask(&worker, 'r'), 0);
        OK(roll_chunk(first, 4, 1));
    }
    cr_assert_eq(worker_ask(&worker, 'r'), 0);
    worker_kill(&worker);

    int error = -EBUSY;
    struct kvw_cache *second = NULL;
    for (int tries = 0; tries < 500 && error == -EBUSY; tries++) {
        error = kvw_attach(node.client, "c", 0, NULL, &second);
        if (error == -EBUSY)
            poll(NULL, 0, 5); /* until the daemon has seen the pidfd */
    }
    OK(error);

    /* In one process: the first call promises and times out, the others complete it. */
    uint64_t step;
    cr_assert_eq(kvw_recover(first, 0, 1000, &step), -ETIMEDOUT);
    OK(kvw_recover(second, 0, 1000000000, &step));
    cr_assert_eq(step, 10);
    OK(kvw_recover(first, 0, 1000000000, &step));
    cr_assert_eq(step, 10);
    for (int chunk = 0; chunk < 10; chunk++) {
        OK(roll_chunk(first, 4, 1));
        OK(roll_chunk(second, 4, 1));
    }
    struct kvw_cache *reader = attach(KVW_READER);
    cr_assert_eq(check_rows(reader), 80);
    kvw_detach(reader);
    kvw_detach(second);
    kvw_detach(first);
}

/* ----------------------------------------------------------- contiguous ---------- */

/* Sink 2, ring rounded up to whole pages (128 rows of 32 bytes): wherever the ring
 * wraps, past and open chunk are one piece, and the bytes are right. */
Test(processes, contiguous_group_shows_past_and_current_rows_as_one_piece)
{
    struct kvw_spec spec;
    struct kvw_view view;
    node_spec(&spec, "c", 1);
    spec.group[0].is_contiguous = 1;
    spec.group[0].keep_rows = 4;
    OK(kvw_create(node.client, &spec, NULL, NULL));
    struct kvw_cache *cache = attach(0);
    struct kvw_cache *reader = attach(KVW_READER);
    const struct kvw_item kept = {.group = 0, .row = 8, .n = 4};

    for (uint64_t row = 0; row < 1200; row += 3) {
        OK(roll_chunk(cache, 3, 0));
        OK(kvw_get(cache, 0, (struct kvw_layer){2}, KVW_STAGED, &view));
        uint32_t last = view.n_pieces - 1;
        cr_assert_eq(view.piece[last].row + view.piece[last].n_rows, row + 3);
        cr_assert(row < 30 || view.piece[last].n_rows == 10, "%u rows from %lu",
                  view.piece[last].n_rows, (unsigned long)view.piece[last].row);
        cr_assert(row < 30 || view.n_pieces == 3); /* sink, kept, the rest */
        for (uint32_t i = 0; i < view.n_pieces; i++)
            check_piece(&view, &view.piece[i], 2);
        OK(kvw_release(cache, &view));
        OK(kvw_commit(cache, 0, NULL, 0));
        if (row == 12)
            OK(kvw_keep(cache, 0, &kept, 1));
        OK(kvw_get(reader, 0, (struct kvw_layer){1}, KVW_COMMITTED, &view));
        for (uint32_t i = 0; i < view.n_pieces; i++)
            check_piece(&view, &view.piece[i], 1);
        OK(kvw_release(reader, &view));
    }
    kvw_detach(reader);
    kvw_detach(cache);
}

/* -------------------------------------------------------------- misuse ---------- */

Test(processes, forked_child_cannot_touch_the_cache)
{
    create(1);
    struct kvw_cache *cache = attach(0);
    OK(roll_chunk(cache, 4, 1));

    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(cache->data[0] == 1);
    }
    int status;
    waitpid(child, &status, 0);

    cr_assert(WIFSIGNALED(status), "a child read the parent's mapping");
    cr_assert_eq(check_rows(cache), 4);
    kvw_detach(cache);
}

Test(processes, reader_cannot_map_for_writing)
{
    create(1);
    struct kvw_cache *reader = attach(KVW_READER);

    cr_assert_eq(mprotect(reader->data, 4096, PROT_READ | PROT_WRITE), -1);
    cr_assert_eq(mprotect(reader->control, 4096, PROT_READ | PROT_WRITE), -1);
    cr_assert_eq(roll_chunk(reader, 4, 1), -ERANGE, "%s", kvw_last_error());
    cr_assert_eq(kvw_commit(reader, 0, NULL, 0), -EACCES);
    kvw_detach(reader);
}

Test(processes, removed_cache_says_so_at_begin)
{
    create(1);
    struct kvw_cache *cache = attach(0);
    OK(roll_chunk(cache, 4, 1));

    cr_assert_eq(kvw_remove(node.client, "c", 0), -EBUSY);
    OK(kvw_remove(node.client, "c", 1));

    cr_assert_eq(roll_chunk(cache, 4, 1), -KVW_EGONE, "%s", kvw_last_error());
    kvw_detach(cache);
    cr_assert_eq(kvw_attach(node.client, "c", 0, NULL, &cache), -ENOENT);
}

Test(processes, wait_ends_when_its_cache_is_removed)
{
    create(2);
    struct kvw_cache *cache = attach(1);
    pid_t remover = fork();
    if (remover == 0) {
        struct kvw_client *client;
        poll(NULL, 0, 50); /* likely, not surely, after the wait has begun */
        _exit(client_open(node.socket, false, &client) != 0 ||
              kvw_remove(client, "c", 1) != 0);
    }

    cr_assert_eq(kvw_wait_step(cache, 0, 0, 1, KVW_NO_TIMEOUT), -KVW_EGONE, "%s",
                 kvw_last_error());

    int status;
    waitpid(remover, &status, 0);
    cr_assert_eq(status, 0);
    kvw_detach(cache);
}

Test(processes, unknown_cache_is_named)
{
    struct kvw_cache *cache;

    cr_assert_eq(kvw_attach(node.client, "nobody", 0, NULL, &cache), -ENOENT);

    cr_assert_not_null(strstr(kvw_last_error(), "nobody"), "%s", kvw_last_error());
}

/* ---------------------------------------------------------- running out ---------- */

static struct rlimit lower_limit(int resource, rlim_t value)
{
    struct rlimit old;
    cr_assert_eq(getrlimit(resource, &old), 0);
    struct rlimit low = {value, old.rlim_max};
    cr_assert_eq(setrlimit(resource, &low), 0);
    return old;
}

Test(processes, attach_without_descriptors_is_refused_and_works_again_later)
{
    struct kvw_cache *cache;
    create(1);
    int next = dup(0);
    close(next);
    struct rlimit old = lower_limit(RLIMIT_NOFILE, (rlim_t)next + 1);

    int error = kvw_attach(node.client, "c", 0, NULL, &cache);
    setrlimit(RLIMIT_NOFILE, &old);

    cr_assert_eq(error, -EMFILE, "%d: %s", error, kvw_last_error());
    OK(kvw_attach(node.client, "c", 0, NULL, &cache));
    OK(roll_chunk(cache, 4, 1));
    kvw_detach(cache);
}

Test(processes, more_than_the_node_has_is_refused_with_need_and_have)
{
    struct kvw_spec spec;
    node_spec(&spec, "big", 1);
    spec.group[0].window_rows = 1u << 30;

    int error = kvw_create(node.client, &spec, NULL, NULL);

    cr_assert(error == -ENOMEM || error == -EDQUOT, "%d", error);
    cr_assert_not_null(strstr(kvw_last_error(), "need"), "%s", kvw_last_error());
    create(1);
    struct kvw_cache *cache = attach(0);
    OK(roll_chunk(cache, 4, 1));
    kvw_detach(cache);
}

static void start_poor(void)
{
    const char *const arguments[] = {"--quota", "32M", NULL};
    node_start(&node, arguments);
}

TestSuite(quota, .init = start_poor, .fini = stop, .timeout = 60);

Test(quota, is_refused_with_need_and_have_and_frees_on_removal)
{
    struct kvw_spec spec;
    node_spec(&spec, "a", 1);
    spec.group[0].window_rows = 30000; /* about 12 MB */
    OK(kvw_create(node.client, &spec, NULL, NULL));
    snprintf(spec.name, sizeof spec.name, "b");

    cr_assert_eq(kvw_create(node.client, &spec, NULL, NULL), -EDQUOT);

    cr_assert_not_null(strstr(kvw_last_error(), "need"), "%s", kvw_last_error());
    OK(kvw_remove(node.client, "a", 0));
    OK(kvw_create(node.client, &spec, NULL, NULL));
}
