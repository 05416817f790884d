/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One poll over three descriptors: the daemon's socket, its pidfd, our signals. The
 * pidfd, not the child, is watched: a keeper that the daemon started is not its parent.
 */
#include "daemon/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/host.h"
#include "daemon/keep.h"
#include "daemon/kept.h"
#include "daemon/log.h"
#include "daemon/segment.h"
#include "daemon/spawn.h"
#include "daemon/succeed.h"
#include "proto/base/cleanup.h"

/* A daemon that does not stop for so long is killed, and so is a new program that does not
 * serve; tests/restart builds one with a shorter trial. */
#define STOP_NS 10000000000ull
#ifndef KEEPER_TRIAL_NS
#define KEEPER_TRIAL_NS 10000000000ull
#endif

#define N_ENTRIES_EMPTY 3u /* listen, lock, layout */

struct keeper {
    const struct options *options;
    struct log log;
    struct keep keep;
    struct hands
        hands;   /* socket -1 = the daemon hung up; daemon_fd -1 = there is none */
    int signals; /* signalfd */
    struct backoff starts;
    uint64_t start_ns; /* when the next daemon is due, while there is none */
    uint64_t kill_ns;  /* while stopping: when patience ends */
    uint64_t trial_ns; /* while a new program is tried: when patience ends */
    bool is_stopping;
    bool is_succeeding; /* the daemon of the program before this one is about to end */
    int exit_code;
};

/* A program that has not served yet, and the one before it to go back to. */
static bool is_trial(const struct keeper *keeper)
{
    return keep_find(&keeper->keep, "previous") != NULL;
}

static int send_all(struct keeper *keeper)
{
    struct kept_packet packet = {.kind = KEPT_ENTRY};

    for (uint32_t i = 0; i < keeper->keep.n_entries; i++) {
        const struct keep_entry *entry = &keeper->keep.entries[i];
        memcpy(packet.name, entry->name, sizeof packet.name);
        int error = kept_send(keeper->hands.socket, &packet, entry->fds, entry->n_fds);
        if (error != 0)
            return error;
    }
    return (int)getpid();
}

/* Returns only if it fails; the new program answers the daemon. */
static int become_installed(struct keeper *keeper)
{
    char path[PATH_MAX];
    int self = succeed_open_self();
    int error = self < 0 ? self : succeed_path(path);

    if (error == 0)
        error = keep_put(&keeper->keep, "previous", &self, 1);
    if (error != 0) {
        kvw_fd_cleanup(&self);
        return error;
    }
    keep_drop(&keeper->keep, "refused");
    log_line(&keeper->log, LOG_INFO, "restarting program %s", path);
    keeper->hands.has_answer_due = true;
    error = succeed_exec(path, keeper->options, &keeper->keep, &keeper->hands);
    keeper->hands.has_answer_due = false;
    keep_drop(&keeper->keep, "previous");
    log_line(&keeper->log, LOG_ERROR, "cannot become %s: %s", path,
             strerrordesc_np(-error));
    return error;
}

static int serve_request(struct keeper *keeper, const struct kept_packet *packet,
                         const int *fds, uint32_t *n_fds)
{
    int result = 0;

    switch (packet->kind) {
    case KEPT_PUT:
        result = keep_put(&keeper->keep, packet->name, fds, *n_fds);
        if (result == 0)
            *n_fds = 0;
        break;
    case KEPT_DROP:
        keep_drop(&keeper->keep, packet->name);
        break;
    case KEPT_LOAD:
        result = send_all(keeper);
        break;
    case KEPT_STOP:
        /* One that could not even begin does not decide what becomes of the caches. */
        if (packet->value != 0 &&
            (keeper->keep.n_entries > N_ENTRIES_EMPTY || keeper->hands.n_restarts > 0))
            break;
        keeper->is_stopping = true;
        keeper->exit_code = packet->value;
        keeper->kill_ns = host_now_ns() + STOP_NS;
        break;
    case KEPT_RESTART:
        result = become_installed(keeper);
        break;
    default:
        break;
    }
    return result;
}

/* Act on one packet of the daemon; false when the socket has nothing more. */
static bool serve_packet(struct keeper *keeper)
{
    struct kept_packet packet = {0};
    int fds[KEPT_FDS_MAX];
    uint32_t n_fds;
    int result = kept_receive(keeper->hands.socket, &packet, fds, &n_fds, MSG_DONTWAIT);

    if (result == -EAGAIN)
        return false;
    if (result != 0 && result != -EMFILE) {
        kvw_fd_cleanup(&keeper->hands.socket);
        return false;
    }
    if (result == 0)
        result = serve_request(keeper, &packet, fds, &n_fds);
    while (n_fds > 0)
        close(fds[--n_fds]);
    packet = (struct kept_packet){.kind = KEPT_DONE, .value = result};
    if (kept_send(keeper->hands.socket, &packet, NULL, 0) != 0)
        kvw_fd_cleanup(&keeper->hands.socket);
    return keeper->hands.socket >= 0;
}

static void daemon_signal(const struct keeper *keeper, int signal)
{
    if (keeper->hands.daemon_fd >= 0)
        (void)syscall(SYS_pidfd_send_signal, keeper->hands.daemon_fd, signal, NULL, 0);
}

static int daemon_start(struct keeper *keeper)
{
    struct spawned spawned;
    int error =
        spawn_role(keeper->options, ROLE_SERVE, keeper->hands.n_restarts, -1, &spawned);

    if (error != 0) {
        uint64_t now_ns = host_now_ns();
        log_line(&keeper->log, LOG_ERROR, "cannot start the daemon: %s",
                 strerrordesc_np(-error));
        keeper->start_ns = now_ns + backoff_delay_ns(&keeper->starts, now_ns) + 1;
        return error;
    }
    keeper->start_ns = 0;
    keeper->trial_ns = host_now_ns() + KEEPER_TRIAL_NS;
    keeper->hands.socket = spawned.socket;
    keeper->hands.daemon_fd = spawned.pidfd;
    log_line(&keeper->log, LOG_DEBUG, "daemon started pid %u restarts %u", spawned.pid,
             keeper->hands.n_restarts);
    return 0;
}

/* Back to the program before this one. The daemon that it starts says why. Returns only
 * if that fails. */
static void go_back(struct keeper *keeper, int status)
{
    char text[128];
    char path[64];
    int fd = fcntl(keep_find(&keeper->keep, "previous")->fds[0], F_DUPFD_CLOEXEC,
                   KEPT_FREE_FD);

    if (keep_find(&keeper->keep, "refused") == NULL) {
        int n_bytes = snprintf(
            text, sizeof text, "the new kvwheeld ended before it served (%s %d)",
            status > 0 ? "signal" : "code", status > 0 ? status : -status);
        int words = segment_freeze("kvwheel:refused", text, (uint64_t)n_bytes);
        if (words >= 0 && keep_put(&keeper->keep, "refused", &words, 1) != 0)
            close(words);
    }
    keep_drop(&keeper->keep, "previous");
    log_line(&keeper->log, LOG_ERROR,
             "the new program does not serve; going back to the one before it");
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int error = succeed_exec(path, keeper->options, &keeper->keep, &keeper->hands);
    log_line(&keeper->log, LOG_ERROR, "cannot go back: %s", strerrordesc_np(-error));
    kvw_fd_cleanup(&fd);
}

static void daemon_died(struct keeper *keeper)
{
    int status = spawn_reap(keeper->hands.daemon_fd);
    uint64_t now_ns = host_now_ns();

    kvw_fd_cleanup(&keeper->hands.socket);
    kvw_fd_cleanup(&keeper->hands.daemon_fd);
    if (keeper->is_stopping)
        return;
    if (keeper->is_succeeding) {
        keeper->is_succeeding = false;
        (void)daemon_start(keeper);
        return;
    }
    /* None has ever got as far as its table: another one would not, either. */
    if (status <= 0 && keep_find(&keeper->keep, "layout") == NULL) {
        keeper->is_stopping = true;
        keeper->exit_code = status == 0 ? EXIT_CODE_FAILED : -status;
        return;
    }
    if (is_trial(keeper))
        go_back(keeper, status);
    uint64_t delay_ns = backoff_delay_ns(&keeper->starts, now_ns);
    log_line(&keeper->log, LOG_WARN,
             "daemon died %s %d; a new one starts in %llu ms entries %u",
             status > 0 ? "signal" : "code", status > 0 ? status : -status,
             (unsigned long long)(delay_ns / 1000000), keeper->keep.n_entries);
    keeper->hands.n_restarts++;
    keeper->start_ns = now_ns + delay_ns;
    if (delay_ns == 0)
        (void)daemon_start(keeper);
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

    if (due_ns == 0 && is_trial(keeper))
        due_ns = keeper->trial_ns;
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
    } else if (!keeper->is_stopping && keeper->hands.daemon_fd >= 0 &&
               keeper->trial_ns <= now_ns && is_trial(keeper)) {
        log_line(&keeper->log, LOG_WARN, "the new daemon does not serve and is killed");
        daemon_signal(keeper, SIGKILL);
        keeper->trial_ns = now_ns + KEEPER_TRIAL_NS;
    } else if (!keeper->is_stopping && keeper->start_ns != 0 &&
               keeper->start_ns <= now_ns) {
        (void)daemon_start(keeper);
    }
}

static void keep(struct keeper *keeper)
{
    while (!keeper->is_stopping || keeper->hands.daemon_fd >= 0) {
        struct pollfd fds[] = {{.fd = keeper->hands.socket, .events = POLLIN},
                               {.fd = keeper->hands.daemon_fd, .events = POLLIN},
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
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK);
    /* Lower numbers are needed by succeed_exec(). */
    return fd < 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, KEPT_FREE_FD);
}

/* Where the entries come from: start_up(), the daemon, or the program before this. */
static int begin(struct keeper *keeper, int listen_fd, int lock_fd)
{
    const struct kept_packet done = {.kind = KEPT_DONE};

    if (keeper->options->role == ROLE_START) {
        /* A table of two of KEPT_ENTRIES_MAX: this cannot fail. */
        KVW_CHECK(keep_put(&keeper->keep, "listen", &listen_fd, 1) == 0);
        KVW_CHECK(keep_put(&keeper->keep, "lock", &lock_fd, 1) == 0);
        return daemon_start(keeper);
    }
    if (!keeper->options->is_keeping_on) {
        keeper->hands.socket = KEPT_SOCKET_FD;
        keeper->hands.daemon_fd = KEPT_DAEMON_FD;
        (void)fcntl(KEPT_SOCKET_FD, F_SETFD, FD_CLOEXEC);
        (void)fcntl(KEPT_DAEMON_FD, F_SETFD, FD_CLOEXEC);
        return 0;
    }
    int error = succeed_take_over(&keeper->keep, &keeper->hands);
    if (error != 0)
        return error;
    keeper->is_succeeding = keeper->hands.daemon_fd >= 0;
    keeper->trial_ns = host_now_ns() + KEEPER_TRIAL_NS;
    log_line(&keeper->log, LOG_INFO, "goes on version %s entries %u",
             KVW_PROJECT_VERSION, keeper->keep.n_entries);
    if (keeper->hands.has_answer_due)
        error = kept_send(keeper->hands.socket, &done, NULL, 0);
    keeper->hands.has_answer_due = false;
    if (keeper->hands.daemon_fd < 0)
        (void)daemon_start(keeper);
    return error;
}

int keeper_run(const struct options *options, int listen_fd, int lock_fd)
{
    struct keeper keeper = {
        .options = options,
        .log = {.level = options->log_level,
                .role = "keeper",
                .path = options_log_path(options)},
        .hands = {.socket = -1, .daemon_fd = -1, .n_restarts = options->n_restarts}};

    int error = keep_init(&keeper.keep);
    keeper.signals = open_signals();
    if (error != 0 || keeper.signals < 0) {
        log_line(&keeper.log, LOG_ERROR, "no memory or descriptor for the keeper");
        keep_fini(&keeper.keep);
        return EXIT_CODE_FAILED;
    }
    if (host_protect_from_oom() != 0)
        log_line(&keeper.log, LOG_DEBUG, "not protected from the OOM killer");
    (void)host_raise_descriptor_limit();
    error = begin(&keeper, listen_fd, lock_fd);
    if (error != 0) {
        /* At a start nobody has anything yet. Else the daemon that is still there starts a
         * keeper of its own kind. */
        if (options->role == ROLE_START)
            (void)unlink(options->socket_path);
        else
            log_line(&keeper.log, LOG_ERROR, "what the keeper before this one left: %s",
                     strerrordesc_np(-error));
        keep_fini(&keeper.keep);
        return EXIT_CODE_FAILED;
    }
    keep(&keeper);

    /* While the lock is held, the socket is ours to remove. A keeper whose daemon died
     * before it handed that over has nothing: somebody else may be listening by now. */
    if (keep_find(&keeper.keep, "lock") != NULL)
        (void)unlink(options->socket_path);
    keep_fini(&keeper.keep);
    kvw_fd_cleanup(&keeper.hands.socket);
    kvw_fd_cleanup(&keeper.signals);
    return keeper.exit_code;
}
