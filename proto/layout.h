/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared layout: three sealed memfds per cache. PROTOCOL.md, "Layout", is its
 * manual.
 *
 *   control   header page | geometry | seat[rank] | board[rank][lane]
 *             The daemon writes header, geometry and seats; a rank's owner its boards.
 *   pins      flag[rank][lane] | high[attachment] | pin[attachment][..]
 *             The only segment that readers write.
 *   data      [group][layer][plane][lane][head][row][elems], the same for any number of
 *             ranks. Rows of a layer and head: sink, ring, keep extent. Behind the rows of
 *             a plane, if the cache has them: checksum[lane][head][row].
 *
 * All words are little-endian; shared words are atomics of at most 8 bytes; offsets are
 * bytes from the start of a segment, never pointers. Everything that a worker can write
 * is hostile input to the daemon: it uses the geometry that it checked itself.
 */
#ifndef KVW_PROTO_LAYOUT_H
#define KVW_PROTO_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/atomic.h"
#include "proto/geometry.h"

#define KVW_LAYOUT_MAGIC 0x6c65656877766bull /* "kvwheel" */
#define KVW_RECORD_MAGIC 0x64726f6365727677ull
#ifndef KVW_LAYOUT_MAJOR
#define KVW_LAYOUT_MAJOR 1u /* a reader refuses another */
#endif
#define KVW_LAYOUT_MINOR 2u /* a reader accepts a greater one */

/* Of a cache; the daemon writes it. */
enum kvw_control_state {
    KVW_CONTROL_LIVE = 1,
    KVW_CONTROL_REMOVED = 2, /* attachments may finish, nobody new attaches */
};

struct kvw_control_header {
    /* Line 0 and 1: written once by the daemon before a descriptor is given away. */
    uint64_t magic;
    uint16_t layout_major;
    uint16_t layout_minor;
    uint32_t geometry_bytes;
    uint64_t layout_hash;
    uint64_t control_bytes;
    uint64_t pins_bytes;
    uint64_t data_bytes;
    uint8_t uuid[16];
    char name[KVW_NAME_MAX + 1];
    /* Line 2: the daemon writes, attachments read. */
    _Alignas(KVW_CACHELINE) shared_u32 state; /* enum kvw_control_state */
    shared_u32 attachments_high;              /* attachment slots ever used */
    /* From minor 1 on: what nobody else knows once daemon and keeper are lost. The daemon
     * writes it for the daemon that adopts an offer; attachments do not read it. */
    uint64_t created_ns; /* CLOCK_REALTIME */
    uint64_t ttl_seconds;
    uint32_t uid;
    uint32_t gid;
    uint32_t mode;
    uint32_t lifetime;  /* as in a create request */
    uint32_t placement; /* from minor 2 on; as in a create request */
    uint8_t reserved[20];
};

enum kvw_seat_state {
    KVW_SEAT_FREE = 0,  /* never owned, or detached */
    KVW_SEAT_OWNED = 1, /* a live process holds the rank */
    KVW_SEAT_DEAD = 2,  /* its owner died; the next owner takes over */
};

/* The daemon writes, attachments read. One line. */
struct kvw_seat {
    shared_u64 owner;       /* attachment id, 0 = none */
    shared_u64 incarnation; /* owners so far */
    shared_u64 since_ns;    /* CLOCK_REALTIME of the last change of state */
    shared_u32 state;       /* enum kvw_seat_state */
    shared_u32 pid;         /* of the owner, as the daemon sees it; for messages */
    uint8_t reserved[32];
};

/* First line of a board; the rank's owner writes it, except `event`. */
struct kvw_board {
    shared_u64 version; /* the record is rec[version % K]; 0 = absent, the first is 1 */
    shared_u32 event; /* futex; raised by the owner and, at its death, by the daemon */
    uint32_t reserved0;
    shared_u64 ask;     /* recovery promise: era + 1 once promised */
    shared_u64 outside; /* lowest step of the lane's ranks elsewhere; all ones = none */
    shared_u64 claim;   /* begins and aborts so far, one number for all groups */
    shared_u64 base;    /* version that the open chunk stands on */
    uint8_t reserved1[16];
};

/* Words of a group in the claim lines that follow the first line of a board. */
struct kvw_board_claim {
    shared_u64 want; /* end of the rows that the writer asks for */
    shared_u64 hi;   /* end of the rows that it has declared overwritten */
    shared_u64 open; /* rows of the open chunk, 0 = none */
    uint64_t reserved;
};

/* A record in a board is an array of shared words, in this order. */
enum {
    KVW_RECORD_WORD_MAGIC = 0,
    KVW_RECORD_WORD_STEP = 1,
    KVW_RECORD_WORD_ERA = 2,
    KVW_RECORD_WORD_REWINDS = 3,
    KVW_RECORD_WORD_GROUPS = 4,                    /* then per group: the words below */
    KVW_RECORD_GROUP_WORDS = 4 + 3 * KVW_KEPT_MAX, /* T, ev, gen, epoch, kept[] */
};                                                 /* then per layer: its floor */

/* Arrays with a word for each layer, behind the records: staged, pass, read. */
#define KVW_LAYER_WORDS 3u

/* A reader's hold on rows. The attachment writes it, the ranks' owners read it. */
struct kvw_pin {
    shared_u64 lo_plus_1;  /* lowest row held + 1; 0 = no hold. Stored last (release) */
    shared_u64 end;        /* one past the highest row held */
    shared_u64 generation; /* of the rows */
    shared_u64 lane_group; /* lane << 32 | group */
    shared_u64 ranks;      /* bit r: rank r's rows are held */
    shared_u64 keep_extent; /* keep-extent rows held: first << 32 | end; 0 = none */
    shared_u64 since_ns;    /* CLOCK_MONOTONIC_COARSE; for messages */
    shared_u64 kind;        /* pid << 32 | enum kvw_pin_kind; the pid is for messages */
};

enum kvw_pin_kind {
    KVW_PIN_OF_VIEW = 0, /* a reader's; the writer's policy may revoke it */
    KVW_PIN_OF_STEP = 1, /* a rank's while it truncates; never revoked */
};

_Static_assert(sizeof(struct kvw_control_header) == 192, "layout: header");
_Static_assert(offsetof(struct kvw_control_header, state) == 128, "layout: state line");
_Static_assert(offsetof(struct kvw_control_header, created_ns) == 136,
               "layout: minor 1");
_Static_assert(sizeof(struct kvw_seat) == KVW_CACHELINE, "layout: seat");
_Static_assert(sizeof(struct kvw_board) == KVW_CACHELINE, "layout: board");
_Static_assert(sizeof(struct kvw_board_claim) == 32, "layout: claim");
_Static_assert(sizeof(struct kvw_pin) == KVW_CACHELINE, "layout: pin");
_Static_assert(sizeof(struct kvw_geometry) % 8 == 0, "layout: geometry");

/* Where a plane lies in a layer. row_bytes is also the stride from row to row. In a
 * contiguous group each head's ring begins and ends with a page. */
struct kvw_layout_plane {
    uint64_t offset; /* of its first head's slot 0, from the start of its layer */
    uint64_t row_bytes;
    uint64_t head_bytes; /* stride from head to head: rows, padded to a line or page */
    uint64_t lane_bytes; /* stride from lane to lane */
    /* Checksums of a cache that has them: a u32 for each lane, head and slot, in this
     * order, behind the rows of all lanes. */
    uint64_t sums_offset;     /* of the first, from the start of its layer; 0 = none */
    uint64_t head_sums_bytes; /* stride from head to head: slots, padded to a line */
};

struct kvw_layout_group {
    uint64_t offset; /* of its first layer in the data segment */
    uint64_t layer_bytes;
    uint64_t ring_rows; /* C */
    uint64_t rows;      /* of a layer and head: S + C + keep */
    struct kvw_layout_plane plane[KVW_PLANES_MAX];
};

/* The layout of one cache: computed by each process for itself, never shared. */
struct kvw_layout {
    uint64_t control_bytes;
    uint64_t pins_bytes;
    uint64_t data_bytes;
    uint64_t padding_bytes; /* of these, what fills up the last huge page */

    uint64_t geometry_offset; /* control */
    uint64_t seats_offset;
    uint64_t boards_offset;
    uint64_t board_bytes;
    uint64_t claims_offset; /* from the start of a board */
    uint64_t records_offset;
    uint64_t record_bytes;
    uint64_t staged_offset; /* per layer: claim << 32 | rows written */
    uint64_t pass_offset;   /* per layer: claim << 32 | passes << 1 | being written */
    uint64_t read_offset; /* per layer: claim << 32 | passes of others that were read */
    uint32_t record_words;

    uint64_t flags_offset; /* pins: one line per board */
    uint64_t high_offset;  /* one u32 per attachment: pins ever used at once */
    uint64_t pins_offset;

    struct kvw_layout_group group[KVW_GROUPS_MAX];
};

/**
 * Compute the layout of a checked geometry.
 *
 * @return 0, or -E2BIG when the data would exceed KVW_BYTES_MAX (refusal filled in).
 */
KVW_NODISCARD int layout_of(const struct kvw_geometry *geometry,
                            struct kvw_layout *layout, struct kvw_refusal *refusal);

/** A number that differs when any shared structure or limit differs. */
uint64_t layout_hash(void);

/** Byte offset in the data segment of a row's slot: `slot` < rows of the group. */
uint64_t layout_row_offset(const struct kvw_layout *layout, uint32_t group,
                           uint32_t layer_in_group, uint32_t plane, uint32_t lane,
                           uint32_t head, uint64_t slot);

/** Byte offset in the data segment of the checksum of a row's slot. The cache has
 * checksums. */
uint64_t layout_sum_offset(const struct kvw_layout *layout, uint32_t n_heads,
                           uint32_t group, uint32_t layer_in_group, uint32_t plane,
                           uint32_t lane, uint32_t head, uint64_t slot);

/**
 * Write header, geometry, free seats and boards at version 1 (step 0, nothing
 * committed) into a zeroed control segment. The daemon does this before it gives the
 * segment away.
 */
void layout_control_init(void *control, const struct kvw_layout *layout,
                         const struct kvw_geometry *geometry, const char *name,
                         const uint8_t uuid[16]);

/**
 * Check a control segment made by anyone: magic, version, hash, sizes, geometry. The
 * geometry is copied out first and only the copy is checked and used.
 *
 * @param control_bytes,pins_bytes,data_bytes  Sizes of the segments, by fstat.
 * @return 0 with *geometry and *layout; -EPROTO for another layout, -EINVAL for a
 *         damaged one, with `refusal` in words.
 */
KVW_NODISCARD int layout_control_read(const void *control, uint64_t control_bytes,
                                      uint64_t pins_bytes, uint64_t data_bytes,
                                      struct kvw_geometry *geometry,
                                      struct kvw_layout *layout,
                                      struct kvw_refusal *refusal);

/* Places in mapped segments. Indices must be in range. */

static inline struct kvw_seat *
layout_seat(void *control, const struct kvw_layout *layout, uint32_t rank)
{
    return (struct kvw_seat *)(void *)((char *)control + layout->seats_offset) + rank;
}

static inline struct kvw_board *layout_board(void *control,
                                             const struct kvw_layout *layout,
                                             uint32_t n_lanes, uint32_t rank,
                                             uint32_t lane)
{
    uint64_t index = (uint64_t)rank * n_lanes + lane;
    return (struct kvw_board *)(void *)((char *)control + layout->boards_offset +
                                        index * layout->board_bytes);
}

static inline shared_u32 *layout_flag(void *pins, const struct kvw_layout *layout,
                                      uint32_t n_lanes, uint32_t rank, uint32_t lane)
{
    uint64_t index = (uint64_t)rank * n_lanes + lane;
    return (shared_u32 *)(void *)((char *)pins + layout->flags_offset +
                                  index * KVW_CACHELINE);
}

static inline shared_u32 *layout_high(void *pins, const struct kvw_layout *layout,
                                      uint32_t attachment)
{
    return (shared_u32 *)(void *)((char *)pins + layout->high_offset) + attachment;
}

static inline struct kvw_pin *layout_pin(void *pins, const struct kvw_layout *layout,
                                         uint32_t attachment, uint32_t index)
{
    return (struct kvw_pin *)(void *)((char *)pins + layout->pins_offset) +
           (uint64_t)attachment * KVW_PINS_PER_ATTACHMENT + index;
}

#endif
