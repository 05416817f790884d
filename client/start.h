/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting kvwheeld from a program that may have many threads and much memory:
 * detached, with nothing of the program's but its environment. One thread; owned by the
 * caller.
 */
#ifndef KVW_CLIENT_START_H
#define KVW_CLIENT_START_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/client.h"

#define START_ARGUMENTS_MAX 16u

struct start {
    int pidfd; /* of the started process; -1 = it has ended */
    off_t log_offset;
    char program[PATH_MAX];
    char log_path[KVW_SOCKET_PATH_MAX + 8];
};

/**
 * Find kvwheeld: $KVWHEELD, else beside the running program, else in the prefix of the
 * library, else where it was installed, else in $PATH.
 *
 * @return 0 or -ENOEXEC, in words.
 */
KVW_NODISCARD int start_find(char program[PATH_MAX]);

/**
 * Start `kvwheeld --socket PATH --log` and `arguments` (up to NULL; may be NULL), whose
 * output goes to PATH.log. The socket's folder is made if need be.
 *
 * @return 0 with *start to be ended by start_fini(); -ENOEXEC or another -errno, in
 * words.
 */
KVW_NODISCARD int start_daemon(const char *socket_path, const char *const *arguments,
                               struct start *start);

/** Wait up to `wait_ms`; true if the started process has ended. */
bool start_has_ended(struct start *start, uint32_t wait_ms);

/** Say that no daemon came up, with the last line of its log; returns -ENOEXEC. */
int start_explain(const struct start *start);

void start_fini(struct start *start);

#endif
