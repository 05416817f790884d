/* SPDX-License-Identifier: Apache-2.0 */
/* See generate.h: what a program printed is input like any other. */
#include "bench/generate.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

static int take(json_t *line, struct generate_result *result)
{
    const json_t *seconds = json_object_get(line, "seconds");
    const size_t n_tokens = json_array_size(json_object_get(line, "tokens"));
    const char *kernels = json_string_value(json_object_get(line, "kernels"));

    if (n_tokens == 0 || !json_is_number(seconds) || kernels == NULL ||
        strlen(kernels) >= sizeof result->kernels)
        return -EPROTO;
    const double took = json_number_value(seconds);
    if (!isfinite(took) || took <= 0)
        return -EPROTO;
    *result = (struct generate_result){.n_tokens = n_tokens, .seconds = took};
    memcpy(result->kernels, kernels, strlen(kernels));
    return 0;
}

int generate_parse(const char *text, size_t n_bytes, struct generate_result *result)
{
    if (n_bytes == 0 || text[n_bytes - 1] != '\n')
        return -EPROTO; /* cut off */
    n_bytes--;
    const char *before = memrchr(text, '\n', n_bytes);
    const char *begin = before == NULL ? text : before + 1;

    json_t *line = json_loadb(begin, n_bytes - (size_t)(begin - text), 0, NULL);
    const int error = line == NULL ? -EPROTO : take(line, result);
    json_decref(line);
    return error;
}
