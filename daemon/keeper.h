/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: a process so small that it has no reason to die. It holds named entries
 * of descriptors, starts the daemon, and starts it again when it died without saying
 * goodbye. It looks into nothing that it holds.
 *
 * A restart replaces both programs. The keeper goes first, by exec, which keeps its pid
 * and what it holds (succeed.h); the daemon looks on and would start another keeper if
 * that failed. Then the daemon ends, and the new keeper starts a new one. Until that
 * one serves, the keeper holds the program before it as entry `previous`, and becomes
 * it again when the new daemon refuses to adopt, dies or hangs.
 */
#ifndef KVW_DAEMON_KEEPER_H
#define KVW_DAEMON_KEEPER_H

#include "daemon/options.h"

/**
 * Keep, until the daemon ends for good.
 *
 * @param listen_fd,lock_fd  ROLE_START: what start_up() took; owned from here on.
 *                           ROLE_KEEP: -1, the daemon hands everything over.
 * @return the program's exit code.
 */
int keeper_run(const struct options *options, int listen_fd, int lock_fd);

#endif
