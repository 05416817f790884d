/* SPDX-License-Identifier: Apache-2.0 */
/*
 * systemd's descriptor store, by the protocols of sd_listen_fds(3) and sd_notify(3),
 * which are a few variables and datagrams. What it is like, and what follows from that:
 *
 *   It does not keep the order of descriptors of one name: each has a name of its own,
 *   the entry's with "/0" to "/3" behind it. Some of four may be there after a death:
 *   such an entry is incomplete, and nobody was told of it.
 *   It takes a descriptor once (by kcmp): see store.takes_twice.
 *   It does not answer: what BARRIER=1 is for. It drops what is over
 *   FileDescriptorStoreMax= without a word, so this end counts.
 *   It gives all names in one variable, of which the kernel allows 128 KiB.
 */
#include "daemon/store.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/host.h"
#include "daemon/notify.h"
#include "daemon/succeed.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

#define FIRST_FD 3              /* of those that systemd passes */
#define FDS_MAX 4096u           /* as in deploy/systemd/kvwheeld.service */
#define NAMES_BYTES_MAX 114688u /* of the 131072 of one variable */
#define LOCK_MS 2000 /* a killed io_uring process can hold its lock for some time */
#define LOCK_RETRY_MS 10

/* --------------------------------------------------------------- names ---------- */

/* What the store takes for an entry: descriptors and bytes of names, with a colon. */
static uint64_t names_bytes(const char *name, uint32_t n_fds)
{
    return n_fds * (strlen(name) + sizeof "/0:" - 1);
}

static void count(const struct daemon *daemon, uint64_t *n_fds, uint64_t *bytes)
{
    *n_fds = 0;
    *bytes = 0;
    for (const struct store_entry *e = daemon->stored; e != NULL; e = e->next) {
        *n_fds += e->n_fds;
        *bytes += names_bytes(e->name, e->n_fds);
    }
}

static uint64_t fds_max(void)
{
    const char *text = host_environment("FDSTORE"); /* since systemd 254 */
    uint64_t n_fds = text != NULL ? strtoull(text, NULL, 10) : 0;

    return n_fds != 0 ? n_fds : FDS_MAX;
}

static int remember(struct daemon *daemon, const char *name, uint32_t n_fds)
{
    struct store_entry *entry = store_entry_add(&daemon->stored, name);

    if (entry == NULL)
        return -ENOMEM;
    entry->n_fds = n_fds;
    return 0;
}

static void forget(struct daemon *daemon, const char *name)
{
    for (struct store_entry **link = &daemon->stored; *link != NULL;
         link = &(*link)->next) {
        if (strcmp((*link)->name, name) == 0) {
            struct store_entry *entry = *link;
            *link = entry->next;
            free(entry);
            return;
        }
    }
}

/* --------------------------------------------------------- put and drop ---------- */

static void systemd_drop(struct daemon *daemon, const char *name)
{
    const struct store_entry *entry = store_entry_find(daemon->stored, name);
    char text[KEPT_NAME_MAX + 64];
    int error = 0;

    for (uint32_t i = 0; entry != NULL && i < entry->n_fds && error == 0; i++) {
        (void)snprintf(text, sizeof text, "FDSTOREREMOVE=1\nFDNAME=%s/%u", name, i);
        error = notify_send(daemon->keeper_socket, text, -1);
    }
    if (error != 0)
        log_line(&daemon->log, LOG_ERROR, "systemd does not drop %s: %s", name,
                 strerrordesc_np(-error));
    forget(daemon, name);
}

static int send_put(struct daemon *daemon, const char *name, const int *fds,
                    uint32_t n_fds)
{
    char text[KEPT_NAME_MAX + 64];
    int error = 0;

    for (uint32_t i = 0; i < n_fds && error == 0; i++) {
        /* FDPOLL=0: a pidfd becomes ready at the moment that it is kept for. */
        (void)snprintf(text, sizeof text, "FDSTORE=1\nFDNAME=%s/%u\nFDPOLL=0", name, i);
        error = notify_send(daemon->keeper_socket, text, fds[i]);
    }
    return error != 0 ? error : notify_barrier(daemon->keeper_socket);
}

static int systemd_put(struct daemon *daemon, const char *name, const int *fds,
                       uint32_t n_fds)
{
    uint64_t n_stored;
    uint64_t bytes;

    if (store_entry_find(daemon->stored, name) != NULL)
        systemd_drop(daemon, name);
    count(daemon, &n_stored, &bytes);
    if (n_stored + n_fds > fds_max() ||
        bytes + names_bytes(name, n_fds) > NAMES_BYTES_MAX)
        return -ENFILE;
    int error = remember(daemon, name, n_fds);
    if (error != 0)
        return error;
    error = send_put(daemon, name, fds, n_fds);
    if (error == 0)
        return 0;
    log_line(&daemon->log, LOG_ERROR, "systemd does not take %s: %s", name,
             strerrordesc_np(-error));
    systemd_drop(daemon, name);
    return -EAGAIN;
}

/* --------------------------------------------------------------- loading ---------- */

static bool is_listener(int fd)
{
    int type = 0;
    int accepts = 0;
    socklen_t length = sizeof type;

    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &length) == 0 &&
           type == SOCK_SEQPACKET && accepts != 0;
}

/* NAME/I; false when it is not one of our names. */
static bool parse_name(const char *text, size_t length, char name[KEPT_NAME_MAX + 1],
                       uint32_t *index)
{
    if (length < 3 || length - 2 > KEPT_NAME_MAX || text[length - 2] != '/' ||
        text[length - 1] < '0' || text[length - 1] >= '0' + (int)KEPT_FDS_MAX)
        return false;
    memcpy(name, text, length - 2);
    name[length - 2] = 0;
    *index = (uint32_t)(text[length - 1] - '0');
    return true;
}

static int add_fd(struct daemon *daemon, struct store_entry **entries, const char *text,
                  size_t length, int fd)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int owned = fd;
    char name[KEPT_NAME_MAX + 1] = "listen";
    uint32_t index = 0;

    (void)fcntl(owned, F_SETFD, FD_CLOEXEC);
    if (!is_listener(owned) && !parse_name(text, length, name, &index)) {
        log_line(&daemon->log, LOG_WARN, "descriptor of no known name: %.*s",
                 (int)length, text);
        return 0;
    }
    struct store_entry *entry = store_entry_find(*entries, name);
    if (entry == NULL)
        entry = store_entry_add(entries, name);
    if (entry == NULL)
        return -ENOMEM;
    if (entry->fds[index] < 0)
        entry->fds[index] = take_fd(&owned);
    entry->n_fds = (uint32_t)max_u64(entry->n_fds, index + 1);
    return 0;
}

static int add_all(struct daemon *daemon, struct store_entry **entries)
{
    const char *pid = host_environment("LISTEN_PID");
    const char *n_text = host_environment("LISTEN_FDS");
    const char *at = host_environment("LISTEN_FDNAMES");
    int error = 0;

    if (pid == NULL || n_text == NULL || strtoull(pid, NULL, 10) != (uint64_t)getpid())
        return -ESRCH;
    uint64_t n_fds = strtoull(n_text, NULL, 10);
    for (uint64_t i = 0; i < n_fds && i < FDS_MAX * 2 && error == 0; i++) {
        size_t length = at == NULL ? 0 : strcspn(at, ":");
        error =
            add_fd(daemon, entries, at == NULL ? "" : at, length, FIRST_FD + (int)i);
        at = at != NULL && at[length] == ':' ? at + length + 1 : NULL;
    }
    return error;
}

/* Entries that are not whole were not told to anybody. */
static int settle(struct daemon *daemon, struct store_entry **entries)
{
    int error = 0;

    for (struct store_entry **link = entries; *link != NULL && error == 0;) {
        struct store_entry *entry = *link;
        bool is_whole = true;
        for (uint32_t i = 0; i < entry->n_fds; i++)
            is_whole = is_whole && entry->fds[i] >= 0;
        if (strcmp(entry->name, "listen") != 0)
            error = remember(daemon, entry->name, entry->n_fds);
        link = &entry->next;
        if (is_whole || error != 0)
            continue;
        log_line(&daemon->log, LOG_WARN, "entry dropped name %s: not whole",
                 entry->name);
        systemd_drop(daemon, entry->name);
        entry->name[0] = 0;
    }
    return error;
}

/* A daemon that somebody starts by hand must not replace systemd's socket. The lock is
 * kept as well, for it outlives a daemon that way. */
static int take_lock(struct daemon *daemon, struct store_entry **entries)
{
    char path[KVW_SOCKET_PATH_MAX + 8];

    if (store_entry_find(*entries, "lock") != NULL)
        return 0;
    (void)snprintf(path, sizeof path, "%s.lock", daemon->options->socket_path);
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    for (int ms = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; ms += LOCK_RETRY_MS) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (ms >= LOCK_MS) {
            log_line(&daemon->log, LOG_ERROR, "another daemon holds the lock %s", path);
            return -EBUSY;
        }
        (void)poll(NULL, 0, LOCK_RETRY_MS);
    }
    int error = systemd_put(daemon, "lock", &fd, 1);
    if (error != 0)
        return error;
    struct store_entry *entry = store_entry_add(entries, "lock");
    if (entry == NULL)
        return -ENOMEM;
    entry->n_fds = 1;
    entry->fds[0] = take_fd(&fd);
    return 0;
}

static int systemd_load(struct daemon *daemon, struct store_entry **entries)
{
    daemon->keeper_socket = -1; /* that number is systemd's socket here */
    int error = notify_connect(&daemon->keeper_socket);
    if (error == 0)
        error = add_all(daemon, entries);
    if (error == 0)
        error = settle(daemon, entries);
    if (error == 0)
        error = take_lock(daemon, entries);
    return error;
}

/* ------------------------------------------------------ beginning and end ---------- */

static void systemd_serving(struct daemon *daemon)
{
    char text[320];

    (void)snprintf(text, sizeof text, "READY=1\nSTATUS=%s%s",
                   daemon->is_holding ? "adopts nothing: " : "serving",
                   daemon->is_holding ? daemon->words : "");
    if (notify_send(daemon->keeper_socket, text, -1) != 0)
        log_line(&daemon->log, LOG_WARN, "systemd was not told that this is ready");
}

static int systemd_restart(struct daemon *daemon, struct kvw_refusal *refusal)
{
    char path[PATH_MAX];
    int error = succeed_path(path);

    (void)daemon;
    if (error != 0)
        return refuse(refusal, error, 0, 0,
                      "the installed kvwheeld cannot be started: %s; nothing has "
                      "changed",
                      strerrordesc_np(-error));
    return 0;
}

static int systemd_stop(struct daemon *daemon, int exit_code, bool is_final)
{
    if (daemon->keeper_socket < 0)
        return exit_code;
    (void)!notify_send(daemon->keeper_socket, "STOPPING=1", -1);
    while (daemon->stored != NULL) {
        char name[KEPT_NAME_MAX + 1];
        memcpy(name, daemon->stored->name, sizeof name);
        if (is_final)
            systemd_drop(daemon, name);
        else
            forget(daemon, name);
    }
    if (is_final)
        (void)!notify_barrier(daemon->keeper_socket);
    return exit_code;
}

static void systemd_event(struct daemon *daemon, const struct ring_event *event)
{
    (void)daemon;
    (void)event;
}

static void systemd_tick(struct daemon *daemon, uint64_t now_ns)
{
    (void)daemon;
    (void)now_ns;
}

const struct store store_systemd = {.takes_twice = false,
                                    .load = systemd_load,
                                    .put = systemd_put,
                                    .drop = systemd_drop,
                                    .serving = systemd_serving,
                                    .restart = systemd_restart,
                                    .stop = systemd_stop,
                                    .event = systemd_event,
                                    .tick = systemd_tick};
