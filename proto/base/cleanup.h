/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scope-bound ownership of descriptors, heap and mappings. A function that gives such
 * an object away says so with a take_ call.
 */
#ifndef KVW_BASE_CLEANUP_H
#define KVW_BASE_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>

#define KVW_CLEANUP(function) __attribute__((cleanup(function)))

static inline void kvw_fd_cleanup(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static inline void kvw_free_cleanup(void *pointer)
{
    void **owned = pointer;
    free(*owned);
    *owned = NULL;
}

/* Give a descriptor to the caller's caller; the cleanup then finds nothing. */
static inline int take_fd(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

#define take_pointer(owned)                     \
    __extension__({                             \
        __typeof__(*(owned)) taken_ = *(owned); \
        *(owned) = NULL;                        \
        taken_;                                 \
    })

#endif
