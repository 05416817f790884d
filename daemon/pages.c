/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel keeps the policy of a range in the memfd itself (not for pages of the pool:
 * there it holds for the mapping that allocates), so that pages which leave for swap come
 * back to their node, and the next daemon can read the plan from it.
 *
 * A huge page is made by allocating small ones on the node and collapsing them: a
 * collapse of nothing would lie anywhere.
 */
#include "daemon/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/align.h"
#include "proto/geometry.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define MASK_BITS 1024u
#define MASK_WORDS (MASK_BITS / (8 * sizeof(unsigned long)))
#define MOVE_TRIES 8u
#define RETRIES_MAX 100u
#define SLICE_PAGES (PAGES_SLICE_BYTES / KVW_PAGE)
#define SMALL_OF_HUGE (KVW_HUGE_PAGE / KVW_PAGE)

/* --------------------------------------------------------------- calls ---------- */

static int bind_area(void *at, uint64_t bytes, uint32_t node)
{
    unsigned long mask[MASK_WORDS] = {0};
    const uint32_t bits = 8 * sizeof mask[0];

    if (node >= MASK_BITS)
        return -EINVAL;
    mask[node / bits] = 1ul << node % bits;
    return syscall(SYS_mbind, at, bytes, MPOL_PREFERRED, mask, MASK_BITS + 1, 0) < 0
               ? -errno
               : 0;
}

/* move_pages(2); nodes NULL: only look. */
static int move_pages_of(uint64_t n, void **page, const int *node, int *status)
{
    return syscall(SYS_move_pages, 0, n, page, node, status,
                   node == NULL ? 0 : MPOL_MF_MOVE_ALL) < 0
               ? -errno
               : 0;
}

/* madvise(2), again after a signal and while the kernel is busy. */
static int advise(void *at, uint64_t bytes, int advice)
{
    for (uint32_t tries = 0;; tries++) {
        if (madvise(at, bytes, advice) == 0)
            return 0;
        if ((errno != EINTR && errno != EAGAIN) || tries == RETRIES_MAX)
            return -errno;
    }
}

/* --------------------------------------------------------------- mapping ---------- */

struct mapping {
    void *reserved;
    uint64_t reserved_bytes;
    char *base; /* begins as the offset does within a huge page */
};

static int map_slice(const struct pages_slice *slice, struct mapping *mapping)
{
    mapping->reserved_bytes = slice->bytes + KVW_HUGE_PAGE;
    mapping->reserved = mmap(NULL, mapping->reserved_bytes, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping->reserved == MAP_FAILED)
        return -errno;
    const uint64_t past = (uint64_t)(uintptr_t)mapping->reserved % KVW_HUGE_PAGE;
    const uint64_t wanted = slice->offset % KVW_HUGE_PAGE;
    mapping->base =
        (char *)mapping->reserved + (wanted + KVW_HUGE_PAGE - past) % KVW_HUGE_PAGE;
    if (mmap(mapping->base, slice->bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, slice->fd, (off_t)slice->offset) == MAP_FAILED) {
        int error = -errno;
        (void)munmap(mapping->reserved, mapping->reserved_bytes);
        return error;
    }
    return 0;
}

/* Whole huge pages within a slice: none, if begin is not before end. */
static void huge_within(const struct pages_slice *slice, uint64_t *begin, uint64_t *end)
{
    *begin = align_up(slice->offset, KVW_HUGE_PAGE) - slice->offset;
    *end = (slice->offset + slice->bytes) / KVW_HUGE_PAGE * KVW_HUGE_PAGE;
    *end = *end > slice->offset ? *end - slice->offset : 0;
}

/* --------------------------------------------------------------- looking ---------- */

static void note_node(struct pages_nodes *nodes, uint32_t number, uint64_t n_pages)
{
    uint32_t i = 0;

    while (i < nodes->n && nodes->number[i] != number)
        i++;
    if (i == KVW_NODES_MAX)
        return;
    if (i == nodes->n) {
        nodes->n++;
        nodes->number[i] = number;
        nodes->n_pages[i] = 0;
    }
    nodes->n_pages[i] += n_pages;
}

static void add_nodes(struct pages_nodes *sum, const struct pages_nodes *more)
{
    for (uint32_t i = 0; i < more->n; i++)
        note_node(sum, more->number[i], more->n_pages[i]);
}

void pages_add(struct pages_tally *sum, const struct pages_tally *more)
{
    sum->n_pages += more->n_pages;
    sum->n_misplaced += more->n_misplaced;
    sum->n_unknown += more->n_unknown;
    sum->n_moved += more->n_moved;
    sum->huge_bytes += more->huge_bytes;
    add_nodes(&sum->wanted, &more->wanted);
    add_nodes(&sum->found, &more->found);
}

/* Pages of a slice and where they lie; those that lie elsewhere, first. */
struct looked {
    uint64_t step; /* bytes of a page */
    uint64_t n;
    uint64_t n_elsewhere;
    void *page[SLICE_PAGES];
    int node[SLICE_PAGES]; /* where they should be, for move_pages */
    int status[SLICE_PAGES];
};

static int look(const struct pages_slice *slice, char *base, struct looked *looked)
{
    looked->step = slice->kind == KVW_GEOMETRY_PAGES_2M ? KVW_HUGE_PAGE : KVW_PAGE;
    looked->n = slice->bytes / looked->step;
    for (uint64_t i = 0; i < looked->n; i++)
        looked->page[i] = base + i * looked->step;
    int error = move_pages_of(looked->n, looked->page, NULL, looked->status);
    looked->n_elsewhere = 0;
    for (uint64_t i = 0; i < looked->n && error == 0; i++)
        looked->n_elsewhere += looked->status[i] >= 0 && slice->node != PAGES_NO_NODE &&
                               (uint32_t)looked->status[i] != slice->node;
    return error;
}

/* Move those that lie elsewhere. A page that somebody holds for a moment (one who looks at
 * it as we do, and lost its CPU) stays: it is tried again, a little later each time. */
static void bring(const struct pages_slice *slice, char *base, struct looked *looked,
                  struct pages_tally *tally)
{
    const uint64_t before = looked->n_elsewhere;

    for (uint32_t tries = 0; tries < MOVE_TRIES && looked->n_elsewhere > 0; tries++) {
        const struct timespec pause = {.tv_nsec = tries * 500000l};
        uint64_t n = 0;
        if (tries > 0)
            (void)nanosleep(&pause, NULL);
        for (uint64_t i = 0; i < looked->n; i++) {
            if (looked->status[i] < 0 || (uint32_t)looked->status[i] == slice->node)
                continue;
            looked->page[n] = base + i * looked->step;
            looked->node[n++] = (int)slice->node;
        }
        (void)move_pages_of(n, looked->page, looked->node, looked->status);
        if (look(slice, base, looked) != 0)
            break;
    }
    tally->n_moved +=
        (before - min_u64(before, looked->n_elsewhere)) * (looked->step / KVW_PAGE);
}

static void settle(const struct pages_slice *slice, char *base, bool is_moving,
                   struct pages_tally *tally)
{
    struct looked looked;

    tally->n_pages += slice->bytes / KVW_PAGE;
    if (slice->node != PAGES_NO_NODE)
        note_node(&tally->wanted, slice->node, slice->bytes / KVW_PAGE);
    if (!slice->can_ask || look(slice, base, &looked) != 0) {
        tally->n_unknown += slice->bytes / KVW_PAGE;
        return;
    }
    if (is_moving && slice->can_move && slice->node != PAGES_NO_NODE)
        bring(slice, base, &looked, tally);
    const uint64_t small = looked.step / KVW_PAGE;
    tally->n_misplaced += looked.n_elsewhere * small;
    for (uint64_t i = 0; i < looked.n; i++) {
        if (looked.status[i] >= 0)
            note_node(&tally->found, (uint32_t)looked.status[i], small);
        else
            tally->n_unknown += small;
    }
}

/* --------------------------------------------------------------- making ---------- */

/* Small pages, but for whole huge ones of a cache that wants them: a fault in a huge page
 * that reaches beyond the slice would take from its neighbour. */
static void advise_kind(const struct pages_slice *slice, char *base)
{
    uint64_t begin;
    uint64_t end;

    if (slice->kind == KVW_GEOMETRY_PAGES_2M)
        return;
    (void)advise(base, slice->bytes, MADV_NOHUGEPAGE);
    huge_within(slice, &begin, &end);
    if (slice->kind == KVW_GEOMETRY_PAGES_THP && begin < end)
        (void)advise(base + begin, end - begin, MADV_HUGEPAGE);
}

static void collapse(const struct pages_slice *slice, char *base,
                     struct pages_tally *tally)
{
    uint64_t begin;
    uint64_t end;

    huge_within(slice, &begin, &end);
    for (; begin < end; begin += KVW_HUGE_PAGE) {
        if (advise(base + begin, KVW_HUGE_PAGE, MADV_COLLAPSE) == 0)
            tally->huge_bytes += KVW_HUGE_PAGE;
    }
}

static int fill(const struct pages_slice *slice, char *base, struct pages_tally *tally)
{
    advise_kind(slice, base);
    int error = advise(base, slice->bytes, MADV_POPULATE_WRITE);
    if (error == -EINVAL) /* before Linux 5.14 */
        error = fallocate(slice->fd, 0, (off_t)slice->offset, (off_t)slice->bytes) < 0
                    ? -errno
                    : 0;
    if (error != 0)
        return error == -EFAULT || error == -ENOSPC ? -ENOMEM : error;
    if (slice->kind == KVW_GEOMETRY_PAGES_THP)
        collapse(slice, base, tally);
    else if (slice->kind == KVW_GEOMETRY_PAGES_2M)
        tally->huge_bytes += slice->bytes;
    return 0;
}

int pages_do(enum pages_work work, const struct pages_slice *slice,
             struct pages_tally *tally)
{
    struct mapping mapping = {0};

    int error = map_slice(slice, &mapping);
    if (error != 0)
        return error;
    if (work != PAGES_COUNT && slice->can_bind && slice->node != PAGES_NO_NODE)
        error = bind_area(mapping.base, slice->bytes, slice->node);
    if (work == PAGES_BIND) {
        (void)munmap(mapping.reserved, mapping.reserved_bytes);
        return error;
    }
    if (error == 0 && work == PAGES_FILL)
        error = fill(slice, mapping.base, tally);
    else if (error == 0)
        error = advise(mapping.base, slice->bytes, MADV_POPULATE_READ);
    if (error == 0)
        settle(slice, mapping.base, work != PAGES_COUNT, tally);
    (void)munmap(mapping.reserved, mapping.reserved_bytes);
    return error;
}

/* --------------------------------------------------------------- trying ---------- */

void pages_try(const uint32_t *nodes, uint32_t n_nodes, struct pages_rights *rights)
{
    void *page = mmap(NULL, KVW_PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int status = 0;

    *rights = (struct pages_rights){-ENOMEM, -ENOMEM, -ENOMEM};
    if (page == MAP_FAILED)
        return;
    rights->bind = 0;
    for (uint32_t i = 0; i < n_nodes && rights->bind == 0; i++)
        rights->bind = bind_area(page, KVW_PAGE, nodes[i]);
    memset(page, 1, KVW_PAGE);
    rights->ask = move_pages_of(1, &page, NULL, &status);
    const int node = status >= 0 ? status : 0;
    rights->move = move_pages_of(1, &page, &node, &status);
    (void)munmap(page, KVW_PAGE);
}

bool pages_can_collapse(void)
{
    struct pages_slice slice = {
        .bytes = KVW_HUGE_PAGE, .node = PAGES_NO_NODE, .kind = KVW_GEOMETRY_PAGES_THP};
    struct pages_tally tally = {0};

    slice.fd = memfd_create("kvwheel:check", MFD_CLOEXEC);
    if (slice.fd < 0)
        return false;
    int error = ftruncate(slice.fd, KVW_HUGE_PAGE) < 0
                    ? -errno
                    : pages_do(PAGES_FILL, &slice, &tally);
    close(slice.fd);
    return error == 0 && tally.huge_bytes > 0;
}

uint32_t pages_find(int fd, uint64_t offset, uint64_t page_bytes)
{
    unsigned long mask[MASK_WORDS] = {0};
    const uint32_t bits = 8 * sizeof mask[0];
    int mode = 0;
    int status = -1;
    uint32_t found = PAGES_NO_NODE;

    offset -= offset % page_bytes;
    void *page = mmap(NULL, page_bytes, PROT_READ, MAP_SHARED, fd, (off_t)offset);
    if (page == MAP_FAILED)
        return PAGES_NO_NODE;
    if (syscall(SYS_get_mempolicy, &mode, mask, MASK_BITS, page, MPOL_F_ADDR) == 0 &&
        mode == MPOL_PREFERRED) {
        for (uint32_t node = 0; node < MASK_BITS && found == PAGES_NO_NODE; node++) {
            if ((mask[node / bits] >> node % bits & 1) != 0)
                found = node;
        }
    }
    if (found == PAGES_NO_NODE && advise(page, page_bytes, MADV_POPULATE_READ) == 0 &&
        move_pages_of(1, &page, NULL, &status) == 0 && status >= 0)
        found = (uint32_t)status;
    (void)munmap(page, page_bytes);
    return found;
}
