/* SPDX-License-Identifier: Apache-2.0 */
/* Environment, clocks and randomness enter the daemon here and nowhere else. */
#include "daemon/host.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/align.h"
#include "proto/base/cleanup.h"

#define PATH_BYTES 512
#define FILE_BYTES 8192
#define MAPPINGS_DEFAULT 65530u /* linux/mm.h */

static uint64_t now_of(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

uint64_t host_now_ns(void)
{
    return now_of(CLOCK_MONOTONIC);
}

uint64_t host_wall_ns(void)
{
    return now_of(CLOCK_REALTIME);
}

void host_random(void *bytes, size_t n_bytes)
{
    /* Up to 256 bytes are never interrupted once the pool is ready, getrandom(2). */
    KVW_CHECK(n_bytes <= 256);
    ssize_t n_got;
    do
        n_got = getrandom(bytes, n_bytes, 0);
    while (n_got < 0 && errno == EINTR);
    KVW_CHECK(n_got == (ssize_t)n_bytes);
}

const char *host_environment(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != 0 ? value : NULL;
}

int host_read_file(const char *path, char *text, size_t text_bytes)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    ssize_t n_bytes = read(fd, text, text_bytes - 1);
    if (n_bytes < 0)
        return -errno;
    text[n_bytes] = 0;
    return (int)n_bytes;
}

int host_write_file(const char *path, const char *text)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

/* The number after `key` in a text of "key number" lines. */
static bool number_after(const char *text, const char *key, uint64_t *number)
{
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, strlen(key)) == 0)
            return sscanf(line + strlen(key), "%" SCNu64, number) == 1;
    }
    return false;
}

static bool number_in(const char *path, uint64_t *number)
{
    char text[64];

    return host_read_file(path, text, sizeof text) > 0 &&
           sscanf(text, "%" SCNu64, number) == 1;
}

/* The two hierarchies differ in names only. */
struct cgroup_files {
    const char *root;
    const char *limit;
    const char *usage;
    const char *reclaimable; /* key in memory.stat */
};

static const struct cgroup_files cgroup_v1 = {
    "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
    "total_inactive_file "};
static const struct cgroup_files cgroup_v2 = {"/sys/fs/cgroup", "memory.max",
                                              "memory.current", "inactive_file "};

/* Narrow total and available by one group's limit; "max" is no number, so no limit. */
static void cgroup_apply(const struct cgroup_files *files, const char *group,
                         uint64_t *total, uint64_t *available)
{
    char path[PATH_BYTES];
    char text[FILE_BYTES];
    uint64_t limit;
    uint64_t usage;
    uint64_t reclaimable = 0;

    (void)snprintf(path, sizeof path, "%s%s/%s", files->root, group, files->limit);
    if (!number_in(path, &limit))
        return;
    *total = min_u64(*total, limit);
    (void)snprintf(path, sizeof path, "%s%s/%s", files->root, group, files->usage);
    if (!number_in(path, &usage))
        return;
    (void)snprintf(path, sizeof path, "%s%s/memory.stat", files->root, group);
    if (host_read_file(path, text, sizeof text) > 0)
        (void)number_after(text, files->reclaimable, &reclaimable);
    usage -= min_u64(usage, reclaimable);
    *available = min_u64(*available, limit - min_u64(limit, usage));
}

/* A limit anywhere above a group binds it too. In a container the path of /proc may lie
 * outside of what is mounted: the mount's root is then the group. */
static void cgroup_walk(const struct cgroup_files *files, char *group, uint64_t *total,
                        uint64_t *available)
{
    for (;;) {
        cgroup_apply(files, group, total, available);
        char *slash = strrchr(group, '/');
        if (slash == NULL)
            return;
        *slash = 0;
    }
}

static void cgroup_limits(uint64_t *total, uint64_t *available)
{
    char text[FILE_BYTES];
    char group[PATH_BYTES / 2];

    if (host_read_file("/proc/self/cgroup", text, sizeof text) <= 0)
        return;
    const char *v1 = strstr(text, ":memory:");
    if (v1 != NULL && sscanf(v1, ":memory:%255[^\n]", group) == 1)
        cgroup_walk(&cgroup_v1, group, total, available);
    const char *v2 = strstr(text, "0::");
    if (v2 != NULL && sscanf(v2, "0::%255[^\n]", group) == 1)
        cgroup_walk(&cgroup_v2, group, total, available);
}

static void memory_limits(uint64_t *total, uint64_t *available)
{
    char text[FILE_BYTES];
    uint64_t kib;

    *total = 0;
    *available = 0;
    if (host_read_file("/proc/meminfo", text, sizeof text) <= 0)
        return;
    if (number_after(text, "MemTotal:", &kib))
        *total = kib * 1024;
    if (number_after(text, "MemAvailable:", &kib))
        *available = kib * 1024;
    cgroup_limits(total, available);
}

uint64_t host_memory_total(void)
{
    uint64_t total;
    uint64_t available;

    memory_limits(&total, &available);
    return total;
}

uint64_t host_memory_available(void)
{
    uint64_t total;
    uint64_t available;

    memory_limits(&total, &available);
    return available;
}

uint64_t host_mappings_max(void)
{
    uint64_t n_mappings;

    return number_in("/proc/sys/vm/max_map_count", &n_mappings) ? n_mappings
                                                                : MAPPINGS_DEFAULT;
}

void host_command(uint32_t pid, char *text, size_t text_bytes)
{
    char path[64];

    (void)snprintf(path, sizeof path, "/proc/%u/comm", pid);
    int n_bytes = host_read_file(path, text, text_bytes);
    if (n_bytes <= 0) {
        text[0] = 0;
        return;
    }
    while (n_bytes > 0 && text[n_bytes - 1] == '\n')
        n_bytes--;
    for (int i = 0; i < n_bytes; i++) {
        if (!isprint((unsigned char)text[i]))
            text[i] = '?';
    }
    text[n_bytes] = 0;
}

uint64_t host_start_ticks(uint32_t pid)
{
    char path[64];
    char text[1024];
    uint64_t ticks = 0;

    (void)snprintf(path, sizeof path, "/proc/%u/stat", pid);
    if (host_read_file(path, text, sizeof text) <= 0)
        return 0;
    /* Field 22; the name in parentheses, field 2, may hold anything. */
    const char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL || sscanf(at, "%" SCNu64, &ticks) != 1)
        return 0;
    return ticks;
}

int host_protect_from_oom(void)
{
    return host_write_file("/proc/self/oom_score_adj", "-900");
}

uint32_t host_raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 0;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    return (uint32_t)min_u64(limit.rlim_max, UINT32_MAX);
}

void host_make_descriptor_room(uint32_t n)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int low = open("/dev/null", O_RDONLY | O_CLOEXEC);
    KVW_CLEANUP(kvw_fd_cleanup)
    int high = fcntl(low, F_DUPFD_CLOEXEC, (int)n - 1);

    (void)high; /* where the limit is lower there is nothing to be had */
}
