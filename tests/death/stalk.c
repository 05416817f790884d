/* SPDX-License-Identifier: Apache-2.0 */
/* See stalk.h. An alarm interrupts waits that nothing else would end. */
#include "tests/death/stalk.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_SECONDS 60
#define SYSCALL_STOP (SIGTRAP | 0x80)
#define OPTIONS (PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD)
#define OPTIONS_OF_PARENT \
    (OPTIONS | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE)

static void ring(int signal)
{
    (void)signal; /* it only interrupts */
}

static void be_patient(void)
{
    const struct sigaction action = {.sa_handler = ring};

    (void)sigaction(SIGALRM, &action, NULL);
    (void)alarm(PATIENCE_SECONDS);
}

/* @return the pid that changed, or -1. */
static pid_t wait_for(pid_t pid, int *status)
{
    be_patient();
    pid_t changed = waitpid(pid, status, __WALL | WUNTRACED);
    (void)alarm(0);
    return changed;
}

static int event_of(int status)
{
    return status >> 16;
}

/* What a process has to be given when it goes on: the signal that stopped it. */
static long signal_of(int status)
{
    const int signal = WSTOPSIG(status);

    return event_of(status) != 0 || signal == SYSCALL_STOP || signal == SIGTRAP
               ? 0
               : signal;
}

static bool seize(pid_t pid, long options)
{
    int status;

    if (ptrace(PTRACE_SEIZE, pid, NULL, options) != 0)
        return false;
    return ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0 &&
           wait_for(pid, &status) == pid && WIFSTOPPED(status);
}

bool stalk_seize(pid_t pid)
{
    return seize(pid, OPTIONS);
}

static bool is_birth(int status)
{
    const int event = event_of(status);

    return event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK ||
           event == PTRACE_EVENT_CLONE;
}

/* The child of a parent that is stopped at its birth; it is stopped, too. */
static pid_t newborn(pid_t parent)
{
    unsigned long pid = 0;
    int status;

    if (ptrace(PTRACE_GETEVENTMSG, parent, NULL, &pid) != 0 ||
        wait_for((pid_t)pid, &status) != (pid_t)pid || !WIFSTOPPED(status))
        return -1;
    return (pid_t)pid;
}

pid_t stalk_birth(pid_t parent, pid_t child)
{
    int status = 0;
    long signal = 0;

    if (!seize(parent, OPTIONS_OF_PARENT))
        return -1;
    (void)kill(child, SIGKILL);
    do {
        if (ptrace(PTRACE_CONT, parent, NULL, signal) != 0 ||
            wait_for(parent, &status) != parent || !WIFSTOPPED(status))
            return -1;
        signal = signal_of(status);
    } while (!is_birth(status));
    pid_t pid = newborn(parent);
    (void)ptrace(PTRACE_CONT, parent, NULL, NULL);
    return pid;
}

enum stalk_end stalk_to(pid_t victim, pid_t caller, uint64_t at)
{
    long signal = 0;
    int status;

    if (ptrace(PTRACE_SYSCALL, victim, NULL, NULL) != 0)
        return STALK_LOST;
    for (uint64_t n = 0;;) {
        const pid_t pid = wait_for(-1, &status);
        if (pid < 0)
            return STALK_LOST;
        if (pid == caller)
            return WIFSTOPPED(status) ? STALK_RETURNED : STALK_LOST;
        if (!WIFSTOPPED(status)) {
            if (pid == victim)
                return STALK_LOST;
            continue; /* whoever it was that has lost its parent */
        }
        signal = signal_of(status);
        if (pid != victim)
            (void)ptrace(PTRACE_CONT, pid, NULL, signal);
        else if (WSTOPSIG(status) == SYSCALL_STOP && n++ == at)
            return STALK_AT_STOP;
        else if (ptrace(PTRACE_SYSCALL, pid, NULL, signal) != 0)
            return STALK_LOST;
    }
}

bool stalk_await(pid_t caller)
{
    int status;

    return wait_for(caller, &status) == caller && WIFSTOPPED(status);
}

static void let_go(pid_t pid)
{
    int status;

    if (ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) != 0 ||
        wait_for(pid, &status) != pid || !WIFSTOPPED(status))
        return;
    if (is_birth(status)) {
        const pid_t child = newborn(pid);
        if (child > 0)
            (void)ptrace(PTRACE_DETACH, child, NULL, NULL);
    }
    (void)ptrace(PTRACE_DETACH, pid, NULL, signal_of(status));
}

static void reap(pid_t pid)
{
    int status;

    while (wait_for(pid, &status) == pid && WIFSTOPPED(status))
        (void)ptrace(PTRACE_CONT, pid, NULL, NULL);
}

/* Threads that were born under our eyes are ours, too: until we have waited for them, a dead
 * process is not dead to its parent. */
static void for_each_thread(pid_t pid, void act(pid_t thread))
{
    char path[64];
    struct dirent *entry;

    (void)snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    while (threads != NULL && (entry = readdir(threads)) != NULL) {
        const pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        if (thread > 0 && thread != pid)
            act(thread);
    }
    if (threads != NULL)
        closedir(threads);
}

void stalk_let_go(pid_t pid)
{
    let_go(pid);
    for_each_thread(pid, let_go);
}

void stalk_kill(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    for_each_thread(pid, reap);
    reap(pid);
}
