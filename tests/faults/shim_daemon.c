/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's own part of the shim. An operation of the ring that fails is given to the
 * kernel with no descriptor, so that it has no effect, and its completion is given the
 * error. Restarts do not wait, for here each fault has one.
 */
#include <errno.h>
#include <hwloc.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/ring.h"
#include "daemon/spawn.h"
#include "tests/faults/page.h"

/* The completion that is to come. */
static struct {
    bool is_due;
    struct ring_tag tag;
    int error;
} failing;

static int spoil(int fd, struct ring_tag tag, bool strikes)
{
    if (!strikes)
        return fd;
    failing.is_due = true;
    failing.tag = tag;
    failing.error = errno;
    return -1;
}

#define STANDS_IN(type, name, parameters)                 \
    type real_##name parameters __asm__("__real_" #name); \
    type fault_##name parameters __asm__("__wrap_" #name)

STANDS_IN(void, ring_peek,
          (struct ring * ring, int socket, struct msghdr *head, struct ring_tag tag));
STANDS_IN(void, ring_send,
          (struct ring * ring, int socket, const struct msghdr *head,
           struct ring_tag tag));
STANDS_IN(void, ring_poll,
          (struct ring * ring, int fd, short events, struct ring_tag tag));
STANDS_IN(void, ring_allocate,
          (struct ring * ring, int fd, uint64_t offset, uint64_t bytes,
           struct ring_tag tag));
STANDS_IN(uint32_t, ring_wait,
          (struct ring * ring, uint64_t timeout_ns, struct ring_event *events,
           uint32_t n_max));
STANDS_IN(uint64_t, backoff_delay_ns, (struct backoff * backoff, uint64_t now_ns));

void fault_ring_peek(struct ring *ring, int socket, struct msghdr *head,
                     struct ring_tag tag)
{
    bool strikes = FAULT_STRIKES("ring peek", EINTR, EAGAIN, ENOMEM);

    real_ring_peek(ring, spoil(socket, tag, strikes), head, tag);
}

void fault_ring_send(struct ring *ring, int socket, const struct msghdr *head,
                     struct ring_tag tag)
{
    bool strikes = FAULT_STRIKES("ring send", EINTR, EAGAIN, ENOMEM, ETOOMANYREFS);

    real_ring_send(ring, spoil(socket, tag, strikes), head, tag);
}

void fault_ring_poll(struct ring *ring, int fd, short events, struct ring_tag tag)
{
    bool strikes = FAULT_STRIKES("ring poll", ENOMEM, ECANCELED);

    real_ring_poll(ring, spoil(fd, tag, strikes), events, tag);
}

void fault_ring_allocate(struct ring *ring, int fd, uint64_t offset, uint64_t bytes,
                         struct ring_tag tag)
{
    bool strikes = FAULT_STRIKES("ring allocate", ENOSPC, ENOMEM, EINTR, EFBIG);

    real_ring_allocate(ring, spoil(fd, tag, strikes), offset, bytes, tag);
}

uint32_t fault_ring_wait(struct ring *ring, uint64_t timeout_ns,
                         struct ring_event *events, uint32_t n_max)
{
    uint32_t n_events = real_ring_wait(ring, timeout_ns, events, n_max);

    for (uint32_t i = 0; i < n_events && failing.is_due; i++) {
        if (events[i].tag.kind != failing.tag.kind ||
            events[i].tag.slot != failing.tag.slot ||
            events[i].tag.generation != failing.tag.generation ||
            events[i].result != -EBADF)
            continue;
        events[i].result = -failing.error;
        failing.is_due = false;
    }
    return n_events;
}

uint64_t fault_backoff_delay_ns(struct backoff *backoff, uint64_t now_ns)
{
    (void)backoff;
    (void)now_ns;
    return 0;
}

STANDS_IN(struct io_uring_probe *, io_uring_get_probe_ring, (struct io_uring * ring));

/* KVW_FAULT_LACKS: the number of an operation that this kernel is to lack. */
struct io_uring_probe *fault_io_uring_get_probe_ring(struct io_uring *ring)
{
    const char *lacks = getenv("KVW_FAULT_LACKS");
    struct io_uring_probe *probe = FAULT_STRIKES("io_uring_get_probe_ring", ENOMEM)
                                       ? NULL
                                       : real_io_uring_get_probe_ring(ring);

    if (probe != NULL && lacks != NULL)
        probe->ops[strtoul(lacks, NULL, 10) % probe->ops_len].flags = 0;
    return probe;
}

FAULTY(int, io_uring_queue_init_params,
       (unsigned entries, struct io_uring *ring, struct io_uring_params *params),
       (entries, ring, params), -errno, ENOMEM, EMFILE, EPERM)
FAULTY(int, io_uring_submit_and_wait_timeout,
       (struct io_uring * ring, struct io_uring_cqe **cqe, unsigned wait_nr,
        struct __kernel_timespec *timeout, sigset_t *sigmask),
       (ring, cqe, wait_nr, timeout, sigmask), -errno, EINTR, EAGAIN, EBUSY)
FAULTY(int, hwloc_topology_init, (hwloc_topology_t * topology), (topology), -1, ENOMEM)
FAULTY(int, hwloc_topology_load, (hwloc_topology_t topology), (topology), -1, ENOMEM)

static __attribute__((constructor)) void begin(int argc, char **argv)
{
    const char *path = getenv(FAULT_PAGE);

    if (path != NULL)
        (void)!fault_use(path, argc > 1 && strcmp(argv[1], "--serve") == 0
                                   ? FAULT_DAEMON
                                   : FAULT_KEEPER);
}
