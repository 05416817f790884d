/* SPDX-License-Identifier: Apache-2.0 */
/* What kvwheeld alone can say of the host, it is run for. */
#ifndef KVW_CLIENT_CLI_PROGRAM_H
#define KVW_CLIENT_CLI_PROGRAM_H

#include "proto/base/check.h"

#define PROGRAM_OUTPUT_BYTES 65536u

/**
 * Run `program option` and read what it prints, on both outputs, to its end.
 *
 * @return 0, whatever its exit code; -ETIMEDOUT (it was killed), -ECHILD (it crashed), or
 *         another -errno.
 */
KVW_NODISCARD int program_ask(const char *program, const char *option,
                              char text[PROGRAM_OUTPUT_BYTES]);

#endif
