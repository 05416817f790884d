/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of kvwheel-bench, on times that are made up. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/generate.h"

#define ROUNDS 11

static int n_failed;

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            n_failed++;                                                     \
        }                                                                   \
    } while (0)

/* Three samples a turn, around a time that grows with the rounds. */
struct made_up {
    uint64_t ns;
    uint64_t turns;
    uint64_t n_calls;
    char *order; /* a letter for each turn of any variant */
    char letter;
};

static int made_up_times(void *context, struct bench_samples *samples)
{
    struct made_up *made_up = context;
    uint64_t ns = made_up->ns * (made_up->turns + 1);

    made_up->turns++;
    strncat(made_up->order, &made_up->letter, 1);
    bench_add(samples, ns, made_up->n_calls);
    bench_add(samples, 10 * ns, made_up->n_calls); /* a hiccup: no median minds it */
    bench_add(samples, ns, made_up->n_calls);
    return 0;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static int parse(const char *text, struct generate_result *result)
{
    return generate_parse(text, strlen(text), result);
}

static void the_last_line_of_a_run_is_its_result(void)
{
    struct generate_result result;

    CHECK(parse("{\"row\": 1, \"token\": 7}\n"
                "{\"seconds\": 0.5, \"tokens\": [7, 8], \"kernels\": \"ref\"}\n",
                &result) == 0);
    CHECK(result.n_tokens == 2 && is_near(result.seconds, 0.5));
    CHECK(strcmp(result.kernels, "ref") == 0);
}

static void what_is_no_result_is_refused(void)
{
    static const char *const texts[] = {
        "",
        "\n",
        "nothing\n",
        "[1]\n",
        "{\"row\": 1, \"token\": 7}\n",
        "{\"seconds\": 0.5, \"tokens\": [7], \"kernels\": \"ref\"}", /* cut off */
        "{\"seconds\": 0.5, \"tokens\": [], \"kernels\": \"ref\"}\n",
        "{\"seconds\": 0, \"tokens\": [7], \"kernels\": \"ref\"}\n",
        "{\"seconds\": \"1\", \"tokens\": [7], \"kernels\": \"ref\"}\n",
        "{\"seconds\": 0.5, \"tokens\": 7, \"kernels\": \"ref\"}\n",
        "{\"seconds\": 0.5, \"tokens\": [7], \"kernels\": 1}\n",
        "{\"seconds\": 0.5, \"tokens\": [7], "
        "\"kernels\": \"a name that is longer than any variant's\"}\n",
    };
    struct generate_result result;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        CHECK(parse(texts[i], &result) == -EPROTO);
}

static void quantiles_interpolate(void)
{
    double values[] = {5, 1, 4, 2, 3};

    bench_sort(values, 5);
    CHECK(is_near(values[0], 1) && is_near(values[4], 5));
    CHECK(is_near(bench_quantile(values, 5, 0.5), 3));
    CHECK(is_near(bench_quantile(values, 5, 0.125), 1.5));
    CHECK(is_near(bench_quantile(values, 5, 1), 5));
    CHECK(is_near(bench_quantile(values, 1, 0.99), 1));
}

/* However the times drift, the ratio within each round is the same. */
static void ratios_are_of_medians_within_a_round(void)
{
    char order[4 * ROUNDS] = "";
    struct bench_options options = {.rounds = ROUNDS, .seed = 7};
    struct made_up slow = {3000, 0, 1, order, 'a'};
    struct made_up fast = {8000, 0, 8, order, 'b'};
    const struct bench_variant variants[] = {
        {"slow", {"fast"}, NULL, made_up_times, 1, &slow},
        {"fast", {NULL}, NULL, made_up_times, 8, &fast},
    };
    struct bench bench;

    bench_init(&bench, &options);
    CHECK(bench.clock_ns > 0);
    bench.clock_ns = 0;
    CHECK(bench_compare(&bench, "made up", variants, 2) == 0);

    CHECK(bench.n_results == 2);
    const struct bench_result *result = &bench.results[0];
    CHECK(result->n == 3 * ROUNDS && result->n_calls == 1);
    CHECK(result->n_ratios == 1 && strcmp(result->ratio[0].to, "fast") == 0);
    CHECK(is_near(result->ratio[0].median, 3));
    CHECK(is_near(result->ratio[0].low, 3) && is_near(result->ratio[0].high, 3));
    CHECK(is_near(result->min, 2 * 3000)); /* the first turn was for nothing */
    CHECK(is_near(bench.results[1].max, 10. * 1000 * (ROUNDS + 1)));
    CHECK(bench.results[1].n_ratios == 0 && bench.results[1].n_calls == 8);
    /* Interleaved: each has its turn in every round, not always in one order. */
    CHECK(strlen(order) == 2 * (ROUNDS + 1));
    bool has_ab = false;
    bool has_ba = false;
    for (size_t i = 0; i < strlen(order); i += 2) {
        CHECK(order[i] != order[i + 1]);
        has_ab = has_ab || order[i] == 'a';
        has_ba = has_ba || order[i] == 'b';
    }
    CHECK(has_ab && has_ba);
    bench_fini(&bench);
}

static int count_calls(void *context, uint64_t n_calls)
{
    uint64_t *n = context;

    for (uint64_t i = 0; i < n_calls; i++) {
        ++*n;
        bench_touch(n);
    }
    return 0;
}

static int refuse_call(void *context, uint64_t n_calls)
{
    (void)context;
    (void)n_calls;
    return -EBUSY;
}

static void a_batch_is_as_long_as_it_must_be(void)
{
    struct bench_options options = {.rounds = ROUNDS};
    uint64_t n = 0;
    const struct bench_variant count = {
        .name = "count", .batch = count_calls, .context = &n};
    const struct bench_variant refuse = {.name = "refuse", .batch = refuse_call};
    const struct bench_variant floorless = {
        .name = "count", .floor = {"nobody"}, .batch = count_calls, .context = &n};
    struct bench bench;

    bench_init(&bench, &options);
    CHECK(bench_compare(&bench, "count", &count, 1) == 0);
    CHECK(bench.n_results == 1 && bench.results[0].n_calls > 1000);
    CHECK(bench.results[0].p50 * (double)bench.results[0].n_calls > 2000);
    CHECK(n >= bench.results[0].n * bench.results[0].n_calls);
    CHECK(bench_compare(&bench, "refuse", &refuse, 1) == -EBUSY);
    CHECK(bench_compare(&bench, "floorless", &floorless, 1) == -EINVAL);
    CHECK(bench_compare(&bench, "none", &count, 0) == -EINVAL);
    CHECK(bench.n_results == 1);
    bench_fini(&bench);
}

int main(void)
{
    the_last_line_of_a_run_is_its_result();
    what_is_no_result_is_refused();
    quantiles_interpolate();
    ratios_are_of_medians_within_a_round();
    a_batch_is_as_long_as_it_must_be();
    return n_failed == 0 ? 0 : 1;
}
