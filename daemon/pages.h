/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of a data segment, a slice at a time: made, looked at, moved. Each call maps the
 * slice and unmaps it again, and may take some milliseconds: the crew's threads make
 * them, not the loop.
 *
 * Binding means "preferred": to overfill a strictly bound node is death by the OOM
 * killer. So what lies where is asked of the kernel afterwards, page by page.
 */
#ifndef KVW_DAEMON_PAGES_H
#define KVW_DAEMON_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/check.h"
#include "proto/limits.h"

#define PAGES_NO_NODE UINT32_MAX
#define PAGES_SLICE_BYTES (4u << 20) /* the most of one call */

enum pages_work {
    PAGES_FILL =
        0, /* bind, allocate; what lies elsewhere is moved, if that is allowed */
    PAGES_MOVE = 1,  /* bind, move what lies elsewhere */
    PAGES_COUNT = 2, /* only look */
    PAGES_BIND = 3,  /* only bind: for a plan that outlives a move cut short */
};

struct pages_slice {
    int fd;
    uint64_t offset; /* of a page */
    uint64_t bytes;
    uint32_t node; /* number of the node; PAGES_NO_NODE: wherever it falls */
    uint8_t kind;  /* enum kvw_geometry_pages: what the memfd has, or should get */
    bool can_bind; /* mbind */
    bool can_ask;  /* move_pages to look */
    bool can_move; /* move_pages of pages that others have mapped */
};

/* Pages by node, in the order in which nodes are seen. */
struct pages_nodes {
    uint32_t n;
    uint32_t number[KVW_NODES_MAX];
    uint64_t n_pages[KVW_NODES_MAX];
};

/* Pages are counted as small ones, whatever they are. */
struct pages_tally {
    uint64_t n_pages;
    uint64_t n_misplaced;
    uint64_t n_unknown; /* the kernel does not say */
    uint64_t n_moved;
    uint64_t huge_bytes;
    struct pages_nodes wanted;
    struct pages_nodes found;
};

/** Do one slice. Adds to `tally`. @return 0 or -errno. */
KVW_NODISCARD int pages_do(enum pages_work work, const struct pages_slice *slice,
                           struct pages_tally *tally);

/** Add one tally to another. */
void pages_add(struct pages_tally *sum, const struct pages_tally *more);

/* What this process may do. */
struct pages_rights {
    int bind; /* 0 or -errno of the attempt */
    int ask;
    int move;
};

/** Try it with memory of its own; `nodes` are numbers. */
void pages_try(const uint32_t *nodes, uint32_t n_nodes, struct pages_rights *rights);

/** The node that the memfd's own policy prefers at an offset, or where its page lies; for
 * a daemon that adopts it. @return its number, or PAGES_NO_NODE. */
uint32_t pages_find(int fd, uint64_t offset, uint64_t page_bytes);

/** True if the kernel makes huge pages of shared memory when it is asked to. */
bool pages_can_collapse(void);

#endif
