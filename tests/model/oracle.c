/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds what, which rows a view shows, and the arithmetic of the rules. */
#include "tests/model/oracle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/align.h"

void oracle_init(struct oracle *oracle, const struct kvw_geometry *geometry)
{
    *oracle = (struct oracle){.geometry = geometry};
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++)
        oracle->seat[rank] = KVW_SEAT_FREE;
    for (uint32_t l = 0; l < geometry->n_lanes; l++) {
        struct m_lane *lane = &oracle->lane[l];
        lane->steps_max = 64;
        lane->step = calloc(lane->steps_max, sizeof *lane->step);
        KVW_CHECK(lane->step != NULL);
        lane->n_steps = 1;
        lane->outside = UINT64_MAX;
        for (uint32_t g = 0; g < geometry->n_groups; g++)
            lane->step[0].record.group[g].generation = 1;
        for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
            struct kvw_part part = oracle_part(oracle, 0, rank);
            lane->board[rank].is_held =
                l >= part.lane_first && l < part.lane_first + part.n_lanes;
        }
    }
}

void oracle_fini(struct oracle *oracle)
{
    for (uint32_t l = 0; l < M_LANES; l++) {
        free(oracle->lane[l].step);
        for (uint32_t rank = 0; rank < M_RANKS; rank++) {
            for (uint32_t layer = 0; layer < M_LAYERS; layer++)
                free(oracle->lane[l].board[rank].layer[layer].version);
        }
    }
}

/* As even as can be; the first parts get one more. */
static void share(uint32_t count, uint32_t parts, uint32_t part, uint32_t *first,
                  uint32_t *n)
{
    *first = 0;
    for (uint32_t i = 0; i < part; i++)
        *first += count / parts + (i < count % parts ? 1 : 0);
    *n = count / parts + (part < count % parts ? 1 : 0);
}

static uint32_t row_part_of(const struct kvw_geometry *geometry, uint32_t rank)
{
    return rank % geometry->partition.row_parts;
}

struct kvw_part oracle_part(const struct oracle *oracle, uint32_t group, uint32_t rank)
{
    const struct kvw_geometry *geometry = oracle->geometry;
    const struct kvw_geometry_partition *parts = &geometry->partition;
    const struct kvw_geometry_group *of = &geometry->group[group];
    uint32_t rest = rank / parts->row_parts;
    uint32_t head_part = rest % parts->head_parts;
    uint32_t layer_part = rest / parts->head_parts % parts->layer_parts;
    uint32_t lane_part = rest / parts->head_parts / parts->layer_parts;
    uint32_t n_model = 0;
    uint32_t first;
    uint32_t n;
    struct kvw_part part = {.layer_first = of->layer_first};

    share(of->n_heads, parts->head_parts, head_part, &part.head_first, &part.n_heads);
    share(geometry->n_lanes, parts->lane_parts, lane_part, &part.lane_first,
          &part.n_lanes);
    for (uint32_t i = 0; i < geometry->n_layers; i++) {
        if (geometry->model_layer[i] >= n_model)
            n_model = geometry->model_layer[i] + 1u;
    }
    share(n_model, parts->layer_parts, layer_part, &first, &n);
    for (uint32_t i = of->layer_first; i < of->layer_first + of->n_layers; i++) {
        if (geometry->model_layer[i] < first)
            part.layer_first = i + 1;
        else if (geometry->model_layer[i] < first + n)
            part.n_layers++;
    }
    return part;
}

static uint32_t group_of(const struct oracle *oracle, uint32_t layer)
{
    uint32_t group = 0;
    while (layer >= oracle->geometry->group[group].layer_first +
                        oracle->geometry->group[group].n_layers)
        group++;
    return group;
}

bool oracle_holds(const struct oracle *oracle, uint32_t layer, uint32_t rank)
{
    struct kvw_part part = oracle_part(oracle, group_of(oracle, layer), rank);

    return part.n_heads > 0 && layer >= part.layer_first &&
           layer < part.layer_first + part.n_layers;
}

bool oracle_has_row(const struct oracle *oracle, uint32_t rank, uint64_t row)
{
    const struct kvw_geometry_partition *parts = &oracle->geometry->partition;

    return parts->row_parts == 1 || row / parts->row_block % parts->row_parts ==
                                        row_part_of(oracle->geometry, rank);
}

uint64_t oracle_ranks(const struct oracle *oracle, uint32_t lane)
{
    uint64_t ranks = 0;
    for (uint32_t rank = 0; rank < oracle->geometry->n_ranks; rank++) {
        if (oracle->lane[lane].board[rank].is_held)
            ranks |= 1ull << rank;
    }
    return ranks;
}

uint64_t oracle_holders(const struct oracle *oracle, uint32_t lane, uint32_t layer)
{
    uint64_t ranks = 0;
    for (uint32_t rank = 0; rank < oracle->geometry->n_ranks; rank++) {
        if (oracle->lane[lane].board[rank].is_held && oracle_holds(oracle, layer, rank))
            ranks |= 1ull << rank;
    }
    return ranks;
}

const struct m_record *oracle_record(const struct oracle *oracle, uint32_t lane,
                                     uint32_t rank)
{
    const struct m_lane *of = &oracle->lane[lane];
    return &of->step[of->board[rank].step].record;
}

uint64_t oracle_low(const struct oracle *oracle, uint32_t group,
                    const struct m_group *at, uint64_t ahead)
{
    const struct kvw_geometry_group *of = &oracle->geometry->group[group];
    uint64_t ring_window = of->window_rows - of->sink_rows;
    uint64_t end = at->rows + ahead;
    uint64_t low = end > ring_window ? end - ring_window : 0;

    return max_u64(of->sink_rows, max_u64(at->evicted, low));
}

uint64_t oracle_ring_rows(const struct oracle *oracle, uint32_t group)
{
    const struct kvw_geometry_group *of = &oracle->geometry->group[group];
    const struct kvw_geometry_partition *parts = &oracle->geometry->partition;
    uint64_t rows = of->window_rows - of->sink_rows;

    if (of->policy == KVW_GEOMETRY_ROLL)
        rows += of->slack_chunks * of->chunk_rows_max;
    /* Where rows are split, a slot is one rank's for ever: whole rounds of the blocks.
     */
    const uint64_t period = (uint64_t)parts->row_block * parts->row_parts;
    if (of->policy == KVW_GEOMETRY_ROLL && parts->row_parts > 1)
        rows = (rows + period - 1) / period * period;
    return rows;
}

uint64_t oracle_min_step(const struct oracle *oracle, uint32_t lane, uint64_t ranks)
{
    uint64_t step = oracle->lane[lane].outside;
    for (uint32_t rank = 0; rank < oracle->geometry->n_ranks; rank++) {
        if ((ranks >> rank & 1) != 0)
            step = min_u64(step, oracle->lane[lane].board[rank].step);
    }
    return step;
}

bool oracle_may_truncate(const struct oracle *oracle, uint32_t lane, uint32_t rank,
                         uint32_t group, uint64_t row)
{
    struct m_group at = oracle_record(oracle, lane, rank)->group[group];

    if (row > at.rows)
        return false;
    if (row <= oracle->geometry->group[group].sink_rows)
        return true;
    at.rows = row;
    at.evicted = min_u64(at.evicted, row);
    for (uint32_t peer = 0; peer < oracle->geometry->n_ranks; peer++) {
        const struct m_board *board = &oracle->lane[lane].board[peer];
        if (!board->is_held)
            continue;
        /* Up to the sink's end no row of the ring is alive: its claims are void. */
        if (oracle_record(oracle, lane, peer)->group[group].rows <=
            oracle->geometry->group[group].sink_rows)
            continue;
        if (oracle_low(oracle, group, &at, 0) + oracle_ring_rows(oracle, group) <
            board->group[group].hi)
            return false;
    }
    return true;
}

uint64_t oracle_lowest(const struct oracle *oracle, uint32_t lane, uint32_t rank,
                       uint32_t group)
{
    uint64_t row = oracle_record(oracle, lane, rank)->group[group].rows;

    while (row > 0 && oracle_may_truncate(oracle, lane, rank, group, row - 1))
        row--;
    return row;
}

static void add_row(struct shown *shown, uint32_t *n, uint64_t row,
                    uint32_t piece_class, uint64_t slot)
{
    KVW_CHECK(*n < M_SHOWN);
    shown[(*n)++] =
        (struct shown){.row = row, .piece_class = piece_class, .slot = slot};
}

static uint64_t slot_of(const struct oracle *oracle, uint32_t group, uint64_t row)
{
    uint64_t sink = oracle->geometry->group[group].sink_rows;
    return row < sink ? row : sink + (row - sink) % oracle_ring_rows(oracle, group);
}

static const struct m_kept *kept_of(const struct m_group *at, uint64_t row)
{
    for (uint32_t k = 0; k < at->n_kept; k++) {
        if (row >= at->kept[k].first && row < at->kept[k].first + at->kept[k].n)
            return &at->kept[k];
    }
    return NULL;
}

/* Rows below the floor, and rows of ranks that are not asked, leave; after positions
 * were given, so that what begin said of the chunk is true in every layer and rank. */
static uint32_t leave_out(const struct oracle *oracle, uint64_t floor, uint64_t ranks,
                          struct shown *shown, uint32_t n_shown)
{
    uint32_t n_left = 0;

    for (uint32_t i = 0; i < n_shown; i++) {
        bool is_asked = false;
        for (uint32_t rank = 0; rank < oracle->geometry->n_ranks; rank++)
            is_asked |=
                (ranks >> rank & 1) != 0 && oracle_has_row(oracle, rank, shown[i].row);
        if (is_asked && shown[i].row >= floor)
            shown[n_left++] = shown[i];
    }
    return n_left;
}

/* By the window rule: indices, so that distances are right for the chunk's last query,
 * which sees the ring from `low_last`; its earlier ones see it from `low` (kind row).
 */
static void set_positions(const struct oracle *oracle, uint32_t group, uint64_t low,
                          uint64_t low_last, struct shown *shown, uint32_t n_shown)
{
    uint64_t n_always = 0;

    for (uint32_t i = 0; i < n_shown; i++) {
        bool is_always = shown[i].piece_class == KVW_PIECE_SINK ||
                         shown[i].piece_class == KVW_PIECE_KEPT;
        n_always += is_always;
    }
    for (uint32_t i = 0; i < n_shown; i++) {
        if (oracle->geometry->group[group].positions == KVW_GEOMETRY_ABSOLUTE)
            shown[i].position = shown[i].row;
        else if (i < n_always)
            shown[i].position = i + (low_last - low);
        else
            shown[i].position = n_always + shown[i].row - low;
    }
}

uint64_t oracle_prefix(const struct oracle *oracle, uint32_t lane, uint32_t rank,
                       uint32_t layer)
{
    const struct m_board *board = &oracle->lane[lane].board[rank];
    const uint32_t group = group_of(oracle, layer);
    uint64_t prefix = board->layer[layer].prefix;
    uint64_t rows = oracle_record(oracle, lane, rank)->group[group].rows;

    while (prefix < board->group[group].n &&
           !oracle_has_row(oracle, rank, rows + prefix))
        prefix++;
    return prefix;
}

uint32_t oracle_shown(const struct oracle *oracle, uint32_t lane, uint32_t layer,
                      uint64_t step, uint64_t ranks, const struct m_chunk *chunk,
                      uint64_t ahead, struct shown *shown)
{
    const struct m_lane *of = &oracle->lane[lane];
    const uint32_t group = group_of(oracle, layer);
    const struct kvw_geometry_group *geometry = &oracle->geometry->group[group];
    const struct m_record *record = &of->step[step].record;
    const struct m_group *at = &record->group[group];
    const uint64_t sink = geometry->sink_rows;
    const uint64_t keep_slot = sink + oracle_ring_rows(oracle, group);
    const uint64_t low = oracle_low(oracle, group, at, ahead);
    /* What the last query of the chunk sees of the ring starts here. */
    const uint64_t low_last =
        oracle_low(oracle, group, at, max_u64(ahead, chunk->open));
    /* A chunk that begins in the sink: its rows follow those before it. */
    const uint64_t low_ring = at->rows < sink ? at->rows : low;
    uint32_t n_shown = 0;

    for (uint64_t row = 0; row < sink && row < at->rows; row++)
        add_row(shown, &n_shown, row, KVW_PIECE_SINK, row);
    for (uint64_t row = sink; row < low_last; row++) {
        const struct m_kept *kept = kept_of(at, row);
        if (kept != NULL)
            add_row(shown, &n_shown, row, KVW_PIECE_KEPT,
                    keep_slot + kept->extent + (row - kept->first));
    }
    for (uint64_t row = low; row < at->rows; row++) {
        if (row >= low_last || kept_of(at, row) == NULL)
            add_row(shown, &n_shown, row, KVW_PIECE_PAST, slot_of(oracle, group, row));
    }
    for (uint64_t row = at->rows; row < at->rows + chunk->written; row++)
        add_row(shown, &n_shown, row, KVW_PIECE_CURRENT, slot_of(oracle, group, row));
    set_positions(oracle, group, low_ring, low_ring + (low_last - low), shown, n_shown);
    return leave_out(oracle, record->floor[layer], ranks, shown, n_shown);
}

bool oracle_stamp(const struct oracle *oracle, uint32_t lane, uint32_t rank,
                  uint32_t layer, uint64_t row, uint64_t step, uint64_t *stamp)
{
    const struct m_layer *of = &oracle->lane[lane].board[rank].layer[layer];
    const uint64_t generation =
        oracle->lane[lane].step[step].record.group[group_of(oracle, layer)].generation;

    for (uint32_t i = of->n_versions; i-- > 0;) {
        const struct m_version *version = &of->version[i];
        if (version->row == row && version->generation == generation &&
            version->step <= step) {
            *stamp = version->stamp;
            return true;
        }
    }
    return false;
}
