/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting, against daemons that misbehave and against none. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "client/connect.h"
#include "client/wire.h"
#include "proto/layout.h"
#include "tests/cli/fake.h"

#define assert_told(part) \
    cr_assert_not_null(strstr(kvw_last_error(), part), "have: %s", kvw_last_error())

static void script_welcome(struct fake *fake)
{
    fake_welcome(fake, 42);
}

Test(connect, knows_the_daemon_that_said_welcome)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    fake_run(&fake, script_welcome);

    cr_assert_eq(kvw_connect(fake.path, &client), 0);

    cr_assert_eq(client->daemon_epoch, 42);
    cr_assert_eq(client->daemon_pid, 77);
    cr_assert_eq(fcntl(client->socket, F_GETFD), FD_CLOEXEC);
    kvw_disconnect(client);
    fake_fini(&fake);
}

/* A daemon that was just killed: its listener accepts, and hangs up. */
static void script_hang_up_thrice(struct fake *fake)
{
    struct kvw_message hello;

    fake_accept(fake);
    fake_hang_up(fake); /* HELLO unread, or not yet sent */
    fake_accept(fake);
    fake_expect(fake, KVW_MESSAGE_HELLO, &hello);
    fake_hang_up(fake);
    fake_accept(fake);
    fake_welcome(fake, 43);
}

Test(connect, tries_again_when_it_is_hung_up_on)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    fake_run(&fake, script_hang_up_thrice);

    cr_assert_eq(kvw_connect(fake.path, &client), 0);

    cr_assert_eq(client->daemon_epoch, 43);
    kvw_disconnect(client);
    fake_fini(&fake);
    cr_assert_eq(fake.n_accepted, 4);
}

static void script_hang_up_always(struct fake *fake)
{
    uint64_t end_ms = wire_now_ms() + 3000;
    struct pollfd waiting = {.fd = fake->listener, .events = POLLIN};

    while (wire_now_ms() < end_ms) {
        if (poll(&waiting, 1, 100) > 0)
            fake_accept(fake);
        fake_hang_up(fake);
    }
}

Test(connect, gives_up_on_hang_ups_after_two_seconds_and_without_spinning)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    fake_run(&fake, script_hang_up_always);
    uint64_t start_ms = wire_now_ms();

    cr_assert_eq(kvw_connect(fake.path, &client), -ECONNREFUSED);

    assert_told("hangs up");
    cr_assert_geq(wire_now_ms() - start_ms, 2000);
    cr_assert_leq(wire_now_ms() - start_ms, 3000);
    fake_fini(&fake);
    cr_assert_lt(fake.n_accepted, 300);
}

static void script_other_version(struct fake *fake)
{
    struct kvw_message hello;
    struct kvw_message answer = {.type = KVW_MESSAGE_WELCOME};

    fake_accept(fake);
    fake_expect(fake, KVW_MESSAGE_HELLO, &hello);
    answer.request = hello.request;
    answer.welcome.protocol = 9;
    answer.welcome.layout_hash = layout_hash();
    snprintf(answer.welcome.version, sizeof answer.welcome.version, "7.7");
    fake_answer(fake, &answer, 0);
}

Test(connect, refuses_a_daemon_of_another_version)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    fake_run(&fake, script_other_version);

    cr_assert_eq(kvw_connect(fake.path, &client), -KVW_ELAYOUT);

    assert_told("7.7");
    assert_told("protocol 9");
    fake_fini(&fake);
}

static void script_refuse_hello(struct fake *fake)
{
    struct kvw_message hello;

    fake_accept(fake);
    fake_expect(fake, KVW_MESSAGE_HELLO, &hello);
    fake_refuse(fake, hello.request, EUSERS, "too many clients: need 1, have 0");
}

Test(connect, hands_on_the_words_of_a_daemon_that_refuses)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    fake_run(&fake, script_refuse_hello);

    cr_assert_eq(kvw_connect(fake.path, &client), -EUSERS);

    assert_told("too many clients");
    cr_assert(client_failure().is_refused);
    cr_assert_eq(client_failure().need, 12);
    cr_assert_eq(client_failure().have, 7);
    fake_fini(&fake);
}

static void script_garbage(struct fake *fake)
{
    fake_accept(fake);
    cr_assert_eq(send(fake->peer, "garbage", 7, 0), 7);
}

Test(connect, refuses_a_peer_that_speaks_something_else)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    fake_run(&fake, script_garbage);

    cr_assert_eq(kvw_connect(fake.path, &client), -EPROTO);

    assert_told("does not speak");
    fake_fini(&fake);
}

static void script_silent(struct fake *fake)
{
    struct kvw_message hello;

    fake_accept(fake);
    fake_expect(fake, KVW_MESSAGE_HELLO, &hello);
    cr_assert_eq(recv(fake->peer, fake->packet, 1, 0), 0);
}

Test(connect, has_a_deadline_for_welcome)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    fake_run(&fake, script_silent);
    uint64_t start_ms = wire_now_ms();

    cr_assert_eq(kvw_connect(fake.path, &client), -ETIMEDOUT);

    cr_assert_geq(wire_now_ms() - start_ms, CONNECT_HELLO_MS);
    cr_assert_lt(wire_now_ms() - start_ms, CONNECT_HELLO_MS + 3000);
    fake_fini(&fake);
}

/* ---------------------------------------------------------------- paths ---------- */

Test(connect, says_how_to_start_a_daemon_where_there_is_none)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);

    cr_assert_eq(kvw_connect(fake.path, &client), -ENOENT);

    assert_told(fake.path);
    assert_told("kvwheel start");
    fake_fini(&fake);
}

static void bind_socket(const char *path, int type, int listen_too)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    if (listen_too)
        cr_assert_eq(listen(fd, 1), 0);
    else
        close(fd);
}

Test(connect, tells_a_stale_socket_from_a_daemon)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    bind_socket(fake.path, SOCK_SEQPACKET, 0);

    cr_assert_eq(kvw_connect(fake.path, &client), -ECONNREFUSED);

    assert_told("kvwheel start");
    fake_fini(&fake);
}

Test(connect, says_that_the_path_is_a_file)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    int fd = open(fake.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    close(fd);

    cr_assert_eq(kvw_connect(fake.path, &client), -ENOTSOCK);

    fake_fini(&fake);
}

Test(connect, says_that_the_socket_is_of_another_kind)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    bind_socket(fake.path, SOCK_STREAM, 1);

    cr_assert_eq(kvw_connect(fake.path, &client), -ENOTSOCK);

    fake_fini(&fake);
}

Test(connect, says_that_the_path_is_too_long)
{
    struct kvw_client *client;
    char path[KVW_SOCKET_PATH_MAX + 2];
    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = 0;

    cr_assert_eq(kvw_connect(path, &client), -ENAMETOOLONG);

    assert_told("107");
}

Test(connect, says_that_there_is_no_permission)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    cr_assert_eq(chmod(fake.folder, 0), 0);
    int is_root = geteuid() == 0;
    if (is_root)
        cr_assert_eq(seteuid(65534), 0);

    cr_assert_eq(kvw_connect(fake.path, &client), -EACCES);

    if (is_root)
        cr_assert_eq(seteuid(0), 0);
    cr_assert_eq(chmod(fake.folder, 0700), 0);
    fake_fini(&fake);
}

Test(connect, survives_a_change_of_folder)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    fake_run(&fake, script_welcome);
    cr_assert_eq(chdir(fake.folder), 0);

    cr_assert_eq(kvw_connect("s", &client), 0);

    cr_assert_str_eq(client->socket_path, fake.path);
    kvw_disconnect(client);
    fake_fini(&fake);
}

Test(connect, finds_the_default_path_in_the_order_of_the_manual)
{
    char path[KVW_SOCKET_PATH_MAX + 1], expected[64];

    setenv("KVWHEEL_SOCKET", "/x/y", 1);
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    cr_assert_eq(client_default_path(path), 0);
    cr_assert_str_eq(path, "/x/y");
    unsetenv("KVWHEEL_SOCKET");
    cr_assert_eq(client_default_path(path), 0);
    cr_assert_str_eq(path, "/run/user/7/kvwheel/kvwheeld.sock");
    unsetenv("XDG_RUNTIME_DIR");
    snprintf(expected, sizeof expected, "/tmp/kvwheel-%u/kvwheeld.sock", geteuid());
    cr_assert_eq(client_default_path(path), 0);
    cr_assert_str_eq(path, expected);
}

/* -------------------------------------------------------------- starting ---------- */

/* A kvwheeld that is this shell script. */
static void make_program(struct fake *fake, const char *script)
{
    char path[96];

    snprintf(path, sizeof path, "%s/kvwheeld", fake->folder);
    FILE *file = fopen(path, "we");
    fprintf(file, "#!/bin/sh\n%s\n", script);
    fclose(file);
    cr_assert_eq(chmod(path, 0700), 0);
    setenv("KVWHEELD", path, 1);
}

Test(start, says_that_the_program_was_not_found)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    setenv("KVWHEEL_SOCKET", fake.path, 1);
    setenv("KVWHEELD", "/nowhere/kvwheeld", 1);

    cr_assert_eq(kvw_connect(NULL, &client), -ENOEXEC);

    assert_told("/nowhere/kvwheeld");
    fake_fini(&fake);
}

Test(start, tells_the_last_line_of_the_log_and_leaves_no_child)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    setenv("KVWHEEL_SOCKET", fake.path, 1);
    make_program(&fake, "echo first >&2; echo no memory for you >&2; exit 1");
    uint32_t n_fds = fake_count_fds();

    cr_assert_eq(kvw_connect(NULL, &client), -ENOEXEC);

    assert_told("no memory for you");
    cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1);
    cr_assert_eq(errno, ECHILD);
    cr_assert_eq(fake_count_fds(), n_fds);
    fake_fini(&fake);
}

Test(start, gives_the_program_nothing_but_its_arguments)
{
    char line[256], expected[256], path[128];
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    setenv("KVWHEEL_SOCKET", fake.path, 1);
    make_program(&fake,
                 "{ echo \"$@\"; pwd; ls /proc/self/fd | tr '\\n' ' '; } > $2.seen");
    int leaked = dup(1); /* without close-on-exec */

    cr_assert_eq(kvw_connect(NULL, &client), -ENOEXEC);

    close(leaked);
    snprintf(path, sizeof path, "%s.seen", fake.path);
    FILE *file = fopen(path, "re");
    snprintf(expected, sizeof expected, "--socket %s --log --embedded\n", fake.path);
    cr_assert_not_null(fgets(line, sizeof line, file));
    cr_assert_str_eq(line, expected);
    cr_assert_not_null(fgets(line, sizeof line, file));
    cr_assert_str_eq(line, "/\n");
    cr_assert_not_null(fgets(line, sizeof line, file));
    cr_assert_str_eq(line, "0 1 2 3 ", "descriptors: %s", line); /* 3: of ls */
    fclose(file);
    fake_fini(&fake);
}

Test(start, is_for_the_default_socket_only)
{
    struct kvw_client *client;
    struct fake fake;
    fake_init(&fake);
    make_program(&fake, "touch $2.seen");

    cr_assert_eq(kvw_connect(fake.path, &client), -ENOENT);

    fake_fini(&fake);
}

Test(start, does_not_trust_a_folder_of_somebody_else)
{
    char path[KVW_SOCKET_PATH_MAX + 1], folder[64];
    if (geteuid() != 0)
        cr_skip_test("only root can make a folder of somebody else");
    unsetenv("KVWHEEL_SOCKET");
    unsetenv("XDG_RUNTIME_DIR");
    cr_assert_eq(seteuid(54321), 0);
    snprintf(folder, sizeof folder, "/tmp/kvwheel-%u", 54322);
    cr_assert_eq(mkdir(folder, 0700), 0);
    cr_assert_eq(seteuid(0), 0);
    cr_assert_eq(seteuid(54322), 0);

    int result = client_default_path(path);

    cr_assert_eq(seteuid(0), 0);
    cr_assert_eq(rmdir(folder), 0);
    cr_assert_eq(result, -EACCES);
    assert_told(folder);
}
