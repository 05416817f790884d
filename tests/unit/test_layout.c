/* SPDX-License-Identifier: Apache-2.0 */
/* The shared layout: nothing overlaps, everything is inside, and a damaged control
 * segment is refused in words. */
#include <criterion/criterion.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"
#include "tests/unit/random.h"

#define ROUNDS 400

/* Ranges that must follow each other within a segment. */
struct walk {
    uint64_t end;   /* of the range before */
    uint64_t bytes; /* of the segment */
};

static void walk_over(struct walk *walk, uint64_t offset, uint64_t n_bytes,
                      uint64_t alignment)
{
    cr_assert_geq(offset, walk->end);
    cr_assert_eq(offset % alignment, 0);
    cr_assert_leq(offset + n_bytes, walk->bytes);
    walk->end = offset + n_bytes;
}

/* Heads begin with a line; in a contiguous group the ring begins with a page instead.
 */
static uint64_t row_alignment(const struct kvw_geometry_group *group, uint64_t slot,
                              uint64_t elem_bytes)
{
    if (group->is_contiguous)
        return slot == group->sink_rows ? KVW_PAGE : elem_bytes;
    return slot == 0 ? KVW_CACHELINE : elem_bytes;
}

/* The order is [group][layer][plane][lane][head][row], with the checksums of a plane
 * behind its rows; in that order each row begins
 * where the one before has ended, or later, so that no two of them share a byte. */
static void walk_group(struct walk *walk, const struct kvw_geometry *geometry,
                       const struct kvw_layout *layout, uint32_t g)
{
    const struct kvw_geometry_group *group = &geometry->group[g];
    const uint64_t rows = geometry_rows(geometry, g);

    cr_assert_eq(layout->group[g].rows, rows);
    cr_assert_eq(layout->group[g].ring_rows, geometry_ring_rows(geometry, g));
    for (uint32_t layer = 0; layer < group->n_layers; layer++) {
        if (!group->is_contiguous)
            cr_assert_eq(layout_row_offset(layout, g, layer, 0, 0, 0, 0) % KVW_PAGE, 0);
        for (uint32_t p = 0; p < group->n_planes; p++) {
            const uint64_t elem_bytes = geometry_elem_bytes(group->plane[p].type);
            const uint64_t row_bytes = group->plane[p].elems * elem_bytes;

            for (uint32_t lane = 0; lane < geometry->n_lanes; lane++) {
                for (uint32_t head = 0; head < group->n_heads; head++) {
                    for (uint64_t slot = 0; slot < rows; slot++)
                        walk_over(
                            walk,
                            layout_row_offset(layout, g, layer, p, lane, head, slot),
                            row_bytes, row_alignment(group, slot, elem_bytes));
                }
            }
            for (uint32_t lane = 0; lane < geometry->n_lanes; lane++) {
                for (uint32_t head = 0;
                     head < group->n_heads && geometry->has_checksums; head++)
                    walk_over(walk,
                              layout_sum_offset(layout, group->n_heads, g, layer, p,
                                                lane, head, 0),
                              rows * 4, KVW_CACHELINE);
            }
        }
    }
}

Test(layout, contiguous_rings_begin_and_end_with_pages)
{
    struct random random = random_init(11);

    for (uint32_t round = 0; round < ROUNDS / 10; round++) {
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal;
        random_geometry(&random, &geometry);
        for (uint32_t g = 0; g < geometry.n_groups; g++)
            geometry.group[g].is_contiguous = geometry.partition.row_parts == 1;
        cr_assert_eq(geometry_check(&geometry, &refusal), 0, "%s", refusal.text);
        cr_assert_eq(layout_of(&geometry, &layout, &refusal), 0);
        struct walk walk = {.bytes = layout.data_bytes};

        for (uint32_t g = 0; g < geometry.n_groups; g++) {
            walk_group(&walk, &geometry, &layout, g);
            for (uint32_t p = 0; p < geometry.group[g].n_planes; p++)
                cr_assert(!geometry.group[g].is_contiguous ||
                          layout.group[g].ring_rows *
                                  layout.group[g].plane[p].row_bytes % KVW_PAGE ==
                              0);
        }
    }
}

Test(layout, rows_are_disjoint_aligned_and_inside)
{
    struct random random = random_init(10);

    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal;
        random_geometry(&random, &geometry);
        cr_assert_eq(layout_of(&geometry, &layout, &refusal), 0);
        struct walk walk = {.bytes = layout.data_bytes};

        for (uint32_t g = 0; g < geometry.n_groups; g++)
            walk_group(&walk, &geometry, &layout, g);

        cr_assert_eq(layout.data_bytes % KVW_PAGE, 0);
        cr_assert_lt(layout.data_bytes - layout.padding_bytes - walk.end, KVW_PAGE,
                     "seed %" PRIu64, random.seed);
    }
}

static uint64_t place_of(const void *segment, const void *at)
{
    return (uint64_t)((const char *)at - (const char *)segment);
}

Test(layout, control_words_are_disjoint_aligned_and_inside)
{
    struct random random = random_init(11);
    char segment[1]; /* only its address is used */

    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal;
        random_geometry(&random, &geometry);
        cr_assert_eq(layout_of(&geometry, &layout, &refusal), 0);
        struct walk control = {.bytes = layout.control_bytes};
        struct walk board = {.bytes = layout.board_bytes};

        walk_over(&control, 0, sizeof(struct kvw_control_header), KVW_PAGE);
        walk_over(&control, layout.geometry_offset, sizeof geometry, KVW_PAGE);
        for (uint32_t rank = 0; rank < geometry.n_ranks; rank++)
            walk_over(&control, place_of(segment, layout_seat(segment, &layout, rank)),
                      sizeof(struct kvw_seat), KVW_CACHELINE);
        for (uint32_t rank = 0; rank < geometry.n_ranks; rank++) {
            for (uint32_t lane = 0; lane < geometry.n_lanes; lane++)
                walk_over(&control,
                          place_of(segment, layout_board(segment, &layout,
                                                         geometry.n_lanes, rank, lane)),
                          layout.board_bytes, KVW_CACHELINE);
        }
        walk_over(&board, 0, sizeof(struct kvw_board), KVW_CACHELINE);
        walk_over(&board, layout.claims_offset,
                  geometry.n_groups * sizeof(struct kvw_board_claim), KVW_CACHELINE);
        for (uint32_t record = 0; record < KVW_RECORDS; record++)
            walk_over(&board, layout.records_offset + record * layout.record_bytes,
                      8ull * layout.record_words, KVW_CACHELINE);
        walk_over(&board, layout.staged_offset, 8ull * geometry.n_layers,
                  KVW_CACHELINE);
        walk_over(&board, layout.pass_offset, 8ull * geometry.n_layers, 8);
        walk_over(&board, layout.read_offset, 8ull * geometry.n_layers, 8);
    }
}

Test(layout, pin_words_are_disjoint_aligned_and_inside)
{
    struct random random = random_init(12);
    char segment[1];

    for (uint32_t round = 0; round < ROUNDS / 10; round++) {
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal;
        random_geometry(&random, &geometry);
        cr_assert_eq(layout_of(&geometry, &layout, &refusal), 0);
        struct walk pins = {.bytes = layout.pins_bytes};

        for (uint32_t rank = 0; rank < geometry.n_ranks; rank++) {
            for (uint32_t lane = 0; lane < geometry.n_lanes; lane++)
                walk_over(&pins,
                          place_of(segment, layout_flag(segment, &layout,
                                                        geometry.n_lanes, rank, lane)),
                          sizeof(shared_u32), KVW_CACHELINE);
        }
        for (uint32_t slot = 0; slot < KVW_ATTACHMENTS_MAX; slot++)
            walk_over(&pins, place_of(segment, layout_high(segment, &layout, slot)),
                      sizeof(shared_u32), sizeof(shared_u32));
        for (uint32_t slot = 0; slot < KVW_ATTACHMENTS_MAX; slot++) {
            for (uint32_t i = 0; i < KVW_PINS_PER_ATTACHMENT; i++)
                walk_over(&pins,
                          place_of(segment, layout_pin(segment, &layout, slot, i)),
                          sizeof(struct kvw_pin), KVW_CACHELINE);
        }
    }
}

/* Bytes of one group as they should be, in numbers that cannot overflow. */
static unsigned __int128 group_bytes(const struct kvw_geometry *geometry, uint32_t g)
{
    const struct kvw_geometry_group *group = &geometry->group[g];
    unsigned __int128 bytes = 0;

    for (uint32_t p = 0; p < group->n_planes; p++) {
        unsigned __int128 head = (unsigned __int128)geometry_rows(geometry, g) *
                                 group->plane[p].elems *
                                 geometry_elem_bytes(group->plane[p].type);
        bytes += (head + 63) / 64 * 64 * group->n_heads * geometry->n_lanes;
        if (geometry->has_checksums)
            bytes += (geometry_rows(geometry, g) * 4 + 63) / 64 * 64 *
                     (unsigned __int128)group->n_heads * geometry->n_lanes;
    }
    return (bytes + 4095) / 4096 * 4096 * group->n_layers;
}

/* Numbers near their limits never wrap: the layout has the true size or is refused. */
Test(layout, sizes_are_true_or_refused)
{
    static const uint32_t rows[] = {1, 1000, 1u << 20, 1u << 30, (1u << 31) - 2};
    static const uint32_t elems[] = {1, 128, 12544, 1u << 20, 1u << 28};
    static const uint32_t heads[] = {1, 40, 65536};
    static const uint32_t lanes[] = {1, 2, 1024};
    struct random random = random_init(13);
    uint32_t n_fit = 0;
    uint32_t n_refused = 0;

    for (uint32_t round = 0; round < 20000; round++) {
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal = {0};
        unsigned __int128 bytes = 0;

        random_geometry(&random, &geometry);
        geometry.n_lanes = lanes[random_below(&random, 3)];
        geometry.n_ranks = 1;
        geometry.partition = (struct kvw_geometry_partition){1, 1, 1, 1, 0, 0};
        for (uint32_t g = 0; g < geometry.n_groups; g++) {
            struct kvw_geometry_group *group = &geometry.group[g];
            group->n_heads = heads[random_below(&random, 3)];
            group->window_rows = rows[random_below(&random, 5)];
            group->chunk_rows_max = 1;
            group->sink_rows = 0;
            group->keep_rows = 0;
            group->slack_chunks = group->policy == KVW_GEOMETRY_ROLL ? 1 : 0;
            for (uint32_t p = 0; p < group->n_planes; p++)
                group->plane[p].elems = elems[random_below(&random, 5)];
            bytes += group_bytes(&geometry, g);
        }
        cr_assert_eq(geometry_check(&geometry, &refusal), 0, "%s", refusal.text);
        int error = layout_of(&geometry, &layout, &refusal);

        if (bytes > KVW_BYTES_MAX) {
            cr_assert_eq(error, -E2BIG, "seed %" PRIu64 " round %u", random.seed,
                         round);
            cr_assert_eq(refusal.have, KVW_BYTES_MAX);
            cr_assert_not_null(strstr(refusal.text, "would exceed"));
            n_refused++;
        } else {
            cr_assert_eq(error, 0, "seed %" PRIu64 " round %u", random.seed, round);
            cr_assert(layout.data_bytes - layout.padding_bytes == bytes);
            cr_assert(geometry.pages == 0 || layout.data_bytes % KVW_HUGE_PAGE == 0);
            n_fit++;
        }
    }
    cr_assert_gt(n_fit, 1000);
    cr_assert_gt(n_refused, 1000);
}

/* A control segment on the heap, so that a read past its end is seen. */
struct segment {
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    void *control;
};

static const uint8_t uuid[16] = "0123456789abcde";

static struct segment segment_new(struct random *random)
{
    struct segment segment;
    struct kvw_refusal refusal;

    random_geometry(random, &segment.geometry);
    cr_assert_eq(layout_of(&segment.geometry, &segment.layout, &refusal), 0);
    segment.control = aligned_alloc(KVW_PAGE, segment.layout.control_bytes);
    cr_assert_not_null(segment.control);
    memset(segment.control, 0, segment.layout.control_bytes);
    layout_control_init(segment.control, &segment.layout, &segment.geometry, "a-cache",
                        uuid);
    return segment;
}

static int segment_read(const struct segment *segment, struct kvw_geometry *geometry,
                        struct kvw_layout *layout, struct kvw_refusal *refusal)
{
    return layout_control_read(segment->control, segment->layout.control_bytes,
                               segment->layout.pins_bytes, segment->layout.data_bytes,
                               geometry, layout, refusal);
}

Test(layout, control_is_read_back_as_it_was_made)
{
    struct random random = random_init(14);

    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct segment segment = segment_new(&random);
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal = {0};

        cr_assert_eq(segment_read(&segment, &geometry, &layout, &refusal), 0, "%s",
                     refusal.text);

        cr_assert_eq(memcmp(&geometry, &segment.geometry, sizeof geometry), 0);
        cr_assert_eq(memcmp(&layout, &segment.layout, sizeof layout), 0);
        const struct kvw_control_header *header = segment.control;
        cr_assert_str_eq(header->name, "a-cache");
        cr_assert_eq(memcmp(header->uuid, uuid, sizeof uuid), 0);
        free(segment.control);
    }
}

/* Version 1 of every board: step 0, no rows, generation 1, nobody outside. */
Test(layout, boards_begin_with_nothing_committed)
{
    struct random random = random_init(15);
    struct segment segment = segment_new(&random);
    const struct kvw_layout *layout = &segment.layout;

    for (uint32_t rank = 0; rank < segment.geometry.n_ranks; rank++) {
        cr_assert_eq(load_relaxed(&layout_seat(segment.control, layout, rank)->state),
                     KVW_SEAT_FREE);
        for (uint32_t lane = 0; lane < segment.geometry.n_lanes; lane++) {
            struct kvw_board *board = layout_board(
                segment.control, layout, segment.geometry.n_lanes, rank, lane);
            shared_u64 *record =
                (shared_u64 *)(void *)((char *)board + layout->records_offset +
                                       layout->record_bytes);

            cr_assert_eq(load_relaxed(&board->version), 1);
            cr_assert_eq(load_relaxed(&board->outside), UINT64_MAX);
            cr_assert_eq(load_relaxed(&record[KVW_RECORD_WORD_MAGIC]),
                         KVW_RECORD_MAGIC);
            cr_assert_eq(load_relaxed(&record[KVW_RECORD_WORD_STEP]), 0);
            for (uint32_t g = 0; g < segment.geometry.n_groups; g++) {
                shared_u64 *group =
                    &record[KVW_RECORD_WORD_GROUPS + g * KVW_RECORD_GROUP_WORDS];
                cr_assert_eq(load_relaxed(&group[0]), 0);
                cr_assert_eq(load_relaxed(&group[2]), 1);
            }
        }
    }
    free(segment.control);
}

Test(layout, a_damaged_header_is_refused)
{
    struct random random = random_init(16);
    struct segment segment = segment_new(&random);
    struct kvw_control_header *header = segment.control;
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    struct kvw_refusal refusal = {0};

    header->magic ^= 1;
    cr_expect_eq(segment_read(&segment, &geometry, &layout, &refusal), -EINVAL);
    cr_expect_not_null(strstr(refusal.text, "no kvwheel header"), "%s", refusal.text);
    header->magic ^= 1;
    header->layout_major++;
    cr_expect_eq(segment_read(&segment, &geometry, &layout, &refusal), -EPROTO);
    cr_expect_not_null(strstr(refusal.text, "layout 2."), "%s", refusal.text);
    header->layout_major--;
    header->layout_hash ^= 1ull << 63;
    cr_expect_eq(segment_read(&segment, &geometry, &layout, &refusal), -EPROTO);
    header->layout_hash ^= 1ull << 63;
    header->layout_minor = 9; /* a greater minor version only adds */
    cr_expect_eq(segment_read(&segment, &geometry, &layout, &refusal), 0);
    free(segment.control);
}

Test(layout, segments_of_another_size_are_refused)
{
    struct random random = random_init(17);
    struct segment segment = segment_new(&random);
    const struct kvw_layout *is = &segment.layout;
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    struct kvw_refusal refusal = {0};

    for (int by = -1; by <= 1; by += 2) {
        uint64_t other = (uint64_t)by * KVW_PAGE;
        cr_expect_eq(layout_control_read(segment.control, is->control_bytes + other,
                                         is->pins_bytes, is->data_bytes, &geometry,
                                         &layout, &refusal),
                     -EINVAL);
        cr_expect_eq(layout_control_read(segment.control, is->control_bytes,
                                         is->pins_bytes + other, is->data_bytes,
                                         &geometry, &layout, &refusal),
                     -EINVAL);
        cr_expect_eq(layout_control_read(segment.control, is->control_bytes,
                                         is->pins_bytes, is->data_bytes + other,
                                         &geometry, &layout, &refusal),
                     -EINVAL);
        cr_expect_eq(refusal.need, is->data_bytes);
        cr_expect_eq(refusal.have, is->data_bytes + other);
    }
    free(segment.control);
}

/* A file cut short must not be read past its end. */
Test(layout, a_short_control_segment_is_refused_unread)
{
    static const uint64_t lengths[] = {
        0, 1, 64, 4095, 4096, 4097, KVW_PAGE + sizeof(struct kvw_geometry) - 1};

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        void *control = malloc(lengths[i] == 0 ? 1 : lengths[i]);
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal = {0};
        cr_assert_not_null(control);
        memset(control, 0xff, lengths[i]);

        cr_expect_eq(layout_control_read(control, lengths[i], 4096, 4096, &geometry,
                                         &layout, &refusal),
                     -EINVAL);
        cr_expect_eq(refusal.need, KVW_PAGE + sizeof(struct kvw_geometry));
        cr_expect_eq(refusal.have, lengths[i]);
        free(control);
    }
}

Test(layout, no_flipped_bytes_crash_the_reader)
{
    struct random random = random_init(18);
    struct segment segment = segment_new(&random);
    uint8_t *bytes = segment.control;
    const uint64_t end = KVW_PAGE + sizeof(struct kvw_geometry);

    for (uint64_t round = 0; round < 8 * end; round++) {
        uint64_t at[3];
        uint8_t old[3];
        struct kvw_geometry geometry;
        struct kvw_layout layout;
        struct kvw_refusal refusal = {0};

        /* Every byte once, and up to two more of them. */
        uint64_t n = random_range(&random, 1, 3);
        for (uint64_t i = 0; i < n; i++) {
            at[i] = i == 0 ? round % end : random_below(&random, end);
            old[i] = bytes[at[i]];
            bytes[at[i]] ^= (uint8_t)random_range(&random, 1, 255);
        }
        int error = segment_read(&segment, &geometry, &layout, &refusal);
        for (uint64_t i = n; i-- > 0;)
            bytes[at[i]] = old[i];

        cr_assert(error == 0 || error == -EINVAL || error == -EPROTO ||
                  error == -E2BIG);
        cr_assert(error == 0 || refusal.text[0] != 0);
        cr_assert(error != 0 || geometry_check(&geometry, &refusal) == 0);
        cr_assert(error != 0 || layout.data_bytes == segment.layout.data_bytes);
    }
    free(segment.control);
}
