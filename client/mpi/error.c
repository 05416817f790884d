/* SPDX-License-Identifier: Apache-2.0 */
/* The last failure of each thread in words, like that of libkvwheel. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/mpi/inside.h"

static _Thread_local char last_text[TEXT_BYTES];

int told(int error, const char *format, ...)
{
    char text[TEXT_BYTES]; /* the arguments may be the last text itself */
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(last_text, text, sizeof text);
    return error;
}

int told_by_kvw(int error, const char *what)
{
    const char *words = kvw_last_error();

    return told(error, "%s: %s", what, words[0] != 0 ? words : kvw_strerror(error));
}

struct who who_is(const struct kvw_mpi *mpi, uint32_t place)
{
    const uint32_t rank = (uint32_t)mpi->rank_of[place];
    struct who who;

    snprintf(who.text, sizeof who.text, "rank %u on %s", rank, mpi->peer[rank].host);
    return who;
}

const char *kvw_mpi_last_error(void)
{
    return last_text;
}
