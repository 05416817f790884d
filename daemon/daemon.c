/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop, and the first and last moments around it. */
#include "daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "daemon/adopt.h"
#include "daemon/attachment.h"
#include "daemon/await.h"
#include "daemon/cache.h"
#include "daemon/client.h"
#include "daemon/closer.h"
#include "daemon/create.h"
#include "daemon/host.h"
#include "daemon/kept.h"
#include "daemon/numa.h"
#include "daemon/request.h"
#include "daemon/store.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

#define EVENTS_MAX 64u
#define ROUNDS_MAX 64u
#define STOP_NS 1000000000ull
#define SERVE_NS 1000000ull /* of requests, before the ring is looked at again */

void daemon_stop(struct daemon *daemon, int exit_code)
{
    if (daemon->is_stopping)
        return;
    daemon->is_stopping = true;
    daemon->exit_code = exit_code;
    daemon->stop_ns = host_now_ns() + STOP_NS;
}

static void take_signal(struct daemon *daemon)
{
    struct signalfd_siginfo info;

    if (read(daemon->signals, &info, sizeof info) == sizeof info) {
        log_line(&daemon->log, LOG_INFO, "stopping signal %u from %u", info.ssi_signo,
                 info.ssi_pid);
        /* systemd decides what becomes of its store. */
        daemon->is_leaving = daemon->options->is_systemd;
        daemon_stop(daemon, EXIT_CODE_OK);
    }
    ring_poll(daemon->ring, daemon->signals, POLLIN,
              (struct ring_tag){.kind = RING_SIGNAL});
}

static void dispatch(struct daemon *daemon, const struct ring_event *event)
{
    switch (event->tag.kind) {
    case RING_NONE:
        break;
    case RING_ACCEPT:
        daemon->is_accept_due = true;
        break;
    case RING_RECEIVE:
        client_received(daemon, event);
        break;
    case RING_SEND:
        client_sent(daemon, event);
        break;
    case RING_DEATH:
        attachment_event(daemon, event);
        break;
    case RING_KEEPER:
        daemon->store->event(daemon, event);
        break;
    case RING_SIGNAL:
        take_signal(daemon);
        break;
    case RING_ALLOCATE:
        create_allocated(daemon, event);
        break;
    case RING_CREW:
        numa_event(daemon);
        break;
    }
}

/* What is due by the clock. @return when the next thing is. */
static uint64_t tick(struct daemon *daemon)
{
    uint64_t now_ns = host_now_ns();
    uint64_t next_ns = await_sweep(daemon, now_ns);

    next_ns = min_u64(next_ns, cache_expire(daemon, now_ns));
    next_ns = min_u64(next_ns, share_expire(daemon, now_ns));

    if (daemon->accept_ns <= now_ns)
        client_accept(daemon);
    daemon->store->tick(daemon, now_ns);
    if (daemon->options->is_embedded && daemon->n_clients == 0 &&
        daemon->n_caches == 0 && !daemon->is_holding) {
        uint64_t end_ns = daemon->idle_ns + daemon->options->linger_ns;
        if (end_ns <= now_ns) {
            log_line(&daemon->log, LOG_INFO, "stopping, nobody needs this daemon");
            daemon_stop(daemon, EXIT_CODE_OK);
        }
        next_ns = min_u64(next_ns, end_ns);
    }
    if (daemon->is_stopping)
        next_ns = min_u64(next_ns, daemon->stop_ns);
    next_ns = min_u64(next_ns, daemon->accept_ns);
    return min_u64(next_ns, daemon->keeper_socket < 0 ? daemon->keeper_ns : NEVER_NS);
}

/* All that have come: a request that has not been seen has no turn yet. The kernel hands
 * them out some twenty at a time. */
static void take_events(struct daemon *daemon, uint64_t wait_ns)
{
    struct ring_event events[EVENTS_MAX];
    uint32_t n_events = 1;

    for (uint32_t rounds = 0; n_events > 0 && rounds < ROUNDS_MAX; rounds++) {
        n_events =
            ring_wait(daemon->ring, rounds == 0 ? wait_ns : 0, events, EVENTS_MAX);
        for (uint32_t i = 0; i < n_events; i++)
            dispatch(daemon, &events[i]);
    }
}

static void serve(struct daemon *daemon)
{
    for (;;) {
        uint64_t next_ns = tick(daemon);
        uint64_t now_ns = host_now_ns();

        if (daemon->is_stopping &&
            (client_all_sent(daemon) || daemon->stop_ns <= now_ns))
            return;
        uint64_t wait_ns = next_ns == NEVER_NS ? NEVER_NS
                           : next_ns > now_ns  ? next_ns - now_ns
                                               : 0;
        take_events(daemon, daemon->shares.n_waiting > 0 ? 0 : wait_ns);
        const uint64_t end_ns = host_now_ns() + SERVE_NS;
        while (client_serve_next(daemon) && host_now_ns() < end_ns)
            ;
        if (daemon->is_accept_due)
            client_accepted(daemon);
        if (!daemon->is_settled)
            numa_settle(daemon);
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
    (void)signal(SIGXFSZ, SIG_IGN); /* RLIMIT_FSIZE is an error code, not a death */
    return signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Whoever is refused the lock is told this number. */
static void write_pid(const struct daemon *daemon)
{
    char text[32];
    int n_bytes = snprintf(text, sizeof text, "%d\n", (int)getpid());

    if (ftruncate(daemon->lock_fd, 0) < 0 ||
        pwrite(daemon->lock_fd, text, (size_t)n_bytes, 0) < 0)
        log_line(&daemon->log, LOG_WARN, "lock file not written: %s",
                 strerrordesc_np(errno));
}

static int begin(struct daemon *daemon)
{
    struct kvw_refusal refusal;

    if (daemon->signals < 0 || daemon->own_pidfd < 0) {
        log_line(&daemon->log, LOG_ERROR, "no descriptor for %s",
                 daemon->signals < 0 ? "signals" : "this process");
        return EXIT_CODE_FAILED;
    }
    int error = ring_open(&daemon->ring, &refusal);
    if (error != 0) {
        log_line(&daemon->log, LOG_ERROR, "%s", refusal.text);
        return EXIT_CODE_IO_URING;
    }
    host_make_descriptor_room(
        (uint32_t)min_u64(daemon->shares.descriptors_max, SHARE_DESCRIPTORS));
    error = closer_open(&daemon->closer);
    if (error != 0) {
        log_line(&daemon->log, LOG_ERROR, "no threads: %s", strerrordesc_np(-error));
        return EXIT_CODE_FAILED;
    }
    error = adopt_all(daemon);
    if (error != 0) {
        log_line(&daemon->log, LOG_ERROR, "cannot adopt what is kept: %s",
                 strerrordesc_np(-error));
        return error == -EPROTO ? EXIT_CODE_LAYOUT : EXIT_CODE_FAILED;
    }
    daemon->has_peerpidfd = peer_has_pidfd_option(daemon->listen_fd);
    report_look(daemon);
    client_reserve(daemon);
    write_pid(daemon);
    ring_poll(daemon->ring, daemon->signals, POLLIN,
              (struct ring_tag){.kind = RING_SIGNAL});
    (void)fcntl(daemon->listen_fd, F_SETFL, O_NONBLOCK);
    client_accept(daemon);
    daemon->store->serving(daemon);
    log_line(&daemon->log, LOG_INFO,
             "%s socket %s version %s keeper %u restarts %u caches %u attachments %u",
             daemon->is_holding ? "holding" : "serving", daemon->options->socket_path,
             DAEMON_VERSION, daemon->keeper_pid, daemon->options->n_restarts,
             daemon->n_caches, daemon->n_attachments);
    return EXIT_CODE_OK;
}

/* Workers learn that their caches are gone; their memory goes with the last mapping. */
static void announce_end(struct daemon *daemon)
{
    uint32_t n_caches = daemon->n_caches;

    if (n_caches > 0)
        log_line(&daemon->log, LOG_WARN, "stopped caches dropped %u attachments %u",
                 n_caches, daemon->n_attachments);
    else
        log_line(&daemon->log, LOG_INFO, "stopped caches dropped 0");
    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        if (daemon->caches[i] != NULL && daemon->caches[i]->state == CACHE_READY)
            cache_announce_removed(daemon->caches[i]);
    }
}

/* The rest goes with the process: it holds no state that must be written. */
static void free_all(struct daemon *daemon)
{
    daemon->ring = ring_close(daemon->ring);
    for (uint32_t i = 0; i < KVW_ALL_ATTACHMENTS_MAX; i++) {
        if (daemon->attachments[i] != NULL)
            peer_close(&daemon->attachments[i]->peer);
        free(daemon->attachments[i]);
    }
    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        struct cache *cache = daemon->caches[i];
        if (cache != NULL)
            free(cache->plan);
        free(cache); /* its segments are unmapped and closed as the process ends */
    }
    for (uint32_t i = 0; i < KVW_CLIENTS_MAX; i++)
        client_free(daemon, daemon->clients[i]);
    daemon->placement = placement_close(daemon->placement);
    store_entries_free(daemon->held);
    store_entries_free(daemon->stored);
}

int daemon_run(const struct options *options)
{
    KVW_CLEANUP(kvw_free_cleanup)
    struct daemon *daemon = calloc(1, sizeof *daemon);

    if (daemon == NULL)
        return EXIT_CODE_FAILED;
    *daemon = (struct daemon){
        .options = options,
        .log = {.level = options->log_level,
                .role = "daemon",
                .path = options_log_path(options),
                .is_rotating = true},
        .started_ns = host_wall_ns(),
        .store = options->is_systemd ? &store_systemd : &store_keeper,
        .stamp_fd = -1,
        .listen_fd = -1,
        .lock_fd = -1,
        .spare_fd = -1,
        .accept_ns = NEVER_NS,
        .keeper_socket = KEPT_SOCKET_FD,
        .keeper_pidfd = -1,
        .idle_ns = host_now_ns(),
    };
    host_random(&daemon->epoch, sizeof daemon->epoch);
    daemon->signals = open_signals();
    daemon->own_pidfd = peer_pidfd_open((uint32_t)getpid());
    if (host_protect_from_oom() != 0)
        log_line(&daemon->log, LOG_DEBUG, "not protected from the OOM killer");
    daemon->shares.descriptors_max = host_raise_descriptor_limit();

    daemon->exit_code = begin(daemon);
    if (daemon->exit_code == EXIT_CODE_OK) {
        serve(daemon);
        if (!daemon->is_leaving)
            announce_end(daemon);
    } else if (daemon->exit_code == EXIT_CODE_LAYOUT) {
        daemon->is_leaving = true;
    }
    int exit_code = daemon->store->stop(daemon, daemon->exit_code, !daemon->is_leaving);
    free_all(daemon);
    return exit_code;
}
