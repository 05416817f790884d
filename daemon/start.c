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
#include <sys/un.h>
#include <unistd.h>

#include "daemon/host.h"
#include "proto/base/cleanup.h"

#define LOCK_NS 2000000000ull
/* Of several that programs start at once all but one should be gone soon, and not be
 * there to follow the one when it is stopped. */
#define LOCK_EMBEDDED_NS 250000000ull
#define LOCK_RETRY_MS 10
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

static int refuse_running(const char *path, struct kvw_refusal *refusal)
{
    char text[32];

    int n_bytes = host_read_file(path, text, sizeof text);
    if (n_bytes <= 0)
        memcpy(text, "unknown", sizeof "unknown");
    text[strcspn(text, "\n")] = 0;
    (void)refuse(refusal, -EBUSY, 0, 0,
                 "another daemon is running: pid %s holds the lock %s", text, path);
    return EXIT_CODE_RUNNING;
}

static int take_lock(const struct options *options, int *out,
                     struct kvw_refusal *refusal)
{
    char path[KVW_SOCKET_PATH_MAX + 8];
    uint64_t deadline_ns =
        host_now_ns() + (options->is_embedded ? LOCK_EMBEDDED_NS : LOCK_NS);

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
        if (host_now_ns() >= deadline_ns)
            return refuse_running(path, refusal);
        /* Nothing tells when a file lock is let go. */
        (void)poll(NULL, 0, LOCK_RETRY_MS);
    }
    *out = take_fd(&fd);
    return 0;
}

/* Whatever lies at the path and is not a socket was not ours. */
static int clear_path(const char *path, struct kvw_refusal *refusal)
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
    if (unlink(path) < 0) {
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
