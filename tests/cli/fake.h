/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that does what a test wants: a thread with a listening socket and a script.
 * The script runs in that thread; its expectations are Criterion assertions.
 */
#ifndef KVW_TESTS_CLI_FAKE_H
#define KVW_TESTS_CLI_FAKE_H

#include <pthread.h>
#include <stdint.h>

#include "proto/messages.h"

struct fake;
typedef void fake_script_fn(struct fake *fake);

struct fake {
    char folder[64];
    char path[KVW_SOCKET_PATH_MAX + 1];
    int listener;
    int peer; /* -1: nobody is connected */
    uint8_t packet[KVW_MESSAGE_MAX];
    fake_script_fn *script;
    pthread_t thread;
    uint32_t n_accepted;
};

/** A folder and a path in it; nobody listens. */
void fake_init(struct fake *fake);

/** Listen, and run the script in a thread of its own. */
void fake_run(struct fake *fake, fake_script_fn *script);

/** Wait for the end of the script and remove the folder. */
void fake_fini(struct fake *fake);

/* For scripts. */

/** Wait for a client. */
void fake_accept(struct fake *fake);

/** Accept, expect HELLO, and say WELCOME with this epoch. */
void fake_welcome(struct fake *fake, uint64_t epoch);

/** Wait for a request, which must be of this type. */
void fake_expect(struct fake *fake, uint32_t type, struct kvw_message *request);

/** Send an answer with descriptors (/dev/null, n_fds times). */
void fake_answer(struct fake *fake, struct kvw_message *answer, uint32_t n_fds);

void fake_refuse(struct fake *fake, uint32_t request, uint32_t error, const char *text);

/** Hang up. Linger: what was sent stays unread in the queue if it was not expected. */
void fake_hang_up(struct fake *fake);

/** Descriptors that this process has open. */
uint32_t fake_count_fds(void);

#endif
