/* SPDX-License-Identifier: Apache-2.0 */
/*
 * posix_spawn of /proc/self/exe: the same program even when its file was replaced, and
 * no copy of the page tables of a process that maps large segments.
 */
#include "daemon/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/kept.h"
#include "daemon/peer.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

#define FIRST_FREE_FD 10 /* above the numbers that the new process expects */
#define OWN_ARGUMENTS 4  /* program, role, restarts, final NULL */
#define QUIET_NS 10000000000ull
#define DELAY_NS 100000000ull
#define DELAY_NS_MAX 5000000000ull
#define STARTS_AT_ONCE 5

extern char **environ;

/* The attributes: no signal blocked, none ignored. */
static int spawn_with(const char *const *argv, int socket, int daemon_fd, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigset_t all;

    sigemptyset(&none);
    sigfillset(&all);
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return -error;
    error = posix_spawnattr_init(&attributes);
    if (error != 0)
        goto actions;
    error = posix_spawn_file_actions_adddup2(&actions, socket, KEPT_SOCKET_FD);
    if (error == 0 && daemon_fd >= 0)
        error = posix_spawn_file_actions_adddup2(&actions, daemon_fd, KEPT_DAEMON_FD);
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    (void)posix_spawnattr_setsigdefault(&attributes, &all);
    (void)posix_spawnattr_setflags(&attributes,
                                   POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (error == 0)
        error = posix_spawn(pid, "/proc/self/exe", &actions, &attributes,
                            (char *const *)(uintptr_t)argv, environ);
    (void)posix_spawnattr_destroy(&attributes);
actions:
    (void)posix_spawn_file_actions_destroy(&actions);
    return -error;
}

int spawn_role(const struct options *options, enum role role, uint32_t n_restarts,
               int daemon_fd, struct spawned *spawned)
{
    KVW_CLEANUP(kvw_free_cleanup)
    const char **argv =
        calloc((size_t)options->n_user_argv + OWN_ARGUMENTS, sizeof *argv);
    char number[16];
    int pair[2];
    pid_t pid;

    if (argv == NULL)
        return -ENOMEM;
    (void)snprintf(number, sizeof number, "%u", n_restarts);
    argv[0] = "kvwheeld";
    argv[1] = role == ROLE_SERVE ? "--serve" : "--keep";
    argv[2] = number;
    for (int i = 0; i < options->n_user_argv; i++)
        argv[3 + i] = options->user_argv[i];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    KVW_CLEANUP(kvw_fd_cleanup)
    int ours = pair[0];
    KVW_CLEANUP(kvw_fd_cleanup)
    int theirs = pair[1];
    KVW_CLEANUP(kvw_fd_cleanup)
    int high_socket = fcntl(theirs, F_DUPFD_CLOEXEC, FIRST_FREE_FD);
    KVW_CLEANUP(kvw_fd_cleanup)
    int high_daemon =
        daemon_fd < 0 ? -1 : fcntl(daemon_fd, F_DUPFD_CLOEXEC, FIRST_FREE_FD);
    if (high_socket < 0 || (daemon_fd >= 0 && high_daemon < 0))
        return -errno;

    int error = spawn_with(argv, high_socket, high_daemon, &pid);
    if (error != 0)
        return error;
    /* It is our child and not yet reaped, so the number is still its own. */
    int pidfd = peer_pidfd_open((uint32_t)pid);
    if (pidfd < 0) {
        (void)kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        return pidfd;
    }
    *spawned = (struct spawned){
        .socket = take_fd(&ours), .pidfd = pidfd, .pid = (uint32_t)pid};
    return 0;
}

int spawn_reap(int pidfd)
{
    siginfo_t info = {0};

    if (waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED | WNOHANG) < 0 || info.si_pid == 0)
        return 0;
    return info.si_code == CLD_EXITED ? -info.si_status : info.si_status;
}

uint64_t backoff_delay_ns(struct backoff *backoff, uint64_t now_ns)
{
    if (now_ns - backoff->last_ns > QUIET_NS)
        backoff->n_recent = 0;
    backoff->last_ns = now_ns;
    backoff->n_recent++;
    if (backoff->n_recent <= STARTS_AT_ONCE)
        return 0;
    return min_u64(DELAY_NS << min_u64(backoff->n_recent - STARTS_AT_ONCE - 1, 10),
                   DELAY_NS_MAX);
}
