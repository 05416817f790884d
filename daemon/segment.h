/* SPDX-License-Identifier: Apache-2.0 */
/* A sealed memfd: created, allocated by the ring, sealed, mapped, adopted. */
#ifndef KVW_DAEMON_SEGMENT_H
#define KVW_DAEMON_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/check.h"
#include "proto/geometry.h"

struct segment {
    int fd; /* -1 = none */
    uint64_t bytes;
    void *base; /* NULL = not mapped */
};

#define SEGMENT_NONE \
    (struct segment) \
    {                \
        .fd = -1     \
    }

/** A memfd of `bytes` bytes, nothing allocated yet; of 2 MiB pages if `is_huge`.
 * @return 0 or -errno. */
KVW_NODISCARD int segment_create(struct segment *segment, const char *name,
                                 uint64_t bytes, uint32_t mode, bool is_huge);

/** The pages of a segment for which `asked` were asked (enum kvw_geometry_pages). */
uint8_t segment_pages(const struct segment *segment, uint8_t asked);

/** Forbid resizing and further seals: before any descriptor leaves. @return 0 or
 * -errno. */
KVW_NODISCARD int segment_seal(const struct segment *segment);

/** Map it writable. @return 0 or -errno. */
KVW_NODISCARD int segment_map(struct segment *segment);

/**
 * Take over a descriptor that is said to be a segment of `bytes` bytes.
 *
 * @return 0, with the descriptor owned; -EINVAL with `refusal` (no memfd, another size,
 * not sealed), another -errno (it cannot be looked at now), and the descriptor is still
 * the caller's.
 */
KVW_NODISCARD int segment_adopt(struct segment *segment, int fd, uint64_t bytes,
                                const char *what, struct kvw_refusal *refusal);

/** A descriptor of the same memfd that can never be written. @return it or -errno. */
KVW_NODISCARD int segment_reopen_readonly(const struct segment *segment);

/** True if both are the same memfd. */
bool segment_is_same(const struct segment *a, const struct segment *b);

/** A memfd with these bytes that nobody can ever change. @return descriptor or -errno.
 */
KVW_NODISCARD int segment_freeze(const char *name, const void *bytes, uint64_t n_bytes);

/** Write down a time (CLOCK_REALTIME) beside the bytes of a memfd, a frozen one, too. */
void segment_stamp(int fd, uint64_t wall_ns);

/** The time of the last segment_stamp() or write. @return false: it cannot be told. */
KVW_NODISCARD bool segment_stamped(int fd, uint64_t *wall_ns);

/** Read a frozen memfd of exactly `n_bytes`. @return 0; -EINVAL (it is none); another
 * -errno: it cannot be read now. */
KVW_NODISCARD int segment_thaw(int fd, void *bytes, uint64_t n_bytes);

#endif
