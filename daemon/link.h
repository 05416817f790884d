/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's end of the keeper. What a client is told exists is kept before it is
 * told. A keeper that died is replaced on the spot and given everything again.
 */
#ifndef KVW_DAEMON_LINK_H
#define KVW_DAEMON_LINK_H

#include "daemon/daemon.h"
#include "daemon/kept.h"

/* An entry as the keeper has it. */
struct link_entry {
    struct link_entry *next;
    char name[KEPT_NAME_MAX + 1];
    int fds[KEPT_FDS_MAX]; /* owned; -1 once taken */
    uint32_t n_fds;
};

/** Take the inherited socket, and load all entries. @return 0 or -errno. */
KVW_NODISCARD int link_open(struct daemon *daemon, struct link_entry **entries);

/** Close what was not taken, and free the list. */
void link_entries_free(struct link_entry *entries);

/** Keep a cache, removed or not, or an attachment. @return 0 or -errno (-EAGAIN: no
 * keeper). */
KVW_NODISCARD int link_put_cache(struct daemon *daemon, const struct cache *cache);
KVW_NODISCARD int link_put_attachment(struct daemon *daemon,
                                      const struct attachment *attachment);

void link_drop_cache(struct daemon *daemon, const struct cache *cache);
void link_drop_attachment(struct daemon *daemon, const struct attachment *attachment);

/** The name of a cache's entry in its present state. */
void link_cache_name(const struct cache *cache, char name[KEPT_NAME_MAX + 1]);

/** Drop an entry by its name. */
void link_drop(struct daemon *daemon, const char *name);

/** Say that we end for good. */
void link_stop(struct daemon *daemon, int exit_code);

/** The keeper's socket hung up, or seemed to. */
void link_event(struct daemon *daemon, const struct ring_event *event);

/** Start a keeper if there is none and one is due. */
void link_tick(struct daemon *daemon, uint64_t now_ns);

#endif
