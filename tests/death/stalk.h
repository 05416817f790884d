/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that is no child of ours, stopped at its n-th stop at a system call (entries
 * and exits count) while others run, to be killed there. One victim at a time.
 */
#ifndef KVW_TESTS_DEATH_STALK_H
#define KVW_TESTS_DEATH_STALK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum stalk_end {
    STALK_AT_STOP,  /* the victim is stopped there */
    STALK_RETURNED, /* the caller stopped itself before: the victim runs */
    STALK_LOST,     /* the victim or the caller ended, or nothing came in 60 s */
};

/** Stop a process and trace it. It dies with us. @return false if it is forbidden. */
bool stalk_seize(pid_t pid);

/**
 * Kill the child of a process and take hold of the one that it starts next, stopped
 * before its first instruction. The parent is traced from then on, and runs.
 *
 * @return its pid, or -1.
 */
pid_t stalk_birth(pid_t parent, pid_t child);

/** Move the stopped victim on to stop number `at`, from 0, unless `caller`, a child of
 * ours, stops itself before that. */
enum stalk_end stalk_to(pid_t victim, pid_t caller, uint64_t at);

/** Wait until our child has stopped itself. @return false if it ended, or after 60 s. */
bool stalk_await(pid_t caller);

/** Trace a process no more; it runs. */
void stalk_let_go(pid_t pid);

/** SIGKILL a traced process, and wait for its end. */
void stalk_kill(pid_t pid);

#endif
