/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper's table: names and the descriptors that stand under them. */
#ifndef KVW_DAEMON_KEEP_H
#define KVW_DAEMON_KEEP_H

#include <stdint.h>

#include "daemon/kept.h"

struct keep_entry {
    char name[KEPT_NAME_MAX + 1];
    int32_t fds[KEPT_FDS_MAX];
    uint32_t n_fds;
};

struct keep {
    struct keep_entry *entries; /* KEPT_ENTRIES_MAX */
    uint32_t n_entries;
};

/** An empty table. @return 0 or -ENOMEM. */
KVW_NODISCARD int keep_init(struct keep *keep);

/** Close everything. */
void keep_fini(struct keep *keep);

/** The entry of that name, or NULL; valid until the next put or drop. */
struct keep_entry *keep_find(const struct keep *keep, const char *name);

/** Keep descriptors, instead of those that the name has. Takes them on success.
 * @return 0 or -ENFILE. */
KVW_NODISCARD int keep_put(struct keep *keep, const char *name, const int *fds,
                           uint32_t n_fds);

/** Close an entry's descriptors and forget it. There need not be one. */
void keep_drop(struct keep *keep, const char *name);

#endif
