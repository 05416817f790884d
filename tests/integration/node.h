/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One node for a test: a private folder with a daemon of its own, and workers that are
 * real processes and are told what to do step by step through a pipe. Nothing outlives
 * node_stop(): a daemon, a keeper or a worker that does fails the test.
 */
#ifndef KVW_TESTS_NODE_H
#define KVW_TESTS_NODE_H

#include <stdint.h>
#include <sys/types.h>

#include "client/client.h"

struct node {
    char folder[64];
    char socket[96];
    struct kvw_client *client;
};

/** Start a daemon with these extra arguments (NULL-terminated, may be NULL). */
void node_start(struct node *node, const char *const *arguments);

/** Stop daemon and keeper and check that they are gone. */
void node_stop(struct node *node);

/** Pids of daemon and keeper, by the daemon's own word. */
pid_t node_daemon_pid(struct node *node);
pid_t node_keeper_pid(struct node *node);

/** A small cache: group `self` of 3 layers, planes k and v, W 12, S 2, chunk 4,
 * heads 4. */
void node_spec(struct kvw_spec *spec, const char *name, uint32_t n_ranks);

/* A worker process. */
struct worker {
    pid_t pid;
    int commands; /* one byte each */
    int answers;  /* one byte each */
};

/** What a worker runs: until `commands` ends. */
typedef void worker_fn(const struct node *node, int commands, int answers);

/** Fork a worker. The child connects for itself. */
void worker_start(const struct node *node, worker_fn *run, struct worker *worker);

/** Send a command and wait for its answer, at most 10 s. @return the answer's byte. */
int worker_ask(struct worker *worker, char command);

/** SIGKILL and reap. */
void worker_kill(struct worker *worker);

/** Close its pipe, reap, and check that it ended well. */
void worker_end(struct worker *worker);

/** Write the next chunk of n rows: rows carry `row * 1000 + layer * 10 + head`. Stops
 *  before the commit if `commits` is 0. @return as the failing call, or 0. */
int roll_chunk(struct kvw_cache *cache, uint64_t n, int commits);

/** Check every byte of a piece of a view of `layer`. */
void check_piece(const struct kvw_view *view, const struct kvw_piece *piece,
                 uint32_t layer);

/** Check every byte of a committed view of every layer; returns the rows committed. */
uint64_t check_rows(struct kvw_cache *cache);

#endif
