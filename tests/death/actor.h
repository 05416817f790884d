/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child that does as it is told: an order is a byte in a pipe, its answer one in
 * another. It dies with its parent.
 */
#ifndef KVW_TESTS_DEATH_ACTOR_H
#define KVW_TESTS_DEATH_ACTOR_H

#include <stdbool.h>
#include <sys/types.h>

struct actor {
    pid_t pid;
    int orders;
    int answers;
};

/** Obey one order. @return the answer. */
typedef char actor_fn(void *context, char order);

/** Fork one that obeys until the pipe ends. @return false if there is none. */
bool actor_start(struct actor *actor, actor_fn *obey, void *context);

/** Give an order and wait for its answer, at most 20 s. @return it; -1: none came. */
int actor_ask(struct actor *actor, char order);

/** Give an order. @return false if nobody takes it. */
bool actor_order(struct actor *actor, char order);

/** Wait for the answer, at most 20 s. @return it; -1: none came. */
int actor_answer(struct actor *actor);

/** Let it end. @return true if it did so well. */
bool actor_end(struct actor *actor);

/** SIGKILL and reap. */
void actor_kill(struct actor *actor);

#endif
