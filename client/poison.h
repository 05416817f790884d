/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Poison mode ($KVWHEEL_POISON at attach): begin fills the rows that it opens with a
 * pattern that no engine mistakes for values, so that a row which is read and was not
 * written is seen at once. The slots are those of rows that have left the window.
 */
#ifndef KVW_CLIENT_POISON_H
#define KVW_CLIENT_POISON_H

#include "client/cache.h"

/** Fill what this rank holds of the open chunks of a lane. */
void poison_open_rows(struct kvw_cache *cache, uint32_t lane);

#endif
