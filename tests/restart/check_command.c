/* SPDX-License-Identifier: Apache-2.0 */
/* `kvwheel restart`: both programs become the installed one, or nothing changes. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cache.h"
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

TestSuite(restart, .init = setup, .fini = teardown, .timeout = 60);

static void create(const char *name, uint32_t n_ranks)
{
    struct kvw_spec spec;

    node_spec(&spec, name, n_ranks);
    OK(kvw_create(stage.node.client, &spec, NULL, NULL));
}

static void expect_text(const char *part)
{
    cr_assert_not_null(strstr(text, part), "no '%s' in: %s", part, text);
}

Test(restart, replaces_daemon_and_keeper_and_keeps_everything)
{
    struct kvw_cache *reader;
    struct roller roller;
    char part[64];
    create("c", 1);
    OK(kvw_attach(stage.node.client, "c", KVW_READER, NULL, &reader));
    roller_start(&roller, stage.node.socket, "c", 0);
    struct kvw_message_status_is before = stage_status(&stage);

    stage_install(&stage, "kvwheeld-next");
    cr_assert_eq(stage_run(&stage, text, sizeof text, "restart"), 0, "%s", text);

    struct kvw_message_status_is after = stage_status(&stage);
    snprintf(part, sizeof part, "was pid %u, version %s)", before.pid, before.version);
    expect_text(part);
    snprintf(part, sizeof part, "pid %u, version %s-next", after.pid, before.version);
    expect_text(part);
    cr_assert_neq(after.pid, before.pid);
    cr_assert_eq(after.keeper_pid, before.keeper_pid);
    cr_assert(stage_runs_installed(&stage, (pid_t)after.pid));
    cr_assert(stage_runs_installed(&stage, (pid_t)after.keeper_pid));
    cr_assert_eq(after.n_restarts, 0, "a restart is no death");
    cr_assert_eq(after.n_attachments, 2);
    cr_assert_str_eq(after.degraded, before.degraded);
    roller_await(&roller, 20);
    cr_assert_eq(roller_ask(&roller), 0);
    fprintf(stderr, "longest chunk of the worker meanwhile: %.2f ms\n",
            (double)roller.words->longest_ns / 1e6);
    roller_end(&roller);
    cr_assert_gt(check_rows(reader), 80);
    kvw_detach(reader);
}

Test(restart, of_the_new_program_goes_on_like_the_old_one)
{
    create("c", 1);
    stage_install(&stage, "kvwheeld-next");
    cr_assert_eq(stage_run(&stage, text, sizeof text, "restart"), 0, "%s", text);
    struct kvw_message_status_is before = stage_status(&stage);

    kill((pid_t)before.pid, SIGKILL);
    struct kvw_message_status_is after = stage_status(&stage);
    cr_assert_eq(after.n_restarts, 1);
    cr_assert_eq(after.n_caches, 1);
    kill((pid_t)after.keeper_pid, SIGKILL);
    while (stage_status(&stage).keeper_pid == after.keeper_pid)
        ;
    stage_install(&stage, "kvwheeld");
    cr_assert_eq(stage_run(&stage, text, sizeof text, "--json restart"), 0, "%s", text);

    after = stage_status(&stage);
    expect_text("\"old\"");
    expect_text("-next");
    cr_assert(stage_runs_installed(&stage, (pid_t)after.pid));
    cr_assert(stage_runs_installed(&stage, (pid_t)after.keeper_pid));
    cr_assert_eq(after.n_caches, 1);
}

Test(restart, another_layout_is_refused_in_words_and_the_old_program_goes_on)
{
    struct roller roller;
    create("c", 1);
    roller_start(&roller, stage.node.socket, "c", 0);
    struct kvw_message_status_is before = stage_status(&stage);

    stage_install(&stage, "kvwheeld-other");
    cr_assert_eq(stage_run(&stage, text, sizeof text, "restart"), 4, "%s", text);

    expect_text("layout 2.");
    expect_text("layout");
    expect_text(before.version);
    cr_assert_eq(stage_run(&stage, text, sizeof text, "status"), 5, "%s", text);
    expect_text("does not adopt");
    struct kvw_message_status_is after = stage_status(&stage);
    cr_assert_str_eq(after.version, before.version);
    cr_assert_not(stage_runs_installed(&stage, (pid_t)after.pid));
    cr_assert_not(stage_runs_installed(&stage, (pid_t)after.keeper_pid));
    cr_assert_eq(after.keeper_pid, before.keeper_pid);
    cr_assert_eq(after.n_caches, 1);
    cr_assert_eq(after.n_attachments, 1);
    roller_await(&roller, 20);
    cr_assert_eq(roller_ask(&roller), 0);
    roller_end(&roller);

    stage_install(&stage, "kvwheeld-next");
    cr_assert_eq(stage_run(&stage, text, sizeof text, "restart"), 0, "%s", text);
    after = stage_status(&stage);
    cr_assert(stage_runs_installed(&stage, (pid_t)after.pid));
    cr_assert_str_eq(after.degraded, before.degraded);
}

Test(restart, program_that_never_serves_is_given_up_and_the_old_program_goes_on)
{
    struct roller roller;
    create("c", 1);
    roller_start(&roller, stage.node.socket, "c", 0);
    struct kvw_message_status_is before = stage_status(&stage);

    stage_install(&stage, "kvwheeld-mute");
    cr_assert_eq(stage_run(&stage, text, sizeof text, "restart"), 4, "%s", text);

    expect_text("ended before it served (signal 9)");
    struct kvw_message_status_is after = stage_status(&stage);
    cr_assert_str_eq(after.version, before.version);
    cr_assert_eq(after.keeper_pid, before.keeper_pid);
    cr_assert_not(stage_runs_installed(&stage, (pid_t)after.keeper_pid));
    cr_assert_eq(after.n_caches, 1);
    cr_assert_eq(after.n_attachments, 1);
    roller_await(&roller, 20);
    cr_assert_eq(roller_ask(&roller), 0);
    roller_end(&roller);
}

Test(restart, another_layout_is_welcome_where_nothing_is_kept)
{
    stage_install(&stage, "kvwheeld-other");

    cr_assert_eq(stage_run(&stage, text, sizeof text, "restart"), 0, "%s", text);

    cr_assert(stage_runs_installed(&stage, (pid_t)stage_status(&stage).pid));
}

Test(restart, of_no_program_changes_nothing)
{
    static const char *const bytes[] = {"not a program", "#!/bin/true\n",
                                        "#!/bin/false\n"};
    create("c", 1);
    struct kvw_message_status_is before = stage_status(&stage);

    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        stage_install_bytes(&stage, bytes[i]);
        cr_assert_eq(stage_run(&stage, text, sizeof text, "restart"), 4, "%s", text);
        expect_text("nothing has changed");
    }
    cr_assert_eq(unlink(stage.program), 0);
    cr_assert_eq(stage_run(&stage, text, sizeof text, "restart"), 4, "%s", text);
    expect_text("No such file");

    struct kvw_message_status_is after = stage_status(&stage);
    cr_assert_eq(after.pid, before.pid);
    cr_assert_eq(after.n_caches, 1);
    cr_assert_str_eq(after.degraded, before.degraded);
    stage_install(&stage, "kvwheeld");
    cr_assert_eq(stage_run(&stage, text, sizeof text, "restart"), 0, "%s", text);
}

Test(restart, in_the_midst_of_requests_fails_none)
{
    enum { N_BUSY = 2, N_RESTARTS = 5 };
    pid_t busy[N_BUSY];
    char name[8];

    for (int i = 0; i < N_BUSY; i++) {
        snprintf(name, sizeof name, "b%d", i);
        create(name, 1);
        busy[i] = fork();
        if (busy[i] != 0)
            continue;
        struct kvw_client *client;
        struct kvw_cache *cache;
        int error = client_open(stage.node.socket, false, &client);
        for (int n = 0; n < 150 && error == 0; n++) {
            error = kvw_attach(client, name, 0, NULL, &cache);
            if (error == 0)
                error = roll_chunk(cache, 4, 1);
            if (error == 0)
                kvw_detach(cache);
        }
        if (error != 0)
            fprintf(stderr, "busy: %s\n", kvw_last_error());
        _exit(error != 0);
    }
    for (int n = 0; n < N_RESTARTS; n++)
        cr_assert_eq(stage_run(&stage, text, sizeof text, "restart"), 0, "%s", text);

    for (int i = 0; i < N_BUSY; i++) {
        int status;
        cr_assert_eq(waitpid(busy[i], &status, 0), busy[i]);
        cr_assert_eq(status, 0);
    }
    cr_assert_eq(stage_status(&stage).n_caches, N_BUSY);
    cr_assert_eq(stage_status(&stage).n_attachments, 0);
}

Test(restart, is_for_the_daemons_user)
{
    if (getuid() != 0)
        cr_skip_test("needs root");
    pid_t child = fork();
    if (child == 0) {
        struct kvw_client *client;
        struct kvw_message request = {.type = KVW_MESSAGE_RESTART};
        struct kvw_message answer;
        if (chmod(stage.node.folder, 0755) < 0 || setuid(65534) < 0 ||
            client_open(stage.node.socket, false, &client) != 0)
            _exit(2);
        request.restart.daemon_epoch = client->daemon_epoch;
        _exit(client_call(client, &request, &answer, NULL, 0, NULL, NULL) != -EACCES);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);

    cr_assert_eq(status, 0);
}
