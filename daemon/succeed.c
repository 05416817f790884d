/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The new program finds the socket, the pidfd and the table at fixed numbers. Whatever
 * lies there, or below them, is moved out of the way first.
 */
#include "daemon/succeed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/segment.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

#define STATE_MAGIC 0x706565686b77766bull
#define OWN_ARGUMENTS 4 /* program, role, restarts, final NULL */

extern char **environ;

/* What lies in the memfd; the entries follow. */
struct state {
    uint64_t magic;
    uint32_t entry_bytes;
    uint32_t n_entries;
    uint32_t n_restarts;
    uint8_t has_daemon;
    uint8_t has_answer_due;
    uint8_t reserved[2];
};

int succeed_path(char path[PATH_MAX])
{
    static const char deleted[] =
        " (deleted)"; /* what the kernel says of such a file */
    struct stat status;

    ssize_t n_bytes = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (n_bytes < 0)
        return -errno;
    path[n_bytes] = 0;
    size_t end = (size_t)n_bytes - min_u64((size_t)n_bytes, sizeof deleted - 1);
    if (strcmp(path + end, deleted) == 0)
        path[end] = 0;
    if (stat(path, &status) < 0)
        return -errno;
    if (!S_ISREG(status.st_mode) || access(path, X_OK) < 0)
        return -ENOEXEC;
    return 0;
}

int succeed_open_self(void)
{
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

    return fd < 0 ? -errno : fd;
}

static int move_up(int32_t *fd)
{
    if (*fd < 0 || *fd >= KEPT_FREE_FD)
        return 0;
    int moved = fcntl(*fd, F_DUPFD_CLOEXEC, KEPT_FREE_FD);
    if (moved < 0)
        return -errno;
    close(*fd);
    *fd = moved;
    return 0;
}

static int move_all_up(struct keep *keep, struct hands *hands)
{
    int error = move_up(&hands->socket);

    if (error == 0)
        error = move_up(&hands->daemon_fd);
    for (uint32_t i = 0; i < keep->n_entries && error == 0; i++) {
        for (uint32_t k = 0; k < keep->entries[i].n_fds && error == 0; k++)
            error = move_up(&keep->entries[i].fds[k]);
    }
    return error;
}

static void set_inherited(struct keep *keep, bool is_inherited)
{
    for (uint32_t i = 0; i < keep->n_entries; i++) {
        for (uint32_t k = 0; k < keep->entries[i].n_fds; k++)
            (void)fcntl(keep->entries[i].fds[k], F_SETFD,
                        is_inherited ? 0 : FD_CLOEXEC);
    }
}

static int write_state(const struct keep *keep, const struct hands *hands)
{
    const size_t table_bytes = keep->n_entries * sizeof keep->entries[0];
    KVW_CLEANUP(kvw_free_cleanup)
    struct state *state = malloc(sizeof *state + table_bytes);

    if (state == NULL)
        return -ENOMEM;
    *state = (struct state){.magic = STATE_MAGIC,
                            .entry_bytes = sizeof keep->entries[0],
                            .n_entries = keep->n_entries,
                            .n_restarts = hands->n_restarts,
                            .has_daemon = hands->socket >= 0 && hands->daemon_fd >= 0,
                            .has_answer_due = hands->has_answer_due};
    memcpy(state + 1, keep->entries, table_bytes);
    return segment_freeze("kvwheel:kept", state, sizeof *state + table_bytes);
}

/* The three to their numbers. A keeper expects a socket, be it one that nobody holds
 * the other end of. */
static int place(const struct hands *hands, int state_fd)
{
    int pair[2] = {-1, -1};
    int error = 0;

    if (hands->socket < 0 || hands->daemon_fd < 0) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
            return -errno;
        if (pair[0] != KEPT_SOCKET_FD)
            error = dup2(pair[0], KEPT_SOCKET_FD) < 0 ? -errno : 0;
    } else if (dup2(hands->socket, KEPT_SOCKET_FD) < 0 ||
               dup2(hands->daemon_fd, KEPT_DAEMON_FD) < 0) {
        error = -errno;
    }
    (void)fcntl(KEPT_SOCKET_FD, F_SETFD, 0);
    if (error == 0 && dup2(state_fd, KEPT_STATE_FD) < 0)
        error = -errno;
    return error;
}

int succeed_exec(const char *path, const struct options *options, struct keep *keep,
                 struct hands *hands)
{
    KVW_CLEANUP(kvw_free_cleanup)
    const char **argv =
        calloc((size_t)options->n_user_argv + OWN_ARGUMENTS, sizeof *argv);
    char number[16];

    if (argv == NULL)
        return -ENOMEM;
    (void)snprintf(number, sizeof number, "%u", hands->n_restarts);
    argv[0] = "kvwheeld";
    argv[1] = "--keep-on";
    argv[2] = number;
    for (int i = 0; i < options->n_user_argv; i++)
        argv[3 + i] = options->user_argv[i];

    int error = move_all_up(keep, hands);
    if (error != 0)
        return error;
    KVW_CLEANUP(kvw_fd_cleanup)
    int state_fd = write_state(keep, hands);
    if (state_fd < 0)
        return state_fd;
    error = move_up(&state_fd);
    if (error == 0)
        error = place(hands, state_fd);
    if (error == 0) {
        set_inherited(keep, true);
        (void)execve(path, (char *const *)(uintptr_t)argv, environ);
        error = -errno;
        set_inherited(keep, false);
    }
    for (int fd = KEPT_SOCKET_FD; fd < KEPT_FREE_FD; fd++)
        close(fd);
    return error;
}

int succeed_take_over(struct keep *keep, struct hands *hands)
{
    struct state state;
    struct stat status;
    int seals = fcntl(KEPT_STATE_FD, F_GET_SEALS);

    *hands = (struct hands){.socket = -1, .daemon_fd = -1};
    if (seals < 0 || fstat(KEPT_STATE_FD, &status) < 0 ||
        pread(KEPT_STATE_FD, &state, sizeof state, 0) != (ssize_t)sizeof state)
        return -EINVAL;
    const size_t table_bytes = (size_t)state.n_entries * sizeof keep->entries[0];
    if (state.magic != STATE_MAGIC || state.entry_bytes != sizeof keep->entries[0] ||
        state.n_entries > KEPT_ENTRIES_MAX ||
        (size_t)status.st_size != sizeof state + table_bytes ||
        pread(KEPT_STATE_FD, keep->entries, table_bytes, sizeof state) !=
            (ssize_t)table_bytes)
        return -EINVAL;
    keep->n_entries = state.n_entries;
    set_inherited(keep, false);
    close(KEPT_STATE_FD);
    if (state.has_daemon) {
        hands->socket = KEPT_SOCKET_FD;
        hands->daemon_fd = KEPT_DAEMON_FD;
        (void)fcntl(KEPT_SOCKET_FD, F_SETFD, FD_CLOEXEC);
        (void)fcntl(KEPT_DAEMON_FD, F_SETFD, FD_CLOEXEC);
    } else {
        close(KEPT_SOCKET_FD);
    }
    hands->n_restarts = state.n_restarts;
    hands->has_answer_due = state.has_answer_due;
    return 0;
}
