/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What adoption calls and fuzz_adopt must not do for real: the event loop, clients, the
 * log, and processes, whom a hostile keeper's pid would have killed.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/client.h"
#include "daemon/closer.h"
#include "daemon/log.h"
#include "daemon/peer.h"
#include "daemon/placement.h"
#include "daemon/ring.h"
#include "daemon/spawn.h"
#include "proto/base/cleanup.h"

void ring_poll(struct ring *ring, int fd, short events, struct ring_tag tag)
{
    (void)ring, (void)events, (void)tag;
    KVW_CHECK(fd >= 0);
}

void ring_poll_cancel(struct ring *ring, struct ring_tag tag)
{
    (void)ring, (void)tag;
}

void client_answer(struct daemon *daemon, struct client *client, struct reply *reply)
{
    (void)daemon, (void)client, (void)reply;
    abort(); /* there is none */
}

void daemon_stop(struct daemon *daemon, int exit_code)
{
    (void)daemon, (void)exit_code;
    abort(); /* nobody asks for it */
}

static void make_line(const char *format, va_list arguments)
    __attribute__((format(printf, 1, 0)));

static void make_line(const char *format, va_list arguments)
{
    char line[256];

    (void)vsnprintf(line, sizeof line, format, arguments);
}

void log_line(const struct log *log, enum log_level level, const char *format, ...)
{
    va_list arguments;

    (void)log, (void)level;
    va_start(arguments, format);
    make_line(format, arguments);
    va_end(arguments);
}

void log_peer(struct log *log, enum log_level level, const char *format, ...)
{
    va_list arguments;

    (void)log, (void)level;
    va_start(arguments, format);
    make_line(format, arguments);
    va_end(arguments);
}

int peer_pidfd_open(uint32_t pid)
{
    (void)pid;
    return -ESRCH;
}

void peer_close(struct peer *peer)
{
    kvw_fd_cleanup(&peer->pidfd);
}

bool peer_is_dead(const struct peer *peer)
{
    struct pollfd poll_fd = {.fd = peer->pidfd, .events = POLLIN};

    return poll(&poll_fd, 1, 0) > 0;
}

bool peer_in_group(int socket, const struct peer *peer, uint32_t gid)
{
    (void)socket;
    return peer->gid == gid;
}

int spawn_role(const struct options *options, enum role role, uint32_t n_restarts,
               int daemon_fd, struct spawned *spawned)
{
    (void)options, (void)role, (void)n_restarts, (void)daemon_fd, (void)spawned;
    return -ENOSYS;
}

int spawn_reap(int pidfd)
{
    (void)pidfd;
    return 0;
}

uint64_t backoff_delay_ns(struct backoff *backoff, uint64_t now_ns)
{
    (void)backoff, (void)now_ns;
    return 0;
}

const char *placement_degraded(const struct placement *placement)
{
    (void)placement;
    return "";
}

struct placement *placement_of(struct daemon *daemon)
{
    (void)daemon;
    return NULL;
}

void closer_take(struct closer *closer, enum closer_kind kind, int *fd, uint64_t bytes)
{
    (void)closer, (void)kind, (void)bytes;
    kvw_fd_cleanup(fd);
}

uint64_t closer_bytes(struct closer *closer)
{
    (void)closer;
    return 0;
}

bool share_is_unlimited(uint32_t uid)
{
    return uid == 0;
}
