/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache whose rows say what they are: each value follows from row, layer, plane and
 * head, so that anybody can check any view, whoever wrote it and whoever died meanwhile.
 * One group of window kind `chunk` (W 12, S 2, chunks of 1 to 4 rows), heads split over
 * the ranks.
 */
#ifndef KVW_TESTS_DEATH_ROWS_H
#define KVW_TESTS_DEATH_ROWS_H

#include "client/include/kvwheel/kvwheel.h"

enum { ROWS_WINDOW = 12 };

void rows_spec(struct kvw_spec *spec, const char *name, uint32_t n_ranks,
               enum kvw_lifetime lifetime);

/** Begin the next chunk and write it; its size follows from its first row, so that all
 * ranks publish the same steps. @return 0, or as the call that failed. */
int rows_write(struct kvw_cache *cache);

/** The same, and commit. */
int rows_roll(struct kvw_cache *cache);

/** View every layer, check every value, release. @return NULL, or what is wrong. That a
 * view was overrun is not. */
const char *rows_check(struct kvw_cache *cache);

#endif
