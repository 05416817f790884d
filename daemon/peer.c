/* SPDX-License-Identifier: Apache-2.0 */
/* Identity by kernel facts only: nothing here is a word of the peer's own. */
#include "daemon/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/host.h"
#include "proto/base/cleanup.h"

/* Newer than the headers of some distributions. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#define PIDFS_MAGIC 0x50494446 /* Linux 6.9: every process has its own inode there */
#define GROUPS_MAX 256

int peer_pidfd_open(uint32_t pid)
{
    long fd = syscall(SYS_pidfd_open, (pid_t)pid, 0);

    return fd < 0 ? -errno : (int)fd;
}

static int pidfd_by_option(int socket)
{
    int fd = -1;
    socklen_t length = sizeof fd;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) < 0)
        return -errno;
    return fd;
}

/* A hung-up connection may be that of a process whose pid somebody else has by now. */
static bool is_up(int socket)
{
    struct pollfd poll_fd = {.fd = socket, .events = POLLRDHUP};

    return poll(&poll_fd, 1, 0) == 0;
}

static int pidfd_by_number(int socket, uint32_t pid)
{
    uint64_t ticks = host_start_ticks(pid);

    if (pid == 0 || ticks == 0)
        return -ESRCH;
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = peer_pidfd_open(pid);
    if (fd < 0)
        return fd;
    if (host_start_ticks(pid) != ticks || !is_up(socket))
        return -ESRCH;
    return take_fd(&fd);
}

static bool pidfs_inode(int pidfd, uint64_t *inode)
{
    struct statfs file_system;
    struct stat status;

    if (fstatfs(pidfd, &file_system) < 0 || file_system.f_type != PIDFS_MAGIC ||
        fstat(pidfd, &status) < 0)
        return false;
    *inode = status.st_ino;
    return true;
}

bool peer_has_pidfd_option(int socket)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = pidfd_by_option(socket);

    return fd != -ENOPROTOOPT && fd != -EINVAL;
}

int peer_of(int socket, struct peer *peer)
{
    struct ucred credentials;
    socklen_t length = sizeof credentials;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0)
        return -errno;
    int pidfd = pidfd_by_option(socket);
    if (pidfd == -ENOPROTOOPT || pidfd == -EINVAL)
        pidfd = pidfd_by_number(socket, (uint32_t)credentials.pid);
    if (pidfd < 0)
        return pidfd;
    *peer = (struct peer){.uid = credentials.uid,
                          .gid = credentials.gid,
                          .pid = (uint32_t)credentials.pid,
                          .pidfd = pidfd};
    if (!pidfs_inode(pidfd, &peer->key))
        peer->key = peer->pid;
    return 0;
}

int peer_copy(const struct peer *from, struct peer *to)
{
    int pidfd = fcntl(from->pidfd, F_DUPFD_CLOEXEC, 3);

    if (pidfd < 0)
        return -errno;
    *to = *from;
    to->pidfd = pidfd;
    return 0;
}

void peer_close(struct peer *peer)
{
    kvw_fd_cleanup(&peer->pidfd);
}

bool peer_is_dead(const struct peer *peer)
{
    struct pollfd poll_fd = {.fd = peer->pidfd, .events = POLLIN};

    return poll(&poll_fd, 1, 0) > 0;
}

bool peer_is_same(const struct peer *a, const struct peer *b)
{
    uint64_t inode_a;
    uint64_t inode_b;

    /* A pid is not used again before its process is dead, and then the pidfd fired. */
    if (peer_is_dead(a) || peer_is_dead(b))
        return false;
    if (pidfs_inode(a->pidfd, &inode_a) && pidfs_inode(b->pidfd, &inode_b))
        return inode_a == inode_b;
    return a->pid != 0 && a->pid == b->pid;
}

bool peer_in_group(int socket, const struct peer *peer, uint32_t gid)
{
    gid_t groups[GROUPS_MAX];
    socklen_t length = sizeof groups;

    if (peer->gid == gid)
        return true;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups, &length) < 0)
        return false;
    for (size_t i = 0; i < length / sizeof groups[0]; i++) {
        if (groups[i] == gid)
            return true;
    }
    return false;
}

int peer_kill(const struct peer *peer)
{
    if (syscall(SYS_pidfd_send_signal, peer->pidfd, SIGKILL, NULL, 0) < 0)
        return -errno;
    return 0;
}
