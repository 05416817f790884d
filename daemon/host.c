/* SPDX-License-Identifier: Apache-2.0 */
/* Environment, clocks and randomness enter the daemon here and nowhere else. */
#include "daemon/host.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/align.h"
#include "proto/base/cleanup.h"

#define SHORT_MS 10
#define SHORT_TRIES 100u
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
    ssize_t n_bytes;
    do
        n_bytes = read(fd, text, text_bytes - 1);
    while (n_bytes < 0 && errno == EINTR);
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

bool host_number(const char *path, uint64_t *number)
{
    char text[64];

    return host_read_file(path, text, sizeof text) > 0 &&
           sscanf(text, "%" SCNu64, number) == 1;
}

bool host_may_retry(int error, uint32_t *n_tries)
{
    if (error == EINTR)
        return true;
    if ((error != ENOMEM && error != ENOBUFS && error != ETOOMANYREFS) ||
        ++*n_tries == SHORT_TRIES)
        return false;
    (void)poll(NULL, 0, SHORT_MS);
    return true;
}

uint64_t host_mappings_max(void)
{
    uint64_t n_mappings;

    return host_number("/proc/sys/vm/max_map_count", &n_mappings) ? n_mappings
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

uint64_t host_descriptor_limit(void)
{
    struct rlimit limit = {0};

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
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
