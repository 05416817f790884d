/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets between keeper and daemon: named entries of descriptors, nothing else;
 * store.h lists them. Both ends are the same program on the same host, so a packet is a
 * plain struct. (During a restart one end is of the next version: all that it then has
 * to say is KEPT_DONE, and an end that does not understand it gives the other one up.)
 */
#ifndef KVW_DAEMON_KEPT_H
#define KVW_DAEMON_KEPT_H

#include <stdint.h>

#include "proto/base/check.h"
#include "proto/limits.h"

#define KEPT_NAME_MAX 119u
#define KEPT_FDS_MAX KVW_MESSAGE_FDS_MAX
#define KEPT_ENTRIES_MAX (2u * KVW_CACHES_MAX + KVW_ALL_ATTACHMENTS_MAX + 5u)

/* The descriptors of daemon and keeper at their start, by number. */
#define KEPT_SOCKET_FD 3
#define KEPT_DAEMON_FD 4 /* --keep only: the pidfd of the daemon */
#define KEPT_STATE_FD 5  /* --keep-on only: what the program before it kept */
#define KEPT_FREE_FD 10  /* from here on numbers are nobody's */

enum kept_kind {
    KEPT_PUT = 1,  /* keep these descriptors under that name; a second time: instead */
    KEPT_DROP = 2, /* no such name is a success */
    KEPT_LOAD = 3, /* answered by one KEPT_ENTRY each, then KEPT_DONE */
    KEPT_STOP = 4, /* the daemon is about to end with exit code `value`, for good */
    KEPT_ENTRY = 5,
    KEPT_DONE =
        6, /* the answer; `value` is 0 or a negative errno, after load the pid */
    KEPT_RESTART = 7, /* become the installed program; the daemon is about to end */
};

struct kept_packet {
    uint32_t kind;
    int32_t value;
    char name[KEPT_NAME_MAX + 1];
};

/** Send a packet, waiting for room. @return 0 or -errno (-EPIPE: the other is dead). */
KVW_NODISCARD int kept_send(int socket, const struct kept_packet *packet,
                            const int *fds, uint32_t n_fds);

/**
 * Receive a packet.
 *
 * @param fds  [out] KEPT_FDS_MAX descriptors, owned by the caller from then on.
 * @return 0; -EPIPE (the other end is dead); -EAGAIN (nothing there, or the socket's
 *         timeout passed); -EMFILE (no room for its descriptors: it came without, and
 * the packet is filled in); -EPROTO.
 */
KVW_NODISCARD int kept_receive(int socket, struct kept_packet *packet, int *fds,
                               uint32_t *n_fds, int flags);

#endif
