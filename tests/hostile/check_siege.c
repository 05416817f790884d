/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that break the rules, or keep them in bad faith. Beside each of them an honest
 * one is answered in time, old connections and new ones (siege.h).
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/hostile/siege.h"

#define WATCH_MS 1200u

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

TestSuite(siege, .init = setup, .fini = teardown, .timeout = 120);

/* Of an attacker: a connection, whatever it takes. */
static int enter(const struct siege *of, bool says_hello)
{
    struct kvw_message answer;

    for (;;) {
        int fd = raw_connect(of->rig.socket);
        if (fd >= 0 && (!says_hello || siege_hello(fd, &answer) == 0))
            return fd;
        if (fd >= 0)
            close(fd);
        (void)poll(NULL, 0, 1);
    }
}

static size_t encode_status(uint8_t packet[KVW_MESSAGE_MAX])
{
    struct kvw_message status = {.type = KVW_MESSAGE_STATUS};

    return (size_t)message_encode(&status, packet, KVW_MESSAGE_MAX);
}

/* ------------------------------------------------------------- messages ---------- */

/* Random bytes of any size, halves of messages, empty packets, before hello and after. */
static void attack_with_garbage(const struct siege *of)
{
    static uint8_t bytes[KVW_MESSAGE_MAX + 4096];
    unsigned seed = (unsigned)getpid();

    siege_at_work();
    for (uint32_t i = 0;; i++) {
        int fd = enter(of, i % 2 == 0);
        size_t n_bytes = i % 8 == 0 ? 0 : (size_t)rand_r(&seed) % sizeof bytes;
        for (size_t b = 0; b < n_bytes; b++)
            bytes[b] = (uint8_t)rand_r(&seed);
        if (i % 3 == 0)
            n_bytes = encode_status(bytes) - (n_bytes > 0);
        (void)send(fd, bytes, n_bytes, MSG_NOSIGNAL);
        close(fd);
    }
}

Test(siege, garbage_oversize_empty_early_and_half_messages)
{
    for (int i = 0; i < 3; i++)
        siege_attacker(&siege, attack_with_garbage, i == 0 ? 0 : SIEGE_ENEMY);

    siege_watch(&siege, "garbage", WATCH_MS);
    siege_relieve(&siege);
}

/* As many requests as go, over as many connections as go. */
static void attack_with_a_flood(const struct siege *of)
{
    static uint8_t packet[KVW_MESSAGE_MAX];
    static uint8_t rubbish[KVW_MESSAGE_MAX];
    static struct pollfd fds[120];
    size_t n_bytes = encode_status(packet);

    for (int i = 0; i < 120; i++)
        fds[i] = (struct pollfd){.fd = enter(of, true), .events = POLLIN | POLLOUT};
    siege_at_work();
    for (;;) {
        (void)poll(fds, 120, -1);
        for (int i = 0; i < 120; i++) {
            if (fds[i].revents & POLLIN)
                (void)recv(fds[i].fd, rubbish, sizeof rubbish, MSG_DONTWAIT);
            if (fds[i].revents & POLLOUT)
                (void)send(fds[i].fd, packet, n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
    }
}

Test(siege, flood_of_requests_over_hundreds_of_connections)
{
    for (int i = 0; i < 4; i++)
        siege_attacker(&siege, attack_with_a_flood, SIEGE_ENEMY);

    siege_watch(&siege, "flood", WATCH_MS);
    siege_relieve(&siege);
}

/* Asks and never reads; asks for descriptors and does not take them. */
static void attack_by_not_reading(const struct siege *of)
{
    struct kvw_message attach = {.type = KVW_MESSAGE_ATTACH,
                                 .attach = {.name = "honest", .rank = KVW_RANK_READER}};
    uint8_t packet[KVW_MESSAGE_MAX];

    siege_at_work();
    for (uint32_t i = 0;; i++) {
        int fd = enter(of, true);
        size_t n_bytes = i % 2 == 0
                             ? encode_status(packet)
                             : (size_t)message_encode(&attach, packet, sizeof packet);
        struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
        while (poll(&poll_fd, 1, 100) > 0 && (poll_fd.revents & POLLOUT) != 0 &&
               send(fd, packet, n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
            ;
        if (i % 16 != 0)
            close(fd);
    }
}

Test(siege, clients_that_never_read)
{
    for (int i = 0; i < 3; i++)
        siege_attacker(&siege, attack_by_not_reading, i == 0 ? 0 : SIEGE_ENEMY);

    siege_watch(&siege, "never reading", WATCH_MS);
    siege_relieve(&siege);
}

/* ---------------------------------------------------------- descriptors ---------- */

static bool send_fds(int socket, const uint8_t *packet, size_t n_bytes, const int *fds,
                     size_t n_fds)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))] = {0};
    struct iovec body = {.iov_base = (void *)(uintptr_t)packet, .iov_len = n_bytes};
    struct msghdr head = {.msg_iov = &body,
                          .msg_iovlen = 1,
                          .msg_control = control,
                          .msg_controllen = CMSG_SPACE(n_fds * sizeof(int))};
    struct cmsghdr *part = CMSG_FIRSTHDR(&head);

    *part = (struct cmsghdr){.cmsg_len = CMSG_LEN(n_fds * sizeof(int)),
                             .cmsg_level = SOL_SOCKET,
                             .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(part), fds, n_fds * sizeof(int));
    return sendmsg(socket, &head, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

/* A message that may carry descriptors, one that may not, and none at all. */
static size_t encode_any(uint32_t i, uint8_t packet[KVW_MESSAGE_MAX])
{
    struct kvw_message offer = {.type = KVW_MESSAGE_OFFER, .offer = {.attachment = 7}};

    if (i % 3 == 0)
        return encode_status(packet);
    if (i % 3 == 1)
        return (size_t)message_encode(&offer, packet, KVW_MESSAGE_MAX);
    packet[0] = 0xa5;
    return 1;
}

static void attack_with_descriptors(const struct siege *of)
{
    uint8_t packet[KVW_MESSAGE_MAX];
    int fds[253];
    int ends[2];

    siege_at_work();
    for (uint32_t i = 0;; i++) {
        int fd = enter(of, i % 4 != 0);
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) < 0)
            _exit(4);
        for (int d = 0; d < 253; d++)
            fds[d] = d % 3 == 0 ? fd : ends[d % 2];
        size_t n_bytes = encode_any(i, packet);
        (void)send_fds(fd, packet, n_bytes, fds, i % 2 == 0 ? 253 : 4);
        (void)send_fds(fd, packet, n_bytes, fds, 253); /* and some behind it */
        close(ends[0]);
        close(ends[1]);
        close(fd);
    }
}

Test(siege, messages_with_253_descriptors)
{
    for (int i = 0; i < 2; i++)
        siege_attacker(&siege, attack_with_descriptors, i == 0 ? 0 : SIEGE_ENEMY);

    siege_watch(&siege, "descriptors", WATCH_MS);
    siege_relieve(&siege);
}

/* A TCP socket that does not close before its peer has read, or an hour is over. */
static int lingering_socket(void)
{
    static char bytes[1 << 20];
    const struct linger linger = {.l_onoff = 1, .l_linger = 3600};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(listener, 4) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) < 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        _exit(4);
    while (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
        ;
    if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) < 0)
        _exit(4);
    return fd;
}

/* A process that ends does not linger: the daemon's is the last close. */
static void attack_with_lingering_sockets(const struct siege *of)
{
    uint8_t packet[KVW_MESSAGE_MAX];

    for (uint32_t i = 0; i < 24; i++) {
        int connection = enter(of, i % 4 != 3);
        size_t n_bytes = encode_any(i, packet);
        pid_t pid = fork();
        if (pid == 0) {
            int fd = lingering_socket();
            if (i % 2 == 0) /* what follows stays unread when it is dropped */
                (void)send(connection, "x", 1, MSG_NOSIGNAL);
            (void)send_fds(connection, packet, n_bytes, &fd, 1);
            _exit(0);
        }
        (void)waitpid(pid, NULL, 0);
        if (i % 5 == 0)
            close(connection);
        if (i == 4)
            siege_at_work();
    }
}

Test(siege, descriptors_whose_close_lingers_for_an_hour)
{
    siege_attacker(&siege, attack_with_lingering_sockets, SIEGE_ENEMY);

    siege_watch(&siege, "lingering sockets", WATCH_MS);
    siege_relieve(&siege);
}

/* Memory that is freed with the daemon's descriptor. */
static void attack_with_memory(const struct siege *of)
{
    uint8_t packet[KVW_MESSAGE_MAX];

    for (uint32_t i = 0;; i++) {
        int connection = enter(of, true);
        int fd = memfd_create("big", MFD_CLOEXEC);
        if (fd < 0 || fallocate(fd, 0, 0, 1ll << 30) < 0)
            _exit(4);
        if (i == 1)
            siege_at_work();
        (void)send_fds(connection, packet, encode_any(i, packet), &fd, 1);
        close(fd);
        close(connection);
    }
}

Test(siege, descriptors_of_a_gigabyte_each)
{
    siege_attacker(&siege, attack_with_memory, SIEGE_ENEMY);

    siege_watch(&siege, "memory", 2 * WATCH_MS);
    siege_relieve(&siege);
}

/* --------------------------------------------------------- in bad faith ---------- */

/* Its mappings are locked most of the time: who looks at its memory waits. */
static void attack_by_forking(const struct siege *of)
{
    struct kvw_message attach = {.type = KVW_MESSAGE_ATTACH,
                                 .attach = {.name = "honest", .rank = KVW_RANK_READER}};
    struct kvw_message answer;
    int fd = enter(of, true);

    if (raw_call(fd, &attach, &answer) != 0 ||
        mmap(NULL, 2ull << 30, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) == MAP_FAILED)
        _exit(4);
    siege_at_work();
    for (;;) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(0);
        (void)waitpid(pid, NULL, 0);
    }
}

Test(siege, attached_process_whose_memory_cannot_be_looked_at)
{
    siege_attacker(&siege, attack_by_forking, 0);

    siege_watch(&siege, "forking", WATCH_MS);
    siege_relieve(&siege);
}

/* Creates, touches nothing, removes: 2 GiB each time. */
static void create_forever(const struct siege *of, uint8_t pages)
{
    struct kvw_geometry geometry = small_geometry(1 << 20);
    struct kvw_message answer;
    int fd = enter(of, true);

    geometry.pages = pages;
    siege_at_work();
    for (;;) {
        if (ask_create(fd, "big", &geometry, 2, 0, &answer) != 0 ||
            ask_remove(fd, "big", true, &answer) != 0)
            _exit(4);
    }
}

static void attack_by_creating(const struct siege *of)
{
    create_forever(of, KVW_GEOMETRY_PAGES_NONE);
}

static void attack_by_creating_huge(const struct siege *of)
{
    create_forever(of, KVW_GEOMETRY_PAGES_THP);
}

Test(siege, creating_and_removing_two_gigabytes_again_and_again)
{
    siege_attacker(&siege, attack_by_creating, SIEGE_ENEMY);

    siege_watch(&siege, "creating", 2 * WATCH_MS);
    siege_relieve(&siege);
}

/* Beside the loop threads fill and collapse them. */
Test(siege, creating_and_removing_two_gigabytes_of_huge_pages)
{
    siege_attacker(&siege, attack_by_creating_huge, SIEGE_ENEMY);

    siege_watch(&siege, "creating huge pages", 2 * WATCH_MS);
    siege_relieve(&siege);
}
