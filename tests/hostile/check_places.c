/* SPDX-License-Identifier: Apache-2.0 */
/* Who takes all that there is of something: others are served all the same. */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/hostile/siege.h"

#define HALF_OPEN_EACH 1450 /* seven of them: more than 10,000 */

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

TestSuite(places, .init = setup, .fini = teardown, .timeout = 120);

/* All connections stay open on this side. */
static void attack_half_open(const struct siege *of)
{
    for (int n = 0; n < HALF_OPEN_EACH;) {
        if (raw_connect(of->rig.socket) >= 0)
            n++;
        else
            (void)poll(NULL, 0, 1);
        if (n == HALF_OPEN_EACH / 2)
            siege_at_work();
    }
}

Test(places, ten_thousand_half_open_connections_of_one_user)
{
    for (int i = 0; i < 7; i++)
        siege_attacker(&siege, attack_half_open, SIEGE_ENEMY);

    siege_watch(&siege, "10,000 half open, another user's", 1500);
    siege_relieve(&siege);
}

/* The same user: whoever says hello is let in all the same. */
Test(places, ten_thousand_half_open_connections_of_the_clients_own_user)
{
    for (int i = 0; i < 7; i++)
        siege_attacker(&siege, attack_half_open, 0);

    siege_watch(&siege, "10,000 half open, the same user's", 1500);
    siege_relieve(&siege);
}

/* With hello, until it is refused. @return how many; the refusal in `answer`. */
static uint32_t enter_until_refused(int *fds, uint32_t n_max,
                                    struct kvw_message *answer)
{
    uint32_t n = 0;

    for (; n < n_max; n++) {
        fds[n] = raw_connect(siege.rig.socket);
        cr_assert_geq(fds[n], 0);
        if (siege_hello(fds[n], answer) != 0)
            return n;
    }
    return n;
}

Test(places, one_process_has_its_share_of_connections)
{
    static int fds[KVW_CLIENTS_MAX];
    struct kvw_message answer;

    /* The honest connection of this process is one of them. */
    uint32_t n = enter_until_refused(fds, KVW_CLIENTS_MAX, &answer);

    cr_assert_eq(n, KVW_CLIENTS_PROCESS_MAX - 1);
    cr_assert_eq(answer.refused.error, EMFILE);
    cr_assert_eq(answer.refused.have, KVW_CLIENTS_PROCESS_MAX);
    cr_assert_not_null(strstr(answer.refused.text, "at most 128 for one process"), "%s",
                       answer.refused.text);
    for (uint32_t i = 0; i <= n; i++)
        close(fds[i]);
}

static void attack_by_staying(const struct siege *of)
{
    struct kvw_message answer;

    for (uint32_t i = 0; i < KVW_CLIENTS_PROCESS_MAX; i++) {
        int fd = raw_connect(of->rig.socket);
        if (fd < 0 || siege_hello(fd, &answer) != 0)
            break;
    }
    siege_at_work();
}

Test(places, one_user_has_half_of_the_connections)
{
    struct kvw_message answer;

    for (int i = 0; i < 6; i++)
        siege_attacker(&siege, attack_by_staying, SIEGE_ENEMY);

    cr_assert_eq(ask_status(siege.control, &answer), 0);
    cr_assert_eq(answer.status_is.n_clients, KVW_CLIENTS_MAX / 2 + 1, "%u",
                 answer.status_is.n_clients);
    int fd = siege_connect_as(&siege, SIEGE_ENEMY);
    cr_assert_eq(siege_hello(fd, &answer), -EMFILE);
    cr_assert_not_null(strstr(answer.refused.text, "user 4712 has 512"), "%s",
                       answer.refused.text);
    close(fd);
    siege_watch(&siege, "a user with all of its connections", 500);
    siege_relieve(&siege);
}

Test(places, last_connections_are_for_users_who_have_few)
{
    struct kvw_message answer;

    for (uint32_t user = 0; user < 3; user++) {
        for (int i = 0; i < 4; i++)
            siege_attacker(&siege, attack_by_staying, SIEGE_ENEMY + user);
    }

    cr_assert_eq(ask_status(siege.control, &answer), 0);
    cr_assert_eq(answer.status_is.n_clients,
                 KVW_CLIENTS_MAX - KVW_CLIENTS_RESERVED + KVW_CLIENTS_FEW, "%u",
                 answer.status_is.n_clients);
    siege_watch(&siege, "three users with all that they get", 500);
    siege_relieve(&siege);
}

static bool is_hung_up(void *context)
{
    struct pollfd poll_fd = {.fd = *(const int *)context, .events = POLLRDHUP};

    return poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & POLLRDHUP) != 0;
}

/* Nothing that a stranger does, or does not do, keeps a place for ever. */
Test(places, connection_without_hello_ends_in_words)
{
    uint8_t packet[KVW_MESSAGE_MAX];
    struct kvw_message answer;
    int fds[KVW_MESSAGE_FDS_MAX];
    uint32_t n_fds;

    int fd = raw_connect(siege.rig.socket);
    const uint64_t begun_ns = now_ns();
    while (!is_hung_up(&fd) && now_ns() - begun_ns < 2 * KVW_HELLO_MS * 1000000ull)
        (void)poll(NULL, 0, 10);

    cr_assert_geq(now_ns() - begun_ns, (KVW_HELLO_MS - 100) * 1000000ull);
    cr_assert_eq(raw_receive(fd, &answer, packet, fds, &n_fds), 0);
    cr_assert_eq(answer.refused.error, ETIMEDOUT);
    cr_assert_not_null(strstr(answer.refused.text, "no hello"), "%s",
                       answer.refused.text);
    close(fd);
}

/* Out of descriptors by half-open connections: they are what goes. */
Test(places, descriptors_used_up_by_strangers_come_back)
{
    struct kvw_message answer;

    limit_descriptors(siege.daemon, 200);
    siege_attacker(&siege, attack_half_open, SIEGE_ENEMY);

    const uint64_t cpu_ns = siege_cpu_ns(siege.daemon);
    for (int i = 0; i < 5; i++) {
        int fd = raw_open(&siege.rig); /* it may be hung up on, and comes again */
        cr_assert_eq(ask_status(fd, &answer), 0);
        cr_assert_eq(ask_status(siege.control, &answer), 0);
        close(fd);
    }
    fprintf(stderr, "out of descriptors: daemon's CPU %.1f ms\n",
            (double)(siege_cpu_ns(siege.daemon) - cpu_ns) / 1e6);
    limit_descriptors(siege.daemon, 1024);
    siege_relieve(&siege);
}

static void attack_with_caches(const struct siege *of)
{
    struct kvw_geometry geometry = small_geometry(8);
    struct kvw_message answer;
    int fd = raw_open(&of->rig);
    char name[32];

    for (uint32_t i = 0; i <= KVW_CACHES_MAX; i++) {
        (void)snprintf(name, sizeof name, "hog%u", i);
        int error = ask_create(fd, name, &geometry, 2, 0, &answer);
        if (error == 0)
            continue;
        if (error != -EDQUOT || i != KVW_CACHES_MAX / 2 ||
            strstr(answer.refused.text, "at most 512 for one user") == NULL)
            _exit(4);
        break;
    }
    siege_at_work();
}

Test(places, one_user_has_half_of_the_caches)
{
    struct kvw_geometry geometry = small_geometry(8);
    struct kvw_message answer;

    siege_attacker(&siege, attack_with_caches, SIEGE_ENEMY);

    int fd = siege_connect_as(&siege, SIEGE_USER);
    cr_assert_eq(siege_hello(fd, &answer), 0);
    cr_assert_eq(ask_create(fd, "mine", &geometry, 0, 0, &answer), 0, "%s",
                 answer.refused.text);
    close(fd);
    siege_watch(&siege, "512 caches of a user", 500);
    siege_relieve(&siege);
}
