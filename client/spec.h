/* SPDX-License-Identifier: Apache-2.0 */
/* Between the public spec and the geometry that travels and is shared. */
#ifndef KVW_CLIENT_SPEC_H
#define KVW_CLIENT_SPEC_H

#include "client/include/kvwheel/kvwheel.h"
#include "proto/geometry.h"
#include "proto/placement.h"

/**
 * The geometry of a spec, checked.
 * @return 0; -EINVAL, -E2BIG with kvw_last_error() set.
 */
KVW_NODISCARD int spec_to_geometry(const struct kvw_spec *spec,
                                   struct kvw_geometry *geometry);

/** The spec of a checked geometry; lifetime, mode and placement are the defaults. */
void spec_from_geometry(const struct kvw_geometry *geometry, const char *name,
                        struct kvw_spec *spec);

/** What a checked spec asks of NUMA nodes. */
void spec_wish(const struct kvw_spec *spec, struct kvw_placement_wish *wish);

#endif
