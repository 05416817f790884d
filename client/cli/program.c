/* SPDX-License-Identifier: Apache-2.0 */
/* A child with one pipe, killed at the deadline. */
#include "client/cli/program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/outside.h"
#include "proto/base/cleanup.h"

#define OUTPUT_NS 20000000000ull

/* Run it with both outputs into a pipe. @return 0 with the pid, or -errno. */
static int run(const char *program, const char *option, int output, pid_t *pid)
{
    char name[] = "kvwheeld";
    char given[32];
    char *const arguments[] = {name, given, NULL};
    posix_spawn_file_actions_t actions;

    (void)snprintf(given, sizeof given, "%s", option);
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return -error;
    error = posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
    if (error == 0)
        error = posix_spawn(pid, program, &actions, NULL, arguments, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    return -error;
}

/* Read to the end, or to the deadline. @return false at the deadline. */
static bool read_all(int fd, char text[PROGRAM_OUTPUT_BYTES])
{
    const uint64_t deadline_ns = outside_now_ns(CLOCK_MONOTONIC) + OUTPUT_NS;
    size_t n_bytes = 0;

    for (;;) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        uint64_t now_ns = outside_now_ns(CLOCK_MONOTONIC);
        text[n_bytes] = 0;
        if (now_ns >= deadline_ns)
            return false;
        if (poll(&readable, 1, (int)((deadline_ns - now_ns) / 1000000 + 1)) <= 0)
            continue;
        ssize_t n_read = read(fd, text + n_bytes, PROGRAM_OUTPUT_BYTES - 1 - n_bytes);
        if (n_read < 0 && errno == EINTR)
            continue;
        if (n_read <= 0)
            return true;
        n_bytes += (size_t)n_read;
    }
}

int program_ask(const char *program, const char *option,
                char text[PROGRAM_OUTPUT_BYTES])
{
    int ends[2];
    int status = 0;
    pid_t pid = 0;

    text[0] = 0;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    KVW_CLEANUP(kvw_fd_cleanup)
    int output = ends[0];
    int error = run(program, option, ends[1], &pid);
    close(ends[1]);
    if (error != 0)
        return error;
    bool has_ended = read_all(output, text);
    if (!has_ended)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (!has_ended)
        return -ETIMEDOUT;
    return WIFEXITED(status) ? 0 : -ECHILD;
}
