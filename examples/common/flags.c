/* SPDX-License-Identifier: Apache-2.0 */
/* Strict: nothing before, behind or between. */
#include "examples/common/flags.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int flag_next(int argc, char **argv, const struct option *flags, struct fail *fail)
{
    int flag;

    opterr = 0; /* one message, by one rank */
    flag = getopt_long(argc, argv, "", flags, NULL);
    if (flag == '?')
        return fail_set(fail, FAIL_USAGE,
                        "%.60s: unknown, ambiguous or without its value; --help lists "
                        "the flags",
                        argv[optind - 1]);
    if (flag == -1 && optind < argc)
        return fail_set(fail, FAIL_USAGE, "%.60s: unexpected; --help lists the flags",
                        argv[optind]);
    return flag == -1 ? 0 : flag;
}

const char *flag_name(const struct flag_word *words, uint32_t value)
{
    while (words->name != NULL && words->value != value)
        words++;
    return words->name != NULL ? words->name : "unknown";
}

int flag_word(const char *name, const char *text, const struct flag_word *words,
              uint32_t *value, struct fail *fail)
{
    for (const struct flag_word *word = words; word->name != NULL; word++) {
        if (strcmp(word->name, text) == 0) {
            *value = word->value;
            return 0;
        }
    }
    return fail_set(fail, FAIL_USAGE, "%s: need %s, %s%s%s, have %.40s", name,
                    words[0].name, words[1].name, words[2].name != NULL ? " or " : "",
                    words[2].name != NULL ? words[2].name : "", text);
}

int flag_number(const char *name, const char *text, uint64_t number_max,
                uint64_t *number, struct fail *fail)
{
    char *end;

    errno = 0;
    unsigned long long parsed = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] < '0' || text[0] > '9' ||
        parsed > number_max)
        return fail_set(fail, FAIL_USAGE,
                        "%s: need a whole number up to %llu, have %.40s", name,
                        (unsigned long long)number_max, text);
    *number = parsed;
    return 0;
}

int flag_count(const char *name, const char *text, uint64_t count_max, uint32_t *count,
               struct fail *fail)
{
    uint64_t number = 0;

    if (flag_number(name, text, count_max, &number, fail) != 0)
        return -EINVAL;
    if (number == 0)
        return fail_set(fail, FAIL_USAGE, "%s: need 1 at least, have 0", name);
    *count = (uint32_t)number;
    return 0;
}
