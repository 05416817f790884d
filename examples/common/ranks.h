/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes between the ranks of the run: activations, ids, agreement. The cache has its
 * own (kvwheel/mpi.h). A failing MPI call ends the job (MPI's own default), and so does a
 * rank on another node that is not heard of for RANKS_WAIT_SECONDS, so nothing here returns
 * an error.
 */
#ifndef COMMON_RANKS_H
#define COMMON_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "examples/common/fail.h"

#define RANKS_MAX 64u /* of a cache */
#define RANKS_WAIT_SECONDS 30

struct ranks {
    uint32_t rank;
    uint32_t n_ranks;
    uint32_t n_local; /* ranks on this rank's node */
    float *scratch;   /* for gathers of several tokens */
};

/* Columns of a matrix [n, n_columns] that is spread over the ranks: rank r computes
 * count[r] of them, from first[r] on. */
struct ranks_columns {
    int count[RANKS_MAX];
    int first[RANKS_MAX];
    uint32_t n_columns;
};

/* An interval of rows. */
struct share {
    uint32_t first;
    uint32_t n;
};

/** Part `part` of `parts` of n_rows: as even as it can be. */
struct share share_of(uint32_t n_rows, uint32_t parts, uint32_t part);

/** Start MPI. ranks_end() must follow. */
void ranks_start(int *argc, char ***argv, struct ranks *ranks);

void ranks_end(struct ranks *ranks);

/** True on rank 0, the one that speaks. */
static inline bool ranks_is_first(const struct ranks *ranks)
{
    return ranks->rank == 0;
}

static inline bool ranks_are_on_one_node(const struct ranks *ranks)
{
    return ranks->n_local == ranks->n_ranks;
}

/** Give a rank's bytes to everybody. */
void ranks_broadcast(void *bytes, size_t n_bytes, uint32_t from);

/** The lowest rank for which `is_it` holds; n_ranks: none. */
uint32_t ranks_lowest(const struct ranks *ranks, bool is_it);

/** End the job with a reason on stderr: a rank that others wait for is gone. */
__attribute__((noreturn)) void ranks_abort(const struct ranks *ranks, const char *why);

/** The largest of each number, to everybody. */
void ranks_max(const struct ranks *ranks, uint64_t *numbers, uint32_t n);

/** The sum over the ranks, to everybody. */
uint64_t ranks_sum(uint64_t number);

/** Give everybody the refusal of the lowest rank that has one. All ranks call it.
 *  @return 0, or -EINVAL if there is one. */
int ranks_agree(const struct ranks *ranks, struct fail *fail);

/** Make the scratch large enough for gathers of n x n_columns_max. @return 0 or -EINVAL
 */
int ranks_reserve(struct ranks *ranks, uint32_t n, uint32_t n_columns_max,
                  struct fail *fail);

/** Note which columns a rank computes; adds to n_columns. Once for each rank. */
void ranks_columns_set(struct ranks_columns *columns, uint32_t rank, uint32_t first,
                       uint32_t count);

/** Put the ranks' columns together: `mine` [n, count] of each becomes `all` [n,
 * n_columns] on every rank. */
void ranks_gather(const struct ranks *ranks, const struct ranks_columns *columns,
                  uint32_t n, const float *mine, float *all);

#endif
