/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Corners that random sequences found or are slow to find, each as short as it can be.
 * One line for each that fails; all are tried.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tests/model/world.h"

enum { READER = WORLD_RANKS_MAX, ELEMS = 4, ROW_BYTES = 4 * ELEMS };

struct corner {
    struct world world;
    uint64_t n_written; /* updates so far: each writes another byte */
    const char *failure;
};

static const struct kvw_layer layer_0 = {0};

static void expect(struct corner *corner, bool is_right, const char *claim)
{
    if (!is_right && corner->failure == NULL)
        corner->failure = claim;
}

/* One group, one layer, one lane; `head_parts` heads; kind row where a chunk is larger
 * than the ring's part of the window. */
static void start(struct corner *corner, uint32_t head_parts, uint32_t row_parts,
                  uint64_t window, uint64_t sink, uint64_t chunk, uint64_t keep)
{
    struct kvw_geometry geometry = {.n_groups = 1, .n_lanes = 1, .n_layers = 1};
    struct kvw_geometry_group *group = &geometry.group[0];
    struct kvw_refusal refusal;

    geometry.n_ranks = head_parts * row_parts;
    geometry.partition = (struct kvw_geometry_partition){.head_parts = head_parts,
                                                         .layer_parts = 1,
                                                         .lane_parts = 1,
                                                         .row_parts = row_parts,
                                                         .row_block = row_parts > 1};
    *group = (struct kvw_geometry_group){
        .window_rows = window,
        .sink_rows = sink,
        .chunk_rows_max = chunk,
        .keep_rows = keep,
        .slack_chunks = 1,
        .n_layers = 1,
        .n_heads = head_parts,
        .n_planes = 1,
        .policy = KVW_GEOMETRY_ROLL,
        .kind = window < sink + chunk ? KVW_GEOMETRY_ROW : KVW_GEOMETRY_CHUNK,
        .positions = KVW_GEOMETRY_ABSOLUTE,
        .name = "g"};
    group->plane[0] = (struct kvw_geometry_plane){
        .elems = ELEMS, .type = KVW_GEOMETRY_F32, .name = "k"};
    *corner = (struct corner){.failure = NULL};
    expect(corner, geometry_check(&geometry, &refusal) == 0, "the geometry is right");
    expect(corner, world_init(&corner->world, &geometry) == 0, "there is memory");
    for (uint32_t rank = 0; rank < geometry.n_ranks; rank++)
        expect(corner, world_attach(&corner->world, rank) == 0, "a rank attaches");
    expect(corner, world_attach(&corner->world, READER) == 0, "a reader attaches");
}

static int begin(struct corner *corner, uint32_t rank, uint64_t row, uint64_t n)
{
    const struct kvw_item item = {.row = row, .n = n};
    return kvw_begin(corner->world.seat[rank], 0, &item, 1, NULL);
}

/* A whole chunk: begin, one update, commit. */
static int add(struct corner *corner, uint32_t rank, uint64_t row, uint64_t n)
{
    static char data[16 * ROW_BYTES];
    const struct kvw_source source = {data, ROW_BYTES, 0};
    struct kvw_cache *cache = corner->world.seat[rank];

    int error = begin(corner, rank, row, n);
    if (error != 0)
        return error;
    memset(data, (int)++corner->n_written, sizeof data);
    error = kvw_update(cache, 0, layer_0, 0, n, &source);
    return error != 0 ? error : kvw_commit(cache, 0, NULL, 0);
}

static int keep(struct corner *corner, uint32_t rank, uint64_t row, uint64_t n)
{
    const struct kvw_item item = {.row = row, .n = n};
    return kvw_keep(corner->world.seat[rank], 0, &item, 1);
}

/* A number of all bytes that a view shows. */
static uint64_t bytes_of(const struct kvw_view *view)
{
    uint64_t sum = 1;

    for (uint32_t i = 0; i < view->n_pieces; i++) {
        for (uint32_t h = 0; h < view->n_heads; h++) {
            const char *at = kvw_piece_at(&view->plane[0], &view->piece[i], h);
            for (uint32_t b = 0; b < view->piece[i].n_rows * ROW_BYTES; b++)
                sum = world_mix(sum, (uint8_t)at[b], 5);
        }
    }
    return sum;
}

/* Kept rows lie in an extent that is used again: a view without a pin must learn of it.
 */
static void unpinned_view_of_kept_rows_learns_of_their_end(struct corner *corner)
{
    struct kvw_view view;

    start(corner, 1, 1, 4, 0, 2, 2);
    expect(corner, add(corner, 0, 0, 2) == 0, "add");
    expect(corner, keep(corner, 0, 0, 2) == 0, "keep");
    expect(corner, add(corner, 0, 2, 2) == 0 && add(corner, 0, 4, 2) == 0, "roll");
    expect(corner,
           kvw_get(corner->world.seat[READER], 0, layer_0, KVW_UNPINNED, &view) == 0,
           "get");
    uint64_t before = bytes_of(&view);
    expect(corner, keep(corner, 0, 0, 0) == 0, "drop");
    expect(corner, keep(corner, 0, 4, 2) == 0, "keep others");
    bool is_changed = bytes_of(&view) != before;
    int error = kvw_release(corner->world.seat[READER], &view);
    expect(corner, is_changed ? error == -KVW_EOVERRUN : true,
           "release of a view whose kept rows were overwritten answers -KVW_EOVERRUN");
}

/* The same with a pin: the extent is not used again. */
static void pinned_kept_rows_stay(struct corner *corner)
{
    struct kvw_view view;

    start(corner, 1, 1, 4, 0, 2, 2);
    expect(corner, add(corner, 0, 0, 2) == 0, "add");
    expect(corner, keep(corner, 0, 0, 2) == 0, "keep");
    expect(corner, add(corner, 0, 2, 2) == 0 && add(corner, 0, 4, 2) == 0, "roll");
    expect(corner, kvw_get(corner->world.seat[READER], 0, layer_0, 0, &view) == 0,
           "get");
    uint64_t before = bytes_of(&view);
    expect(corner, keep(corner, 0, 0, 0) == 0, "drop");
    expect(corner, keep(corner, 0, 4, 2) == -EBUSY, "the extent is pinned");
    expect(corner, bytes_of(&view) == before, "pinned rows stay as they are");
    expect(corner, kvw_release(corner->world.seat[READER], &view) == 0, "release");
    expect(corner, keep(corner, 0, 4, 2) == 0, "keep when the pin is gone");
}

/* Ranks that share the rows of a layer share its memory: rank 0 must not write over
 * rows of rank 1 that somebody holds. W 3, chunk 2: 5 rows would make row 6 of rank 0
 * lie where row 1 of rank 1 lay. */
static void pin_on_split_rows_holds_against_all_ranks_of_the_ring(struct corner *corner)
{
    struct kvw_view view;

    start(corner, 1, 2, 3, 0, 2, 0);
    for (uint64_t row = 0; row < 4; row += 2)
        expect(corner, add(corner, 0, row, 2) == 0 && add(corner, 1, row, 2) == 0,
               "add");
    expect(corner, kvw_cut(corner->world.seat[READER], 0, layer_0, 2, 0, &view) == 0,
           "cut of rank 1");
    uint64_t before = bytes_of(&view);
    expect(corner, add(corner, 0, 4, 2) == 0 && add(corner, 1, 4, 2) == 0, "add");
    (void)add(corner, 0, 6, 2);
    expect(corner, bytes_of(&view) == before,
           "a pinned row is not overwritten, by no rank of its ring");
    expect(corner, kvw_release(corner->world.seat[READER], &view) == 0, "release");
}

/* The same in the keep extent, where a place is another rank's each time. */
static void pin_on_split_kept_rows_holds_against_all_ranks(struct corner *corner)
{
    struct kvw_view view;

    start(corner, 1, 2, 4, 0, 2, 2);
    for (uint32_t rank = 0; rank < 2; rank++)
        expect(corner, add(corner, rank, 0, 2) == 0 && keep(corner, rank, 0, 2) == 0,
               "add and keep");
    for (uint64_t row = 2; row < 8; row += 2)
        expect(corner, add(corner, 0, row, 2) == 0 && add(corner, 1, row, 2) == 0,
               "add");
    expect(corner, kvw_cut(corner->world.seat[READER], 0, layer_0, 2, 0, &view) == 0,
           "cut of rank 1");
    uint64_t before = bytes_of(&view);
    expect(corner, keep(corner, 0, 0, 0) == 0 && keep(corner, 1, 0, 0) == 0, "drop");
    /* Rows 5 and 6: the first is rank 1's now. */
    expect(corner, keep(corner, 0, 5, 2) == -EBUSY,
           "keep answers that rows are pinned");
    expect(corner, bytes_of(&view) == before,
           "a pinned kept row is not overwritten, by no rank of its layer");
    expect(corner, kvw_release(corner->world.seat[READER], &view) == 0, "release");
}

/* Rank 1 keeps other rows than rank 0 did: refused, and nothing may have been written
 * where rank 0's kept rows lie. */
static void refused_keep_writes_nothing(struct corner *corner)
{
    struct kvw_view view;

    start(corner, 1, 2, 4, 0, 2, 2);
    for (uint64_t row = 0; row < 4; row += 2)
        expect(corner, add(corner, 0, row, 2) == 0 && add(corner, 1, row, 2) == 0,
               "add");
    expect(corner, kvw_get(corner->world.seat[0], 0, layer_0, KVW_UNPINNED, &view) == 0,
           "get");
    uint64_t want = *(const uint64_t *)kvw_piece_at(&view.plane[0], &view.piece[0], 0);
    expect(corner, view.piece[0].row == 0, "row 0 is shown");
    expect(corner, kvw_release(corner->world.seat[0], &view) == 0, "release");
    expect(corner, keep(corner, 0, 0, 2) == 0, "keep");
    expect(corner, keep(corner, 1, 1, 2) == -KVW_EDIVERGED, "other rows are refused");
    expect(corner, keep(corner, 1, 0, 2) == 0, "the same rows are kept");
    for (uint64_t row = 4; row < 8; row += 2)
        expect(corner, add(corner, 0, row, 2) == 0 && add(corner, 1, row, 2) == 0,
               "add");
    expect(corner, kvw_get(corner->world.seat[0], 0, layer_0, 0, &view) == 0, "get");
    expect(corner,
           view.piece[0].row == 0 && view.piece[0].piece_class == KVW_PIECE_KEPT,
           "row 0 is kept");
    expect(corner,
           *(const uint64_t *)kvw_piece_at(&view.plane[0], &view.piece[0], 0) == want,
           "the kept row is as it was");
    expect(corner, kvw_release(corner->world.seat[0], &view) == 0, "release");
}

/* The same without a pin: the reader must learn of it. */
static void unpinned_view_of_split_rows_learns_of_other_ranks(struct corner *corner)
{
    struct kvw_view view;

    start(corner, 1, 2, 3, 0, 2, 0);
    for (uint64_t row = 0; row < 4; row += 2)
        expect(corner, add(corner, 0, row, 2) == 0 && add(corner, 1, row, 2) == 0,
               "add");
    expect(corner,
           kvw_cut(corner->world.seat[READER], 0, layer_0, 2, KVW_UNPINNED, &view) == 0,
           "cut of rank 1");
    uint64_t before = bytes_of(&view);
    expect(corner, add(corner, 0, 4, 2) == 0 && add(corner, 1, 4, 2) == 0, "add");
    (void)add(corner, 0, 6, 2);
    bool is_changed = bytes_of(&view) != before;
    int error = kvw_release(corner->world.seat[READER], &view);
    expect(corner, !is_changed || error == -KVW_EOVERRUN,
           "release answers -KVW_EOVERRUN after another rank of the ring wrote");
}

/* A rank that is late writes its first rows into slots that a fast rank must not have
 * taken for later ones. W 1, chunk 4: C = 5; row 7 lies where row 2 will. */
static void late_rank_of_split_rows_overwrites_nothing(struct corner *corner)
{
    struct kvw_view view;

    start(corner, 1, 2, 1, 0, 4, 0);
    expect(corner, add(corner, 1, 0, 4) == 0, "add");
    if (add(corner, 1, 4, 4) != 0)
        return; /* it waits for the late rank: right */
    expect(corner, kvw_get(corner->world.seat[1], 0, layer_0, 0, &view) == 0, "get");
    uint64_t before = bytes_of(&view);
    expect(corner, add(corner, 0, 0, 4) == 0, "the late rank adds");
    expect(corner, bytes_of(&view) == before, "rows of the fast rank stay");
    expect(corner, kvw_release(corner->world.seat[1], &view) == 0, "release");
}

/* Rows of a chunk of n, written but not committed. */
static int stage(struct corner *corner, uint32_t rank, uint64_t row, uint64_t n)
{
    static char data[16 * ROW_BYTES];
    const struct kvw_source source = {data, ROW_BYTES, 0};

    int error = begin(corner, rank, row, n);
    memset(data, (int)++corner->n_written, sizeof data);
    return error != 0 ? error
                      : kvw_update(corner->world.seat[rank], 0, layer_0, 0, n, &source);
}

/* Rank 0 has published the chunk that is shown and goes on; rank 1 commits what it has
 * written. Kind row, W 1, chunk 2: C = 3, row 3 lies where row 0 is. */
static void staged_view_learns_of_a_rank_that_went_on(struct corner *corner)
{
    struct kvw_view view;

    start(corner, 2, 1, 1, 0, 2, 0);
    expect(corner, add(corner, 0, 0, 2) == 0 && stage(corner, 1, 0, 2) == 0, "stage");
    expect(corner,
           kvw_cut(corner->world.seat[READER], 0, layer_0, 0, KVW_STAGED, &view) == 0,
           "cut");
    expect(corner, view.n_rows == 2, "rows of both are shown");
    uint64_t before = bytes_of(&view);
    expect(corner, kvw_commit(corner->world.seat[1], 0, NULL, 0) == 0, "commit");
    expect(corner, add(corner, 0, 2, 2) == 0, "rank 0 goes on");
    expect(corner, bytes_of(&view) != before, "over rows of the view");
    expect(corner, kvw_release(corner->world.seat[READER], &view) == -KVW_EOVERRUN,
           "release");
}

/* Ranks that do not have the same chunk open have none in common. */
static void chunks_of_other_sizes_are_not_shown(struct corner *corner)
{
    struct kvw_view view;

    start(corner, 2, 1, 4, 0, 2, 0);
    expect(corner, stage(corner, 0, 0, 2) == 0 && stage(corner, 1, 0, 1) == 0, "stage");
    expect(corner,
           kvw_cut(corner->world.seat[READER], 0, layer_0, 0, KVW_STAGED, &view) == 0 &&
               view.n_rows == 0,
           "the committed view");
    expect(corner, kvw_release(corner->world.seat[READER], &view) == 0, "release");
    expect(corner, stage(corner, 1, 0, 2) == 0, "the same");
    expect(corner,
           kvw_cut(corner->world.seat[READER], 0, layer_0, 0, KVW_STAGED, &view) == 0 &&
               view.n_rows == 2,
           "the chunk");
    expect(corner, kvw_release(corner->world.seat[READER], &view) == 0, "release");
}

/* After truncate into the sink, or reset, old claims must hide nothing. */
static void sink_is_shown_after_truncate_into_it(struct corner *corner)
{
    const struct kvw_item item = {.row = 1};
    struct kvw_view view;

    start(corner, 1, 1, 6, 2, 2, 0);
    for (uint64_t row = 0; row < 30; row += 2)
        expect(corner, add(corner, 0, row, 2) == 0, "add");
    expect(corner, kvw_truncate(corner->world.seat[0], 0, &item, 1) == 0, "truncate");
    for (uint32_t seat = 0; seat <= READER; seat += READER) {
        expect(corner, kvw_get(corner->world.seat[seat], 0, layer_0, 0, &view) == 0,
               "the sink can be viewed");
        expect(corner, view.n_rows == 1, "one row of the sink is left");
        expect(corner, kvw_release(corner->world.seat[seat], &view) == 0, "release");
    }
    expect(corner, add(corner, 0, 1, 2) == 0, "add");
}

/* Views have a bound, and reaching it is an answer. */
static void view_64_is_the_last(struct corner *corner)
{
    static struct kvw_view view[KVW_VIEWS_MAX + 1];
    struct kvw_cache *reader;

    start(corner, 1, 1, 4, 0, 2, 0);
    reader = corner->world.seat[READER];
    expect(corner, add(corner, 0, 0, 2) == 0, "add");
    for (uint32_t i = 0; i < KVW_VIEWS_MAX; i++)
        expect(corner, kvw_get(reader, 0, layer_0, 0, &view[i]) == 0, "get");
    expect(corner, kvw_get(reader, 0, layer_0, 0, &view[KVW_VIEWS_MAX]) == -EMFILE,
           "one more is -EMFILE");
    expect(corner, kvw_release(reader, &view[5]) == 0, "release");
    expect(corner, kvw_get(reader, 0, layer_0, 0, &view[5]) == 0, "and there is room");
    for (uint32_t i = 0; i < KVW_VIEWS_MAX; i++)
        expect(corner, kvw_release(reader, &view[i]) == 0, "release");
}

/* Numbers near the end of 64 bits are refused like any other. */
static void absurd_numbers_are_refused(struct corner *corner)
{
    static char data[64];
    const struct kvw_source source = {data, ROW_BYTES, 0};
    const uint64_t most = UINT64_MAX;
    const struct kvw_item item = {.row = most, .n = most};
    struct kvw_cache *cache;
    struct kvw_slots slots;

    start(corner, 1, 1, 4, 2, 2, 2);
    cache = corner->world.seat[0];
    expect(corner, begin(corner, 0, 0, most) == -EINVAL, "begin");
    expect(corner, begin(corner, 0, most, 2) == -EINVAL, "begin");
    expect(corner, begin(corner, 0, 0, 2) == 0, "begin");
    expect(corner, kvw_update(cache, 0, layer_0, most, 2, &source) == -EINVAL,
           "update");
    expect(corner, kvw_update(cache, 0, layer_0, most - 1, 2, &source) == -EINVAL,
           "update");
    expect(corner, kvw_update(cache, 0, layer_0, 1, most, &source) == -EINVAL,
           "update");
    expect(corner, kvw_slots(cache, 0, layer_0, most, 2, &slots) == -EINVAL, "slots");
    expect(corner, kvw_written(cache, 0, layer_0, most - 1, 2) == -EINVAL, "written");
    expect(corner, kvw_keep(cache, 0, &item, 1) == -EINVAL, "keep");
    expect(corner, kvw_evict(cache, 0, &item, 1) == -EINVAL, "evict");
    expect(corner, kvw_truncate(cache, 0, &item, 1) < 0, "truncate");
    expect(corner, kvw_abort(cache, 0) == 0, "abort");
}

/* Who calls recover twice, or at another time than the others, gets there all the same.
 */
static void recovery_ends_in_any_order(struct corner *corner)
{
    start(corner, 3, 1, 4, 0, 2, 0);
    expect(corner, add(corner, 0, 0, 2) == 0 && add(corner, 1, 0, 2) == 0, "add");
    expect(corner, kvw_recover(corner->world.seat[0], 0, 0, NULL) == -ETIMEDOUT,
           "alone");
    expect(corner, begin(corner, 0, 2, 2) == -ESTALE, "no begin after the promise");
    expect(corner, kvw_recover(corner->world.seat[1], 0, 0, NULL) == -ETIMEDOUT, "two");
    expect(corner, kvw_recover(corner->world.seat[2], 0, 0, NULL) == 0, "all");
    (void)!kvw_recover(corner->world.seat[2], 0, 0, NULL);
    for (uint32_t rank = 0; rank < 3; rank++)
        (void)!kvw_recover(corner->world.seat[rank], 0, 0, NULL);
    for (uint32_t i = 0; i < 6 && begin(corner, 0, 0, 2) != 0; i++)
        (void)!kvw_recover(corner->world.seat[i % 3], 0, 0, NULL);
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct kvw_lane_state state;
        int error = kvw_state(corner->world.seat[rank], 0, rank, &state);
        expect(corner, error == 0 && state.step == 0 && state.group[0].rows == 0,
               "all stand at the step that all had");
    }
    expect(corner, begin(corner, 0, 0, 2) == 0, "and go on from there");
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(struct corner *);
    } corners[] = {
        {"an unpinned view of kept rows learns of their end",
         unpinned_view_of_kept_rows_learns_of_their_end},
        {"pinned kept rows stay", pinned_kept_rows_stay},
        {"a pin on split rows holds against all ranks of the ring",
         pin_on_split_rows_holds_against_all_ranks_of_the_ring},
        {"a pin on split kept rows holds against all ranks",
         pin_on_split_kept_rows_holds_against_all_ranks},
        {"a refused keep writes nothing", refused_keep_writes_nothing},
        {"an unpinned view of split rows learns of other ranks",
         unpinned_view_of_split_rows_learns_of_other_ranks},
        {"a late rank of split rows overwrites nothing",
         late_rank_of_split_rows_overwrites_nothing},
        {"a staged view learns of a rank that went on",
         staged_view_learns_of_a_rank_that_went_on},
        {"chunks of other sizes are not shown", chunks_of_other_sizes_are_not_shown},
        {"the sink is shown after truncate into it",
         sink_is_shown_after_truncate_into_it},
        {"view 64 is the last", view_64_is_the_last},
        {"absurd numbers are refused", absurd_numbers_are_refused},
        {"recovery ends in any order", recovery_ends_in_any_order},
    };
    const uint32_t n_corners = sizeof corners / sizeof corners[0];
    uint32_t n_failed = 0;

    for (uint32_t i = 0; i < n_corners; i++) {
        struct corner corner;
        corners[i].run(&corner);
        if (corner.failure != NULL) {
            printf("corners: %s: not so: %s\n", corners[i].name, corner.failure);
            n_failed++;
        }
        world_fini(&corner.world);
    }
    printf("%u of %u corners hold\n", n_corners - n_failed, n_corners);
    return n_failed == 0 ? 0 : 1;
}
