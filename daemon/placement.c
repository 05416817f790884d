/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing is concluded that can be tried: memory of our own is bound, looked at, moved.
 * What creations in progress have still to take from a node counts as taken.
 */
#include "daemon/placement.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/host.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

/* One node that holds all memory: where hwloc finds nothing, or somebody else's. */
static void make_up(struct topology *topology)
{
    struct host_memory memory;

    topology->is_this_system = true;
    topology->nodes.n_nodes = 1;
    topology->nodes.node[0] = (struct kvw_topology_node){.n_cpus = 1, .distance = {10}};
    if (host_memory(&memory) == 0)
        topology->nodes.node[0].total_bytes = memory.total;
    (void)snprintf(topology->words, sizeof topology->words, "NUMA nodes unknown");
}

static void try_rights(struct placement *placement)
{
    const struct kvw_topology *nodes = &placement->topology.nodes;
    uint32_t number[KVW_NODES_MAX];

    for (uint32_t i = 0; i < nodes->n_nodes; i++)
        number[i] = nodes->node[i].number;
    pages_try(number, nodes->n_nodes, &placement->rights);
    placement->can_ask = placement->rights.ask == 0;
    placement->can_bind = nodes->n_nodes > 1 && placement->rights.bind == 0;
    placement->can_move =
        placement->can_bind && placement->can_ask && placement->rights.move == 0;
    if (nodes->n_nodes < 2)
        return;
    if (!placement->can_bind)
        (void)snprintf(placement->degraded, sizeof placement->degraded,
                       "NUMA placement off: binding to a node is refused (%s); a "
                       "container needs CAP_SYS_NICE or a profile that allows mbind",
                       strerrordesc_np(-placement->rights.bind));
    else if (!placement->can_ask)
        (void)snprintf(placement->degraded, sizeof placement->degraded,
                       "NUMA placement cannot be verified: move_pages is refused (%s); "
                       "a container needs CAP_SYS_NICE or a profile that allows it",
                       strerrordesc_np(-placement->rights.ask));
}

static void describe(struct placement *placement)
{
    const struct topology *topology = &placement->topology;

    if (topology->left_out[0] != 0) {
        const size_t length = strlen(placement->degraded);
        (void)snprintf(placement->degraded + length,
                       sizeof placement->degraded - length, "%s%s",
                       length > 0 ? "; " : "", topology->left_out);
    }
    (void)snprintf(placement->words, sizeof placement->words, "%s%s", topology->words,
                   topology->nodes.n_nodes < 2 ? ": nothing to place"
                   : !placement->can_bind      ? "; placing is not permitted"
                   : !placement->can_move
                       ? "; pages are placed when a cache is made and stay there: "
                         "moving them needs CAP_SYS_NICE"
                       : "");
}

struct placement *placement_open(void)
{
    struct placement *placement = calloc(1, sizeof *placement);

    if (placement == NULL)
        return NULL;
    int error = topology_load(&placement->topology);
    const bool is_foreign = error == 0 && !placement->topology.is_this_system;
    if (error != 0 || is_foreign)
        make_up(&placement->topology);
    try_rights(placement);
    if (is_foreign)
        (void)snprintf(
            placement->degraded, sizeof placement->degraded,
            "NUMA placement off: hwloc was given another machine's topology");
    else if (error != 0)
        (void)snprintf(placement->degraded, sizeof placement->degraded,
                       "NUMA nodes unknown: hwloc cannot look at this host");
    describe(placement);
    return placement;
}

struct placement *placement_close(struct placement *placement)
{
    free(placement);
    return NULL;
}

struct placement *placement_of(struct daemon *daemon)
{
    if (daemon->placement == NULL)
        daemon->placement = placement_open();
    return daemon->placement;
}

bool placement_is_worthwhile(void)
{
    char text[64];
    unsigned first;
    int n_read = 0;

    /* "0" or "0-1" or "0,2" */
    if (host_read_file("/sys/devices/system/node/has_memory", text, sizeof text) <= 0)
        return false;
    return sscanf(text, "%u%n", &first, &n_read) == 1 &&
           (text[n_read] == '-' || text[n_read] == ',');
}

const char *placement_degraded(const struct placement *placement)
{
    return placement == NULL ? "" : placement->degraded;
}

/* -------------------------------------------------------------- choosing ---------- */

/* What caches that are being created have still to take. */
static void subtract_promised(const struct daemon *daemon, struct kvw_topology *nodes)
{
    for (uint32_t c = 0; c < KVW_CACHES_MAX; c++) {
        const struct cache *cache = daemon->caches[c];
        if (cache == NULL || cache->state != CACHE_CREATING || cache->plan == NULL)
            continue;
        const uint64_t left = cache->total_bytes - cache->done_bytes;
        for (uint32_t i = 0; i < nodes->n_nodes; i++) {
            const uint64_t taken = min_u64(left, cache->plan->need_bytes[i]);
            nodes->node[i].give_bytes -= min_u64(nodes->node[i].give_bytes, taken);
        }
    }
}

/* Of the pool, each node gives its free pages. */
static uint64_t count_pool(struct kvw_topology *nodes)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < nodes->n_nodes; i++) {
        nodes->node[i].give_bytes =
            topology_huge_free(nodes->n_nodes == 1 ? UINT32_MAX
                                                   : nodes->node[i].number) *
            KVW_HUGE_PAGE;
        bytes += nodes->node[i].give_bytes;
    }
    return bytes;
}

static void warn_of_host(struct kvw_refusal *refusal)
{
    const size_t length = strnlen(refusal->text, sizeof refusal->text - 1);

    (void)snprintf(refusal->text + length, sizeof refusal->text - length, "%s",
                   host_memory_warning());
}

/* The pool must hold all of it, and each node its part. */
static bool plan_on_pool(struct daemon *daemon, struct cache_meta *meta,
                         const struct kvw_layout *layout, struct kvw_plan *plan)
{
    KVW_CLEANUP(kvw_free_cleanup)
    struct kvw_topology *nodes = malloc(sizeof *nodes);
    struct kvw_refusal refusal;
    uint64_t have = 0;

    refusal.text[0] = 0;
    if (nodes != NULL) {
        *nodes = daemon->placement->topology.nodes;
        have = count_pool(nodes);
        subtract_promised(daemon, nodes);
        if (have >= layout->data_bytes &&
            placement_plan(&meta->geometry, layout, nodes, &meta->wish, plan,
                           &refusal) == 0)
            return true;
    }
    (void)snprintf(meta->note, sizeof meta->note,
                   "pages 2M: need %" PRIu64 " of the pool, %" PRIu64
                   " are free%s%.60s; transparent huge pages instead (sysctl -w "
                   "vm.nr_hugepages=%" PRIu64 " as root, before)",
                   layout->data_bytes / KVW_HUGE_PAGE, have / KVW_HUGE_PAGE,
                   refusal.text[0] != 0 ? ": " : "", refusal.text,
                   layout->data_bytes / KVW_HUGE_PAGE);
    return false;
}

int placement_choose(struct daemon *daemon, struct cache_meta *meta,
                     const struct kvw_layout *layout, struct kvw_plan **out,
                     struct kvw_refusal *refusal)
{
    struct placement *placement = placement_of(daemon);
    KVW_CLEANUP(kvw_free_cleanup)
    struct kvw_topology *nodes = malloc(sizeof *nodes);
    KVW_CLEANUP(kvw_free_cleanup)
    struct kvw_plan *plan = calloc(1, sizeof *plan);

    if (placement == NULL || nodes == NULL || plan == NULL)
        return refuse(refusal, -ENOMEM, sizeof *plan, 0,
                      "cache '%s': the daemon has no memory to place it", meta->name);
    topology_refresh(&placement->topology);
    meta->wish.pages = meta->geometry.pages;
    if (meta->wish.pages == KVW_GEOMETRY_PAGES_2M &&
        !plan_on_pool(daemon, meta, layout, plan))
        meta->wish.pages = KVW_GEOMETRY_PAGES_THP;
    if (meta->wish.pages != KVW_GEOMETRY_PAGES_2M) {
        *nodes = placement->topology.nodes;
        subtract_promised(daemon, nodes);
        for (uint32_t i = 0; i < nodes->n_nodes && !placement->can_bind; i++)
            nodes->node[i].give_bytes = UINT64_MAX; /* nobody can say where it goes */
        int error =
            placement_plan(&meta->geometry, layout, nodes, &meta->wish, plan, refusal);
        if (error == -ENOMEM)
            warn_of_host(refusal);
        if (error != 0)
            return error;
    }
    *out = take_pointer(&plan);
    return 0;
}
