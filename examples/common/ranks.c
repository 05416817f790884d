/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives over all ranks; nobody sends to one alone. */
#include "examples/common/ranks.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

struct share share_of(uint32_t n_rows, uint32_t parts, uint32_t part)
{
    uint32_t base = n_rows / parts;
    uint32_t extra = n_rows % parts; /* the first `extra` parts have one more */

    return (struct share){part * base + (part < extra ? part : extra),
                          base + (part < extra ? 1 : 0)};
}

void ranks_start(int *argc, char ***argv, struct ranks *ranks)
{
    MPI_Comm node;
    int rank, n_ranks, n_local;

    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &n_local);
    MPI_Comm_free(&node);
    *ranks = (struct ranks){(uint32_t)rank, (uint32_t)n_ranks, (uint32_t)n_local, NULL};
}

void ranks_end(struct ranks *ranks)
{
    free(ranks->scratch);
    ranks->scratch = NULL;
    MPI_Finalize();
}

void ranks_broadcast(void *bytes, size_t n_bytes)
{
    MPI_Bcast(bytes, (int)n_bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
}

void ranks_max(uint64_t *numbers, uint32_t n)
{
    MPI_Allreduce(MPI_IN_PLACE, numbers, (int)n, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
}

uint64_t ranks_sum(uint64_t number)
{
    MPI_Allreduce(MPI_IN_PLACE, &number, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return number;
}

int ranks_agree(const struct ranks *ranks, struct fail *fail)
{
    int mine = has_failed(fail) ? (int)ranks->rank : (int)ranks->n_ranks;
    int lowest;

    MPI_Allreduce(&mine, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (lowest == (int)ranks->n_ranks)
        return 0;
    MPI_Bcast(fail, (int)sizeof(*fail), MPI_BYTE, lowest, MPI_COMM_WORLD);
    return -EINVAL;
}

int ranks_reserve(struct ranks *ranks, uint32_t n, uint32_t n_columns_max,
                  struct fail *fail)
{
    const uint64_t n_elems = (uint64_t)n * n_columns_max;

    if (n_elems > INT_MAX)
        return fail_set(fail, FAIL_USAGE,
                        "--chunk: times %u columns: at most %d elements are exchanged, "
                        "have %" PRIu64,
                        n_columns_max, INT_MAX, n_elems);
    free(ranks->scratch);
    ranks->scratch = malloc(sizeof(float) * n_elems);
    return ranks->scratch != NULL ? 0
                                  : fail_memory(fail, "the exchange of activations");
}

void ranks_columns_set(struct ranks_columns *columns, uint32_t rank, uint32_t first,
                       uint32_t count)
{
    columns->first[rank] = (int)first;
    columns->count[rank] = (int)count;
    columns->n_columns += count;
}

/* One token: the ranks' columns follow each other, as they should. */
static void gather_one(const struct ranks *ranks, const struct ranks_columns *columns,
                       const float *mine, float *all)
{
    MPI_Allgatherv(mine, columns->count[ranks->rank], MPI_FLOAT, all, columns->count,
                   columns->first, MPI_FLOAT, MPI_COMM_WORLD);
}

void ranks_gather(const struct ranks *ranks, const struct ranks_columns *columns,
                  uint32_t n, const float *mine, float *all)
{
    int count[RANKS_MAX], first[RANKS_MAX];
    const float *from = ranks->scratch;

    if (n == 1) {
        gather_one(ranks, columns, mine, all);
        return;
    }
    for (uint32_t r = 0; r < ranks->n_ranks; r++) {
        count[r] = columns->count[r] * (int)n;
        first[r] = columns->first[r] * (int)n;
    }
    MPI_Allgatherv(mine, count[ranks->rank], MPI_FLOAT, ranks->scratch, count, first,
                   MPI_FLOAT, MPI_COMM_WORLD);
    for (uint32_t r = 0; r < ranks->n_ranks; r++) {
        for (uint32_t t = 0; t < n; t++) {
            memcpy(all + (size_t)t * columns->n_columns + columns->first[r], from,
                   sizeof(float) * (size_t)columns->count[r]);
            from += columns->count[r];
        }
    }
}
