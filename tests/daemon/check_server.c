/* SPDX-License-Identifier: Apache-2.0 */
/* One daemon per socket, bad clients, bounds, and the end. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/daemon/proc.h"
#include "tests/daemon/raw.h"

enum { JOB = 0, TTL = 1, KEEP = 2 };

/* A sanitizer keeps what was freed for a while. */
#ifdef __SANITIZE_ADDRESS__
#define GROWTH_BYTES (64ull << 20)
#else
#define GROWTH_BYTES (2ull << 20)
#endif

static struct rig rig;
static struct kvw_message answer;

static void teardown(void)
{
    rig_stop(&rig);
}

TestSuite(server, .fini = teardown, .timeout = 40);

static void start(void)
{
    rig_start(&rig, NULL);
    close(raw_open(&rig));
}

static int create(int fd, const char *name, uint64_t window_rows)
{
    struct kvw_geometry geometry = small_geometry(window_rows);

    return ask_create(fd, name, &geometry, KEEP, 0, &answer);
}

/* The answer to a bare packet, then the end of the connection. */
static void expect_drop(int fd, uint32_t error)
{
    uint8_t packet[KVW_MESSAGE_MAX];
    int fds[KVW_MESSAGE_FDS_MAX];
    uint32_t n_fds;

    cr_assert_eq(raw_receive(fd, &answer, packet, fds, &n_fds), 0);
    cr_assert_eq(answer.type, KVW_MESSAGE_REFUSED);
    cr_assert_eq(answer.refused.error, error);
    cr_assert_eq(raw_receive(fd, &answer, packet, fds, &n_fds), -EPIPE);
    close(fd);
}

Test(server, hello_comes_first)
{
    struct kvw_message status = {.type = KVW_MESSAGE_STATUS};

    start();
    int fd = raw_connect(rig.socket);

    cr_assert_eq(raw_send(fd, &status), 0);

    expect_drop(fd, EPROTO);
}

Test(server, other_version_is_welcomed_and_goes_no_further)
{
    struct kvw_message hello = {.type = KVW_MESSAGE_HELLO,
                                .hello = {.protocol = 99, .layout_hash = 1}};
    uint8_t packet[KVW_MESSAGE_MAX];
    int fds[KVW_MESSAGE_FDS_MAX];
    uint32_t n_fds;

    start();
    int fd = raw_connect(rig.socket);

    cr_assert_eq(raw_call(fd, &hello, &answer), 0);

    cr_assert_eq(answer.welcome.protocol, KVW_PROTOCOL_VERSION);
    cr_assert_eq(answer.welcome.layout_hash, layout_hash());
    cr_assert_eq(raw_receive(fd, &answer, packet, fds, &n_fds), -EPIPE);
    close(fd);
}

Test(server, garbage_is_refused_and_dropped)
{
    uint8_t bytes[KVW_MESSAGE_MAX + 1];

    start();
    memset(bytes, 0xa5, sizeof bytes);

    int fd = raw_open(&rig);
    cr_assert_eq(send(fd, bytes, 100, 0), 100);
    expect_drop(fd, EPROTO);
    fd = raw_open(&rig);
    cr_assert_eq(send(fd, bytes, 3, 0), 3);
    expect_drop(fd, EPROTO);
    fd = raw_open(&rig);
    cr_assert_eq(send(fd, bytes, sizeof bytes, 0), (ssize_t)sizeof bytes);
    expect_drop(fd, EMSGSIZE);
    close(raw_open(&rig));
}

Test(server, empty_packet_ends_the_connection)
{
    uint8_t packet[KVW_MESSAGE_MAX];
    int fds[KVW_MESSAGE_FDS_MAX];
    uint32_t n_fds;

    start();
    int fd = raw_open(&rig);

    cr_assert_eq(send(fd, "", 0, 0), 0);

    cr_assert_eq(raw_receive(fd, &answer, packet, fds, &n_fds), -EPIPE);
    close(fd);
}

/* Until those who hung up are let go. */
static bool returns_to(pid_t pid, int n_fds)
{
    for (int tries = 0; tries < 1000 && proc_count_fds(pid) != n_fds; tries++)
        (void)poll(NULL, 0, 5);
    return proc_count_fds(pid) == n_fds;
}

Test(server, descriptors_of_a_request_are_refused_and_closed)
{
    struct kvw_message status = {.type = KVW_MESSAGE_STATUS};
    uint8_t packet[KVW_MESSAGE_MAX];
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(200 * sizeof(int))] = {0};
    struct iovec body = {.iov_base = packet};
    struct msghdr head = {.msg_iov = &body,
                          .msg_iovlen = 1,
                          .msg_control = control,
                          .msg_controllen = sizeof control};

    start();
    int other = raw_open(&rig);
    cr_assert_eq(ask_status(other, &answer), 0);
    pid_t pid = (pid_t)answer.status_is.pid;
    int n_before = proc_count_fds(pid);
    int fd = raw_open(&rig);
    body.iov_len = (size_t)message_encode(&status, packet, sizeof packet);
    struct cmsghdr *part = CMSG_FIRSTHDR(&head);
    *part = (struct cmsghdr){.cmsg_len = CMSG_LEN(200 * sizeof(int)),
                             .cmsg_level = SOL_SOCKET,
                             .cmsg_type = SCM_RIGHTS};
    for (int i = 0; i < 200; i++)
        memcpy(CMSG_DATA(part) + (size_t)i * sizeof fd, &fd, sizeof fd);

    cr_assert_gt(sendmsg(fd, &head, 0), 0);

    expect_drop(fd, EPROTO);
    cr_assert_eq(ask_status(other, &answer), 0);
    cr_assert(returns_to(pid, n_before));
    close(other);
}

static bool is_hung_up(void *context)
{
    struct pollfd poll_fd = {.fd = *(const int *)context, .events = POLLRDHUP};

    return poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & POLLRDHUP) != 0;
}

Test(server, client_that_never_reads_is_dropped)
{
    struct kvw_message status = {.type = KVW_MESSAGE_STATUS};

    start();
    int fd = raw_open(&rig);
    uint8_t packet[KVW_MESSAGE_MAX];
    size_t n_bytes = (size_t)message_encode(&status, packet, sizeof packet);
    int n_sent = 0;

    while (n_sent < 5000) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
        cr_assert_gt(poll(&poll_fd, 1, 5000), 0);
        if (send(fd, packet, n_bytes, MSG_NOSIGNAL) < 0)
            break;
        n_sent++;
    }

    cr_assert_lt(n_sent, 5000);
    cr_assert(soon(is_hung_up, &fd));
    close(fd);
    fd = raw_open(&rig);
    cr_assert_eq(ask_status(fd, &answer), 0);
    close(fd);
}

Test(server, quota_is_refused_with_need_and_have)
{
    static const char *const options[] = {"--quota", "4M", "--quota-user", "3M", NULL};

    rig_start(&rig, options);
    int fd = raw_open(&rig);

    cr_assert_eq(create(fd, "a", 8), 0);
    uint64_t total = answer.created.total_bytes;
    cr_assert_eq(create(fd, "b", 4096), -EDQUOT);
    cr_assert_gt(answer.refused.need, answer.refused.have);
    cr_assert_eq(answer.refused.have, (4ull << 20) - total);
    cr_assert_not_null(strstr(answer.refused.text, "quota"));
    /* In words: the user's own quota is the smaller one. */
    cr_assert_eq(create(fd, "b", 600), -EDQUOT);
    cr_assert_eq(answer.refused.have, (3ull << 20) - total);
    cr_assert_not_null(strstr(answer.refused.text, "quota of user"));
    cr_assert_eq(ask_remove(fd, "a", false, &answer), 0);
    cr_assert_eq(answer.removed.freed_bytes, total);
    cr_assert_eq(create(fd, "b", 512), 0);
    close(fd);
}

Test(server, memory_is_refused_with_need_and_have)
{
    static const char *const options[] = {"--quota", "1000T", "--quota-user", "1000T",
                                          NULL};

    rig_start(&rig, options);
    int fd = raw_open(&rig);

    /* 2 KiB a row: four TiB. */
    cr_assert_eq(create(fd, "a", 1ull << 30), -ENOMEM, "%s", answer.refused.text);
    cr_assert_gt(answer.refused.need, 1ull << 40);
    cr_assert_lt(answer.refused.have, answer.refused.need);
    cr_assert_not_null(strstr(answer.refused.text, "memory"));
    cr_assert_eq(ask_status(fd, &answer), 0);
    cr_assert_eq(answer.status_is.bytes_used, 0);
    cr_assert_eq(answer.status_is.n_caches, 0);
    close(fd);
}

Test(server, creation_reports_progress_and_serves_meanwhile)
{
    struct kvw_geometry geometry = small_geometry(96 << 10); /* 192 MiB */
    struct kvw_message request = {.type = KVW_MESSAGE_CREATE,
                                  .request = 7,
                                  .create = {.name = "big",
                                             .lifetime = KEEP,
                                             .geometry = (const uint8_t *)&geometry,
                                             .geometry_bytes = sizeof geometry}};
    uint8_t packet[KVW_MESSAGE_MAX];
    int fds[KVW_MESSAGE_FDS_MAX];
    uint32_t n_fds;
    uint32_t n_progress = 0;

    start();
    int fd = raw_open(&rig);
    int second = raw_open(&rig);

    cr_assert_eq(raw_send(fd, &request), 0);
    cr_assert_eq(raw_receive(fd, &answer, packet, fds, &n_fds), 0);
    cr_assert_eq(answer.type, KVW_MESSAGE_PROGRESS);
    /* A second one that asks for the same waits for the first one's. */
    cr_assert_eq(ask_create(second, "big", &geometry, KEEP, 0, &answer), 0);
    cr_assert_eq(answer.created.existed, 1);
    do {
        cr_assert_eq(raw_receive(fd, &answer, packet, fds, &n_fds), 0);
        cr_assert_eq(answer.request, 7);
        n_progress++;
    } while (answer.type == KVW_MESSAGE_PROGRESS);
    cr_assert_eq(answer.type, KVW_MESSAGE_CREATED);
    cr_assert_eq(answer.created.existed, 0);
    cr_assert_geq(n_progress, 3);
    close(fd);
    close(second);
}

static bool nothing_is_used(void *context)
{
    return ask_status(*(const int *)context, &answer) == 0 &&
           answer.status_is.bytes_used == 0 && answer.status_is.n_caches == 0;
}

Test(server, creation_that_nobody_waits_for_is_rolled_back)
{
    struct kvw_geometry geometry = small_geometry(96 << 10);
    struct kvw_message request = {.type = KVW_MESSAGE_CREATE,
                                  .create = {.name = "big",
                                             .lifetime = KEEP,
                                             .geometry = (const uint8_t *)&geometry,
                                             .geometry_bytes = sizeof geometry}};
    uint8_t packet[KVW_MESSAGE_MAX];
    int fds[KVW_MESSAGE_FDS_MAX];
    uint32_t n_fds;

    start();
    int watcher = raw_open(&rig);
    int fd = raw_open(&rig);
    cr_assert_eq(raw_send(fd, &request), 0);
    cr_assert_eq(raw_receive(fd, &answer, packet, fds, &n_fds), 0);
    cr_assert_eq(answer.type, KVW_MESSAGE_PROGRESS);

    close(fd);

    cr_assert(soon(nothing_is_used, &watcher));
    cr_assert_eq(create(watcher, "big", 8), 0);
    close(watcher);
}

Test(server, second_daemon_is_refused_with_the_pid_of_the_first)
{
    char text[512];
    char want[64];

    start();
    int fd = raw_open(&rig);
    cr_assert_eq(ask_status(fd, &answer), 0);

    cr_assert_eq(rig_run(rig.socket, text, sizeof text), 3, "%s", text);

    (void)snprintf(want, sizeof want, "another daemon is running: pid %u",
                   answer.status_is.pid);
    cr_assert_not_null(strstr(text, want), "%s", text);
    cr_assert_eq(ask_status(fd, &answer), 0);
    close(fd);
}

Test(server, only_a_stale_socket_is_replaced)
{
    char path[160];
    char text[512];
    struct stat status;

    start();
    (void)snprintf(path, sizeof path, "%s/other", rig.directory);

    int file = open(path, O_CREAT | O_WRONLY, 0600);
    close(file);
    cr_assert_eq(rig_run(path, text, sizeof text), 4);
    cr_assert_not_null(strstr(text, "regular file"), "%s", text);
    cr_assert_eq(lstat(path, &status), 0);
    cr_assert(S_ISREG(status.st_mode));
    unlink(path);
    cr_assert_eq(symlink("elsewhere", path), 0);
    cr_assert_eq(rig_run(path, text, sizeof text), 4);
    cr_assert_not_null(strstr(text, "symbolic link"), "%s", text);
    unlink(path);
    cr_assert_eq(mkdir(path, 0700), 0);
    cr_assert_eq(rig_run(path, text, sizeof text), 4);
    cr_assert_not_null(strstr(text, "directory"), "%s", text);
    rmdir(path);
    (void)strncat(path, ".lock", sizeof path - strlen(path) - 1);
    unlink(path);
}

Test(server, stale_socket_after_both_died_is_replaced)
{
    start();
    int fd = raw_open(&rig);
    cr_assert_eq(ask_status(fd, &answer), 0);
    cr_assert_eq(create(fd, "a", 8), 0);
    cr_assert_eq(ask_status(fd, &answer), 0);
    pid_t daemon = (pid_t)answer.status_is.pid;
    /* Stopped, so that neither can start the other. */
    cr_assert_eq(kill(daemon, SIGSTOP), 0);
    cr_assert_eq(kill(rig.started, SIGKILL), 0);
    cr_assert_eq(kill(daemon, SIGKILL), 0);
    close(fd);

    rig_start_again(&rig, NULL);

    fd = raw_open(&rig);
    cr_assert_eq(ask_stat(fd, "a", &answer), -ENOENT);
    close(fd);
}

Test(server, shutdown_is_refused_while_caches_exist_unless_forced)
{
    struct kvw_message gentle = {.type = KVW_MESSAGE_SHUTDOWN};
    struct kvw_message forced = {.type = KVW_MESSAGE_SHUTDOWN,
                                 .shutdown = {.is_forced = 1}};
    struct place place;
    struct stat status;

    start();
    int fd = raw_open(&rig);
    cr_assert_eq(create(fd, "a", 8), 0);
    cr_assert_eq(ask_attach(fd, "a", 0, &place, &answer), 0);
    const struct kvw_control_header *header = place.control;

    cr_assert_eq(raw_call(fd, &gentle, &answer), -EBUSY);
    cr_assert_eq(raw_call(fd, &forced, &answer), 0);
    cr_assert_eq(answer.type, KVW_MESSAGE_STOPPING);
    cr_assert_eq(answer.stopping.n_caches, 1);
    cr_assert_eq(rig_wait_end(&rig), 0);
    cr_assert_eq(load_acquire(&header->state), KVW_CONTROL_REMOVED);
    cr_assert_eq(lstat(rig.socket, &status), -1);
    close(fd);
    place_close(&place);
}

Test(server, sigterm_to_either_process_stops_both)
{
    start();
    cr_assert_eq(kill(rig.started, SIGTERM), 0);
    cr_assert_eq(rig_wait_end(&rig), 0);
    rig_stop(&rig);

    start();
    int fd = raw_open(&rig);
    cr_assert_eq(ask_status(fd, &answer), 0);
    cr_assert_eq(kill((pid_t)answer.status_is.pid, SIGTERM), 0);
    cr_assert_eq(rig_wait_end(&rig), 0);
    close(fd);
}

Test(server, embedded_daemon_ends_when_nobody_needs_it)
{
    static const char *const options[] = {"--embedded", "--linger", "0", NULL};
    static const char *const patient[] = {"--embedded", "--linger", "1", NULL};

    rig_start(&rig, options);
    cr_assert_eq(rig_wait_end(&rig), 0);
    rig_stop(&rig);

    rig_start(&rig, patient);
    int fd = raw_open(&rig);
    cr_assert_eq(create(fd, "a", 8), 0);
    cr_assert_eq(ask_remove(fd, "a", false, &answer), 0);
    uint64_t begin_ns = now_ns();
    close(fd);
    cr_assert_eq(rig_wait_end(&rig), 0);
    cr_assert_geq(now_ns() - begin_ns, 900000000ull);
}

static int run_with(const char *option, const char *value)
{
    return rig_run_options((const char *const[]){option, value, NULL});
}

Test(server, options_are_checked)
{
    start();
    cr_assert_eq(run_with("--quota", "0%"), 2);
    cr_assert_eq(run_with("--quota", "12Q"), 2);
    cr_assert_eq(run_with("--nonsense", NULL), 2);
    cr_assert_eq(run_with("--log-level", NULL), 2);
    cr_assert_eq(run_with("--serve", "0"), 2);
    cr_assert_eq(run_with("--help", NULL), 0);
    cr_assert_eq(run_with("--version", NULL), 0);
}

static uint64_t resident_bytes(uint32_t pid)
{
    char path[64];
    unsigned long size = 0;
    unsigned long resident = 0;

    (void)snprintf(path, sizeof path, "/proc/%u/statm", pid);
    FILE *file = fopen(path, "re");
    cr_assert_not_null(file);
    cr_assert_eq(fscanf(file, "%lu %lu", &size, &resident), 2);
    fclose(file);
    return resident * 4096ull;
}

static bool nobody_is_attached(void *context)
{
    return ask_status(*(const int *)context, &answer) == 0 &&
           answer.status_is.n_attachments == 0 && answer.status_is.n_clients == 1;
}

Test(server, two_hundred_attach_and_kill_cycles_leave_nothing)
{
    static const char *const quiet[] = {"--log-level", "error", NULL};

    rig_start(&rig, quiet);
    int fd = raw_open(&rig);
    cr_assert_eq(create(fd, "a", 8), 0);
    worker_kill(worker_start(&rig, "a", 0, false));
    cr_assert(soon(nobody_is_attached, &fd));
    uint32_t daemon = answer.status_is.pid;
    uint32_t keeper = answer.status_is.keeper_pid;
    uint64_t used = answer.status_is.bytes_used;
    int daemon_fds = proc_count_fds((pid_t)daemon);
    int keeper_fds = proc_count_fds((pid_t)keeper);
    uint64_t daemon_bytes = resident_bytes(daemon);

    for (int i = 0; i < 200; i++) {
        pid_t worker = worker_start(
            &rig, "a", i % 3 == 2 ? KVW_RANK_READER : (uint32_t)i % 3, i & 1);
        cr_assert_gt(worker, 0);
        worker_kill(worker);
        cr_assert(soon(nobody_is_attached, &fd));
    }

    cr_assert(returns_to((pid_t)daemon, daemon_fds));
    cr_assert(returns_to((pid_t)keeper, keeper_fds));
    cr_assert_eq(answer.status_is.bytes_used, used);
    cr_assert_lt(resident_bytes(daemon), daemon_bytes + GROWTH_BYTES);
    close(fd);
}

Test(server, descriptor_limit_is_no_spin_and_passes)
{
    struct place place;

    start();
    int fd = raw_open(&rig);
    cr_assert_eq(create(fd, "a", 8), 0);
    cr_assert_eq(ask_status(fd, &answer), 0);
    pid_t pid = (pid_t)answer.status_is.pid;
    limit_descriptors(pid, 3);
    cr_assert_eq(ask_status(fd, &answer), 0, "%s", answer.refused.text);
    cr_assert_gt(answer.status_is.bytes_available, 0);
    limit_descriptors(pid, (uint64_t)proc_count_fds(pid));

    /* All stay open: the first may still find a descriptor that was just given back. */
    int shed[20];
    for (int i = 0; i < 20; i++) {
        shed[i] = raw_connect(rig.socket);
        cr_assert_geq(shed[i], 0);
    }
    cr_assert(soon(is_hung_up, &shed[19]));
    cr_assert_neq(ask_attach(fd, "a", 0, &place, &answer), 0);
    cr_assert_lt(cpu_ms(pid), 500);
    for (int i = 0; i < 20; i++)
        close(shed[i]);
    limit_descriptors(pid, 1024);

    close(raw_open(&rig));
    cr_assert_eq(ask_attach(fd, "a", 0, &place, &answer), 0);
    place_close(&place);
    close(fd);
}
