/* SPDX-License-Identifier: Apache-2.0 */
/* See trace.h. */
#include "tests/death/trace.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

void trace_stop_here(void)
{
    (void)raise(SIGSTOP);
}

/* The signal that the child stopped with, or 0 when it ended. */
static int wait_for_stop(pid_t pid)
{
    int status;
    pid_t waited;

    do
        waited = waitpid(pid, &status, __WALL);
    while (waited < 0 && errno == EINTR);
    if (waited != pid || !WIFSTOPPED(status))
        return 0;
    return WSTOPSIG(status);
}

pid_t trace_start(trace_fn *run, void *context)
{
    pid_t pid = fork();

    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(1);
        trace_stop_here();
        run(context);
        _exit(0);
    }
    if (pid < 0 || wait_for_stop(pid) != SIGSTOP)
        return -1;
    if (ptrace(PTRACE_SETOPTIONS, pid, NULL,
               PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD) != 0) {
        trace_kill(pid);
        return -1;
    }
    return pid;
}

/* A stop that nobody asked for is a crash of the child: say so and let it end. */
static bool crash(pid_t pid, int signal)
{
    if (signal != 0)
        fprintf(stderr, "the traced child got signal %d\n", signal);
    trace_kill(pid);
    return false;
}

bool trace_step(pid_t pid)
{
    if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) != 0)
        return false;
    int signal = wait_for_stop(pid);
    return signal == SIGTRAP || crash(pid, signal);
}

bool trace_to_syscall(pid_t pid, bool *is_stop_here)
{
    if (ptrace(PTRACE_SYSCALL, pid, NULL, NULL) != 0)
        return false;
    int signal = wait_for_stop(pid);
    *is_stop_here = signal == SIGSTOP;
    return signal == (SIGTRAP | 0x80) || *is_stop_here || crash(pid, signal);
}

bool trace_continue(pid_t pid)
{
    return ptrace(PTRACE_CONT, pid, NULL, NULL) == 0;
}

static bool wait_for_sigstop(pid_t pid)
{
    int signal = wait_for_stop(pid);
    return signal == SIGSTOP || crash(pid, signal);
}

bool trace_interrupt(pid_t pid)
{
    return kill(pid, SIGSTOP) == 0 && wait_for_sigstop(pid);
}

bool trace_to_stop(pid_t pid)
{
    return trace_continue(pid) && wait_for_sigstop(pid);
}

void trace_kill(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
        continue;
}
