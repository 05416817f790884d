/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of entries, as both stores give them out. */
#include "daemon/store.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"

struct store_entry *store_entry_add(struct store_entry **entries, const char *name)
{
    struct store_entry *entry = calloc(1, sizeof *entry);

    if (entry == NULL)
        return NULL;
    memcpy(entry->name, name, strnlen(name, KEPT_NAME_MAX));
    for (uint32_t i = 0; i < KEPT_FDS_MAX; i++)
        entry->fds[i] = -1;
    entry->next = *entries;
    *entries = entry;
    return entry;
}

struct store_entry *store_entry_find(struct store_entry *entries, const char *name)
{
    while (entries != NULL && strcmp(entries->name, name) != 0)
        entries = entries->next;
    return entries;
}

int store_entry_take(struct store_entry *entries, const char *name)
{
    struct store_entry *entry = store_entry_find(entries, name);

    return entry != NULL && entry->n_fds == 1 ? take_fd(&entry->fds[0]) : -1;
}

void store_entries_free(struct store_entry *entries)
{
    while (entries != NULL) {
        struct store_entry *next = entries->next;
        for (uint32_t i = 0; i < entries->n_fds; i++)
            kvw_fd_cleanup(&entries->fds[i]);
        free(entries);
        entries = next;
    }
}
