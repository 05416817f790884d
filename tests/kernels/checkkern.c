/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkkern: every variant of every kernel that this CPU can run, against definitions
 * in double precision and bounds that follow from the arithmetic; and how long each
 * takes. What was not run is said: a variant that was left out has not passed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/check.h"

enum { EXIT_OK = 0, EXIT_MISMATCH = 1, EXIT_USAGE = 2 };

static const char usage[] =
    "usage: checkkern [--seed N] [--filter NAME] [--time] [--json]\n"
    "\n"
    "Check all variants of all kernels that this CPU can run.\n"
    "\n"
    "  --seed N       seed of the random inputs (default 1)\n"
    "  --filter NAME  only variants whose operation.variant contains NAME,\n"
    "                 such as \"attn\" or \"convert_f32_bf16.ref\"\n"
    "  --time         also measure each variant, in ns per call\n"
    "  --json         print the report as JSON\n"
    "  --help         print this\n"
    "\n"
    "exit status: 0 all checks passed, 1 some did not, 2 wrong usage\n";

static int parse_seed(uint64_t *seed, const char *text)
{
    char *end;

    errno = 0;
    *seed = strtoull(text, &end, 0);
    return errno == 0 && end != text && *end == '\0' && *text != '-' ? 0 : -EINVAL;
}

static int parse(struct check *c, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--time") == 0) {
            c->is_timed = true;
        } else if (strcmp(argv[i], "--json") == 0) {
            c->is_json = true;
        } else if (strcmp(argv[i], "--filter") == 0 && value != NULL) {
            c->filter = value;
            i++;
        } else if (strcmp(argv[i], "--seed") == 0 && value != NULL) {
            if (parse_seed(&c->seed, value) < 0)
                return -EINVAL;
            i++;
        } else {
            return -EINVAL;
        }
    }
    return 0;
}

static void print_flags(uint32_t flags, const char *quote, const char *between)
{
    const char *lead = "";

    for (uint32_t bit = 0; bit < 32; bit++) {
        if ((flags >> bit & 1) == 0)
            continue;
        printf("%s%s%s%s", lead, quote, kvw_cpu_flag_name(1u << bit), quote);
        lead = between;
    }
}

static void report_text(const struct check *c, uint64_t n_checks, uint64_t n_failures)
{
    uint32_t n_left_out = 0;

    printf("cpu: ");
    print_flags(kvw_cpu_flags(), "", " ");
    printf("\nseed: %llu\n", (unsigned long long)c->seed);
    for (uint32_t i = 0; i < c->n_variants; i++) {
        const struct check_variant *v = &c->variants[i];
        if (!v->can_run)
            continue;
        printf("%-18s %-8s %9llu checks, %llu failed", v->op, v->name,
               (unsigned long long)v->n_checks, (unsigned long long)v->n_failures);
        if (v->time_ns > 0)
            printf(", %.0f ns per call (%s)", v->time_ns, v->timed);
        printf("\n");
    }
    for (uint32_t i = 0; i < c->n_variants; i++) {
        const struct check_variant *v = &c->variants[i];
        if (v->can_run)
            continue;
        printf("not run: %s.%s, it needs ", v->op, v->name);
        print_flags(v->cpu_need, "", " ");
        printf("\n");
        n_left_out++;
    }
    printf("%llu checks, %llu failed, %u variants not run on this CPU\n",
           (unsigned long long)n_checks, (unsigned long long)n_failures, n_left_out);
}

static void report_json(const struct check *c, uint64_t n_checks, uint64_t n_failures)
{
    printf("{\"seed\": %llu, \"cpu\": [", (unsigned long long)c->seed);
    print_flags(kvw_cpu_flags(), "\"", ", ");
    printf("], \"checks\": %llu, \"failed\": %llu, \"variants\": [",
           (unsigned long long)n_checks, (unsigned long long)n_failures);
    for (uint32_t i = 0; i < c->n_variants; i++) {
        const struct check_variant *v = &c->variants[i];
        printf("%s\n{\"op\": \"%s\", \"variant\": \"%s\", \"needs\": [",
               i == 0 ? "" : ",", v->op, v->name);
        print_flags(v->cpu_need, "\"", ", ");
        printf("], \"ran\": %s, \"checks\": %llu, \"failed\": %llu",
               v->can_run ? "true" : "false", (unsigned long long)v->n_checks,
               (unsigned long long)v->n_failures);
        if (v->time_ns > 0)
            printf(", \"ns_per_call\": %.1f, \"timed\": \"%s\"", v->time_ns, v->timed);
        printf("}");
    }
    printf("\n]}\n");
}

int main(int argc, char **argv)
{
    static struct check c = {.seed = 1};
    uint64_t n_checks = 0;
    uint64_t n_failures = 0;

    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return EXIT_OK;
    }
    if (parse(&c, argc, argv) < 0) {
        fputs(usage, stderr);
        return EXIT_USAGE;
    }

    check_cpu(&c);
    check_convert(&c);
    check_quantise(&c);
    check_rope(&c);
    check_rope_grid(&c);
    check_merge(&c);
    check_attn(&c);
    check_linear(&c);
    if (c.n_variants == 0) {
        fprintf(stderr, "checkkern: nothing is called \"%s\"\n", c.filter);
        return EXIT_USAGE;
    }

    for (uint32_t i = 0; i < c.n_variants; i++) {
        n_checks += c.variants[i].n_checks;
        n_failures += c.variants[i].n_failures;
    }
    if (c.is_json)
        report_json(&c, n_checks, n_failures);
    else
        report_text(&c, n_checks, n_failures);
    return n_failures == 0 ? EXIT_OK : EXIT_MISMATCH;
}
