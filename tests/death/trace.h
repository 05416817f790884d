/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child under ptrace: forked, stopped, and moved on by single instructions or by
 * system calls until it is killed. It dies with its parent. One thread.
 */
#ifndef KVW_TESTS_DEATH_TRACE_H
#define KVW_TESTS_DEATH_TRACE_H

#include <stdbool.h>
#include <sys/types.h>

typedef void trace_fn(void *context);

/**
 * Fork a child that will call run(context) and end; it has the parent's memory.
 * @return its pid, stopped before the call; -1 where ptrace is forbidden.
 */
pid_t trace_start(trace_fn *run, void *context);

/** In the child: stop until the parent moves it on. */
void trace_stop_here(void);

/** Execute one instruction. @return true if the child is stopped, false if it ended. */
bool trace_step(pid_t pid);

/** Go on to the next entry into or exit from a system call, or to trace_stop_here().
 *  @return as trace_step(). */
bool trace_to_syscall(pid_t pid, bool *is_stop_here);

/** Go on to trace_stop_here(). @return as trace_step(). */
bool trace_to_stop(pid_t pid);

/** Let it run, and stop it wherever it is then. @return as trace_step(). */
bool trace_continue(pid_t pid);
bool trace_interrupt(pid_t pid);

/** SIGKILL and reap. */
void trace_kill(pid_t pid);

#endif
