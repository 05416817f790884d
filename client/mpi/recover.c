/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One common step over all boxes. Each round, all say where their box stands, take the
 * smallest, say it to their box as the step of the others, and let it recover; a box whose
 * last job died within a recovery finishes that one first, which may take it further back, so
 * there is another round. New boxes take part in the talk, not in the minimum.
 */
#include <errno.h>
#include <inttypes.h>

#include "client/mpi/inside.h"

#define ROUNDS_MAX 3

struct stand {
    uint64_t step;
    uint32_t is_new;
    int32_t error; /* of the round before: all end together */
};

/* What a round shows. */
struct round {
    uint64_t lowest; /* step of boxes that were there; all ones: there was none */
    uint32_t highest_place;
    bool is_same;
};

static int look_around(struct kvw_mpi *mpi, uint32_t lane, int error,
                       struct round *round)
{
    const uint64_t places = places_of_lane(mpi, lane);
    struct stand all[KVW_RANKS_MAX];
    const struct stand mine = {mpi->lane[lane - mpi->lane_first].step,
                               mpi->is_new[mpi->box], error};
    uint64_t highest = 0;

    *round = (struct round){.lowest = UINT64_MAX, .highest_place = mpi->place};
    int result =
        exchange_all(mpi, places, TAG_RECOVER, &mine, all, sizeof mine, "recover");
    if (result != 0 || error != 0)
        return result != 0 ? result : error;
    for (uint32_t place = 0; place < mpi->n_places; place++) {
        if ((places >> place & 1) == 0)
            continue;
        if (all[place].error != 0)
            return told(-ECANCELED, "recover: lane %u: %s failed: %s", lane,
                        who_is(mpi, place).text, kvw_strerror(all[place].error));
        if (all[place].is_new)
            continue;
        if (all[place].step < round->lowest)
            round->lowest = all[place].step;
        if (all[place].step >= highest) {
            highest = all[place].step;
            round->highest_place = place;
        }
    }
    round->is_same = highest == round->lowest || round->lowest == UINT64_MAX;
    return 0;
}

static int go_back(struct kvw_mpi *mpi, uint32_t lane, uint64_t step)
{
    const uint32_t here = lane - mpi->lane_first;

    int error = kvw_outside(mpi->cache, here, step);
    /* Within a recovery it is refused: what was said before that one counts. */
    if (error != 0 && error != -ESTALE)
        return told_by_kvw(error, "recover");
    error = kvw_recover(mpi->cache, here, mpi->timeout_ns, NULL);
    if (error != 0)
        return told_by_kvw(error, "recover");
    return step_read(mpi, lane);
}

int kvw_mpi_recover(struct kvw_mpi *mpi, uint32_t lane_number, uint64_t *step)
{
    struct mpi_lane *lane = lane_here(mpi, "recover", lane_number);
    struct round round;

    if (lane == NULL)
        return mpi->is_broken ? -EPIPE : -ERANGE;
    int error = look_around(mpi, lane_number, 0, &round);
    for (int i = 0; i < ROUNDS_MAX && error == 0 && (i == 0 || !round.is_same); i++) {
        if (!mpi->is_new[mpi->box])
            error = go_back(mpi, lane_number, round.lowest);
        error = look_around(mpi, lane_number, error, &round);
    }
    if (error == 0 && !round.is_same)
        error = told(-KVW_EDIVERGED,
                     "recover: lane %u: the box of %s stays at a step after %" PRIu64,
                     lane_number, who_is(mpi, round.highest_place).text, round.lowest);
    if (error != 0)
        return error;
    const uint64_t common = round.lowest == UINT64_MAX ? 0 : round.lowest;
    if (step != NULL)
        *step = common;
    if (common == 0 && lane->is_empty) /* there is nothing to fill it with */
        error = lost_end(mpi, lane);
    return error;
}
