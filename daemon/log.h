/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines on stderr: the time, then lower case, `key value` pairs, one write each, in
 * printable ASCII whatever a peer has put into them.
 *
 * With a path, stderr is made that file (`kvwheeld --log`: SOCKET.log), which daemon and
 * keeper share. The daemon renames it to PATH.1 when it is full; the keeper follows.
 */
#ifndef KVW_DAEMON_LOG_H
#define KVW_DAEMON_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level {
    LOG_ERROR = 0,
    LOG_WARN = 1,
    LOG_INFO = 2,
    LOG_DEBUG = 3,
};

struct log {
    enum log_level level; /* the most that is written */
    const char *role;     /* "keeper" or "daemon" */
    const char *path;     /* NULL, or that of the file; borrowed */
    bool is_rotating;     /* renames it: one process alone */
    uint64_t window_ns;   /* of log_peer(): when the current second began */
    uint32_t n_in_window;
    uint32_t n_suppressed;
};

/** Write one line. */
void log_line(const struct log *log, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** The same for events that a peer can trigger: at most ten lines a second in all. */
void log_peer(struct log *log, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** Level of a name ("error", "warn", "info", "debug"), or -1. */
int log_level_of(const char *name);

#endif
