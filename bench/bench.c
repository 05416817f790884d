/* SPDX-License-Identifier: Apache-2.0 */
/* See bench.h: rounds, samples and what is made of them. */
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <kvwheel/kvwheel.h>

#define SAMPLE_NS 20000.0    /* a batch takes at least this long */
#define BATCHES_PER_ROUND 8u /* of a variant */
#define CALLS_MAX (1ull << 32)
#define ROUNDS_MAX (1ull << 20)

/* A growing array. */
struct numbers {
    double *value;
    size_t n;
    size_t n_room;
};

struct bench_samples {
    double clock_ns;
    bool has_overflown;     /* no memory for one of them */
    size_t round_begin;     /* first sample of this round */
    struct numbers all;     /* in the order taken */
    struct numbers medians; /* of each round */
};

/* A comparison under way. */
struct comparison {
    struct bench *bench;
    const struct bench_variant *variants;
    uint32_t n_variants;
    uint64_t n_calls[BENCH_VARIANTS_MAX]; /* of one sample */
    struct bench_samples samples[BENCH_VARIANTS_MAX];
};

uint64_t bench_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators"). */
uint64_t bench_random(struct bench *bench, uint64_t below)
{
    uint64_t z = bench->random += 0x9e3779b97f4a7c15ull;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (z ^ (z >> 31)) % below;
}

/* ------------------------------------------------------------ numbers ---------- */

static int compare_numbers(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;

    return (a > b) - (a < b);
}

void bench_sort(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare_numbers);
}

double bench_quantile(const double *ascending, size_t n, double q)
{
    const double at = q * (double)(n - 1);
    const size_t below = (size_t)at;

    if (below + 1 >= n)
        return ascending[n - 1];
    return ascending[below] +
           (at - (double)below) * (ascending[below + 1] - ascending[below]);
}

static bool append(struct numbers *numbers, double value)
{
    if (numbers->n == numbers->n_room) {
        size_t n_room = numbers->n_room == 0 ? 1024 : numbers->n_room * 2;
        double *grown = realloc(numbers->value, n_room * sizeof *grown);
        if (grown == NULL)
            return false;
        numbers->value = grown;
        numbers->n_room = n_room;
    }
    numbers->value[numbers->n++] = value;
    return true;
}

void bench_add(struct bench_samples *samples, uint64_t ns, uint64_t n_calls)
{
    double rest = (double)ns - samples->clock_ns;

    if (!append(&samples->all, rest < 0 ? 0 : rest / (double)n_calls))
        samples->has_overflown = true;
}

/* ------------------------------------------------------------- rounds ---------- */

static int take_batch(struct comparison *comparison, uint32_t v)
{
    const struct bench_variant *variant = &comparison->variants[v];
    const uint64_t n_calls = comparison->n_calls[v];

    uint64_t begun = bench_now_ns();
    int error = variant->batch(variant->context, n_calls);
    uint64_t ended = bench_now_ns();
    if (error == 0)
        bench_add(&comparison->samples[v], ended - begun, n_calls);
    return error;
}

/* How many calls make a sample. Twice as many until they take long enough. */
static int calibrate(struct comparison *comparison, uint32_t v)
{
    const struct bench_variant *variant = &comparison->variants[v];
    double took_ns = 0;

    for (uint64_t n = 1; n < CALLS_MAX && took_ns < SAMPLE_NS; n *= 2) {
        uint64_t begun = bench_now_ns();
        int error = variant->batch(variant->context, n);
        if (error != 0)
            return error;
        took_ns = (double)(bench_now_ns() - begun) - comparison->bench->clock_ns;
        comparison->n_calls[v] = n;
    }
    return 0;
}

static int take_turn(struct comparison *comparison, uint32_t v)
{
    const struct bench_variant *variant = &comparison->variants[v];
    struct bench_samples *samples = &comparison->samples[v];
    int error = 0;

    samples->round_begin = samples->all.n;
    if (variant->each != NULL)
        return variant->each(variant->context, samples);
    for (uint32_t i = 0; i < BATCHES_PER_ROUND && error == 0; i++)
        error = take_batch(comparison, v);
    return error;
}

/* Each variant once, for nothing: code, tables and pages are there afterwards. */
static int warm_up(struct comparison *comparison)
{
    for (uint32_t v = 0; v < comparison->n_variants; v++) {
        const struct bench_variant *variant = &comparison->variants[v];
        comparison->n_calls[v] = variant->n_calls == 0 ? 1 : variant->n_calls;
        int error = variant->batch != NULL ? calibrate(comparison, v) : 0;
        if (error == 0)
            error = take_turn(comparison, v);
        if (error != 0)
            return error;
        comparison->samples[v].all.n = 0;
    }
    return 0;
}

/* The samples of a round become its median; they stay as samples of the whole. */
static int close_turn(struct comparison *comparison, uint32_t v)
{
    struct bench_samples *samples = &comparison->samples[v];
    const size_t n = samples->all.n - samples->round_begin;

    if (samples->has_overflown)
        return -ENOMEM;
    if (n == 0)
        return -ENODATA;
    /* Their order within the round is of no use to anyone. */
    bench_sort(samples->all.value + samples->round_begin, n);
    double median = bench_quantile(samples->all.value + samples->round_begin, n, 0.5);
    return append(&samples->medians, median) ? 0 : -ENOMEM;
}

static int take_round(struct comparison *comparison)
{
    uint32_t order[BENCH_VARIANTS_MAX] = {0};

    for (uint32_t i = 0; i < comparison->n_variants; i++) {
        uint64_t j = bench_random(comparison->bench, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < comparison->n_variants; i++) {
        int error = take_turn(comparison, order[i]);
        if (error == 0)
            error = close_turn(comparison, order[i]);
        if (error != 0)
            return error;
    }
    return 0;
}

static int take_rounds(struct comparison *comparison)
{
    const struct bench_options *options = &comparison->bench->options;
    const uint64_t begun = bench_now_ns();

    for (uint64_t round = 0; round < ROUNDS_MAX; round++) {
        if (options->rounds > 0 && round >= options->rounds)
            break;
        if (options->rounds == 0 && round >= BENCH_ROUNDS_MIN &&
            (double)(bench_now_ns() - begun) >= options->seconds * 1e9)
            break;
        int error = take_round(comparison);
        if (error != 0)
            return error;
    }
    return 0;
}

/* ------------------------------------------------------------ results ---------- */

static int find_variant(const struct comparison *comparison, const char *name)
{
    for (uint32_t v = 0; v < comparison->n_variants; v++) {
        if (strcmp(comparison->variants[v].name, name) == 0)
            return (int)v;
    }
    return -EINVAL;
}

static int ratio_of(const struct comparison *comparison, uint32_t v, const char *to,
                    struct bench_ratio *ratio)
{
    const struct numbers *own = &comparison->samples[v].medians;
    int floor = find_variant(comparison, to);
    if (floor < 0)
        return floor;
    const struct numbers *other = &comparison->samples[floor].medians;

    double *ratios = malloc(own->n * sizeof *ratios);
    if (ratios == NULL)
        return -ENOMEM;
    /* A floor that the clock cannot tell from nothing gives no ratio. */
    size_t n = 0;
    for (size_t i = 0; i < own->n; i++) {
        if (other->value[i] > 0)
            ratios[n++] = own->value[i] / other->value[i];
    }
    bench_sort(ratios, n);
    *ratio = (struct bench_ratio){.to = to};
    if (n > 0) {
        ratio->median = bench_quantile(ratios, n, 0.5);
        ratio->low = bench_quantile(ratios, n, 0.25);
        ratio->high = bench_quantile(ratios, n, 0.75);
    }
    free(ratios);
    return 0;
}

static int conclude(struct comparison *comparison, const char *group, uint32_t v,
                    struct bench_result *result)
{
    const struct bench_variant *variant = &comparison->variants[v];
    struct numbers *all = &comparison->samples[v].all;

    bench_sort(all->value, all->n);
    *result = (struct bench_result){
        .name_of_case = comparison->bench->name_of_case,
        .group = group,
        .name = variant->name,
        .n = all->n,
        .n_calls = comparison->n_calls[v],
        .p50 = bench_quantile(all->value, all->n, 0.5),
        .p99 = bench_quantile(all->value, all->n, 0.99),
        .min = all->value[0],
        .max = all->value[all->n - 1],
    };
    for (uint32_t f = 0; f < BENCH_FLOORS_MAX && variant->floor[f] != NULL; f++) {
        int error = ratio_of(comparison, v, variant->floor[f], &result->ratio[f]);
        if (error != 0)
            return error;
        result->n_ratios++;
    }
    return 0;
}

static int keep_results(struct comparison *comparison, const char *group)
{
    struct bench *bench = comparison->bench;
    struct bench_result *grown = realloc(
        bench->results, (bench->n_results + comparison->n_variants) * sizeof *grown);

    if (grown == NULL)
        return -ENOMEM;
    bench->results = grown;
    for (uint32_t v = 0; v < comparison->n_variants; v++) {
        int error = conclude(comparison, group, v, &grown[bench->n_results + v]);
        if (error != 0)
            return error;
    }
    bench->n_results += comparison->n_variants;
    return 0;
}

int bench_compare(struct bench *bench, const char *group,
                  const struct bench_variant *variants, uint32_t n_variants)
{
    struct comparison comparison = {
        .bench = bench, .variants = variants, .n_variants = n_variants};

    if (n_variants == 0 || n_variants > BENCH_VARIANTS_MAX)
        return -EINVAL;
    fprintf(stderr, "kvwheel-bench: %s: %s\n", bench->name_of_case, group);
    for (uint32_t v = 0; v < n_variants; v++)
        comparison.samples[v].clock_ns = bench->clock_ns;
    int error = warm_up(&comparison);
    if (error == 0)
        error = take_rounds(&comparison);
    if (error == 0)
        error = keep_results(&comparison, group);
    for (uint32_t v = 0; v < n_variants; v++) {
        free(comparison.samples[v].all.value);
        free(comparison.samples[v].medians.value);
    }
    return error;
}

void bench_rate(struct bench *bench, uint32_t n_variants, double work, const char *unit)
{
    for (uint32_t v = 1; v <= n_variants; v++) {
        bench->results[bench->n_results - v].work = work;
        bench->results[bench->n_results - v].unit = unit;
    }
}

/* ------------------------------------------------------------- a run ----------- */

int bench_fail(const char *what, int error)
{
    const char *text = kvw_last_error();

    fprintf(stderr, "kvwheel-bench: %s: %s%s%s\n", what, kvw_strerror(error),
            text[0] != 0 ? ": " : "", text);
    return error;
}

int bench_connect(struct bench *bench, struct kvw_client **client)
{
    int error = kvw_connect(bench->options.socket_path, client);

    if (error == 0)
        return 0;
    bench->is_absent = true;
    return bench_fail("no daemon", error);
}

static double measure_clock(void)
{
    enum { ROUNDS = 31, LOOKS = 1000 };
    double took[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        uint64_t begun = bench_now_ns();
        for (int j = 0; j < LOOKS; j++)
            bench_touch(&(uint64_t){bench_now_ns()});
        took[i] = (double)(bench_now_ns() - begun) / (LOOKS + 1);
    }
    bench_sort(took, ROUNDS);
    return bench_quantile(took, ROUNDS, 0.5);
}

void bench_init(struct bench *bench, const struct bench_options *options)
{
    *bench = (struct bench){.options = *options, .random = options->seed};
    bench->clock_ns = measure_clock();
}

void bench_fini(struct bench *bench)
{
    free(bench->results);
    bench->results = NULL;
    bench->n_results = 0;
}
