/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On which NUMA node each byte of a cache's data lies: a pure function of geometry,
 * topology and wish, without I/O, and the same for the same input. The table that it
 * fills in has a node for each layer and rank, so that the heads of one layer may lie on
 * several nodes. Where rows are split, the ranks that share a head share its node: that
 * of the first of them.
 *
 * A page lies where the byte in its middle belongs; so each page has one node and one
 * rank, and no page is counted twice.
 */
#ifndef KVW_PROTO_PLACEMENT_H
#define KVW_PROTO_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/check.h"
#include "proto/layout.h"

#define KVW_DISTANCE_SELF 10u /* as the firmware's table has it */

struct kvw_topology_node {
    uint32_t number; /* the operating system's */
    uint32_t
        package; /* of its CPUs, from 0; nodes of one package are sub-NUMA clusters */
    uint32_t n_cpus; /* 0 = memory only */
    uint64_t total_bytes;
    uint64_t give_bytes;              /* free and reclaimable, less a reserve */
    char cpus[128];                   /* "0-3,8-11"; "" = none */
    uint16_t distance[KVW_NODES_MAX]; /* to each node, by index; 0 = not known */
};

/* The nodes that have memory and may be used, by ascending number. */
struct kvw_topology {
    uint32_t n_nodes;
    struct kvw_topology_node node[KVW_NODES_MAX];
};

enum kvw_placement_policy {
    KVW_PLACE_SPREAD = 0,     /* whole layers, dealt evenly */
    KVW_PLACE_FOLLOW = 1,     /* a rank's part lies where its worker runs */
    KVW_PLACE_INTERLEAVE = 2, /* small blocks by turns */
    KVW_PLACE_NODE = 3,       /* everything on one node */
    KVW_PLACE_MAP = 4,        /* a node for each rank */
    KVW_PLACE_POLICIES = 5,
};

struct kvw_placement_wish {
    uint32_t policy;              /* enum kvw_placement_policy */
    uint32_t pages;               /* enum kvw_geometry_pages: what it gets */
    uint32_t n_nodes;             /* node: 1; map: as many as ranks; else 0 */
    uint16_t node[KVW_RANKS_MAX]; /* numbers of the operating system */
};

/* Why a layer of a rank lies on its node. */
enum kvw_placement_why {
    KVW_WHY_ONLY = 0,     /* there is no other node */
    KVW_WHY_DEALT = 1,    /* its even share */
    KVW_WHY_NEAREST = 2,  /* the node of its share had no room: the nearest that has */
    KVW_WHY_ASKED = 3,    /* node and map name it */
    KVW_WHY_TURNS = 4,    /* interleaved */
    KVW_WHY_WORKER = 5,   /* the rank's worker runs there */
    KVW_WHY_MOVED = 6,    /* kvwheel move */
    KVW_WHY_ADOPTED = 7,  /* the kernel's record of it, found by another daemon */
    KVW_WHY_UNPLACED = 8, /* the host forbids to say where */
};

#define KVW_NODE_TURNS 0xffu /* in place of a node: by turns */

struct kvw_plan {
    uint32_t policy;
    uint32_t n_ranks;
    uint32_t n_layers;
    uint64_t page_bytes; /* one page has one node */
    uint64_t turn_bytes; /* interleave: of one block */
    uint32_t n_turns;    /* ... and the nodes that take turns */
    uint8_t turn[KVW_NODES_MAX];
    uint64_t need_bytes[KVW_NODES_MAX]; /* of each node */
    /* For each layer and rank, [layer * n_ranks + rank]: an index into the topology's
     * nodes, and enum kvw_placement_why. Only the first n_layers * n_ranks are touched. */
    uint8_t node[KVW_LAYERS_MAX * KVW_RANKS_MAX];
    uint8_t why[KVW_LAYERS_MAX * KVW_RANKS_MAX];
};

/* A run of whole pages. */
struct kvw_placement_range {
    uint64_t begin;
    uint64_t end;
    uint32_t node; /* index */
    uint32_t rank;
};

/**
 * Place a cache. What one node cannot give goes to the nearest one that can, for spread,
 * follow and interleave; node and map are asked for, and refused otherwise. A node
 * without CPUs is used only when it is asked for, or when there is no other.
 *
 * @return 0; -EINVAL (no such policy, number of nodes), -ENODEV (no such node), -ENOMEM
 *         (need and have in `refusal`). On a machine of one node there is nothing to
 *         choose, and room is not looked at.
 */
KVW_NODISCARD int placement_plan(const struct kvw_geometry *geometry,
                                 const struct kvw_layout *layout,
                                 const struct kvw_topology *topology,
                                 const struct kvw_placement_wish *wish,
                                 struct kvw_plan *plan, struct kvw_refusal *refusal);

/** The rank that holds a byte of the data segment, and the layer; where rows are split,
 * the first of the ranks. @return one past the last byte for which that is so. */
uint64_t placement_owner(const struct kvw_geometry *geometry,
                         const struct kvw_layout *layout, uint64_t offset,
                         uint32_t *layer, uint32_t *rank);

/**
 * The run of pages from the page `begin` on, at most `bytes_max` of it.
 *
 * @param is_by_rank  End the run where the rank changes, too.
 * @return false at the end of the data.
 */
bool placement_range(const struct kvw_geometry *geometry,
                     const struct kvw_layout *layout, const struct kvw_plan *plan,
                     uint64_t begin, uint64_t bytes_max, bool is_by_rank,
                     struct kvw_placement_range *range);

/** Put all layers of a rank on a node; `why` as above. Not where blocks take turns. */
void placement_move(struct kvw_plan *plan, const struct kvw_geometry *geometry,
                    uint32_t rank, uint32_t node, enum kvw_placement_why why);

/** Bytes of a rank's part, padding apart; where rows are split, of all that share it. */
uint64_t placement_rank_bytes(const struct kvw_geometry *geometry,
                              const struct kvw_layout *layout, uint32_t rank);

/** Bytes of a rank on each node; `bytes` has KVW_NODES_MAX. Of ranks that share a head
 * the first one has all. */
void placement_count(const struct kvw_geometry *geometry,
                     const struct kvw_layout *layout, const struct kvw_plan *plan,
                     uint32_t rank, uint64_t *bytes);

/** The rank in whose name a rank's rows are placed: itself, unless rows are split. */
uint32_t placement_leader(const struct kvw_geometry *geometry, uint32_t rank);

/** Index of a node by its number; n_nodes if there is none. */
uint32_t placement_node(const struct kvw_topology *topology, uint32_t number);

/** "follow", "spread" ...; "?" */
const char *placement_policy_name(uint32_t policy);

/** The reason in words, for people. */
const char *placement_why_text(uint32_t why);

#endif
