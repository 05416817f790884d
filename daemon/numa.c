/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a cache is in the daemon's memory; the kernel has it too, as policies of
 * the memfd. So nothing of it is kept elsewhere, and a daemon that adopts a cache reads
 * it back.
 */
#include "daemon/numa.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache.h"
#include "daemon/create.h"
#include "daemon/host.h"
#include "daemon/plan.h"
#include "daemon/request.h"
#include "proto/base/align.h"
#include "proto/base/cleanup.h"

#define NO_CAPABILITY                                                                \
    "moving pages that workers have mapped needs CAP_SYS_NICE: setcap "              \
    "cap_sys_nice+ep "                                                               \
    "kvwheeld, or AmbientCapabilities=CAP_SYS_NICE and CapabilityBoundingSet= with " \
    "it "                                                                            \
    "in kvwheeld.service"

/* ------------------------------------------------------------------ jobs --------- */

static int open_crew(struct daemon *daemon)
{
    if (daemon->crew != NULL)
        return 0;
    int error = crew_open(&daemon->crew, &daemon->placement->topology);
    if (error == 0)
        ring_poll(daemon->ring, crew_descriptor(daemon->crew), POLLIN,
                  (struct ring_tag){.kind = RING_CREW});
    return error;
}

/* @return 0 with the job, begun; -EBUSY (too many), or another -errno. */
static int begin(struct daemon *daemon, const struct cache *cache,
                 enum crew_purpose purpose, enum pages_work work, uint32_t rank,
                 uint64_t *id)
{
    const struct placement *placement = daemon->placement;

    int error = open_crew(daemon);
    if (error != 0)
        return error;
    if (purpose != CREW_CREATE && crew_jobs(daemon->crew) >= CREW_JOBS_MAX)
        return -EBUSY;
    struct crew_job *job =
        crew_job_new(cache->segment[SEGMENT_DATA].fd, &cache->meta.geometry,
                     &cache->layout, cache->plan, &placement->topology);
    if (job == NULL)
        return -ENOMEM;
    job->purpose = purpose;
    job->work = work;
    job->cache = cache->meta.id;
    job->rank = rank;
    job->kind = (uint8_t)cache->meta.wish.pages;
    job->can_bind = placement->can_bind;
    job->can_ask = placement->can_ask;
    job->can_move = placement->can_move;
    crew_begin(daemon->crew, job);
    *id = job->id;
    return 0;
}

int numa_fill(struct daemon *daemon, struct cache *cache)
{
    return begin(daemon, cache, CREW_CREATE, PAGES_FILL, KVW_RANK_READER, &cache->job);
}

static int need_plan(struct daemon *daemon, struct cache *cache,
                     struct kvw_refusal *refusal)
{
    int error = placement_of(daemon) == NULL ? -ENOMEM : 0;

    if (error == 0 && cache->plan == NULL)
        error = plan_read(daemon, cache);
    return error == 0 ? 0
                      : refuse(refusal, error, 0, 0,
                               "cache '%s': where it lies cannot be found out now: %s",
                               cache->meta.name, strerrordesc_np(-error));
}

void numa_settle(struct daemon *daemon)
{
    struct kvw_refusal refusal;
    uint64_t id;

    daemon->is_settled = true;
    if (daemon->n_caches == 0 || !placement_is_worthwhile())
        return;
    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        struct cache *cache = daemon->caches[i];
        if (cache == NULL || cache->state != CACHE_READY || cache->plan != NULL ||
            need_plan(daemon, cache, &refusal) != 0 || !daemon->placement->can_move)
            continue;
        if (begin(daemon, cache, CREW_SETTLE, PAGES_MOVE, KVW_RANK_READER, &id) != 0)
            return;
    }
}

/* ---------------------------------------------------------------- requests -------- */

static int find_rank(struct daemon *daemon, const char *name, uint32_t rank,
                     struct cache **out, struct kvw_refusal *refusal)
{
    struct cache *cache = cache_find(daemon, name);

    if (cache == NULL || cache->state == CACHE_CREATING)
        return refuse(refusal, -ENOENT, 0, 0, "there is no cache '%s'%s", name,
                      cache == NULL ? "" : " yet: it is being created");
    if (rank >= cache->meta.geometry.n_ranks)
        return refuse(refusal, -ERANGE, rank, cache->meta.geometry.n_ranks,
                      "cache '%s' has ranks 0 to %u, asked rank %u", name,
                      cache->meta.geometry.n_ranks - 1, rank);
    *out = cache;
    return need_plan(daemon, cache, refusal);
}

/* The node of all layers of a rank, or all ones. */
static uint32_t node_of_rank(const struct daemon *daemon, const struct cache *cache,
                             uint32_t rank, uint8_t *why)
{
    const struct kvw_plan *plan = cache->plan;
    uint32_t node = UINT32_MAX;

    *why = KVW_WHY_DEALT;
    for (uint32_t layer = 0; layer < plan->n_layers; layer++) {
        const uint32_t at = layer * plan->n_ranks + rank;
        if (!plan_holds(&cache->meta.geometry, layer, rank))
            continue;
        if (node == UINT32_MAX) {
            node = plan->node[at];
            *why = plan->why[at];
        } else if (node != plan->node[at]) {
            return UINT32_MAX;
        }
    }
    return node < KVW_NODE_TURNS ? daemon->placement->topology.nodes.node[node].number
                                 : UINT32_MAX;
}

static void fill_is(const struct daemon *daemon, const struct cache *cache,
                    uint32_t rank, struct kvw_message_numa_is *is)
{
    const uint32_t leader = placement_leader(&cache->meta.geometry, rank);
    uint8_t why;

    *is = (struct kvw_message_numa_is){
        .cache = cache->meta.id,
        .rank = rank,
        .placement = cache->meta.wish.policy,
        .node = node_of_rank(daemon, cache, leader, &why),
    };
    const bool is_off =
        daemon->placement->topology.nodes.n_nodes > 1 && !daemon->placement->can_bind;
    (void)snprintf(is->why, sizeof is->why, "%s%s%s%.160s",
                   placement_why_text(is_off ? KVW_WHY_UNPLACED : why),
                   leader != rank ? " (with the rank whose heads it shares)" : "",
                   cache->follow_words != NULL ? "; " : "",
                   cache->follow_words != NULL ? cache->follow_words : "");
}

int numa_serve(struct daemon *daemon, struct client *client,
               const struct kvw_message *request, struct reply *reply,
               struct kvw_refusal *refusal)
{
    const struct kvw_message_numa *numa = &request->numa;
    struct cache *cache = NULL;
    uint64_t id;

    int error = find_rank(daemon, numa->name, numa->rank, &cache, refusal);
    if (error != 0)
        return error;
    if (!cache_is_owner(cache, client) && !cache_permits(cache, client, CACHE_READ))
        return refuse(refusal, -EACCES, 0, cache->meta.mode,
                      "cache '%s' of user %u has mode %04o: user %u may not read it",
                      cache->meta.name, cache->meta.uid, cache->meta.mode,
                      client->peer.uid);
    if (numa->is_counted == 0) {
        reply->message.type = KVW_MESSAGE_NUMA_IS;
        fill_is(daemon, cache, numa->rank, &reply->message.numa_is);
        return 0;
    }
    if (client->pending != PENDING_NONE)
        return refuse(refusal, -EBUSY, 1, 0,
                      "this connection waits for another answer already");
    error = begin(daemon, cache, CREW_COUNT, PAGES_COUNT,
                  placement_leader(&cache->meta.geometry, numa->rank), &id);
    if (error != 0)
        return refuse(refusal, error, CREW_JOBS_MAX + 1, CREW_JOBS_MAX,
                      "cache '%s': its pages cannot be counted now: %s",
                      cache->meta.name, strerrordesc_np(-error));
    client->pending = PENDING_NUMA;
    client->pending_request = request->request;
    client->pending_id = id;
    return SERVE_LATER;
}

/* ------------------------------------------------------------------ moves --------- */

/* Bytes of a rank's part, but for padding. */
static uint64_t bytes_of(const struct cache *cache, uint32_t rank)
{
    return placement_rank_bytes(&cache->meta.geometry, &cache->layout, rank);
}

/* What the node can give for pages of the cache's kind. */
static uint64_t room_on(struct daemon *daemon, const struct cache *cache, uint32_t node)
{
    struct topology *topology = &daemon->placement->topology;

    if (cache->meta.wish.pages == KVW_GEOMETRY_PAGES_2M)
        return topology_huge_free(topology->nodes.node[node].number) * KVW_HUGE_PAGE;
    topology_refresh(topology);
    return topology->nodes.node[node].give_bytes;
}

static int begin_move(struct daemon *daemon, struct cache *cache, uint32_t rank,
                      uint32_t node, enum crew_purpose purpose, uint64_t *id)
{
    placement_move(cache->plan, &cache->meta.geometry, rank, node,
                   purpose == CREW_FOLLOW ? KVW_WHY_WORKER : KVW_WHY_MOVED);
    int error = begin(daemon, cache, purpose, PAGES_MOVE, rank, id);
    if (error == 0)
        cache->moving |= 1ull << rank;
    return error;
}

static int check_move(struct daemon *daemon, const struct client *client,
                      const struct cache *cache, const struct kvw_message_move *move,
                      struct kvw_refusal *refusal)
{
    const uint32_t leader = placement_leader(&cache->meta.geometry, move->rank);
    const struct placement *placement = daemon->placement;

    if (!cache_is_owner(cache, client))
        return refuse(refusal, -EACCES, cache->meta.uid, client->peer.uid,
                      "cache '%s' belongs to user %u: user %u may not move it",
                      cache->meta.name, cache->meta.uid, client->peer.uid);
    if (leader != move->rank)
        return refuse(refusal, -EINVAL, leader, move->rank,
                      "cache '%s': rank %u shares its heads' pages with rank %u: move "
                      "that one",
                      cache->meta.name, move->rank, leader);
    if (cache->plan->n_turns > 0)
        return refuse(refusal, -EINVAL, 0, 0,
                      "cache '%s' is interleaved: its ranks have no nodes of their own",
                      cache->meta.name);
    if (placement->degraded[0] != 0 && !placement->can_bind)
        return refuse(refusal, -EPERM, 0, 0, "%s", placement->degraded);
    if (!placement->can_move && placement->topology.nodes.n_nodes > 1)
        return refuse(refusal, -EPERM, 0, 0, "%s", NO_CAPABILITY);
    if ((cache->moving >> move->rank & 1) != 0)
        return refuse(refusal, -EBUSY, 0, 0,
                      "cache '%s': the part of rank %u is being moved already",
                      cache->meta.name, move->rank);
    return 0;
}

int numa_serve_move(struct daemon *daemon, struct client *client,
                    const struct kvw_message *request, struct reply *reply,
                    struct kvw_refusal *refusal)
{
    const struct kvw_message_move *move = &request->move;
    struct cache *cache = NULL;
    uint64_t id = 0;
    uint8_t why;

    (void)reply;
    int error = find_rank(daemon, move->name, move->rank, &cache, refusal);
    if (error == 0)
        error = check_move(daemon, client, cache, move, refusal);
    if (error != 0)
        return error;
    const struct kvw_topology *nodes = &daemon->placement->topology.nodes;
    const uint32_t node = placement_node(nodes, move->node);
    if (node == nodes->n_nodes)
        return refuse(refusal, -ENODEV, move->node, nodes->n_nodes,
                      "move: there is no NUMA node %u with memory that may be used; %u "
                      "there are",
                      move->node, nodes->n_nodes);
    const uint64_t need = node_of_rank(daemon, cache, move->rank, &why) == move->node
                              ? 0
                              : bytes_of(cache, move->rank);
    const uint64_t have = room_on(daemon, cache, node);
    if (need > have)
        return refuse(refusal, -ENOMEM, need, have,
                      "move: NUMA node %u: need %" PRIu64 " bytes, have %" PRIu64
                      " (free or reclaimable, less a reserve)%s",
                      move->node, need, have, host_memory_warning());
    if (client->pending != PENDING_NONE)
        return refuse(refusal, -EBUSY, 1, 0,
                      "this connection waits for another answer already");
    error = begin_move(daemon, cache, move->rank, node, CREW_MOVE, &id);
    if (error != 0)
        return refuse(refusal, error, 0, 0, "move: cache '%s': cannot begin: %s",
                      cache->meta.name, strerrordesc_np(-error));
    client->pending = PENDING_MOVE;
    client->pending_request = request->request;
    client->pending_id = id;
    return SERVE_LATER;
}

/* @return NULL, or why the part stays where it is. */
static const char *try_follow(struct daemon *daemon, struct cache *cache, uint32_t rank,
                              uint32_t node)
{
    const uint64_t bytes = bytes_of(cache, rank);
    const uint64_t now_ns = host_now_ns();
    uint64_t id;

    if (!daemon->placement->can_move)
        return "its worker runs elsewhere; " NO_CAPABILITY;
    if (bytes > room_on(daemon, cache, node))
        return "its worker runs on a node that has no room for it";
    if (now_ns - cache->follow_since_ns > NUMA_FOLLOW_NS) {
        cache->follow_since_ns = now_ns;
        cache->follow_bytes = 0;
    }
    if (cache->follow_bytes + bytes > NUMA_FOLLOW_TIMES * cache->layout.data_bytes)
        return "its worker runs elsewhere, but parts have followed often enough in "
               "this "
               "minute";
    if (begin_move(daemon, cache, rank, node, CREW_FOLLOW, &id) != 0)
        return "its worker runs elsewhere, but no more can be moved now";
    cache->follow_bytes += bytes;
    return NULL;
}

void numa_follow(struct daemon *daemon, struct cache *cache, uint32_t rank,
                 uint32_t number)
{
    struct kvw_refusal refusal;
    uint8_t why;

    if (cache->meta.wish.policy != KVW_PLACE_FOLLOW ||
        placement_leader(&cache->meta.geometry, rank) != rank ||
        need_plan(daemon, cache, &refusal) != 0 ||
        daemon->placement->topology.nodes.n_nodes < 2)
        return;
    const uint32_t node = placement_node(&daemon->placement->topology.nodes, number);
    if (node == daemon->placement->topology.nodes.n_nodes)
        return; /* a node without memory, or somebody's joke */
    if ((cache->moving >> rank & 1) != 0) {
        cache->next[rank] = (uint8_t)(node + 1);
        return;
    }
    cache->follow_words = NULL;
    if (node_of_rank(daemon, cache, rank, &why) == number)
        placement_move(cache->plan, &cache->meta.geometry, rank, node, KVW_WHY_WORKER);
    else
        cache->follow_words = try_follow(daemon, cache, rank, node);
    if (cache->follow_words != NULL)
        log_peer(&daemon->log, LOG_INFO, "part not moved cache %s rank %u node %u: %s",
                 cache->meta.name, rank, number, cache->follow_words);
}

/* ----------------------------------------------------------------- events --------- */

static struct client *waiting_for(const struct daemon *daemon, uint64_t job)
{
    for (uint32_t i = 0; i < KVW_CLIENTS_MAX; i++) {
        struct client *client = daemon->clients[i];
        if (client != NULL && client->pending_id == job &&
            (client->pending == PENDING_NUMA || client->pending == PENDING_MOVE))
            return client;
    }
    return NULL;
}

static uint32_t pack(const struct pages_nodes *nodes, uint64_t pairs[2 * KVW_NODES_MAX])
{
    for (uint32_t i = 0; i < nodes->n; i++) {
        pairs[2 * i] = nodes->number[i];
        pairs[2 * i + 1] = nodes->n_pages[i];
    }
    return nodes->n * 2 * (uint32_t)sizeof pairs[0];
}

static void answer(struct daemon *daemon, const struct cache *cache,
                   const struct crew_job *job)
{
    struct client *client = waiting_for(daemon, job->id);
    const struct pages_tally *tally = &job->tally;
    uint64_t wanted[2 * KVW_NODES_MAX];
    uint64_t found[2 * KVW_NODES_MAX];
    struct kvw_refusal refusal;

    if (client == NULL)
        return;
    client->pending = PENDING_NONE;
    struct reply reply = {.message = {.request = client->pending_request}};
    if (cache == NULL || job->error != 0) {
        const int error = cache == NULL ? -ENOENT : job->error;
        (void)refuse(&refusal, error, 0, 0, "its pages: %s",
                     cache == NULL ? "the cache was removed meanwhile"
                                   : strerrordesc_np(-error));
        client_refuse(daemon, client, client->pending_request, error, &refusal);
        return;
    }
    if (job->purpose == CREW_MOVE) {
        reply.message.type = KVW_MESSAGE_MOVED;
        reply.message.moved = (struct kvw_message_moved){
            .n_pages = tally->n_pages,
            .n_moved = tally->n_moved,
            .n_misplaced = tally->n_misplaced,
        };
    } else {
        struct kvw_message_numa_is *is = &reply.message.numa_is;
        reply.message.type = KVW_MESSAGE_NUMA_IS;
        fill_is(daemon, cache, job->rank, is);
        is->n_pages = tally->n_pages;
        is->n_misplaced = tally->n_misplaced;
        is->n_unknown = tally->n_unknown;
        is->wanted_bytes = pack(&tally->wanted, wanted);
        is->wanted = (const uint8_t *)wanted;
        is->found_bytes = pack(&tally->found, found);
        is->found = (const uint8_t *)found;
    }
    client_answer(daemon, client, &reply);
}

/* A part was moved. If some pages stayed, all of the cache is gone through once more. */
static void moved(struct daemon *daemon, struct cache *cache,
                  const struct crew_job *job)
{
    uint64_t id;

    cache->moving &= ~(1ull << job->rank);
    log_line(&daemon->log, job->error != 0 ? LOG_WARN : LOG_INFO,
             "part moved cache %s rank %u pages %llu misplaced %llu: %s",
             cache->meta.name, job->rank, (unsigned long long)job->tally.n_moved,
             (unsigned long long)job->tally.n_misplaced, strerrordesc_np(-job->error));
    if ((cache->meta.misplaced_pages > 0 || job->tally.n_misplaced > 0) &&
        begin(daemon, cache, CREW_SETTLE,
              daemon->placement->can_move ? PAGES_MOVE : PAGES_COUNT, KVW_RANK_READER,
              &id) != 0)
        cache->meta.misplaced_pages += job->tally.n_misplaced;
    const uint8_t next = cache->next[job->rank];
    cache->next[job->rank] = 0;
    if (next != 0)
        numa_follow(daemon, cache, job->rank,
                    daemon->placement->topology.nodes.node[next - 1].number);
}

static void finished(struct daemon *daemon, const struct crew_job *job)
{
    struct cache *cache = cache_by_id(daemon, job->cache);

    switch (job->purpose) {
    case CREW_CREATE:
        if (cache != NULL && cache->job == job->id)
            create_filled(daemon, cache, job);
        return;
    case CREW_COUNT:
        answer(daemon, cache, job);
        return;
    case CREW_MOVE:
        answer(daemon, cache, job);
        break;
    case CREW_FOLLOW:
        break;
    case CREW_SETTLE:
        if (cache != NULL && job->error == 0)
            cache->meta.misplaced_pages = job->tally.n_misplaced;
        return;
    }
    if (cache != NULL)
        moved(daemon, cache, job);
}

static void tell_job(struct daemon *daemon, struct client *client)
{
    const struct crew_job *job = crew_find(daemon->crew, client->pending_id);

    if (job == NULL)
        return;
    struct reply reply = {
        .message = {.type = KVW_MESSAGE_PROGRESS,
                    .request = client->pending_request,
                    .progress = {.done_bytes = load_relaxed(&job->done_bytes),
                                 .total_bytes = placement_rank_bytes(
                                     &job->geometry, &job->layout, job->rank)}}};
    client_answer(daemon, client, &reply);
}

static void tell_progress(struct daemon *daemon)
{
    for (uint32_t i = 0; i < KVW_CACHES_MAX; i++) {
        struct cache *cache = daemon->caches[i];
        const struct crew_job *job = cache == NULL || cache->job == 0
                                         ? NULL
                                         : crew_find(daemon->crew, cache->job);
        if (job != NULL)
            create_progress(daemon, cache, load_relaxed(&job->done_bytes));
    }
    const uint64_t now_ns = host_now_ns();
    if (now_ns - daemon->told_ns < NUMA_TELL_NS)
        return;
    daemon->told_ns = now_ns;
    for (uint32_t i = 0; i < KVW_CLIENTS_MAX; i++) {
        struct client *client = daemon->clients[i];
        if (client != NULL &&
            (client->pending == PENDING_MOVE || client->pending == PENDING_NUMA))
            tell_job(daemon, client);
    }
}

void numa_event(struct daemon *daemon)
{
    struct crew_job *job;

    while ((job = crew_take(daemon->crew)) != NULL) {
        finished(daemon, job);
        crew_job_free(job);
    }
    tell_progress(daemon);
    ring_poll(daemon->ring, crew_descriptor(daemon->crew), POLLIN,
              (struct ring_tag){.kind = RING_CREW});
}
