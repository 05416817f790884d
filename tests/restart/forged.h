/* SPDX-License-Identifier: Apache-2.0 */
/* The segments of a cache that no daemon has made. */
#ifndef KVW_TESTS_RESTART_FORGED_H
#define KVW_TESTS_RESTART_FORGED_H

#include <fcntl.h>
#include <stdint.h>

#include "proto/layout.h"

#define FORGED_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define FORGED_ATTACHMENT 77 /* of rank 0, in its seat */
#define FORGED_INCARNATION 3

/* Segments as a daemon would have made them, with a worker on rank 0. */
struct forged {
    int fds[3];
    uint64_t bytes[3];
    struct kvw_control_header *header;
    struct kvw_layout layout;
};

/** Make them as a daemon would, for two ranks, but without seals. */
void forged_init(struct forged *forged, const char *name);

/** Seal all three as a daemon would. */
void forged_seal(const struct forged *forged);

void forged_close(struct forged *forged);

#endif
