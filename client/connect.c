/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a path to a daemon that answers. The environment enters here. The only pauses
 * are the ones between attempts to connect; each loop over them has a deadline.
 */
#include "client/connect.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cache.h"
#include "client/outside.h"
#include "client/start.h"
#include "client/wire.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"
#include "proto/layout.h"

/* How an attempt to connect ended. */
struct attempt {
    int result;   /* 0 or a negative error */
    bool is_told; /* kvw_last_error() has the words of the daemon, or about it */
};

/* Nobody listens there. */
static bool is_absent(struct attempt attempt)
{
    return !attempt.is_told &&
           (attempt.result == -ENOENT || attempt.result == -ECONNREFUSED);
}

/* The peer went away before it answered, or its queue of connections is full. */
static bool is_passing(struct attempt attempt)
{
    return !attempt.is_told && (attempt.result == -EPIPE || attempt.result == -EAGAIN ||
                                attempt.result == -ECONNRESET);
}

/* --------------------------------------------------------------- hello ---------- */

static struct attempt check_welcome(struct kvw_client *client,
                                    const struct kvw_message *answer)
{
    const struct kvw_message_welcome *welcome = &answer->welcome;

    if (answer->type == KVW_MESSAGE_REFUSED) {
        int error = -(int)answer->refused.error;
        error = fail_refused(error == -EPROTO ? -KVW_ELAYOUT : error, &answer->refused);
        return (struct attempt){error, true};
    }
    if (answer->type != KVW_MESSAGE_WELCOME || answer->request != client->request)
        return (struct attempt){-EPROTO, false};
    if (welcome->protocol != KVW_PROTOCOL_VERSION ||
        welcome->layout_hash != layout_hash()) {
        int error = fail(
            -KVW_ELAYOUT,
            "the daemon at %s (version %s) has protocol %u and layout %016llx; this "
            "library (version %s) needs protocol %u and layout %016llx",
            client->socket_path, welcome->version, welcome->protocol,
            (unsigned long long)welcome->layout_hash, kvw_version(),
            KVW_PROTOCOL_VERSION, (unsigned long long)layout_hash());
        return (struct attempt){error, true};
    }
    client->daemon_epoch = welcome->daemon_epoch;
    client->daemon_pid = welcome->pid;
    client->is_embedded = welcome->is_embedded != 0;
    return (struct attempt){0, false};
}

/* HELLO there, an answer back. */
static int greet(struct kvw_client *client, int fd, struct kvw_message *answer)
{
    struct kvw_message hello = {.type = KVW_MESSAGE_HELLO,
                                .request = ++client->request};
    struct wire_fds fds;
    uint64_t deadline_ms = wire_now_ms() + CONNECT_HELLO_MS;

    hello.hello.protocol = KVW_PROTOCOL_VERSION;
    hello.hello.layout_hash = layout_hash();
    snprintf(hello.hello.program, sizeof hello.hello.program, "%s",
             program_invocation_short_name);
    int result = wire_send(fd, &hello, deadline_ms);
    /* Whoever is refused may be so, in words, before a word was said. */
    if (result < 0 && result != -ECONNRESET)
        return result;
    result = wire_receive(fd, client->packet, answer, &fds, deadline_ms);
    if (result < 0)
        return result;
    wire_fds_close(&fds, 0);
    return 0;
}

/* One attempt. */
static struct attempt knock(struct kvw_client *client)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = -1;
    struct kvw_message answer;

    int result = wire_connect(client->socket_path, &fd);
    if (result == 0)
        result = greet(client, fd, &answer);
    if (result < 0)
        return (struct attempt){result, false};
    struct attempt attempt = check_welcome(client, &answer);
    if (attempt.result == 0)
        client->socket = take_fd(&fd);
    return attempt;
}

static struct attempt dial(struct kvw_client *client, uint32_t absent_ms)
{
    uint64_t start_ms = wire_now_ms();
    uint32_t pause_ms = 1;

    for (;;) {
        struct attempt attempt = knock(client);
        uint32_t patience_ms = is_absent(attempt)    ? absent_ms
                               : is_passing(attempt) ? CONNECT_HANG_UP_MS
                                                     : 0;
        if (attempt.result == -ECONNREFUSED && is_absent(attempt))
            patience_ms = (uint32_t)max_u64(patience_ms, CONNECT_STALE_MS);
        if (patience_ms == 0 || wire_now_ms() - start_ms >= patience_ms)
            return attempt;
        poll(NULL, 0, (int)pause_ms);
        pause_ms = (uint32_t)min_u64(2 * pause_ms, CONNECT_PAUSE_MS_MAX);
    }
}

static int explain_error(const char *path, int error)
{
    switch (error) {
    case -ENOENT:
        return fail(error, "no daemon at %s; start one: kvwheel start --socket %s",
                    path, path);
    case -ECONNREFUSED:
        return fail(
            error,
            "the daemon that made %s is gone; start one: kvwheel start --socket %s",
            path, path);
    case -ENOTSOCK:
        return fail(error, "%s is not a daemon's socket; give another path", path);
    case -EACCES:
    case -EPERM:
        return fail(-EACCES, "no permission to use the daemon's socket %s", path);
    case -EPIPE:
    case -ECONNRESET:
        return fail(-ECONNREFUSED, "the daemon at %s accepts and hangs up (for %u ms)",
                    path, CONNECT_HANG_UP_MS);
    case -EAGAIN:
        return fail(error,
                    "the daemon at %s accepts nobody (for %u ms): its queue is full",
                    path, CONNECT_HANG_UP_MS);
    case -ETIMEDOUT:
        return fail(error, "the daemon at %s accepted, but did not answer within %u ms",
                    path, CONNECT_HELLO_MS);
    case -EPROTO:
        return fail(error, "what listens at %s does not speak kvwheel's protocol",
                    path);
    default:
        return fail(error, "cannot connect to %s: %s", path, kvw_strerror(error));
    }
}

/* The attempt's result, in words in any case. */
static int explain(const struct kvw_client *client, struct attempt attempt)
{
    if (attempt.result >= 0 || attempt.is_told)
        return attempt.result;
    return explain_error(client->socket_path, attempt.result);
}

int connect_dial(struct kvw_client *client, uint32_t absent_ms)
{
    return explain(client, dial(client, absent_ms));
}

/* --------------------------------------------------------------- paths ---------- */

/* In /tmp anybody may have made the folder first, and would then be our daemon. */
static int check_folder(const char *folder)
{
    struct stat status;

    if (lstat(folder, &status) < 0)
        return 0; /* nobody has */
    if (!S_ISDIR(status.st_mode))
        return fail(-EACCES, "%s is not a folder; remove it, or set KVWHEEL_SOCKET",
                    folder);
    if (status.st_uid != geteuid() || (status.st_mode & 022) != 0)
        return fail(
            -EACCES,
            "%s is user %u's, mode %03o, and must be ours and closed to others; "
            "remove it, or set KVWHEEL_SOCKET",
            folder, status.st_uid, status.st_mode & 0777);
    return 0;
}

static int copy_path(char path[KVW_SOCKET_PATH_MAX + 1], const char *from)
{
    size_t n_bytes = strlen(from);

    if (n_bytes == 0)
        return fail(-EINVAL, "the path of the socket is empty");
    if (n_bytes > KVW_SOCKET_PATH_MAX)
        return fail(-ENAMETOOLONG, "the socket's path has %zu bytes, of %u at most: %s",
                    n_bytes, KVW_SOCKET_PATH_MAX, from);
    memcpy(path, from, n_bytes + 1);
    return 0;
}

int client_default_path(char path[KVW_SOCKET_PATH_MAX + 1])
{
    const char *own = outside_variable("KVWHEEL_SOCKET");
    const char *runtime = outside_variable("XDG_RUNTIME_DIR");
    char text[PATH_MAX];

    if (own != NULL)
        return copy_path(path, own);
    if (runtime != NULL && runtime[0] == '/') {
        if (snprintf(text, sizeof text, "%s/kvwheel/kvwheeld.sock", runtime) >=
            (int)sizeof text)
            return fail(-ENAMETOOLONG, "XDG_RUNTIME_DIR is too long");
        return copy_path(path, text);
    }
    snprintf(text, sizeof text, "/tmp/kvwheel-%u", geteuid());
    int result = check_folder(text);
    if (result < 0)
        return result;
    snprintf(path, KVW_SOCKET_PATH_MAX + 1, "/tmp/kvwheel-%u/kvwheeld.sock", geteuid());
    return 0;
}

/* An absolute path survives a chdir() of the program and of the daemon. */
static int absolute_path(const char *given, char path[KVW_SOCKET_PATH_MAX + 1])
{
    char text[8192];

    if (given[0] == '/' || given[0] == 0)
        return copy_path(path, given);
    char *here = getcwd(text, 4096);
    if (here == NULL)
        return fail(-errno, "the current folder is gone: give a whole path, not %s",
                    given);
    size_t n_bytes = strlen(text);
    if (snprintf(text + n_bytes, sizeof text - n_bytes, "/%s", given) >=
        (int)(sizeof text - n_bytes))
        return fail(-ENAMETOOLONG, "the socket's path is too long: %s", given);
    return copy_path(path, text);
}

/* ------------------------------------------------------------- opening ---------- */

static void client_free(struct kvw_client *client)
{
    if (client->socket >= 0)
        close(client->socket);
    free(client);
}

static int client_new(const char *socket_path, struct kvw_client **out)
{
    struct kvw_client *client = calloc(1, sizeof *client);
    char path[KVW_SOCKET_PATH_MAX + 1];

    if (client == NULL)
        return fail(-ENOMEM, "no memory for a client");
    client->socket = -1;
    client->call_ms = CONNECT_CALL_MS;
    int result = socket_path == NULL ? client_default_path(path) : 0;
    if (result == 0)
        result = absolute_path(socket_path == NULL ? path : socket_path,
                               client->socket_path);
    if (result < 0) {
        client_free(client);
        return result;
    }
    *out = client;
    return 0;
}

/* Start a daemon and knock until one answers: ours, or the one that another program has
 * started at the same time and to which ours gave way. */
static int dial_started(struct kvw_client *client, const char *const *arguments)
{
    struct start start;
    uint64_t deadline_ms = wire_now_ms() + CONNECT_START_MS;
    uint32_t pause_ms = 1;

    int result = start_daemon(client->socket_path, arguments, &start);
    if (result < 0)
        return result;
    for (;;) {
        struct attempt attempt = knock(client);
        bool is_late = wire_now_ms() >= deadline_ms;
        if (!is_absent(attempt) && !is_passing(attempt))
            result = explain(client, attempt);
        else if (is_late)
            result = start_explain(&start);
        if (is_late || (!is_absent(attempt) && !is_passing(attempt)))
            break;
        if (start_has_ended(&start, pause_ms))
            deadline_ms = min_u64(deadline_ms, wire_now_ms() + CONNECT_ORPHAN_MS);
        pause_ms = (uint32_t)min_u64(2 * pause_ms, CONNECT_PAUSE_MS_MAX);
    }
    start_fini(&start);
    return result;
}

int client_start(const char *socket_path, const char *const *arguments,
                 struct kvw_client **out)
{
    struct kvw_client *client = NULL;

    int result = client_new(socket_path, &client);
    if (result < 0)
        return result;
    result = dial_started(client, arguments);
    if (result < 0) {
        client_free(client);
        return result;
    }
    *out = client;
    return 0;
}

int client_open(const char *socket_path, bool may_start, struct kvw_client **out)
{
    static const char *const embedded[] = {"--embedded", NULL};
    struct kvw_client *client = NULL;

    int result = client_new(socket_path, &client);
    if (result < 0)
        return result;
    client->may_start = may_start;
    struct attempt attempt = dial(client, 0);
    result = may_start && is_absent(attempt) ? dial_started(client, embedded)
                                             : explain(client, attempt);
    if (result < 0) {
        client_free(client);
        return result;
    }
    *out = client;
    return 0;
}

int kvw_connect(const char *socket_path, struct kvw_client **client)
{
    if (client == NULL)
        return fail(-EINVAL, "connect: no place for the client");
    return client_open(socket_path, socket_path == NULL, client);
}

int kvw_connect_running(const char *socket_path, struct kvw_client **client)
{
    if (client == NULL)
        return fail(-EINVAL, "connect: no place for the client");
    return client_open(socket_path, false, client);
}

void kvw_disconnect(struct kvw_client *client)
{
    if (client == NULL)
        return;
    while (client->caches != NULL) {
        struct kvw_cache *first = client->caches;
        kvw_detach(first);
        KVW_CHECK(client->caches != first);
    }
    client_free(client);
}
