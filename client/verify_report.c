/* SPDX-License-Identifier: Apache-2.0 */
/* Findings, counted and told. */
#include <stdarg.h>
#include <stdio.h>

#include "client/verify.h"

void verify_report(struct verify *verify, const struct kvw_damage *damage)
{
    verify->counts.n_damages++;
    if (verify->tell != NULL)
        verify->tell(verify->context, damage);
}

void verify_tell(struct verify *verify, uint32_t kind, uint32_t rank, uint32_t lane,
                 const char *format, ...)
{
    char text[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const struct kvw_damage damage = {
        .kind = kind,
        .rank = rank,
        .lane = lane,
        .layer = UINT32_MAX,
        .plane = UINT32_MAX,
        .head = UINT32_MAX,
        .row = UINT64_MAX,
        .n_rows = UINT64_MAX,
        .text = text,
    };
    verify_report(verify, &damage);
}
