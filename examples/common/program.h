/* SPDX-License-Identifier: Apache-2.0 */
/* What main() of a program over ranks is: parse, run, and one message. */
#ifndef COMMON_PROGRAM_H
#define COMMON_PROGRAM_H

#include "examples/common/fail.h"
#include "examples/common/ranks.h"

struct program {
    const char *name;
    const char *help; /* the text of --help */
    void *options;
    /* @return 0, 1 if help is asked for, or -EINVAL */
    int (*parse)(int argc, char **argv, void *options, struct fail *fail);
    /* All ranks call it; it ends in agreement. @return 0 or -EINVAL */
    int (*run)(const void *options, struct ranks *ranks, struct fail *fail);
};

/** Run it. Every rank ends with the same exit code, and rank 0 says why. @return the code */
int program_main(int argc, char **argv, const struct program *program);

#endif
