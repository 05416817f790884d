/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose layout the kept caches have. One frozen memfd for all of them, in the store, as
 * entry `layout`: no worker ever sees it, so a worker cannot make the next daemon think
 * that it is of another version. Beside it, words as a memfd.
 */
#ifndef KVW_DAEMON_STAMP_H
#define KVW_DAEMON_STAMP_H

#include <stddef.h>

#include "proto/base/check.h"
#include "proto/geometry.h"

/** A stamp of this program. @return a frozen memfd or -errno. */
KVW_NODISCARD int stamp_make(void);

/**
 * Compare a stamp with this program: layout major, layout hash, the daemon's records.
 *
 * @return 0; -EPROTO with both sides in words; another -errno: it cannot be read now.
 */
KVW_NODISCARD int stamp_check(int fd, struct kvw_refusal *refusal);

/** Words as a frozen memfd. @return it or -errno. */
KVW_NODISCARD int stamp_words(const char *text);

/** The words of such a memfd, cut to fit; "" if it is none. */
void stamp_read_words(int fd, char *text, size_t text_bytes);

#endif
