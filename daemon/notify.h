/* SPDX-License-Identifier: Apache-2.0 */
/* What sd_notify(3) does: words, and descriptors, for the service manager. */
#ifndef KVW_DAEMON_NOTIFY_H
#define KVW_DAEMON_NOTIFY_H

#include "proto/base/check.h"

/** Connect to $NOTIFY_SOCKET: a path or an abstract name. @return 0 or -errno. */
KVW_NODISCARD int notify_connect(int *socket);

/** Send a message, with a descriptor unless that is -1. @return 0 or -errno. */
KVW_NODISCARD int notify_send(int socket, const char *text, int fd);

/** Wait until everything sent so far has been heard. @return 0; -ETIMEDOUT; -errno. */
KVW_NODISCARD int notify_barrier(int socket);

#endif
