/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a cache share it, in words and as JSON. */
#ifndef KVW_CLIENT_CLI_PARTS_H
#define KVW_CLIENT_CLI_PARTS_H

#include <jansson.h>

#include "proto/geometry.h"

/** The partition: a line that starts with "ranks". */
void parts_print(const struct kvw_geometry *geometry);

/** What each rank holds of each group: a table. */
void parts_print_ranks(const struct kvw_geometry *geometry);

/** {"heads": 2, ...}: into how many parts what is split. */
json_t *parts_json(const struct kvw_geometry *geometry);

/** A list with what each rank holds. */
json_t *parts_ranks_json(const struct kvw_geometry *geometry);

#endif
