/* SPDX-License-Identifier: Apache-2.0 */
/* The lock file stays for ever: removing it would let two daemons lock two files. */
#include "daemon/start.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/host.h"
#include "proto/base/cleanup.h"

#define LOCK_NS 2000000000ull
#define LOCK_RETRY_MS 10
#define LOCK_DYING_MS 300 /* a killed daemon unmaps its caches before it is dead */
#define BACKLOG 1024

/* The default directory lies where others may write: it must be ours alone. */
static int make_directory(const struct options *options, struct kvw_refusal *refusal)
{
    char path[KVW_SOCKET_PATH_MAX + 1];
    struct stat status;

    memcpy(path, options->socket_path, sizeof path);
    char *slash = strrchr(path, '/');
    if (!options->is_default_path || slash == NULL || slash == path)
        return 0;
    *slash = 0;
    if (mkdir(path, 0700) < 0 && errno != EEXIST) {
        (void)refuse(refusal, -errno, 0, 0, "directory %s: cannot be made: %s", path,
                     strerrordesc_np(errno));
        return EXIT_CODE_SOCKET;
    }
    if (lstat(path, &status) < 0 || !S_ISDIR(status.st_mode) ||
        status.st_uid != geteuid() || (status.st_mode & 022) != 0) {
        (void)refuse(refusal, -EPERM, 0700, status.st_mode & 07777,
                     "directory %s: must be a directory that only this user can write "
                     "to",
                     path);
        return EXIT_CODE_SOCKET;
    }
    return 0;
}

/* The pid in a lock file; 0 = none yet. */
static uint32_t lock_owner(const char *path)
{
    char text[32];
    uint32_t pid = 0;

    if (host_read_file(path, text, sizeof text) <= 0)
        return 0;
    for (const char *digit = text; *digit >= '0' && *digit <= '9'; digit++)
        pid = pid * 10 + (uint32_t)(*digit - '0');
    return pid;
}

/*
 * Whether who holds the lock lives. A killed daemon's ring can keep it for some ms more, and
 * only for that is it worth waiting: who waits for a living daemon would take its place when
 * it is stopped.
 */
static bool lock_owner_lives(const char *path)
{
    const uint32_t pid = lock_owner(path);
    KVW_CLEANUP(kvw_fd_cleanup)
    int pidfd = pid == 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd end = {.fd = pidfd, .events = POLLIN};

    return pidfd >= 0 && poll(&end, 1, LOCK_DYING_MS) == 0;
}

static int refuse_running(const char *path, struct kvw_refusal *refusal)
{
    (void)refuse(refusal, -EBUSY, 0, 0,
                 "another daemon is running: pid %u holds the lock %s",
                 lock_owner(path), path);
    return EXIT_CODE_RUNNING;
}

static int take_lock(const struct options *options, int *out,
                     struct kvw_refusal *refusal)
{
    char path[KVW_SOCKET_PATH_MAX + 8];
    uint64_t deadline_ns = host_now_ns() + LOCK_NS;

    (void)snprintf(path, sizeof path, "%s.lock", options->socket_path);
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        (void)refuse(refusal, -errno, 0, 0, "lock %s: cannot be opened: %s", path,
                     strerrordesc_np(errno));
        return EXIT_CODE_SOCKET;
    }
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            (void)refuse(refusal, -errno, 0, 0, "lock %s: cannot be taken: %s", path,
                         strerrordesc_np(errno));
            return EXIT_CODE_SOCKET;
        }
        if (lock_owner_lives(path) || host_now_ns() >= deadline_ns)
            return refuse_running(path, refusal);
        /* Nothing tells when a file lock is let go. */
        (void)poll(NULL, 0, LOCK_RETRY_MS);
    }
    *out = take_fd(&fd);
    return 0;
}

/* Whatever lies at the path and is not a socket was not ours. */
static int check_path(const char *path, struct kvw_refusal *refusal)
{
    struct stat status;

    if (lstat(path, &status) < 0)
        return 0;
    if (!S_ISSOCK(status.st_mode)) {
        const char *what = S_ISDIR(status.st_mode)   ? "directory"
                           : S_ISLNK(status.st_mode) ? "symbolic link"
                           : S_ISREG(status.st_mode) ? "regular file"
                                                     : "device or pipe";
        (void)refuse(refusal, -ENOTSOCK, 0, 0,
                     "socket %s: there is a %s of that name, which is left alone", path,
                     what);
        return EXIT_CODE_SOCKET;
    }
    return 0;
}

static int clear_path(const char *path, struct kvw_refusal *refusal)
{
    int code = check_path(path, refusal);

    if (code != 0)
        return code;
    if (unlink(path) < 0 && errno != ENOENT) {
        (void)refuse(refusal, -errno, 0, 0,
                     "socket %s: the stale one cannot be removed: %s", path,
                     strerrordesc_np(errno));
        return EXIT_CODE_SOCKET;
    }
    return 0;
}

static int open_socket(const char *path, int *out, struct kvw_refusal *refusal)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memcpy(address.sun_path, path, strnlen(path, sizeof address.sun_path - 1));
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    /* Who may come in is decided by the directory, and per cache by its mode. */
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 ||
        chmod(path, 0666) < 0 || listen(fd, BACKLOG) < 0) {
        (void)refuse(refusal, -errno, 0, 0, "socket %s: cannot listen: %s", path,
                     strerrordesc_np(errno));
        return EXIT_CODE_SOCKET;
    }
    *out = take_fd(&fd);
    return 0;
}

int start_up(const struct options *options, int *listen_fd, int *lock_fd,
             struct kvw_refusal *refusal)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int lock = -1;
    KVW_CLEANUP(kvw_fd_cleanup)
    int listening = -1;

    int code = make_directory(options, refusal);
    if (code == 0) /* before a lock file is left beside somebody's file */
        code = check_path(options->socket_path, refusal);
    if (code == 0)
        code = take_lock(options, &lock, refusal);
    if (code == 0)
        code = clear_path(options->socket_path, refusal);
    if (code == 0)
        code = open_socket(options->socket_path, &listening, refusal);
    if (code != 0)
        return code;
    *lock_fd = take_fd(&lock);
    *listen_fd = take_fd(&listening);
    return 0;
}
