/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last failure of each thread, in words and numbers, and texts for error numbers.
 * Per thread, because clients of different threads are independent; nothing else is
 * shared.
 */
#include "client/client.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TEXT_OF(major, minor) #major "." #minor
#define VERSION_TEXT(major, minor) TEXT_OF(major, minor)

static _Thread_local struct {
    char text[640]; /* a refusal's words, and what the library adds to them */
    struct client_failure failure;
} last_error;

int fail(int error, const char *format, ...)
{
    char text[sizeof last_error.text]; /* the arguments may be the last text itself */
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(last_error.text, text, sizeof text);
    last_error.failure = (struct client_failure){0};
    return error;
}

int fail_numbers(int error, uint64_t need, uint64_t have, const char *text)
{
    int result = fail(error, "%s", text);

    last_error.failure = (struct client_failure){.need = need, .have = have};
    return result;
}

int fail_refused(int error, const struct kvw_message_refused *refused)
{
    int result = fail_numbers(error, refused->need, refused->have, refused->text);

    last_error.failure.is_refused = true;
    return result;
}

struct client_failure client_failure(void)
{
    return last_error.failure;
}

const char *kvw_last_error(void)
{
    return last_error.text;
}

const char *kvw_strerror(int error)
{
    if (error >= 0)
        return "success";
    switch (-(int64_t)error) {
    case KVW_EOVERRUN:
        return "rows were overwritten while they were held";
    case KVW_EDIVERGED:
        return "ranks published different steps of one number";
    case KVW_EINCOMPLETE:
        return "a layer has rows that were not written";
    case KVW_EGONE:
        return "the cache was removed";
    case KVW_ELAYOUT:
        return "another protocol or layout version";
    default:
        break;
    }
    /* INT_MIN has no positive twin; like other strangers it is no errno. */
    const char *text = error < -KVW_ELAYOUT ? NULL : strerrordesc_np(-error);
    return text != NULL ? text : "unknown error";
}

const char *kvw_version(void)
{
    return VERSION_TEXT(KVW_VERSION_MAJOR, KVW_VERSION_MINOR);
}
