/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may do what, by the kernel's word (SO_PEERCRED) and the mode of a cache. Each case
 * runs in a process that has given up root for good. docs/security.md cites these tests.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/daemon/raw.h"

#define OWNER 4711u
#define MEMBER 4712u /* of the owner's group, beside its own */
#define OTHER 4713u

static struct rig rig;

static void setup(void)
{
    static const char *const options[] = {"--quota-user", "16M", NULL};

    if (geteuid() != 0)
        cr_skip_test("needs root");
    rig_start(&rig, options);
    cr_assert_eq(chmod(rig.directory, 0755), 0);
    close(raw_open(&rig));
}

static void teardown(void)
{
    if (geteuid() == 0)
        rig_stop(&rig);
}

TestSuite(rights, .init = setup, .fini = teardown, .timeout = 60);

static void become(uint32_t uid)
{
    const gid_t group = OWNER;

    if (setgroups(uid == MEMBER, &group) < 0 || setgid(uid) < 0 || setuid(uid) < 0)
        _exit(100);
}

/* Run in a process of that user. The number of the first expectation that failed. */
typedef int case_fn(uint32_t argument);

static int run_as(uint32_t uid, case_fn *run, uint32_t argument)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        become(uid);
        _exit(run(argument));
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status), "signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

static int create_with_mode(int fd, const char *name, uint32_t mode)
{
    struct kvw_geometry geometry = small_geometry(8);
    struct kvw_message answer;
    struct kvw_message request = {.type = KVW_MESSAGE_CREATE,
                                  .create = {.lifetime = 2,
                                             .mode = mode,
                                             .geometry = (const uint8_t *)&geometry,
                                             .geometry_bytes = sizeof geometry}};

    (void)snprintf(request.create.name, sizeof request.create.name, "%s", name);
    return raw_call(fd, &request, &answer);
}

static void name_of(uint32_t mode, char name[16])
{
    (void)snprintf(name, 16, "m%03o", mode);
}

static int make(uint32_t mode)
{
    char name[16];
    int fd = raw_open(&rig);

    name_of(mode, name);
    return create_with_mode(fd, name, mode) != 0;
}

/* ---------------------------------------------------------------- modes ---------- */

/* mode << 2 | may read << 1 | may write */
static int try_attach(uint32_t expected)
{
    const uint32_t mode = expected >> 2;
    struct kvw_message answer;
    struct place place;
    char name[16];
    int fd = raw_open(&rig);

    name_of(mode, name);
    int error = ask_attach(fd, name, KVW_RANK_READER, &place, &answer);
    if (error != ((expected & 2) != 0 ? 0 : -EACCES))
        return 1;
    if (error != 0 && strstr(answer.refused.text, "may not read it") == NULL)
        return 2;
    error = ask_attach(fd, name, 0, &place, &answer);
    if (error != ((expected & 1) != 0 ? 0 : -EACCES))
        return 3;
    if (error != 0 && strstr(answer.refused.text, "may not write it") == NULL)
        return 4;
    return 0;
}

Test(rights, mode_of_a_cache_is_as_a_files)
{
    static const struct {
        uint32_t mode;
        uint32_t owner; /* may read << 1 | may write */
        uint32_t member;
        uint32_t other;
    } cases[] = {{0600, 3, 0, 0}, {0640, 3, 2, 0}, {0660, 3, 3, 0}, {0604, 3, 0, 2},
                 {0644, 3, 2, 2}, {0606, 3, 0, 3}, {0666, 3, 3, 3}, {0066, 0, 3, 3},
                 {0400, 2, 0, 0}, {0200, 1, 0, 0}, {0711, 3, 0, 0}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const uint32_t mode = cases[i].mode;
        cr_assert_eq(run_as(OWNER, make, mode), 0, "%o", mode);
        cr_assert_eq(run_as(OWNER, try_attach, mode << 2 | cases[i].owner), 0,
                     "owner, %o", mode);
        cr_assert_eq(run_as(MEMBER, try_attach, mode << 2 | cases[i].member), 0,
                     "member, %o", mode);
        cr_assert_eq(run_as(OTHER, try_attach, mode << 2 | cases[i].other), 0,
                     "other, %o", mode);
        cr_assert_eq(run_as(0, try_attach, mode << 2 | 3), 0, "root, %o", mode);
    }
}

Test(rights, default_mode_is_0600)
{
    struct kvw_message answer;
    int fd = raw_open(&rig);

    cr_assert_eq(create_with_mode(fd, "c", 0), 0);

    cr_assert_eq(ask_stat(fd, "c", &answer), 0);
    cr_assert_eq(answer.stated.mode, 0600);
    close(fd);
}

/* ---------------------------------------------------------- descriptors ---------- */

/* What a reader has cannot become writable. @return the first thing that worked. */
static int try_to_write(const struct place *place)
{
    for (int s = 0; s < 3; s += 2) { /* control, data */
        const int fd = place->fds[s];
        char path[64];
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED)
            return 10 + s;
        if (open(path, O_RDWR) >= 0 || open(path, O_WRONLY) >= 0)
            return 20 + s;
        if (fchmod(fd, 0666) == 0 || chmod(path, 0666) == 0)
            return 30 + s;
        if (write(fd, "x", 1) >= 0 || ftruncate(fd, 0) == 0)
            return 40 + s;
        if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0)
            return 50 + s;
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0)
            return 60 + s;
        void *base = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED || mprotect(base, 4096, PROT_READ | PROT_WRITE) == 0 ||
            madvise(base, 4096, MADV_REMOVE) == 0)
            return 70 + s;
    }
    return 0;
}

static int read_only(uint32_t mode)
{
    struct kvw_message answer;
    struct place place;
    char name[16];
    int fd = raw_open(&rig);

    name_of(mode, name);
    if (ask_attach(fd, name, KVW_RANK_READER, &place, &answer) != 0)
        return 1;
    return try_to_write(&place);
}

Test(rights, readers_descriptors_cannot_be_written)
{
    cr_assert_eq(run_as(OWNER, make, 0644), 0);

    cr_assert_eq(run_as(OTHER, read_only, 0644), 0);
    cr_assert_eq(run_as(MEMBER, read_only, 0644), 0);
    cr_assert_eq(run_as(OWNER, read_only, 0644), 0, "nor by the cache's own user");
}

/* Attached as root, and only then another user: what it has is still read only. */
Test(rights, reader_that_gives_up_root_cannot_open_for_writing)
{
    struct kvw_message answer;
    struct place place;
    int status;

    cr_assert_eq(run_as(OWNER, make, 0600), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = raw_open(&rig);
        if (ask_attach(fd, "m600", KVW_RANK_READER, &place, &answer) != 0)
            _exit(1);
        become(OTHER);
        _exit(try_to_write(&place));
    }
    waitpid(pid, &status, 0);
    cr_assert_eq(status, 0, "%#x", status);
}

/* Sealed: nobody who writes can make a segment shorter under others, or seal it. */
static int resize(uint32_t mode)
{
    struct kvw_message answer;
    struct place place;
    char name[16];
    int fd = raw_open(&rig);

    name_of(mode, name);
    if (ask_attach(fd, name, 0, &place, &answer) != 0)
        return 1;
    for (int s = 0; s < 3; s++) {
        if (ftruncate(place.fds[s], 0) == 0 || ftruncate(place.fds[s], 1 << 30) == 0)
            return 10 + s;
        if (fcntl(place.fds[s], F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0 ||
            fcntl(place.fds[s], F_ADD_SEALS, F_SEAL_WRITE) == 0)
            return 20 + s;
    }
    return 0;
}

Test(rights, writers_cannot_resize_or_seal)
{
    cr_assert_eq(run_as(OWNER, make, 0666), 0);

    cr_assert_eq(run_as(OTHER, resize, 0666), 0);
    cr_assert_eq(run_as(OWNER, resize, 0666), 0);
}

/* --------------------------------------------------------------- orders ---------- */

static uint64_t attachment_of_root;

/* Another user's orders about a cache that it may even read and write. */
static int give_orders(uint32_t sees)
{
    struct kvw_message answer;
    struct kvw_message kick = {.type = KVW_MESSAGE_KICK,
                               .kick = {.attachment = attachment_of_root}};
    struct kvw_message gc = {.type = KVW_MESSAGE_GC, .gc = {.idle_seconds = 0}};
    struct kvw_message stop = {.type = KVW_MESSAGE_SHUTDOWN,
                               .shutdown = {.is_forced = 1}};
    struct kvw_message restart = {.type = KVW_MESSAGE_RESTART};
    int fd = raw_open(&rig);

    if (ask_remove(fd, "m600", true, &answer) != -EACCES ||
        ask_remove(fd, "m666", true, &answer) != -EACCES)
        return 1;
    if (raw_call(fd, &kick, &answer) != -EACCES)
        return 2;
    kick.kick = (struct kvw_message_kick){.name = "m666", .rank = 0};
    if (raw_call(fd, &kick, &answer) != -EACCES)
        return 3;
    if (raw_call(fd, &gc, &answer) != 0 || answer.gc_done.n_caches != 0)
        return 4;
    if (raw_call(fd, &stop, &answer) != -EACCES)
        return 5;
    if (ask_status(fd, &answer) != 0)
        return 6;
    restart.restart.daemon_epoch = answer.status_is.daemon_epoch;
    if (raw_call(fd, &restart, &answer) != -EACCES)
        return 6;
    if (ask_detach(fd, attachment_of_root, &answer) != -EACCES ||
        ask_resume(fd, attachment_of_root, &answer) != -EACCES)
        return 7;
    if (create_with_mode(fd, "m600", 0666) != -EEXIST)
        return 8;
    /* A cache is seen as a file is in a folder; who is attached, by those who may be. */
    if (ask_stat(fd, "m600", &answer) != 0)
        return 9;
    uint32_t n_seen = 0;
    for (uint64_t id = 0; ask_who(fd, 0, id, &answer) == 0;
         id = answer.who_is.attachment)
        n_seen++;
    return n_seen == sees ? 0 : 20 + (int)n_seen;
}

Test(rights, orders_are_the_owners_and_roots)
{
    struct kvw_message answer;
    struct place closed;
    struct place open;
    int fd = raw_open(&rig);
    cr_assert_eq(run_as(OWNER, make, 0600), 0);
    cr_assert_eq(run_as(OWNER, make, 0666), 0);
    cr_assert_eq(ask_attach(fd, "m600", 0, &closed, &answer), 0);
    cr_assert_eq(ask_attach(fd, "m666", 0, &open, &answer), 0);
    attachment_of_root = open.attachment;

    int failed = run_as(OTHER, give_orders, 1);
    cr_assert_eq(failed, 0, "%d", failed);
    cr_assert_eq(run_as(MEMBER, give_orders, 1), 0);

    cr_assert_eq(ask_stat(fd, "m600", &answer), 0);
    cr_assert_eq(answer.stated.n_attachments, 1);
    cr_assert_eq(ask_stat(fd, "m666", &answer), 0);
    cr_assert_eq(answer.stated.n_attachments, 1);
    place_close(&closed);
    place_close(&open);
    close(fd);
}

static int remove_own(uint32_t mode)
{
    struct kvw_message answer;
    char name[16];
    int fd = raw_open(&rig);

    name_of(mode, name);
    return ask_remove(fd, name, false, &answer) != 0;
}

Test(rights, owner_may_remove_what_it_may_not_write)
{
    cr_assert_eq(run_as(OWNER, make, 0400), 0);

    cr_assert_eq(run_as(OWNER, remove_own, 0400), 0);
}

/* --------------------------------------------------------------- quotas ---------- */

static int create_sized(uint32_t window_rows)
{
    struct kvw_geometry geometry = small_geometry(window_rows);
    struct kvw_message answer;
    char name[32];
    int fd = raw_open(&rig);

    (void)snprintf(name, sizeof name, "q%u-%u", getuid(), window_rows);
    int error = ask_create(fd, name, &geometry, 2, 0, &answer);
    if (error == -EDQUOT && strstr(answer.refused.text, "quota of user") == NULL)
        return 99;
    return error == 0 ? 0 : error == -EDQUOT ? 1 : 2;
}

Test(rights, bytes_of_one_user_do_not_take_anothers)
{
    cr_assert_eq(run_as(OWNER, create_sized, 2500), 0); /* 10 of 16 MiB */
    cr_assert_eq(run_as(OWNER, create_sized, 2501), 1);

    cr_assert_eq(run_as(OTHER, create_sized, 2501), 0);
}

/* --------------------------------------------------------------- socket ---------- */

static char runtime[64];

static int connect_there(uint32_t argument)
{
    char path[128];
    (void)argument;

    (void)snprintf(path, sizeof path, "%s/kvwheel/kvwheeld.sock", runtime);
    int fd = raw_connect(path);
    return fd >= 0 ? 0 : -fd;
}

static bool is_there(void *context)
{
    (void)context;
    return connect_there(0) == 0;
}

static mode_t mode_of(const char *name)
{
    char path[128];
    struct stat status;

    (void)snprintf(path, sizeof path, "%s/kvwheel%s", runtime, name);
    cr_assert_eq(lstat(path, &status), 0, "%s", path);
    return status.st_mode & 07777;
}

/* At the default place the folder decides: it is the user's alone. */
Test(rights, default_folder_is_closed_to_others)
{
    static const char *const none[] = {"--log-level", "error", NULL};
    char command[256];

    (void)snprintf(runtime, sizeof runtime, "/tmp/kvwheel-rights-XXXXXX");
    cr_assert_not_null(mkdtemp(runtime));
    cr_assert_eq(chmod(runtime, 0755), 0);
    cr_assert_eq(setenv("XDG_RUNTIME_DIR", runtime, 1), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(rig_run_options(none));
    cr_assert(soon(is_there, NULL));

    cr_assert_eq(mode_of(""), 0700);
    cr_assert_eq(mode_of("/kvwheeld.sock"), 0666);
    cr_assert_eq(mode_of("/kvwheeld.sock.lock"), 0600);
    cr_assert_eq(run_as(OTHER, connect_there, 0), EACCES);
    (void)snprintf(command, sizeof command, "%s/kvwheel stop >/dev/null",
                   getenv("KVW_BIN"));
    cr_assert_eq(system(command), 0);
    waitpid(pid, NULL, 0);
    /* A folder that others may write to is nothing to serve in. */
    (void)snprintf(command, sizeof command, "%s/kvwheel", runtime);
    cr_assert_eq(chmod(command, 0777), 0);
    cr_assert_eq(rig_run_options(none), 4);
    (void)snprintf(command, sizeof command, "rm -r '%s'", runtime);
    cr_assert_eq(system(command), 0);
}
