/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the checks of checkkern share: options and counters, random numbers, strided
 * tensors between guard bytes, and numbers decoded without the code under test.
 * One thread; every tensor belongs to whoever made it.
 */
#ifndef KVW_TESTS_KERNELS_CHECK_H
#define KVW_TESTS_KERNELS_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvwheel/kernels.h>

#define CHECK_VARIANTS_MAX 128

/* Unit roundoffs. */
#define U_F16 0x1p-11
#define U_BF16 0x1p-8
#define U_F32 0x1p-24
#define U_F64 0x1p-53

/* One row of one table, as it is reported at the end. */
struct check_variant {
    char op[24];
    const char *name;
    uint32_t cpu_need;
    bool can_run;
    uint64_t n_checks;
    uint64_t n_failures;
    double time_ns; /* per call; 0: not timed */
    char timed[64]; /* what was timed */
};

struct check {
    uint64_t seed;
    uint64_t random; /* state of the generator */
    const char *filter;
    bool is_timed;
    bool is_json;
    struct check_variant variants[CHECK_VARIANTS_MAX];
    uint32_t n_variants;
    struct check_variant *at; /* the one at work */
};

/* Begin a variant. NULL if the filter leaves it out or the CPU cannot run it. Makes the
 * random numbers that follow depend on nothing but seed and op. */
struct check_variant *check_begin(struct check *c, const char *op, const char *name,
                                  uint32_t cpu_need);

/* Count one check of the variant at work, and print the claim and what is wrong with it
 * unless is_ok. Returns is_ok. */
__attribute__((format(printf, 4, 5))) bool
check_that(struct check *c, bool is_ok, const char *claim, const char *detail, ...);

/* Time a call: shortest of some runs, in ns, kept with the variant at work. */
void check_time(struct check *c, void (*call)(void *), void *arg, const char *what);

uint64_t random_bits(struct check *c);
uint64_t random_below(struct check *c, uint64_t n);          /* 0 .. n - 1 */
uint64_t random_in(struct check *c, uint64_t a, uint64_t b); /* a .. b */
double random_unit(struct check *c);                         /* [-1, 1) */

/* Kinds of random numbers. */
enum fill {
    FILL_PLAIN,     /* |x| < 1 */
    FILL_BIG,       /* 1 <= |x| < 256 */
    FILL_SUBNORMAL, /* below the smallest normal number of the type */
                    /* (of I8 each kind is -127 .. 127) */
    FILL_N
};

/* A tensor [n_rows, n_heads, n_elems] in memory of its own, its rows in some layout,
 * with guard bytes around. All bytes are 0xff (a NaN in each type) until they are set.
 */
struct tensor {
    unsigned char *base;
    size_t bytes;
    unsigned char *data; /* of row 0, head 0 */
    ptrdiff_t row_stride;
    ptrdiff_t head_stride;
    uint64_t n_rows;
    uint32_t n_heads;
    uint32_t n_elems;
    uint32_t type; /* enum kvw_num */
};

/* The layout (rows or heads outside, padded or not, backwards or not) is random. */
void tensor_init(struct tensor *t, struct check *c, uint32_t type, uint64_t n_rows,
                 uint32_t n_heads, uint32_t n_elems);
void tensor_fini(struct tensor *t);
void tensor_poison(struct tensor *t);
void *tensor_at(const struct tensor *t, uint64_t row, uint32_t head);
double tensor_get(const struct tensor *t, uint64_t row, uint32_t head, uint32_t elem);
void tensor_set_f32(struct tensor *t, uint64_t row, uint32_t head, uint32_t elem,
                    float x);
void tensor_set_bits(struct tensor *t, uint64_t row, uint32_t head, uint32_t elem,
                     uint32_t bits);
void tensor_fill_row(struct tensor *t, struct check *c, uint64_t row, enum fill fill);
void tensor_fill(struct tensor *t, struct check *c, enum fill fill);
/* dst gets the elements of row of src; shapes and types agree. */
void tensor_copy_row(struct tensor *dst, uint64_t dst_row, const struct tensor *src,
                     uint64_t src_row);
bool tensors_are_same(const struct tensor *a, const struct tensor *b);
/* Whether every byte that is no element is still 0xff. */
bool tensor_gaps_are_intact(const struct tensor *t);
/* Whether every byte is still 0xff. */
bool tensor_is_untouched(const struct tensor *t);

double decode_f16(uint32_t bits);
double decode_bf16(uint32_t bits);
float float_of(uint32_t bits);
uint32_t bits_of(float x);
size_t type_bytes(uint32_t type);
const char *type_name(uint32_t type);
uint32_t type_infinity(uint32_t type); /* bits */

/* n * u / (1 - n * u): the bound for n roundings (Higham, "Accuracy and Stability of
 * Numerical Algorithms", lemma 3.1). Infinite where it says nothing. */
double gamma_of(double n, double u);

/* Unit roundoff of the arithmetic of a variant. */
double variant_roundoff(const char *name);

void check_cpu(struct check *c);
void check_convert(struct check *c);
void check_quantise(struct check *c);
void check_rope(struct check *c);
void check_rope_grid(struct check *c);
void check_merge(struct check *c);
void check_attn(struct check *c);
void check_linear(struct check *c);

#endif /* KVW_TESTS_KERNELS_CHECK_H */
