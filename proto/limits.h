/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every bound of the shared layout and of the protocol, in one place. Reaching one of
 * them is a tested answer, never a crash. A change of one that shapes the layout changes
 * the layout hash.
 */
#ifndef KVW_PROTO_LIMITS_H
#define KVW_PROTO_LIMITS_H

#define KVW_CACHELINE 64u
#define KVW_PAGE 4096u
#define KVW_HUGE_PAGE (2u << 20)

/* Geometry of one cache. */
#define KVW_GROUPS_MAX 16u   /* groups of a cache */
#define KVW_PLANES_MAX 8u    /* planes of a row */
#define KVW_LAYERS_MAX 1024u /* layers of a cache, all groups together */
#define KVW_LANES_MAX 1024u  /* lanes of a cache */
#define KVW_RANKS_MAX 64u    /* ranks of a cache: a set of ranks is one 64-bit word */
#define KVW_HEADS_MAX 65536u /* heads of a group */
#define KVW_ELEMS_MAX (1u << 28)   /* elements of one row, head and plane */
#define KVW_ROWS_MAX (1u << 31)    /* rows that a layer holds; slots are 32-bit */
#define KVW_SLACK_MAX 1024u        /* slack chunks */
#define KVW_BYTES_MAX (1ull << 46) /* data bytes of one cache: 64 TiB */
#define KVW_BOARDS_MAX 4096u       /* ranks x lanes of one cache */

/* Protocol. */
#define KVW_RECORDS 8u  /* K: records of a board; the lead of a rank is K - 2 steps */
#define KVW_KEPT_MAX 4u /* kept ranges of a lane and group */
#define KVW_PIECES_MAX 64u          /* pieces of a view */
#define KVW_ATTACHMENTS_MAX 128u    /* attachments of one cache at once */
#define KVW_PINS_PER_ATTACHMENT 64u /* views that one attachment holds at once */
#define KVW_RETRIES_MAX 64u         /* a reader that loses this often answers -EAGAIN */
#define KVW_WAIT_SLICE_MS 100u      /* longest uninterrupted sleep */

/* Names. Lengths are bytes without the terminating zero. */
#define KVW_NAME_MAX 63u       /* of a cache */
#define KVW_SHORT_NAME_MAX 15u /* of a group or a plane */
#define KVW_SOCKET_PATH_MAX 107u

/* NUMA nodes with memory; more are left alone. */
#define KVW_NODES_MAX 64u

/* Daemon. */
#define KVW_MESSAGE_MAX 16384u        /* bytes of one wire message */
#define KVW_MESSAGE_FDS_MAX 4u        /* descriptors of one wire message */
#define KVW_CLIENTS_MAX 1024u         /* connections; of one user half */
#define KVW_CLIENTS_PROCESS_MAX 128u  /* ... of one process */
#define KVW_CLIENTS_RESERVED 128u     /* the last ones are for users with ... */
#define KVW_CLIENTS_FEW 8u            /* less than this */
#define KVW_HELLO_MS 10000u           /* a connection that says nothing is dropped */
#define KVW_CACHES_MAX 1024u          /* caches of one daemon; of one user half */
#define KVW_ALL_ATTACHMENTS_MAX 4096u /* attachments of one daemon; likewise */
#define KVW_SEND_QUEUE_MAX 64u        /* answers that wait for one slow client */
#define KVW_ALLOCATE_SLICE_BYTES (64ull << 20) /* one step of an allocation */
#define KVW_LOG_BYTES_MAX (1ull << 20)         /* of a log in a file; there are two */
#define KVW_TTL_SECONDS_MAX (10ull * 366 * 24 * 3600)

#endif
