/* SPDX-License-Identifier: Apache-2.0 */
/* Randomness, choice, score and spelling. */
#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/philox.h"
#include "examples/generate/layers.h"
#include "examples/generate/model.h"
#include "examples/generate/sample.h"
#include "examples/generate/text.h"

/* Known answers published with Random123 (kat_vectors, philox4x32 10). */
Test(sample, philox_gives_the_published_words)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t out[4];
        philox(known[i].counter, known[i].key, out);
        cr_assert_eq(memcmp(out, known[i].out, sizeof out), 0, "vector %zu", i);
    }
}

Test(sample, greedy_takes_the_lowest_of_equals)
{
    const struct sampling greedy = {.is_greedy = true, .temperature = 1};
    const float logits[] = {NAN, 1, 3, 3, -INFINITY, NAN};

    cr_assert_eq(sample_token(&greedy, logits, 6, 0), 2);
}

/* Over many rows each token comes as often as softmax says (3 sigma and some). */
Test(sample, sampling_follows_softmax)
{
    const struct sampling sampling = {.temperature = 2, .seed = 42};
    const float logits[] = {0, 2, -INFINITY, 4, NAN};
    const double weight[] = {1, exp(1), 0, exp(2), 0};
    const double total = 1 + exp(1) + exp(2);
    const int n = 20000;
    int count[5] = {0};

    for (int row = 0; row < n; row++)
        count[sample_token(&sampling, logits, 5, (uint64_t)row)]++;
    for (int id = 0; id < 5; id++) {
        double p = weight[id] / total;
        cr_assert_leq(fabs(count[id] - n * p), 4 * sqrt(n * p * (1 - p)) + 1e-9,
                      "token %d came %d times", id, count[id]);
    }
}

Test(sample, a_choice_depends_on_seed_and_row_alone)
{
    const float logits[] = {0, 0, 0, 0, 0, 0, 0, 0};
    struct sampling one = {.temperature = 1, .seed = 1},
                    two = {.temperature = 1, .seed = 2};
    int n_same = 0;

    for (uint64_t row = 0; row < 1000; row++) {
        uint32_t id = sample_token(&one, logits, 8, row);
        cr_assert_eq(id, sample_token(&one, logits, 8, row));
        n_same += id == sample_token(&two, logits, 8, row);
    }
    cr_assert_lt(n_same, 250);
}

Test(sample, nll_is_minus_log_softmax)
{
    const float logits[] = {1, 2, 3};
    const double total = exp(1) + exp(2) + exp(3);

    cr_assert_float_eq(sample_nll(logits, 3, 0), log(total) - 1, 1e-12);
    cr_assert_float_eq(sample_nll(logits, 3, 2), log(total) - 3, 1e-12);
}

Test(sample, text_replaces_what_is_not_utf8)
{
    static const uint32_t ids[] = {'a',  0,   0xf0, 0x9f, 0x98, 0x80, 0xff, 0xe2,
                                   0x82, 'A', 0xed, 0xa0, 0x80, 0xc0, 0xaf, 0xf4,
                                   0x90, 300, 0xc3, 0xa9, 0xe2, 0x82};
    static const char want[] = "a\0\xf0\x9f\x98\x80"
                               "\xef\xbf\xbd\xef\xbf\xbd"
                               "A"
                               "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                               "\xef\xbf\xbd\xef\xbf\xbd"
                               "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                               "\xc3\xa9"
                               "\xef\xbf\xbd";
    size_t n_bytes;
    char *text = text_from_bytes(ids, sizeof ids / sizeof ids[0], &n_bytes);

    cr_assert_not_null(text);
    cr_assert_eq(n_bytes, sizeof want - 1);
    cr_assert_eq(memcmp(text, want, n_bytes), 0);
    free(text);
}

/* A rank computes some rows for some tokens: each number must be what a call for it
 * alone gives, bit for bit. */
Test(layers, a_product_does_not_depend_on_its_neighbours)
{
    enum { ROWS = 5, COLS = 37, TOKENS = 3 };
    float w[ROWS * COLS], x[TOKENS * COLS], all[TOKENS * ROWS], one;
    uint32_t state = 1;

    for (int i = 0; i < ROWS * COLS; i++)
        w[i] = (float)(int32_t)(state = state * 1664525u + 1013904223u) * 0x1p-31f;
    for (int i = 0; i < TOKENS * COLS; i++)
        x[i] = (float)(int32_t)(state = state * 1664525u + 1013904223u) * 0x1p-31f;
    matrix_apply(&(struct matrix){w, ROWS, COLS}, x, TOKENS, all);

    for (int t = 0; t < TOKENS; t++) {
        for (int r = 0; r < ROWS; r++) {
            matrix_apply(&(struct matrix){w + r * COLS, 1, COLS}, x + t * COLS, 1,
                         &one);
            cr_assert_eq(memcmp(&one, &all[t * ROWS + r], sizeof one), 0);
        }
    }
}

Test(layers, shares_cover_everything_once)
{
    for (uint32_t parts = 1; parts <= 8; parts++) {
        for (uint32_t n = 0; n < 40; n++) {
            uint32_t next = 0;
            for (uint32_t part = 0; part < parts; part++) {
                struct share share = share_of(n, parts, part);
                cr_assert_eq(share.first, next);
                next += share.n;
            }
            cr_assert_eq(next, n);
        }
    }
}
