/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the machine and of the cgroups above this process, in both hierarchies. A file
 * that is not there says nothing; one that cannot be read now (no descriptor, no memory) is
 * an error: a limit that was overlooked would be found out by the OOM killer.
 */
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "daemon/host.h"
#include "proto/base/align.h"

#define PATH_BYTES 512
#define FILE_BYTES 8192
#define OVERCOMMIT_NEVER 2 /* vm.overcommit_memory: shared memory counts, too */

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

/* Whether a file that could not be read is simply not there, or not for us. */
static bool is_absent(int error)
{
    return error == -ENOENT || error == -ENOTDIR || error == -EACCES ||
           error == -EPERM || error == -ENODEV || error == -EOPNOTSUPP;
}

/* @return 1 with a number, 0 without one ("max", or no such file), -errno. */
static int number_of(const char *path, uint64_t *number)
{
    char text[64];
    int n_bytes = host_read_file(path, text, sizeof text);

    if (n_bytes < 0)
        return is_absent(n_bytes) ? 0 : n_bytes;
    return sscanf(text, "%" SCNu64, number) == 1;
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

/* Narrow total and available by one group's limit. */
static int cgroup_apply(const struct cgroup_files *files, const char *group,
                        struct host_memory *memory)
{
    char path[PATH_BYTES];
    char limit_path[PATH_BYTES];
    char text[FILE_BYTES];
    uint64_t limit = 0;
    uint64_t usage = 0;
    uint64_t reclaimable = 0;

    (void)snprintf(limit_path, sizeof limit_path, "%s%s/%s", files->root, group,
                   files->limit);
    int found = number_of(limit_path, &limit);
    if (found != 1)
        return found;
    (void)snprintf(path, sizeof path, "%s%s/%s", files->root, group, files->usage);
    found = number_of(path, &usage);
    if (found < 0)
        return found;
    (void)snprintf(path, sizeof path, "%s%s/memory.stat", files->root, group);
    int n_bytes = host_read_file(path, text, sizeof text);
    if (n_bytes < 0 && !is_absent(n_bytes))
        return n_bytes;
    if (n_bytes > 0)
        (void)number_after(text, files->reclaimable, &reclaimable);
    usage -= min_u64(usage, reclaimable);
    memory->total = min_u64(memory->total, limit);
    limit -= min_u64(limit, usage);
    if (limit < memory->available) {
        memory->available = limit;
        memcpy(memory->limit, limit_path, sizeof memory->limit - 1);
    }
    return 0;
}

/* A limit anywhere above a group binds it too. In a container the path of /proc may lie
 * outside of what is mounted: the mount's root is then the group. */
static int cgroup_walk(const struct cgroup_files *files, char *group,
                       struct host_memory *memory)
{
    for (;;) {
        int error = cgroup_apply(files, group, memory);
        char *slash = strrchr(group, '/');
        if (error != 0 || slash == NULL)
            return error;
        *slash = 0;
    }
}

static int cgroup_limits(struct host_memory *memory)
{
    char text[FILE_BYTES];
    char group[PATH_BYTES / 2];
    int error = host_read_file("/proc/self/cgroup", text, sizeof text);

    if (error <= 0)
        return is_absent(error) ? 0 : error;
    error = 0;
    const char *v1 = strstr(text, ":memory:");
    if (v1 != NULL && sscanf(v1, ":memory:%255[^\n]", group) == 1)
        error = cgroup_walk(&cgroup_v1, group, memory);
    const char *v2 = strstr(text, "0::");
    if (error == 0 && v2 != NULL && sscanf(v2, "0::%255[^\n]", group) == 1)
        error = cgroup_walk(&cgroup_v2, group, memory);
    return error;
}

/* Without overcommit the kernel gives no page beyond its limit, free or not. */
static int commit_limit(const char *meminfo, struct host_memory *memory)
{
    uint64_t mode = 0;
    uint64_t limit_kib = 0;
    uint64_t committed_kib = 0;

    int found = number_of("/proc/sys/vm/overcommit_memory", &mode);
    if (found < 0)
        return found;
    if (mode != OVERCOMMIT_NEVER ||
        !number_after(meminfo, "CommitLimit:", &limit_kib) ||
        !number_after(meminfo, "Committed_AS:", &committed_kib))
        return 0;
    uint64_t left = (limit_kib - min_u64(limit_kib, committed_kib)) * 1024;
    if (left < memory->available) {
        memory->available = left;
        (void)snprintf(memory->limit, sizeof memory->limit,
                       "/proc/sys/vm/overcommit_memory");
    }
    return 0;
}

int host_memory(struct host_memory *memory)
{
    char text[FILE_BYTES];
    uint64_t kib;

    *memory = (struct host_memory){0};
    int error = host_read_file("/proc/meminfo", text, sizeof text);
    if (error < 0)
        return error;
    if (number_after(text, "MemTotal:", &kib))
        memory->total = kib * 1024;
    if (number_after(text, "MemAvailable:", &kib))
        memory->available = kib * 1024;
    error = commit_limit(text, memory);
    return error != 0 ? error : cgroup_limits(memory);
}

#define MAY_CHANGE ": the machine's host may give it more memory later, or take some"

/* A driver's folder has a link for each device that it drives. */
static const struct {
    const char *devices;
    const char *warning;
} lenders[] = {
    {"/sys/bus/virtio/drivers/virtio_mem/virtio*", "; virtio-mem" MAY_CHANGE},
    {"/sys/bus/virtio/drivers/virtio_balloon/virtio*", "; virtio-balloon" MAY_CHANGE},
    {"/sys/bus/vmbus/drivers/hv_balloon/*-*", "; hv-balloon" MAY_CHANGE},
    {"/sys/devices/system/xen_memory/xen_memory0", "; xen-balloon" MAY_CHANGE},
};

const char *host_memory_warning(void)
{
    const char *warning = "";

    for (size_t i = 0; i < sizeof lenders / sizeof lenders[0] && *warning == 0; i++) {
        glob_t found = {0};
        if (glob(lenders[i].devices, GLOB_NOSORT, NULL, &found) == 0)
            warning = lenders[i].warning;
        globfree(&found);
    }
    return warning;
}
