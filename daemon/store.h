/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where descriptors outlive the daemon: named entries, nothing else. Two of them exist:
 * the keeper process and systemd's descriptor store. link.c says what is put there.
 *
 *   listen, lock                        one descriptor each
 *   layout                              whose layout the caches have: a struct stamp
 *   cache.ID, removed.ID                meta, control, pins, data
 *   attach.ID.CACHE.RANK.SLOT.UID.PID.SINCE   the pidfd
 *   previous                            the program to go back to (the keeper's own)
 *   refused                             why a new program did not take over, in words
 */
#ifndef KVW_DAEMON_STORE_H
#define KVW_DAEMON_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/kept.h"
#include "daemon/ring.h"
#include "proto/base/check.h"

struct daemon;

/* An entry as it comes out of a store. */
struct store_entry {
    struct store_entry *next;
    char name[KEPT_NAME_MAX + 1];
    int fds[KEPT_FDS_MAX]; /* owned; -1 once taken, or never there */
    uint32_t n_fds;        /* 0 once all are taken */
};

/* One of the two. Every function but load() copes with a store that is gone. */
struct store {
    /* One descriptor may stand under two names. */
    bool takes_twice;

    /** Connect, and load all entries. @return 0 or -errno. */
    int (*load)(struct daemon *daemon, struct store_entry **entries);

    /** Keep copies of these descriptors under that name. @return 0; -EAGAIN: there is
     * no store now; -ENFILE: it is full. */
    int (*put)(struct daemon *daemon, const char *name, const int *fds, uint32_t n_fds);

    /** Forget an entry; there need not be one. */
    void (*drop)(struct daemon *daemon, const char *name);

    /** The daemon serves: what a new program was tried with is not needed any more. */
    void (*serving)(struct daemon *daemon);

    /**
     * Get ready for the daemon's end and the start of the installed program.
     *
     * @return 0; -errno with `refusal` in words: the daemon goes on.
     */
    int (*restart)(struct daemon *daemon, struct kvw_refusal *refusal);

    /**
     * The daemon is about to end.
     *
     * @param is_final  The caches end with it; else they are what the store is for.
     * @return the program's exit code.
     */
    int (*stop)(struct daemon *daemon, int exit_code, bool is_final);

    /** An event of kind RING_KEEPER. */
    void (*event)(struct daemon *daemon, const struct ring_event *event);

    /** Look after the store, if that is due. */
    void (*tick)(struct daemon *daemon, uint64_t now_ns);
};

extern const struct store store_keeper;
extern const struct store store_systemd;

/** A new, empty entry at the head of a list. NULL when there is no memory. */
struct store_entry *store_entry_add(struct store_entry **entries, const char *name);

/** The entry of that name, or NULL. */
struct store_entry *store_entry_find(struct store_entry *entries, const char *name);

/** Take the one descriptor of the entry of that name. @return it, or -1. */
int store_entry_take(struct store_entry *entries, const char *name);

/** Close what was not taken, and free the list. */
void store_entries_free(struct store_entry *entries);

#endif
