/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what kvw_cpu_flags() says, on a line. Built from kernels/cpu.c with
 * KVW_TEST_HOOKS, so that ctest can show that KVW_CPU_MASK takes features away.
 * Status 0, or 1 if a feature that was named in the mask is still there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvwheel/kernels.h>

int main(void)
{
    const char *mask = getenv("KVW_CPU_MASK");
    int n_left = 0;

    for (uint32_t bit = 0; bit < 31; bit++) {
        const char *name = kvw_cpu_flag_name(1u << bit);
        if (name == NULL || (kvw_cpu_flags() >> bit & 1) == 0)
            continue;
        printf("%s ", name);
        /* The masks that the tests use are made of whole names. */
        n_left += mask != NULL && strstr(mask, name) != NULL;
    }
    printf("\n");
    return n_left == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
