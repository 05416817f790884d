/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting kvwheeld. The process in between, whose end makes the daemon init's child,
 * is made by vfork(): fork() would copy the page tables of a program that may have
 * mapped hundreds of GiB, and posix_spawn() alone would leave the program a child it
 * does not know.
 */
#include "client/start.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/outside.h"
#include "proto/base/cleanup.h"

/* ------------------------------------------------------------- finding ---------- */

/* folder/kvwheeld, if it is a program. */
static bool try_folder(const char *folder, size_t folder_bytes, char program[PATH_MAX])
{
    struct stat status;
    int n_bytes =
        snprintf(program, PATH_MAX, "%.*s/kvwheeld", (int)folder_bytes, folder);

    return folder_bytes > 0 && n_bytes < PATH_MAX && stat(program, &status) == 0 &&
           S_ISREG(status.st_mode) && access(program, X_OK) == 0;
}

static bool try_beside(char program[PATH_MAX])
{
    char self[PATH_MAX];
    ssize_t n_bytes = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n_bytes <= 0)
        return false;
    self[n_bytes] = 0;
    char *slash = strrchr(self, '/');
    return slash != NULL && try_folder(self, (size_t)(slash - self), program);
}

/* The bin folder of the prefix in which the library lies: PREFIX/lib, or below it. */
static bool try_prefix(char program[PATH_MAX])
{
    static const char bin[] = "/bin";
    char folder[PATH_MAX];
    Dl_info library;

    if (dladdr((void *)(uintptr_t)start_find, &library) == 0 ||
        realpath(library.dli_fname, folder) == NULL)
        return false;
    for (int up = 0; up < 3; up++) {
        char *slash = strrchr(folder, '/');
        if (slash == NULL || slash == folder ||
            (size_t)(slash - folder) + sizeof bin > sizeof folder)
            return false;
        memcpy(slash, bin, sizeof bin);
        if (up > 0 && try_folder(folder, strlen(folder), program))
            return true;
        *slash = 0;
    }
    return false;
}

static bool try_search_path(char program[PATH_MAX])
{
    const char *folder = outside_variable("PATH");

    while (folder != NULL) {
        const char *end = strchrnul(folder, ':');
        if (folder[0] == '/' && try_folder(folder, (size_t)(end - folder), program))
            return true;
        folder = *end == 0 ? NULL : end + 1;
    }
    return false;
}

int start_find(char program[PATH_MAX])
{
    const char *given = outside_variable("KVWHEELD");

    if (given != NULL) {
        if (access(given, X_OK) < 0)
            return fail(-ENOEXEC, "KVWHEELD=%s: %s", given, kvw_strerror(-errno));
        if (realpath(given, program) == NULL)
            return fail(-ENOEXEC, "KVWHEELD=%s: %s", given, kvw_strerror(-errno));
        return 0;
    }
    if (try_beside(program) || try_prefix(program) ||
        try_folder(KVW_BINDIR, strlen(KVW_BINDIR), program) || try_search_path(program))
        return 0;
    return fail(
        -ENOEXEC,
        "kvwheeld was not found: not beside this program or its library, not in "
        "%s, not in PATH; set KVWHEELD to its path",
        KVW_BINDIR);
}

/* ------------------------------------------------------------ spawning ---------- */

struct spawn {
    const char *program;
    char *const *arguments;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int error;
};

/* A worker is often bound to a core (MPI does that); its node's daemon must not be. */
static void unbind(void)
{
    unsigned char all[1024];

    memset(all, 0xff, sizeof all);
    (void)syscall(SYS_sched_setaffinity, 0, sizeof all, all);
}

/* Runs in the vfork child, on the parent's memory: what it writes here stays. */
static __attribute__((noinline)) void spawn_run(struct spawn *spawn)
{
    unbind();
    spawn->error = posix_spawn(&spawn->pid, spawn->program, &spawn->actions,
                               &spawn->attributes, spawn->arguments, environ);
}

/* Signals are blocked, for a handler of the program must not run in the child. */
static int spawn_detached(struct spawn *spawn)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t between = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork) */
    if (between == 0) {
        spawn_run(spawn); /* NOLINT(clang-analyzer-unix.Vfork) */
        _exit(0);
    }
    int error = between < 0 ? errno : spawn->error;
    /* ECHILD: the program ignores SIGCHLD, or waits for any child in another thread. */
    while (between > 0 && waitpid(between, NULL, 0) < 0 && errno == EINTR)
        ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -error;
}

/* Own session, default signals, no descriptor but /dev/null and the log, folder "/". */
static int spawn_prepare(struct spawn *spawn, int log)
{
    sigset_t all, none;

    sigfillset(&all);
    sigemptyset(&none);
    /* These three only clear and set members: glibc has no way to fail them. */
    (void)posix_spawnattr_init(&spawn->attributes);
    (void)posix_spawn_file_actions_init(&spawn->actions);
    (void)posix_spawnattr_setflags(&spawn->attributes, POSIX_SPAWN_SETSID |
                                                           POSIX_SPAWN_SETSIGDEF |
                                                           POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigdefault(&spawn->attributes, &all);
    posix_spawnattr_setsigmask(&spawn->attributes, &none);
    posix_spawn_file_actions_t *actions = &spawn->actions;
    int error = posix_spawn_file_actions_adddup2(actions, log, STDERR_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null",
                                                 O_RDONLY, 0);
    if (error == 0)
        error = posix_spawn_file_actions_addopen(actions, STDOUT_FILENO, "/dev/null",
                                                 O_WRONLY, 0);
    if (error == 0)
        error = posix_spawn_file_actions_addclosefrom_np(actions, STDERR_FILENO + 1);
    if (error == 0)
        error = posix_spawn_file_actions_addchdir_np(actions, "/");
    return -error;
}

static void spawn_fini(struct spawn *spawn)
{
    posix_spawn_file_actions_destroy(&spawn->actions);
    posix_spawnattr_destroy(&spawn->attributes);
}

/* ------------------------------------------------------------ starting ---------- */

static int make_folder(const char *socket_path)
{
    char folder[KVW_SOCKET_PATH_MAX + 1];

    snprintf(folder, sizeof folder, "%s", socket_path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL || slash == folder)
        return 0;
    *slash = 0;
    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return fail(-errno, "cannot make the folder %s: %s", folder,
                    kvw_strerror(-errno));
    return 0;
}

/* A log that is full is renamed, as the daemon does (a daemon that does not come up has no
 * occasion to). */
static void rename_full(const char *path)
{
    struct stat status;
    char old[KVW_SOCKET_PATH_MAX + 16];

    if (lstat(path, &status) < 0 || !S_ISREG(status.st_mode) ||
        (uint64_t)status.st_size < KVW_LOG_BYTES_MAX)
        return;
    snprintf(old, sizeof old, "%s.1", path);
    (void)rename(path, old);
}

/* Appending keeps what a daemon that is running there has written. */
static int open_log(struct start *start, int *out)
{
    struct stat status;

    rename_full(start->log_path);
    int fd = open(start->log_path,
                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fail(-errno, "cannot write the daemon's log %s: %s", start->log_path,
                    kvw_strerror(-errno));
    if (fstat(fd, &status) == 0)
        start->log_offset = status.st_size;
    *out = fd;
    return 0;
}

static int run(struct start *start, char *const *arguments)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int log = -1;
    struct spawn spawn = {.program = start->program, .arguments = arguments};

    int result = open_log(start, &log);
    if (result < 0)
        return result;
    result = spawn_prepare(&spawn, log);
    if (result == 0)
        result = spawn_detached(&spawn);
    spawn_fini(&spawn);
    if (result < 0)
        return fail(-ENOEXEC, "cannot start %s: %s", start->program,
                    kvw_strerror(result));
    start->pidfd = (int)syscall(SYS_pidfd_open, spawn.pid, 0);
    return 0;
}

int start_daemon(const char *socket_path, const char *const *arguments,
                 struct start *start)
{
    char *all[START_ARGUMENTS_MAX + 5] = {"kvwheeld", "--socket", (char *)socket_path,
                                          "--log"};

    *start = (struct start){.pidfd = -1};
    for (uint32_t i = 0; arguments != NULL && arguments[i] != NULL; i++) {
        KVW_CHECK(i < START_ARGUMENTS_MAX);
        all[4 + i] = (char *)arguments[i];
    }
    snprintf(start->log_path, sizeof start->log_path, "%s.log", socket_path);
    int result = start_find(start->program);
    if (result == 0)
        result = make_folder(socket_path);
    if (result == 0)
        result = run(start, all);
    return result;
}

bool start_has_ended(struct start *start, uint32_t wait_ms)
{
    struct pollfd ended = {.fd = start->pidfd, .events = POLLIN};

    /* A negative descriptor is passed over by poll(): a plain pause. */
    if (poll(&ended, 1, (int)wait_ms) > 0)
        start_fini(start);
    return start->pidfd < 0;
}

/* The last line that is not empty, of what was written since the start. */
static void last_line(const struct start *start, char *line, size_t line_bytes)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = -1;
    char text[1024];

    line[0] = 0;
    fd = open(start->log_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    off_t end = lseek(fd, 0, SEEK_END);
    off_t from = end - (off_t)sizeof text + 1;
    if (from < start->log_offset)
        from = start->log_offset;
    ssize_t n_bytes = pread(fd, text, sizeof text - 1, from);
    while (n_bytes > 0 && (text[n_bytes - 1] == '\n' || text[n_bytes - 1] == ' '))
        n_bytes--;
    if (n_bytes <= 0)
        return;
    text[n_bytes] = 0;
    const char *newline = strrchr(text, '\n');
    snprintf(line, line_bytes, "%.*s", (int)line_bytes - 1,
             newline != NULL ? newline + 1 : text);
}

int start_explain(const struct start *start)
{
    char line[320];

    last_line(start, line, sizeof line);
    return fail(-ENOEXEC, "%s did not start%s%s (its log is %s)", start->program,
                line[0] != 0 ? ": " : "", line, start->log_path);
}

void start_fini(struct start *start)
{
    if (start->pidfd >= 0)
        close(start->pidfd);
    start->pidfd = -1;
}
