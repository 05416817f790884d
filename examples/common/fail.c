/* SPDX-License-Identifier: Apache-2.0 */
/* The first refusal wins. No state of its own. */
#include "examples/common/fail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

int fail_set(struct fail *fail, int code, const char *format, ...)
{
    va_list arguments;

    if (has_failed(fail))
        return -EINVAL;
    va_start(arguments, format);
    vsnprintf(fail->text, sizeof(fail->text), format, arguments);
    va_end(arguments);
    fail->code = code;
    return -EINVAL;
}

int fail_memory(struct fail *fail, const char *what)
{
    return fail_set(fail, FAIL_MEMORY, "not enough memory for %s", what);
}
