/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pid can be used again between the daemon's answer and our pidfd. So a process is
 * waited for only when the daemon has named it once more after we had its pidfd.
 */
#include "client/owner.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/wire.h"
#include "proto/base/cleanup.h"

#define NS_PER_MS 1000000ull

struct watch {
    int pidfd;    /* -1 = nobody is watched */
    uint32_t pid; /* of that process, or of the last one that had ended; 0 = none */
    uint64_t deadline_ms;
};

/* Begin to watch. @return 0: ask again; -EBUSY: there is nobody that could be. */
static int watch_begin(struct watch *watch, uint32_t pid)
{
    kvw_fd_cleanup(&watch->pidfd);
    if (pid == 0 || pid == watch->pid)
        return -EBUSY;
    watch->pid = pid;
    watch->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return watch->pidfd < 0 && errno != ESRCH ? -EBUSY : 0;
}

/* Sleep until the process has ended, or the time is over. */
static void watch_sleep(struct watch *watch)
{
    struct pollfd ended = {.fd = watch->pidfd, .events = POLLIN};
    uint64_t now_ms = wire_now_ms();

    while (now_ms < watch->deadline_ms) {
        const uint64_t left_ms = watch->deadline_ms - now_ms;
        if (poll(&ended, 1, left_ms > INT_MAX ? INT_MAX : (int)left_ms) > 0)
            break;
        now_ms = wire_now_ms();
    }
    kvw_fd_cleanup(&watch->pidfd);
}

int owner_attach(struct kvw_client *client, struct kvw_message *request,
                 struct kvw_message *answer, int fds[3], uint64_t timeout_ns)
{
    struct watch watch = {.pidfd = -1, .deadline_ms = UINT64_MAX};
    bool is_over = timeout_ns == 0;

    if (timeout_ns != KVW_NO_TIMEOUT)
        watch.deadline_ms = wire_now_ms() + timeout_ns / NS_PER_MS + 1;
    int result = client_call(client, request, answer, fds, 3, NULL, NULL);
    while (result == -EBUSY && !is_over && client_failure().is_refused) {
        const uint32_t pid = (uint32_t)client_failure().have;
        if (watch.pidfd >= 0 && watch.pid == pid)
            watch_sleep(&watch);
        else if (watch_begin(&watch, pid) < 0)
            break;
        is_over = wire_now_ms() >= watch.deadline_ms;
        result = client_call(client, request, answer, fds, 3, NULL, NULL);
    }
    kvw_fd_cleanup(&watch.pidfd);
    return result;
}
