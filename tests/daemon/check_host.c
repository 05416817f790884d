/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts that forbid things, old kernels, odd machines, other users. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/daemon/raw.h"

enum { JOB = 0, TTL = 1, KEEP = 2 };

#define NOBODY 65534

static struct rig rig;
static struct kvw_message answer;

static void teardown(void)
{
    if (rig.started != 0)
        rig_stop(&rig);
}

TestSuite(host, .fini = teardown, .timeout = 30);

/* A call fails from now on, in this process and in what it starts, if an argument has
 * the relation (BPF_JEQ, BPF_JSET, BPF_JGE) to a value. */
static void forbid(uint32_t number, uint32_t argument, uint16_t relation,
                   uint32_t value, uint32_t error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                 (uint32_t)offsetof(struct seccomp_data, args) + 8 * argument),
        BPF_JUMP((uint16_t)(BPF_JMP | BPF_K | relation), value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};

    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static int create(int fd, const char *name, uint32_t mode)
{
    struct kvw_geometry geometry = small_geometry(8);
    struct kvw_message request = {.type = KVW_MESSAGE_CREATE,
                                  .create = {.lifetime = KEEP,
                                             .mode = mode,
                                             .geometry = (const uint8_t *)&geometry,
                                             .geometry_bytes = sizeof geometry}};

    (void)snprintf(request.create.name, sizeof request.create.name, "%s", name);
    return raw_call(fd, &request, &answer);
}

Test(host, forbidden_io_uring_is_said_in_words)
{
    char text[1024];

    forbid(SYS_io_uring_setup, 0, BPF_JGE, 0, EPERM);

    cr_assert_eq(rig_run("/tmp/kvwheeld-test-forbidden.sock", text, sizeof text), 5,
                 "%s", text);
    cr_assert_not_null(strstr(text, "io_uring is forbidden here"), "%s", text);
    cr_assert_not_null(strstr(text, "seccomp"), "%s", text);
    unlink("/tmp/kvwheeld-test-forbidden.sock.lock");
}

static bool rank_0_is_dead(void *context)
{
    const struct place *place = context;

    return load_acquire(&seat_of(place, 0)->state) == KVW_SEAT_DEAD;
}

Test(host, older_kernel_knows_peers_by_pid_and_start_time)
{
    struct place place;

    forbid(SYS_getsockopt, 2, BPF_JEQ, 77, ENOPROTOOPT); /* SO_PEERPIDFD */
    forbid(SYS_memfd_create, 1, BPF_JSET, 8, EINVAL);    /* MFD_NOEXEC_SEAL */
    rig_start(&rig, NULL);
    int fd = raw_open(&rig);

    cr_assert_eq(ask_status(fd, &answer), 0);
    cr_assert_not_null(strstr(answer.status_is.degraded, "SO_PEERPIDFD"));
    cr_assert_eq(create(fd, "a", 0600), 0, "%s", answer.refused.text);
    pid_t worker = worker_start(&rig, "a", 0, false);
    cr_assert_gt(worker, 0);
    cr_assert_eq(ask_attach(fd, "a", 1, &place, &answer), 0);
    worker_kill(worker);
    cr_assert(soon(rank_0_is_dead, &place));
    place_close(&place);
    close(fd);
}

Test(host, another_machines_topology_is_not_believed)
{
    setenv("HWLOC_SYNTHETIC", "numa:2 core:2 pu:1", 1);
    rig_start(&rig, NULL);
    int fd = raw_open(&rig);

    cr_assert_eq(create(fd, "a", 0600), 0);

    cr_assert_eq(ask_status(fd, &answer), 0);
    cr_assert_not_null(strstr(answer.status_is.degraded, "another machine's topology"),
                       "%s", answer.status_is.degraded);
    cr_assert_eq(ask_stat(fd, "a", &answer), 0);
    cr_assert_eq(answer.stated.misplaced_pages, 0);
    close(fd);
}

Test(host, refused_binding_degrades_and_is_counted)
{
    struct stat status;

    if (stat("/sys/devices/system/node/node1", &status) == 0)
        cr_skip_test("this machine has a second NUMA node");
    /* A node that is not there cannot be bound to. */
    setenv("HWLOC_SYNTHETIC", "numa:2 core:2 pu:1", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    rig_start(&rig, NULL);
    int fd = raw_open(&rig);

    cr_assert_eq(create(fd, "a", 0600), 0);

    cr_assert_eq(ask_status(fd, &answer), 0);
    cr_assert_not_null(
        strstr(answer.status_is.degraded, "binding to a node is refused"), "%s",
        answer.status_is.degraded);
    cr_assert_eq(ask_stat(fd, "a", &answer), 0);
    cr_assert_gt(answer.stated.misplaced_pages, 0);
    close(fd);
}

static void read_file(const char *path, char *text, size_t text_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n_bytes = fd < 0 ? 0 : read(fd, text, text_bytes - 1);

    text[n_bytes > 0 ? n_bytes : 0] = 0;
    if (fd >= 0)
        close(fd);
}

/* As ps and top show it. */
static bool is_called(uint32_t pid, const char *name)
{
    char path[64];
    char text[32];

    (void)snprintf(path, sizeof path, "/proc/%u/comm", pid);
    read_file(path, text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    return strcmp(text, name) == 0;
}

static bool has_another_keeper(void *context)
{
    int fd = *(int *)context;

    return ask_status(fd, &answer) == 0 &&
           answer.status_is.keeper_pid != (uint32_t)rig.started &&
           is_called(answer.status_is.keeper_pid, "kvwheeld-keeper");
}

Test(host, processes_are_called_by_their_roles)
{
    rig_start(&rig, NULL);
    int fd = raw_open(&rig);

    cr_assert_eq(ask_status(fd, &answer), 0);
    cr_assert(is_called(answer.status_is.pid, "kvwheeld"));
    cr_assert(is_called(answer.status_is.keeper_pid, "kvwheeld-keeper"));
    cr_assert_eq(kill(rig.started, SIGKILL), 0);
    cr_assert(soon(has_another_keeper, &fd));
    close(fd);
}

/* It is the lot of an ordinary user's program: told once, and nothing to worry about.
 */
Test(host, unprotected_from_the_oom_killer_is_not_degraded)
{
    char path[128];
    char text[4096];

    (void)prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
    rig_start(&rig, NULL);
    int fd = raw_open(&rig);

    cr_assert_eq(ask_status(fd, &answer), 0);
    cr_assert_null(strstr(answer.status_is.degraded, "OOM"));
    (void)snprintf(path, sizeof path, "%s/log", rig.directory);
    read_file(path, text, sizeof text);
    const char *first = strstr(text, " info: not protected from the OOM killer");
    cr_assert_not_null(first, "%s", text);
    cr_assert_null(strstr(strchr(first, '\n'), "OOM"), "%s", text);
    close(fd);
}

Test(host, lines_of_the_log_begin_with_the_time)
{
    char path[128];
    char text[4096];
    unsigned year, month, day, hour, minute, second, ms;
    int n_bytes = 0;

    rig_start(&rig, NULL);
    int fd = raw_open(&rig);
    (void)snprintf(path, sizeof path, "%s/log", rig.directory);
    read_file(path, text, sizeof text);

    cr_assert_eq(sscanf(text, "%4u-%2u-%2uT%2u:%2u:%2u.%3uZ kvwheeld%n", &year, &month,
                        &day, &hour, &minute, &second, &ms, &n_bytes),
                 7, "%s", text);
    cr_assert_eq(n_bytes, 33, "%s", text);
    close(fd);
}

/* A name that would colour the terminal and forge a line of its own. */
Test(host, what_peers_say_is_printable_in_the_log)
{
    static const char *const debug[] = {"--log-level", "debug", NULL};
    char path[128];
    char text[8192];
    struct place place;

    rig_start(&rig, debug);
    int fd = raw_open(&rig);
    cr_assert_eq(ask_attach(fd, "a\x1b[31m\n2026 kvwheeld forged", 0, &place, &answer),
                 -ENOENT);
    (void)snprintf(path, sizeof path, "%s/log", rig.directory);
    read_file(path, text, sizeof text);

    cr_assert_not_null(strstr(text, "no cache 'a?[31m?2026 kvwheeld forged'"), "%s",
                       text);
    cr_assert_null(strchr(text, '\x1b'));
    cr_assert_null(strstr(text, "\n2026 kvwheeld forged"));
    close(fd);
}

/* Somebody else may have put a link where the log is to be. */
Test(host, a_log_is_no_link)
{
    static const char *const log[] = {"--log", "--log-level", "debug", NULL};
    char path[128];
    char target[128];
    char text[4096];

    (void)snprintf(rig.directory, sizeof rig.directory, "/tmp/kvwheeld-test-XXXXXX");
    cr_assert_not_null(mkdtemp(rig.directory));
    (void)snprintf(rig.socket, sizeof rig.socket, "%s/d.sock", rig.directory);
    (void)snprintf(path, sizeof path, "%s.log", rig.socket);
    (void)snprintf(target, sizeof target, "%s/target", rig.directory);
    cr_assert_eq(symlink(target, path), 0);

    rig_start_again(&rig, log);
    int fd = raw_open(&rig);
    cr_assert_eq(ask_status(fd, &answer), 0);

    cr_assert_eq(access(target, F_OK), -1);
    (void)snprintf(target, sizeof target, "%s/log", rig.directory);
    read_file(target, text, sizeof text);
    cr_assert_not_null(strstr(text, " kvwheeld daemon "), "%s", text);
    close(fd);
    rig_stop(&rig);
    rig.started = 0;
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(rmdir(rig.directory), 0);
}

/* What another user may do: one bit of the exit code each. */
enum {
    ATTACHED_PRIVATE = 1,
    WROTE_READABLE = 2,
    COULD_NOT_READ = 4,
    REOPENED_FOR_WRITING = 8,
    REMOVED = 16,
    STOPPED = 32,
    COULD_NOT_CREATE = 64,
};

static int try_reopen(int fd)
{
    char path[64];

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static int be_nobody(void)
{
    struct kvw_message shutdown = {.type = KVW_MESSAGE_SHUTDOWN,
                                   .shutdown = {.is_forced = 1}};
    struct place place;
    int result = 0;

    if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
        return 255;
    int fd = raw_open(&rig);
    if (ask_attach(fd, "private", 0, &place, &answer) != -EACCES ||
        ask_attach(fd, "private", KVW_RANK_READER, &place, &answer) != -EACCES)
        result |= ATTACHED_PRIVATE;
    if (ask_attach(fd, "readable", 0, &place, &answer) != -EACCES)
        result |= WROTE_READABLE;
    if (ask_attach(fd, "readable", KVW_RANK_READER, &place, &answer) != 0)
        result |= COULD_NOT_READ;
    else if (try_reopen(place.fds[0]) >= 0 || try_reopen(place.fds[2]) >= 0)
        result |= REOPENED_FOR_WRITING;
    if (ask_remove(fd, "readable", true, &answer) != -EACCES)
        result |= REMOVED;
    if (raw_call(fd, &shutdown, &answer) != -EACCES)
        result |= STOPPED;
    if (create(fd, "mine", 0600) != 0)
        result |= COULD_NOT_CREATE;
    return result;
}

Test(host, other_users_get_what_the_mode_gives)
{
    int status;

    if (getuid() != 0)
        cr_skip_test("needs root to become another user");
    rig_start(&rig, NULL);
    int fd = raw_open(&rig);
    cr_assert_eq(chmod(rig.directory, 0755), 0);
    cr_assert_eq(create(fd, "private", 0600), 0);
    cr_assert_eq(create(fd, "readable", 0644), 0);

    pid_t pid = fork();
    if (pid == 0)
        _exit(be_nobody());
    cr_assert_eq(waitpid(pid, &status, 0), pid);

    cr_assert(WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), 0, "bits %x", (unsigned)WEXITSTATUS(status));
    cr_assert_eq(ask_stat(fd, "mine", &answer), 0);
    cr_assert_eq(answer.stated.uid, NOBODY);
    cr_assert_eq(create(fd, "mine", 0600), -EEXIST);
    cr_assert_not_null(strstr(answer.refused.text, "belongs to user 65534"));
    close(fd);
}
