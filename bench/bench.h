/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small library for benchmarks that are compared within one run. A case makes what it
 * needs and hands variants to bench_compare(); each variant says what it is compared
 * with (its floor, or an alternative). Variants run interleaved: in every round each
 * one has its turn, in random order, so that whatever else the machine does meets all
 * of them. A ratio is the median over the rounds of the ratio of medians within a
 * round, with its quartiles; the times' own percentiles are over all samples.
 *
 * A sample is a number of nanoseconds per call. Where a call takes nanoseconds, many
 * make one sample, and percentiles are those of the samples: the report says how many
 * calls they are of. What reading the clock costs is measured and subtracted.
 *
 * One thread. Memory must be touched, and caches filled, before a comparison begins;
 * each variant then runs once more for nothing.
 */
#ifndef KVW_BENCH_BENCH_H
#define KVW_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_NODISCARD __attribute__((warn_unused_result))

#define BENCH_VARIANTS_MAX 16u /* of one comparison */
#define BENCH_FLOORS_MAX 2u    /* that a variant is compared with */
#define BENCH_ROUNDS_MIN 5u    /* however little time there is */
#define BENCH_LIMITS_MAX 32u   /* given by --limit */

struct kvw_client;
struct bench_samples;

enum bench_exit {
    BENCH_OK = 0,
    BENCH_FAILED = 1,
    BENCH_USAGE = 2,
    BENCH_NO_DAEMON = 3,
    BENCH_INVALID = 4, /* a limit is not met, or something is wrong or slower */
};

struct bench_options {
    const char *socket_path; /* NULL: the default one */
    const char *model;       /* generate: a folder; NULL: the build's */
    uint64_t rounds;         /* of each comparison; 0: as many as fit into seconds */
    double seconds;          /* for each comparison */
    uint64_t seed;           /* of the order of variants */
    bool is_full;            /* kernels: at full size */
    bool is_json;
    bool is_list;
    bool is_help;
    /* Of runs across nodes. */
    const char *preset;      /* NULL: the built-in workload */
    const char *plot_folder; /* NULL: no plots */
    uint64_t window_rows;    /* 0: the workload's */
    double bound;            /* of compare */
    bool is_csv;
    bool is_cold;
    uint32_t n_limits;
    const char *limits[BENCH_LIMITS_MAX];
};

/* How one variant compares with another. */
struct bench_ratio {
    const char *to;
    double median; /* over the rounds, of medians within a round */
    double low;    /* lower quartile */
    double high;   /* upper quartile */
};

/* What came of a variant. Nanoseconds per call. */
struct bench_result {
    const char *name_of_case;
    const char *group; /* the comparison */
    const char *name;
    uint64_t n;       /* samples */
    uint64_t n_calls; /* of one sample */
    double p50;
    double p99;
    double min;
    double max;
    double work;      /* of a call; 0: not said */
    const char *unit; /* of work in a nanosecond */
    double share;     /* of what the machine can do at most; 0: not said */
    uint32_t n_ratios;
    struct bench_ratio ratio[BENCH_FLOORS_MAX];
};

/* One run of the program. */
struct bench {
    struct bench_options options;
    double clock_ns; /* what one look at the clock costs */
    uint64_t random; /* state */
    const char *name_of_case;
    bool is_absent; /* no daemon could be reached */
    struct bench_result *results;
    size_t n_results;
};

/* One thing that can be measured. */
struct bench_case {
    const char *name;
    const char *line; /* for --list */
    /* 0, or negative after bench_fail(). */
    int (*run)(struct bench *bench);
};

/** Do the work `n_calls` times; the library takes the time. @return 0 or negative. */
typedef int bench_batch_fn(void *context, uint64_t n_calls);

/** Do the work and hand one sample or more to bench_add(). @return 0 or negative. */
typedef int bench_each_fn(void *context, struct bench_samples *samples);

/* One way to do something. Exactly one of batch and each is set. Strings are borrowed
 * for the whole run. */
struct bench_variant {
    const char *name;
    const char *floor[BENCH_FLOORS_MAX]; /* names of variants of the same comparison */
    bench_batch_fn *batch; /* work of nanoseconds, with nothing beside it */
    bench_each_fn *each;   /* work that needs something done before or after */
    uint64_t n_calls;      /* each: calls of one sample; 0 = 1 */
    void *context;
};

/**
 * Measure variants against each other and keep the results for the report.
 *
 * @param group  Name of the comparison.
 * @return 0; what a variant returned; -ENOMEM; -EINVAL (a floor that is not there).
 */
BENCH_NODISCARD int bench_compare(struct bench *bench, const char *group,
                                  const struct bench_variant *variants,
                                  uint32_t n_variants);

/** Say of the last results how much work each call was, such as bytes: the report then has
 *  the rate. unit: of work in a nanosecond, such as "GB/s". */
void bench_rate(struct bench *bench, uint32_t n_variants, double work,
                const char *unit);

/** Add a sample: `n_calls` calls took `ns` between two looks at the clock. A lack of
 *  memory is kept and ends the comparison. */
void bench_add(struct bench_samples *samples, uint64_t ns, uint64_t n_calls);

/** Now, CLOCK_MONOTONIC: the same clock in every process. */
uint64_t bench_now_ns(void);

/** A random number below `below`. */
uint64_t bench_random(struct bench *bench, uint64_t below);

/** Say what failed, on stderr, with the library's last error. @return `error`. */
BENCH_NODISCARD int bench_fail(const char *what, int error);

/** kvw_connect() to the daemon of the options; notes that there is none. @return 0 or
 *  negative, in words. */
BENCH_NODISCARD int bench_connect(struct bench *bench, struct kvw_client **client);

/** Make the compiler believe that memory was read and written. */
static inline void bench_touch(const void *pointer)
{
    __asm__ volatile("" : : "r"(pointer) : "memory");
}

/* Tell the CPU that this is a spin loop. */
static inline void bench_pause(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* ------------------------------------------------------------- for main() -------- */

/** Ready for cases; measures the clock. */
void bench_init(struct bench *bench, const struct bench_options *options);

/** Give back everything. */
void bench_fini(struct bench *bench);

/** The quantile q (0..1) of values in ascending order, n > 0, interpolated. */
double bench_quantile(const double *ascending, size_t n, double q);

/** Sort numbers, ascending. */
void bench_sort(double *values, size_t n);

#endif
