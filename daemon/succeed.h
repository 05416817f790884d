/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One keeper becomes another by exec: pid, children and descriptors stay, the program
 * is another one. What the table says travels in a memfd beside the descriptors.
 */
#ifndef KVW_DAEMON_SUCCEED_H
#define KVW_DAEMON_SUCCEED_H

#include <limits.h>
#include <stdbool.h>

#include "daemon/keep.h"
#include "daemon/options.h"

/* What a keeper has in its hands beside the table. */
struct hands {
    int socket;    /* to the daemon; -1 = none */
    int daemon_fd; /* its pidfd; -1 = none */
    uint32_t n_restarts;
    bool has_answer_due; /* the daemon waits for KEPT_DONE */
};

/**
 * The path of the program that is installed where this one was.
 *
 * @return 0 or -errno: it is gone, or is no program.
 */
KVW_NODISCARD int succeed_path(char path[PATH_MAX]);

/** A descriptor of the program that runs, to come back to. @return it or -errno. */
KVW_NODISCARD int succeed_open_self(void);

/**
 * Become the program at `path`, as a keeper that goes on.
 *
 * @return -errno; nothing is lost then, but descriptors have other numbers.
 */
KVW_NODISCARD int succeed_exec(const char *path, const struct options *options,
                               struct keep *keep, struct hands *hands);

/**
 * The other side: take over what succeed_exec() passed on.
 *
 * @return 0; -EINVAL when it is not understood.
 */
KVW_NODISCARD int succeed_take_over(struct keep *keep, struct hands *hands);

#endif
