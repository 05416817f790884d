/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of one text, and this rank's attachment to it. One cache with three groups:
 *
 *   self   K and V of every layer; rolls; window kind row; split by heads, and by rows
 *   ids    the token ids of the whole text, from its first; never rolls
 *   job    one row: seed, sampling, length of the prompt, fingerprint of the model
 *
 * On one node it is one box, and its rank 0 holds ids and job. On several nodes each rank
 * has a box of its own that holds them whole: a rank that is lost can be filled again.
 *
 * The first step publishes the job and the whole prompt. Every later step publishes
 * rows of `self` (K and V of ids that are there already) and, once the prompt is
 * through, the id that follows. So at every step ids has what is needed to go on, and
 * the step of a text is everything that there is to know about it.
 */
#ifndef GENERATE_SESSION_H
#define GENERATE_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include <kvwheel/mpi.h>

#include "examples/common/cache.h"
#include "examples/common/fail.h"
#include "examples/common/ranks.h"
#include "examples/generate/config.h"
#include "examples/generate/model.h"
#include "examples/generate/options.h"
#include "examples/generate/prompt.h"

#define SESSION_KEPT_IDS (1u << 18) /* room for ids in a kept cache, at least */

/* What rank 0 finds or decides, and gives to everybody. */
struct session_plan {
    struct settings settings;
    char name[CACHE_NAME_BYTES];
    uint64_t ids_max;     /* rows of the group ids */
    uint64_t prompt_rows; /* of the text; 0 while unknown */
    uint64_t resumed_row; /* rows of self that were there */
    bool is_resumed;      /* the text had begun */
    bool is_kept;
    bool is_boxed; /* each rank has a box of its own */
};

struct session {
    struct kvw_mpi *mpi;
    struct kvw_cache *cache; /* this rank's box; borrowed from mpi */
    struct kvw_mpi_place place;
    const struct ranks *ranks; /* borrowed */
    const char *socket;        /* likewise; may be NULL */
    uint64_t step;             /* that all boxes came back to */
    bool has_ids;              /* this rank writes ids and job */
    struct session_plan plan;
    struct model_config config; /* a copy */
    struct share kv_heads;      /* of this rank */
    uint32_t group_self, group_ids, group_job;
    struct kvw_layer *self; /* n_layers; heap */
    struct kvw_layer ids, job;
    uint64_t rows;      /* committed in self */
    uint64_t ids_rows;  /* committed in ids */
    uint64_t open_rows; /* of the open step */
    uint64_t open_ids;
    uint64_t position;      /* of the first open row */
    uint64_t bytes_written; /* by this rank */
};

/**
 * Create or find the cache, attach every rank, recover, and publish the prompt if the
 * text has not begun. All ranks call it; it ends in agreement.
 *
 * @param options  Settings that were given; the rest of a found cache is its own.
 * @param model    Opened; not yet loaded.
 * @param prompt   Of rank 0; unused on others.
 * @return 0 or -EINVAL, the same on every rank. session_close() is allowed afterwards.
 */
int session_open(struct session *session, const struct options *options,
                 const struct model *model, const struct prompt *prompt,
                 const struct ranks *ranks, struct fail *fail);

/** Detach. A cache that is not kept goes with its last rank. */
void session_close(struct session *session);

/** The KV heads of rank `rank`. */
int session_heads(const struct session *session, uint32_t rank, struct share *heads,
                  struct fail *fail);

/** Does a rank put its heads' results into what ranks exchange? Of those that share rows
 *  all have the same, and one gives it. */
bool session_gives_heads(const struct session *session, uint32_t rank);

/** Read ids [first, first + n) that were committed (rank 0, and who has_ids).
 *  @return 0 or -EINVAL. */
int session_read_ids(const struct session *session, uint64_t first, uint64_t n,
                     uint32_t *id, struct fail *fail);

/** Open a step of n_rows rows of self and n_ids of ids; either may be 0. */
int session_begin(struct session *session, uint64_t n_rows, uint64_t n_ids,
                  struct fail *fail);

/** Write all ids of the open step (who has_ids). */
int session_write_ids(struct session *session, const uint32_t *id, struct fail *fail);

/** Publish the open step. */
int session_commit(struct session *session, struct fail *fail);

/** Parts of the cache that were lost with their node, while others were kept. */
bool session_has_lost(const struct session *session);

/**
 * Fill the parts that were lost: replay the text's ids into a scratch cache, and compare the
 * parts that were kept with it. All ranks call it; it ends in agreement.
 *
 * @param feed  Runs the decoder on the open step of a session, with its ids.
 */
typedef void session_feed_fn(void *context, struct session *session, const uint64_t *id,
                             struct fail *fail);
int session_rebuild(struct session *session, const struct model *model,
                    session_feed_fn *feed, void *context, struct fail *fail);

/** Bytes that `rows` rows of self need, over all ranks. */
uint64_t session_row_bytes(const struct session *session, uint64_t rows);

/** cache_refused() of a call over all ranks. It ends the job if a rank is gone. */
int session_refused_mpi(const struct session *session, struct fail *fail,
                        const char *what, int error);

/* ---- parts of session_open(), in files of their own ---- */

/** Find the cache, or what was left of it, or plan a new one, and give the plan to all. It
 *  ends in agreement. (session_plan.c) */
int session_prepare(struct session *session, const struct options *options,
                    const struct prompt *prompt, const struct ranks *ranks,
                    struct fail *fail);

/** The spec and options of the planned cache. (session_plan.c) */
int session_spec(const struct session *session, const struct ranks *ranks,
                 struct kvw_spec *spec, struct kvw_mpi_options *options,
                 struct fail *fail);

/** Open the planned cache over all ranks; it ends in agreement. (session.c) */
int session_attach(struct session *session, struct fail *fail);

/** Publish job and prompt. Every rank; who has_ids writes. (session_job.c) */
int session_begin_text(struct session *session, const struct model *model,
                       const struct prompt *prompt, struct fail *fail);

/** Read the job and check that this run may go on with it: a rank that has it, and was not
 *  lost. (session_job.c) */
int session_adopt_text(struct session *session, const struct options *options,
                       const struct model *model, const struct prompt *prompt,
                       struct fail *fail);

/** Read the settings that the job of a box names. @return 1, 0 (there is no job yet), or
 *  -EINVAL. (session_job.c) */
int session_read_settings(struct kvw_cache *reader, const char *name,
                          struct settings *settings, struct fail *fail);

#define SESSION_JOB_WORDS 16u

#endif
