/* SPDX-License-Identifier: Apache-2.0 */
/* What explore.c (who goes on) and memory.c (what a store does) share. See explore.h. */
#ifndef KVW_TESTS_RACE_CORE_H
#define KVW_TESTS_RACE_CORE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/race/explore.h"

enum {
    CORE_SHARED_BYTES = 1 << 20,
    CORE_WORDS = CORE_SHARED_BYTES / 4,
    CORE_BUFFER_MAX = 48, /* stores of a process that are not in memory yet */
    CORE_LOG_MAX = 1 << 15,
    CORE_TOUCHED_MAX = 4096,
};

enum task_status {
    TASK_ABSENT, /* a successor whose predecessor lives */
    TASK_READY,
    TASK_POLLING,  /* until memory changes */
    TASK_SLEEPING, /* on a futex */
    TASK_DONE,
    TASK_DEAD,
};

/* The next operation of a process. */
struct op {
    const char *verb;
    const void *word;
    uint64_t value;
    bool is_shared;   /* others use the word: who goes on is a choice */
    bool is_effect;   /* something of it stays after a death */
    bool needs_empty; /* waits until the own stores are in memory */
    bool needs_all;   /* and those of everybody else */
    bool is_store;    /* waits while the buffer is full */
};

/* A store that is not in memory yet. */
struct late {
    uint32_t word;
    uint32_t number;
    uint32_t after; /* stores of a lower number come first */
    uint8_t n_bytes;
    bool is_add;
    bool is_free; /* late of its own: what follows may overtake it */
    uint64_t value;
};

struct buffer {
    uint32_t n;
    uint32_t number; /* of the next store */
    uint32_t after;  /* of a release fence */
    struct late late[CORE_BUFFER_MAX];
};

/* A load or store of a word since the last acquire, for early loads. */
struct touched {
    uint32_t word;
    uint32_t at; /* entries of the log then */
};

/* What changes of a task; the end of `buffer` last, for snapshots. */
struct task {
    enum task_status status;
    bool is_mortal;
    bool is_started;
    bool sleeps_finite;
    const void *sleeps_on;
    struct op op;
    uint64_t history; /* digest of all it has read, and of where it is */
    uint32_t polled_at;
    uint32_t acquired_at; /* entries of the log */
    uint32_t n_touched;
    char *stack_in_use; /* from here to its end, while it is suspended */
    jmp_buf context;
    struct buffer buffer;
};

/* A change of memory. */
struct change {
    uint32_t word;
    uint8_t n_bytes;
    uint8_t family;
    uint64_t old;
};

struct core {
    bool is_running; /* tasks run; otherwise operations go straight to memory */
    bool is_tracing;
    bool found_shared; /* a word that was taken for private */
    const struct explore_bounds *bounds;
    struct explore_task spec[EXPLORE_TASKS_MAX];
    struct task task[EXPLORE_TASKS_MAX];
    uint32_t n_tasks;
    struct change log[CORE_LOG_MAX];
    struct touched touched[EXPLORE_TASKS_MAX][CORE_TOUCHED_MAX];
    /* What changes in an execution, besides. */
    struct core_state {
        uint32_t current;
        uint32_t late_used;
        uint32_t early_used;
        uint32_t deaths_used;
        uint32_t switches_used;
        uint32_t waited; /* how often time went on */
        uint64_t now_ns;
        uint64_t n_steps; /* of this execution */
        uint32_t n_log;
        uint64_t memory_digest;
    } now;
};

extern struct core core;

/* explore.c */

/** Before an operation of the current task: let the explorer choose. Returns when the
 * task may do it. */
void core_point(const struct op *op);

/** Any of n; the state is told apart from others by `tag`. */
uint32_t core_choose(uint32_t n, uint64_t tag);

/** The current task cannot go on until it is READY again (set before by others). */
void core_block(void);

/* memory.c */

/** Take back the changes of shared memory beyond the first n of the log. */
void memory_undo(uint32_t n_log);

/** Forget all changes of the last execution. */
void memory_restore(void);

/** Forget which words are shared, and all segments: before a setup. */
void memory_forget(void);

/** True if store `i` of a buffer may go to memory now. */
bool memory_may_drain(const struct buffer *buffer, uint32_t i);
void memory_drain(uint32_t task, uint32_t i);

/** The current task sees all that is in memory now. */
void memory_acquired(void);

/** Digests of what is late, and of what may still be read of the past. */
uint64_t memory_buffer_digest(const struct task *task);
uint64_t memory_past_digest(uint32_t task);

/* heap.c */

void heap_restore(void);
void heap_forget(void);

/** The setup has made what executions start from. */
void heap_setup_ends(void);

/** Copy what is not shared and changes: into `to`, if not NULL. @return its bytes. */
size_t heap_save(char *to);
void heap_load(const char *from);

/* explore.c */

void core_trace(const struct op *op, uint64_t value);
void core_name(const void *word, char *name, size_t n_bytes);
const void *memory_word(uint32_t word);

#endif
