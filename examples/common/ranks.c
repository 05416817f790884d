/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives over all ranks; nobody sends to one alone. */
#include "examples/common/ranks.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvwheel/mpi.h>

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

void ranks_abort(const struct ranks *ranks, const char *why)
{
    char host[64] = "";

    (void)gethostname(host, sizeof(host) - 1);
    fprintf(stderr, "rank %u on %s: %s\n", ranks->rank, host, why);
    MPI_Abort(MPI_COMM_WORLD, KVW_MPI_EXIT_TIMEOUT);
    abort(); /* not reached */
}

/* Wait for a collective, but not for ever: a peer whose host is gone gives no error. */
static void await(const struct ranks *ranks, MPI_Request *request)
{
    const double end = MPI_Wtime() + RANKS_WAIT_SECONDS;
    int is_done = 0;

    for (;;) {
        MPI_Test(request, &is_done, MPI_STATUS_IGNORE);
        if (is_done)
            return;
        (void)sched_yield();
        if (MPI_Wtime() > end)
            ranks_abort(ranks, "another rank did not answer for 30 s");
    }
}

void ranks_broadcast(void *bytes, size_t n_bytes, uint32_t from)
{
    for (char *at = bytes; n_bytes > 0;) {
        const size_t n = n_bytes < INT_MAX ? n_bytes : INT_MAX;
        MPI_Bcast(at, (int)n, MPI_BYTE, (int)from, MPI_COMM_WORLD);
        at += n;
        n_bytes -= n;
    }
}

void ranks_max(const struct ranks *ranks, uint64_t *numbers, uint32_t n)
{
    MPI_Request request;

    if (ranks_are_on_one_node(ranks)) {
        MPI_Allreduce(MPI_IN_PLACE, numbers, (int)n, MPI_UINT64_T, MPI_MAX,
                      MPI_COMM_WORLD);
        return;
    }
    MPI_Iallreduce(MPI_IN_PLACE, numbers, (int)n, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD,
                   &request);
    await(ranks, &request);
}

uint64_t ranks_sum(uint64_t number)
{
    MPI_Allreduce(MPI_IN_PLACE, &number, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return number;
}

uint32_t ranks_lowest(const struct ranks *ranks, bool is_it)
{
    uint32_t mine = is_it ? ranks->rank : ranks->n_ranks;

    MPI_Allreduce(MPI_IN_PLACE, &mine, 1, MPI_UINT32_T, MPI_MIN, MPI_COMM_WORLD);
    return mine;
}

int ranks_agree(const struct ranks *ranks, struct fail *fail)
{
    const uint32_t lowest = ranks_lowest(ranks, has_failed(fail));

    if (lowest == ranks->n_ranks)
        return 0;
    ranks_broadcast(fail, sizeof(*fail), lowest);
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

static void gather(const struct ranks *ranks, const float *mine, const int *count,
                   const int *first, float *all)
{
    const int n_mine = count[ranks->rank];
    MPI_Request request;

    if (ranks_are_on_one_node(ranks)) {
        MPI_Allgatherv(mine, n_mine, MPI_FLOAT, all, count, first, MPI_FLOAT,
                       MPI_COMM_WORLD);
        return;
    }
    MPI_Iallgatherv(mine, n_mine, MPI_FLOAT, all, count, first, MPI_FLOAT,
                    MPI_COMM_WORLD, &request);
    await(ranks, &request);
}

void ranks_gather(const struct ranks *ranks, const struct ranks_columns *columns,
                  uint32_t n, const float *mine, float *all)
{
    int count[RANKS_MAX], first[RANKS_MAX];
    const float *from = ranks->scratch;
    int at = 0;

    if (n == 1) { /* the ranks' columns lie where they should */
        gather(ranks, mine, columns->count, columns->first, all);
        return;
    }
    for (uint32_t r = 0; r < ranks->n_ranks; r++) {
        count[r] = columns->count[r] * (int)n;
        first[r] = at;
        at += count[r];
    }
    gather(ranks, mine, count, first, ranks->scratch);
    for (uint32_t r = 0; r < ranks->n_ranks; r++) {
        for (uint32_t t = 0; t < n; t++) {
            memcpy(all + (size_t)t * columns->n_columns + columns->first[r], from,
                   sizeof(float) * (size_t)columns->count[r]);
            from += columns->count[r];
        }
    }
}
