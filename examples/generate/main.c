/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel-generate: a Llama decoder over MPI ranks whose whole state is a kvwheel cache. See --help. */
#include "examples/common/program.h"
#include "examples/generate/options.h"
#include "examples/generate/run.h"

int main(int argc, char **argv)
{
    struct options options;
    const struct program program = {"kvwheel-generate", options_help, &options,
                                    options_parse, run_generate};

    return program_main(argc, argv, &program);
}
