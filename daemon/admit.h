/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a cache may be created: its spec, the quotas, the memory. */
#ifndef KVW_DAEMON_ADMIT_H
#define KVW_DAEMON_ADMIT_H

#include "daemon/daemon.h"

/**
 * Check a create request from anybody.
 *
 * @param meta  [out] what the request says, geometry included; not yet id, uuid, owner.
 * @return 0, -EINVAL, -E2BIG, or as admit_mappings(), with `refusal` in words.
 */
KVW_NODISCARD int admit_request(const struct kvw_message_create *request,
                                struct cache_meta *meta, struct kvw_layout *layout,
                                struct kvw_refusal *refusal);

/**
 * Check that every rank can attach: a contiguous group takes three mappings for each
 * layer, plane, lane and head that an attachment holds, and the program needs some,
 * too. Readers, who hold all, may still be refused; they are told when they attach.
 *
 * @param geometry      Checked.
 * @param mappings_max  Of one process: vm.max_map_count.
 * @return 0, or -ENOMEM: the largest rank's part needs more.
 */
KVW_NODISCARD int admit_mappings(const struct kvw_geometry *geometry,
                                 uint64_t mappings_max, struct kvw_refusal *refusal);

/**
 * Check quotas and memory. What is being allocated counts. `pool_bytes` of the bytes come
 * from the pool of huge pages, which was looked at already.
 *
 * @return 0, -EDQUOT or -ENOMEM with need and have.
 */
KVW_NODISCARD int admit_bytes(const struct daemon *daemon, uint32_t uid,
                              uint64_t total_bytes, uint64_t pool_bytes,
                              struct kvw_refusal *refusal);

/** Check how many caches a user has. @return 0; -EDQUOT with need and have. */
KVW_NODISCARD int admit_count(const struct daemon *daemon, uint32_t uid,
                              struct kvw_refusal *refusal);

/**
 * Compare a request with the cache that has its name.
 *
 * @return 0 when they are the same, -EEXIST with what differs.
 */
KVW_NODISCARD int admit_same(const struct cache_meta *asked,
                             const struct cache_meta *there,
                             struct kvw_refusal *refusal);

#endif
