/* SPDX-License-Identifier: Apache-2.0 */
/* Who goes on: coroutines, the options at a point, depth first search, reports. */
#include "tests/race/explore.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/race/core.h"
#include "tests/race/coroutine.h"
#include "tests/race/seen.h"

enum {
    PATH_MAX_CHOICES = 1 << 14,
    STEPS_MAX = 100000,
    WAITED_MAX = 4, /* how often time may go on in one execution */
    OPTIONS_MAX = 64,
    TRACED_MAX = 1500, /* lines of a schedule that is printed */
};

enum outcome { OUTCOME_ENDED = 1, OUTCOME_SEEN, OUTCOME_FAILED };

enum option_kind { OPTION_RUN, OPTION_DRAIN, OPTION_DIE };

struct option {
    enum option_kind kind;
    uint32_t task;
    uint32_t late;
};

/* A choice of the execution under way, and how to come back to it. */
struct choice {
    uint8_t taken;
    uint8_t n;
    size_t snapshot;
    jmp_buf context;
};

struct core core;

static const struct explore_scene *scene;
static explore_name_fn *namer;
static jmp_buf main_context;

/* The choices of this execution; the first n_given are those of the search. */
static struct choice path[PATH_MAX_CHOICES];
static uint32_t n_path;
static uint32_t n_given; /* when an execution is repeated */
static bool is_searching;
static uint64_t random_state;

static uint64_t n_deaths; /* of a whole search */
static char failure[400];
static uint32_t n_traced;

static bool is_bounded(void)
{
    return core.bounds->switches != EXPLORE_UNBOUNDED;
}

static uint64_t state_digest(uint64_t tag)
{
    uint64_t digest = explore_mix(core.now.memory_digest, tag);
    const bool may_be_early = core.now.early_used < core.bounds->early;

    for (uint32_t i = 0; i < core.n_tasks; i++) {
        const struct task *task = &core.task[i];
        uint64_t status = task->status;
        if (task->status == TASK_POLLING)
            status |= (uint64_t)(task->polled_at != core.now.n_log) << 8;
        if (task->status == TASK_SLEEPING)
            status |= (uint64_t)(uintptr_t)task->sleeps_on << 8;
        digest = explore_mix(digest, status | (uint64_t)task->is_mortal << 60);
        digest = explore_mix(digest, task->history);
        digest = explore_mix(digest, memory_buffer_digest(task));
        if (may_be_early && task->status != TASK_DONE && task->status != TASK_DEAD)
            digest = explore_mix(digest, memory_past_digest(i));
    }
    digest = explore_mix(digest, core.now.deaths_used | core.now.late_used << 8 |
                                     core.now.early_used << 16 | core.now.waited << 24);
    if (is_bounded())
        digest = explore_mix(digest, core.task[core.now.current].status == TASK_READY
                                         ? core.now.current
                                         : UINT64_MAX);
    return scene->ghost == NULL ? digest : explore_mix(digest, scene->ghost());
}

/* -------------------------------------------------------------- coroutines ----------
 */

static _Noreturn void end_execution(enum outcome outcome)
{
    _longjmp(main_context, (int)outcome);
}

static void decide(void);

static void task_main(void)
{
    struct task *self = &core.task[core.now.current];
    const struct op start = {.verb = "starts", .is_shared = true};

    core_trace(&start, 0);
    core.spec[core.now.current].run(core.spec[core.now.current].context);
    self->status = TASK_DONE;
    self->history = 0;
    self->op = (struct op){.verb = "ends"};
    core_trace(&self->op, 0);
    decide();
    abort();
}

void explore_fail(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
    if (core.now.n_steps == 0) {
        (void)fprintf(stderr, "race: setup of %s: %s\n", scene->name, failure);
        abort();
    }
    end_execution(OUTCOME_FAILED);
}

/* ------------------------------------------------------------------ options ---------
 */

static bool family_is_quiet(uint32_t family)
{
    for (uint32_t i = 0; i < core.n_tasks; i++) {
        if (core.spec[i].family == family && core.task[i].buffer.n > 0)
            return false;
    }
    return true;
}

static bool may_run(uint32_t i)
{
    const struct task *task = &core.task[i];

    if (task->status == TASK_POLLING)
        return task->polled_at != core.now.n_log;
    if (task->status != TASK_READY)
        return false;
    if (!task->is_started)
        return family_is_quiet(
            core.spec[i].family); /* the dead one's stores are done */
    if (task->op.needs_empty && task->buffer.n > 0)
        return false;
    for (uint32_t other = 0; task->op.needs_all && other < core.n_tasks; other++) {
        if (core.task[other].buffer.n > 0)
            return false;
    }
    return !task->op.is_store || task->buffer.n + 1 < CORE_BUFFER_MAX;
}

static uint32_t list_options(struct option *options)
{
    const struct task *current = &core.task[core.now.current];
    const bool goes_on = current->status == TASK_READY;
    uint32_t n = 0;

    if (goes_on && may_run(core.now.current))
        options[n++] = (struct option){OPTION_RUN, core.now.current, 0};
    if (goes_on && current->op.is_effect && current->is_mortal &&
        core.now.deaths_used < core.bounds->deaths)
        options[n++] = (struct option){OPTION_DIE, core.now.current, 0};
    if (goes_on && !current->op.is_shared)
        return n;
    for (uint32_t i = 0; i < core.n_tasks; i++) {
        for (uint32_t l = 0; l < core.task[i].buffer.n && n < OPTIONS_MAX / 2; l++) {
            if (memory_may_drain(&core.task[i].buffer, l))
                options[n++] = (struct option){OPTION_DRAIN, i, l};
        }
    }
    if (goes_on && is_bounded() && core.now.switches_used >= core.bounds->switches)
        return n;
    for (uint32_t i = 0; i < core.n_tasks; i++) {
        if (i == core.now.current && goes_on)
            continue;
        if (may_run(i))
            options[n++] = (struct option){OPTION_RUN, i, 0};
    }
    return n;
}

/* Nobody can go on. Time does, for those who have a deadline. */
static void nobody_runs(void)
{
    bool is_over = true;

    for (uint32_t i = 0; i < core.n_tasks; i++) {
        const enum task_status status = core.task[i].status;
        if (status != TASK_DONE && status != TASK_DEAD && status != TASK_ABSENT)
            is_over = false;
    }
    if (is_over)
        end_execution(OUTCOME_ENDED);
    bool has_deadline = false;
    for (uint32_t i = 0; i < core.n_tasks; i++) {
        struct task *task = &core.task[i];
        if (task->status != TASK_POLLING &&
            !(task->status == TASK_SLEEPING && task->sleeps_finite))
            continue;
        has_deadline = true;
    }
    if (!has_deadline || core.now.waited == WAITED_MAX) {
        char text[300] = "";
        for (uint32_t i = 0; i < core.n_tasks; i++) {
            const struct task *task = &core.task[i];
            char name[64] = "";
            if (task->status == TASK_SLEEPING)
                core_name(task->sleeps_on, name, sizeof name);
            if (task->status == TASK_SLEEPING || task->status == TASK_POLLING)
                (void)snprintf(text + strlen(text), sizeof text - strlen(text),
                               "; %s %s %s", core.spec[i].name,
                               task->status == TASK_SLEEPING ? "sleeps on" : "polls",
                               name);
        }
        explore_fail("nobody goes on, for ever%s", text);
    }
    core.now.waited++;
    core.now.now_ns += 1000000000;
    for (uint32_t i = 0; i < core.n_tasks; i++) {
        struct task *task = &core.task[i];
        if (task->status == TASK_POLLING)
            task->polled_at = UINT32_MAX;
        else if (task->status == TASK_SLEEPING && task->sleeps_finite)
            task->status = TASK_READY;
    }
}

static void die(uint32_t i)
{
    core.now.deaths_used++;
    n_deaths++;
    core.task[i].status = TASK_DEAD;
    core.task[i].history = 0;
    if (core.is_tracing)
        printf("%-9s dies\n", core.spec[i].name);
    if (core.spec[i].successor != EXPLORE_NOBODY)
        core.task[core.spec[i].successor].status = TASK_READY;
}

uint32_t core_choose(uint32_t n, uint64_t tag)
{
    if (n == 1)
        return 0;
    if (n_path == PATH_MAX_CHOICES)
        explore_fail("too many choices in one execution");
    if (n_path < n_given) {
        if (path[n_path].n != n) {
            (void)fprintf(stderr, "race: %s: an execution does not repeat itself\n",
                          scene->name);
            abort();
        }
        return path[n_path++].taken;
    }
    uint32_t taken = 0;
    if (core.bounds->random > 0) {
        random_state += 0x9e3779b97f4a7c15ull;
        const uint64_t number = explore_mix(random_state, 0x5eed);
        /* Mostly on: a schedule of short turns hardly ever gets anywhere. */
        if (number % 8 == 0)
            taken = (uint32_t)(number >> 32) % n;
    } else if (seen_before(state_digest(tag + core.now.current * 0x10001u),
                           is_bounded() ? core.bounds->switches - core.now.switches_used
                                        : 0)) {
        end_execution(OUTCOME_SEEN);
    }
    struct choice *choice = &path[n_path++];
    choice->taken = (uint8_t)taken;
    choice->n = (uint8_t)n;
    if (is_searching) {
        /* Comes back once for each alternative, by run_tasks(). */
        coroutine_mark();
        if (_setjmp(choice->context) == 0)
            choice->snapshot = coroutine_save();
        return path[n_path - 1].taken;
    }
    return taken;
}

/* Choose until it is somebody's turn; returns when it is the caller's. */
static void decide(void)
{
    const uint32_t self = core.now.current;

    for (;;) {
        struct option options[OPTIONS_MAX];
        uint32_t n = list_options(options);
        if (n == 0) {
            nobody_runs();
            continue;
        }
        const struct option option = options[core_choose(n, n)];
        struct task *task = &core.task[option.task];
        if (option.kind == OPTION_DRAIN) {
            memory_drain(option.task, option.late);
        } else if (option.kind == OPTION_DIE) {
            die(option.task);
        } else {
            if (option.task != core.now.current &&
                core.task[core.now.current].status == TASK_READY)
                core.now.switches_used++;
            task->status = TASK_READY;
            if (option.task != self)
                coroutine_switch_to(option.task);
            return;
        }
    }
}

void core_point(const struct op *op)
{
    struct task *task = &core.task[core.now.current];

    task->op = *op;
    if (++core.now.n_steps > STEPS_MAX)
        explore_fail("this execution does not end");
    if (!op->is_shared && !(op->is_effect && task->is_mortal &&
                            core.now.deaths_used < core.bounds->deaths))
        return;
    decide();
}

void core_block(void)
{
    struct task *task = &core.task[core.now.current];

    task->op = (struct op){.verb = "goes on"};
    decide();
}

/* --------------------------------------------------------- calls of scenes ----------
 */

int explore_add(const struct explore_task *task)
{
    if (core.n_tasks == EXPLORE_TASKS_MAX)
        abort();
    core.spec[core.n_tasks] = *task;
    return (int)core.n_tasks++;
}

void explore_replaced_by(int task, int successor)
{
    core.spec[task].successor = successor;
}

void explore_settle(uint64_t digest)
{
    core.task[core.now.current].history = digest;
}

void explore_immortal(void)
{
    core.task[core.now.current].is_mortal = false;
}

uint64_t explore_deaths(void)
{
    return core.now.deaths_used;
}

bool explore_is_dead(int i)
{
    struct task *self = &core.task[core.now.current];
    const bool is_dead = core.task[i].status == TASK_DEAD && core.task[i].buffer.n == 0;

    if (is_dead)
        memory_acquired();
    self->history = explore_mix(self->history, is_dead);
    return is_dead;
}

uint32_t explore_any(uint32_t n)
{
    const uint32_t taken = core_choose(n, 0xa0a0);
    struct task *task = &core.task[core.now.current];
    task->history = explore_mix(task->history, taken);
    return taken;
}

bool explore_is_searching(void)
{
    return core.is_running && !core.is_tracing;
}

uint64_t explore_now_ns(void)
{
    return core.now.now_ns;
}

void explore_set_namer(explore_name_fn *name)
{
    namer = name;
}

void core_name(const void *word, char *name, size_t n_bytes)
{
    name[0] = 0;
    if (word != NULL && namer != NULL)
        namer(word, name, n_bytes);
}

void core_trace(const struct op *op, uint64_t value)
{
    if (!core.is_tracing || n_traced > TRACED_MAX)
        return;
    if (n_traced++ == TRACED_MAX) {
        printf("... and so on\n");
        return;
    }
    char name[64];
    core_name(op->word, name, sizeof name);
    if (name[0] != 0)
        printf("%-9s %s %s: %llu\n", core.spec[core.now.current].name, op->verb, name,
               (unsigned long long)value);
    else
        printf("%-9s %s\n", core.spec[core.now.current].name, op->verb);
}

/* ------------------------------------------------------------------- search ---------
 */

static void prepare_execution(void)
{
    memory_restore();
    n_path = 0;
    core.now = (struct core_state){.now_ns = 1};
    failure[0] = 0;
    for (uint32_t i = 0; i < core.n_tasks; i++) {
        struct task *task = &core.task[i];
        task->status = core.spec[i].is_waiting ? TASK_ABSENT : TASK_READY;
        task->op = (struct op){.verb = "starts", .is_shared = true};
        task->buffer.n = task->buffer.number = task->buffer.after = 0;
        task->history = i + 1;
        task->is_mortal = core.spec[i].is_mortal;
        task->acquired_at = 0;
        task->n_touched = 0;
    }
    coroutine_begin(task_main);
    if (scene->start != NULL)
        scene->start();
}

/* From the start, or from the last choice on. */
static int run_tasks(bool is_start)
{
    const int outcome = _setjmp(main_context);

    if (outcome == 0) {
        core.is_running = true;
        if (is_start)
            coroutine_resume(0);
        coroutine_load(path[n_path - 1].snapshot);
        _longjmp(path[n_path - 1].context, 1);
    }
    core.is_running = false;
    return outcome;
}

static int check_the_end(void)
{
    const int outcome = _setjmp(main_context);

    if (outcome == 0) {
        scene->finish();
        return OUTCOME_ENDED;
    }
    return outcome;
}

static enum outcome execute(bool is_start)
{
    if (is_start)
        prepare_execution();
    int outcome = run_tasks(is_start);
    if (outcome == OUTCOME_ENDED && scene->finish != NULL)
        outcome = check_the_end();
    return (enum outcome)outcome;
}

/* The next alternative of the last choice that has one; false when there is none. */
static bool next_path(void)
{
    while (n_path > 0 && path[n_path - 1].taken + 1 == path[n_path - 1].n)
        n_path--;
    if (n_path == 0)
        return false;
    path[n_path - 1].taken++;
    return true;
}

static void report(const struct explore_result *result)
{
    static const char *const models[] = {"SC", "TSO", "PSO"};

    printf("\n%s fails under %s, schedule %llu, %u choices: %s\n", scene->name,
           models[core.bounds->model], (unsigned long long)result->schedules,
           result->n_choices, result->text);
    n_given = n_path;
    is_searching = false;
    core.is_tracing = true;
    n_traced = 0;
    (void)execute(true);
    core.is_tracing = false;
    printf("%s\n\n", failure);
}

static bool fails(struct explore_result *result, enum outcome outcome)
{
    if (outcome != OUTCOME_FAILED)
        return false;
    result->is_failed = true;
    result->n_choices = n_path;
    memcpy(result->text, failure, sizeof result->text);
    return true;
}

/* Depth first. */
static void search(struct explore_result *result)
{
    bool is_start = true;

    is_searching = true;
    for (;;) {
        core.found_shared = false;
        const enum outcome outcome = execute(is_start);
        result->schedules++;
        result->states = seen_count();
        is_start = core.found_shared;
        if (is_start) { /* some points were no choices: all over again */
            seen_clear();
            n_deaths = 0;
            continue;
        }
        if (fails(result, outcome))
            return;
        if (!next_path()) {
            result->is_complete = true;
            return;
        }
        if (core.bounds->schedules_max != 0 &&
            result->schedules >= core.bounds->schedules_max)
            return;
    }
}

static void sample(struct explore_result *result)
{
    is_searching = false;
    for (uint64_t i = 0; i < core.bounds->random; i++) {
        core.found_shared = false;
        random_state = core.bounds->seed + i;
        n_given = 0;
        const enum outcome outcome = execute(true);
        result->schedules++;
        if (core.found_shared) { /* once more, with the points that it lacked */
            i--;
            continue;
        }
        if (fails(result, outcome))
            return;
    }
}

void explore_run(const struct explore_scene *of, const struct explore_bounds *bounds,
                 bool is_verbose, struct explore_result *result)
{
    *result = (struct explore_result){0};
    scene = of;
    core.bounds = bounds;
    core.n_tasks = 0;
    core.now.n_log = 0;
    core.now.n_steps = 0;
    core.is_running = false;
    memory_forget();
    scene->setup();
    heap_setup_ends();
    seen_clear();
    n_given = 0;
    n_deaths = 0;
    if (bounds->random > 0)
        sample(result);
    else
        search(result);
    result->deaths = n_deaths;
    if (result->is_failed && is_verbose)
        report(result);
    memory_restore();
}
