/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seals are SHRINK, GROW and SEAL. Not FUTURE_WRITE: nobody could map the memfd
 * writable again then, and caches outlive their writers.
 */
#include "daemon/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/cleanup.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define SEALS_SIZE (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define SEALS_FROZEN (SEALS_SIZE | F_SEAL_WRITE)
#define NS_PER_S 1000000000ull
#define HUGE_2M 21u /* MFD_HUGE_2MB */
#define HUGE_SHIFT 26u

static int memfd_open(const char *name, bool is_huge)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING |
                           (is_huge ? MFD_HUGETLB | HUGE_2M << HUGE_SHIFT : 0);
    int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create(name, flags);
    return fd < 0 ? -errno : fd;
}

int segment_create(struct segment *segment, const char *name, uint64_t bytes,
                   uint32_t mode, bool is_huge)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = memfd_open(name, is_huge);

    if (fd < 0)
        return fd;
    /* A memfd is born 0777: another user could re-open it through /proc. */
    if (fchmod(fd, mode) < 0)
        return -errno;
    if (ftruncate(fd, (off_t)bytes) < 0)
        return -errno;
    *segment = (struct segment){.fd = take_fd(&fd), .bytes = bytes};
    return 0;
}

uint8_t segment_pages(const struct segment *segment, uint8_t asked)
{
    struct stat status;

    if (asked != KVW_GEOMETRY_PAGES_2M)
        return asked;
    return fstat(segment->fd, &status) == 0 && status.st_blksize >= KVW_HUGE_PAGE
               ? KVW_GEOMETRY_PAGES_2M
               : KVW_GEOMETRY_PAGES_THP;
}

int segment_seal(const struct segment *segment)
{
    return fcntl(segment->fd, F_ADD_SEALS, SEALS_SIZE) < 0 ? -errno : 0;
}

int segment_map(struct segment *segment)
{
    void *base =
        mmap(NULL, segment->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd, 0);

    if (base == MAP_FAILED)
        return -errno;
    (void)madvise(base, segment->bytes, MADV_DONTDUMP);
    (void)madvise(base, segment->bytes, MADV_DONTFORK);
    segment->base = base;
    return 0;
}

int segment_adopt(struct segment *segment, int fd, uint64_t bytes, const char *what,
                  struct kvw_refusal *refusal)
{
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0)
        return refuse(refusal, -EINVAL, 0, 0, "%s segment: is no memfd", what);
    if ((seals & SEALS_SIZE) != SEALS_SIZE ||
        (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0)
        return refuse(refusal, -EINVAL, SEALS_SIZE, (uint64_t)seals,
                      "%s segment: needs seals 0x%x, has 0x%x", what, SEALS_SIZE,
                      (unsigned)seals);
    if (fstat(fd, &status) < 0)
        return refuse(refusal, -errno, 0, 0, "%s segment: cannot be looked at: %s",
                      what, strerrordesc_np(errno));
    if ((uint64_t)status.st_size != bytes)
        return refuse(refusal, -EINVAL, bytes, (uint64_t)status.st_size,
                      "%s segment: needs %llu bytes, has %llu", what,
                      (unsigned long long)bytes, (unsigned long long)status.st_size);
    *segment = (struct segment){.fd = fd, .bytes = bytes};
    return 0;
}

int segment_reopen_readonly(const struct segment *segment)
{
    char path[64];

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", segment->fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

bool segment_is_same(const struct segment *a, const struct segment *b)
{
    struct stat status_a;
    struct stat status_b;

    return fstat(a->fd, &status_a) == 0 && fstat(b->fd, &status_b) == 0 &&
           status_a.st_dev == status_b.st_dev && status_a.st_ino == status_b.st_ino;
}

int segment_freeze(const char *name, const void *bytes, uint64_t n_bytes)
{
    KVW_CLEANUP(kvw_fd_cleanup)
    int fd = memfd_open(name, false);

    if (fd < 0)
        return fd;
    if (fchmod(fd, 0400) < 0)
        return -errno;
    ssize_t n_written = write(fd, bytes, n_bytes);
    if (n_written < 0)
        return -errno;
    if ((uint64_t)n_written != n_bytes)
        return -ENOSPC;
    if (fcntl(fd, F_ADD_SEALS, SEALS_FROZEN) < 0)
        return -errno;
    return take_fd(&fd);
}

void segment_stamp(int fd, uint64_t wall_ns)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                      {.tv_sec = (time_t)(wall_ns / NS_PER_S),
                                       .tv_nsec = (long)(wall_ns % NS_PER_S)}};

    (void)futimens(fd, times); /* without it, the time before is remembered */
}

bool segment_stamped(int fd, uint64_t *wall_ns)
{
    struct stat status;

    if (fstat(fd, &status) < 0)
        return false;
    *wall_ns =
        (uint64_t)status.st_mtim.tv_sec * NS_PER_S + (uint64_t)status.st_mtim.tv_nsec;
    return true;
}

int segment_thaw(int fd, void *bytes, uint64_t n_bytes)
{
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || (seals & SEALS_FROZEN) != SEALS_FROZEN)
        return -EINVAL;
    if (fstat(fd, &status) < 0)
        return -errno;
    if ((uint64_t)status.st_size != n_bytes)
        return -EINVAL;
    ssize_t n_read = pread(fd, bytes, n_bytes, 0);
    if (n_read < 0)
        return -errno;
    return n_read == (ssize_t)n_bytes ? 0 : -EINVAL;
}
