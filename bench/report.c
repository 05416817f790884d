/* SPDX-License-Identifier: Apache-2.0 */
/* See report.h. */
#include "bench/report.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* --------------------------------------------------------------- text ---------- */

/* A time in five characters and a unit. */
static void print_time(double ns)
{
    static const char *const units[] = {"ns", "us", "ms", "s "};
    size_t unit = 0;

    while (unit + 1 < sizeof units / sizeof units[0] && ns >= 9999.5) {
        ns /= 1000;
        unit++;
    }
    printf(" %7.*f %s", ns < 99.95 ? 2 : 1, ns, units[unit]);
}

static void print_result(const struct bench_result *result)
{
    printf("  %-34s", result->name);
    print_time(result->p50);
    print_time(result->p99);
    print_time(result->min);
    print_time(result->max);
    printf(" %8" PRIu64 " %6" PRIu64, result->n, result->n_calls);
    if (result->unit != NULL && result->p50 > 0)
        printf("  %7.1f %s,", result->work / result->p50, result->unit);
    if (result->share > 0)
        printf(" %.3f of %s,", result->share, result->ratio[0].to);
    for (uint32_t i = 0; i < result->n_ratios; i++)
        printf("%s %.3f x %s (%.3f..%.3f)", i == 0 ? " " : ",", result->ratio[i].median,
               result->ratio[i].to, result->ratio[i].low, result->ratio[i].high);
    printf("\n");
}

void report_text(const struct bench *bench, const struct bench_environment *environment)
{
    printf("kvwheel %s, %s, %s\n", environment->version, environment->compiler,
           environment->date);
    printf("%s, %u cores, %s, governor %s, huge pages %s, of shared memory %s\n",
           environment->cpu, environment->n_cores, environment->kernel,
           environment->governor, environment->huge_pages,
           environment->huge_pages_shared);
    printf("load %.2f %.2f %.2f, clock %s, %.1f ns a look (subtracted), seed %" PRIu64
           "\n",
           environment->load[0], environment->load[1], environment->load[2],
           environment->clock_source, bench->clock_ns, bench->options.seed);
    for (size_t i = 0; i < bench->n_results; i++) {
        const struct bench_result *result = &bench->results[i];
        bool is_first = i == 0 || strcmp(result->group, result[-1].group) != 0 ||
                        strcmp(result->name_of_case, result[-1].name_of_case) != 0;
        if (is_first)
            printf("\n%s: %s\n  %-34s %10s %10s %10s %10s %8s %6s  %s\n",
                   result->name_of_case, result->group, "", "p50", "p99", "min", "max",
                   "samples", "calls", "ratio (quartiles)");
        print_result(result);
    }
}

/* --------------------------------------------------------------- JSON ---------- */

static json_t *json_of_environment(const struct bench *bench,
                                   const struct bench_environment *environment)
{
    return json_pack(
        "{s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:[f,f,f], s:s, s:s, s:s, s:f, s:I}",
        "cpu", environment->cpu, "cores", (int)environment->n_cores, "kernel",
        environment->kernel, "governor", environment->governor, "huge_pages",
        environment->huge_pages, "huge_pages_shared", environment->huge_pages_shared,
        "clock_source", environment->clock_source, "load", environment->load[0],
        environment->load[1], environment->load[2], "compiler", environment->compiler,
        "version", environment->version, "date", environment->date, "clock_ns",
        bench->clock_ns, "seed", (json_int_t)bench->options.seed);
}

static json_t *json_of_ratio(const struct bench_ratio *ratio)
{
    return json_pack("{s:s, s:f, s:f, s:f}", "floor", ratio->to, "ratio", ratio->median,
                     "ratio_low", ratio->low, "ratio_high", ratio->high);
}

static json_t *json_of_result(const struct bench_result *result)
{
    json_t *ratios = json_array();
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f}", "case",
        result->name_of_case, "group", result->group, "name", result->name, "unit",
        "ns", "n", (json_int_t)result->n, "calls", (json_int_t)result->n_calls, "p50",
        result->p50, "p99", result->p99, "min", result->min, "max", result->max);
    json_t *first = result->n_ratios > 0
                        ? json_of_ratio(&result->ratio[0])
                        : json_pack("{s:n, s:n, s:n, s:n}", "floor", "ratio",
                                    "ratio_low", "ratio_high");
    int error =
        object == NULL || first == NULL || json_object_update(object, first) < 0;

    if (error == 0 && result->unit != NULL && result->p50 > 0)
        error = json_object_set_new(object, "rate",
                                    json_real(result->work / result->p50)) ||
                json_object_set_new(object, "rate_unit", json_string(result->unit));

    if (error == 0 && result->share > 0)
        error = json_object_set_new(object, "share", json_real(result->share));
    for (uint32_t i = 0; i < result->n_ratios && error == 0; i++)
        error = json_array_append_new(ratios, json_of_ratio(&result->ratio[i]));
    json_decref(first);
    if (error == 0)
        error = json_object_set(object, "ratios", ratios);
    json_decref(ratios);
    if (error == 0)
        return object;
    json_decref(object);
    return NULL;
}

int report_json(const struct bench *bench, const struct bench_environment *environment)
{
    json_t *results = json_array();
    int error = results == NULL;

    for (size_t i = 0; i < bench->n_results && error == 0; i++)
        error = json_array_append_new(results, json_of_result(&bench->results[i]));
    json_t *report =
        json_pack("{s:o*, s:O*}", "environment",
                  json_of_environment(bench, environment), "results", results);
    if (error == 0)
        error = report == NULL || json_dumpf(report, stdout, JSON_INDENT(2)) < 0;
    printf("\n");
    json_decref(report);
    json_decref(results);
    return error == 0 ? 0 : -ENOMEM;
}
