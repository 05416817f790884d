/* SPDX-License-Identifier: Apache-2.0 */
/* Starts and ends MPI. */
#include "examples/common/program.h"

#include <stdio.h>

int program_main(int argc, char **argv, const struct program *program)
{
    struct fail fail = {0};
    struct ranks ranks;

    ranks_start(&argc, &argv, &ranks);
    int result = program->parse(argc, argv, program->options, &fail);
    if (result > 0 && ranks_is_first(&ranks))
        fputs(program->help, stdout);
    else if (result == 0)
        (void)program->run(program->options, &ranks, &fail);
    if (has_failed(&fail) && ranks_is_first(&ranks))
        fprintf(stderr, "%s: %s\n", program->name, fail.text);
    ranks_end(&ranks);
    return fail.code;
}
