/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis and memcached, where they are installed: started by the first rank of each node
 * with a private Unix socket in a temporary folder, ended with the run. A client of a few
 * commands, without a library: their own commands for one value at a time.
 */
#ifndef KVW_BENCH_NODES_SERVER_H
#define KVW_BENCH_NODES_SERVER_H

#include "bench/nodes.h"

enum server_kind { SERVER_REDIS, SERVER_MEMCACHED, SERVER_KINDS };

struct server; /* this rank's connection to one of them */

/** Start what is installed on every node, and connect: collective. */
void servers_start(struct nodes *nodes);
void servers_stop(struct nodes *nodes);

/** The connection, or NULL where it is not there on every node. */
struct server *server_of(const struct nodes *nodes, enum server_kind kind);

/** Store a value under a key of this rank, and wait for the answer. @return 0, -EIO,
 *  -EPROTO. */
BENCH_NODISCARD int server_set(struct server *server, uint32_t key, const char *value,
                               size_t n_bytes);

/** Fetch a value of exactly `n_bytes`. @return 0, -EIO, -EPROTO (another size). */
BENCH_NODISCARD int server_get(struct server *server, uint32_t key, char *value,
                               size_t n_bytes);

#endif
