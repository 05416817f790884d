/* SPDX-License-Identifier: Apache-2.0 */
/* An independent look: mapped here, asked of move_pages(2), compared page by page. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/cache.h"
#include "proto/base/align.h"
#include "proto/placement.h"
#include "tests/numa/guest.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define BATCH 512u
#define STEP_MS 50

/* The kernel's word on each page: node, or a negative errno. */
static int *look(const struct kvw_cache *cache)
{
    const uint64_t n = cache->layout.data_bytes / KVW_PAGE;
    int *status = malloc(n * sizeof *status);
    void *page[BATCH];

    if (status == NULL)
        return NULL;
    (void)madvise(cache->data, cache->layout.data_bytes, MADV_POPULATE_READ);
    for (uint64_t i = 0; i < n; i += BATCH) {
        const uint64_t n_now = min_u64(BATCH, n - i);
        for (uint64_t j = 0; j < n_now; j++) {
            page[j] = cache->data + (i + j) * KVW_PAGE;
            status[i + j] = -EIO;
        }
        (void)syscall(SYS_move_pages, 0, n_now, page, NULL, status + i, 0);
    }
    return status;
}

/* Whether a cache lies on pages of the pool: one node for 2 MiB. */
static uint64_t page_bytes_of(const struct kvw_cache *cache)
{
    struct stat status;

    return fstat(cache->fds[2], &status) == 0 && status.st_blksize >= KVW_HUGE_PAGE
               ? KVW_HUGE_PAGE
               : KVW_PAGE;
}

uint64_t pages_elsewhere(struct kvw_client *client, const char *name,
                         const uint32_t *node)
{
    struct kvw_cache *cache = NULL;
    uint64_t n_elsewhere = 0;

    if (kvw_attach(client, name, KVW_READER, NULL, &cache) < 0) {
        printf("# attach: %s\n", kvw_last_error());
        return UINT64_MAX;
    }
    const uint64_t page_bytes = page_bytes_of(cache);
    int *status = look(cache);
    for (uint64_t at = 0; status != NULL && at < cache->layout.data_bytes;
         at += KVW_PAGE) {
        uint64_t page = at - at % page_bytes;
        uint32_t layer;
        uint32_t rank;
        (void)placement_owner(
            &cache->geometry, &cache->layout,
            min_u64(page + page_bytes / 2, cache->layout.data_bytes - 1), &layer,
            &rank);
        n_elsewhere +=
            status[at / KVW_PAGE] < 0 || (uint32_t)status[at / KVW_PAGE] != node[rank];
    }
    free(status);
    kvw_detach(cache);
    return n_elsewhere;
}

uint64_t pages_by_node(struct kvw_client *client, const char *name,
                       uint64_t n_on[GUEST_NODES_MAX])
{
    struct kvw_cache *cache = NULL;
    uint64_t n = 0;

    memset(n_on, 0, GUEST_NODES_MAX * sizeof *n_on);
    if (kvw_attach(client, name, KVW_READER, NULL, &cache) < 0)
        return 0;
    int *status = look(cache);
    n = status == NULL ? 0 : cache->layout.data_bytes / KVW_PAGE;
    for (uint64_t i = 0; i < n; i++) {
        if (status[i] >= 0 && status[i] < (int)GUEST_NODES_MAX)
            n_on[status[i]]++;
    }
    free(status);
    kvw_detach(cache);
    return n;
}

uint64_t pages_arrive(struct kvw_client *client, const char *name, const uint32_t *node,
                      uint32_t ms)
{
    uint64_t n = pages_elsewhere(client, name, node);

    for (uint32_t waited = 0; n != 0 && waited < ms; waited += STEP_MS) {
        (void)poll(NULL, 0, STEP_MS);
        n = pages_elsewhere(client, name, node);
    }
    return n;
}
