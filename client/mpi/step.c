/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of a lane over all boxes. Each box publishes every step, if need be one without rows
 * (a row is begun and none of it is committed), so that the number of a step means the same
 * everywhere. A commit sends its number and a digest of what it was to the others and waits
 * for nothing; the next begin waits for theirs, and says them to the box with kvw_outside().
 *
 * Where rows are split over boxes, a box's number of rows does not say the whole cache's: the
 * group's epoch does.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/mpi/inside.h"
#include "proto/rules.h"

#define WHAT_BYTES 96

static bool is_split(const struct kvw_mpi *mpi, uint32_t group)
{
    return mpi->group[group].rows.period != 0;
}

struct mpi_lane *lane_here(const struct kvw_mpi *mpi, const char *what, uint32_t lane)
{
    uint32_t here;

    if (check_whole(mpi, what) != 0)
        return NULL;
    if (kvw_mpi_here(mpi, lane, (struct kvw_layer){0}, &here, NULL) != 0)
        return NULL;
    return &mpi->lane[here];
}

static int lane_error(const struct kvw_mpi *mpi)
{
    return mpi->is_broken ? -EPIPE : -ERANGE;
}

uint64_t rows_of(const struct kvw_mpi *mpi, uint32_t group,
                 const struct kvw_group_state *state)
{
    return is_split(mpi, group) ? state->epoch : state->rows;
}

int kvw_mpi_state(const struct kvw_mpi *mpi, uint32_t lane,
                  struct kvw_lane_state *state)
{
    struct kvw_lane_state box;
    uint32_t here;

    int error = kvw_mpi_here(mpi, lane, (struct kvw_layer){0}, &here, NULL);
    if (error != 0)
        return error;
    error = kvw_state(mpi->cache, here, mpi->box_rank, &box);
    if (error != 0)
        return told_by_kvw(error, "state");
    *state = box;
    state->n_groups = mpi->spec.n_groups;
    memset(state->group, 0, sizeof state->group);
    for (uint32_t g = 0; g < mpi->spec.n_groups; g++) {
        if (!mpi->group[g].is_here)
            continue;
        const struct kvw_group_state *from = &box.group[mpi->group[g].index];
        struct kvw_group_state *to = &state->group[g];
        *to = *from;
        if (!is_split(mpi, g))
            continue;
        to->rows = from->epoch;
        to->epoch = 0;
        to->evicted = box_row(&mpi->group[g].rows, from->evicted);
        to->evicted = from->evicted == 0 ? 0 : to->evicted;
        to->first = rules_window_first(&mpi->rules[g], to->rows, to->evicted);
        to->open = mpi->lane[here].open[g].is_open ? mpi->lane[here].open[g].n : 0;
    }
    return 0;
}

int step_read(struct kvw_mpi *mpi, uint32_t lane)
{
    struct kvw_lane_state state;

    int error = kvw_mpi_state(mpi, lane, &state);
    if (error == 0)
        mpi->lane[lane - mpi->lane_first].step = state.step;
    return error;
}

/* ------------------------------------------------------------------ tokens -------- */

static uint64_t digest_add(uint64_t digest, uint64_t number)
{
    for (int i = 0; i < 8; i++, number >>= 8) /* FNV-1a */
        digest = (digest ^ (number & 0xff)) * 0x100000001b3u;
    return digest;
}

static uint64_t digest_of(uint32_t kind, const struct kvw_item *items, uint32_t n_items)
{
    uint64_t digest = digest_add(0xcbf29ce484222325u, kind);

    for (uint32_t i = 0; i < n_items; i++) {
        digest = digest_add(digest, items[i].group);
        digest = digest_add(digest, items[i].row);
        digest = digest_add(digest, items[i].n);
    }
    return digest;
}

/* The places of a lane in other boxes; those of the own one see its boards. */
static uint64_t others_of(const struct kvw_mpi *mpi, uint32_t lane)
{
    uint64_t places = places_of_lane(mpi, lane);

    for (uint32_t i = 0; i < mpi->box_ranks; i++)
        places &= ~(1ull << box_place(&mpi->grid, mpi->box, i));
    return places;
}

/* Tell the others of the lane what was published, without waiting. */
static int tell(struct kvw_mpi *mpi, uint32_t lane_number, struct mpi_lane *lane)
{
    const uint64_t places = others_of(mpi, lane_number);
    const int tag = TAG_LANE + (int)lane_number;
    int error = 0;

    lane->mine = (struct token){lane->step, lane->digest};
    lane->is_told = true;
    for (uint32_t place = 0; place < mpi->n_places && error == 0; place++) {
        if ((places >> place & 1) == 0)
            continue;
        error = exchange_receive(mpi, &lane->exchange, place, tag, &lane->from[place],
                                 sizeof lane->from[place]);
        if (error == 0)
            error = exchange_send(mpi, &lane->exchange, place, tag, &lane->mine,
                                  sizeof lane->mine);
        mpi->counters.step_bytes += sizeof lane->mine;
    }
    return error;
}

/* Wait until all others have published the step before. */
static int hear(struct kvw_mpi *mpi, uint32_t lane_number, struct mpi_lane *lane,
                uint64_t row)
{
    const uint64_t places = others_of(mpi, lane_number);
    char what[WHAT_BYTES];

    if (!lane->is_told)
        return 0;
    snprintf(what, sizeof what, "begin of lane %u, row %" PRIu64 ": step %" PRIu64,
             lane_number, row, lane->step);
    int error = exchange_wait(mpi, &lane->exchange, what);
    if (error != 0)
        return error;
    lane->is_told = false;
    for (uint32_t place = 0; place < mpi->n_places; place++) {
        const struct token *token = &lane->from[place];
        if ((places >> place & 1) == 0)
            continue;
        if (token->step != lane->step || token->digest != lane->mine.digest)
            return told(-KVW_EDIVERGED, "%s: %s published step %" PRIu64 ", and %s",
                        what, who_is(mpi, place).text, token->step,
                        token->step == lane->step ? "it was another step"
                                                  : "that is another number");
    }
    return 0;
}

/* Before a step: who lags, and is the recovery done? */
static int ready(struct kvw_mpi *mpi, uint32_t lane_number, struct mpi_lane *lane,
                 uint64_t row)
{
    int error = hear(mpi, lane_number, lane, row);

    if (error != 0)
        return error;
    error = kvw_outside(mpi->cache, lane_number - mpi->lane_first,
                        mpi->n_boxes > 1 ? lane->step : UINT64_MAX);
    return error == 0 ? 0 : told_by_kvw(error, "begin");
}

/* ------------------------------------------------------------------- begin -------- */

static int check_items(const struct kvw_mpi *mpi, const struct kvw_item *items,
                       uint32_t n_items, const char *what)
{
    if (n_items > mpi->spec.n_groups || (n_items > 0 && items == NULL))
        return told(-EINVAL, "%s: at most %u groups, have %u", what, mpi->spec.n_groups,
                    n_items);
    for (uint32_t i = 0; i < n_items; i++) {
        if (items[i].group >= mpi->spec.n_groups)
            return told(-EINVAL, "%s: there is no group %u", what, items[i].group);
        if (items[i].has_epoch && is_split(mpi, items[i].group))
            return told(-ENOTSUP,
                        "%s: group '%s': its rows are split over boxes, so its epoch "
                        "is their number",
                        what, mpi->spec.group[items[i].group].name);
    }
    return 0;
}

/* The item of a chunk in the box's own numbers. */
static int item_here(const struct kvw_mpi *mpi, const struct kvw_item *item,
                     const struct kvw_lane_state *state, struct open_group *open,
                     struct kvw_item *here)
{
    const struct box_group *group = &mpi->group[item->group];
    const struct kvw_spec_group *spec = &mpi->spec.group[item->group];
    const uint64_t rows = state->group[item->group].rows;

    *open = (struct open_group){true, item->row, item->n, 0};
    *here = *item;
    here->group = group->index;
    if (!is_split(mpi, item->group)) {
        open->n_here = item->n;
        return 0;
    }
    if (item->row != rows || item->n == 0 || item->n > spec->chunk_rows_max)
        return told(-EINVAL,
                    "begin: group '%s': need row %" PRIu64 " and 1 to %" PRIu64
                    " rows, have %" PRIu64 " and %" PRIu64,
                    spec->name, rows, spec->chunk_rows_max, item->row, item->n);
    if (spec->policy == KVW_REFUSE && item->row + item->n > spec->window_rows)
        return told(-ENOSPC,
                    "begin: group '%s' has room for %" PRIu64 " rows, need %" PRIu64,
                    spec->name, spec->window_rows, item->row + item->n);
    here->row = box_rows_before(&group->rows, item->row);
    open->n_here = box_rows_before(&group->rows, item->row + item->n) - here->row;
    here->n = open->n_here > 0 ? open->n_here : 1;
    here->has_epoch = 1;
    here->epoch = item->row + item->n;
    return 0;
}

/* What is to be said of a chunk whose rows are split: the rules of the whole cache. */
static struct kvw_begun begun_of(const struct kvw_mpi *mpi, uint32_t g,
                                 const struct open_group *open)
{
    const struct kvw_geometry_group *rules = &mpi->rules[g];
    const struct kvw_group_record record = {.rows = open->row};
    const uint64_t before = rules_window_first(rules, open->row, 0);
    const uint64_t after = rules_staged_first(rules, open->row, 0, open->n);

    return (struct kvw_begun){
        .row = open->row,
        .n = open->n,
        .position = rules_chunk_position(rules, &record, open->n),
        .evict_first = before < open->row ? before : open->row,
        .evict_end = after < open->row ? after : open->row,
    };
}

static int begin_here(struct kvw_mpi *mpi, uint32_t here, struct mpi_lane *lane,
                      const struct kvw_item *items, uint32_t n_items,
                      const struct kvw_lane_state *state, struct kvw_begun *begun)
{
    struct kvw_item of_box[KVW_GROUPS_MAX];
    struct kvw_begun said[KVW_GROUPS_MAX];
    struct open_group open[KVW_GROUPS_MAX] = {{0}};
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_items; i++) {
        if (!mpi->group[items[i].group].is_here)
            continue;
        int error =
            item_here(mpi, &items[i], state, &open[items[i].group], &of_box[n++]);
        if (error != 0)
            return error;
    }
    int error = n > 0 ? kvw_begin(mpi->cache, here, of_box, n, said)
                      : kvw_abort(mpi->cache, here);
    if (error != 0)
        return told_by_kvw(error, "begin");
    memcpy(lane->open, open, sizeof open);
    lane->is_idle = n == 0;
    for (uint32_t i = 0, b = 0; i < n_items && begun != NULL; i++) {
        const uint32_t g = items[i].group;
        begun[i] = (struct kvw_begun){.row = items[i].row, .n = items[i].n};
        if (mpi->group[g].is_here) {
            begun[i] = is_split(mpi, g) ? begun_of(mpi, g, &open[g]) : said[b];
            b++;
        }
    }
    return 0;
}

int kvw_mpi_begin(struct kvw_mpi *mpi, uint32_t lane_number,
                  const struct kvw_item *items, uint32_t n_items,
                  struct kvw_begun *begun)
{
    struct mpi_lane *lane = lane_here(mpi, "begin", lane_number);
    struct kvw_lane_state state;

    if (lane == NULL)
        return lane_error(mpi);
    int error = check_items(mpi, items, n_items, "begin");
    if (error == 0 && n_items == 0)
        error = told(-EINVAL, "begin: no group is named");
    if (error == 0)
        error = ready(mpi, lane_number, lane, items[0].row);
    if (error == 0)
        error = kvw_mpi_state(mpi, lane_number, &state);
    if (error == 0)
        error = begin_here(mpi, lane_number - mpi->lane_first, lane, items, n_items,
                           &state, begun);
    if (error != 0)
        return error;
    lane->step = state.step;
    lane->is_open = true;
    lane->digest = digest_of(0, items, n_items);
    memset(mpi->passes, 0,
           kvw_cache_spec(mpi->cache)->n_layers * sizeof mpi->passes[0]);
    return 0;
}

int kvw_mpi_abort(struct kvw_mpi *mpi, uint32_t lane_number)
{
    struct mpi_lane *lane = lane_here(mpi, "abort", lane_number);

    if (lane == NULL)
        return lane_error(mpi);
    lane->is_open = false;
    int error = kvw_abort(mpi->cache, lane_number - mpi->lane_first);
    return error == 0 ? 0 : told_by_kvw(error, "abort");
}

/* ------------------------------------------------------------------ update -------- */

static uint32_t group_of(const struct kvw_mpi *mpi, struct kvw_layer layer)
{
    uint32_t g = 0;

    while (g + 1 < mpi->spec.n_groups &&
           layer.index - mpi->group[g].layers.first >= mpi->group[g].layers.n)
        g++;
    return g;
}

/* The run of rows [at, end) of a chunk that the box has from the first of them on. */
static uint64_t next_run(const struct row_map *rows, uint64_t *at, uint64_t end)
{
    if (rows->period == 0)
        return end - *at;
    const uint64_t here = box_rows_before(rows, *at);
    const uint64_t first = box_row(rows, here);
    *at = first;
    if (first >= end)
        return 0;
    const uint64_t left = rows->mine - here % rows->mine;
    return left < end - first ? left : end - first;
}

int kvw_mpi_update(struct kvw_mpi *mpi, uint32_t lane_number, struct kvw_layer layer,
                   uint64_t row_first, uint64_t n_rows,
                   const struct kvw_source *sources)
{
    const struct mpi_lane *lane = lane_here(mpi, "update", lane_number);
    struct kvw_layer here;
    uint32_t lane_at;

    if (lane == NULL)
        return lane_error(mpi);
    int error = kvw_mpi_here(mpi, lane_number, layer, &lane_at, &here);
    if (error != 0)
        return error;
    const uint32_t g = group_of(mpi, layer);
    const struct open_group *open = &lane->open[g];
    const struct row_map *rows = &mpi->group[g].rows;
    if (!lane->is_open || !open->is_open || row_first > open->n ||
        n_rows > open->n - row_first)
        return told(-EINVAL,
                    "update: rows [%" PRIu64 ", +%" PRIu64 ") of a chunk of %" PRIu64,
                    row_first, n_rows, lane->is_open ? open->n : 0);
    const uint64_t first = open->row + row_first;
    for (uint64_t at = first; at < first + n_rows && error == 0;) {
        struct kvw_source from[KVW_PLANES_MAX];
        const uint64_t n = next_run(rows, &at, first + n_rows);
        if (n == 0)
            break;
        for (uint32_t p = 0; p < mpi->spec.group[g].n_planes; p++) {
            from[p] = sources[p];
            from[p].data = (const char *)sources[p].data +
                           (ptrdiff_t)(at - first) * sources[p].row_bytes;
        }
        const uint64_t at_here =
            box_rows_before(rows, at) - box_rows_before(rows, open->row);
        error = kvw_update(mpi->cache, lane_at, here, at_here, n, from);
        mpi->passes[here.index]++;
        at += n;
    }
    return error == 0 ? 0 : told_by_kvw(error, "update");
}

/* ------------------------------------------------------------------ commit -------- */

/* A step of a box in which nothing of it changes. */
static int publish_nothing(struct kvw_mpi *mpi, uint32_t here)
{
    struct kvw_lane_state state;

    int error = kvw_state(mpi->cache, here, mpi->box_rank, &state);
    if (error == 0) {
        const struct kvw_item item = {.group = 0, .row = state.group[0].evicted};
        error = kvw_evict(mpi->cache, here, &item, 1);
    }
    return error;
}

static int commit_here(struct kvw_mpi *mpi, uint32_t here, const struct mpi_lane *lane)
{
    struct kvw_item items[KVW_GROUPS_MAX];
    uint32_t n = 0;

    if (lane->is_idle)
        return publish_nothing(mpi, here);
    for (uint32_t g = 0; g < mpi->spec.n_groups; g++) {
        if (lane->open[g].is_open && mpi->group[g].is_here)
            items[n++] = (struct kvw_item){.group = mpi->group[g].index,
                                           .n = lane->open[g].n_here};
    }
    return kvw_commit(mpi->cache, here, items, n);
}

int kvw_mpi_commit(struct kvw_mpi *mpi, uint32_t lane_number)
{
    struct mpi_lane *lane = lane_here(mpi, "commit", lane_number);

    if (lane == NULL)
        return lane_error(mpi);
    if (!lane->is_open)
        return told(-EINVAL, "commit: lane %u: nothing is open", lane_number);
    int error = commit_here(mpi, lane_number - mpi->lane_first, lane);
    if (error != 0)
        return told_by_kvw(error, "commit");
    lane->is_open = false;
    lane->step++;
    return tell(mpi, lane_number, lane);
}

/* ------------------------------------------------------------------ others -------- */

static int change_here(struct kvw_mpi *mpi, uint32_t here, uint32_t change,
                       const struct kvw_item *items, uint32_t n)
{
    if (n == 0)
        return publish_nothing(mpi, here);
    switch (change) {
    case KVW_MPI_TRUNCATE:
        return kvw_truncate(mpi->cache, here, items, n);
    case KVW_MPI_EVICT:
        return kvw_evict(mpi->cache, here, items, n);
    default:
        return kvw_reset(mpi->cache, here, items, n);
    }
}

static int change_item(const struct kvw_mpi *mpi, uint32_t change,
                       const struct kvw_item *item, const struct kvw_lane_state *state,
                       struct kvw_item *here)
{
    const struct box_group *group = &mpi->group[item->group];
    const uint64_t rows = state->group[item->group].rows;

    *here = *item;
    here->group = group->index;
    if (!is_split(mpi, item->group))
        return 0;
    if (change != KVW_MPI_RESET && item->row > rows)
        return told(-EINVAL,
                    "change: group '%s' has %" PRIu64 " rows, have row %" PRIu64,
                    mpi->spec.group[item->group].name, rows, item->row);
    if (change == KVW_MPI_EVICT &&
        mpi->spec.group[item->group].positions == KVW_POSITIONS_WINDOW)
        return told(
            -ENOTSUP,
            "change: group '%s': with positions relative to the window, rows that "
            "are split over boxes are not evicted",
            mpi->spec.group[item->group].name);
    here->row = box_rows_before(&group->rows, item->row);
    here->has_epoch = 1;
    here->epoch = change == KVW_MPI_RESET      ? 0
                  : change == KVW_MPI_TRUNCATE ? item->row
                                               : rows;
    return 0;
}

int kvw_mpi_change(struct kvw_mpi *mpi, uint32_t lane_number, uint32_t change,
                   const struct kvw_item *items, uint32_t n_items)
{
    struct mpi_lane *lane = lane_here(mpi, "change", lane_number);
    struct kvw_item here[KVW_GROUPS_MAX];
    struct kvw_lane_state state;
    uint32_t n = 0;

    if (lane == NULL)
        return lane_error(mpi);
    if (change < KVW_MPI_TRUNCATE || change > KVW_MPI_RESET || n_items == 0)
        return told(-EINVAL, "change: no such change, or of no group");
    int error = check_items(mpi, items, n_items, "change");
    if (error == 0)
        error = ready(mpi, lane_number, lane, items[0].row);
    if (error == 0)
        error = kvw_mpi_state(mpi, lane_number, &state);
    for (uint32_t i = 0; i < n_items && error == 0; i++) {
        if (mpi->group[items[i].group].is_here)
            error = change_item(mpi, change, &items[i], &state, &here[n++]);
    }
    if (error != 0)
        return error;
    lane->is_open = false;
    error = change_here(mpi, lane_number - mpi->lane_first, change, here, n);
    if (error != 0)
        return told_by_kvw(error, "change");
    lane->step = state.step + 1;
    lane->digest = digest_of(change, items, n_items);
    return tell(mpi, lane_number, lane);
}
