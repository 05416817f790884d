/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One packet there, one packet back: messages over a connected SEQPACKET socket, with
 * real deadlines (milliseconds of CLOCK_MONOTONIC) and every descriptor accounted for.
 * Knows nothing of what the messages mean.
 */
#ifndef KVW_CLIENT_WIRE_H
#define KVW_CLIENT_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/messages.h"

/* Descriptors that came with a packet; the caller closes or takes them. */
struct wire_fds {
    int fd[KVW_MESSAGE_FDS_MAX];
    uint32_t n_fds;
    bool is_cut; /* there were more than we could take: all of them are closed */
};

/** Milliseconds of CLOCK_MONOTONIC. */
uint64_t wire_now_ms(void);

/**
 * Connect to the socket at `path`, without waiting.
 *
 * @return 0 with a non-blocking, close-on-exec socket; -ENOENT, -ECONNREFUSED (nobody);
 *         -EAGAIN (the listener's queue is full); -ENOTSOCK (a file, or a socket of
 * another kind); -ENAMETOOLONG; another -errno.
 */
KVW_NODISCARD int wire_connect(const char *path, int *socket);

/**
 * Send a message.
 *
 * @return 0; -ECONNRESET (the peer is gone and has not read it); -ETIMEDOUT; -EINVAL,
 *         -EMSGSIZE (no such message, a field over its bound).
 */
KVW_NODISCARD int wire_send(int socket, const struct kvw_message *message,
                            uint64_t deadline_ms);

/**
 * Receive a message.
 *
 * @param packet   KVW_MESSAGE_MAX bytes, into which bytes fields of `message` point.
 * @return 0; -EPIPE (the peer hung up: it may have read what we sent); -ECONNRESET (it
 * went away and has not read it); -ETIMEDOUT; -EPROTO.
 */
KVW_NODISCARD int wire_receive(int socket, uint8_t *packet, struct kvw_message *message,
                               struct wire_fds *fds, uint64_t deadline_ms);

/**
 * Wait after a call on the socket that failed with `error`: for `events` after EAGAIN and
 * EINTR (a hang-up is one: the next call learns what happened), for a moment while the
 * kernel is short of memory (ENOMEM, ENOBUFS, ETOOMANYREFS).
 *
 * @return 0: try again; -ETIMEDOUT; any other error, negative, as it is.
 */
KVW_NODISCARD int wire_wait(int socket, short events, int error, uint64_t deadline_ms);

/** Close descriptors from number `first` on; n_fds is at most `first` then. */
void wire_fds_close(struct wire_fds *fds, uint32_t first);

#endif
