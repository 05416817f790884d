/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of an execution as coroutines, and snapshots of all of them: instead of
 * running all again from the start up to a choice, a search comes back to it. A snapshot
 * is what changes of tasks and scene, the stacks in use, and how far the log of changes of
 * memory had come.
 */
#ifndef KVW_TESTS_RACE_COROUTINE_H
#define KVW_TESTS_RACE_COROUTINE_H

#include <stddef.h>
#include <stdint.h>

/** Let every task begin anew, by `main`; forget all snapshots. */
void coroutine_begin(void (*main)(void));

/** Go on with a task; what is under way is left as it is. */
_Noreturn void coroutine_resume(uint32_t task);

/** Go on with another task; returns when this one is resumed. */
void coroutine_switch_to(uint32_t task);

/** The current task's stack is in use down to the caller's frame. Right before setjmp()
 * and coroutine_save(), in one function. */
void coroutine_mark(void);

/** Take a snapshot. @return it. */
size_t coroutine_save(void);

/** Bring everything back to a snapshot, on another stack; forget those after it. The
 * caller then jumps to where it was taken. */
void coroutine_load(size_t snapshot);

#endif
