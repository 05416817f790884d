/* SPDX-License-Identifier: Apache-2.0 */
/* The stamp's members never move: any version must be able to read any other's. */
#include "daemon/stamp.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/segment.h"

#define STAMP_MAGIC 0x706d6174736b7677ull

struct stamp {
    uint64_t magic;
    uint32_t layout_major;
    uint32_t layout_minor;
    uint64_t layout_hash;
    uint32_t meta_bytes; /* of a cache's record */
    uint32_t reserved;
    char version[32];
};

_Static_assert(sizeof(struct stamp) == 64, "stamp: fixed for ever");

int stamp_make(void)
{
    struct stamp stamp = {.magic = STAMP_MAGIC,
                          .layout_major = KVW_LAYOUT_MAJOR,
                          .layout_minor = KVW_LAYOUT_MINOR,
                          .layout_hash = layout_hash(),
                          .meta_bytes = sizeof(struct cache_meta),
                          .version = DAEMON_VERSION};

    return segment_freeze("kvwheel:layout", &stamp, sizeof stamp);
}

int stamp_check(int fd, struct kvw_refusal *refusal)
{
    struct stamp stamp;

    int error = segment_thaw(fd, &stamp, sizeof stamp);
    if (error != 0 && error != -EINVAL)
        return refuse(refusal, error, 0, 0,
                      "who made the caches that are kept cannot be read now: %s",
                      strerrordesc_np(-error));
    if (error != 0 || stamp.magic != STAMP_MAGIC)
        return refuse(refusal, -EPROTO, sizeof stamp, 0,
                      "kvwheeld %s cannot read who made the caches that are kept",
                      DAEMON_VERSION);
    stamp.version[sizeof stamp.version - 1] = 0;
    if (stamp.layout_major == KVW_LAYOUT_MAJOR && stamp.layout_hash == layout_hash() &&
        stamp.meta_bytes == sizeof(struct cache_meta))
        return 0;
    return refuse(refusal, -EPROTO, KVW_LAYOUT_MAJOR, stamp.layout_major,
                  "kvwheeld %s has layout %u.%u, hash %016" PRIx64
                  ", and does not adopt caches of kvwheeld %s with %u.%u, hash "
                  "%016" PRIx64,
                  DAEMON_VERSION, KVW_LAYOUT_MAJOR, KVW_LAYOUT_MINOR, layout_hash(),
                  stamp.version, stamp.layout_major, stamp.layout_minor,
                  stamp.layout_hash);
}

int stamp_words(const char *text)
{
    return segment_freeze("kvwheel:words", text, strlen(text));
}

void stamp_read_words(int fd, char *text, size_t text_bytes)
{
    ssize_t n_bytes = pread(fd, text, text_bytes - 1, 0);

    text[n_bytes > 0 ? n_bytes : 0] = 0;
}
