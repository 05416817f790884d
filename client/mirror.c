/* SPDX-License-Identifier: Apache-2.0 */
/* See mirror.h. A head's part of the mirror: [lead, sink, ring][ring][keep extent]. */
#include "client/mirror.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "client/client.h"
#include "client/outside.h"
#include "proto/base/align.h"

#define MAPPINGS_PER_HEAD 3u
#define MAPPINGS_LEFT 1024u /* for the rest of the program */

/* Pages of one head, as they lie in the data segment. */
struct head_pages {
    uint64_t offset;     /* of the head's first page */
    uint64_t ring;       /* from there to the ring */
    uint64_t ring_bytes; /* of one ring */
    uint64_t n_bytes;    /* of all */
};

static struct head_pages pages_of(const struct kvw_cache *cache, uint32_t g,
                                  uint32_t in_group, uint32_t p, uint32_t lane,
                                  uint32_t head)
{
    const struct kvw_geometry_group *group = &cache->geometry.group[g];
    const struct kvw_layout_plane *plane = &cache->layout.group[g].plane[p];
    const uint64_t slot_0 =
        layout_row_offset(&cache->layout, g, in_group, p, lane, head, 0);
    const uint64_t sink_bytes = group->sink_rows * plane->row_bytes;
    struct head_pages pages = {
        .offset = (slot_0 + sink_bytes) / KVW_PAGE * KVW_PAGE -
                  align_up(sink_bytes, KVW_PAGE),
        .ring = align_up(sink_bytes, KVW_PAGE),
        .ring_bytes = cache->layout.group[g].ring_rows * plane->row_bytes,
        .n_bytes = plane->head_bytes,
    };
    return pages;
}

static uint64_t count_heads(const struct kvw_cache *cache, uint32_t g,
                            struct kvw_interval layers, struct kvw_interval lanes)
{
    return (uint64_t)(layers.end - layers.begin) * (lanes.end - lanes.begin) *
           (cache->heads[g].end - cache->heads[g].begin);
}

static void held_by(const struct kvw_cache *cache, uint32_t g, struct mirror *mirror)
{
    const struct kvw_geometry_group *group = &cache->geometry.group[g];

    if (cache->rank == KVW_READER) {
        mirror->layers = (struct kvw_interval){0, group->n_layers};
        mirror->lanes = (struct kvw_interval){0, cache->geometry.n_lanes};
        return;
    }
    struct kvw_interval layers = partition_layers(&cache->geometry, g, cache->rank);
    mirror->layers = (struct kvw_interval){layers.begin - group->layer_first,
                                           layers.end - group->layer_first};
    mirror->lanes = cache->held_lanes;
}

/* Offsets within a layer of the mirror, and the bytes of all of it. */
static void place_mirror(const struct kvw_cache *cache, uint32_t g,
                         struct mirror *mirror)
{
    const struct kvw_geometry_group *group = &cache->geometry.group[g];
    const struct kvw_interval one = {0, 1};
    const uint64_t n_heads = count_heads(cache, g, one, mirror->lanes);

    mirror->layer_bytes = 0;
    for (uint32_t p = 0; p < group->n_planes; p++) {
        const struct head_pages pages = pages_of(cache, g, 0, p, 0, 0);
        mirror->plane_offset[p] =
            mirror->layer_bytes + pages.ring -
            group->sink_rows * cache->layout.group[g].plane[p].row_bytes;
        mirror->head_bytes[p] = pages.n_bytes + pages.ring_bytes;
        mirror->layer_bytes += n_heads * mirror->head_bytes[p];
    }
    mirror->n_bytes = mirror->layer_bytes * (mirror->layers.end - mirror->layers.begin);
}

static int map_at(char *at, uint64_t n_bytes, int fd, uint64_t offset)
{
    if (n_bytes == 0)
        return 0;
    void *mapped =
        mmap(at, n_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, (off_t)offset);
    return mapped == MAP_FAILED ? -errno : 0;
}

static int map_head(char *at, int fd, const struct head_pages *pages)
{
    const uint64_t ring_end = pages->ring + pages->ring_bytes;

    int error = map_at(at, ring_end, fd, pages->offset);
    if (error == 0)
        error =
            map_at(at + ring_end, pages->ring_bytes, fd, pages->offset + pages->ring);
    if (error == 0)
        error = map_at(at + ring_end + pages->ring_bytes, pages->n_bytes - ring_end, fd,
                       pages->offset + ring_end);
    return error;
}

static int map_layer(struct kvw_cache *cache, uint32_t g, uint32_t in_group, int fd)
{
    const struct mirror *mirror = &cache->mirror[g];
    char *at = mirror->base + (in_group - mirror->layers.begin) * mirror->layer_bytes;

    for (uint32_t p = 0; p < cache->geometry.group[g].n_planes; p++) {
        for (uint32_t lane = mirror->lanes.begin; lane < mirror->lanes.end; lane++) {
            for (uint32_t h = cache->heads[g].begin; h < cache->heads[g].end; h++) {
                const struct head_pages pages =
                    pages_of(cache, g, in_group, p, lane, h);
                int error = map_head(at, fd, &pages);
                if (error != 0)
                    return error;
                at += mirror->head_bytes[p];
            }
        }
    }
    return 0;
}

static int map_group(struct kvw_cache *cache, uint32_t g, int fd)
{
    struct mirror *mirror = &cache->mirror[g];

    held_by(cache, g, mirror);
    place_mirror(cache, g, mirror);
    if (mirror->n_bytes == 0)
        return 0;
    void *reserved = mmap(NULL, mirror->n_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return -errno;
    mirror->base = reserved;
    for (uint32_t l = mirror->layers.begin; l < mirror->layers.end; l++) {
        int error = map_layer(cache, g, l, fd);
        if (error != 0)
            return error;
    }
    if (madvise(mirror->base, mirror->n_bytes, MADV_DONTFORK) < 0 ||
        madvise(mirror->base, mirror->n_bytes, MADV_DONTDUMP) < 0)
        return -errno;
    return 0;
}

static uint64_t count_mappings(struct kvw_cache *cache)
{
    uint64_t n_mappings = 0;
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        struct mirror held = {0};
        if (!cache->geometry.group[g].is_contiguous)
            continue;
        held_by(cache, g, &held);
        n_mappings += count_heads(cache, g, held.layers, held.lanes) *
                      cache->geometry.group[g].n_planes * MAPPINGS_PER_HEAD;
    }
    return n_mappings;
}

int mirror_map(struct kvw_cache *cache, int data_fd)
{
    const uint64_t need = count_mappings(cache);
    const uint64_t have = need == 0 ? 0 : outside_mappings_max();

    if (need > 0 && need + MAPPINGS_LEFT > have)
        return fail(-ENOMEM,
                    "attach '%s': its contiguous groups need %" PRIu64
                    " mappings and %u for the rest, vm.max_map_count is %" PRIu64
                    ": raise it (sysctl vm.max_map_count=N), or split over more ranks",
                    cache->name, need, MAPPINGS_LEFT, have);
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        if (!cache->geometry.group[g].is_contiguous)
            continue;
        int error = map_group(cache, g, data_fd);
        if (error != 0) {
            mirror_unmap(cache);
            return fail(error, "attach '%s': mapping group '%s' twice in a row: %s",
                        cache->name, cache->geometry.group[g].name, strerror(-error));
        }
    }
    return 0;
}

void mirror_unmap(struct kvw_cache *cache)
{
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        if (cache->mirror[g].base != NULL)
            (void)munmap(cache->mirror[g].base, cache->mirror[g].n_bytes);
        cache->mirror[g].base = NULL;
    }
}

int mirror_planes(const struct kvw_cache *cache, uint32_t layer, uint32_t lane,
                  struct kvw_interval heads,
                  struct kvw_plane planes[KVW_SPEC_PLANES_MAX])
{
    const struct layer_place *place = &cache->layers[layer];
    const struct mirror *mirror = &cache->mirror[place->group];
    const struct kvw_geometry_group *group = &cache->geometry.group[place->group];
    const struct kvw_interval mapped = cache->heads[place->group];

    if (mirror->base == NULL || place->in_group < mirror->layers.begin ||
        place->in_group >= mirror->layers.end || lane < mirror->lanes.begin ||
        lane >= mirror->lanes.end || heads.begin < mapped.begin ||
        heads.end > mapped.end)
        return 0;
    const uint64_t head =
        (uint64_t)(lane - mirror->lanes.begin) * (mapped.end - mapped.begin) +
        (heads.begin - mapped.begin);
    for (uint32_t p = 0; p < group->n_planes; p++)
        planes[p] = (struct kvw_plane){
            .base = mirror->base +
                    (place->in_group - mirror->layers.begin) * mirror->layer_bytes +
                    mirror->plane_offset[p] + head * mirror->head_bytes[p],
            .row_bytes = cache->layout.group[place->group].plane[p].row_bytes,
            .head_bytes = mirror->head_bytes[p],
            .elems = group->plane[p].elems,
            .type = group->plane[p].type,
        };
    return 1;
}
