/* SPDX-License-Identifier: Apache-2.0 */
/* See wait.h. */
#include "client/wait.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/board.h"
#include "client/client.h"
#include "client/outside.h"
#include "proto/base/align.h"

uint64_t wait_now_ns(void)
{
    return outside_now_ns(CLOCK_MONOTONIC);
}

uint64_t wait_deadline_ns(uint64_t timeout_ns)
{
    uint64_t deadline;
    if (__builtin_add_overflow(wait_now_ns(), timeout_ns, &deadline))
        return UINT64_MAX;
    return deadline;
}

/* The owner whom a wait began with. */
struct owner {
    uint32_t state;
    uint64_t incarnation;
};

static struct owner owner_of(const struct kvw_cache *cache, uint32_t rank)
{
    struct kvw_seat *seat = layout_seat(cache->control, &cache->layout, rank);
    /* W3, pairs with D2: an owner's state is seen with the owner's own incarnation. */
    const uint32_t state = load_acquire(&seat->state);

    return (struct owner){state, load_relaxed(&seat->incarnation)};
}

/* Dead, or no longer the one we waited for. A free seat may still be taken: that waits.
 */
static bool owner_is_gone(const struct owner *first, const struct owner *now)
{
    if (now->state == KVW_SEAT_DEAD)
        return true;
    return first->state == KVW_SEAT_OWNED &&
           (now->state != KVW_SEAT_OWNED || now->incarnation != first->incarnation);
}

/* "held by pid 4711 for 3.210 s" */
static void describe_owner(struct kvw_seat *seat, char text[96])
{
    const uint32_t state = load_relaxed(&seat->state);
    const uint32_t pid = load_relaxed(&seat->pid);
    const uint64_t now_ns = outside_now_ns(CLOCK_REALTIME);
    const uint64_t since_ns = load_relaxed(&seat->since_ns);
    /* The clock of the wall can go back. */
    const double s = now_ns > since_ns ? (double)(now_ns - since_ns) / 1e9 : 0;

    if (state == KVW_SEAT_OWNED)
        (void)snprintf(text, 96, "held by pid %u for %.3f s", pid, s);
    else if (state == KVW_SEAT_DEAD)
        (void)snprintf(text, 96, "its owner, pid %u, died %.3f s ago", pid, s);
    else if (since_ns == 0)
        (void)snprintf(text, 96, "owned by nobody yet");
    else
        (void)snprintf(text, 96, "owned by nobody since pid %u left it %.3f s ago", pid,
                       s);
}

static int report(const struct kvw_cache *cache, const struct wait_for *wait, int error,
                  uint64_t begun_ns)
{
    struct board_group at = {.group = wait->group, .layer = UINT32_MAX};
    const double waited_s = (double)(wait_now_ns() - begun_ns) / 1e9;
    char owner[96];

    describe_owner(layout_seat(cache->control, &cache->layout, wait->rank), owner);
    (void)!board_read_group(cache, wait->rank, wait->lane, 0, &at);
    return fail(
        error,
        "'%s': rank %u, lane %u: waited %.3f s for %s; it stands at step %" PRIu64
        ", era %" PRIu64 ", row %" PRIu64 " of '%s', %s",
        cache->name, wait->rank, wait->lane, waited_s, wait->what, at.head.step,
        at.head.era, at.record.rows, cache->geometry.group[wait->group].name, owner);
}

static void sleep_on(shared_u32 *event, uint32_t seen, uint64_t rest_ns)
{
    const uint64_t slice_ns = min_u64(rest_ns, KVW_WAIT_SLICE_MS * 1000000ull);
    const struct timespec slice = {.tv_sec = (time_t)(slice_ns / 1000000000u),
                                   .tv_nsec = (long)(slice_ns % 1000000000u)};
    (void)syscall(SYS_futex, event, FUTEX_WAIT, seen, &slice, NULL, 0);
}

void wait_enlist(void)
{
    (void)syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
}

static void fence_enlisted(void)
{
    (void)syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
}

/* One look before sleeping, with the flag up: no publication can slip in between. */
static int look_and_sleep(struct kvw_cache *cache, const struct wait_for *wait,
                          const struct owner *first, uint64_t now_ns)
{
    struct kvw_board *board = board_of(cache, wait->rank, wait->lane);
    shared_u32 *flag = layout_flag(cache->pins, &cache->layout, cache->geometry.n_lanes,
                                   wait->rank, wait->lane);

    uint32_t event = load_acquire(&board->event); /* W2, pairs with P5 and D1 */
    store_relaxed(flag, 1);
    fence_full(); /* W1, pairs with P3 */
    if (wait->is_unfenced)
        fence_enlisted(); /* W4, pairs with P4 */
    int holds = wait->condition(cache, wait->rank, wait->lane, wait->context);
    if (holds != 0)
        return holds;
    struct owner now = owner_of(cache, wait->rank);
    if (owner_is_gone(first, &now))
        return -EOWNERDEAD;
    const struct kvw_control_header *header =
        (const struct kvw_control_header *)(const void *)cache->control;
    if (load_relaxed(&header->state) != KVW_CONTROL_LIVE)
        return fail(-KVW_EGONE,
                    "'%s' was removed while rank %u, lane %u was waited for",
                    cache->name, wait->rank, wait->lane);
    if (now_ns >= wait->deadline_ns)
        return -ETIMEDOUT;
    sleep_on(&board->event, event, wait->deadline_ns - now_ns);
    return 0;
}

int wait_until(struct kvw_cache *cache, const struct wait_for *wait)
{
    int holds = wait->condition(cache, wait->rank, wait->lane, wait->context);
    if (holds != 0)
        return holds > 0 ? 0 : holds;

    const struct owner first = owner_of(cache, wait->rank);
    const uint64_t begun_ns = wait_now_ns();
    const uint64_t spin_end_ns =
        min_u64(wait->deadline_ns, begun_ns + cache->options.spin_us * 1000ull);
    while (holds == 0 && wait_now_ns() < spin_end_ns) {
        for (int i = 0; i < 4; i++)
            spin_pause();
        holds = wait->condition(cache, wait->rank, wait->lane, wait->context);
    }
    while (holds == 0)
        holds = look_and_sleep(cache, wait, &first, wait_now_ns());
    if (holds == -ETIMEDOUT || holds == -EOWNERDEAD)
        return report(cache, wait, holds, begun_ns);
    return holds > 0 ? 0 : holds;
}

#define WHAT_BYTES 80 /* of a goal in words */

/* What the public waits look for. */
struct goal {
    uint32_t group; /* UINT32_MAX: a step */
    uint64_t at_least;
};

static int goal_reached(struct kvw_cache *cache, uint32_t rank, uint32_t lane,
                        const void *context)
{
    const struct goal *goal = context;
    struct board_head head;
    int error;

    if (goal->group == UINT32_MAX) {
        error = board_read_head(cache, rank, lane, &head);
        return error != 0 ? error : head.step >= goal->at_least;
    }
    struct board_group read = {.group = goal->group, .layer = UINT32_MAX};
    error = board_read_group(cache, rank, lane, 0, &read);
    return error != 0 ? error : read.record.rows >= goal->at_least;
}

static void describe_goal(const struct kvw_cache *cache, const struct goal *goal,
                          char what[WHAT_BYTES])
{
    if (goal->group == UINT32_MAX)
        (void)snprintf(what, WHAT_BYTES, "step %" PRIu64, goal->at_least);
    else
        (void)snprintf(what, WHAT_BYTES, "%" PRIu64 " rows of group '%s'",
                       goal->at_least, cache->geometry.group[goal->group].name);
}

static int wait_for_goal(struct kvw_cache *cache, uint32_t lane, uint32_t rank,
                         const struct goal *goal, uint64_t timeout_ns)
{
    char what[WHAT_BYTES];

    if (lane >= cache->geometry.n_lanes)
        return fail(-ERANGE, "wait: lane: need less than %u, have %u",
                    cache->geometry.n_lanes, lane);
    uint64_t ranks = cache->lane_ranks[lane];
    if (rank != KVW_ALL_RANKS) {
        if (rank >= cache->geometry.n_ranks || (ranks >> rank & 1) == 0)
            return fail(-ERANGE, "wait: rank %u does not hold lane %u", rank, lane);
        ranks = 1ull << rank;
    }

    /* One rank after the other: within an era a condition that holds goes on to hold.
     * The clock is asked, and words are found, only when there is something to wait
     * for. */
    uint64_t deadline_ns = 0;
    FOR_EACH_RANK(each, ranks)
    {
        int holds = goal_reached(cache, (uint32_t)each, lane, goal);
        if (holds > 0)
            continue;
        if (holds < 0)
            return fail(holds, "wait: '%s': rank %u, lane %u: its board cannot be read",
                        cache->name, (uint32_t)each, lane);
        if (deadline_ns == 0) {
            deadline_ns = wait_deadline_ns(timeout_ns);
            describe_goal(cache, goal, what);
        }
        const struct wait_for wait = {.rank = (uint32_t)each,
                                      .lane = lane,
                                      .condition = goal_reached,
                                      .context = goal,
                                      .what = what,
                                      .deadline_ns = deadline_ns,
                                      .group =
                                          goal->group == UINT32_MAX ? 0 : goal->group};
        int error = wait_until(cache, &wait);
        if (error != 0)
            return error;
    }
    return 0;
}

int kvw_wait_step(struct kvw_cache *cache, uint32_t lane, uint32_t rank, uint64_t step,
                  uint64_t timeout_ns)
{
    const struct goal goal = {UINT32_MAX, step};

    return wait_for_goal(cache, lane, rank, &goal, timeout_ns);
}

int kvw_wait_rows(struct kvw_cache *cache, uint32_t lane, uint32_t rank, uint32_t group,
                  uint64_t rows, uint64_t timeout_ns)
{
    const struct goal goal = {group, rows};

    if (group >= cache->geometry.n_groups)
        return fail(-ERANGE, "wait: group: need less than %u, have %u",
                    cache->geometry.n_groups, group);
    return wait_for_goal(cache, lane, rank, &goal, timeout_ns);
}
