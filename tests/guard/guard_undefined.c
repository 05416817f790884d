/* SPDX-License-Identifier: Apache-2.0 */
/* A canary: Criterion calls this test passed, UndefinedBehaviorSanitizer does not. */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdlib.h>

Test(guard, overflows)
{
    int big = INT_MAX - abs((int)strtol("0", NULL, 10));

    int bigger = big + 1;

    cr_assert_neq(bigger, big);
}
