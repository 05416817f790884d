/* SPDX-License-Identifier: Apache-2.0 */
/* systemd's descriptor store as keeper; the test plays systemd. */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cache.h"
#include "tests/restart/player.h"
#include "tests/restart/stage.h"

#define OK(call) cr_assert_geq((call), 0, "%s", kvw_last_error())
#define FDS_OF_NOTHING 2 /* lock, layout */
#define FDS_OF_CACHE 4

static struct player player;
static struct kvw_client *client;
static char text[4096];
static char built[512];

static void start(const char *fdstore)
{
    char program[600];

    cr_assert_not_null(getenv("KVW_BIN"));
    snprintf(built, sizeof built, "%s", getenv("KVW_BIN"));
    snprintf(program, sizeof program, "%s/kvwheeld", built);
    player_start(&player, program, fdstore);
    player_await_ready(&player, 1);
    OK(client_open(player.socket, false, &client));
}

static void setup(void)
{
    start(NULL);
}

static void teardown(void)
{
    kvw_disconnect(client);
    player_stop(&player);
}

TestSuite(systemd, .init = setup, .fini = teardown, .timeout = 60);

static struct kvw_message_status_is status(void)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};
    struct kvw_message answer;

    OK(client_call(client, &request, &answer, NULL, 0, NULL, NULL));
    return answer.status_is;
}

static void create(const char *name, uint32_t n_ranks)
{
    struct kvw_spec spec;

    node_spec(&spec, name, n_ranks);
    OK(kvw_create(client, &spec, NULL, NULL));
}

static int run(const char *words)
{
    char command[1024];

    snprintf(command, sizeof command, "'%s/kvwheel' --socket '%s' %s 2>&1", built,
             player.socket, words);
    FILE *output = popen(command, "re");
    cr_assert_not_null(output);
    text[fread(text, 1, sizeof text - 1, output)] = 0;
    int result = pclose(output);
    cr_assert(WIFEXITED(result));
    return WEXITSTATUS(result);
}

static void expect_text(const char *part)
{
    cr_assert_not_null(strstr(text, part), "no '%s' in: %s", part, text);
}

static void kill_daemon(void)
{
    uint32_t n_ready = player.n_ready;

    cr_assert_eq(kill(player_pid(&player), SIGKILL), 0);
    player_await_ready(&player, n_ready + 1);
}

Test(systemd, killed_daemon_loses_nothing)
{
    struct roller roller;
    struct kvw_cache *other;
    struct kvw_cache *reader;
    create("c", 2);
    create("d", 1);
    roller_start(&roller, player.socket, "d", 0);
    /* Two attachments of one process: two pidfds, which must not be taken for one. */
    OK(kvw_attach(client, "c", 1, NULL, &other));
    OK(kvw_attach(client, "c", KVW_READER, NULL, &reader));

    kill_daemon();

    struct kvw_message_status_is now = status();
    cr_assert_eq(now.n_caches, 2);
    cr_assert_eq(now.n_attachments, 3);
    cr_assert_str_eq(now.degraded, "");
    cr_assert_eq(now.keeper_pid, 0);
    cr_assert_eq(kvw_attach(client, "d", 0, NULL, &other), -EBUSY);
    roller_await(&roller, 20);
    cr_assert_eq(roller_ask(&roller), 0);
    roller_kill(&roller);
    kill_daemon();
    int error = -EBUSY;
    for (int tries = 0; tries < 1000 && error == -EBUSY; tries++) {
        error = kvw_attach(client, "d", 0, NULL, &other);
        if (error == -EBUSY)
            poll(NULL, 0, 5); /* until the daemon has seen the pidfd */
    }
    OK(error);
    cr_assert_gt(check_rows(other), 80);
    kvw_detach(reader);
}

Test(systemd, death_of_a_worker_meanwhile_is_noticed)
{
    struct roller roller;
    struct kvw_cache *successor;
    create("c", 1);
    roller_start(&roller, player.socket, "c", 0);
    pthread_mutex_lock(&player.mutex);
    player.is_holding = true;
    pthread_mutex_unlock(&player.mutex);
    cr_assert_eq(kill(player_pid(&player), SIGKILL), 0);
    (void)player_await_end(&player);

    roller_kill(&roller);
    player_resume(&player);
    player_await_ready(&player, 2);

    while (status().n_attachments > 0)
        poll(NULL, 0, 1);
    OK(kvw_attach(client, "c", 0, NULL, &successor));
}

Test(systemd, store_has_what_is_there_and_no_more)
{
    struct kvw_cache *cache;
    cr_assert_eq(player_count(&player), FDS_OF_NOTHING);
    create("c", 1);
    cr_assert_eq(player_count(&player), FDS_OF_NOTHING + FDS_OF_CACHE);
    OK(kvw_attach(client, "c", 0, NULL, &cache));
    cr_assert_eq(player_count(&player), FDS_OF_NOTHING + FDS_OF_CACHE + 1);

    OK(kvw_remove(client, "c", 1));
    kill_daemon();

    cr_assert_eq(status().n_caches, 1, "removed, but somebody is attached");
    cr_assert_eq(kvw_remove(client, "c", 1), -ENOENT);
    kvw_detach(cache);
    cr_assert_eq(status().n_caches, 0);
    create("e", 1); /* waits for the store to have heard all before it */
    OK(kvw_remove(client, "e", 0));
    create("f", 1);
    cr_assert_eq(player_count(&player), FDS_OF_NOTHING + FDS_OF_CACHE);
}

Test(systemd, stop_by_systemd_keeps_and_stop_by_the_user_empties)
{
    create("c", 1);
    pthread_mutex_lock(&player.mutex);
    player.is_holding = true;
    pthread_mutex_unlock(&player.mutex);

    cr_assert_eq(kill(player_pid(&player), SIGTERM), 0);
    cr_assert_eq(player_await_end(&player), 0);
    cr_assert_eq(player_count(&player), FDS_OF_NOTHING + FDS_OF_CACHE);
    player_resume(&player);
    player_await_ready(&player, 2);

    cr_assert_eq(status().n_caches, 1);
    cr_assert_eq(run("stop"), 4, "%s", text);
    cr_assert_eq(run("stop --force"), 0, "%s", text);
    cr_assert_eq(player_await_end(&player), 0);
    cr_assert_eq(player_count(&player), 0);
}

Test(systemd, restart_starts_the_installed_program)
{
    struct roller roller;
    create("c", 1);
    roller_start(&roller, player.socket, "c", 0);
    snprintf(player.program, sizeof player.program, "%s/../tests/kvwheeld-next", built);

    cr_assert_eq(run("restart"), 0, "%s", text);

    expect_text("-next (was pid");
    struct kvw_message_status_is now = status();
    cr_assert_not_null(strstr(now.version, "-next"));
    cr_assert_eq(now.n_caches, 1);
    cr_assert_eq(now.n_attachments, 1);
    cr_assert_eq(roller_ask(&roller), 0);
    roller_end(&roller);
}

Test(systemd, another_layout_adopts_nothing_and_loses_nothing)
{
    struct roller roller;
    struct kvw_cache *cache;
    create("c", 1);
    roller_start(&roller, player.socket, "c", 0);
    snprintf(player.program, sizeof player.program, "%s/../tests/kvwheeld-other",
             built);

    kill_daemon();

    cr_assert_not_null(strstr(player.status, "does not adopt"), "%s", player.status);
    cr_assert_eq(run("status"), 5, "%s", text);
    expect_text("does not adopt");
    cr_assert_eq(run("ls"), 4, "%s", text);
    expect_text("kvwheel restart");
    cr_assert_eq(run("stop"), 4, "%s", text);
    cr_assert_eq(kvw_attach(client, "c", KVW_READER, NULL, &cache), -EPROTO);
    cr_assert_eq(roller_ask(&roller), 0, "its attachment may come back");
    kill_daemon();
    snprintf(player.program, sizeof player.program, "%s/kvwheeld", built);
    cr_assert_eq(run("restart"), 0, "%s", text);

    cr_assert_eq(status().n_attachments, 1);
    cr_assert_str_eq(status().degraded, "");
    roller_await(&roller, 20);
    cr_assert_eq(roller_ask(&roller), 0);
    roller_end(&roller);
    OK(kvw_attach(client, "c", KVW_READER, NULL, &cache));
    cr_assert_gt(check_rows(cache), 80);
}

TestSuite(poor, .fini = teardown, .timeout = 60);

Test(poor, full_store_refuses_and_leaves_nothing)
{
    struct kvw_spec spec;
    struct kvw_cache *cache;
    start("7");
    create("c", 1);
    node_spec(&spec, "d", 1);

    cr_assert_eq(kvw_create(client, &spec, NULL, NULL), -ENFILE, "%s",
                 kvw_last_error());
    OK(kvw_attach(client, "c", 0, NULL, &cache));
    struct kvw_cache *reader;
    cr_assert_eq(kvw_attach(client, "c", KVW_READER, NULL, &reader), -ENFILE, "%s",
                 kvw_last_error());

    cr_assert_eq(player_count(&player), 7);
    cr_assert_eq(status().n_caches, 1);
    cr_assert_eq(status().n_attachments, 1);
}

Test(nobody, option_needs_systemd)
{
    char command[700];

    snprintf(command, sizeof command,
             "'%s/kvwheeld' --systemd --socket /tmp/none 2>/dev/null",
             getenv("KVW_BIN"));
    int result = system(command);
    cr_assert_eq(WEXITSTATUS(result), 2);
}
