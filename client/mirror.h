/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contiguous groups: the ring of each layer, plane, lane and head that this attachment
 * holds is mapped twice in a row, so that a window that wraps is one run of addresses.
 * Only read through; rows are written through the plain mapping, and the release store
 * of kvw_written() and kvw_update() keeps the compiler from moving a store past it.
 */
#ifndef KVW_CLIENT_MIRROR_H
#define KVW_CLIENT_MIRROR_H

#include <stdint.h>

#include "client/cache.h"

/**
 * Map what the attachment holds of every contiguous group.
 *
 * @return 0; -ENOMEM when vm.max_map_count has no room, in words with need and have.
 */
KVW_NODISCARD int mirror_map(struct kvw_cache *cache, int data_fd);

/** Undo mirror_map(), whole or in part. */
void mirror_unmap(struct kvw_cache *cache);

/**
 * The planes of a layer and lane from head `heads.begin`, mirrored.
 *
 * @return 1, or 0 when these heads are not all mapped so (no contiguous group, or a cut
 * over other ranks' heads).
 */
int mirror_planes(const struct kvw_cache *cache, uint32_t layer, uint32_t lane,
                  struct kvw_interval heads,
                  struct kvw_plane planes[KVW_SPEC_PLANES_MAX]);

#endif
