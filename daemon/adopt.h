/* SPDX-License-Identifier: Apache-2.0 */
/* A new daemon takes over what the store has: believed only after it is checked. */
#ifndef KVW_DAEMON_ADOPT_H
#define KVW_DAEMON_ADOPT_H

#include "daemon/daemon.h"

/** Load everything from the store. @return 0; -EPROTO: of another layout, the program
 * before this one goes on; another -errno. */
KVW_NODISCARD int adopt_all(struct daemon *daemon);

#endif
