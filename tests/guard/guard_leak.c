/* SPDX-License-Identifier: Apache-2.0 */
/* A canary: Criterion calls this test passed, LeakSanitizer does not. */
#include <criterion/criterion.h>
#include <stdlib.h>

Test(guard, leaks)
{
    char *leaked = malloc(100);
    cr_assert_not_null(leaked);

    leaked[0] = 1;
    cr_assert_eq(leaked[0], 1);
}
