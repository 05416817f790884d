/* SPDX-License-Identifier: Apache-2.0 */
/* What /proc tells of a daemon, its keeper and ourselves. */
#ifndef KVW_TESTS_DAEMON_PROC_H
#define KVW_TESTS_DAEMON_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/**
 * Wait until the threads by which a daemon closes what it no longer needs are asleep. A
 * daemon hands a thread its work before it answers the next request, so after an answer all
 * that came before is closed.
 *
 * @return false if they are not asleep after a second.
 */
bool proc_settle(pid_t pid);

/** Descriptors of a process, once it has settled (and two more: . and ..); 0: it is gone. */
int proc_count_fds(pid_t pid);

/* Nanoseconds of a process so far. */
struct proc_schedule {
    uint64_t on_cpu_ns;
    uint64_t waited_ns; /* ready to run, but for a CPU */
};

/** The schedule of a process; zeros: it is gone. */
struct proc_schedule proc_schedule_of(pid_t pid);

#endif
