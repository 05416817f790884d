/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of shim.h: store buffers, early loads, the futex, rows, allocations. */
#include "tests/race/core.h"

#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "tests/race/shim_calls.h"

/* Segments, and which families read and write each word. */
static _Alignas(4096) unsigned char shared[CORE_SHARED_BYTES];
static size_t shared_used;
static const unsigned char *rows;
static size_t rows_bytes;
static uint8_t readers[CORE_WORDS];
static uint8_t writers[CORE_WORDS];

/* ------------------------------------------------------------------ memory ----------
 */

static bool is_shared_memory(const void *at)
{
    return (const unsigned char *)at >= shared &&
           (const unsigned char *)at < shared + sizeof shared;
}

static uint32_t word_of(const void *at)
{
    if (!is_shared_memory(at)) {
        (void)fprintf(stderr, "race: an atomic operation outside the segments\n");
        abort();
    }
    return (uint32_t)((const unsigned char *)at - shared) / 4;
}

const void *memory_word(uint32_t word)
{
    return shared + word * 4ull;
}

static uint64_t peek(uint32_t word, uint32_t n_bytes)
{
    uint64_t value = 0;
    memcpy(&value, shared + word * 4ull, n_bytes);
    return value;
}

static void poke(uint32_t word, uint32_t n_bytes, uint64_t value)
{
    memcpy(shared + word * 4ull, &value, n_bytes);
}

static void change(uint32_t word, uint32_t n_bytes, uint64_t value, uint32_t family)
{
    const uint64_t old = peek(word, n_bytes);

    if (core.now.n_log == CORE_LOG_MAX)
        explore_fail("too many stores in one execution");
    core.log[core.now.n_log++] =
        (struct change){word, (uint8_t)n_bytes, (uint8_t)family, old};
    core.now.memory_digest ^= explore_mix(word, old) ^ explore_mix(word, value);
    poke(word, n_bytes, value);
}

void memory_undo(uint32_t n_log)
{
    while (core.now.n_log > n_log) {
        const struct change *last = &core.log[--core.now.n_log];
        poke(last->word, last->n_bytes, last->old);
    }
}

void memory_restore(void)
{
    memory_undo(0);
    core.now.memory_digest = 0;
    heap_restore();
}

void memory_forget(void)
{
    memset(shared, 0, shared_used);
    shared_used = 0;
    memset(readers, 0, sizeof readers);
    memset(writers, 0, sizeof writers);
    heap_forget();
}

void *explore_shared(size_t n_bytes, size_t alignment)
{
    shared_used = (shared_used + alignment - 1) / alignment * alignment;
    if (n_bytes > sizeof shared - shared_used)
        abort();
    void *memory = shared + shared_used;
    shared_used += n_bytes;
    return memory;
}

/* Where the rows are: what is copied there is stored word by word. */
void explore_rows(void *memory, size_t n_bytes)
{
    rows = memory;
    rows_bytes = n_bytes;
}

static bool are_rows(const void *at)
{
    return (const unsigned char *)at >= rows &&
           (const unsigned char *)at < rows + rows_bytes;
}

/* ------------------------------------------------------- who uses which word --------
 */

/* Note a use. A word counts as shared once one family writes it and another uses it. */
static void note(uint8_t *users, uint32_t word, uint32_t family)
{
    const uint8_t bit = (uint8_t)(1u << family);

    if (users[word] & bit)
        return;
    users[word] |= bit;
    const uint32_t all = readers[word] | writers[word];
    if (writers[word] != 0 && (all & (all - 1)) != 0)
        core.found_shared = true;
}

static uint32_t own_bit(void)
{
    return 1u << core.spec[core.now.current].family;
}

/* ----------------------------------------------------------------- buffers ----------
 */

bool memory_may_drain(const struct buffer *buffer, uint32_t i)
{
    const struct late *late = &buffer->late[i];

    for (uint32_t j = 0; j < i; j++) {
        const struct late *before = &buffer->late[j];
        if (before->word == late->word || before->number < late->after ||
            (!late->is_free && !before->is_free))
            return false;
    }
    return true;
}

void memory_drain(uint32_t task, uint32_t i)
{
    struct buffer *buffer = &core.task[task].buffer;
    const struct late late = buffer->late[i];

    buffer->n--;
    memmove(&buffer->late[i], &buffer->late[i + 1],
            (buffer->n - i) * sizeof buffer->late[0]);
    change(late.word, late.n_bytes,
           late.is_add ? peek(late.word, late.n_bytes) + late.value : late.value,
           core.spec[task].family);
    if (core.is_tracing) {
        char name[64];
        core_name(memory_word(late.word), name, sizeof name);
        printf("      (memory of %s: %s = %llu)\n", core.spec[task].name, name,
               (unsigned long long)peek(late.word, late.n_bytes));
    }
}

uint64_t memory_buffer_digest(const struct task *task)
{
    uint64_t digest = task->buffer.n;

    for (uint32_t i = 0; i < task->buffer.n; i++) {
        const struct late *late = &task->buffer.late[i];
        uint64_t held = 0; /* which of the earlier ones it must wait for */
        for (uint32_t j = 0; j < i; j++)
            held |= (uint64_t)(task->buffer.late[j].number < late->after) << j;
        digest =
            explore_mix(digest, late->word * 4u + late->is_add * 2u + late->is_free);
        digest = explore_mix(explore_mix(digest, late->value), held);
    }
    /* What a release fence holds back that is still to come. */
    if (task->buffer.n > 0)
        digest = explore_mix(digest, task->buffer.late[0].number < task->buffer.after);
    return digest;
}

/* A store that memory takes at once, or after those that it must follow. */
static void put(uint32_t word, uint32_t n_bytes, uint64_t value, enum shim_order order,
                bool is_add, bool is_late)
{
    struct task *task = &core.task[core.now.current];
    struct buffer *buffer = &task->buffer;
    struct late late = {.word = word,
                        .number = buffer->number++,
                        .after = buffer->after,
                        .n_bytes = (uint8_t)n_bytes,
                        .is_add = is_add,
                        .is_free = is_late && core.bounds->model == EXPLORE_PSO,
                        .value = value};

    if (order != SHIM_RELAXED || core.bounds->model == EXPLORE_TSO)
        late.after = late.number;
    buffer->late[buffer->n++] = late;
    if (!is_late && memory_may_drain(buffer, buffer->n - 1)) {
        buffer->n--;
        change(word, n_bytes, is_add ? peek(word, n_bytes) + value : value,
               core.spec[core.now.current].family);
    }
}

/* ------------------------------------------------------------- early loads ----------
 */

static void touch(uint32_t word, uint32_t at)
{
    struct task *task = &core.task[core.now.current];

    if (core.bounds->early == 0)
        return;
    if (task->n_touched == CORE_TOUCHED_MAX)
        explore_fail("too many loads without an acquire");
    core.touched[core.now.current][task->n_touched++] = (struct touched){word, at};
}

void memory_acquired(void)
{
    struct task *task = &core.task[core.now.current];

    task->acquired_at = core.now.n_log;
    task->n_touched = 0;
}

/* A load of an older value, if this execution has one left: of any value since the last
 * acquire and since the own last use of the word. */
static uint64_t load_early(uint32_t word, uint64_t newest)
{
    const struct task *task = &core.task[core.now.current];
    uint32_t from = task->acquired_at;
    uint32_t at[8];
    uint32_t n = 0;

    for (uint32_t i = task->n_touched; i-- > 0;) {
        if (core.touched[core.now.current][i].word == word) {
            from = core.touched[core.now.current][i].at;
            break;
        }
    }
    for (uint32_t i = core.now.n_log; i-- > from && n < 8;) {
        if (core.log[i].word != word)
            continue;
        if (core.log[i].family == core.spec[core.now.current].family)
            break;
        at[n++] = i;
    }
    uint32_t chosen = n == 0 ? 0 : core_choose(n + 1, word);
    if (chosen == 0) {
        touch(word, core.now.n_log);
        return newest;
    }
    core.now.early_used++;
    touch(word, at[chosen - 1]);
    return core.log[at[chosen - 1]].old;
}

uint64_t memory_past_digest(uint32_t of)
{
    const struct task *task = &core.task[of];
    const struct touched *touched = core.touched[of];
    uint64_t digest = 0;
    uint32_t t = 0;

    for (uint32_t i = task->acquired_at; i <= core.now.n_log; i++) {
        while (t < task->n_touched && touched[t].at <= i)
            digest = explore_mix(digest, ~(uint64_t)touched[t++].word);
        if (i < core.now.n_log)
            digest =
                explore_mix(explore_mix(digest, core.log[i].word), core.log[i].old);
    }
    return digest;
}

/* -------------------------------------------------------------- operations ----------
 */

/* The place in its program is part of a process's state. */
static void went_on(uint64_t what)
{
    struct task *task = &core.task[core.now.current];

    task->history = explore_mix(task->history, what);
}

static uint64_t load(const void *at, uint32_t n_bytes, enum shim_order order)
{
    const uint32_t word = word_of(at);

    if (!core.is_running)
        return peek(word, n_bytes);
    note(readers, word, core.spec[core.now.current].family);
    struct task *task = &core.task[core.now.current];
    struct op op = {.verb = order == SHIM_ACQUIRE ? "load acquire" : "load",
                    .word = at,
                    .is_shared = (writers[word] & ~own_bit()) != 0};
    if (op.is_shared)
        core_point(&op);
    uint64_t value = peek(word, n_bytes);
    bool is_own = false;
    for (uint32_t i = 0; i < task->buffer.n; i++) {
        const struct late *late = &task->buffer.late[i];
        if (late->word == word) {
            value = late->is_add ? value + late->value : late->value;
            is_own = true;
        }
    }
    if (op.is_shared && !is_own && core.now.early_used < core.bounds->early)
        value = load_early(word, value);
    if (order == SHIM_ACQUIRE)
        memory_acquired();
    if (writers[word] != 0)
        went_on(value);
    core_trace(&op, value);
    return value;
}

/* A store of what the word holds already is nothing that anybody could see. */
static bool is_silent(uint32_t word, uint32_t n_bytes, uint64_t value)
{
    const struct buffer *buffer = &core.task[core.now.current].buffer;

    for (uint32_t i = 0; i < buffer->n; i++) {
        if (buffer->late[i].word == word)
            return false;
    }
    return (writers[word] & ~own_bit()) == 0 && peek(word, n_bytes) == value;
}

static void store(void *at, uint32_t n_bytes, uint64_t value, enum shim_order order,
                  bool is_add)
{
    const uint32_t word = word_of(at);

    if (!core.is_running) {
        poke(word, n_bytes, is_add ? peek(word, n_bytes) + value : value);
        return;
    }
    const bool is_sc = core.bounds->model == EXPLORE_SC;
    if (!is_add && is_silent(word, n_bytes, value)) {
        went_on(word);
        return;
    }
    note(writers, word, core.spec[core.now.current].family);
    struct op op = {
        .verb = is_add                  ? "add"
                : order == SHIM_RELEASE ? "store release"
                                        : "store",
        .word = at,
        .value = value,
        .is_effect = true,
        .is_store = true,
        .needs_empty = is_add && core.bounds->model == EXPLORE_TSO,
        .is_shared = ((writers[word] | readers[word]) & ~own_bit()) != 0,
    };
    core_point(&op);
    went_on(word);
    if (is_sc || !op.is_shared || op.needs_empty) {
        /* Nobody can see when a word that others do not use is stored. */
        change(word, n_bytes, is_add ? peek(word, n_bytes) + value : value,
               core.spec[core.now.current].family);
    } else {
        const bool is_late = core.now.late_used < core.bounds->late &&
                             core_choose(2, 0x1a7e + word * 2ull) == 1;
        core.now.late_used += is_late;
        if (is_late)
            op.verb = is_add ? "add, late" : "store, late";
        put(word, n_bytes, value, order, is_add, is_late);
    }
    if (op.needs_empty)
        memory_acquired();
    touch(word, core.now.n_log);
    core_trace(&op, value);
}

uint32_t shim_load_32(const void *word, enum shim_order order)
{
    return (uint32_t)load(word, 4, order);
}

uint64_t shim_load_64(const void *word, enum shim_order order)
{
    return load(word, 8, order);
}

void shim_store_32(void *word, uint32_t value, enum shim_order order)
{
    store(word, 4, value, order, false);
}

void shim_store_64(void *word, uint64_t value, enum shim_order order)
{
    store(word, 8, value, order, false);
}

/* A read-modify-write that nobody asks for its result: ordered after what precedes it,
 * but under PSO not before what follows, as on a machine with load-exclusive pairs. */
uint32_t shim_add_32(void *word, uint32_t value)
{
    store(word, 4, value, SHIM_FULL, true);
    return 0;
}

/* Compare and swap; sequentially consistent memory only. */
int shim_swap_64(void *at, uint64_t seen, uint64_t value)
{
    const uint32_t word = word_of(at);

    if (!core.is_running) {
        poke(word, 8, value);
        return 1;
    }
    note(readers, word, core.spec[core.now.current].family);
    note(writers, word, core.spec[core.now.current].family);
    struct op op = {.verb = "swap",
                    .word = at,
                    .value = value,
                    .is_effect = true,
                    .is_shared = true};
    core_point(&op);
    const bool is_equal = peek(word, 8) == seen;
    went_on(is_equal);
    if (is_equal)
        change(word, 8, value, core.spec[core.now.current].family);
    core_trace(&op, peek(word, 8));
    return is_equal;
}

void shim_fence(enum shim_order order)
{
    if (!core.is_running)
        return;
    struct task *task = &core.task[core.now.current];
    struct op op = {.verb = order == SHIM_FULL      ? "fence full"
                            : order == SHIM_RELEASE ? "fence release"
                                                    : "fence acquire",
                    .needs_empty = order == SHIM_FULL,
                    .is_shared = order == SHIM_FULL && task->buffer.n > 0};
    if (op.is_shared)
        core_point(&op);
    went_on(order);
    if (order == SHIM_RELEASE)
        task->buffer.after = task->buffer.number;
    if (order != SHIM_RELEASE)
        memory_acquired();
    core_trace(&op, 0);
}

/* ---------------------------------------------------------- calls of libc ----------
 */

void *shim_memcpy(void *to, const void *from, size_t n_bytes)
{
    const bool is_to = core.is_running && are_rows(to);
    const bool is_from = core.is_running && are_rows(from);

    if (!is_to && !is_from)
        return memcpy(to, from, n_bytes);
    for (size_t i = 0; i < n_bytes; i += 8) {
        uint64_t value;
        if (is_from)
            value = shim_load_64((const char *)from + i, SHIM_RELAXED);
        else
            memcpy(&value, (const char *)from + i, 8);
        if (is_to)
            shim_store_64((char *)to + i, value, SHIM_RELAXED);
        else
            memcpy((char *)to + i, &value, 8);
    }
    return to;
}

static void futex_wait(const void *at, uint32_t seen, const struct timespec *slice)
{
    struct task *task = &core.task[core.now.current];
    struct op op = {.verb = "futex wait",
                    .word = at,
                    .value = seen,
                    .needs_empty = true,
                    .is_shared = true};

    note(readers, word_of(at), core.spec[core.now.current].family);
    core_point(&op);
    memory_acquired();
    const uint32_t value = (uint32_t)peek(word_of(at), 4);
    went_on(value == seen);
    core_trace(&op, value);
    if (value != seen)
        return;
    /* A whole slice stands for no deadline: sleeps must not need their slices. */
    task->sleeps_on = at;
    task->sleeps_finite = slice->tv_sec == 0 && slice->tv_nsec < 100000000;
    task->status = TASK_SLEEPING;
    core_block();
}

static void futex_wake(const void *at)
{
    struct op op = {.verb = "futex wake",
                    .word = at,
                    .is_effect = true,
                    .needs_empty = true,
                    .is_shared = true};

    core_point(&op);
    went_on(word_of(at));
    for (uint32_t i = 0; i < core.n_tasks; i++) {
        if (core.task[i].status == TASK_SLEEPING && core.task[i].sleeps_on == at)
            core.task[i].status = TASK_READY;
    }
    core_trace(&op, 0);
}

/* A waiter's membarrier(2): every process executes a full fence. */
static void fence_everybody(void)
{
    struct op op = {.verb = "membarrier",
                    .needs_empty = true,
                    .needs_all = true,
                    .is_shared = true};

    core_point(&op);
    for (uint32_t i = 0; i < core.n_tasks; i++) {
        core.task[i].acquired_at = core.now.n_log;
        core.task[i].n_touched = 0;
    }
    went_on(0);
    core_trace(&op, 0);
}

long shim_syscall(long number, ...)
{
    va_list arguments;

    if (!core.is_running)
        return 0;
    if (number == SYS_membarrier) {
        fence_everybody();
        return 0;
    }
    if (number != SYS_futex)
        abort();
    va_start(arguments, number);
    const void *at = va_arg(arguments, void *);
    const int call = va_arg(arguments, int);
    const uint32_t value = va_arg(arguments, uint32_t);
    const struct timespec *slice = va_arg(arguments, const struct timespec *);
    va_end(arguments);
    if (call == FUTEX_WAIT)
        futex_wait(at, value, slice);
    else
        futex_wake(at);
    return 0;
}

/* A pause of somebody who looks again and again: until anything has changed. */
int shim_nanosleep(const struct timespec *pause, struct timespec *rest)
{
    struct op op = {.verb = "pause"};
    struct task *task = &core.task[core.now.current];

    (void)pause;
    (void)rest;
    core_trace(&op, 0);
    went_on(0);
    task->polled_at = core.now.n_log;
    task->status = TASK_POLLING;
    core_block();
    return 0;
}
