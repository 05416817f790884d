/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets from a geometry, and the first bytes of a control segment. No state. */
#include "proto/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "proto/base/align.h"

/* FNV-1a (Fowler, Noll, Vo), 64 bits: not for security, only to tell layouts apart. */
static uint64_t mix(uint64_t hash, uint64_t value)
{
    for (int i = 0; i < 8; i++) {
        hash ^= (value >> (8 * i)) & 0xff;
        hash *= 0x100000001b3ull;
    }
    return hash;
}

uint64_t layout_hash(void)
{
    const uint64_t facts[] = {
        sizeof(struct kvw_control_header),
        offsetof(struct kvw_control_header, uuid),
        offsetof(struct kvw_control_header, state),
        offsetof(struct kvw_control_header, attachments_high),
        sizeof(struct kvw_geometry),
        sizeof(struct kvw_geometry_group),
        sizeof(struct kvw_geometry_plane),
        offsetof(struct kvw_geometry, model_layer),
        offsetof(struct kvw_geometry, has_checksums),
        offsetof(struct kvw_geometry, pages),
        sizeof(struct kvw_seat),
        offsetof(struct kvw_seat, incarnation),
        offsetof(struct kvw_seat, since_ns),
        offsetof(struct kvw_seat, state),
        offsetof(struct kvw_seat, pid),
        sizeof(struct kvw_board),
        offsetof(struct kvw_board, event),
        offsetof(struct kvw_board, ask),
        offsetof(struct kvw_board, outside),
        offsetof(struct kvw_board, claim),
        offsetof(struct kvw_board, base),
        KVW_LAYER_WORDS,
        sizeof(struct kvw_board_claim),
        offsetof(struct kvw_board_claim, want),
        offsetof(struct kvw_board_claim, hi),
        offsetof(struct kvw_board_claim, open),
        sizeof(struct kvw_pin),
        offsetof(struct kvw_pin, end),
        offsetof(struct kvw_pin, generation),
        offsetof(struct kvw_pin, lane_group),
        offsetof(struct kvw_pin, ranks),
        offsetof(struct kvw_pin, keep_extent),
        offsetof(struct kvw_pin, since_ns),
        offsetof(struct kvw_pin, kind),
        KVW_RECORD_WORD_MAGIC,
        KVW_RECORD_WORD_STEP,
        KVW_RECORD_WORD_ERA,
        KVW_RECORD_WORD_REWINDS,
        KVW_RECORD_GROUP_WORDS,
        KVW_RECORD_WORD_GROUPS,
        KVW_RECORDS,
        KVW_KEPT_MAX,
        KVW_ATTACHMENTS_MAX,
        KVW_PINS_PER_ATTACHMENT,
        KVW_CACHELINE,
        KVW_PAGE,
    };
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        hash = mix(hash, facts[i]);
    return hash;
}

/* Data of one group, layer by layer; false when it does not fit. */
static bool place_group(const struct kvw_geometry *geometry, uint32_t g,
                        struct kvw_layout *layout)
{
    const struct kvw_geometry_group *group = &geometry->group[g];
    struct kvw_layout_group *placed = &layout->group[g];
    uint64_t layer_bytes = 0;

    placed->offset = layout->data_bytes;
    placed->ring_rows = geometry_ring_rows(geometry, g);
    placed->rows = geometry_rows(geometry, g);
    for (uint32_t p = 0; p < group->n_planes; p++) {
        struct kvw_layout_plane *plane = &placed->plane[p];
        const uint64_t alignment = group->is_contiguous ? KVW_PAGE : KVW_CACHELINE;
        uint64_t bytes;

        plane->row_bytes =
            (uint64_t)group->plane[p].elems * geometry_elem_bytes(group->plane[p].type);
        if (!mul_fits(placed->rows, plane->row_bytes, &bytes) || bytes > KVW_BYTES_MAX)
            return false;
        /* The sink ends, and so the ring begins, with a page. */
        const uint64_t lead_bytes =
            group->is_contiguous
                ? (KVW_PAGE - group->sink_rows * plane->row_bytes % KVW_PAGE) % KVW_PAGE
                : 0;
        layer_bytes = align_up(layer_bytes, alignment);
        plane->offset = layer_bytes + lead_bytes;
        plane->head_bytes = align_up(lead_bytes + bytes, alignment);
        if (!mul_fits(plane->head_bytes, group->n_heads, &bytes) ||
            bytes > KVW_BYTES_MAX)
            return false;
        plane->lane_bytes = bytes;
        if (!mul_fits(plane->lane_bytes, geometry->n_lanes, &bytes) ||
            bytes > KVW_BYTES_MAX)
            return false;
        layer_bytes += bytes;
        if (geometry->has_checksums) {
            plane->sums_offset = layer_bytes = align_up(layer_bytes, KVW_CACHELINE);
            plane->head_sums_bytes = align_up(placed->rows * 4, KVW_CACHELINE);
            layer_bytes += plane->head_sums_bytes * group->n_heads * geometry->n_lanes;
        }
        if (layer_bytes > KVW_BYTES_MAX)
            return false;
    }
    placed->layer_bytes = align_up(layer_bytes, KVW_PAGE);
    uint64_t group_bytes;
    if (!mul_fits(placed->layer_bytes, group->n_layers, &group_bytes) ||
        group_bytes > KVW_BYTES_MAX - layout->data_bytes)
        return false;
    layout->data_bytes += group_bytes;
    return true;
}

int layout_of(const struct kvw_geometry *geometry, struct kvw_layout *layout,
              struct kvw_refusal *refusal)
{
    const uint64_t n_boards = (uint64_t)geometry->n_ranks * geometry->n_lanes;

    *layout = (struct kvw_layout){0};
    for (uint32_t g = 0; g < geometry->n_groups; g++) {
        if (!place_group(geometry, g, layout))
            return refuse(refusal, -E2BIG, 0, KVW_BYTES_MAX,
                          "group '%s': the data of the cache would exceed %llu bytes",
                          geometry->group[g].name, (unsigned long long)KVW_BYTES_MAX);
    }

    if (geometry->pages != KVW_GEOMETRY_PAGES_NONE) {
        layout->padding_bytes =
            align_up(layout->data_bytes, KVW_HUGE_PAGE) - layout->data_bytes;
        layout->data_bytes += layout->padding_bytes;
    }

    layout->geometry_offset = KVW_PAGE;
    layout->seats_offset =
        align_up(KVW_PAGE + sizeof(struct kvw_geometry), KVW_CACHELINE);
    layout->boards_offset = align_up(
        layout->seats_offset + geometry->n_ranks * sizeof(struct kvw_seat), KVW_PAGE);

    layout->claims_offset = sizeof(struct kvw_board);
    layout->records_offset = align_up(
        layout->claims_offset + geometry->n_groups * sizeof(struct kvw_board_claim),
        KVW_CACHELINE);
    layout->record_words = KVW_RECORD_WORD_GROUPS +
                           geometry->n_groups * KVW_RECORD_GROUP_WORDS +
                           geometry->n_layers;
    layout->record_bytes = align_up(layout->record_words * 8ull, KVW_CACHELINE);
    layout->staged_offset = layout->records_offset + KVW_RECORDS * layout->record_bytes;
    layout->pass_offset = layout->staged_offset + geometry->n_layers * 8ull;
    layout->read_offset = layout->pass_offset + geometry->n_layers * 8ull;
    layout->board_bytes =
        align_up(layout->read_offset + geometry->n_layers * 8ull, KVW_CACHELINE);
    layout->control_bytes =
        align_up(layout->boards_offset + n_boards * layout->board_bytes, KVW_PAGE);

    layout->flags_offset = 0;
    layout->high_offset = n_boards * KVW_CACHELINE;
    layout->pins_offset =
        align_up(layout->high_offset + KVW_ATTACHMENTS_MAX * 4ull, KVW_CACHELINE);
    layout->pins_bytes = align_up(layout->pins_offset + (uint64_t)KVW_ATTACHMENTS_MAX *
                                                            KVW_PINS_PER_ATTACHMENT *
                                                            sizeof(struct kvw_pin),
                                  KVW_PAGE);
    return 0;
}

uint64_t layout_row_offset(const struct kvw_layout *layout, uint32_t group,
                           uint32_t layer_in_group, uint32_t plane, uint32_t lane,
                           uint32_t head, uint64_t slot)
{
    const struct kvw_layout_group *in = &layout->group[group];
    const struct kvw_layout_plane *of = &in->plane[plane];

    return in->offset + layer_in_group * in->layer_bytes + of->offset +
           lane * of->lane_bytes + head * of->head_bytes + slot * of->row_bytes;
}

uint64_t layout_sum_offset(const struct kvw_layout *layout, uint32_t n_heads,
                           uint32_t group, uint32_t layer_in_group, uint32_t plane,
                           uint32_t lane, uint32_t head, uint64_t slot)
{
    const struct kvw_layout_group *in = &layout->group[group];
    const struct kvw_layout_plane *of = &in->plane[plane];

    return in->offset + layer_in_group * in->layer_bytes + of->sums_offset +
           ((uint64_t)lane * n_heads + head) * of->head_sums_bytes + slot * 4;
}

static void board_init(struct kvw_board *board, const struct kvw_layout *layout,
                       const struct kvw_geometry *geometry)
{
    shared_u64 *record = (shared_u64 *)(void *)((char *)board + layout->records_offset +
                                                1 % KVW_RECORDS * layout->record_bytes);

    store_relaxed(&record[KVW_RECORD_WORD_MAGIC], KVW_RECORD_MAGIC);
    for (uint32_t g = 0; g < geometry->n_groups; g++) {
        shared_u64 *word = &record[KVW_RECORD_WORD_GROUPS + g * KVW_RECORD_GROUP_WORDS];
        store_relaxed(&word[2], 1); /* generations count from 1: 0 is never a row's */
    }
    store_relaxed(&board->outside, UINT64_MAX);
    store_relaxed(&board->version, 1);
}

void layout_control_init(void *control, const struct kvw_layout *layout,
                         const struct kvw_geometry *geometry, const char *name,
                         const uint8_t uuid[16])
{
    struct kvw_control_header *header = control;

    header->layout_major = KVW_LAYOUT_MAJOR;
    header->layout_minor = KVW_LAYOUT_MINOR;
    header->geometry_bytes = sizeof *geometry;
    header->layout_hash = layout_hash();
    header->control_bytes = layout->control_bytes;
    header->pins_bytes = layout->pins_bytes;
    header->data_bytes = layout->data_bytes;
    memcpy(header->uuid, uuid, sizeof header->uuid);
    size_t length = strnlen(name, KVW_NAME_MAX);
    memcpy(header->name, name, length);
    header->name[length] = 0;
    memcpy((char *)control + layout->geometry_offset, geometry, sizeof *geometry);
    for (uint32_t rank = 0; rank < geometry->n_ranks; rank++) {
        for (uint32_t lane = 0; lane < geometry->n_lanes; lane++)
            board_init(layout_board(control, layout, geometry->n_lanes, rank, lane),
                       layout, geometry);
    }
    store_relaxed(&header->state, KVW_CONTROL_LIVE);
    header->magic = KVW_LAYOUT_MAGIC;
}

int layout_control_read(const void *control, uint64_t control_bytes,
                        uint64_t pins_bytes, uint64_t data_bytes,
                        struct kvw_geometry *geometry, struct kvw_layout *layout,
                        struct kvw_refusal *refusal)
{
    struct kvw_control_header header;

    if (control_bytes < KVW_PAGE + sizeof *geometry)
        return refuse(refusal, -EINVAL, KVW_PAGE + sizeof *geometry, control_bytes,
                      "control segment: need at least %zu bytes, have %" PRIu64,
                      KVW_PAGE + sizeof *geometry, control_bytes);
    memcpy(&header, control, sizeof header);
    if (header.magic != KVW_LAYOUT_MAGIC)
        return refuse(
            refusal, -EINVAL, KVW_LAYOUT_MAGIC, header.magic,
            "control segment: no kvwheel header (it was wiped or is not one)");
    if (header.layout_major != KVW_LAYOUT_MAJOR || header.layout_hash != layout_hash())
        return refuse(refusal, -EPROTO, KVW_LAYOUT_MAJOR, header.layout_major,
                      "control segment: layout %u.%u hash %016" PRIx64
                      ", this program has %u.%u hash %016" PRIx64,
                      header.layout_major, header.layout_minor, header.layout_hash,
                      KVW_LAYOUT_MAJOR, KVW_LAYOUT_MINOR, layout_hash());
    if (header.name[KVW_NAME_MAX] != 0 || !geometry_name_ok(header.name, KVW_NAME_MAX))
        return refuse(refusal, -EINVAL, 1, KVW_NAME_MAX,
                      "control segment: the name in its header is none");
    memcpy(geometry, (const char *)control + KVW_PAGE, sizeof *geometry);
    int error = geometry_check(geometry, refusal);
    if (error == 0)
        error = layout_of(geometry, layout, refusal);
    if (error != 0)
        return error;
    if (control_bytes != layout->control_bytes || pins_bytes != layout->pins_bytes ||
        data_bytes != layout->data_bytes)
        return refuse(refusal, -EINVAL, layout->data_bytes, data_bytes,
                      "segments: control, pins, data need %" PRIu64 ", %" PRIu64
                      ", %" PRIu64 " bytes, have %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                      layout->control_bytes, layout->pins_bytes, layout->data_bytes,
                      control_bytes, pins_bytes, data_bytes);
    return 0;
}
