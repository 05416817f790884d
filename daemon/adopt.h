/* SPDX-License-Identifier: Apache-2.0 */
/* A new daemon takes over what the keeper has: believed only after it is checked. */
#ifndef KVW_DAEMON_ADOPT_H
#define KVW_DAEMON_ADOPT_H

#include "daemon/daemon.h"

/** Load everything from the keeper. @return 0 or -errno. */
KVW_NODISCARD int adopt_all(struct daemon *daemon);

#endif
