/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection to a daemon, as the library and the CLI see it. One thread at a time. A
 * lost connection is made again by client_call(), once, and every attachment is
 * resumed.
 */
#ifndef KVW_CLIENT_CLIENT_H
#define KVW_CLIENT_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/include/kvwheel/kvwheel.h"
#include "proto/messages.h"

struct kvw_cache;

struct kvw_client {
    int socket;            /* -1 = lost */
    uint32_t request;      /* of the last request */
    uint64_t daemon_epoch; /* of the daemon we spoke to last */
    uint32_t daemon_pid;   /* of that daemon, as it says */
    bool may_start;        /* an embedded daemon may be started */
    bool is_embedded;      /* the daemon is an embedded one */
    bool is_absent;        /* the last attempt to connect again found nobody */
    bool is_silent;        /* the last call had no answer in time */
    uint32_t call_ms;      /* for an answer, or for progress */
    char socket_path[KVW_SOCKET_PATH_MAX + 1];
    struct kvw_cache *caches;        /* attachments, linked by kvw_cache.next */
    uint8_t packet[KVW_MESSAGE_MAX]; /* the answer's bytes fields point in here */
};

/**
 * Connect as kvw_connect() does, with a choice of whether a daemon may be started.
 */
KVW_NODISCARD int client_open(const char *socket_path, bool may_start,
                              struct kvw_client **client);

/**
 * Send a request and wait for its answer.
 *
 * @param request   type and fields; its `request` number is chosen here.
 * @param answer    [out] the answer; its bytes fields are valid until the next call.
 * @param fds       [out] descriptors that came with it, owned by the caller; those
 * beyond n_fds are closed. NULL when none are expected.
 * @param n_fds     How many are expected; fewer is -EMFILE (our descriptor limit).
 * @param progress  For create, move and numa; may be NULL.
 * @return 0; the negative errno of a `refused` (text in kvw_last_error()); -EPIPE when
 * the daemon is gone and no other is found; -EPROTO; -ETIMEDOUT.
 */
KVW_NODISCARD int client_call(struct kvw_client *client, struct kvw_message *request,
                              struct kvw_message *answer, int *fds, uint32_t n_fds,
                              kvw_progress_fn *progress, void *context);

/** The default socket path of this user ($KVWHEEL_SOCKET, $XDG_RUNTIME_DIR, /tmp). */
KVW_NODISCARD int client_default_path(char path[KVW_SOCKET_PATH_MAX + 1]);

/** client_open() that starts a daemon: `kvwheeld --socket PATH` and `arguments` (ends
 * with NULL; may be NULL). If another one wins the socket meanwhile, that one is
 * connected. */
KVW_NODISCARD int client_start(const char *socket_path, const char *const *arguments,
                               struct kvw_client **client);

/* Of this thread's last failure, beside its text: the numbers of a refusal. */
struct client_failure {
    uint64_t need;
    uint64_t have;
    bool is_refused; /* by the daemon, in its words */
};

struct client_failure client_failure(void);

/** Set kvw_last_error() and client_failure() to words and numbers. Returns `error`. */
int fail_numbers(int error, uint64_t need, uint64_t have, const char *text);

/** The same of a refusal by the daemon. */
int fail_refused(int error, const struct kvw_message_refused *refused);

/** Set kvw_last_error() and return `error`. */
int fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
