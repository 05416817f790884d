/* SPDX-License-Identifier: Apache-2.0 */
/* What the oracle's files about calls (oracle_expect.c, oracle_begin.c, oracle_step.c,
 * oracle_change.c) use of each other; nobody else does. */
#ifndef KVW_TESTS_MODEL_ORACLE_RULES_H
#define KVW_TESTS_MODEL_ORACLE_RULES_H

#include "tests/model/oracle.h"

/* ---- oracle_expect.c ---- */

/* All that stand at `step` or before are waited for. */
void expect_laggards(const struct oracle *oracle, uint32_t lane, uint64_t step,
                     struct expect *expect);
/* Recoveries, and the room for one more record. */
void expect_gate(const struct oracle *oracle, uint32_t rank, uint32_t lane,
                 struct expect *expect);
/* True if the numbers of a vector of items are in range, and no group comes twice. */
bool expect_vector(const struct oracle *oracle, const struct kvw_item *items,
                   uint32_t n_items);

/* ---- oracle_change.c ---- */

/* Equal but for where kept rows lie. */
bool record_is_same(const struct oracle *oracle, const struct m_record *a,
                    const struct m_record *b);
/* The record after a commit of `publish` rows of each group; NULL: all. */
void record_commit(const struct m_record *from, const struct kvw_item *items,
                   uint32_t n_items, const uint64_t *publish, struct m_record *to);
/* The record after a call that is valid and no commit. */
void record_step(const struct oracle *oracle, const struct m_record *record,
                 const struct m_call *call, const uint64_t *extent,
                 struct m_record *next);

#endif
