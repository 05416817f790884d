/* SPDX-License-Identifier: Apache-2.0 */
/* The coder of keeper packets. */
#include "daemon/kept.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/host.h"

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(KEPT_FDS_MAX * sizeof(int))];
};

int kept_send(int socket, const struct kept_packet *packet, const int *fds,
              uint32_t n_fds)
{
    union control control = {0};
    struct iovec body = {.iov_base = (void *)(uintptr_t)packet,
                         .iov_len = sizeof *packet};
    struct msghdr head = {.msg_iov = &body, .msg_iovlen = 1};

    KVW_CHECK(n_fds <= KEPT_FDS_MAX);
    if (n_fds > 0) {
        head.msg_control = control.bytes;
        head.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *part = CMSG_FIRSTHDR(&head);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(part), fds, n_fds * sizeof(int));
    }
    uint32_t n_tries = 0;
    ssize_t n_bytes;
    do
        n_bytes = sendmsg(socket, &head, MSG_NOSIGNAL);
    while (n_bytes < 0 && host_may_retry(errno, &n_tries));
    if (n_bytes >= 0)
        return 0;
    return errno == ECONNRESET ? -EPIPE : -errno;
}

static uint32_t collect(struct msghdr *head, int *fds)
{
    uint32_t n_fds = 0;

    for (struct cmsghdr *part = CMSG_FIRSTHDR(head); part != NULL;
         part = CMSG_NXTHDR(head, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        uint32_t n = (uint32_t)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (uint32_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
            if (n_fds < KEPT_FDS_MAX)
                fds[n_fds++] = fd;
            else
                close(fd);
        }
    }
    return n_fds;
}

int kept_receive(int socket, struct kept_packet *packet, int *fds, uint32_t *n_fds,
                 int flags)
{
    union control control;
    struct iovec body = {.iov_base = packet, .iov_len = sizeof *packet};
    struct msghdr head = {.msg_iov = &body,
                          .msg_iovlen = 1,
                          .msg_control = control.bytes,
                          .msg_controllen = sizeof control.bytes};
    uint32_t n_tries = 0;
    ssize_t n_bytes;

    *n_fds = 0;
    do
        n_bytes = recvmsg(socket, &head, MSG_CMSG_CLOEXEC | flags);
    while (n_bytes < 0 && host_may_retry(errno, &n_tries));
    if (n_bytes < 0)
        return errno == ECONNRESET ? -EPIPE : -errno;
    if (n_bytes == 0)
        return -EPIPE;
    *n_fds = collect(&head, fds);
    if (n_bytes != sizeof *packet) {
        while (*n_fds > 0)
            close(fds[--*n_fds]);
        return -EPROTO;
    }
    packet->name[KEPT_NAME_MAX] = 0;
    if ((head.msg_flags & MSG_CTRUNC) != 0) {
        while (*n_fds > 0)
            close(fds[--*n_fds]);
        return -EMFILE;
    }
    return 0;
}
