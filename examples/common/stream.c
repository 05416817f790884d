/* SPDX-License-Identifier: Apache-2.0 */
/* A write that fails is a refusal like any other. */
#include "examples/common/stream.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

double stream_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int stream_check(struct fail *fail)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    return fail_set(fail, FAIL_IO, "stdout: %s", strerror(errno));
}

int stream_json(json_t *json, struct fail *fail)
{
    int result = json == NULL
                     ? -1
                     : json_dumpf(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17));

    json_decref(json);
    if (json == NULL)
        return fail_memory(fail, "a line of JSON");
    if (result != 0 || fputc('\n', stdout) == EOF)
        return fail_set(fail, FAIL_IO, "stdout: %s", strerror(errno));
    return stream_check(fail);
}
