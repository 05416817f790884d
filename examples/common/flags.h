/* SPDX-License-Identifier: Apache-2.0 */
/* Values of command line flags: text to what it means, or a refusal that names the flag. */
#ifndef COMMON_FLAGS_H
#define COMMON_FLAGS_H

#include <getopt.h>
#include <stdint.h>

#include "examples/common/fail.h"

/** The next flag of a command line of long options only; its value is in optarg.
 *  @return its number > 0, 0 at the end, or -EINVAL for what is not a flag. */
int flag_next(int argc, char **argv, const struct option *flags, struct fail *fail);

/* A value with a name. Lists end with a NULL name. */
struct flag_word {
    const char *name;
    uint32_t value;
};

/** A whole number from text, at most number_max. @return 0 or -EINVAL. */
int flag_number(const char *name, const char *text, uint64_t number_max,
                uint64_t *number, struct fail *fail);

/** The same, 1 at least. @return 0 or -EINVAL. */
int flag_count(const char *name, const char *text, uint64_t count_max, uint32_t *count,
               struct fail *fail);

/** The value of the word that text is; lists have two or three. @return 0 or -EINVAL. */
int flag_word(const char *name, const char *text, const struct flag_word *words,
              uint32_t *value, struct fail *fail);

/** The name of a value, "unknown" if it has none. */
const char *flag_name(const struct flag_word *words, uint32_t value);

#endif
