/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Explore the executions of a few processes that run the real sources over shim.h. Each
 * process is a coroutine; at each operation on a word that another process uses as well
 * the explorer chooses who goes on, depth first over all choices. It comes back to a
 * choice by a snapshot (coroutine.h), and leaves a branch when it stands in a state that
 * it has been in before (memory, store buffers, what every process has read so far). A
 * schedule that fails is run again from the start, with every operation printed.
 *
 * Memory, by model:
 *   SC   a store is in memory at once
 *   TSO  stores of a process pass through a queue (x86)
 *   PSO  a store may stay behind later ones to other words (what ARM and a compiler may
 *        do); release stores and fences hold back what they must
 * Bounds of an exploration: involuntary switches; deaths; stores that are late of their
 * own (those that must queue behind them are not counted); loads that are early: done as
 * if before other loads since the process's last acquire, that is, of an older value.
 *
 * Words that only one process uses are no points of choice. Which those are is found
 * while exploring; when one turns out to be shared the exploration starts again.
 *
 * One thread; a program explores one scene at a time.
 */
#ifndef KVW_TESTS_RACE_EXPLORE_H
#define KVW_TESTS_RACE_EXPLORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    EXPLORE_TASKS_MAX = 10,
    EXPLORE_NOBODY = -1,
    EXPLORE_UNBOUNDED = 255,
};

enum explore_model { EXPLORE_SC, EXPLORE_TSO, EXPLORE_PSO };

struct explore_bounds {
    enum explore_model model;
    uint8_t switches; /* or EXPLORE_UNBOUNDED */
    uint8_t deaths;
    uint8_t late;
    uint8_t early;
    uint64_t schedules_max; /* 0 = none */
    uint64_t random;        /* > 0: that many random schedules instead, from ... */
    uint64_t seed;
};

typedef void explore_fn(void *context);

struct explore_task {
    const char *name;
    explore_fn *run;
    void *context;
    uint32_t family; /* of a process and its successors: never alive together */
    bool is_mortal;  /* may die anywhere */
    int successor;   /* a task that starts when it has died, or EXPLORE_NOBODY */
    bool is_waiting; /* a successor: not there from the start */
};

/* What is explored. */
struct explore_scene {
    const char *name;
    void (*setup)(void);     /* once: builds segments, adds tasks */
    void (*start)(void);     /* before each execution; may be NULL */
    void (*finish)(void);    /* after each that went to its end; may be NULL */
    uint64_t (*ghost)(void); /* digest of what the checks remember; may be NULL */
};

struct explore_result {
    bool is_failed;
    bool is_complete; /* everything within the bounds was seen */
    uint64_t schedules;
    uint64_t states;
    uint64_t deaths;    /* places in all these schedules at which somebody died */
    uint32_t n_choices; /* of the failing schedule */
    char text[400];
};

/** Explore a scene. A failing schedule is printed, when is_verbose. */
void explore_run(const struct explore_scene *scene, const struct explore_bounds *bounds,
                 bool is_verbose, struct explore_result *result);

/* For setup(). */

/** Add a task. @return its number. */
int explore_add(const struct explore_task *task);

/** Say which task comes after one. */
void explore_replaced_by(int task, int successor);

/** Shared memory: zeroed, restored before each execution. */
void *explore_shared(size_t n_bytes, size_t alignment);

/** Which part of it holds rows: copies into and out of it are explored. */
void explore_rows(void *memory, size_t n_bytes);

/** Other memory that an execution changes and that must be restored before the next. */
void explore_restore(void *memory, size_t n_bytes);

/* For tasks. */

/** End this execution: something is wrong. */
_Noreturn void explore_fail(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/** What this process has read so far matters only as far as `digest` says: called where
 * two executions with one digest go on alike. */
void explore_settle(uint64_t digest);

/** Nothing may die from here on in this task. */
void explore_immortal(void);

/** True after the deaths allowed have happened, or in setup. */
uint64_t explore_deaths(void);

/** True once a task has died and its last stores are in memory: the caller sees them. */
bool explore_is_dead(int task);

/** Any of n ways to go on, explored one after the other. */
uint32_t explore_any(uint32_t n);

/** True while schedules are tried, false in a setup and when one is printed. */
bool explore_is_searching(void);

/** Virtual time: stands still until nobody can go on otherwise. */
uint64_t explore_now_ns(void);

/** Mix a value into a digest. */
static inline uint64_t explore_mix(uint64_t digest, uint64_t value)
{
    digest = (digest ^ value) * 0x9e3779b97f4a7c15ull;
    digest ^= digest >> 29;
    digest *= 0xbf58476d1ce4e5b9ull;
    return digest ^ digest >> 32;
}

/** Name a shared word, for schedules that are printed. Set by the scene. */
typedef void explore_name_fn(const void *word, char *name, size_t n_bytes);
void explore_set_namer(explore_name_fn *namer);

#endif
