/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The geometry of a cache: what its rows are, how many of them it keeps, and how ranks
 * share them. It is immutable once the cache exists, lies in the control segment, and
 * travels as bytes in a create request: fixed-width members, no pointers, reserved
 * bytes zero. Everything that computes with a geometry does so after geometry_check().
 *
 * The words (group, layer, row, plane, lane, rank, chunk, window, sink) are those of
 * ARCHITECTURE.md.
 */
#ifndef KVW_PROTO_GEOMETRY_H
#define KVW_PROTO_GEOMETRY_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/check.h"
#include "proto/limits.h"

/* Element type of a plane. */
enum kvw_geometry_type {
    KVW_GEOMETRY_F32 = 1,
    KVW_GEOMETRY_BF16 = 2,
    KVW_GEOMETRY_F16 = 3,
    KVW_GEOMETRY_I8 = 4,
    KVW_GEOMETRY_U8 = 5,
    KVW_GEOMETRY_U32 = 6,
};

/* What a full group does. */
enum kvw_geometry_policy {
    KVW_GEOMETRY_ROLL = 1,   /* evicts the oldest rows behind the sink */
    KVW_GEOMETRY_REFUSE = 2, /* says that it is full; rows never wrap */
};

/* Window kind. */
enum kvw_geometry_kind {
    KVW_GEOMETRY_CHUNK = 1, /* all queries of a chunk see the same rows */
    KVW_GEOMETRY_ROW = 2,   /* each query sees the window that ends at itself */
};

/* The position that belongs to a row. */
enum kvw_geometry_positions {
    KVW_GEOMETRY_ABSOLUTE = 1, /* its row number */
    KVW_GEOMETRY_WINDOW = 2,   /* its index among the visible rows */
};

/* Pages that the data segment is made of. */
enum kvw_geometry_pages {
    KVW_GEOMETRY_PAGES_NONE = 0, /* the usual small ones */
    KVW_GEOMETRY_PAGES_THP = 1,  /* transparent huge pages where they fit, else small */
    KVW_GEOMETRY_PAGES_2M = 2,   /* 2 MiB pages of the administrator's pool */
};

enum {                           /* flags of a plane */
       KVW_GEOMETRY_ROTATED = 1, /* keys are stored after rotation */
};

/* One tensor of a row: heads x elems of one type. */
struct kvw_geometry_plane {
    uint32_t elems; /* of one row and head */
    uint8_t type;   /* enum kvw_geometry_type */
    uint8_t flags;
    uint8_t reserved[2];
    char name[KVW_SHORT_NAME_MAX + 1]; /* zero-terminated, zero-padded */
};

struct kvw_geometry_group {
    uint64_t window_rows;    /* W: sink and the query's own chunk included */
    uint64_t sink_rows;      /* S */
    uint64_t chunk_rows_max; /* most rows of one chunk */
    uint64_t keep_rows;      /* rows of the keep extent, beside W */
    uint32_t slack_chunks;   /* policy roll: chunks of room beside the window */
    uint32_t n_layers;
    uint32_t layer_first; /* of its layers in kvw_geometry.model_layer */
    uint32_t n_heads;
    uint32_t n_planes;
    uint8_t policy;        /* enum kvw_geometry_policy */
    uint8_t kind;          /* enum kvw_geometry_kind */
    uint8_t positions;     /* enum kvw_geometry_positions */
    uint8_t is_contiguous; /* 0 or 1: the ring is mapped twice in a row */
    uint8_t reserved[8];
    char name[KVW_SHORT_NAME_MAX + 1];
    struct kvw_geometry_plane plane[KVW_PLANES_MAX];
};

/*
 * How ranks share a cache: rank = ((lane_part * layer_parts + layer_part) * head_parts
 * + head_part) * row_parts + row_part. The product of the parts is the number of ranks.
 */
struct kvw_geometry_partition {
    uint32_t head_parts;
    uint32_t layer_parts;
    uint32_t lane_parts;
    uint32_t row_parts;
    uint32_t
        row_block; /* rows in a row; row r belongs to part r / row_block % row_parts */
    uint32_t reserved;
};

struct kvw_geometry {
    uint32_t n_groups;
    uint32_t n_lanes;
    uint32_t n_ranks;
    uint32_t n_layers; /* of all groups */
    struct kvw_geometry_partition partition;
    uint8_t
        has_checksums; /* 0 or 1: beside the rows of each head lie their checksums */
    uint8_t pages;     /* enum kvw_geometry_pages; more than none: the data is padded */
    uint8_t reserved[6];
    struct kvw_geometry_group group[KVW_GROUPS_MAX];
    /* The model's own number of each layer, ascending within a group. Two groups may
     * name the same model layer: self-attention and cross-attention of one block. */
    uint16_t model_layer[KVW_LAYERS_MAX];
};

_Static_assert(sizeof(struct kvw_geometry_plane) == 24, "layout: plane");
_Static_assert(sizeof(struct kvw_geometry_group) == 272, "layout: group");
_Static_assert(offsetof(struct kvw_geometry, group) == 48, "layout: groups");
_Static_assert(sizeof(struct kvw_geometry) == 48 + 16 * 272 + 2048, "layout: geometry");

/* Why a geometry is refused: a sentence with need and have, for the user. */
struct kvw_refusal {
    uint64_t need;
    uint64_t have;
    char text[320];
};

/** Fill in a refusal in words; returns `error` (a negative errno), to be forwarded. */
int refuse(struct kvw_refusal *refusal, int error, uint64_t need, uint64_t have,
           const char *format, ...) __attribute__((format(printf, 5, 6)));

/**
 * Check a geometry from anywhere: every count within its limit, names unique and made
 * of [A-Za-z0-9_.-], the window holds the sink and a chunk, sizes within KVW_BYTES_MAX,
 * unused entries and reserved bytes zero.
 *
 * @return 0; -EINVAL (a value is wrong) or -E2BIG (a limit), with `refusal` filled in.
 */
KVW_NODISCARD int geometry_check(const struct kvw_geometry *geometry,
                                 struct kvw_refusal *refusal);

/** Bytes of one element of `type`; 0 if there is no such type. */
uint32_t geometry_elem_bytes(uint8_t type);

/**
 * Rows of a group's ring, C: (W - S) + slack_chunks x chunk_rows_max, or W - S for
 * refuse. Rounded up, which is more slack: for a contiguous group until each plane's
 * ring is whole pages; where rows are split, for a group that rolls, to whole periods
 * of the partition, so that a slot belongs to one rank for ever.
 */
uint64_t geometry_ring_rows(const struct kvw_geometry *geometry, uint32_t group);

/** Rows that one layer and head of a group holds: the sink, the ring, the keep extent.
 */
uint64_t geometry_rows(const struct kvw_geometry *geometry, uint32_t group);

/** Group of a layer (index in model_layer). The geometry must have been checked. */
uint32_t geometry_group_of(const struct kvw_geometry *geometry, uint32_t layer);

/** True for a name of 1..max bytes from [A-Za-z0-9_.-] that starts with no dot. */
int geometry_name_ok(const char *name, size_t length_max);

#endif
