/* SPDX-License-Identifier: Apache-2.0 */
/* See compare.h. */
#include "bench/compare.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static json_t *read_report(const char *path)
{
    json_error_t error;
    json_t *report = json_load_file(path, 0, &error);

    if (report == NULL) {
        fprintf(stderr, "kvwheel-bench: %s: %s\n", path, error.text);
        return NULL;
    }
    if (json_array_size(json_object_get(report, "results")) > 0)
        return report;
    fprintf(stderr, "kvwheel-bench: %s: no results; a report of --json is needed\n",
            path);
    json_decref(report);
    return NULL;
}

/* The element of an array of the report that has the case and size of `like`. */
static json_t *find(const json_t *report, const char *array, const json_t *like)
{
    size_t index;
    json_t *element;

    json_array_foreach(json_object_get(report, array), index, element)
    {
        if (json_equal(json_object_get(element, "case"),
                       json_object_get(like, "case")) &&
            json_equal(json_object_get(element, "bytes"),
                       json_object_get(like, "bytes")))
            return element;
    }
    return NULL;
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* One line. @return whether B is as good as A. */
static bool compare_one(const json_t *a, const json_t *b, const json_t *result,
                        double bound)
{
    const char *name = json_string_value(json_object_get(result, "case"));
    const json_t *other = find(b, "results", result);
    const json_int_t bytes = json_integer_value(json_object_get(result, "bytes"));

    printf("%-28s %12" JSON_INTEGER_FORMAT, name == NULL ? "?" : name, bytes);
    if (other == NULL) {
        printf("  missing\n");
        return false;
    }
    const double noise = bound + number(find(a, "details", result), "noise") +
                         number(find(b, "details", result), "noise");
    const double was = number(result, "p50_us");
    const double is = number(other, "p50_us");
    const double ratio = was > 0 ? is / was : 1;
    const bool is_wrong = number(other, "wrong") > 0;
    const bool is_slower = ratio > 1 + noise;
    const char *word = "";
    if (is_wrong)
        word = "WRONG";
    else if (is_slower)
        word = "slower";
    else if (ratio < 1 / (1 + noise))
        word = "faster";
    printf(" %12.2f %12.2f %7.3f  +-%4.0f%%  %s\n", was, is, ratio, noise * 100, word);
    return !is_wrong && !is_slower;
}

int compare_reports(const char *path_a, const char *path_b, double bound)
{
    json_t *a = read_report(path_a);
    json_t *b = read_report(path_b);
    size_t index;
    json_t *result;
    bool is_good = true;

    if (a != NULL && b != NULL) {
        printf("%-28s %12s %12s %12s %7s  noise\n", "case", "bytes", "A us", "B us",
               "B/A");
        json_array_foreach(json_object_get(a, "results"), index, result)
        {
            is_good &= compare_one(a, b, result, bound);
        }
    }
    int code = is_good ? BENCH_OK : BENCH_INVALID;
    if (a == NULL || b == NULL)
        code = BENCH_FAILED;
    json_decref(a);
    json_decref(b);
    return code;
}
