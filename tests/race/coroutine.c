/* SPDX-License-Identifier: Apache-2.0 */
/* See coroutine.h. Made with makecontext(), switched with setjmp and longjmp: these make
 * no system calls. */
#include "tests/race/coroutine.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "tests/race/core.h"

enum {
    STACK_BYTES = 96 * 1024,
    BELOW_BYTES = 256, /* what a function may use below its frame's address */
};

static _Alignas(64) char stacks[EXPLORE_TASKS_MAX][STACK_BYTES];
static ucontext_t blank;
static ucontext_t entries[EXPLORE_TASKS_MAX];

/* Snapshots of the choices under way, one behind the other. */
static char *snapshots;
static size_t snapshots_used;
static size_t snapshots_bytes;

/* The end of the stack in use. Not inlined, so that it lies below the caller's frame. */
__attribute__((noinline)) static char *stack_here(void)
{
    return (char *)__builtin_frame_address(0) - BELOW_BYTES;
}

void coroutine_begin(void (*main)(void))
{
    snapshots_used = 0;
    if (blank.uc_stack.ss_sp == NULL && getcontext(&blank) != 0)
        abort();
    for (uint32_t i = 0; i < core.n_tasks; i++) {
        core.task[i].is_started = false;
        entries[i] = blank;
        entries[i].uc_stack.ss_sp = stacks[i];
        entries[i].uc_stack.ss_size = STACK_BYTES;
        entries[i].uc_link = NULL;
        makecontext(&entries[i], main, 0);
    }
}

void coroutine_resume(uint32_t i)
{
    if (!core.task[i].is_started) {
        core.task[i].is_started = true;
        setcontext(&entries[i]);
        abort();
    }
    _longjmp(core.task[i].context, 1);
}

void coroutine_switch_to(uint32_t next)
{
    struct task *self = &core.task[core.now.current];

    core.now.current = next;
    self->stack_in_use = stack_here();
    if (_setjmp(self->context) == 0)
        coroutine_resume(next);
}

void coroutine_mark(void)
{
    core.task[core.now.current].stack_in_use = stack_here() - BELOW_BYTES;
}

/* ---------------------------------------------------------------- snapshots ---------
 */

static size_t task_bytes(const struct task *task)
{
    return offsetof(struct task, buffer.late) +
           task->buffer.n * sizeof task->buffer.late[0];
}

/* Bytes of a task's stack that are in use; 0 if it has not begun or has ended. */
static size_t stack_bytes(uint32_t i)
{
    const struct task *task = &core.task[i];

    if (!task->is_started || task->status == TASK_DONE || task->status == TASK_DEAD)
        if (i != core.now.current)
            return 0;
    return (size_t)(stacks[i] + STACK_BYTES - task->stack_in_use);
}

static size_t snapshot_bytes(void)
{
    size_t n_bytes = sizeof core.now + heap_save(NULL);

    for (uint32_t i = 0; i < core.n_tasks; i++) {
        n_bytes += task_bytes(&core.task[i]) + stack_bytes(i);
        if (core.bounds->early > 0)
            n_bytes += core.task[i].n_touched * sizeof core.touched[0][0];
    }
    return n_bytes;
}

static char *save(char *to, const void *from, size_t n_bytes)
{
    memcpy(to, from, n_bytes);
    return to + n_bytes;
}

size_t coroutine_save(void)
{
    const size_t snapshot = snapshots_used;
    const size_t n_bytes = snapshot_bytes();

    if (snapshots_bytes - snapshots_used < n_bytes) {
        snapshots_bytes = (snapshots_bytes + n_bytes) * 2;
        snapshots = realloc(snapshots, snapshots_bytes);
        if (snapshots == NULL)
            abort();
    }
    char *to = snapshots + snapshots_used;
    snapshots_used += n_bytes;
    to = save(to, &core.now, sizeof core.now);
    for (uint32_t i = 0; i < core.n_tasks; i++) {
        to = save(to, &core.task[i], task_bytes(&core.task[i]));
        to = save(to, core.task[i].stack_in_use, stack_bytes(i));
        if (core.bounds->early > 0)
            to = save(to, core.touched[i],
                      core.task[i].n_touched * sizeof core.touched[0][0]);
    }
    (void)heap_save(to);
    return snapshot;
}

static const char *load(void *to, const char *from, size_t n_bytes)
{
    memcpy(to, from, n_bytes);
    return from + n_bytes;
}

void coroutine_load(size_t snapshot)
{
    const char *from = snapshots + snapshot;
    struct core_state then;

    from = load(&then, from, sizeof then);
    memory_undo(then.n_log);
    core.now = then;
    for (uint32_t i = 0; i < core.n_tasks; i++) {
        struct task *task = &core.task[i];
        from = load(task, from, offsetof(struct task, buffer.late));
        from =
            load(task->buffer.late, from, task->buffer.n * sizeof task->buffer.late[0]);
        from = load(task->stack_in_use, from, stack_bytes(i));
        if (core.bounds->early > 0)
            from = load(core.touched[i], from,
                        task->n_touched * sizeof core.touched[0][0]);
    }
    heap_load(from);
    snapshots_used = snapshot + snapshot_bytes();
}
