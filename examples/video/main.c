/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvwheel-video: a video diffusion transformer over MPI ranks whose whole state is a kvwheel
 * cache. See --help. Every rank ends with the same exit code; rank 0 says why.
 */
#include <stdio.h>

#include "examples/common/ranks.h"
#include "examples/video/options.h"
#include "examples/video/run.h"

int main(int argc, char **argv)
{
    struct fail fail = {0};
    struct options options;
    struct ranks ranks;

    ranks_start(&argc, &argv, &ranks);
    (void)options_parse(argc, argv, &options, &fail);
    if (!has_failed(&fail) && options.is_help) {
        if (ranks_is_first(&ranks))
            fputs(options_help, stdout);
    } else if (!has_failed(&fail)) {
        (void)run_video(&options, &ranks, &fail);
    }
    if (has_failed(&fail) && ranks_is_first(&ranks))
        fprintf(stderr, "kvwheel-video: %s\n", fail.text);
    ranks_end(&ranks);
    return fail.code;
}
