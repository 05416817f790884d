/* SPDX-License-Identifier: Apache-2.0 */
/* stdout for programs: one JSON object a line; and the clock of progress. */
#ifndef COMMON_STREAM_H
#define COMMON_STREAM_H

#include <jansson.h>

#include "examples/common/fail.h"

/** Seconds on a clock that only goes forward. */
double stream_now(void);

/** Flush stdout. @return 0 or -EINVAL. */
int stream_check(struct fail *fail);

/** Print an object and a newline; takes the object, which may be NULL (memory ran out).
 *  @return 0 or -EINVAL. */
int stream_json(json_t *json, struct fail *fail);

#endif
