/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to the keeper are synchronous: it does nothing but table work, and a call that
 * takes two seconds means that it is stopped, which is as bad as dead.
 */
#include "daemon/link.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "daemon/host.h"
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
    if (error != 0 || packet.kind != KEPT_DONE)
        return -EPIPE;
    return packet.value;
}

void link_cache_name(const struct cache *cache, char name[KEPT_NAME_MAX + 1])
{
    (void)snprintf(name, KEPT_NAME_MAX + 1, "%s.%" PRIu64,
                   cache->state == CACHE_REMOVED ? "removed" : "cache", cache->meta.id);
}

static void attachment_name(const struct attachment *attachment,
                            char name[KEPT_NAME_MAX + 1])
{
    (void)snprintf(
        name, KEPT_NAME_MAX + 1, "attach.%" PRIu64 ".%" PRIu64 ".%u.%u.%u.%u.%" PRIu64,
        attachment->id, attachment->cache->meta.id, attachment->rank, attachment->slot,
        attachment->peer.uid, attachment->peer.pid, attachment->since_ns);
}

static int call_put_cache(struct daemon *daemon, const struct cache *cache)
{
    char name[KEPT_NAME_MAX + 1];
    const int fds[] = {cache->meta_fd, cache->segment[SEGMENT_CONTROL].fd,
                       cache->segment[SEGMENT_PINS].fd,
                       cache->segment[SEGMENT_DATA].fd};

    link_cache_name(cache, name);
    return call(daemon, KEPT_PUT, name, 0, fds, 4);
}

static int call_put_attachment(struct daemon *daemon,
                               const struct attachment *attachment)
{
    char name[KEPT_NAME_MAX + 1];

    attachment_name(attachment, name);
    return call(daemon, KEPT_PUT, name, 0, &attachment->peer.pidfd, 1);
}

static int hand_over(struct daemon *daemon)
{
    int error = call(daemon, KEPT_PUT, "listen", 0, &daemon->listen_fd, 1);

    if (error == 0)
        error = call(daemon, KEPT_PUT, "lock", 0, &daemon->lock_fd, 1);
    for (uint32_t i = 0; i < KVW_CACHES_MAX && error == 0; i++) {
        const struct cache *cache = daemon->caches[i];
        if (cache != NULL && cache->state != CACHE_CREATING)
            error = call_put_cache(daemon, cache);
    }
    for (uint32_t i = 0; i < KVW_ALL_ATTACHMENTS_MAX && error == 0; i++) {
        if (daemon->attachments[i] != NULL)
            error = call_put_attachment(daemon, daemon->attachments[i]);
    }
    return error;
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
        error = hand_over(daemon);
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

int link_put_cache(struct daemon *daemon, const struct cache *cache)
{
    int error = ready(daemon);

    if (error == 0)
        error = call_put_cache(daemon, cache);
    if (is_worth_again(daemon, error))
        error = call_put_cache(daemon, cache);
    return error == -EPIPE ? -EAGAIN : error;
}

int link_put_attachment(struct daemon *daemon, const struct attachment *attachment)
{
    int error = ready(daemon);

    if (error == 0)
        error = call_put_attachment(daemon, attachment);
    if (is_worth_again(daemon, error))
        error = call_put_attachment(daemon, attachment);
    return error == -EPIPE ? -EAGAIN : error;
}

void link_drop(struct daemon *daemon, const char *name)
{
    /* A new keeper may have been given it, for it is still in our tables. */
    if (ready(daemon) == 0 &&
        is_worth_again(daemon, call(daemon, KEPT_DROP, name, 0, NULL, 0)) &&
        call(daemon, KEPT_DROP, name, 0, NULL, 0) == -EPIPE)
        give_up(daemon);
}

void link_drop_cache(struct daemon *daemon, const struct cache *cache)
{
    char name[KEPT_NAME_MAX + 1];

    /* In both states: the change from one to the other may have failed. */
    (void)snprintf(name, sizeof name, "cache.%" PRIu64, cache->meta.id);
    link_drop(daemon, name);
    if (cache->state == CACHE_REMOVED) {
        link_cache_name(cache, name);
        link_drop(daemon, name);
    }
}

void link_drop_attachment(struct daemon *daemon, const struct attachment *attachment)
{
    char name[KEPT_NAME_MAX + 1];

    attachment_name(attachment, name);
    link_drop(daemon, name);
}

void link_stop(struct daemon *daemon, int exit_code)
{
    if (daemon->keeper_socket >= 0)
        (void)call(daemon, KEPT_STOP, "", exit_code, NULL, 0);
}

void link_event(struct daemon *daemon, const struct ring_event *event)
{
    if (event->tag.generation != daemon->keeper_generation || daemon->keeper_socket < 0)
        return;
    log_line(&daemon->log, LOG_WARN, "keeper died pid %u", daemon->keeper_pid);
    give_up(daemon);
    (void)replace(daemon);
}

void link_tick(struct daemon *daemon, uint64_t now_ns)
{
    if (daemon->keeper_socket < 0 && now_ns >= daemon->keeper_ns)
        (void)replace(daemon);
}

void link_entries_free(struct link_entry *entries)
{
    while (entries != NULL) {
        struct link_entry *next = entries->next;
        for (uint32_t i = 0; i < entries->n_fds; i++)
            kvw_fd_cleanup(&entries->fds[i]);
        free(entries);
        entries = next;
    }
}

/* One packet of the answer to load; 1 when it was the last. */
static int load_entry(struct daemon *daemon, struct link_entry **entries)
{
    struct kept_packet packet = {0};
    struct link_entry *entry = calloc(1, sizeof *entry);

    if (entry == NULL)
        return -ENOMEM;
    int error =
        kept_receive(daemon->keeper_socket, &packet, entry->fds, &entry->n_fds, 0);
    if (error == -EMFILE) {
        log_line(&daemon->log, LOG_ERROR, "out of descriptors: entry %s is not adopted",
                 packet.name);
        error = 0;
    }
    if (error != 0 || packet.kind == KEPT_DONE) {
        free(entry);
        daemon->keeper_pid = (uint32_t)packet.value;
        return error != 0 ? error : 1;
    }
    memcpy(entry->name, packet.name, sizeof entry->name);
    entry->next = *entries;
    *entries = entry;
    return 0;
}

int link_open(struct daemon *daemon, struct link_entry **entries)
{
    const struct kept_packet packet = {.kind = KEPT_LOAD};

    *entries = NULL;
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
    return 0;
}
