/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of open chunks as other ranks and readers see them (PROTOCOL.md, "Staged rows"). A
 * pass word per layer changes before and after each writing, like a sequence lock: who
 * looks on takes it when it is even, and asks at release whether it is still the same.
 *
 * Orders, by label:
 *
 * X1, set_writing() (rows.c) and void_layer() (poison.c): release fence between the odd word and the rows. Pairs with
 * R1 (view.c), rows, acquire fence, word, and with X4.
 *
 * X2, set_written() (rows.c): release stores of the rows written and of the even word, so
 * that the rows are visible before them. Pairs with X3.
 *
 * X3, read_open() and pass_reached(): acquire loads of these words. Pair with X2 and X7.
 *
 * X4, read_open(): acquire fence before the second look at claim and pass word. Pairs with
 * X1 and X5.
 *
 * X5, open_chunks() (step.c): release stores of `base` and of the rows open, so that the
 * end of the chunk before (its claim) is visible before them. Pairs with X4 and X6.
 *
 * X6, read_open() and pass_reached(): acquire loads of these. Pair with X5.
 *
 * X7, kvw_have_read(): release store of the read word, so that reads of rows stay before
 * it. Pairs with X3 in pass_reached(), before rows are overwritten.
 *
 * X8, read_open() and pass_reached(): acquire load of the claim, before the words that are
 * of it. Pairs with B3 (step.c), before which the claim's `base` and `open` are stored.
 */
#ifndef KVW_CLIENT_STAGED_H
#define KVW_CLIENT_STAGED_H

#include <stdbool.h>
#include <stdint.h>

#include "client/cut.h"

/* What a set of ranks has staged in a layer on top of a cut. */
struct staged {
    uint64_t open;    /* rows of the open chunk; 0: not all of them have it open */
    uint64_t written; /* of these, rows that all have */
    uint64_t ranks;   /* those whose rows are not published: their pass words count */
    uint64_t passes;  /* the sum of these words: it changes when any does */
};

/**
 * Look at the open chunk of a layer on every rank of a cut that holds the layer. A rank
 * that has published it already counts with the rows that it published.
 *
 * @return 0; -EAGAIN (somebody writes the layer, or published); -EOWNERDEAD (its owner died
 *         while it wrote), -KVW_EGONE (damaged), in words.
 */
KVW_NODISCARD int staged_look(const struct kvw_cache *cache, const struct cut_of *of,
                              const struct cut *cut, struct staged *staged);

/** The sum of pass words now, as in struct staged. */
uint64_t staged_passes(const struct kvw_cache *cache, uint32_t lane, uint32_t layer,
                       uint64_t ranks);

#endif
