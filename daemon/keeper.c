/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One poll over three descriptors: the daemon's socket, its pidfd, our signals. The
 * pidfd, not the child, is watched: a keeper that the daemon started is not its parent.
 */
#include "daemon/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/host.h"
#include "daemon/kept.h"
#include "daemon/log.h"
#include "daemon/spawn.h"
#include "proto/base/cleanup.h"

#define STOP_NS 10000000000ull /* a daemon that does not stop for so long is killed */

struct entry {
    char name[KEPT_NAME_MAX + 1];
    int fds[KEPT_FDS_MAX];
    uint32_t n_fds;
};

struct keeper {
    const struct options *options;
    struct log log;
    struct entry *entries; /* KEPT_ENTRIES_MAX */
    uint32_t n_entries;
    int socket;    /* -1 = the daemon hung up */
    int daemon_fd; /* pidfd; -1 = no daemon now */
    int signals;   /* signalfd */
    uint32_t n_restarts;
    struct backoff starts;
    uint64_t start_ns; /* when the next daemon is due, while there is none */
    uint64_t kill_ns;  /* while stopping: when patience ends */
    bool is_stopping;
    int exit_code;
};

static struct entry *entry_find(struct keeper *keeper, const char *name)
{
    for (uint32_t i = 0; i < keeper->n_entries; i++) {
        if (strcmp(keeper->entries[i].name, name) == 0)
            return &keeper->entries[i];
    }
    return NULL;
}

static void entry_close(struct entry *entry)
{
    while (entry->n_fds > 0)
        close(entry->fds[--entry->n_fds]);
}

static void entry_drop(struct keeper *keeper, const char *name)
{
    struct entry *entry = entry_find(keeper, name);

    if (entry == NULL)
        return;
    entry_close(entry);
    *entry = keeper->entries[--keeper->n_entries];
}

/* Takes the descriptors on success. */
static int entry_put(struct keeper *keeper, const char *name, const int *fds,
                     uint32_t n_fds)
{
    struct entry *entry = entry_find(keeper, name);

    if (entry == NULL && keeper->n_entries == KEPT_ENTRIES_MAX)
        return -ENFILE;
    if (entry == NULL)
        entry = &keeper->entries[keeper->n_entries++];
    else
        entry_close(entry);
    memcpy(entry->name, name, strnlen(name, KEPT_NAME_MAX) + 1);
    for (uint32_t i = 0; i < n_fds; i++)
        entry->fds[i] = fds[i];
    entry->n_fds = n_fds;
    return 0;
}

static int send_all(struct keeper *keeper)
{
    struct kept_packet packet = {.kind = KEPT_ENTRY};

    for (uint32_t i = 0; i < keeper->n_entries; i++) {
        const struct entry *entry = &keeper->entries[i];
        memcpy(packet.name, entry->name, sizeof packet.name);
        int error = kept_send(keeper->socket, &packet, entry->fds, entry->n_fds);
        if (error != 0)
            return error;
    }
    return (int)getpid();
}

/* Act on one packet of the daemon; false when the socket has nothing more. */
static bool serve_packet(struct keeper *keeper)
{
    struct kept_packet packet = {0};
    int fds[KEPT_FDS_MAX];
    uint32_t n_fds;
    int result = kept_receive(keeper->socket, &packet, fds, &n_fds, MSG_DONTWAIT);

    if (result == -EAGAIN)
        return false;
    if (result != 0 && result != -EMFILE) {
        kvw_fd_cleanup(&keeper->socket);
        return false;
    }
    if (result == 0 && packet.kind == KEPT_PUT) {
        result = entry_put(keeper, packet.name, fds, n_fds);
        if (result == 0)
            n_fds = 0;
    } else if (packet.kind == KEPT_DROP) {
        entry_drop(keeper, packet.name);
    } else if (packet.kind == KEPT_LOAD) {
        result = send_all(keeper);
    } else if (packet.kind == KEPT_STOP) {
        keeper->is_stopping = true;
        keeper->exit_code = packet.value;
        keeper->kill_ns = host_now_ns() + STOP_NS;
    }
    while (n_fds > 0)
        close(fds[--n_fds]);
    packet = (struct kept_packet){.kind = KEPT_DONE, .value = result};
    if (kept_send(keeper->socket, &packet, NULL, 0) != 0)
        kvw_fd_cleanup(&keeper->socket);
    return keeper->socket >= 0;
}

static void daemon_signal(const struct keeper *keeper, int signal)
{
    if (keeper->daemon_fd >= 0)
        (void)syscall(SYS_pidfd_send_signal, keeper->daemon_fd, signal, NULL, 0);
}

static void daemon_start(struct keeper *keeper)
{
    struct spawned spawned;
    int error =
        spawn_role(keeper->options, ROLE_SERVE, keeper->n_restarts, -1, &spawned);

    if (error != 0) {
        uint64_t now_ns = host_now_ns();
        log_line(&keeper->log, LOG_ERROR, "cannot start the daemon: %s",
                 strerrordesc_np(-error));
        keeper->start_ns = now_ns + backoff_delay_ns(&keeper->starts, now_ns) + 1;
        return;
    }
    keeper->start_ns = 0;
    keeper->socket = spawned.socket;
    keeper->daemon_fd = spawned.pidfd;
    log_line(&keeper->log, LOG_DEBUG, "daemon started pid %u restarts %u", spawned.pid,
             keeper->n_restarts);
}

static void daemon_died(struct keeper *keeper)
{
    int status = spawn_reap(keeper->daemon_fd);
    uint64_t now_ns = host_now_ns();

    kvw_fd_cleanup(&keeper->socket);
    kvw_fd_cleanup(&keeper->daemon_fd);
    if (keeper->is_stopping)
        return;
    uint64_t delay_ns = backoff_delay_ns(&keeper->starts, now_ns);
    log_line(&keeper->log, LOG_WARN,
             "daemon died %s %d; a new one starts in %llu ms entries %u",
             status > 0 ? "signal" : "code", status > 0 ? status : -status,
             (unsigned long long)(delay_ns / 1000000), keeper->n_entries);
    keeper->n_restarts++;
    keeper->start_ns = now_ns + delay_ns;
    if (delay_ns == 0)
        daemon_start(keeper);
}

static void take_signal(struct keeper *keeper)
{
    struct signalfd_siginfo info;

    if (read(keeper->signals, &info, sizeof info) != sizeof info)
        return;
    log_line(&keeper->log, LOG_INFO, "stopping signal %u from %u", info.ssi_signo,
             info.ssi_pid);
    keeper->is_stopping = true;
    keeper->kill_ns = host_now_ns() + STOP_NS;
    daemon_signal(keeper, SIGTERM);
}

/* Milliseconds until the next thing that is due, or -1. */
static int next_timeout_ms(const struct keeper *keeper)
{
    uint64_t due_ns = keeper->is_stopping ? keeper->kill_ns : keeper->start_ns;
    uint64_t now_ns = host_now_ns();

    if (due_ns == 0)
        return -1;
    return due_ns <= now_ns ? 0 : (int)((due_ns - now_ns) / 1000000 + 1);
}

static void take_timeout(struct keeper *keeper)
{
    uint64_t now_ns = host_now_ns();

    if (keeper->is_stopping && keeper->kill_ns <= now_ns) {
        log_line(&keeper->log, LOG_WARN, "the daemon does not stop and is killed");
        daemon_signal(keeper, SIGKILL);
        keeper->kill_ns = now_ns + STOP_NS;
    } else if (!keeper->is_stopping && keeper->start_ns != 0 &&
               keeper->start_ns <= now_ns) {
        daemon_start(keeper);
    }
}

static void keep(struct keeper *keeper)
{
    while (!keeper->is_stopping || keeper->daemon_fd >= 0) {
        struct pollfd fds[] = {{.fd = keeper->socket, .events = POLLIN},
                               {.fd = keeper->daemon_fd, .events = POLLIN},
                               {.fd = keeper->signals, .events = POLLIN}};

        if (poll(fds, 3, next_timeout_ms(keeper)) < 0)
            continue;
        /* Before the death: the last packet may say that it was meant. */
        if (fds[0].revents != 0) {
            while (serve_packet(keeper))
                ;
        }
        if (fds[2].revents != 0)
            take_signal(keeper);
        if (fds[1].revents != 0)
            daemon_died(keeper);
        take_timeout(keeper);
    }
}

static int open_signals(void)
{
    sigset_t stops;

    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &stops, NULL);
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &stops, SFD_CLOEXEC);
}

int keeper_run(const struct options *options, int listen_fd, int lock_fd)
{
    struct keeper keeper = {.options = options,
                            .log = {.level = options->log_level, .role = "keeper"},
                            .n_restarts = options->n_restarts,
                            .socket = -1,
                            .daemon_fd = -1};

    keeper.entries = calloc(KEPT_ENTRIES_MAX, sizeof *keeper.entries);
    keeper.signals = open_signals();
    if (keeper.entries == NULL || keeper.signals < 0) {
        log_line(&keeper.log, LOG_ERROR, "no memory or descriptor for the keeper");
        free(keeper.entries);
        return EXIT_CODE_FAILED;
    }
    if (host_protect_from_oom() != 0)
        log_line(&keeper.log, LOG_DEBUG, "not protected from the OOM killer");
    host_raise_descriptor_limit();
    if (options->role == ROLE_KEEP) {
        keeper.socket = KEPT_SOCKET_FD;
        keeper.daemon_fd = KEPT_DAEMON_FD;
        (void)fcntl(keeper.socket, F_SETFD, FD_CLOEXEC);
        (void)fcntl(keeper.daemon_fd, F_SETFD, FD_CLOEXEC);
    } else {
        /* A table of two of KEPT_ENTRIES_MAX: this cannot fail. */
        KVW_CHECK(entry_put(&keeper, "listen", &listen_fd, 1) == 0);
        KVW_CHECK(entry_put(&keeper, "lock", &lock_fd, 1) == 0);
        daemon_start(&keeper);
    }
    keep(&keeper);

    /* The lock is still held, so the socket is ours to remove. */
    (void)unlink(options->socket_path);
    while (keeper.n_entries > 0)
        entry_close(&keeper.entries[--keeper.n_entries]);
    free(keeper.entries);
    kvw_fd_cleanup(&keeper.socket);
    kvw_fd_cleanup(&keeper.signals);
    return keeper.exit_code;
}
