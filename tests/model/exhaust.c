/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All sequences of begin, write of one row, abort, commit, partial commit, truncate and
 * evict of one rank, over small windows, sinks, chunks and slacks, on the library
 * itself. States are told apart by what the ring holds (breadth first, each once);
 * every step out of every state is made by playing the shortest way to it and then that
 * step. After it:
 *
 *   R1, R5   the committed and the staged view show just the rows that the rules say,
 *            intact
 *   R6       truncate is refused just where the rule says; lowest() says the same
 *   R9       no row is shown that was not written
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/base/align.h"
#include "tests/model/world.h"

enum { SLOTS_MAX = 20, PATH_MAX_STEPS = 48, NEVER = 255 };

enum step_kind { BEGIN, WRITE, ABORT, COMMIT, TRUNCATE, EVICT };

struct step {
    uint8_t kind;
    uint8_t row; /* or rows */
};

/* What the rules know of a ring; bytes only, so that equal states are equal memory. */
struct state {
    uint8_t rows;
    uint8_t evicted;
    uint8_t hi;
    uint8_t open;
    uint8_t written;
    uint8_t slot[SLOTS_MAX]; /* row that lies there */
};

struct node {
    struct state state;
    uint32_t from;
    struct step step;
    uint8_t depth;
};

struct search {
    struct world world;
    char *fresh_control;
    const struct kvw_geometry_group *group;
    uint64_t ring; /* rows of it, C */
    uint64_t rows_max;
    struct node *node;
    uint32_t n_nodes;
    uint32_t nodes_max;
    uint32_t *table; /* hash table of nodes, 0 = free */
    uint32_t table_size;
    uint64_t n_steps;
    uint64_t n_refused;
    char failure[256];
};

static uint64_t low_of(const struct search *search, uint64_t end, uint64_t evicted)
{
    uint64_t sink = search->group->sink_rows;
    uint64_t ring_window = search->group->window_rows - sink;

    return max_u64(max_u64(sink, evicted), end > ring_window ? end - ring_window : 0);
}

static uint64_t slot_of(const struct search *search, uint64_t row)
{
    uint64_t sink = search->group->sink_rows;
    return row < sink ? row : sink + (row - sink) % search->ring;
}

static bool may_truncate(const struct search *search, const struct state *state,
                         uint64_t row)
{
    if (row > state->rows)
        return false;
    return row <= search->group->sink_rows ||
           low_of(search, row, min_u64(state->evicted, row)) + search->ring >=
               state->hi;
}

/* The state after a step; false if it is none that could be made. */
static bool next_state(const struct search *search, const struct state *state,
                       struct step step, struct state *next)
{
    uint64_t end = (uint64_t)state->rows + step.row;

    *next = *state;
    switch ((enum step_kind)step.kind) {
    case BEGIN:
        if (state->open > 0 || end > search->rows_max)
            return false;
        next->open = step.row;
        next->hi = (uint8_t)(state->rows <= search->group->sink_rows
                                 ? end
                                 : max_u64(state->hi, end));
        return true;
    case WRITE:
        if (state->written >= state->open)
            return false;
        next->slot[slot_of(search, state->rows + state->written)] =
            (uint8_t)(state->rows + state->written);
        next->written++;
        return true;
    case ABORT:
        next->open = next->written = 0;
        return state->open > 0;
    case COMMIT:
        if (state->open == 0 || step.row > state->written)
            return false;
        next->rows = (uint8_t)end;
        next->open = next->written = 0;
        return true;
    case TRUNCATE:
        next->rows = step.row;
        next->evicted = (uint8_t)min_u64(state->evicted, step.row);
        return state->open == 0 && may_truncate(search, state, step.row);
    case EVICT:
    default:
        next->evicted = step.row;
        return state->open == 0 && step.row >= state->evicted &&
               step.row <= state->rows;
    }
}

static uint64_t stamp_of(uint64_t row)
{
    return world_mix(row, 4, 2);
}

static int make(struct search *search, const struct state *state, struct step step)
{
    struct kvw_cache *cache = search->world.seat[0];
    char data[64];
    struct kvw_item item = {.row = step.row};
    const struct kvw_source source = {data, 0, 0};

    switch ((enum step_kind)step.kind) {
    case BEGIN:
        item = (struct kvw_item){.row = state->rows, .n = step.row};
        return kvw_begin(cache, 0, &item, 1, NULL);
    case WRITE:
        world_fill(data, &search->group->plane[0], 0, 0,
                   stamp_of((uint64_t)state->rows + state->written));
        return kvw_update(cache, 0, (struct kvw_layer){0}, state->written, 1, &source);
    case ABORT:
        return kvw_abort(cache, 0);
    case COMMIT:
        item = (struct kvw_item){.n = step.row};
        return kvw_commit(cache, 0, &item, 1);
    case TRUNCATE:
        return kvw_truncate(cache, 0, &item, 1);
    case EVICT:
    default:
        return kvw_evict(cache, 0, &item, 1);
    }
}

static bool fail(struct search *search, const char *what, int error)
{
    (void)snprintf(search->failure, sizeof search->failure, "%s -> %d (%s)", what,
                   error, error < 0 ? kvw_last_error() : "");
    return false;
}

/* One view: sink rows, then the ring from `low`, each intact. */
static bool check_view(struct search *search, uint32_t flags, uint64_t low,
                       uint64_t end)
{
    struct kvw_view view;
    uint64_t row = 0;
    uint64_t sink = search->group->sink_rows;

    int error = kvw_get(search->world.seat[0], 0, (struct kvw_layer){0}, flags, &view);
    if (error != 0)
        return fail(search, "get", error);
    for (uint32_t i = 0; i < view.n_pieces; i++) {
        for (uint32_t k = 0; k < view.piece[i].n_rows; k++, row++) {
            if (row >= sink && row < low)
                row = low;
            const char *at =
                (const char *)kvw_piece_at(&view.plane[0], &view.piece[i], 0) +
                k * view.plane[0].row_bytes;
            if (view.piece[i].row + k != row)
                return fail(search, "view: another row", 0);
            if (at != world_row(&search->world, 0, 0, 0, 0, slot_of(search, row)))
                return fail(search, "view: a row has moved", 0);
            if (!world_is_filled(at, &search->group->plane[0], 0, 0, stamp_of(row)))
                return fail(search, "view: a row is not intact", 0);
        }
    }
    if (row >= sink && row < low)
        row = low;
    if (row != max_u64(end, row >= sink && end <= low ? low : 0) && row != end)
        return fail(search, "view: rows are missing", 0);
    error = kvw_release(search->world.seat[0], &view);
    return error == 0 || fail(search, "release", error);
}

static bool check(struct search *search, const struct state *state)
{
    const uint64_t rows = state->rows;
    const uint64_t sink = search->group->sink_rows;
    uint64_t ahead =
        state->open == 0 || search->group->kind == KVW_GEOMETRY_CHUNK ? state->open : 1;
    uint64_t lowest;
    uint64_t want = rows;

    if (!check_view(search, KVW_COMMITTED, low_of(search, rows, state->evicted), rows))
        return false;
    if (state->open > 0 &&
        !check_view(search, KVW_STAGED, low_of(search, rows + ahead, state->evicted),
                    rows + state->written))
        return false;
    int error = kvw_lowest(search->world.seat[0], 0, 0, &lowest);
    while (want > 0 && may_truncate(search, state, want - 1))
        want--;
    if (error != 0 ||
        (lowest != want && rows > sink && !(want == 0 && lowest == sink + 1)))
        return fail(search, "lowest", error);
    return true;
}

/* Play the way to a node on a fresh cache. */
static bool go_to(struct search *search, uint32_t index)
{
    struct step path[PATH_MAX_STEPS];
    struct state state = search->node[0].state;
    uint32_t n = 0;

    for (uint32_t at = index; at != 0; at = search->node[at].from)
        path[n++] = search->node[at].step;
    if (search->world.seat[0] != NULL)
        world_detach(&search->world, 0);
    memcpy(search->world.control, search->fresh_control,
           search->world.layout.control_bytes);
    memset(search->world.data, WORLD_POISON, search->world.layout.data_bytes);
    int error = world_attach(&search->world, 0);
    if (error != 0)
        return fail(search, "attach", error);
    while (n-- > 0) {
        struct state next;
        error = make(search, &state, path[n]);
        if (error != 0 || !next_state(search, &state, path[n], &next))
            return fail(search, "a step that worked before", error);
        state = next;
    }
    return true;
}

/* Number of a state; a new one is noted. 0: there is no room for more. */
static uint32_t number_of(struct search *search, const struct state *state,
                          uint32_t from, struct step step)
{
    uint64_t hash = 1;
    const uint8_t *byte = (const uint8_t *)state;

    for (size_t i = 0; i < sizeof *state; i++)
        hash = (hash ^ byte[i]) * 0x100000001b3ull;
    uint32_t at = (uint32_t)(hash >> 20) % search->table_size;
    while (search->table[at] != 0) {
        uint32_t index = search->table[at];
        if (memcmp(&search->node[index].state, state, sizeof *state) == 0)
            return index;
        at = (at + 1) % search->table_size;
    }
    if (search->n_nodes == search->nodes_max ||
        search->node[from].depth + 1 == PATH_MAX_STEPS)
        return 0;
    search->table[at] = search->n_nodes;
    search->node[search->n_nodes] =
        (struct node){.state = *state,
                      .from = from,
                      .step = step,
                      .depth = (uint8_t)(search->node[from].depth + 1)};
    return search->n_nodes++;
}

static void print_path(const struct search *search, uint32_t index, struct step last)
{
    static const char *const name[] = {"begin",  "write",    "abort",
                                       "commit", "truncate", "evict"};
    struct step path[PATH_MAX_STEPS + 1];
    uint32_t n = 0;

    path[n++] = last;
    for (uint32_t at = index; at != 0; at = search->node[at].from)
        path[n++] = search->node[at].step;
    printf("exhaust: W %" PRIu64 " S %" PRIu64 " chunk %" PRIu64
           " slack %u kind %u: %s\n after",
           search->group->window_rows, search->group->sink_rows,
           search->group->chunk_rows_max, search->group->slack_chunks,
           (unsigned)search->group->kind, search->failure);
    while (n-- > 0)
        printf(" %s(%u)", name[path[n].kind], path[n].row);
    printf("\n");
}

/* Every step out of a state, those that must be refused too. */
static bool expand(struct search *search, uint32_t index)
{
    const struct state state = search->node[index].state;
    const uint8_t end = (uint8_t)(state.rows + 1);
    const uint8_t most[] = {
        (uint8_t)search->group->chunk_rows_max, 0, 0, state.written, end, end};

    for (uint8_t kind = BEGIN; kind <= EVICT; kind++) {
        for (uint8_t row = kind == BEGIN; row <= most[kind]; row++) {
            struct step step = {kind, row};
            struct state next;
            bool is_possible = next_state(search, &state, step, &next);
            bool is_tried = is_possible || (kind >= TRUNCATE && state.open == 0);
            if (!is_tried)
                continue;
            search->n_steps++;
            if (!go_to(search, index))
                return print_path(search, index, step), false;
            int error = make(search, &state, step);
            int refusal = kind == TRUNCATE && row <= state.rows ? -ERANGE : -EINVAL;
            bool is_right = is_possible ? error == 0
                                        : error == refusal ||
                                              (row > state.rows && error == -ERANGE);
            if (!is_right)
                return fail(search, "the step", error), print_path(search, index, step),
                       false;
            search->n_refused += error != 0;
            if (!check(search, is_possible ? &next : &state))
                return print_path(search, index, step), false;
            if (is_possible)
                (void)number_of(search, &next, index, step);
        }
    }
    return true;
}

static void make_geometry(struct kvw_geometry *geometry, uint64_t sink, uint64_t chunk,
                          uint64_t ring_window, uint32_t slack, uint8_t kind)
{
    struct kvw_geometry_group *group = &geometry->group[0];

    world_geometry(geometry, 1, 1);
    group->window_rows = sink + ring_window;
    group->sink_rows = sink;
    group->chunk_rows_max = chunk;
    group->slack_chunks = slack;
    group->kind = kind;
    group->n_planes = 1;
    group->plane[0] =
        (struct kvw_geometry_plane){.elems = 2, .type = KVW_GEOMETRY_F32, .name = "k"};
}

static bool search_one(const struct kvw_geometry *geometry, uint32_t nodes_max,
                       struct search *total)
{
    struct search search = {.nodes_max = nodes_max, .n_nodes = 1};
    bool is_ok = true;

    if (world_init(&search.world, geometry) != 0)
        return false;
    search.group = &search.world.geometry.group[0];
    search.ring = geometry_ring_rows(geometry, 0);
    search.rows_max = search.group->sink_rows + 2 * search.ring + 1;
    search.table_size = 4 * nodes_max + 1;
    search.node = calloc(nodes_max, sizeof *search.node);
    search.table = calloc(search.table_size, sizeof *search.table);
    search.fresh_control = malloc(search.world.layout.control_bytes);
    KVW_CHECK(search.node != NULL && search.table != NULL &&
              search.fresh_control != NULL);
    KVW_CHECK(geometry_rows(geometry, 0) <= SLOTS_MAX);
    memcpy(search.fresh_control, search.world.control,
           search.world.layout.control_bytes);
    memset(search.node[0].state.slot, NEVER, SLOTS_MAX);
    for (uint32_t i = 0; i < search.n_nodes && is_ok; i++)
        is_ok = expand(&search, i);
    total->n_nodes += search.n_nodes;
    total->n_steps += search.n_steps;
    total->n_refused += search.n_refused;
    total->table_size += search.n_nodes < search.nodes_max;
    world_fini(&search.world);
    free(search.node);
    free(search.table);
    free(search.fresh_control);
    return is_ok;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Set `index`, smallest first; false past the last. */
static bool make_set(uint32_t index, struct kvw_geometry *geometry)
{
    const uint64_t sink = index % 3;
    const uint64_t ring_window = 1 + index / 3 % 4;
    const uint32_t slack = 1 + index / 12 % 2;
    const uint64_t chunk = 1 + index / 24;
    bool is_row = ring_window < chunk || (ring_window + slack) % 3 == 0;

    make_geometry(geometry, sink, chunk, ring_window, slack,
                  is_row ? KVW_GEOMETRY_ROW : KVW_GEOMETRY_CHUNK);
    return chunk <= 3;
}

int main(int argc, char **argv)
{
    if (argc > 1 && argv[1][0] == '-') {
        printf("usage: exhaust [STATES [SECONDS]]\n"
               "  STATES    states of one set of sizes, at most (1048576)\n"
               "  SECONDS   begin no set after these; all sets, if not given\n");
        return strcmp(argv[1], "--help") == 0 ? 0 : 2;
    }
    const uint32_t nodes_max =
        argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 1u << 20;
    const double end = argc > 2 ? now() + strtod(argv[2], NULL) : 1e300;
    struct search total = {0};
    struct kvw_geometry geometry;
    uint32_t n_sets = 0;

    printf("exhaust: all sequences in order, no seed\n");
    while (make_set(n_sets, &geometry) && now() < end) {
        if (!search_one(&geometry, nodes_max, &total))
            return 1;
        n_sets++;
    }
    printf("%u sets (%u in full), %u states, %" PRIu64 " steps out of them (%" PRIu64
           " refused as they must be)\n",
           n_sets, total.table_size, total.n_nodes, total.n_steps, total.n_refused);
    return 0;
}
