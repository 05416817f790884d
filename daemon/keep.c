/* SPDX-License-Identifier: Apache-2.0 */
/* A plain array: the keeper has all the time in the world. */
#include "daemon/keep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int keep_init(struct keep *keep)
{
    *keep = (struct keep){.entries = calloc(KEPT_ENTRIES_MAX, sizeof *keep->entries)};
    return keep->entries == NULL ? -ENOMEM : 0;
}

static void entry_close(struct keep_entry *entry)
{
    while (entry->n_fds > 0)
        close(entry->fds[--entry->n_fds]);
}

void keep_fini(struct keep *keep)
{
    while (keep->n_entries > 0)
        entry_close(&keep->entries[--keep->n_entries]);
    free(keep->entries);
    keep->entries = NULL;
}

struct keep_entry *keep_find(const struct keep *keep, const char *name)
{
    for (uint32_t i = 0; i < keep->n_entries; i++) {
        if (strcmp(keep->entries[i].name, name) == 0)
            return &keep->entries[i];
    }
    return NULL;
}

void keep_drop(struct keep *keep, const char *name)
{
    struct keep_entry *entry = keep_find(keep, name);

    if (entry == NULL)
        return;
    entry_close(entry);
    *entry = keep->entries[--keep->n_entries];
}

int keep_put(struct keep *keep, const char *name, const int *fds, uint32_t n_fds)
{
    struct keep_entry *entry = keep_find(keep, name);

    KVW_CHECK(n_fds <= KEPT_FDS_MAX);
    if (entry == NULL && keep->n_entries == KEPT_ENTRIES_MAX)
        return -ENFILE;
    if (entry == NULL)
        entry = &keep->entries[keep->n_entries++];
    else
        entry_close(entry);
    *entry = (struct keep_entry){.n_fds = n_fds};
    memcpy(entry->name, name, strnlen(name, KEPT_NAME_MAX));
    for (uint32_t i = 0; i < n_fds; i++)
        entry->fds[i] = fds[i];
    return 0;
}
