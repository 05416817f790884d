/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper process as a store. Calls are synchronous: it does nothing but table work,
 * and a call that takes two seconds means that it is stopped, which is as bad as dead. A
 * keeper that died is replaced on the spot and given everything again.
 */
#include "daemon/store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/host.h"
#include "daemon/link.h"
#include "daemon/peer.h"
#include "daemon/spawn.h"
#include "proto/base/cleanup.h"

#define ANSWER_SECONDS 2

static void watch(struct daemon *daemon)
{
    const struct timeval timeout = {.tv_sec = ANSWER_SECONDS};

    (void)setsockopt(daemon->keeper_socket, SOL_SOCKET, SO_RCVTIMEO, &timeout,
                     sizeof timeout);
    (void)setsockopt(daemon->keeper_socket, SOL_SOCKET, SO_SNDTIMEO, &timeout,
                     sizeof timeout);
    daemon->keeper_generation = daemon->generation++ & RING_GENERATION_MASK;
    ring_poll(daemon->ring, daemon->keeper_socket, POLLRDHUP,
              (struct ring_tag){.generation = daemon->keeper_generation,
                                .kind = RING_KEEPER});
}

/* A keeper that is only stopped must not come back and think that it keeps. */
static void give_up(struct daemon *daemon)
{
    ring_poll_cancel(daemon->ring,
                     (struct ring_tag){.generation = daemon->keeper_generation,
                                       .kind = RING_KEEPER});
    kvw_fd_cleanup(&daemon->keeper_socket);
    if (daemon->keeper_pidfd >= 0) {
        (void)syscall(SYS_pidfd_send_signal, daemon->keeper_pidfd, SIGKILL, NULL, 0);
        struct pollfd dead = {.fd = daemon->keeper_pidfd, .events = POLLIN};
        (void)poll(&dead, 1, ANSWER_SECONDS * 1000);
        (void)spawn_reap(daemon->keeper_pidfd);
        kvw_fd_cleanup(&daemon->keeper_pidfd);
    }
}

/* One request and its answer. -EPIPE: there is no keeper any more. */
static int call(struct daemon *daemon, enum kept_kind kind, const char *name, int value,
                const int *fds, uint32_t n_fds)
{
    struct kept_packet packet = {.kind = kind, .value = value};
    int unexpected[KEPT_FDS_MAX];
    uint32_t n_unexpected;

    memcpy(packet.name, name, strnlen(name, KEPT_NAME_MAX));
    int error = kept_send(daemon->keeper_socket, &packet, fds, n_fds);
    if (error != 0)
        return error == -EAGAIN ? -EPIPE : error;
    error = kept_receive(daemon->keeper_socket, &packet, unexpected, &n_unexpected, 0);
    if (error != 0)
        return -EPIPE;
    while (n_unexpected > 0)
        close(unexpected[--n_unexpected]);
    return packet.kind == KEPT_DONE ? packet.value : -EPIPE;
}

static int call_put(struct daemon *daemon, const char *name, const int *fds,
                    uint32_t n_fds)
{
    return call(daemon, KEPT_PUT, name, 0, fds, n_fds);
}

/* Start a new keeper, unless the last ones died too fast. */
static int replace(struct daemon *daemon)
{
    struct spawned spawned;
    uint64_t now_ns = host_now_ns();

    if (daemon->is_stopping || now_ns < daemon->keeper_ns)
        return -EAGAIN;
    daemon->keeper_ns = now_ns + backoff_delay_ns(&daemon->keeper_starts, now_ns);
    int error = spawn_role(daemon->options, ROLE_KEEP, daemon->options->n_restarts,
                           daemon->own_pidfd, &spawned);
    if (error == 0) {
        daemon->keeper_socket = spawned.socket;
        daemon->keeper_pidfd = spawned.pidfd;
        daemon->keeper_pid = spawned.pid;
        watch(daemon);
        error = link_put_all(daemon, call_put);
        if (error != 0)
            give_up(daemon);
    }
    if (error != 0) {
        log_line(&daemon->log, LOG_ERROR,
                 "no keeper: %s; a death would lose the caches",
                 strerrordesc_np(-error));
        return -EAGAIN;
    }
    log_line(&daemon->log, LOG_WARN, "keeper replaced pid %u caches %u attachments %u",
             daemon->keeper_pid, daemon->n_caches, daemon->n_attachments);
    return 0;
}

/* True when a call failed for want of a keeper, and there is a new one by now. */
static bool is_worth_again(struct daemon *daemon, int error)
{
    if (error != -EPIPE)
        return false;
    give_up(daemon);
    return replace(daemon) == 0;
}

static int ready(struct daemon *daemon)
{
    return daemon->keeper_socket >= 0 ? 0 : replace(daemon);
}

static int keeper_put(struct daemon *daemon, const char *name, const int *fds,
                      uint32_t n_fds)
{
    int error = ready(daemon);

    if (error == 0)
        error = call_put(daemon, name, fds, n_fds);
    if (is_worth_again(daemon, error))
        error = call_put(daemon, name, fds, n_fds);
    return error == -EPIPE ? -EAGAIN : error;
}

static void keeper_drop(struct daemon *daemon, const char *name)
{
    /* A keeper that cannot be told would hold the memory for ever. Its successor is given
     * what is in our tables, where this may still be. */
    for (int tries = 0; tries < 2 && ready(daemon) == 0; tries++) {
        if (call(daemon, KEPT_DROP, name, 0, NULL, 0) == 0)
            return;
        give_up(daemon);
    }
}

static void keeper_serving(struct daemon *daemon)
{
    keeper_drop(daemon, "previous");
}

/* The keeper becomes the installed program first; if that one is not fit to keep, this
 * daemon is still there and starts another keeper of its own kind. */
static int keeper_restart(struct daemon *daemon, struct kvw_refusal *refusal)
{
    int error = ready(daemon);

    if (error != 0)
        return refuse(refusal, error, 0, 0,
                      "there is no keeper now, which would hold the caches meanwhile");
    error = call(daemon, KEPT_RESTART, "", 0, NULL, 0);
    if (error == -EPIPE) {
        (void)is_worth_again(daemon, error);
        return refuse(refusal, -ENOEXEC, 0, 0,
                      "the installed kvwheeld does not take over from the keeper; "
                      "nothing has changed, its log says more");
    }
    if (error != 0)
        return refuse(refusal, error, 0, 0,
                      "the installed kvwheeld cannot be started: %s; nothing has "
                      "changed",
                      strerrordesc_np(-error));
    return 0;
}

static int keeper_stop(struct daemon *daemon, int exit_code, bool is_final)
{
    if (is_final && daemon->keeper_socket >= 0)
        (void)call(daemon, KEPT_STOP, "", exit_code, NULL, 0);
    return exit_code;
}

static void keeper_event(struct daemon *daemon, const struct ring_event *event)
{
    if (event->tag.generation != daemon->keeper_generation || daemon->keeper_socket < 0)
        return;
    /* The socket itself says whether, not the completion: that one can be an error. */
    struct pollfd hung_up = {.fd = daemon->keeper_socket, .events = POLLRDHUP};
    if (poll(&hung_up, 1, 0) <= 0) {
        watch(daemon);
        return;
    }
    log_line(&daemon->log, LOG_WARN, "keeper died pid %u", daemon->keeper_pid);
    give_up(daemon);
    (void)replace(daemon);
}

static void keeper_tick(struct daemon *daemon, uint64_t now_ns)
{
    if (daemon->keeper_socket < 0 && now_ns >= daemon->keeper_ns)
        (void)replace(daemon);
}

/* One packet of the answer to load; 1 when it was the last. */
static int load_entry(struct daemon *daemon, struct store_entry **entries)
{
    struct kept_packet packet = {0};
    int fds[KEPT_FDS_MAX];
    uint32_t n_fds;

    int error = kept_receive(daemon->keeper_socket, &packet, fds, &n_fds, 0);
    if (error != 0)
        return error;
    if (packet.kind == KEPT_DONE) {
        while (n_fds > 0)
            close(fds[--n_fds]);
        daemon->keeper_pid = (uint32_t)packet.value;
        return 1;
    }
    struct store_entry *entry = store_entry_add(entries, packet.name);
    for (uint32_t i = 0; i < n_fds; i++) {
        if (entry == NULL)
            close(fds[i]);
        else
            entry->fds[entry->n_fds++] = fds[i];
    }
    return entry == NULL ? -ENOMEM : 0;
}

static int keeper_load(struct daemon *daemon, struct store_entry **entries)
{
    const struct kept_packet packet = {.kind = KEPT_LOAD};

    if (fcntl(daemon->keeper_socket, F_SETFD, FD_CLOEXEC) < 0)
        return -errno;
    watch(daemon);
    int result = kept_send(daemon->keeper_socket, &packet, NULL, 0);
    for (uint32_t i = 0; result == 0 && i <= KEPT_ENTRIES_MAX; i++)
        result = load_entry(daemon, entries);
    if (result != 1)
        return result == 0 ? -EPROTO : result;
    /* Our parent, unless it has died and another process has adopted us. */
    if ((uint32_t)getppid() == daemon->keeper_pid)
        daemon->keeper_pidfd = peer_pidfd_open(daemon->keeper_pid);
    if ((uint32_t)getppid() != daemon->keeper_pid)
        kvw_fd_cleanup(&daemon->keeper_pidfd);
    else if (daemon->keeper_pidfd < 0)
        return daemon->keeper_pidfd; /* give_up() could not end it */
    return 0;
}

const struct store store_keeper = {.takes_twice = true,
                                   .load = keeper_load,
                                   .put = keeper_put,
                                   .drop = keeper_drop,
                                   .serving = keeper_serving,
                                   .restart = keeper_restart,
                                   .stop = keeper_stop,
                                   .event = keeper_event,
                                   .tick = keeper_tick};
