/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon asks the host for: time, randomness, environment, memory, processes.
 */
#ifndef KVW_DAEMON_HOST_H
#define KVW_DAEMON_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/check.h"
#include "proto/limits.h"

/** Nanoseconds of CLOCK_MONOTONIC; the sleeps and deadlines of the daemon use it. */
uint64_t host_now_ns(void);

/** Nanoseconds of CLOCK_REALTIME; what users are shown. */
uint64_t host_wall_ns(void);

/** Fill `bytes` with random bytes. */
void host_random(void *bytes, size_t n_bytes);

/** A variable of the environment, or NULL if it is unset or empty. */
const char *host_environment(const char *name);

/* Memory, of the machine or of the cgroup that leaves less. */
struct host_memory {
    uint64_t total;     /* bytes that this process may ever use */
    uint64_t available; /* that can be had now, free or reclaimable */
    char limit[256];    /* the file with the limit that binds; "" = the machine's own */
};

/** Look at the memory. @return 0; -errno (-EMFILE, -ENOMEM ...): it cannot be told now. */
KVW_NODISCARD int host_memory(struct host_memory *memory);

/** A warning for who is short of memory, where this machine's own host may give it more, or
 *  take some, while it runs: "; virtio-balloon: ..."; else "". */
const char *host_memory_warning(void);

/** vm.max_map_count: mappings that one process may have; the kernel's default when it
 *  cannot be read. */
uint64_t host_mappings_max(void);

/**
 * Printable name of a process; "" when it cannot be read. Not its command line: that lies
 * in its memory, and who reads it waits for whatever the process does to its mappings.
 */
void host_command(uint32_t pid, char *text, size_t text_bytes);

/** Start time of a process in clock ticks since boot, 0 when there is none. */
uint64_t host_start_ticks(uint32_t pid);

/** Ask the OOM killer to spare this process. @return 0 or -errno. */
KVW_NODISCARD int host_protect_from_oom(void);

/* Descriptors of a daemon that is full: of clients (a connection and a process each), of
 * caches, of attachments, and its own. */
#define HOST_DESCRIPTORS_ALL \
    (2 * KVW_CLIENTS_MAX + 4 * KVW_CACHES_MAX + KVW_ALL_ATTACHMENTS_MAX + 64)

/** Raise the limit of descriptors to what is allowed. @return it; 0 = not known. */
uint32_t host_raise_descriptor_limit(void);

/** Let the table of descriptors have room for `n` now: in a process with threads the kernel
 *  waits for some ten milliseconds whenever it grows. */
void host_make_descriptor_room(uint32_t n);

/** The limit of descriptors now. */
uint64_t host_descriptor_limit(void);

/** The number in a file. @return false when there is none. */
bool host_number(const char *path, uint64_t *number);

/**
 * Whether to make a call again that failed with `error`: after a signal, and when the
 * kernel is short of memory, for which this waits a moment; for a second in all.
 */
bool host_may_retry(int error, uint32_t *n_tries);

/** Read a small file, zero-terminated. @return bytes read or -errno. */
KVW_NODISCARD int host_read_file(const char *path, char *text, size_t text_bytes);

/** Write a small file at once. @return 0 or -errno. */
KVW_NODISCARD int host_write_file(const char *path, const char *text);

#endif
