/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of rows: the published numbers, and the fast form against the plain one. */
#include <criterion/criterion.h>

#include <inttypes.h>
#include <string.h>

#include "client/crc32c.h"
#include "tests/unit/random.h"

enum { ROWS_MAX = 11, ROW_BYTES_MAX = 70 };

static uint32_t crc_of(crc32c_rows_fn *rows, const char *bytes, uint64_t n_bytes)
{
    uint32_t sum = 0;

    rows(bytes, n_bytes, n_bytes, 1, &sum);
    return sum;
}

static crc32c_rows_fn *const forms[] = {crc32c_rows_ref, crc32c_rows_sse42};

static bool has_form(uint32_t form)
{
    return form == 0 || __builtin_cpu_supports("sse4.2");
}

/* RFC 3720, B.4, and the check value that catalogues of CRCs list. */
Test(crc32c, gives_the_published_numbers)
{
    char zeros[32] = {0};
    char ones[32];
    char ascending[32];

    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++)
        ascending[i] = (char)i;
    for (uint32_t form = 0; form < 2; form++) {
        if (!has_form(form))
            continue;
        cr_assert_eq(crc_of(forms[form], zeros, 32), 0x8a9136aau);
        cr_assert_eq(crc_of(forms[form], ones, 32), 0x62a8ab43u);
        cr_assert_eq(crc_of(forms[form], ascending, 32), 0x46dd794eu);
        cr_assert_eq(crc_of(forms[form], "123456789", 9), 0xe3069283u);
        cr_assert_eq(crc_of(forms[form], "", 0), 0);
    }
}

Test(crc32c, of_many_rows_is_that_of_each)
{
    struct random random = random_init(71);
    char bytes[ROWS_MAX * ROW_BYTES_MAX + 8];

    for (uint32_t round = 0; round < 2000; round++) {
        const uint64_t n_rows = random_range(&random, 1, ROWS_MAX);
        const uint64_t stride = random_range(&random, 1, ROW_BYTES_MAX);
        const uint64_t row_bytes = random_range(&random, 1, stride);
        const char *rows = bytes + random_below(&random, 8);
        uint32_t sums[ROWS_MAX + 1] = {0};
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (char)random_u64(&random);

        crc32c_rows_best()(rows, stride, row_bytes, n_rows, sums);

        for (uint64_t r = 0; r < n_rows; r++)
            cr_assert_eq(sums[r], crc_of(crc32c_rows_ref, rows + r * stride, row_bytes),
                         "seed %" PRIu64 ": row %" PRIu64 " of %" PRIu64 " bytes",
                         random.seed, r, row_bytes);
        cr_assert_eq(sums[n_rows], 0);
    }
}

Test(crc32c, every_flipped_bit_is_seen)
{
    char row[ROW_BYTES_MAX] = "a row of a head";
    const uint32_t sum = crc_of(crc32c_rows_best(), row, sizeof row);

    for (uint32_t bit = 0; bit < 8 * sizeof row; bit++) {
        row[bit / 8] = (char)(row[bit / 8] ^ 1 << bit % 8);
        cr_assert_neq(crc_of(crc32c_rows_best(), row, sizeof row), sum);
        row[bit / 8] = (char)(row[bit / 8] ^ 1 << bit % 8);
    }
}
