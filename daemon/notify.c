/* SPDX-License-Identifier: Apache-2.0 */
/* No libsystemd: it is one datagram. */
#include "daemon/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/host.h"
#include "proto/base/cleanup.h"

#define ANSWER_MS 2000

int notify_connect(int *out)
{
    const char *path = host_environment("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval timeout = {.tv_sec = ANSWER_MS / 1000};
    size_t length = path == NULL ? 0 : strlen(path);

    if (length < 2 || length > sizeof address.sun_path - 1 ||
        (path[0] != '/' && path[0] != '@'))
        return -EINVAL;
    memcpy(address.sun_path, path, length);
    if (path[0] == '@')
        address.sun_path[0] = 0;
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 ||
        connect(fd, (const struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) < 0)
        return -errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    *out = take_fd(&fd);
    return 0;
}

int notify_send(int socket, const char *text, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec body = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
    struct msghdr head = {.msg_iov = &body, .msg_iovlen = 1};
    uint32_t n_tries = 0;
    ssize_t n_bytes;

    if (fd >= 0) {
        head.msg_control = control.bytes;
        head.msg_controllen = sizeof control.bytes;
        struct cmsghdr *part = CMSG_FIRSTHDR(&head);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(part), &fd, sizeof fd);
    }
    do
        n_bytes = sendmsg(socket, &head, MSG_NOSIGNAL);
    while (n_bytes < 0 && host_may_retry(errno, &n_tries));
    return n_bytes < 0 ? -errno : 0;
}

/* systemd closes the pipe when it comes to it, which is after all before it. */
int notify_barrier(int socket)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    KVW_CLEANUP(kvw_fd_cleanup)
    int ours = ends[0];
    int error = notify_send(socket, "BARRIER=1", ends[1]);
    close(ends[1]);
    if (error != 0)
        return error;
    struct pollfd closed = {.fd = ours};
    return poll(&closed, 1, ANSWER_MS) == 1 ? 0 : -ETIMEDOUT;
}
