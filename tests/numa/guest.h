/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs of the emulated machine share. They run as root, alone, on a machine
 * with several NUMA nodes; a claim that does not hold is printed and counted.
 */
#ifndef KVW_TESTS_NUMA_GUEST_H
#define KVW_TESTS_NUMA_GUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "client/client.h"

#define GUEST_NODES_MAX 8u
#define ANYWHERE UINT32_MAX

extern uint32_t guest_failures;

/** Print a claim and whether it holds. @return whether it does. */
bool claim(bool holds, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Run a command of the shell. @return its exit code. */
int shell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** What a command prints, in a static buffer; "" if it prints nothing. */
const char *output_of(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Connect to the daemon at a socket; the program ends if that fails. */
struct kvw_client *guest_connect(const char *socket);

/** Run on one node's CPUs (which are its own number here). */
void guest_run_on(uint32_t node);

/**
 * Ask the kernel, page by page, by a mapping of this process, where the part of each rank
 * lies.
 *
 * @param node  For each rank, the node on which every page of it must lie.
 * @return pages that lie elsewhere, or of which the kernel does not say; UINT64_MAX: the
 *         cache cannot be attached.
 */
uint64_t pages_elsewhere(struct kvw_client *client, const char *name,
                         const uint32_t *node);

/** Pages of all ranks on each node. @return pages in all. */
uint64_t pages_by_node(struct kvw_client *client, const char *name,
                       uint64_t n_on[GUEST_NODES_MAX]);

/** Whether the pages lie so within `ms`; in the end once more, by the return of
 *  pages_elsewhere(). */
uint64_t pages_arrive(struct kvw_client *client, const char *name, const uint32_t *node,
                      uint32_t ms);

/** Move a part to and fro under a writer and two readers that compare every row. */
void guest_load(const char *socket, uint32_t n_nodes, uint32_t n_moves);

#endif
