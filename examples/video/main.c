/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel-video: a video diffusion transformer over MPI ranks whose whole state is a kvwheel
 * cache. See --help. */
#include "examples/common/program.h"
#include "examples/video/options.h"
#include "examples/video/run.h"

int main(int argc, char **argv)
{
    struct options options;
    const struct program program = {"kvwheel-video", options_help, &options,
                                    options_parse, run_video};

    return program_main(argc, argv, &program);
}
