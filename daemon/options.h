/* SPDX-License-Identifier: Apache-2.0 */
/* The command line, parsed once. Nothing else reads argv. */
#ifndef KVW_DAEMON_OPTIONS_H
#define KVW_DAEMON_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/log.h"
#include "proto/base/check.h"
#include "proto/geometry.h"
#include "proto/limits.h"

/* Which of the two processes this is. The last two are started by the other one. */
enum role {
    ROLE_START = 0, /* takes lock and socket, then keeps */
    ROLE_SERVE = 1, /* --serve: the daemon */
    ROLE_KEEP = 2,  /* --keep: a keeper that the daemon started; --keep-on: one that
                       was another program until now */
};

/* Exit codes. */
enum exit_code {
    EXIT_CODE_OK = 0,
    EXIT_CODE_FAILED = 1,
    EXIT_CODE_USAGE = 2,
    EXIT_CODE_RUNNING = 3,  /* another daemon serves this socket */
    EXIT_CODE_SOCKET = 4,   /* the socket's path cannot be used */
    EXIT_CODE_IO_URING = 5, /* this host does not give what the event loop needs */
    EXIT_CODE_LAYOUT = 6,   /* the caches that are kept have another layout */
    EXIT_CODE_RESTART = 7,  /* systemd is to start the installed program */
};

struct options {
    enum role role;
    uint32_t n_restarts; /* of the daemon, so far */
    bool is_keeping_on;
    bool is_systemd; /* no keeper: systemd holds the descriptors */
    bool is_embedded;
    bool is_logging; /* to log_path */
    bool is_default_path;
    bool wants_help;
    bool wants_version;
    bool wants_survey;
    bool wants_topology;
    uint64_t linger_ns;    /* embedded: how long to stay with no client and no cache */
    uint64_t memory_bytes; /* that may ever be used here */
    uint64_t quota_bytes;
    uint64_t quota_user_bytes;
    enum log_level log_level;
    char log_path[KVW_SOCKET_PATH_MAX + 8]; /* SOCKET.log; "": stderr as it is */
    char socket_path[KVW_SOCKET_PATH_MAX + 1];
    char **user_argv; /* what the user gave, for the other process */
    int n_user_argv;
};

/**
 * Parse a command line.
 *
 * @return 0; -EINVAL, or -errno (the host cannot be looked at), with `refusal` in words.
 */
KVW_NODISCARD int options_parse(struct options *options, int argc, char **argv,
                                struct kvw_refusal *refusal);

/** The path of the log, for struct log; NULL: stderr as it is. */
const char *options_log_path(const struct options *options);

/** The text of --help. */
const char *options_help(void);

#endif
