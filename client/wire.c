/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets over a SEQPACKET socket. A peer that dies with our packet unread makes the
 * next call on the socket answer ECONNRESET (unix(7)); a plain end of file says that it
 * may have read the packet. Callers need the difference: the first kind of request is
 * safe to send again, whatever it asks for.
 */
#include "client/wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/outside.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

#define SHORT_MS 10u /* between two attempts while the kernel is short of memory */

uint64_t wire_now_ms(void)
{
    return outside_now_ns(CLOCK_MONOTONIC) / 1000000;
}

/* connect() answers ECONNREFUSED for a file that is no socket at all. */
static bool is_not_socket(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 && !S_ISSOCK(status.st_mode);
}

int wire_connect(const char *path, int *out)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = -1;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t path_bytes = strlen(path) + 1;

    if (path_bytes > sizeof address.sun_path)
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, path_bytes);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        int error = errno;
        if (error == EPROTOTYPE || (error == ECONNREFUSED && is_not_socket(path)))
            return -ENOTSOCK;
        return -error;
    }
    *out = take_fd(&fd);
    return 0;
}

/* Neither is the packet lost that was to be sent or received: to give up at once would
 * leave the daemon with half of what was asked. */
static bool is_short(int error)
{
    return error == ENOMEM || error == ENOBUFS || error == ETOOMANYREFS;
}

int wire_wait(int socket, short events, int error, uint64_t deadline_ms)
{
    for (;;) {
        uint64_t now_ms = wire_now_ms();
        uint64_t left_ms = deadline_ms > now_ms ? deadline_ms - now_ms : 0;
        bool is_pause = is_short(error);
        struct pollfd poll_fd = {.fd = is_pause ? -1 : socket, .events = events};

        if (error != EAGAIN && error != EINTR && !is_pause)
            return -error;
        int n_ready =
            poll(&poll_fd, 1, (int)min_u64(left_ms, is_pause ? SHORT_MS : 60000));
        if (n_ready > 0 || (n_ready == 0 && is_pause && left_ms > 0))
            return 0;
        if (n_ready == 0 && left_ms == 0)
            return -ETIMEDOUT;
        error = n_ready < 0 ? errno : error;
    }
}

int wire_send(int socket, const struct kvw_message *message, uint64_t deadline_ms)
{
    uint8_t packet[KVW_MESSAGE_MAX];
    int n_bytes = message_encode(message, packet, sizeof packet);

    if (n_bytes < 0)
        return n_bytes;
    for (;;) {
        if (send(socket, packet, (size_t)n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return 0;
        if (errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED ||
            errno == ENOTCONN)
            return -ECONNRESET;
        int result = wire_wait(socket, POLLOUT, errno, deadline_ms);
        if (result < 0)
            return result;
    }
}

/* Own every descriptor that arrived, then judge. */
static void fds_collect(struct msghdr *head, struct wire_fds *fds)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(head); part != NULL;
         part = CMSG_NXTHDR(head, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n_fds = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n_fds; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
            if (fds->n_fds < KVW_MESSAGE_FDS_MAX)
                fds->fd[fds->n_fds++] = fd;
            else
                close(fd);
        }
    }
    fds->is_cut = (head->msg_flags & MSG_CTRUNC) != 0;
    if (fds->is_cut)
        wire_fds_close(fds, 0);
}

void wire_fds_close(struct wire_fds *fds, uint32_t first)
{
    while (fds->n_fds > first)
        close(fds->fd[--fds->n_fds]);
}

int wire_receive(int socket, uint8_t *packet, struct kvw_message *message,
                 struct wire_fds *fds, uint64_t deadline_ms)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(KVW_MESSAGE_FDS_MAX * sizeof(int))];
    } control;
    struct iovec body = {.iov_base = packet, .iov_len = KVW_MESSAGE_MAX};
    struct msghdr head;
    ssize_t n_bytes;

    *fds = (struct wire_fds){0};
    for (;;) {
        head = (struct msghdr){.msg_iov = &body,
                               .msg_iovlen = 1,
                               .msg_control = control.bytes,
                               .msg_controllen = sizeof control.bytes};
        n_bytes = recvmsg(socket, &head, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (n_bytes >= 0)
            break;
        if (errno == ECONNRESET)
            return -ECONNRESET;
        int result = wire_wait(socket, POLLIN, errno, deadline_ms);
        if (result < 0)
            return result;
    }
    fds_collect(&head, fds);
    int result = n_bytes == 0 ? -EPIPE
                 : (head.msg_flags & MSG_TRUNC) != 0
                     ? -EPROTO
                     : message_decode(packet, (size_t)n_bytes, message);
    if (result < 0)
        wire_fds_close(fds, 0);
    return result;
}
