/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader that has views of rank 0's open chunk when it dies: whatever happens to the
 * rank, a release that says that they are good means that no byte of them has changed.
 */
#ifndef KVW_TESTS_DEATH_STAGED_H
#define KVW_TESTS_DEATH_STAGED_H

#include <stdbool.h>
#include <stdint.h>

#include "client/cache.h"
#include "tests/death/model.h"

struct onlooker {
    bool has_view[LAYERS]; /* no: rows were being written */
    struct kvw_view view[LAYERS];
    uint64_t digest[LAYERS]; /* of all bytes that it shows */
};

/** Take views of all layers, unpinned. */
void onlooker_look(struct kvw_cache *reader, struct onlooker *onlooker);

/** Nothing of a chunk is shown as open, or counts as written, on top of the record that
 *  published it. */
void onlooker_expect(struct kvw_cache *reader, const struct onlooker *onlooker,
                     const struct m_record *published);

/** Release copies of them, as often as one likes. */
void onlooker_ask(struct kvw_cache *reader, const struct onlooker *onlooker);

#endif
