/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making connections, the part that client_open() and client_call() share. A connection
 * counts only when WELCOME came: the listener of a daemon that was just killed may
 * accept for some milliseconds more (io_uring's teardown is asynchronous).
 */
#ifndef KVW_CLIENT_CONNECT_H
#define KVW_CLIENT_CONNECT_H

#include "client/client.h"

#define CONNECT_HELLO_MS \
    7000u /* for WELCOME: a keeper may pause 5 s before it restarts */
#define CONNECT_CALL_MS 60000u /* for an answer to a call: to create a TiB takes long */
#define CONNECT_HANG_UP_MS \
    2000u                      /* of hang-ups in a row, and for a daemon to come back */
#define CONNECT_STALE_MS 100u  /* a socket nobody listens on: its keeper is at work? */
#define CONNECT_START_MS 5000u /* for a daemon that we start to answer */
#define CONNECT_ORPHAN_MS 1000u  /* ... and after the started process has ended */
#define CONNECT_PAUSE_MS_MAX 20u /* between attempts; doubles from 1 */

/**
 * Connect client->socket and exchange HELLO and WELCOME; hang-ups are tried again.
 *
 * @param absent_ms  How long to try while nobody is there.
 * @return 0; a negative error of kvw_connect(), in words.
 */
KVW_NODISCARD int connect_dial(struct kvw_client *client, uint32_t absent_ms);

#endif
