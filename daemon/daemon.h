/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's state. One struct daemon, passed explicitly; everything hangs off it.
 *
 *   client       a connection; may come and go without anything else changing
 *   cache        three segments and the daemon's own sealed record of them
 *   attachment   a process's place in a cache; ended by DETACH or by its pidfd, only
 *
 * What workers can write (control and pin segments) is never believed: the daemon
 * computes with the geometry of its own record.
 */
#ifndef KVW_DAEMON_DAEMON_H
#define KVW_DAEMON_DAEMON_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "daemon/log.h"
#include "daemon/options.h"
#include "daemon/peer.h"
#include "daemon/placement.h"
#include "daemon/ring.h"
#include "daemon/segment.h"
#include "daemon/share.h"
#include "daemon/spawn.h"
#include "proto/layout.h"
#include "proto/messages.h"

#define NEVER_NS UINT64_MAX
#define DAEMON_VERSION KVW_PROJECT_VERSION

/* Lifetimes as on the wire. */
enum cache_lifetime {
    LIFETIME_JOB = 0,  /* until the last attachment ends */
    LIFETIME_TTL = 1,  /* some seconds longer */
    LIFETIME_KEEP = 2, /* until somebody removes it */
};

#define CACHE_META_MAGIC 0x6174656d77766bull

/* The daemon's record of a cache: frozen in a memfd that no client ever sees. */
struct cache_meta {
    uint64_t magic;
    uint64_t id;
    uint64_t ttl_seconds;
    uint64_t created_ns; /* CLOCK_REALTIME */
    uint64_t misplaced_pages;
    uint32_t uid;
    uint32_t gid;
    uint32_t mode;
    uint32_t lifetime;
    struct kvw_placement_wish wish; /* and the pages that it got */
    uint64_t huge_bytes;            /* on huge pages when it was made */
    char note[320];         /* what it did not get, in words; "" = all is as asked */
    uint32_t offered_slots; /* it came back by an offer: slots below are for offers */
    uint8_t uuid[16];
    char name[KVW_NAME_MAX + 1];
    struct kvw_geometry geometry;
};

enum cache_state {
    CACHE_CREATING = 0, /* its memory is being allocated */
    CACHE_READY = 1,
    CACHE_REMOVED = 2, /* the name is free again; attachments may finish */
};

enum { /* segments, in the order in which they are allocated and sent */
       SEGMENT_CONTROL = 0,
       SEGMENT_PINS = 1,
       SEGMENT_DATA = 2,
       N_SEGMENTS = 3,
};

struct attachment;
struct closer;
struct crew;
struct store;
struct store_entry;

struct cache {
    uint32_t slot;       /* in daemon.caches */
    uint32_t generation; /* of its allocation's tags */
    enum cache_state state;
    struct cache_meta meta;
    struct kvw_layout layout;
    struct segment segment[N_SEGMENTS];
    int meta_fd;
    uint64_t total_bytes;
    struct kvw_plan *plan; /* NULL: adopted, and not yet needed */
    uint64_t used_ns;      /* CLOCK_REALTIME of the last attach or detach */
    uint64_t expires_ns;   /* CLOCK_MONOTONIC, or NEVER_NS */

    /* While creating. */
    uint64_t done_bytes;
    uint32_t allocating; /* segment */
    uint64_t offset;     /* in it */
    bool is_cancelled;   /* roll back when the slice in flight is done */
    uint64_t job;        /* of the crew that allocates its data; 0 = the ring does */
    uint64_t told_bytes; /* progress of that job, as it was told last */

    /* NUMA; numa.h. */
    uint64_t moving;             /* bit r: rank r's part is being moved */
    uint8_t next[KVW_RANKS_MAX]; /* node + 1 to follow to after that; 0 = none */
    uint64_t follow_since_ns;    /* what followed in the present period */
    uint64_t follow_bytes;
    const char *follow_words; /* why the last one did not; NULL = it did */

    /* While offered_slots > 0; await.h. */
    uint64_t sweep_ns; /* when to look for the dead again */
    bool is_awaiting;  /* unused, but an owner may come back */

    uint32_t n_attachments;
    struct attachment *by_slot[KVW_ATTACHMENTS_MAX];
    struct attachment *owner[KVW_RANKS_MAX];
};

struct client;

struct attachment {
    uint64_t id;
    uint32_t index;      /* in daemon.attachments */
    uint32_t generation; /* of its pidfd poll */
    uint32_t rank;       /* KVW_RANK_READER = none */
    uint32_t slot;       /* in its cache */
    uint64_t since_ns;   /* CLOCK_REALTIME */
    bool was_dead;       /* the owner of its rank before */
    struct cache *cache;
    struct peer peer;
    struct client *client; /* NULL = its connection is lost, or not made again yet */
};

/* A packet that waits to be sent. */
struct outgoing {
    struct outgoing *next;
    uint64_t attachment; /* as in struct reply */
    uint32_t n_bytes;
    uint32_t n_fds;
    int fds[KVW_MESSAGE_FDS_MAX]; /* owned */
    uint8_t bytes[];
};

/* A request that is answered later. A client has at most one. */
enum pending {
    PENDING_NONE = 0,
    PENDING_CREATE = 1, /* of the cache with id pending_id */
    PENDING_KICK = 2,   /* until the attachment pending_id has ended */
    PENDING_NUMA = 3,   /* until the crew's job pending_id is done; as the next */
    PENDING_MOVE = 4,
};

struct client {
    uint32_t slot; /* in daemon.clients */
    uint32_t generation;
    int socket;
    struct peer peer;
    uint32_t user; /* accounts, share.h */
    uint32_t process;
    uint64_t came_ns;
    struct client *stranger_before; /* while it has not said hello */
    struct client *stranger_after;
    bool is_counted;
    bool is_stranger;
    bool is_greeted;   /* HELLO was answered */
    bool is_last;      /* close once everything is sent */
    bool is_closing;   /* shut down; freed when nothing is in flight */
    bool is_receiving; /* an operation is in flight */
    bool is_sending;

    enum pending pending;
    uint32_t pending_request;
    uint64_t pending_id;

    struct outgoing *first; /* the one in flight */
    struct outgoing *last;
    uint32_t n_outgoing;

    struct msghdr receive_head;
    struct iovec receive_body;
    struct msghdr send_head;
    struct iovec send_body;
    _Alignas(struct cmsghdr) char send_control[CMSG_SPACE(KVW_MESSAGE_FDS_MAX *
                                                          sizeof(int))];
    int fds[KVW_MESSAGE_FDS_MAX]; /* of the message that is served; -1 = taken */
    uint32_t n_fds;
    uint32_t n_bytes; /* of the packet */
    char program[64];
    uint8_t packet[KVW_MESSAGE_MAX];
};

struct daemon {
    const struct options *options;
    struct log log;
    struct ring *ring;
    struct closer *closer;
    struct placement *placement;
    struct crew *crew; /* NULL: not needed yet */
    uint64_t told_ns;  /* when progress of moves and counts was told */
    bool is_settled;   /* what was adopted has been looked at */
    uint64_t epoch;
    uint64_t started_ns; /* CLOCK_REALTIME */

    int listen_fd;
    int lock_fd;
    uint64_t available_bytes; /* of memory, when it could be looked at last */
    int spare_fd; /* given up for a moment to shed a client at the descriptor limit */
    int signals;
    int own_pidfd;
    bool is_accept_due; /* connections wait */
    uint64_t accept_ns; /* when the listener is looked at again, or NEVER_NS */

    const struct store *store;
    struct store_entry *stored; /* systemd: names of what it has */
    struct store_entry *held;   /* while holding: what is kept, and left alone */
    int stamp_fd;        /* whose layout the store's caches have; -1 = not yet known */
    int keeper_socket;   /* to the store; -1 = none */
    int keeper_pidfd;    /* of a keeper that we started, or -1 */
    uint32_t keeper_pid; /* 0 = systemd is the store */
    uint32_t keeper_generation; /* of its hang-up poll */
    struct backoff keeper_starts;
    uint64_t keeper_ns; /* while there is none: when the next one may be started */

    uint32_t generation; /* of the next slot that is filled */
    uint64_t last_cache_id;
    uint64_t last_attachment_id;
    struct client *clients[KVW_CLIENTS_MAX];
    struct shares shares;
    struct cache *caches[KVW_CACHES_MAX];
    struct attachment *attachments[KVW_ALL_ATTACHMENTS_MAX];
    uint32_t n_clients;
    uint32_t n_caches;
    uint32_t n_attachments;
    uint64_t idle_ns; /* since when there was no client and no cache */

    bool is_stopping;
    int exit_code;
    uint64_t stop_ns; /* while stopping: when unsent answers are given up */
    bool is_leaving;  /* stopping, but the caches stay in the store */
    bool is_holding;  /* nothing is adopted: what is kept has another layout */
    bool has_peerpidfd;
    char words[256]; /* what a restart left to be said; "" = nothing */
};

/**
 * Serve until stopped.
 *
 * @return the program's exit code.
 */
int daemon_run(const struct options *options);

/** End the loop once answers are sent. All caches are gone then. */
void daemon_stop(struct daemon *daemon, int exit_code);

#endif
