/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop's operations, on io_uring. An operation carries a tag; its completion
 * brings the tag back. A tag's generation tells a late completion from one that belongs
 * to the present user of a slot.
 */
#ifndef KVW_DAEMON_RING_H
#define KVW_DAEMON_RING_H

#include <stdint.h>
#include <sys/socket.h>

#include "proto/base/check.h"
#include "proto/geometry.h"

enum ring_kind {
    RING_NONE = 0,   /* a completion that nobody waits for */
    RING_ACCEPT = 1, /* connections wait */
    RING_RECEIVE = 2,
    RING_SEND = 3,
    RING_DEATH = 4,  /* a pidfd fired */
    RING_KEEPER = 5, /* the keeper hung up */
    RING_SIGNAL = 6,
    RING_ALLOCATE = 7,
    RING_CREW = 8, /* the crew has done something */
};

struct ring_tag {
    uint32_t slot;
    uint32_t generation; /* 24 bits are kept */
    enum ring_kind kind;
};

#define RING_GENERATION_MASK 0xffffffu

struct ring_event {
    struct ring_tag tag;
    int result; /* of the operation; negative errno */
};

struct ring;

/**
 * Set up a ring and check that the kernel has what the daemon needs.
 *
 * @return 0; -errno with `refusal` in words (io_uring forbidden, or an old kernel).
 */
KVW_NODISCARD int ring_open(struct ring **ring, struct kvw_refusal *refusal);

struct ring *ring_close(struct ring *ring);

/** Look at the next packet, which stays in the queue; `head` stays valid until the
 * completion. */
void ring_peek(struct ring *ring, int socket, struct msghdr *head, struct ring_tag tag);

/** Send one packet; `head` stays valid until the completion. */
void ring_send(struct ring *ring, int socket, const struct msghdr *head,
               struct ring_tag tag);

/** Complete once when `fd` has one of `events` (poll(2)), hung up or failed. */
void ring_poll(struct ring *ring, int fd, short events, struct ring_tag tag);

/** End a poll; its completion may still come. */
void ring_poll_cancel(struct ring *ring, struct ring_tag tag);

/** Allocate memory of a memfd. */
void ring_allocate(struct ring *ring, int fd, uint64_t offset, uint64_t bytes,
                   struct ring_tag tag);

/**
 * Start what was asked for, and wait for completions.
 *
 * @param timeout_ns  Longest wait; UINT64_MAX for ever.
 * @return number of events, 0 after the timeout or a signal.
 */
uint32_t ring_wait(struct ring *ring, uint64_t timeout_ns, struct ring_event *events,
                   uint32_t n_max);

#endif
