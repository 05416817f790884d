/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's part of a scene; apart from scene.h, for client and daemon each have a
 * function cache_free(). */
#ifndef KVW_TESTS_RACE_SCENE_DAEMON_H
#define KVW_TESTS_RACE_SCENE_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/layout.h"

/** A cache of these segments; nobody attached. */
void scene_daemon_init(void *control, void *pins, void *data,
                       const struct kvw_geometry *geometry,
                       const struct kvw_layout *layout);

/** A process attaches as a rank, or as a reader with all ones. */
void scene_daemon_enter(uint32_t rank, uint32_t slot);

/** It detaches. */
void scene_daemon_free(uint32_t rank, uint32_t slot);

/** Its pidfd has fired. */
void scene_daemon_bury(uint32_t rank, uint32_t slot);

/**
 * A pidfd's poll completes while a task may well live: hang-ups, errors and signals do that.
 *
 * @return true if its attachment was ended by that.
 */
bool scene_daemon_pidfd_event(uint32_t rank, uint32_t slot, int task);

/** The cache is removed. */
void scene_daemon_remove(void);

#endif
