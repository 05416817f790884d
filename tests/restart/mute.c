/* SPDX-License-Identifier: Apache-2.0 */
/* A new kvwheeld whose daemon starts and never serves. */
#include <unistd.h>

#include "daemon/daemon.h"

int mute_run(const struct options *options) __asm__("__wrap_daemon_run");

int mute_run(const struct options *options)
{
    (void)options;
    for (;;)
        pause();
}
