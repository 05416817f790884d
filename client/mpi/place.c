/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank takes which place. Boxes that are there come first, the newest ones before
 * older ones; a box that two nodes have is taken where it is newer. One that lags by more
 * steps than boards keep (it was left when its node was away) counts as lost. What is left
 * goes to the node of the rank of the same number where it has room, so that a fresh job has
 * places equal to ranks.
 */
#include <errno.h>

#include "client/mpi/inside.h"

struct hand {
    const struct placing *placing;
    uint64_t least; /* what a box must have at least, to come back to a common step */
    uint32_t n_free[KVW_RANKS_MAX];  /* ranks of a node without a place */
    bool is_taken[KVW_RANKS_MAX];    /* ranks */
    uint32_t node_of[KVW_RANKS_MAX]; /* boxes; UINT32_MAX = none yet */
};

static bool has_room(const struct hand *hand, uint32_t node)
{
    return hand->n_free[node] >= hand->placing->box_ranks;
}

static void give(struct hand *hand, uint32_t box, uint32_t node)
{
    hand->node_of[box] = node;
    hand->n_free[node] -= hand->placing->box_ranks;
}

static uint64_t least_of(const struct placing *placing, uint32_t n_boxes)
{
    uint64_t newest = 0;

    for (uint32_t node = 0; node < placing->n_nodes; node++)
        for (uint32_t box = 0; box < n_boxes; box++)
            if (placing->have[node][box] > newest)
                newest = placing->have[node][box];
    return newest > KVW_RECORDS - 2 ? newest - (KVW_RECORDS - 2) : 1;
}

/* The newest box without a node that a node with room has. @return false if none. */
static bool give_newest(struct hand *hand, uint32_t n_boxes)
{
    uint64_t best = 0;
    uint32_t best_box = 0, best_node = 0;

    for (uint32_t box = 0; box < n_boxes; box++) {
        for (uint32_t node = 0; node < hand->placing->n_nodes; node++) {
            const uint64_t have = hand->placing->have[node][box];
            if (have <= best || have < hand->least ||
                hand->node_of[box] != UINT32_MAX || !has_room(hand, node))
                continue;
            best = have;
            best_box = box;
            best_node = node;
        }
    }
    if (best > 0)
        give(hand, best_box, best_node);
    return best > 0;
}

static bool give_rest(struct hand *hand, uint32_t box)
{
    const uint32_t same = hand->placing->node[box * hand->placing->box_ranks];

    if (has_room(hand, same)) {
        give(hand, box, same);
        return true;
    }
    for (uint32_t node = 0; node < hand->placing->n_nodes; node++) {
        if (has_room(hand, node)) {
            give(hand, box, node);
            return true;
        }
    }
    return false;
}

/* The rank of the place's own number if it is on that node and free, else the lowest. */
static uint32_t pick_rank(struct hand *hand, uint32_t place, uint32_t node)
{
    const struct placing *placing = hand->placing;
    uint32_t rank = place;

    if (hand->is_taken[rank] || placing->node[rank] != node) {
        for (rank = 0; hand->is_taken[rank] || placing->node[rank] != node; rank++)
            KVW_CHECK(rank + 1 < placing->n_ranks);
    }
    hand->is_taken[rank] = true;
    return rank;
}

int place_all(const struct placing *placing, const struct grid *grid,
              int rank_of[KVW_RANKS_MAX], bool is_new[KVW_RANKS_MAX])
{
    const uint32_t n_boxes = placing->n_ranks / placing->box_ranks;
    struct hand hand = {.placing = placing, .least = least_of(placing, n_boxes)};

    for (uint32_t rank = 0; rank < placing->n_ranks; rank++)
        hand.n_free[placing->node[rank]]++;
    for (uint32_t box = 0; box < n_boxes; box++)
        hand.node_of[box] = UINT32_MAX;
    for (uint32_t i = 0; i < n_boxes && give_newest(&hand, n_boxes); i++)
        continue;
    for (uint32_t box = 0; box < n_boxes; box++) {
        is_new[box] = hand.node_of[box] == UINT32_MAX;
        if (is_new[box] && !give_rest(&hand, box))
            return told(
                -ENOSPC,
                "init: box %u of %u needs %u ranks of one node: no node has that "
                "many left; give each node a multiple of %u",
                box, n_boxes, placing->box_ranks, placing->box_ranks);
    }
    for (uint32_t box = 0; box < n_boxes; box++) {
        for (uint32_t i = 0; i < placing->box_ranks; i++) {
            const uint32_t place = box_place(grid, box, i);
            rank_of[place] = (int)pick_rank(&hand, place, hand.node_of[box]);
        }
    }
    return 0;
}
