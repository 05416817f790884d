/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A death at every instruction of the data path. A child is stepped through each call;
 * whenever an instruction has changed a byte of the shared segments, a copy of them is
 * what another process would find had the child died there. On the copy:
 *
 *   - readers see the state before the call or the one after it, every layer, group and
 *     plane of it, byte for byte, and never the first again after the second
 *     (R1, R4, R5, R9);
 *   - what another reader has pinned is whole, or its release says that it is not
 * (R11);
 *   - new owners take over, one or several of them in a row, some of which die with a
 *     chunk half written; the last one finishes the same step and goes on for a window.
 *
 * A refused call has changed nothing (R10).
 *
 *   --seed N   sizes of the chunks rolled before
 *   --quick    every fourth state only
 *   --call S   only calls whose name contains S
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "client/client.h"
#include "tests/death/calls.h"
#include "tests/death/succeed.h"
#include "tests/death/trace.h"

enum { STEPS_OF_A_CALL_MAX = 2000000 };

static struct {
    uint64_t seed;
    uint64_t check_every;
    const char *only;
} options = {.seed = 1, .check_every = 1};

static struct {
    uint64_t n_calls;
    uint64_t n_instructions;
    uint64_t n_changes;
    uint64_t n_states;
    uint64_t n_takeovers;
} totals;

/* Shared with the child. */
enum { MARK_BEFORE, MARK_INSIDE, MARK_AFTER };
static struct {
    shared_u32 mark;
    int result;
} * shared;

/* The live segments as they were after the last instruction. */
struct shadow {
    const struct stage *live;
    char *control;
    char *pins;
    char *data;
};

static void *must(void *pointer)
{
    if (pointer == NULL || pointer == MAP_FAILED) {
        perror("death");
        exit(1);
    }
    return pointer;
}

static void shadow_init(struct shadow *shadow, const struct stage *live)
{
    shadow->live = live;
    shadow->control = must(malloc(live->layout.control_bytes));
    shadow->pins = must(malloc(stage_pins_used(live)));
    shadow->data = must(malloc(live->layout.data_bytes));
    memcpy(shadow->control, live->control, live->layout.control_bytes);
    memcpy(shadow->pins, live->pins, stage_pins_used(live));
    memcpy(shadow->data, live->data, live->layout.data_bytes);
}

static void shadow_fini(struct shadow *shadow)
{
    free(shadow->control);
    free(shadow->pins);
    free(shadow->data);
}

/* True if a byte of [from, end) has changed; the shadow follows. */
static bool follow(char *shadow, const char *live, uint64_t from, uint64_t end)
{
    if (memcmp(shadow + from, live + from, end - from) == 0)
        return false;
    memcpy(shadow + from, live + from, end - from);
    return true;
}

/* Boards, pins and rows: what a worker may write. */
static bool shadow_follows(struct shadow *shadow)
{
    const struct stage *live = shadow->live;
    const struct kvw_layout *layout = &live->layout;

    bool has_changed = follow(shadow->control, live->control, layout->boards_offset,
                              layout->control_bytes);
    has_changed |= follow(shadow->pins, live->pins, 0, stage_pins_used(live));
    has_changed |= follow(shadow->data, live->data, 0, layout->data_bytes);
    return has_changed;
}

/* -------------------------------------------------------- a call ---------- */

struct test {
    const struct call *call;
    struct scene *scene;
};

static void child(void *context)
{
    struct test *test = context;

    atomic_store(&shared->mark, MARK_INSIDE);
    shared->result = test->call->run(test->scene);
    atomic_store(&shared->mark, MARK_AFTER);
    trace_stop_here();
}

static void expect_outcome(const struct test *test, struct outcome *outcome)
{
    struct m_lane *lane = &test->scene->lane;
    const uint64_t at = lane->at[0];

    *outcome =
        (struct outcome){.step = {at, at}, .is_recovery = test->call->is_recovery};
    if (test->call->is_step) {
        model_apply(&lane->record[at], &test->scene->act, &lane->record[at + 1]);
        outcome->step[1] = at + 1;
    }
    if (test->call->is_recovery && test->call->result == 0) {
        outcome->step[1] = model_common(lane);
        outcome->era[1] = 1;
    }
}

/* Step the child to the end of the call. @return instructions of the call. */
static uint64_t step_through(const struct test *test, pid_t pid,
                             struct outcome *outcome, struct shadow *shadow)
{
    const struct call *call = test->call;
    uint64_t n = 0;
    uint64_t n_changes = 0;

    for (uint64_t steps = 0; steps < STEPS_OF_A_CALL_MAX; steps++) {
        if (!trace_step(pid)) {
            test_fail(__FILE__, __LINE__, "the child ended");
            return n;
        }
        uint32_t mark = atomic_load(&shared->mark);
        if (mark == MARK_BEFORE)
            continue;
        if (mark == MARK_AFTER)
            break;
        test_place(call->name, "stepping", ++n);
        if (n == call->help_at)
            call->help(test->scene);
        if (shadow_follows(shadow) && n_changes++ % options.check_every == 0) {
            test_place(call->name, "died here", n);
            succeed_check(test->scene, outcome);
        }
    }
    totals.n_changes += n_changes;
    totals.n_instructions += n;
    return n;
}

static void check_closed(struct scene *scene)
{
    struct kvw_lane_state state = {0};

    OK(kvw_state(scene->witness.reader, 0, 0, &state));
    for (uint32_t g = 0; g < GROUPS; g++)
        EXPECT(state.group[g].open == 0, "group %u: a chunk is open", g);
}

static void check_end(const struct test *test, struct outcome *outcome,
                      const struct shadow *start)
{
    const struct call *call = test->call;
    const struct stage *live = &test->scene->live;
    const bool is_refused = call->result != 0 && !call->is_recovery;

    EXPECT(shared->result == call->result, "result %d, not %d", shared->result,
           call->result);
    succeed_check(test->scene, outcome);
    if (call->is_step || call->is_closed)
        check_closed(test->scene);
    const bool must_be_after =
        outcome->step[0] != outcome->step[1] || outcome->era[0] != outcome->era[1];
    EXPECT(outcome->is_after == must_be_after, "the state after the call was %sseen",
           outcome->is_after ? "" : "not ");
    EXPECT(memcmp(start->control, live->control, live->layout.boards_offset) == 0,
           "a worker wrote header, geometry or seats");
    if (is_refused) {
        EXPECT(memcmp(start->data, live->data, live->layout.data_bytes) == 0,
               "a refused call wrote rows");
        const uint64_t claims = live->layout.boards_offset + live->layout.claims_offset;
        EXPECT(memcmp(start->control + claims, live->control + claims,
                      live->layout.control_bytes - claims) == 0,
               "a refused call changed a board");
    }
}

static int run_call(const struct call *call)
{
    static struct scene scene;
    struct test test = {call, &scene};
    struct outcome outcome;
    struct shadow shadow;
    struct shadow start;
    uint64_t random = options.seed;

    test_place(call->name, "preparing", 0);
    scene_init(&scene, call->n_ranks);
    if (!call->is_fresh)
        scene_roll(&scene, 3 * model_window(0), &random);
    if (call->prepare != NULL)
        call->prepare(&scene);
    if (scene.witness.reader == NULL)
        scene_witness(&scene);
    expect_outcome(&test, &outcome);
    test_place(call->name, "before it", 0);
    succeed_check(&scene, &outcome);
    shadow_init(&shadow, &scene.live);
    shadow_init(&start, &scene.live);

    atomic_store(&shared->mark, MARK_BEFORE);
    pid_t pid = trace_start(child, &test);
    if (pid < 0)
        return -1;
    const uint64_t n = step_through(&test, pid, &outcome, &shadow);
    trace_kill(pid);
    test_place(call->name, "after it", n);
    check_end(&test, &outcome, &start);
    printf("%-40s %6" PRIu64 " instructions, %4" PRIu64 " states\n", call->name, n,
           outcome.n_states);
    totals.n_calls++;
    totals.n_states += outcome.n_states;
    totals.n_takeovers += outcome.n_takeovers;
    shadow_fini(&start);
    shadow_fini(&shadow);
    scene_fini(&scene);
    return 0;
}

static int read_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            options.check_every = 4;
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            options.seed = strtoull(argv[++i], NULL, 0);
        else if (strcmp(argv[i], "--call") == 0 && i + 1 < argc)
            options.only = argv[++i];
        else {
            fprintf(stderr, "usage: %s [--seed N] [--quick] [--call NAME]\n", argv[0]);
            return -1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct timespec begun;
    struct timespec now;

    if (read_options(argc, argv) != 0)
        return 2;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    shared = must(mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (uint32_t i = 0; i < n_calls; i++) {
        if (options.only != NULL && strstr(calls[i].name, options.only) == NULL)
            continue;
        if (run_call(&calls[i]) != 0) {
            fputs("ptrace is forbidden here\n", stderr);
            return 77;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("seed %" PRIu64 ": %" PRIu64 " calls, %" PRIu64
           " instructions stepped, %" PRIu64 " changed the segments, %" PRIu64
           " states checked, %" PRIu64 " takeovers, %u failures, %.1f s\n",
           options.seed, totals.n_calls, totals.n_instructions, totals.n_changes,
           totals.n_states, totals.n_takeovers, test_failures(),
           (double)(now.tv_sec - begun.tv_sec) +
               (double)(now.tv_nsec - begun.tv_nsec) / 1e9);
    return test_failures() == 0 ? 0 : 1;
}
