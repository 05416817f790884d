/* SPDX-License-Identifier: Apache-2.0 */
/* Keeper and daemon are killed together; the workers that live bring back what they
 * have. */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/cache.h"
#include "client/start.h"
#include "tests/restart/stage.h"

#define OK(call) cr_assert_geq((call), 0, "%s", kvw_last_error())

static struct stage stage;
static char text[4096];

static void setup(void)
{
    stage_start(&stage);
}

static void teardown(void)
{
    stage_stop(&stage);
}

TestSuite(offer, .init = setup, .fini = teardown, .timeout = 60);

static void create(const char *name, uint32_t n_ranks, uint32_t lifetime)
{
    struct kvw_spec spec;

    node_spec(&spec, name, n_ranks);
    spec.lifetime = lifetime;
    spec.ttl_seconds = 1234;
    spec.mode = 0640;
    OK(kvw_create(stage.node.client, &spec, NULL, NULL));
}

static int open_pidfd(uint32_t pid)
{
    return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
}

static void await_death(int pidfd)
{
    struct pollfd dead = {.fd = pidfd, .events = POLLIN};

    cr_assert_eq(poll(&dead, 1, 10000), 1);
    close(pidfd);
}

static void kill_both(void)
{
    struct kvw_message_status_is now = stage_status(&stage);
    int keeper = open_pidfd(now.keeper_pid);
    int daemon = open_pidfd(now.pid);

    /* Stopped, so that neither starts the other. */
    cr_assert_eq(kill((pid_t)now.pid, SIGSTOP), 0);
    cr_assert_eq(kill((pid_t)now.keeper_pid, SIGSTOP), 0);
    cr_assert_eq(kill((pid_t)now.keeper_pid, SIGKILL), 0);
    cr_assert_eq(kill((pid_t)now.pid, SIGKILL), 0);
    await_death(keeper);
    await_death(daemon);
}

static void start_again(void)
{
    struct start start;
    struct kvw_client *client;

    OK(start_daemon(stage.node.socket, NULL, &start));
    start_fini(&start);
    for (int tries = 0; tries < 500; tries++) {
        if (client_open(stage.node.socket, false, &client) == 0) {
            kvw_disconnect(client);
            return;
        }
        poll(NULL, 0, 10); /* it may still be starting */
    }
    cr_assert_fail("no daemon: %s", kvw_last_error());
}

static struct kvw_message_stated stat_of(const char *name)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STAT};
    struct kvw_message answer;

    snprintf(request.stat.name, sizeof request.stat.name, "%s", name);
    OK(client_call(stage.node.client, &request, &answer, NULL, 0, NULL, NULL));
    return answer.stated;
}

static void expect_text(const char *part)
{
    cr_assert_not_null(strstr(text, part), "no '%s' in: %s", part, text);
}

Test(offer, brings_back_the_cache_of_a_worker_that_notices_nothing)
{
    struct roller roller;
    struct kvw_cache *reader;
    struct kvw_cache *second;
    create("c", 1, KVW_LIFETIME_TTL);
    struct kvw_message_stated before = stat_of("c");
    roller_start(&roller, stage.node.socket, "c", 0);

    kill_both();
    roller_await(&roller, 20);
    start_again();

    cr_assert_eq(kvw_attach(stage.node.client, "c", KVW_READER, NULL, &reader),
                 -ENOENT);
    cr_assert_eq(roller_ask(&roller), 0);
    cr_assert_eq(stage_run(&stage, text, sizeof text, "ls"), 0);
    expect_text("c ");
    expect_text("1/1");
    struct kvw_message_stated after = stat_of("c");
    cr_assert_eq(after.lifetime, before.lifetime);
    cr_assert_eq(after.ttl_seconds, 1234);
    cr_assert_eq(after.mode, 0640);
    cr_assert_eq(after.created_ns, before.created_ns);
    cr_assert_eq(after.total_bytes, before.total_bytes);
    cr_assert_eq(after.n_owned, 1);
    OK(kvw_attach(stage.node.client, "c", KVW_READER, NULL, &reader));
    cr_assert_gt(check_rows(reader), 80);
    cr_assert_eq(kvw_attach(stage.node.client, "c", 0, NULL, &second), -EBUSY);
    snprintf(text, sizeof text, "pid %d", roller.pid);
    cr_assert_not_null(strstr(kvw_last_error(), text), "%s", kvw_last_error());

    /* From now on it is kept like any other. */
    kill((pid_t)stage_status(&stage).pid, SIGKILL);
    cr_assert_eq(roller_ask(&roller), 0);
    cr_assert_eq(stage_status(&stage).n_attachments, 2);
    roller_await(&roller, 20);
    roller_kill(&roller);
    OK(kvw_attach(stage.node.client, "c", 0, NULL, &second));
    OK(roll_chunk(second, 4, 1));
    cr_assert_gt(check_rows(second), 160);
    kvw_detach(second);
    kvw_detach(reader);
}

/* -------------------------------------------------- workers on command ---------- */

/* r = roll a chunk; q = ask the daemon something. Answers: 0, or 1 for a failure. */
static void obey(const struct node *node, uint32_t rank, int commands, int answers)
{
    struct kvw_client *client;
    struct kvw_cache *cache;
    char command;

    if (client_open(node->socket, false, &client) != 0 ||
        kvw_attach(client, "c", rank, NULL, &cache) != 0)
        _exit(2);
    while (read(commands, &command, 1) == 1) {
        struct kvw_message request = {.type = KVW_MESSAGE_STATUS};
        struct kvw_message answer;
        int error = command == 'r'
                        ? roll_chunk(cache, 4, 1)
                        : client_call(client, &request, &answer, NULL, 0, NULL, NULL);
        char byte = error != 0;
        if (error != 0)
            fprintf(stderr, "rank %u: %s\n", rank, kvw_last_error());
        if (write(answers, &byte, 1) != 1)
            _exit(3);
    }
}

static void run_rank_0(const struct node *node, int commands, int answers)
{
    obey(node, 0, commands, answers);
}

static void run_rank_1(const struct node *node, int commands, int answers)
{
    obey(node, 1, commands, answers);
}

static void roll_both(struct worker *a, struct worker *b, int n)
{
    for (int i = 0; i < n; i++) {
        cr_assert_eq(worker_ask(a, 'r'), 0);
        cr_assert_eq(worker_ask(b, 'r'), 0);
    }
}

Test(offer, gives_no_rank_away_whose_owner_lives)
{
    struct worker a;
    struct worker b;
    struct kvw_cache *cache;
    create("c", 2, KVW_LIFETIME_KEEP);
    worker_start(&stage.node, run_rank_0, &a);
    worker_start(&stage.node, run_rank_1, &b);
    roll_both(&a, &b, 5);

    kill_both();
    start_again();
    cr_assert_eq(worker_ask(&a, 'q'), 0);

    /* b has not made a call: nobody but the seat knows of it. */
    cr_assert_eq(stat_of("c").n_owned, 1);
    cr_assert_eq(kvw_attach(stage.node.client, "c", 1, NULL, &cache), -EBUSY);
    cr_assert_not_null(strstr(kvw_last_error(), "awaited"), "%s", kvw_last_error());
    kill((pid_t)stage_status(&stage).pid, SIGKILL);
    cr_assert_eq(kvw_attach(stage.node.client, "c", 1, NULL, &cache), -EBUSY,
                 "nor by the next daemon");
    roll_both(&a, &b, 5);
    cr_assert_eq(worker_ask(&b, 'q'), 0);
    cr_assert_eq(stat_of("c").n_owned, 2);
    roll_both(&a, &b, 5);
    worker_end(&b); /* first: it has inherited the other one's pipe */
    worker_end(&a);
    OK(kvw_attach(stage.node.client, "c", KVW_READER, NULL, &cache));
    cr_assert_eq(check_rows(cache), 60);
    kvw_detach(cache);
}

Test(offer, frees_the_rank_of_an_owner_that_died_meanwhile)
{
    struct worker a;
    struct worker b;
    struct kvw_cache *cache;
    create("c", 2, KVW_LIFETIME_KEEP);
    worker_start(&stage.node, run_rank_0, &a);
    worker_start(&stage.node, run_rank_1, &b);
    roll_both(&a, &b, 5);

    kill_both();
    worker_kill(&b);
    start_again();
    cr_assert_eq(worker_ask(&a, 'q'), 0);

    OK(kvw_attach(stage.node.client, "c", 1, NULL, &cache));
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(worker_ask(&a, 'r'), 0);
        OK(roll_chunk(cache, 4, 1));
    }
    cr_assert_eq(check_rows(cache), 40);
    kvw_detach(cache);
    worker_end(&a);
}

Test(offer, of_a_job_lives_as_long_as_the_last_worker)
{
    struct worker a;
    struct worker b;
    create("c", 2, KVW_LIFETIME_JOB);
    worker_start(&stage.node, run_rank_1, &b);
    worker_start(&stage.node, run_rank_0, &a);
    roll_both(&a, &b, 5);

    kill_both();
    start_again();
    cr_assert_eq(worker_ask(&a, 'q'), 0);
    worker_end(&a);

    /* b lives, though nobody but the seat knows of it. */
    cr_assert_eq(stage_status(&stage).n_caches, 1);
    cr_assert_eq(stage_status(&stage).n_attachments, 0);
    cr_assert_eq(worker_ask(&b, 'q'), 0);
    cr_assert_eq(stage_status(&stage).n_attachments, 1);
    worker_end(&b);
    for (int tries = 0; tries < 1000 && stage_status(&stage).n_caches > 0; tries++)
        poll(NULL, 0, 5); /* until the daemon has seen the pidfd */
    cr_assert_eq(stage_status(&stage).n_caches, 0);
}

Test(offer, time_to_live_does_not_run_while_an_owner_is_awaited)
{
    struct worker a;
    struct worker b;
    struct kvw_spec spec;
    node_spec(&spec, "c", 2);
    spec.lifetime = KVW_LIFETIME_TTL;
    spec.ttl_seconds = 1;
    OK(kvw_create(stage.node.client, &spec, NULL, NULL));
    worker_start(&stage.node, run_rank_1, &b);
    worker_start(&stage.node, run_rank_0, &a);
    roll_both(&a, &b, 1);

    kill_both();
    start_again();
    cr_assert_eq(worker_ask(&a, 'q'), 0);
    worker_end(&a);
    kill((pid_t)stage_status(&stage).pid, SIGKILL);

    /* b lives, though nobody but the seat knows of it. */
    const uint64_t end_ns = stage_now_ns() + 1200000000ull;
    while (stage_now_ns() < end_ns)
        cr_assert_eq(stage_status(&stage).n_caches, 1);
    cr_assert_eq(worker_ask(&b, 'q'), 0);
    cr_assert_eq(stat_of("c").n_owned, 1);
    worker_end(&b);
}

Test(offer, of_a_reader_waits_for_a_worker)
{
    struct worker a;
    struct kvw_cache *reader;
    struct kvw_view view;
    create("c", 1, KVW_LIFETIME_KEEP);
    worker_start(&stage.node, run_rank_0, &a);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(worker_ask(&a, 'r'), 0);
    OK(kvw_attach(stage.node.client, "c", KVW_READER, NULL, &reader));
    OK(kvw_get(reader, 0, (struct kvw_layer){1}, KVW_COMMITTED, &view));

    kill_both();
    start_again();

    cr_assert_eq(stage_status(&stage).n_attachments, 0);
    cr_assert(reader->is_lost);
    cr_assert_eq(worker_ask(&a, 'q'), 0);
    cr_assert_eq(stage_status(&stage).n_attachments, 2);
    cr_assert_not(reader->is_lost);
    /* Its pin has been there all the time. */
    OK(kvw_release(reader, &view));
    for (int i = 0; i < 5; i++)
        cr_assert_eq(worker_ask(&a, 'r'), 0);
    cr_assert_eq(check_rows(reader), 40);
    kvw_detach(reader);
    cr_assert_eq(stage_status(&stage).n_attachments, 1);
    worker_end(&a);
}

/* A reader that makes no call is not known to live. */
Test(offer, pin_that_nobody_comes_back_for_vanishes_and_its_reader_learns_it)
{
    struct worker a;
    struct kvw_cache *reader;
    struct kvw_view view;
    create("c", 1, KVW_LIFETIME_KEEP);
    worker_start(&stage.node, run_rank_0, &a);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(worker_ask(&a, 'r'), 0);
    OK(kvw_attach(stage.node.client, "c", KVW_READER, NULL, &reader));
    OK(kvw_get(reader, 0, (struct kvw_layer){1}, KVW_COMMITTED, &view));

    kill_both();
    stage_install(&stage, "kvwheeld-hasty");
    start_again();
    cr_assert_eq(worker_ask(&a, 'q'), 0);

    for (int i = 0; i < 5; i++)
        cr_assert_eq(worker_ask(&a, 'r'), 0);
    cr_assert_eq(kvw_release(reader, &view), -KVW_EOVERRUN);
    cr_assert_eq(check_rows(reader), 40);
    kvw_detach(reader);
    worker_end(&a);
}

Test(offer, is_refused_when_the_name_is_another_caches)
{
    struct worker a;
    struct kvw_cache *cache;
    create("c", 1, KVW_LIFETIME_KEEP);
    worker_start(&stage.node, run_rank_0, &a);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(worker_ask(&a, 'r'), 0);

    kill_both();
    start_again();
    create("c", 1, KVW_LIFETIME_KEEP);

    cr_assert_eq(worker_ask(&a, 'q'), 0, "what it asks for is answered all the same");
    cr_assert_eq(stage_status(&stage).n_attachments, 0);
    cr_assert_eq(worker_ask(&a, 'r'), 0, "it goes on with what it has");
    OK(kvw_attach(stage.node.client, "c", 0, NULL, &cache));
    cr_assert_eq(check_rows(cache), 0);
    kvw_detach(cache);
    worker_end(&a);
}

Test(offer, of_two_caches_by_one_process_brings_both)
{
    struct kvw_cache *c;
    struct kvw_cache *d;
    create("c", 1, KVW_LIFETIME_KEEP);
    create("d", 2, KVW_LIFETIME_JOB);
    OK(kvw_attach(stage.node.client, "c", 0, NULL, &c));
    OK(kvw_attach(stage.node.client, "d", 1, NULL, &d));
    OK(roll_chunk(c, 4, 1));

    for (int i = 0; i < 2; i++) {
        kill_both();
        start_again();
        cr_assert_eq(stage_status(&stage).n_attachments, 2);
    }

    OK(roll_chunk(c, 4, 1));
    cr_assert_eq(check_rows(c), 8);
    kvw_detach(d);
    cr_assert_eq(stage_status(&stage).n_caches, 1);
    kvw_detach(c);
    cr_assert_eq(stage_status(&stage).n_attachments, 0);
}

Test(offer, leaves_numbers_of_the_daemon_before_to_nobody_else)
{
    struct kvw_cache *c;
    struct kvw_cache *d;
    create("c", 1, KVW_LIFETIME_KEEP);
    create("d", 1, KVW_LIFETIME_KEEP);
    OK(kvw_attach(stage.node.client, "c", 0, NULL, &c));
    OK(kvw_attach(stage.node.client, "d", 0, NULL, &d));

    kill_both();
    start_again();
    /* d gets the number that c had. */
    kvw_detach(c);

    cr_assert_eq(stage_status(&stage).n_attachments, 1);
    OK(roll_chunk(d, 4, 1));
    cr_assert_eq(stat_of("d").n_owned, 1);
    kvw_detach(d);
    cr_assert_eq(stage_status(&stage).n_attachments, 0);
}
