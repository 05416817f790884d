/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attaching: map three segments, check them, take over the rank's boards. Everything
 * that a data-path call needs and that does not change is computed here.
 */
#include "client/cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "client/board.h"
#include "client/client.h"
#include "client/mirror.h"
#include "client/outside.h"
#include "client/owner.h"
#include "client/pin.h"
#include "client/spec.h"
#include "client/step.h"
#include "client/wait.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

/* Everything else comes from the board: nothing is open, what was claimed and led to
 * nothing is dropped. May be interrupted anywhere and repeated (PROTOCOL.md,
 * "Takeover"). */
static int take_over(struct kvw_cache *cache, uint32_t lane_number)
{
    struct kvw_board *board = board_of(cache, cache->rank, lane_number);
    struct lane *lane = &cache->lanes[lane_number - cache->held_lanes.begin];
    struct board_head head;

    lane->ranks = cache->lane_ranks[lane_number];
    lane->record = record_new(cache);
    if (lane->record == NULL)
        return fail(-ENOMEM, "attach '%s': no memory for a record", cache->name);
    int error =
        board_read_record(cache, cache->rank, lane_number, 0, &head, lane->record);
    if (error != 0)
        return fail(error, "attach '%s': the board of rank %u, lane %u was wiped",
                    cache->name, cache->rank, lane_number);
    lane->version = head.version;
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        struct kvw_board_claim *claim = board_claim(cache, board, g);
        store_relaxed(&claim->want, load_relaxed(&claim->hi));
        store_relaxed(&claim->open, 0);
    }
    lane->claim = load_relaxed(&board->claim) + 1;
    store_relaxed(&board->claim, lane->claim);
    return 0;
}

/* Which ranks hold a lane, and a layer: asked rank by rank, once. */
static int place_ranks(struct kvw_cache *cache)
{
    const struct kvw_geometry *geometry = &cache->geometry;

    cache->lane_ranks = calloc(geometry->n_lanes, sizeof *cache->lane_ranks);
    if (cache->lane_ranks == NULL)
        return fail(-ENOMEM, "attach: no memory for %u lanes", geometry->n_lanes);
    for (uint32_t lane = 0; lane < geometry->n_lanes; lane++)
        cache->lane_ranks[lane] = partition_ranks_of_lane(geometry, lane);
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        for (uint32_t g = 0; g < geometry->n_groups; g++) {
            const struct kvw_interval heads = partition_heads(geometry, g, rank);
            const struct kvw_interval layers = partition_layers(geometry, g, rank);
            for (uint32_t layer = layers.begin;
                 layer < layers.end && heads.begin < heads.end; layer++)
                cache->layers[layer].ranks |= 1ull << rank;
        }
    }
    return 0;
}

static int place_layers(struct kvw_cache *cache)
{
    const struct kvw_geometry *geometry = &cache->geometry;

    cache->layers = calloc(geometry->n_layers, sizeof *cache->layers);
    if (cache->layers == NULL)
        return fail(-ENOMEM, "attach: no memory for %u layers", geometry->n_layers);
    int error = place_ranks(cache);
    if (error != 0)
        return error;
    for (uint32_t layer = 0; layer < geometry->n_layers; layer++) {
        struct layer_place *place = &cache->layers[layer];
        place->group = geometry_group_of(geometry, layer);
        place->in_group = layer - geometry->group[place->group].layer_first;
        place->is_held =
            cache->rank != KVW_READER && (place->ranks >> cache->rank & 1) != 0;
    }
    for (uint32_t g = 0; g < geometry->n_groups; g++)
        cache->heads[g] = cache->rank == KVW_READER
                              ? (struct kvw_interval){0, geometry->group[g].n_heads}
                              : partition_heads(geometry, g, cache->rank);
    cache->row_part = UINT32_MAX;
    if (cache->rank != KVW_READER && geometry->partition.row_parts > 1)
        cache->row_part = partition_place(geometry, cache->rank).row_part;
    return 0;
}

static int take_rank(struct kvw_cache *cache)
{
    if (cache->rank == KVW_READER)
        return 0;
    cache->held_lanes = partition_lanes(&cache->geometry, cache->rank);
    uint32_t n_lanes = cache->held_lanes.end - cache->held_lanes.begin;
    cache->lanes = calloc(n_lanes > 0 ? n_lanes : 1, sizeof *cache->lanes);
    if (cache->lanes == NULL)
        return fail(-ENOMEM, "attach: no memory for %u lanes", n_lanes);
    cache->incarnation = load_relaxed(
        &layout_seat(cache->control, &cache->layout, cache->rank)->incarnation);
    for (uint32_t lane = cache->held_lanes.begin; lane < cache->held_lanes.end;
         lane++) {
        int error = take_over(cache, lane);
        if (error != 0)
            return error;
    }
    return 0;
}

/* What comes from the process, the CPU and the environment. */
static void set_defaults(struct kvw_cache *cache)
{
    const struct kvw_attach_options defaults = KVW_ATTACH_OPTIONS_INIT;
    const char *poison = outside_variable("KVWHEEL_POISON");

    cache->pid = (uint32_t)getpid();
    cache->options = defaults;
    cache->crc32c_rows = crc32c_rows_best();
    cache->is_poisoning = poison != NULL && strcmp(poison, "0") != 0;
}

int cache_new(const struct cache_segments *segments, uint32_t rank, uint32_t slot,
              struct kvw_cache **out)
{
    void *control = segments->base[CACHE_CONTROL];
    struct kvw_refusal refusal;

    struct kvw_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL)
        return fail(-ENOMEM, "attach: no memory");
    cache->control = control;
    cache->pins = segments->base[CACHE_PINS];
    cache->data = segments->base[CACHE_DATA];
    cache->rank = rank;
    cache->slot = slot;
    set_defaults(cache);
    for (int i = 0; i < 3; i++)
        cache->fds[i] = -1; /* until all has succeeded they are the caller's */

    int error = layout_control_read(
        control, segments->n_bytes[CACHE_CONTROL], segments->n_bytes[CACHE_PINS],
        segments->n_bytes[CACHE_DATA], &cache->geometry, &cache->layout, &refusal);
    if (error != 0)
        error = fail(error == -EPROTO ? -KVW_ELAYOUT : -KVW_EGONE, "attach: %s",
                     refusal.text);
    if (error == 0 && rank != KVW_READER && rank >= cache->geometry.n_ranks)
        error = fail(-ERANGE, "attach: rank: need less than %u, have %u",
                     cache->geometry.n_ranks, rank);
    if (error == 0) {
        memcpy(cache->name, ((const struct kvw_control_header *)control)->name,
               KVW_NAME_MAX);
        spec_from_geometry(&cache->geometry, cache->name, &cache->spec);
        cache->scratch = record_new(cache);
        cache->peer = record_new(cache);
        if (cache->scratch == NULL || cache->peer == NULL)
            error = fail(-ENOMEM, "attach: no memory for a record");
    }
    if (error == 0)
        error = place_layers(cache);
    if (error == 0)
        error = take_rank(cache);
    if (error != 0) {
        cache_free(cache);
        return error;
    }
    *out = cache;
    return 0;
}

void cache_planes(const struct kvw_cache *cache, uint32_t layer, uint32_t lane,
                  uint32_t head_first, struct kvw_plane planes[KVW_SPEC_PLANES_MAX])
{
    const struct layer_place *place = &cache->layers[layer];
    const struct kvw_geometry_group *group = &cache->geometry.group[place->group];
    const struct kvw_layout_group *placed = &cache->layout.group[place->group];

    for (uint32_t p = 0; p < group->n_planes; p++)
        planes[p] = (struct kvw_plane){
            .base = cache->data + layout_row_offset(&cache->layout, place->group,
                                                    place->in_group, p, lane,
                                                    head_first, 0),
            .row_bytes = placed->plane[p].row_bytes,
            .head_bytes = placed->plane[p].head_bytes,
            .elems = group->plane[p].elems,
            .type = group->plane[p].type,
        };
}

void cache_free(struct kvw_cache *cache)
{
    if (cache == NULL)
        return;
    pin_clear_all(cache);
    uint32_t n_lanes = cache->held_lanes.end - cache->held_lanes.begin;
    for (uint32_t i = 0; i < n_lanes && cache->lanes != NULL; i++) {
        /* A lane without a record was never taken over: its board is not ours to touch.
         */
        if (cache->lanes[i].record != NULL && cache->lanes[i].version != 0)
            step_forget_open(cache, cache->held_lanes.begin + i);
        free(cache->lanes[i].record);
    }
    for (int i = 0; i < 3; i++)
        kvw_fd_cleanup(&cache->fds[i]);
    free(cache->lanes);
    free(cache->layers);
    free(cache->lane_ranks);
    free(cache->scratch);
    free(cache->peer);
    free(cache);
}

/* From a multiple of 2 MiB on, so that a huge page of the segment is one entry in the page
 * table here, too. */
static void *map_aligned(int fd, int protection, uint64_t n_bytes)
{
    if (n_bytes < KVW_HUGE_PAGE)
        return mmap(NULL, n_bytes, protection, MAP_SHARED, fd, 0);
    const uint64_t n_reserved = n_bytes + KVW_HUGE_PAGE;
    char *reserved = mmap(NULL, n_reserved, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return MAP_FAILED;
    const uint64_t lead =
        (KVW_HUGE_PAGE - (uint64_t)(uintptr_t)reserved % KVW_HUGE_PAGE) % KVW_HUGE_PAGE;
    void *mapped =
        mmap(reserved + lead, n_bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    if (mapped == MAP_FAILED) {
        const int error = errno;
        (void)munmap(reserved, n_reserved);
        errno = error;
        return MAP_FAILED;
    }
    if (lead > 0)
        (void)munmap(reserved, lead);
    const uint64_t used = align_up(n_bytes, KVW_PAGE);
    (void)munmap(reserved + lead + used, n_reserved - lead - used);
    return mapped;
}

static int map_segment(int fd, bool is_writable, void **base, uint64_t *n_bytes)
{
    struct stat status;

    if (fstat(fd, &status) < 0)
        return -errno;
    if (status.st_size <= 0)
        return -EINVAL;
    *n_bytes = (uint64_t)status.st_size;
    void *mapped =
        map_aligned(fd, is_writable ? PROT_READ | PROT_WRITE : PROT_READ, *n_bytes);
    if (mapped == MAP_FAILED)
        return -errno;
    *base = mapped;
    /* A child must attach for itself; a core file must not hold the cache. */
    if (madvise(mapped, *n_bytes, MADV_DONTFORK) < 0 ||
        madvise(mapped, *n_bytes, MADV_DONTDUMP) < 0)
        return -errno;
    return 0;
}

static void unmap_segments(struct cache_segments *segments)
{
    for (int i = 0; i < 3; i++) {
        if (segments->base[i] != NULL)
            (void)munmap(segments->base[i], segments->n_bytes[i]);
    }
}

static int map_segments(const int fds[3], bool is_reader,
                        struct cache_segments *segments)
{
    for (int i = 0; i < 3; i++) {
        bool is_writable = !is_reader || i == 1;
        int error =
            map_segment(fds[i], is_writable, &segments->base[i], &segments->n_bytes[i]);
        if (error != 0) {
            unmap_segments(segments);
            return error;
        }
    }
    return 0;
}

static int check_options(const struct kvw_attach_options *options)
{
    if (options->size != sizeof *options)
        return fail(-EINVAL, "attach: options: need size %zu, have %u", sizeof *options,
                    options->size);
    if (options->pin_policy < KVW_PIN_WAIT || options->pin_policy > KVW_PIN_REVOKE)
        return fail(-EINVAL, "attach: options: pin policy: need %d to %d, have %u",
                    KVW_PIN_WAIT, KVW_PIN_REVOKE, options->pin_policy);
    return 0;
}

static void tell_detached(struct kvw_client *client, uint64_t attachment, uint32_t slot,
                          const uint8_t uuid[16])
{
    struct kvw_message request = {.type = KVW_MESSAGE_DETACH,
                                  .detach = {.attachment = attachment,
                                             .slot = slot,
                                             .uuid = uuid,
                                             .uuid_bytes = uuid == NULL ? 0 : 16}};
    struct kvw_message answer;

    /* A failure needs no answer: the daemon learns of our death by the pidfd. One that
     * did not answer in time is not waited for once more, for each cache. */
    if (!client->is_silent)
        (void)!client_call(client, &request, &answer, NULL, 0, NULL, NULL);
}

int kvw_attach(struct kvw_client *client, const char *name, uint32_t rank,
               const struct kvw_attach_options *options, struct kvw_cache **out)
{
    const struct kvw_attach_options defaults = KVW_ATTACH_OPTIONS_INIT;
    struct kvw_message request = {.type = KVW_MESSAGE_ATTACH,
                                  .attach = {.rank = rank, .node = outside_node()}};
    struct kvw_message answer;
    struct cache_segments segments = {0};
    struct kvw_cache *cache = NULL;
    int fds[3] = {-1, -1, -1};

    if (options == NULL)
        options = &defaults;
    int error = check_options(options);
    if (error != 0)
        return error;
    if (!geometry_name_ok(name, KVW_NAME_MAX))
        return fail(-EINVAL, "attach: '%.70s' is no name of a cache", name);
    (void)snprintf(request.attach.name, sizeof request.attach.name, "%s", name);
    error = owner_attach(client, &request, &answer, fds, options->owner_timeout_ns);
    if (error != 0)
        return error;
    error = map_segments(fds, rank == KVW_READER, &segments);
    if (error != 0)
        error = fail(error, "attach '%s': mapping its segments: %s", name,
                     strerror(-error));
    if (error == 0)
        error = cache_new(&segments, rank, answer.attached.slot, &cache);
    if (error == 0)
        error = mirror_map(cache, fds[2]);
    if (error != 0) {
        for (int i = 0; i < 3; i++)
            close(fds[i]);
        cache_free(cache);
        unmap_segments(&segments);
        tell_detached(client, answer.attached.attachment, 0, NULL);
        return error;
    }
    if (rank != KVW_READER)
        wait_enlist();
    cache->client = client;
    cache->cache_id = answer.attached.cache;
    cache->attachment = answer.attached.attachment;
    cache->options = *options;
    memcpy(cache->fds, fds, sizeof cache->fds);
    cache->next = client->caches;
    client->caches = cache;
    *out = cache;
    return 0;
}

void kvw_detach(struct kvw_cache *cache)
{
    if (cache == NULL)
        return;
    struct kvw_client *client = cache->client;
    const uint64_t attachment = cache->attachment;
    const uint32_t slot = cache->slot;
    uint8_t uuid[16];
    struct cache_segments segments = {
        .base = {cache->control, cache->pins, cache->data},
        .n_bytes = {cache->layout.control_bytes, cache->layout.pins_bytes,
                    cache->layout.data_bytes},
    };

    for (struct kvw_cache **link = &client->caches; *link != NULL;
         link = &(*link)->next) {
        if (*link == cache) {
            *link = cache->next;
            break;
        }
    }
    memcpy(uuid,
           ((const struct kvw_control_header *)(const void *)cache->control)->uuid,
           sizeof uuid);
    mirror_unmap(cache);
    cache_free(cache);
    unmap_segments(&segments);
    tell_detached(client, attachment, slot, uuid);
}

const struct kvw_spec *kvw_cache_spec(const struct kvw_cache *cache)
{
    return &cache->spec;
}

uint32_t kvw_cache_rank(const struct kvw_cache *cache)
{
    return cache->rank;
}

int kvw_cache_part(const struct kvw_cache *cache, uint32_t group, uint32_t rank,
                   struct kvw_part *part)
{
    if (group >= cache->geometry.n_groups || rank >= cache->geometry.n_ranks)
        return fail(-ERANGE, "part: group %u of %u, rank %u of %u", group,
                    cache->geometry.n_groups, rank, cache->geometry.n_ranks);
    struct kvw_interval heads = partition_heads(&cache->geometry, group, rank);
    struct kvw_interval layers = partition_layers(&cache->geometry, group, rank);
    struct kvw_interval lanes = partition_lanes(&cache->geometry, rank);
    *part = (struct kvw_part){
        .head_first = heads.begin,
        .n_heads = heads.end - heads.begin,
        .layer_first = layers.begin,
        .n_layers = layers.end - layers.begin,
        .lane_first = lanes.begin,
        .n_lanes = lanes.end - lanes.begin,
    };
    return 0;
}

int kvw_group(const struct kvw_cache *cache, const char *name)
{
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        if (strcmp(cache->geometry.group[g].name, name) == 0)
            return (int)g;
    }
    return fail(-ENOENT, "'%s' has no group '%s'", cache->name, name);
}

static int find_layer(const struct kvw_cache *cache, uint32_t group,
                      uint32_t model_layer, struct kvw_layer *layer)
{
    const struct kvw_geometry_group *in = &cache->geometry.group[group];

    for (uint32_t i = in->layer_first; i < in->layer_first + in->n_layers; i++) {
        if (cache->geometry.model_layer[i] == model_layer) {
            layer->index = i;
            return 0;
        }
    }
    return -ENOENT;
}

int kvw_layer_at(const struct kvw_cache *cache, uint32_t model_layer,
                 struct kvw_layer *layer)
{
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        if (find_layer(cache, g, model_layer, layer) == 0)
            return 0;
    }
    return fail(-ENOENT, "no group of '%s' has model layer %u", cache->name,
                model_layer);
}

int kvw_layer_of(const struct kvw_cache *cache, const char *group, uint32_t model_layer,
                 struct kvw_layer *layer)
{
    int g = kvw_group(cache, group);
    if (g < 0)
        return g;
    if (find_layer(cache, (uint32_t)g, model_layer, layer) != 0)
        return fail(-ENOENT, "group '%s' of '%s' has no model layer %u", group,
                    cache->name, model_layer);
    return 0;
}
