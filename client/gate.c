/* SPDX-License-Identifier: Apache-2.0 */
/* See gate.h. */
#include "client/gate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client/board.h"
#include "client/client.h"
#include "client/outside.h"
#include "client/pin.h"
#include "client/step.h"
#include "client/wait.h"

/* Where the ranks of a lane stand. */
struct standing {
    uint64_t step_lowest;
    uint32_t rank_lowest; /* UINT32_MAX: ranks on other nodes */
    uint32_t rank_behind; /* one in an older era, UINT32_MAX = none */
};

static int read_standing(struct kvw_cache *cache, uint32_t lane_number,
                         const char *call, struct standing *standing)
{
    const struct lane *lane = lane_of(cache, lane_number);

    *standing = (struct standing){lane->record->step, cache->rank, UINT32_MAX};
    FOR_EACH_RANK(rank, board_peers(cache, lane->ranks))
    {
        struct board_head head;
        int error = board_read_head(cache, (uint32_t)rank, lane_number, &head);
        if (error != 0)
            return fail(error, "%s '%s': rank %u, lane %u: its board cannot be read",
                        call, cache->name, (uint32_t)rank, lane_number);
        if (head.era > lane->record->era)
            return fail(-ESTALE,
                        "%s '%s': rank %u, lane %u recovered to era %" PRIu64
                        ", this rank is in era %" PRIu64 ": call kvw_recover()",
                        call, cache->name, (uint32_t)rank, lane_number, head.era,
                        lane->record->era);
        if (head.era < lane->record->era)
            standing->rank_behind = (uint32_t)rank;
        else if (head.step < standing->step_lowest) {
            standing->step_lowest = head.step;
            standing->rank_lowest = (uint32_t)rank;
        }
    }
    uint64_t outside =
        load_relaxed(&board_of(cache, cache->rank, lane_number)->outside);
    if (outside < standing->step_lowest) {
        standing->step_lowest = outside;
        standing->rank_lowest = UINT32_MAX;
    }
    return 0;
}

/* True if a group's record needs rows that the claims would take. */
static bool record_conflicts(const struct kvw_cache *cache, const struct claims *claims,
                             const struct kvw_group_record *own,
                             const struct kvw_group_record *groups)
{
    for (uint32_t i = 0; i < claims->n_groups; i++) {
        const uint32_t g = claims->claim[i].group;
        const struct kvw_geometry_group *group = &cache->geometry.group[g];
        const struct kvw_holder holder = {
            .generation = groups[g].generation,
            .low = rules_window_first(group, groups[g].rows, groups[g].evicted),
            .end = groups[g].rows,
        };
        if (rules_conflict(group, cache->layout.group[g].ring_rows, own[g].generation,
                           claims->claim[i].at, claims->claim[i].end, &holder))
            return true;
    }
    if (claims->extent_first < claims->extent_end) {
        for (uint32_t k = 0; k < KVW_KEPT_MAX; k++) {
            const struct kvw_kept *kept = &groups[claims->extent_group].kept[k];
            if (kept->n > 0 && kept->extent < claims->extent_end &&
                claims->extent_first < kept->extent + kept->n)
                return true;
        }
    }
    return false;
}

/* Own records from the slowest rank's step to the own one: they are what the ranks
 * behind us may still need, and what all may have to come back to. */
static int own_log_conflicts(struct kvw_cache *cache, uint32_t lane_number,
                             const struct claims *claims, uint64_t step_lowest)
{
    const struct lane *lane = lane_of(cache, lane_number);

    if (record_conflicts(cache, claims, lane->record->group, lane->record->group))
        return -KVW_EGONE; /* rule R5 (ARCHITECTURE.md) excludes it, unless somebody scribbled */
    for (uint64_t back = 1; back <= KVW_RECORDS - 2 && back < lane->version; back++) {
        struct board_head head;
        if (lane->record->step - step_lowest < back)
            break;
        int error = board_read_record(cache, cache->rank, lane_number,
                                      lane->version - back, &head, cache->peer);
        if (error != 0)
            return error;
        if (head.era != lane->record->era)
            break; /* of a branch that a recovery left */
        if (record_conflicts(cache, claims, lane->record->group, cache->peer->group))
            return 1;
    }
    return 0;
}

/* A gate as a condition: who is in the way now. */
struct gate {
    const char *call;
    const struct claims *claims;
    uint32_t blamed; /* rank in the way */
    bool is_era;     /* it is in an older era */
};

/* 0: nothing in the way; 1: gate->blamed; negative: an error. */
static int who_is_in_the_way(struct kvw_cache *cache, uint32_t lane_number,
                             struct gate *gate)
{
    const struct lane *lane = lane_of(cache, lane_number);
    struct standing standing;

    int error = read_standing(cache, lane_number, gate->call, &standing);
    if (error != 0)
        return error;
    gate->is_era = standing.rank_behind != UINT32_MAX;
    if (gate->is_era) {
        gate->blamed = standing.rank_behind;
        return 1;
    }
    gate->blamed = standing.rank_lowest;
    if (lane->record->step + 1 - standing.step_lowest > KVW_RECORDS - 2)
        return 1;
    int conflict =
        own_log_conflicts(cache, lane_number, gate->claims, standing.step_lowest);
    if (conflict < 0)
        return fail(
            conflict,
            "%s '%s': rank %u, lane %u: claims and records contradict each other: "
            "the control segment was damaged",
            gate->call, cache->name, cache->rank, lane_number);
    return conflict;
}

static int no_longer_blamed(struct kvw_cache *cache, uint32_t rank,
                            uint32_t lane_number, const void *context)
{
    struct gate gate = *(const struct gate *)context;

    int in_the_way = who_is_in_the_way(cache, lane_number, &gate);
    if (in_the_way < 0)
        return in_the_way;
    return in_the_way == 0 || gate.blamed != rank;
}

int gate_ranks(struct kvw_cache *cache, uint32_t lane_number, const char *call,
               const struct claims *claims, uint64_t deadline_ns)
{
    struct gate gate = {.call = call, .claims = claims};

    /* Ends at the deadline at the latest: each wait below shares it. Ranks that take turns
     * at being in the way, so that no wait is long, are given up here. */
    for (bool is_late = false;; is_late = wait_now_ns() >= deadline_ns) {
        int in_the_way = who_is_in_the_way(cache, lane_number, &gate);
        if (in_the_way <= 0)
            return in_the_way;
        if (gate.blamed == UINT32_MAX)
            return fail(
                -EAGAIN,
                "%s '%s': lane %u: ranks on other nodes stand at step %" PRIu64
                ", this one at %" PRIu64,
                call, cache->name, lane_number,
                load_relaxed(&board_of(cache, cache->rank, lane_number)->outside),
                lane_of(cache, lane_number)->record->step);
        if (is_late)
            return fail(-ETIMEDOUT,
                        "%s '%s': lane %u: one rank after the other is in the way, now "
                        "rank %u; this one stands at step %" PRIu64,
                        call, cache->name, lane_number, gate.blamed,
                        lane_of(cache, lane_number)->record->step);
        char what[96];
        (void)snprintf(what, sizeof what,
                       gate.is_era ? "its recovery to era %" PRIu64 " (%s)"
                                   : "it to come up to step %" PRIu64 " (%s)",
                       gate.is_era ? lane_of(cache, lane_number)->record->era
                                   : lane_of(cache, lane_number)->record->step,
                       call);
        const struct wait_for wait = {
            .rank = gate.blamed,
            .lane = lane_number,
            .condition = no_longer_blamed,
            .context = &gate,
            .what = what,
            .deadline_ns = deadline_ns,
            .group = claims->n_groups > 0 ? claims->claim[0].group : 0};
        int error = wait_until(cache, &wait);
        if (error != 0)
            return error;
    }
}

static int name_reader(const struct kvw_cache *cache, const char *call, uint32_t group,
                       const struct pin_holder *holder)
{
    const double held_s =
        (double)(outside_now_ns(CLOCK_MONOTONIC_COARSE) - holder->since_ns) / 1e9;
    const uint64_t last = holder->end > 0 ? holder->end - 1 : 0;

    if (holder->attachment_slot == cache->slot)
        return fail(
            -EBUSY,
            "%s '%s': group '%s': this attachment still holds a view of rows up "
            "to %" PRIu64 ": release it first",
            call, cache->name, cache->geometry.group[group].name, last);
    return fail(
        -EBUSY,
        "%s '%s': group '%s': pid %u (attachment slot %u; see 'kvwheel who %s') "
        "has pinned rows up to %" PRIu64 " for %.3f s",
        call, cache->name, cache->geometry.group[group].name, holder->pid,
        holder->attachment_slot, cache->name, last, held_s);
}

/*
 * 0: none; 1: one that must be waited for or answered, with *group and *holder. A
 * view's pin can be revoked, for its release looks at `hi`; a step's own hold cannot,
 * nor one on the keep extent, which no claim word covers.
 */
static int pins_in_the_way(struct kvw_cache *cache, uint32_t lane,
                           const struct claims *claims, uint32_t *group,
                           struct pin_holder *holder)
{
    const struct record *own = lane_of(cache, lane)->record;
    const bool may_revoke = cache->options.pin_policy == KVW_PIN_REVOKE;

    for (uint32_t i = 0; i < claims->n_groups; i++) {
        *group = claims->claim[i].group;
        const struct pin_claim claim = {
            .generation = own->group[*group].generation,
            .at = claims->claim[i].at,
            .claim_end = claims->claim[i].end,
            .steps_only = may_revoke,
        };
        if (pin_in_the_way(cache, lane, *group, &claim, holder))
            return 1;
    }
    *group = claims->extent_group;
    return claims->extent_first < claims->extent_end &&
           pin_on_extent(cache, lane, *group, claims->extent_first, claims->extent_end,
                         holder);
}

/* A release makes no call, so a writer that waits for a pin looks again and again: a
 * spin of some tens of microseconds, then sleeps of 0.2 to 1 ms. */
static void pause_for_pin(const struct kvw_cache *cache, uint64_t begun_ns)
{
    const uint64_t waited_ns = wait_now_ns() - begun_ns;
    const uint64_t spin_ns = cache->options.spin_us * 1000ull;

    if (waited_ns < spin_ns) {
        for (int i = 0; i < 32; i++)
            spin_pause();
        return;
    }
    const struct timespec pause = {.tv_nsec = waited_ns - spin_ns < 1000000 ? 200000
                                                                            : 1000000};
    (void)nanosleep(&pause, NULL);
}

int gate_pins(struct kvw_cache *cache, uint32_t lane, const char *call,
              const struct claims *claims, uint64_t deadline_ns)
{
    struct pin_holder holder;
    uint32_t group;
    uint64_t begun_ns = 0;

    while (pins_in_the_way(cache, lane, claims, &group, &holder)) {
        if (holder.attachment_slot == cache->slot ||
            (cache->options.pin_policy == KVW_PIN_ANSWER &&
             holder.kind == KVW_PIN_OF_VIEW))
            return name_reader(cache, call, group, &holder);
        if (begun_ns == 0)
            begun_ns = wait_now_ns();
        if (wait_now_ns() >= deadline_ns)
            return name_reader(cache, call, group, &holder);
        int error = step_check_live(cache, call, lane);
        if (error != 0)
            return error;
        pause_for_pin(cache, begun_ns);
    }
    return 0;
}

static bool groups_agree(const struct kvw_group_record *peer,
                         const struct kvw_group_record *next, uint64_t own_rows,
                         bool is_open)
{
    bool rows_agree = peer->rows == next->rows ||
                      (is_open && peer->rows >= own_rows && peer->rows <= next->rows);
    bool epochs_agree = is_open || peer->epoch == next->epoch;
    return rows_agree && epochs_agree && peer->evicted == next->evicted &&
           peer->generation == next->generation &&
           memcmp(peer->kept, next->kept, sizeof peer->kept) == 0;
}

/* The peer's record of the next step, if it is that far: 1 with cache->peer, else 0. */
static int peer_record_of(struct kvw_cache *cache, uint32_t rank, uint32_t lane,
                          const struct record *next)
{
    for (uint32_t tries = 0; tries < KVW_RETRIES_MAX; tries++) {
        struct board_head head;
        uint64_t version;
        int error = board_read_head(cache, rank, lane, &head);
        if (error != 0)
            return error;
        if (head.era != next->era || head.step < next->step)
            return 0;
        error = board_find_step(cache, rank, lane, next->step, &version);
        if (error == 0)
            error = board_read_record(cache, rank, lane, version, &head, cache->peer);
        if (error == 0)
            return 1;
        if (error != -EAGAIN)
            return error == -ENOENT ? 0 : error;
    }
    return -EAGAIN;
}

/* One peer against what this rank is about to publish. */
static int agree_on_next(struct kvw_cache *cache, uint32_t rank, uint32_t lane_number,
                         const char *call, const struct record *next, bool is_open)
{
    const struct lane *lane = lane_of(cache, lane_number);

    int found = peer_record_of(cache, rank, lane_number, next);
    if (found < 0)
        return fail(found, "%s '%s': rank %u, lane %u: its board cannot be read", call,
                    cache->name, rank, lane_number);
    if (found == 0)
        return 0;
    for (uint32_t g = 0; g < cache->geometry.n_groups; g++) {
        const struct kvw_group_record *theirs = &cache->peer->group[g];
        const struct kvw_group_record *ours = &next->group[g];
        if (!groups_agree(theirs, ours, lane->record->group[g].rows, is_open))
            return fail(-KVW_EDIVERGED,
                        "%s '%s': lane %u, step %" PRIu64
                        ": rank %u published another step than this rank %u: group "
                        "'%s': rows %" PRIu64 " and %" PRIu64 ", evicted %" PRIu64
                        " and %" PRIu64 ", generation %" PRIu64 " and %" PRIu64
                        ", epoch %" PRIu64 " and %" PRIu64,
                        call, cache->name, lane_number, next->step, rank, cache->rank,
                        cache->geometry.group[g].name, theirs->rows, ours->rows,
                        theirs->evicted, ours->evicted, theirs->generation,
                        ours->generation, theirs->epoch, ours->epoch);
    }
    if (memcmp(cache->peer->floor, next->floor,
               cache->geometry.n_layers * sizeof next->floor[0]) != 0)
        return fail(-KVW_EDIVERGED,
                    "%s '%s': lane %u, step %" PRIu64
                    ": rank %u reset other layers than this rank %u",
                    call, cache->name, lane_number, next->step, rank, cache->rank);
    return 0;
}

/* A group whose window a peer went back to, and which the claims would overwrite on
 * this rank: it could never follow. UINT32_MAX = none. */
static uint32_t group_out_of_reach(const struct kvw_cache *cache,
                                   const struct claims *claims,
                                   const struct kvw_group_record *own,
                                   const struct kvw_group_record *groups)
{
    for (uint32_t i = 0; i < claims->n_groups; i++) {
        const uint32_t g = claims->claim[i].group;
        const struct kvw_geometry_group *group = &cache->geometry.group[g];
        const uint64_t overwritten =
            rules_overwritten(cache->layout.group[g].ring_rows, claims->claim[i].end);
        if (groups[g].generation == own[g].generation &&
            groups[g].rows > group->sink_rows &&
            rules_window_first(group, groups[g].rows, groups[g].evicted) < overwritten)
            return g;
    }
    return UINT32_MAX;
}

/* One peer's records after this rank's step against the claims of a begin. */
static int agree_on_claims(struct kvw_cache *cache, uint32_t rank, uint32_t lane_number,
                           const char *call, const struct claims *claims)
{
    const struct record *own = lane_of(cache, lane_number)->record;
    struct board_head newest;

    int error = board_read_head(cache, rank, lane_number, &newest);
    for (uint64_t back = 0;
         error == 0 && back <= KVW_RECORDS - 2 && back < newest.version; back++) {
        struct board_head head;
        error = board_read_record(cache, rank, lane_number, newest.version - back,
                                  &head, cache->peer);
        if (error == -EAGAIN)
            return 0; /* older ones are gone: it is further ahead than it could be */
        if (error != 0 || head.era != own->era || head.step <= own->step)
            break;
        uint32_t g = group_out_of_reach(cache, claims, own->group, cache->peer->group);
        if (g != UINT32_MAX)
            return fail(-KVW_EDIVERGED,
                        "%s '%s': lane %u: rank %u went back to row %" PRIu64
                        " of group '%s' at step %" PRIu64
                        ": this chunk would overwrite rows of that window",
                        call, cache->name, lane_number, rank,
                        cache->peer->group[g].rows, cache->geometry.group[g].name,
                        head.step);
    }
    if (error != 0)
        return fail(error, "%s '%s': rank %u, lane %u: its board cannot be read", call,
                    cache->name, rank, lane_number);
    return 0;
}

int gate_agree(struct kvw_cache *cache, uint32_t lane_number, const char *call,
               const struct record *next, const struct claims *claims)
{
    const struct lane *lane = lane_of(cache, lane_number);

    FOR_EACH_RANK(rank, board_peers(cache, lane->ranks))
    {
        int error = agree_on_next(cache, (uint32_t)rank, lane_number, call, next,
                                  claims != NULL);
        if (error == 0 && claims != NULL)
            error = agree_on_claims(cache, (uint32_t)rank, lane_number, call, claims);
        if (error != 0)
            return error;
    }
    return 0;
}
