/* SPDX-License-Identifier: Apache-2.0 */
/* What this host gives a daemon and what it refuses: kvwheeld --check-host. */
#ifndef KVW_DAEMON_SURVEY_H
#define KVW_DAEMON_SURVEY_H

/**
 * Try what the daemon needs, with its own code, and print a line for each:
 *
 *     LEVEL <tab> WHAT <tab> NEED <tab> HAVE <tab> TEXT <tab> COMMAND
 *
 * LEVEL is ok, note (works, but something is missing) or wrong (a daemon cannot work
 * here). NEED and HAVE are numbers, or both empty. COMMAND mends it, or is empty.
 *
 * @return the program's exit code: 0; EXIT_CODE_IO_URING or EXIT_CODE_FAILED when a line
 * is wrong.
 */
int survey_run(void);

/** Print the NUMA nodes, a line for each, for `kvwheel plan` and `topo`. @return exit code. */
int survey_topology(void);

#endif
