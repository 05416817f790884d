/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvwheel: rolling KV caches that live outside the processes that generate.
 *
 * A cache is groups of layers; a layer is a ring of rows; a row has planes. The daemon
 * kvwheeld owns the bytes in shared memory; this library attaches to them, and
 * attention runs on the shared bytes themselves. One round of generation is
 *
 *     kvw_begin()                    open a chunk on a lane; learn its positions
 *     kvw_update() or kvw_slots()    write its rows, layer by layer, as often as needed
 *     kvw_get() ... kvw_release()    look at the window, the chunk's own rows included
 *     kvw_commit()                   publish: all groups and layers of the rank at once
 *
 * Words: a *lane* is an independent sequence of the cache (a sample, or a branch of
 * guidance). A *rank* is a worker's place in the partition of the cache. A *row* is one
 * position along time. A *plane* is one tensor of a row, heads x elems of one type. The
 * *window* W is the number of rows that a query may see, the *sink* S and the query's
 * own chunk included. A *step* is one publication on a lane; every rank that holds the
 * lane runs the same numbered list of steps. A *piece* is a run of rows of a view that
 * lies contiguous in memory. Row numbers count from 0 and are never renumbered.
 *
 * Errors. Every call returns 0 or a count, or a negative number: -errno, or one of the
 * KVW_E... values below, negative. kvw_last_error() has the same refusal in words, with
 * what is needed and what there is. A call that failed changed nothing.
 *
 * Threads. A client and its caches are used by one thread at a time; different clients
 * are independent. kvw_last_error() is per thread. The library has no threads of its
 * own, prints nothing and installs no signal handler.
 *
 * Fork. A child must connect and attach for itself: mappings do not cross a fork.
 *
 * Streamed and asynchronous stores. Rows written with non-temporal stores by other
 * threads need a store fence in each of those threads, and device or io_uring transfers
 * into rows must be complete, before kvw_written() or kvw_update() is called for them.
 *
 * Environment: KVWHEEL_POISON=1 at attach makes every begin of that attachment fill the rows
 * that it opens with a signalling NaN (i8, u8, u32: bytes 0x7f), so that an engine that reads
 * rows which it has not written is seen at once. For debugging; committed rows are never
 * touched. $KVWHEEL_SOCKET: see kvw_connect().
 *
 * Fast path: kvw_update, kvw_slots, kvw_written, kvw_have_read and kvw_commit (on which
 * nobody sleeps), kvw_get, kvw_cut, kvw_release, kvw_abort and a wait that is already true
 * make no system call, take no lock and allocate nothing.
 */
#ifndef KVWHEEL_KVWHEEL_H
#define KVWHEEL_KVWHEEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVW_VERSION_MAJOR 0
#define KVW_VERSION_MINOR 1

#if defined(__GNUC__)
#define KVW_API __attribute__((visibility("default"), warn_unused_result))
#define KVW_API_VOID __attribute__((visibility("default")))
#else
#define KVW_API
#define KVW_API_VOID
#endif

/* Failures that errno has no word for; returned negative, like errno values. */
enum kvw_error {
    KVW_EOVERRUN = 4096,    /* rows of the view were written anew while it was held */
    KVW_EDIVERGED = 4097,   /* ranks published different steps of one number */
    KVW_EINCOMPLETE = 4098, /* commit: a layer has rows that were not written */
    KVW_EGONE = 4099,       /* the cache was removed, or its control words were wiped */
    KVW_ELAYOUT = 4100,     /* daemon or cache has another protocol or layout version */
};

/* Element type of a plane. enum kvw_num of kernels.h has the same numbers. */
enum kvw_type {
    KVW_F32 = 1,
    KVW_BF16 = 2,
    KVW_F16 = 3,
    KVW_I8 = 4,
    KVW_U8 = 5,
    KVW_U32 = 6,
};

/* What a full group does. */
enum kvw_policy {
    KVW_ROLL = 1,   /* the oldest rows behind the sink leave */
    KVW_REFUSE = 2, /* begin answers -ENOSPC; rows never wrap */
};

/* Which rows a query sees. `chunk`: all queries of a chunk see the same (video). `row`: a
 * query sees sink, kept rows and the W - S rows that end at itself (language models); the
 * view starts as the chunk's first query sees it, and kernels mask per query. */
enum kvw_window_kind {
    KVW_WINDOW_CHUNK = 1,
    KVW_WINDOW_ROW = 2,
};

/*
 * The position that belongs to a row: its own number, or, relative to the window, its index
 * among the rows that the group's view shows. Rows that kvw_reset_layer() hides and rows of
 * other ranks are counted, so that one position holds in every layer and on every rank.
 *
 * In a chunk of n rows of window kind `row` an index holds for the last query: sink and kept
 * rows are moved up by the rows that only earlier queries see, and a kept row that the last
 * query no longer finds in the window is shown as kept, before the past.
 */
enum kvw_positions {
    KVW_POSITIONS_ABSOLUTE = 1,
    KVW_POSITIONS_WINDOW = 2,
};

/* When the daemon removes a cache by itself. */
enum kvw_lifetime {
    KVW_LIFETIME_JOB = 0,  /* when its last attachment ends */
    KVW_LIFETIME_TTL = 1,  /* ttl_seconds after that */
    KVW_LIFETIME_KEEP = 2, /* never */
};

/*
 * On which NUMA nodes the rows lie. What one node cannot give goes to the nearest that can;
 * a node without CPUs is used only when it is named. NODE and MAP are refused where the
 * named node has no room. `kvwheel plan` shows it beforehand, `kvwheel show --numa` after.
 */
enum kvw_placement {
    KVW_PLACEMENT_SPREAD = 0, /* whole layers, dealt evenly to the nodes */
    KVW_PLACEMENT_FOLLOW = 1, /* a rank's part lies where its worker runs: dealt evenly
                                     at first, moved when a worker attaches elsewhere */
    KVW_PLACEMENT_INTERLEAVE = 2, /* small blocks by turns */
    KVW_PLACEMENT_NODE = 3,       /* all on node[0] */
    KVW_PLACEMENT_MAP = 4,        /* the part of rank r on node[r] */
};

/* Pages that the rows lie on. What the host does not give is said by `kvwheel show`. */
enum kvw_pages {
    KVW_PAGES_NONE = 0, /* 4 KiB */
    KVW_PAGES_THP = 1,  /* huge ones where they fit, 4 KiB elsewhere */
    KVW_PAGES_2M = 2,   /* of the pool of 2 MiB pages; else as THP. Not contiguous */
};

/* What a writer does when a reader's pin holds rows it needs. */
enum kvw_pin_policy {
    KVW_PIN_WAIT = 1, /* wait until the deadline, then -EBUSY with the reader's name */
    KVW_PIN_ANSWER = 2, /* -EBUSY at once */
    KVW_PIN_REVOKE = 3, /* go on; the reader's release answers -KVW_EOVERRUN */
};

/* Why a piece is visible. */
enum kvw_piece_class {
    KVW_PIECE_SINK = 1,
    KVW_PIECE_KEPT = 2,
    KVW_PIECE_PAST = 3,    /* in a contiguous group the open chunk follows in it */
    KVW_PIECE_CURRENT = 4, /* rows of the open chunk */
};

/* Bounds. */
#define KVW_SPEC_GROUPS_MAX 16
#define KVW_SPEC_PLANES_MAX 8
#define KVW_SPEC_LAYERS_MAX 1024
#define KVW_VIEW_PIECES_MAX 64
#define KVW_VIEWS_MAX 64 /* held by one attachment at once */

#define KVW_READER UINT32_MAX    /* a rank number that means: none, read only */
#define KVW_ALL_RANKS UINT32_MAX /* in waits: every rank that holds the lane */
#define KVW_NO_TIMEOUT UINT64_MAX
#define KVW_WHOLE UINT64_MAX /* rows of a commit: all that were begun */

struct kvw_client; /* a connection to a daemon */
struct kvw_cache;  /* an attachment to a cache */

/* ------------------------------------------------------------------ errors -------- */

/** The last refusal of this thread in words; "" if there was none. Never NULL. The text
 *  stays until the thread's next failing call. */
KVW_API_VOID const char *kvw_last_error(void);

/** A short text for a returned negative number. Never NULL. */
KVW_API_VOID const char *kvw_strerror(int error);

/** "0.1": the library's own version. */
KVW_API_VOID const char *kvw_version(void);

/* ------------------------------------------------------------------- specs -------- */

/* One tensor of a row: heads x elems of `type`. */
struct kvw_spec_plane {
    char name[16];       /* "k", "v", "k_scale", "vk", "ids" ... */
    uint32_t type;       /* enum kvw_type */
    uint32_t elems;      /* per row and head: head_dim for k */
    uint32_t is_rotated; /* keys are stored after rotation; for readers to know */
};

/*
 * Layers that share one geometry and one policy.
 *
 * The window holds the sink and what is new: W >= S + chunk_rows_max for window kind
 * `chunk`, W > S for `row`. Each head's rows begin on a 64-byte line (in a contiguous group
 * its ring on a page), rows follow each other without padding.
 *
 * is_contiguous = 1: each head's ring is mapped twice in a row at attach, so that past and
 * current rows are one piece for any third-party kernel. It costs up to a page's rows of
 * slack in each plane, and three mappings per layer, plane, lane and head
 * (vm.max_map_count). Not where rows are split.
 */
struct kvw_spec_group {
    char name[16];           /* "self", "cross", "state", "local", "global" ... */
    uint32_t n_layers;       /* set by kvw_spec_add_group() */
    uint32_t n_heads;        /* KV heads */
    uint64_t window_rows;    /* W, sink and the query's own chunk included */
    uint64_t sink_rows;      /* S, default 0 */
    uint64_t chunk_rows_max; /* rows of the largest chunk */
    uint64_t keep_rows;      /* rows that kvw_keep() may hold beside W, default 0 */
    uint32_t slack_chunks;   /* chunks of room beside the window, default 1 (roll) */
    uint32_t policy;         /* enum kvw_policy */
    uint32_t window_kind;    /* enum kvw_window_kind */
    uint32_t positions;      /* enum kvw_positions */
    uint32_t is_contiguous;  /* 0 or 1; see below */
    uint32_t n_planes;       /* set by kvw_spec_add_plane() */
    struct kvw_spec_plane plane[KVW_SPEC_PLANES_MAX];
};

/*
 * What a cache is. Filled in by kvw_spec_init() and the add calls, or by
 * kvw_spec_preset() or kvw_spec_config(); plain data, copied freely.
 *
 * Ranks: n_ranks = head_parts x layer_parts x lane_parts x row_parts, and rank =
 * ((lane_part * layer_parts + layer_part) * head_parts + head_part) * row_parts +
 * row_part. Parts may be uneven and may be empty.
 *
 * has_checksums = 1: commit writes a CRC-32C of every row, plane and head that it publishes
 * beside the rows, which kvw_verify() compares. It takes 4 bytes each, and a commit reads
 * its chunk once more; reading rows costs nothing.
 */
struct kvw_spec {
    uint32_t size; /* sizeof(struct kvw_spec), set by kvw_spec_init() */
    char name[64]; /* of the cache: 1-63 letters, digits, '_', '-', '.' */
    uint32_t n_lanes;
    uint32_t n_ranks;
    uint32_t head_parts;
    uint32_t layer_parts;
    uint32_t lane_parts;
    uint32_t row_parts;
    uint32_t row_block;   /* where rows are split: rows in a row of one rank */
    uint32_t lifetime;    /* enum kvw_lifetime, default KVW_LIFETIME_JOB */
    uint64_t ttl_seconds; /* for KVW_LIFETIME_TTL */
    uint32_t mode;        /* permissions like a file's, default 0600 */
    uint32_t placement;   /* enum kvw_placement */
    uint32_t n_groups;
    uint32_t n_layers;      /* of all groups */
    uint32_t has_checksums; /* 0 (default) or 1: see below */
    uint32_t pages;         /* enum kvw_pages, default KVW_PAGES_NONE */
    uint16_t node[64];      /* of placement node and map: the system's numbers */
    struct kvw_spec_group group[KVW_SPEC_GROUPS_MAX];
    uint16_t model_layer[KVW_SPEC_LAYERS_MAX]; /* of each layer, group after group */
};

/* Bytes of a spec, before anything is allocated. */
struct kvw_spec_bytes {
    uint64_t total_bytes;   /* what the daemon allocates: data, control and pins */
    uint64_t data_bytes;    /* rows, and their checksums, alone */
    uint64_t control_bytes; /* control and pin segments */
    uint64_t padding_bytes; /* of the data, what fills up the last huge page */
    uint64_t group_bytes[KVW_SPEC_GROUPS_MAX];
    uint64_t layer_bytes[KVW_SPEC_GROUPS_MAX]; /* of one layer of the group */
    uint64_t rank_bytes[64];                   /* of these, what each rank holds */
};

/** An empty spec: one lane, one rank, lifetime job, mode 0600, called `name`. */
KVW_API_VOID void kvw_spec_init(struct kvw_spec *spec, const char *name);

/**
 * Add a group of `n_layers` layers.
 *
 * @param model_layers  The model's number of each layer, ascending; NULL for 0, 1, 2,
 *         ... Two groups may name the same model layer (self and cross).
 * @return the group, with policy roll, window kind chunk, absolute positions, slack 1,
 *         one head; or NULL when a bound is reached (kvw_last_error() says which).
 */
KVW_API struct kvw_spec_group *kvw_spec_add_group(struct kvw_spec *spec,
                                                  const char *name, uint32_t n_layers,
                                                  const uint16_t *model_layers);

/** Add a plane to a group. @return the plane, or NULL when KVW_SPEC_PLANES_MAX is
 * reached. */
KVW_API struct kvw_spec_plane *kvw_spec_add_plane(struct kvw_spec_group *group,
                                                  const char *name, uint32_t type,
                                                  uint32_t elems);

/** Split the heads over `n_ranks` ranks: the usual tensor parallel partition. */
KVW_API_VOID void kvw_spec_split_heads(struct kvw_spec *spec, uint32_t n_ranks);

/**
 * Check a spec. @return 0, -EINVAL or -E2BIG; kvw_last_error() names the group, what is
 * needed and what there is. (kvw_create() checks too.)
 */
KVW_API int kvw_spec_check(const struct kvw_spec *spec);

/** Bytes of a spec. @return 0, or as kvw_spec_check(). */
KVW_API int kvw_spec_size(const struct kvw_spec *spec, struct kvw_spec_bytes *bytes);

/**
 * A spec by name: self-forcing-1.3b, longlive-1.3b, krea-14b, longsana-2b, glm-image,
 * mistral-7b, gemma3-4b, gpt-oss-20b.
 *
 * @param context_rows  Window of full-attention layers; 0 for the preset's default.
 * @return 0, or -ENOENT (kvw_last_error() lists the names).
 */
KVW_API int kvw_spec_preset(struct kvw_spec *spec, const char *preset,
                            uint64_t context_rows);

/** Name of preset `index`, or NULL past the last. */
KVW_API_VOID const char *kvw_spec_preset_name(uint32_t index);

/**
 * A spec from a Hugging Face config.json (Llama, Mistral, Gemma 3, gpt-oss): groups
 * `local` and `global` where layers differ, else `self`; planes k and v.
 *
 * @param path  config.json, or the folder that holds it.
 * @param type  enum kvw_type of k and v; 0 for the model's own.
 * @param context_rows  Window of full-attention layers; 0 for the config's maximum.
 * @return 0; -ENOENT, -EACCES ... (file); -EINVAL (not JSON, a field missing, absurd).
 */
KVW_API int kvw_spec_config(struct kvw_spec *spec, const char *path, uint32_t type,
                            uint64_t context_rows);

/* ---------------------------------------------------------- daemon and caches ----- */

/**
 * Connect to a daemon.
 *
 * @param socket_path  Its socket; NULL for $KVWHEEL_SOCKET, else the user's default
 *         ($XDG_RUNTIME_DIR/kvwheel/kvwheeld.sock, or /tmp/kvwheel-UID/...). With NULL
 *         and no daemon there, one is started for this user: the same program with the
 *         same keeper. It ends 60 s after its last client once it holds no cache, and
 *         logs to its socket's path with ".log" behind it (kvwheel logs).
 * @param client  [out] To be closed with kvw_disconnect().
 * @return 0; -ENOENT, -ECONNREFUSED (nobody there), -ENOTSOCK (the path is something
 *         else), -EACCES, -ETIMEDOUT, -EMFILE (this process or user has its share of the
 *         daemon's connections), -KVW_ELAYOUT (another version), -ENOEXEC (kvwheeld was
 *         not found or did not start).
 *
 * A connection that is lost (the daemon was restarted) is made again by the next call
 * that needs it; attachments stay valid all the while, for the data path makes no call.
 */
KVW_API int kvw_connect(const char *socket_path, struct kvw_client **client);

/** The same, but with NULL and no daemon there none is started: -ENOENT or -ECONNREFUSED.
 *  For programs that share a node with others, or whose children a scheduler ends. */
KVW_API int kvw_connect_running(const char *socket_path, struct kvw_client **client);

/** Detach from all caches and close. Accepts NULL. */
KVW_API_VOID void kvw_disconnect(struct kvw_client *client);

/** Progress of a creation: bytes allocated so far, of all. */
typedef void kvw_progress_fn(void *context, uint64_t done_bytes, uint64_t total_bytes);

/**
 * Create a cache: placed, fully allocated, nothing committed. Creating it again with
 * the same spec is a success and changes nothing.
 *
 * @param progress  Called now and then; may be NULL.
 * @return 0; 1 if it was there already; -EEXIST (another spec has that name), -EINVAL,
 *         -E2BIG (the spec), -ENOMEM (the node has not got the memory), -EDQUOT
 *         (quota), -ENFILE (too many caches), -EPIPE (daemon gone and not to be found
 *         again).
 */
KVW_API int kvw_create(struct kvw_client *client, const struct kvw_spec *spec,
                       kvw_progress_fn *progress, void *context);

/** Remove a cache. @return 0; -ENOENT; -EACCES; -EBUSY while attached unless is_forced
 *  (attachments keep their bytes until they detach, and learn -KVW_EGONE at begin). */
KVW_API int kvw_remove(struct kvw_client *client, const char *name, int is_forced);

struct kvw_attach_options {
    uint32_t size;       /* sizeof(struct kvw_attach_options) */
    uint32_t pin_policy; /* enum kvw_pin_policy, default KVW_PIN_WAIT */
    uint64_t timeout_ns; /* of begin and of every other step, default 30 s */
    uint32_t spin_us;    /* spin before a wait sleeps, default 30 */
    /* How long to wait for the end of a process that holds the rank, default 0. */
    uint64_t owner_timeout_ns;
};

#define KVW_ATTACH_OPTIONS_INIT                                                \
    {                                                                          \
        sizeof(struct kvw_attach_options), KVW_PIN_WAIT, 30000000000ull, 30, 0 \
    }

/**
 * Attach to a cache as a rank, or as a reader. Costs the same for any size of cache.
 * The owner before, if it died, is taken over: its open chunk is forgotten, its commits
 * stay. One that is about to end, as after a job was killed, can be waited for
 * (owner_timeout_ns): for the end of its process, not for its detach, which is seen when
 * the time is over.
 *
 * @param rank  0 <= rank < n_ranks, or KVW_READER.
 * @param options  NULL for the defaults.
 * @return 0; -ENOENT (no such cache), -EBUSY (a live process holds the rank, and did for
 *         all of owner_timeout_ns; the text names it), -ERANGE, -EACCES, -EMFILE
 *         (attachments of the cache), -EDQUOT (of the user), -KVW_EGONE.
 */
KVW_API int kvw_attach(struct kvw_client *client, const char *name, uint32_t rank,
                       const struct kvw_attach_options *options,
                       struct kvw_cache **cache);

/** Detach: forget the open chunk, end all views, unmap. Accepts NULL. Pointers into
 * views are invalid afterwards. */
KVW_API_VOID void kvw_detach(struct kvw_cache *cache);

/** The spec of an attached cache (borrowed until detach). */
KVW_API_VOID const struct kvw_spec *kvw_cache_spec(const struct kvw_cache *cache);

/** The rank of this attachment, or KVW_READER. */
KVW_API_VOID uint32_t kvw_cache_rank(const struct kvw_cache *cache);

/**
 * Bind the calling thread to the CPUs of the NUMA node on which this rank's part is to lie,
 * of those that it may run on already: a launcher's binding (mpirun, Slurm) is narrowed,
 * never left. Threads that it starts afterwards inherit it, OpenMP's included if they have
 * not run yet; else see kvw_bind_team(). One call to the daemon.
 *
 * In a cache that follows its workers it is the other way round: attach where the worker
 * is bound, and the part comes to it.
 *
 * @return CPUs that the thread is bound to now; 0 if it was left as it was, for a reason
 *         that kvw_last_error() says (the part lies on several nodes, or there is one node
 *         only); -ERANGE (the launcher's CPUs are all of other nodes), -EINVAL (a reader
 *         has no part), -EPERM (the host forbids it), -EPIPE, -KVW_EGONE.
 */
KVW_API int kvw_bind_self(struct kvw_cache *cache);

/** Bind the calling thread as kvw_bind_self() has bound another: no call to the daemon, and
 *  from any thread. @return as kvw_bind_self(). */
KVW_API int kvw_bind_thread(const struct kvw_cache *cache);

#ifdef _OPENMP
/** kvw_bind_self() for the calling thread and OpenMP's, in the caller's own OpenMP.
 *  @return as kvw_bind_self(). */
static inline int kvw_bind_team(struct kvw_cache *cache)
{
    int n_cpus = kvw_bind_self(cache);

    if (n_cpus > 0) {
#pragma omp parallel reduction(min : n_cpus)
        n_cpus = kvw_bind_thread(cache);
    }
    return n_cpus;
}
#endif

/* The part of a group that a rank holds. */
struct kvw_part {
    uint32_t head_first;
    uint32_t n_heads;
    uint32_t layer_first; /* index of a layer, as in struct kvw_layer */
    uint32_t n_layers;
    uint32_t lane_first;
    uint32_t n_lanes;
};

/** The part of a group that `rank` holds. @return 0 or -ERANGE. */
KVW_API int kvw_cache_part(const struct kvw_cache *cache, uint32_t group, uint32_t rank,
                           struct kvw_part *part);

/* ------------------------------------------------------------------ layers -------- */

struct kvw_layer {
    uint32_t index; /* in all layers of the cache, group after group */
};

/** Index of a group by name. @return >= 0, or -ENOENT. */
KVW_API int kvw_group(const struct kvw_cache *cache, const char *name);

/** The layer of the first group that has model layer `model_layer`. @return 0, -ENOENT.
 */
KVW_API int kvw_layer_at(const struct kvw_cache *cache, uint32_t model_layer,
                         struct kvw_layer *layer);

/** The layer of group `group` for model layer `model_layer`. @return 0 or -ENOENT. */
KVW_API int kvw_layer_of(const struct kvw_cache *cache, const char *group,
                         uint32_t model_layer, struct kvw_layer *layer);

/* --------------------------------------------------------- writing a chunk -------- */

/*
 * One group's part in a step. Every step takes a vector of these; groups that are not
 * named stay as they are. `epoch` is a 64-bit condition (the prompt) that is published
 * with the step and returned by get; 0 in has_epoch keeps the old one.
 */
struct kvw_item {
    uint32_t group;
    uint32_t has_epoch;
    uint64_t
        row; /* begin: where the chunk starts, = rows committed; truncate, evict: row */
    uint64_t
        n; /* begin: rows of the chunk; commit: rows to publish or KVW_WHOLE; keep */
    uint64_t epoch;
};

/* What begin says of one chunk. */
struct kvw_begun {
    uint64_t row;      /* of its first row */
    uint64_t n;        /* rows */
    uint64_t position; /* of its first row, by the group's rule */
    uint64_t
        evict_first;    /* rows of the committed view that the staged view no longer */
    uint64_t evict_end; /* shows: evict_first <= row < evict_end; equal if none */
};

/**
 * Open the chunks that the next step of a lane adds. The same again is idempotent;
 * other numbers abort what is open and begin anew. Positions and evictions come back
 * before anything is rotated or written.
 *
 * @param items  row must be the rows committed in the group, 1 <= n <= chunk_rows_max.
 * @param begun  [out] one for each item; may be NULL.
 * @return 0; -EINVAL (row, n, or a group named twice), -ENOSPC (a refuse group is
 *         full), -EBUSY (a reader's pin, by policy; or an own view still held),
 *         -ETIMEDOUT (a rank that lags; the text names it, since when, at which step),
 *         -EOWNERDEAD (that rank's process died), -KVW_EDIVERGED, -ESTALE (a recovery
 *         is under way: kvw_recover()), -EAGAIN (ranks on other nodes are behind, see
 *         kvw_outside()), -EACCES (a reader), -KVW_EGONE.
 */
KVW_API int kvw_begin(struct kvw_cache *cache, uint32_t lane,
                      const struct kvw_item *items, uint32_t n_items,
                      struct kvw_begun *begun);

/* Where update finds rows of one plane: element (row r, head h) of the rank's heads
 * lies at data + r * row_bytes + h * head_bytes; elems follow each other. */
struct kvw_source {
    const void *data;
    int64_t row_bytes;
    int64_t head_bytes;
};

/**
 * Copy rows of the open chunk into a layer, in every plane of its group, in the planes'
 * own types. Any number of times: each denoising pass overwrites the last.
 *
 * @param row_first  First row, counted from the chunk's start. It may lie at or below
 *         the rows already written, not beyond (no gap).
 * @param sources  One for each plane of the group. Where rows are split over ranks,
 *         rows of other ranks are passed over, in the source too.
 * @return 0; -EINVAL (gap, past the chunk, no chunk open), -ERANGE (layer or lane not
 *         of this rank), -EACCES (a reader).
 */
KVW_API int kvw_update(struct kvw_cache *cache, uint32_t lane, struct kvw_layer layer,
                       uint64_t row_first, uint64_t n_rows,
                       const struct kvw_source *sources);

/* A run of rows of a view that lies contiguous in memory. */
struct kvw_piece {
    uint64_t row;      /* number of its first row */
    uint64_t position; /* of its first row, by the group's rule */
    uint32_t n_rows;
    uint32_t slot;        /* of its first row in the ring; see kvw_piece_at() */
    uint32_t piece_class; /* enum kvw_piece_class */
    uint32_t reserved;
};

/* A plane of a view: element 0 of (slot s, head h) lies at base + s * row_bytes +
 * h * head_bytes, with h counted from the view's first head. */
struct kvw_plane {
    char *base; /* read-only memory in a view of another rank or of a reader */
    uint64_t row_bytes;
    uint64_t head_bytes;
    uint32_t elems;
    uint32_t type; /* enum kvw_type */
};

/* The memory of rows to write: pieces in row order. */
struct kvw_slots {
    uint32_t n_pieces;
    uint32_t n_planes;
    uint32_t n_heads;
    uint32_t head_first;
    struct kvw_plane plane[KVW_SPEC_PLANES_MAX];
    struct kvw_piece piece[KVW_VIEW_PIECES_MAX];
};

/**
 * The memory of rows of the open chunk, to write them in place instead of kvw_update().
 * Then call kvw_written(); a contiguous group's rows lie at other addresses in a view,
 * so until then a compiler may not have stored them.
 *
 * From kvw_slots() to the next kvw_written() or kvw_update() of the layer its rows count as
 * being written, for other ranks and readers. Where these look at staged rows, ask for the
 * slots anew for every pass.
 *
 * @return 0, or as kvw_update() (without the gap rule).
 */
KVW_API int kvw_slots(struct kvw_cache *cache, uint32_t lane, struct kvw_layer layer,
                      uint64_t row_first, uint64_t n_rows, struct kvw_slots *slots);

/** Say that rows of the open chunk are written in all planes of a layer. It is trusted.
 *  @return as kvw_update(). */
KVW_API int kvw_written(struct kvw_cache *cache, uint32_t lane, struct kvw_layer layer,
                        uint64_t row_first, uint64_t n_rows);

/**
 * Publish the open chunks of a lane: all groups and all layers of this rank at once,
 * with one store.
 *
 * @param items  NULL: every row that was begun. Else for each group the rows to publish
 *         (n, 0 <= n <= begun, KVW_WHOLE for all); the rest is forgotten; open groups
 *         not named publish all.
 * @return 0; -KVW_EINCOMPLETE (a layer lacks rows: the text names it), -EINVAL (nothing
 *         open), -KVW_EDIVERGED, -ESTALE (a recovery is under way), -KVW_EGONE, -EACCES.
 */
KVW_API int kvw_commit(struct kvw_cache *cache, uint32_t lane,
                       const struct kvw_item *items, uint32_t n_items);

/** Forget the open chunks of a lane. Nothing open is a success. @return 0 or -EACCES.
 */
KVW_API int kvw_abort(struct kvw_cache *cache, uint32_t lane);

/* ----------------------------------------------------------------- reading -------- */

enum kvw_get_flags {
    KVW_COMMITTED = 0, /* what was published last */
    KVW_STAGED = 1,    /* and the rows of the open chunk that this layer has so far;
                          they are never pinned */
    KVW_UNPINNED = 2,  /* no hold on any row: kvw_release() is the whole protection */
};

/*
 * What attention may see of one layer and lane, in this order: sink, kept, past, current,
 * each ascending by row. Plain data; copy it if you like, release it once.
 */
struct kvw_view {
    uint64_t step;        /* of the lane when it was taken */
    uint64_t epoch;       /* condition of the group */
    uint64_t generation;  /* of the group: how often it was reset */
    uint64_t n_rows;      /* of all pieces */
    uint64_t end_row;     /* rows committed, and those of the open chunk shown */
    uint64_t window_rows; /* W */
    uint64_t sink_rows;   /* S */
    uint32_t lane;
    uint32_t layer; /* index */
    uint32_t window_kind;
    uint32_t n_pieces;
    uint32_t n_planes;
    uint32_t head_first;
    uint32_t n_heads;
    uint32_t hold;         /* private: the pin */
    uint64_t hold_rewinds; /* private: of the ranks' boards when it was taken */
    uint64_t hold_low;     /* private: lowest ring row held */
    uint64_t hold_staged;  /* private: ranks whose staged rows are shown to another */
    uint64_t hold_passes;  /* private: their pass words when it was taken */
    uint64_t ranks;        /* whose rows they are */
    struct kvw_plane plane[KVW_SPEC_PLANES_MAX];
    struct kvw_piece piece[KVW_VIEW_PIECES_MAX];
};

/** Address of head `head` (from the view's first) of a piece's first row in plane
 * `plane`. */
static inline char *kvw_piece_at(const struct kvw_plane *plane,
                                 const struct kvw_piece *piece, uint32_t head)
{
    return plane->base + piece->slot * plane->row_bytes + head * plane->head_bytes;
}

/**
 * View a layer: the rows of this rank (a reader: of all ranks, at one step). The rows
 * are pinned until kvw_release(): a writer that needs their memory waits, answers or
 * revokes, by its policy.
 *
 * @param flags  enum kvw_get_flags. With KVW_STAGED a reader sees what kvw_cut() shows of
 *         open chunks.
 * @param view  [out] Its pointers are valid until release.
 * @return 0; -ERANGE (layer or lane not of this rank), -EAGAIN (lost too often against
 *         a fast writer), -EMFILE (KVW_VIEWS_MAX views held), -KVW_EGONE,
 *         -KVW_EDIVERGED; a reader's staged view also as kvw_cut().
 */
KVW_API int kvw_get(struct kvw_cache *cache, uint32_t lane, struct kvw_layer layer,
                    uint32_t flags, struct kvw_view *view);

/**
 * View a layer over a set of ranks at one step: the newest step that all of them have.
 *
 * With KVW_STAGED it goes on with the rows of the open chunk that all of them have written;
 * a rank that has committed the chunk counts with what it committed. While one of them has
 * no chunk open, or another number of rows, the view is the committed one. (Ranks on other
 * nodes do not count here: they may be a step behind.) Nobody is held up by it: a rank that
 * writes the layer again while the view is held goes on, and kvw_release() says so. See
 * kvw_wait_written() for ranks that read each other's rows in every pass.
 *
 * @param ranks  Bit r: rank r. The heads shown are those from the first to the last of
 *         the set, which must follow each other. 0: every rank that holds the layer.
 * @return as kvw_get(); -EINVAL if the ranks' heads do not follow each other; of staged
 *         rows: -EAGAIN (a rank is writing the layer now), -EOWNERDEAD (its owner died
 *         while it wrote it).
 */
KVW_API int kvw_cut(struct kvw_cache *cache, uint32_t lane, struct kvw_layer layer,
                    uint64_t ranks, uint32_t flags, struct kvw_view *view);

/**
 * End a view, whatever the answer. A pin holds the rows of its view, not a place in the
 * stream: the next view starts where the writer is then.
 *
 * @return 0, or -KVW_EOVERRUN: its rows were overwritten or its ranks went back (truncate,
 *         reset, recover) while it was held: what was read may be wrong. A view that shows
 *         staged rows of other ranks ends so as well when one of them wrote that layer
 *         since, be it for a later chunk.
 */
KVW_API int kvw_release(struct kvw_cache *cache, struct kvw_view *view);

/* ------------------------------------------------ staged rows of other ranks ------ */

/*
 * Ranks of one node that split the rows of a chunk (sequence or context parallel), or its
 * heads, read each other's rows of the open chunk where they lie:
 *
 *     for each pass, from 1 on, and each layer:
 *         kvw_update(own rows)
 *         kvw_wait_written(cache, lane, KVW_ALL_RANKS, layer, pass, timeout)
 *         kvw_cut(cache, lane, layer, 0, KVW_STAGED | KVW_UNPINNED, &view)
 *         attention over all rows, then kvw_release(&view)
 *
 * A *pass* of a layer is one kvw_update() or kvw_written() of it in the open chunk. Where a
 * pass takes k such calls, wait for k times its number.
 *
 * Where every rank so reads all others in two layers or more of the pass, nobody can write a
 * layer anew before all have read it, for who is in the next layer needs what the slower
 * ones write after reading. With one layer, or where some ranks skip some layers, the
 * readers have to answer: kvw_have_read() after the release (or in its place), and
 * kvw_wait_read() of that pass before the next one is written. Who forgets it gets
 * -KVW_EOVERRUN or -EAGAIN, never wrong rows without a word.
 */

/**
 * Wait until a rank (KVW_ALL_RANKS: every other rank that holds the layer) has written a
 * layer `pass` times in the chunk that follows this rank's step, or has published it. For a
 * reader: in the chunk that follows the smallest step of those ranks.
 *
 * @return 0; -ETIMEDOUT or -EOWNERDEAD as kvw_wait_step(); -ESTALE (a recovery is under
 *         way: kvw_recover()); -ERANGE (lane or layer); -KVW_EGONE.
 */
KVW_API int kvw_wait_written(struct kvw_cache *cache, uint32_t lane, uint32_t rank,
                             struct kvw_layer layer, uint32_t pass,
                             uint64_t timeout_ns);

/**
 * Say that this rank has read what it needs of pass `pass` of a layer, on all ranks.
 * @return 0; -EINVAL (no chunk is open), -ERANGE (layer or lane not of this rank), -EACCES
 *         (a reader: nobody waits for it).
 */
KVW_API int kvw_have_read(struct kvw_cache *cache, uint32_t lane,
                          struct kvw_layer layer, uint32_t pass);

/** Wait until a rank (KVW_ALL_RANKS: every other one that holds the layer) has said so, or
 *  has published the chunk. @return as kvw_wait_written(). */
KVW_API int kvw_wait_read(struct kvw_cache *cache, uint32_t lane, uint32_t rank,
                          struct kvw_layer layer, uint32_t pass, uint64_t timeout_ns);

/* ------------------------------------------------------------- other steps -------- */

/*
 * Each of these is one step, over a vector of groups, published by one store, the same
 * on every rank of the lane. They abort what is open in the lane. Errors, besides their
 * own, are those of kvw_begin().
 */

/** Drop committed rows from item.row on. @return 0; -ERANGE (row below kvw_lowest() and
 *  above the sink: the window there is no longer whole; the text has the number). */
KVW_API int kvw_truncate(struct kvw_cache *cache, uint32_t lane,
                         const struct kvw_item *items, uint32_t n_items);

/** Hide the rows between the sink and item.row. @return 0; -EINVAL (row below an
 * earlier eviction, or beyond the rows committed). */
KVW_API int kvw_evict(struct kvw_cache *cache, uint32_t lane,
                      const struct kvw_item *items, uint32_t n_items);

/**
 * Keep rows [row, row + n) of the window as an extra sink: they are copied once into
 * the keep extent, by every rank for its own part. n = 0 drops the kept range that
 * starts there.
 *
 * @return 0; -EINVAL (not all in the window, in the sink, or kept already), -ENOSPC
 *         (keep_rows), -EMFILE (kept ranges).
 */
KVW_API int kvw_keep(struct kvw_cache *cache, uint32_t lane,
                     const struct kvw_item *items, uint32_t n_items);

/** Start groups of a lane from row 0 with a new generation. NULL and 0: all groups. */
KVW_API int kvw_reset(struct kvw_cache *cache, uint32_t lane,
                      const struct kvw_item *items, uint32_t n_items);

/** Let a layer show only rows committed from now on (until its group is reset). */
KVW_API int kvw_reset_layer(struct kvw_cache *cache, uint32_t lane,
                            struct kvw_layer layer);

/** kvw_reset() of all groups in every lane of this rank. Stops at the first failure;
 * calling it again goes on. */
KVW_API int kvw_reset_state(struct kvw_cache *cache);

/**
 * The lowest row to which kvw_truncate() can go now; anything in the sink always can.
 * @return 0 or -ERANGE.
 */
KVW_API int kvw_lowest(struct kvw_cache *cache, uint32_t lane, uint32_t group,
                       uint64_t *row);

/* ------------------------------------------------ state, waiting, recovery -------- */

struct kvw_group_state {
    uint64_t rows;       /* T: committed */
    uint64_t evicted;    /* row below which nothing but sink and kept rows is shown */
    uint64_t generation; /* from 1 */
    uint64_t epoch;
    uint64_t first; /* lowest row of the window behind the sink */
    uint64_t open;  /* rows of the open chunk, 0 = none */
};

struct kvw_lane_state {
    uint64_t step;
    uint64_t era; /* recoveries so far */
    uint32_t n_groups;
    uint32_t is_owned; /* a live process holds the rank */
    struct kvw_group_state group[KVW_SPEC_GROUPS_MAX];
};

/** The state of a lane as one rank published it last. KVW_ALL_RANKS: the newest step
 * that all ranks have. @return 0; -ERANGE, -KVW_EGONE, -KVW_EDIVERGED, -EAGAIN. */
KVW_API int kvw_state(struct kvw_cache *cache, uint32_t lane, uint32_t rank,
                      struct kvw_lane_state *state);

/**
 * Wait until a rank (KVW_ALL_RANKS: every rank that holds the lane) has published
 * `step`.
 *
 * What already holds is a success, whoever is there. A rank that died ends the wait at
 * once, as does one that detaches meanwhile. A rank that nobody owns (yet, or any more) is
 * waited for, until the deadline: kvw_state() says is_owned.
 *
 * @param timeout_ns  From now; KVW_NO_TIMEOUT for no deadline.
 * @return 0; -ETIMEDOUT (the text says who, since when, at which row), -EOWNERDEAD (its
 *         owner died, or ended while we waited), -KVW_EGONE, -ERANGE.
 */
KVW_API int kvw_wait_step(struct kvw_cache *cache, uint32_t lane, uint32_t rank,
                          uint64_t step, uint64_t timeout_ns);

/** The same until `rows` rows of a group are committed (in whatever generation). */
KVW_API int kvw_wait_rows(struct kvw_cache *cache, uint32_t lane, uint32_t rank,
                          uint32_t group, uint64_t rows, uint64_t timeout_ns);

/**
 * Bring all ranks of a lane back to the smallest step that all have. Every rank calls
 * it, after a rank died or the job was started again; open chunks are forgotten. No
 * rank decides: each computes the same step.
 *
 * @param step  [out] the step; may be NULL.
 * @return 0; -ETIMEDOUT or -EOWNERDEAD (the text names who is missing), -EACCES.
 */
KVW_API int kvw_recover(struct kvw_cache *cache, uint32_t lane, uint64_t timeout_ns,
                        uint64_t *step);

/**
 * For MPI programs: say the lowest step of the lane's ranks on other nodes (all ones: none).
 * It counts as one more rank in every minimum. Every rank of the lane says it; after a
 * kvw_recover() it has to be said anew.
 *
 * @return 0, -EACCES, -ERANGE, -ESTALE (a recovery is under way), -KVW_EGONE.
 */
KVW_API int kvw_outside(struct kvw_cache *cache, uint32_t lane, uint64_t step);

/* ---------------------------------------------------------------- checks ---------- */

/* What is wrong. */
enum kvw_damage_kind {
    KVW_DAMAGE_HEADER = 1,   /* of the control segment, or a seat */
    KVW_DAMAGE_SEGMENT = 2,  /* a segment's size or seals */
    KVW_DAMAGE_BOARD = 3,    /* what a rank published of a lane contradicts itself */
    KVW_DAMAGE_DIVERGED = 4, /* ranks published different steps of one number */
    KVW_DAMAGE_ROWS = 5,     /* committed rows differ from their checksums */
};

/* One finding of kvw_verify(). What does not apply is all ones. */
struct kvw_damage {
    uint32_t kind; /* enum kvw_damage_kind */
    uint32_t rank;
    uint32_t lane;
    uint32_t layer; /* index; of rows */
    uint32_t plane; /* in its group; of rows */
    uint32_t head;  /* of all heads of the layer; of rows */
    uint64_t row;   /* first one that differs */
    uint64_t n_rows;
    const char *text; /* the same in words; valid during the call */
};

/* What kvw_verify() has looked at. Rows are counted once for each layer, plane and head;
 * there are none without checksums. */
struct kvw_verified {
    uint64_t n_damages;
    uint64_t n_boards; /* of a rank and lane each */
    uint64_t n_rows;   /* that are what was committed */
    uint64_t n_rows_damaged;
    uint64_t n_rows_skipped;   /* their writer went on while they were read */
    uint64_t n_boards_skipped; /* published too fast to be looked at as a whole */
    uint32_t has_checksums;
    uint32_t reserved;
};

/** Told of each finding; must make no call of this client. */
typedef void kvw_damage_fn(void *context, const struct kvw_damage *damage);

/**
 * Check all of a cache: header, sizes and seals of the segments; every board, and its
 * records as far back as they are kept; that the ranks of a lane agree; and, in a cache with
 * checksums, the rows of all lanes and layers that each rank shows, kept rows included.
 *
 * Works on a cache in use and holds nothing: a row that is overwritten while it is read is
 * skipped and counted, never reported. As a rank or as a reader. Not the fast path: it reads
 * every visible row once.
 *
 * @param tell      Called for each finding; may be NULL. Rows that follow each other in one
 *         plane and head are one finding.
 * @param verified  [out] may be NULL.
 * @return 0: nothing is wrong; 1: something is; -ENOMEM.
 */
KVW_API int kvw_verify(struct kvw_cache *cache, kvw_damage_fn *tell, void *context,
                       struct kvw_verified *verified);

#ifdef __cplusplus
}
#endif

#endif
