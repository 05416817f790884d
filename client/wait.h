/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for what another rank publishes: spin a little, then sleep on the board's
 * event word (PROTOCOL.md, "Waiting"). A wait ends when its condition holds, when the
 * rank's owner dies, or at its deadline; never later than one slice after any of these.
 *
 * Orders, by label:
 *
 * W1, look_and_sleep(): full fence after the flag, before the condition is looked at again.
 * Pairs with P3 (board.c): event, full fence, second look at the flag.
 *
 * W2, look_and_sleep(): acquire load of the event, before the condition and the seat are
 * looked at. Pairs with P5 (board.c) and D1 (daemon/cache.c), which raise it after a change.
 *
 * W3, owner_of(): acquire load of a seat's state, before its incarnation. Pairs with D2
 * (daemon/attachment.c), which stores it last.
 *
 * W4, look_and_sleep(): a full fence in every process that has called wait_enlist(), where
 * the waiter asks for words that are published without one. Pairs with P4.
 */
#ifndef KVW_CLIENT_WAIT_H
#define KVW_CLIENT_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/cache.h"

/* 1: holds; 0: not yet; negative: an error that ends the wait. */
typedef int wait_condition_fn(struct kvw_cache *cache, uint32_t rank, uint32_t lane,
                              const void *context);

/* Whom and what a wait is for. */
struct wait_for {
    uint32_t rank;
    uint32_t lane;
    wait_condition_fn *condition;
    const void *context;
    const char *what;     /* for the text: "step 12" */
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; UINT64_MAX = none */
    bool is_unfenced;     /* for a pass or read word: see W4 */
    uint32_t group;       /* whose row the text tells */
};

/** Let waiters fence on behalf of this process, whatever it does: every process that owns a
 *  rank, before it writes. Where the kernel refuses, who falls asleep just as a pass is
 *  written may sleep for a slice. */
void wait_enlist(void);

/** Now, CLOCK_MONOTONIC. */
uint64_t wait_now_ns(void);

/** Now + timeout, without overflow. */
uint64_t wait_deadline_ns(uint64_t timeout_ns);

/**
 * Wait. @return 0; -ETIMEDOUT; -EOWNERDEAD; the condition's error. kvw_last_error()
 * says who, since when, at which step and row.
 */
KVW_NODISCARD int wait_until(struct kvw_cache *cache, const struct wait_for *wait);

#endif
