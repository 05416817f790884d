/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of checkkern: see check.h. */
#include "tests/kernels/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GUARD_BYTES 64
#define FAILURES_PRINTED_MAX 20

/* SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators"). */
uint64_t random_bits(struct check *c)
{
    uint64_t z = c->random += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t random_below(struct check *c, uint64_t n)
{
    return random_bits(c) % n;
}

uint64_t random_in(struct check *c, uint64_t a, uint64_t b)
{
    return a + random_below(c, b - a + 1);
}

double random_unit(struct check *c)
{
    return (double)(random_bits(c) >> 11) * 0x1p-52 - 1.0;
}

struct check_variant *check_begin(struct check *c, const char *op, const char *name,
                                  uint32_t cpu_need)
{
    char full_name[64];
    const uint32_t have = kvw_cpu_flags();

    snprintf(full_name, sizeof(full_name), "%s.%s", op, name);
    if (c->filter != NULL && strstr(full_name, c->filter) == NULL)
        return NULL;
    if (c->n_variants == CHECK_VARIANTS_MAX)
        abort();

    struct check_variant *v = &c->variants[c->n_variants++];
    *v = (struct check_variant){.name = name, .cpu_need = cpu_need};
    snprintf(v->op, sizeof(v->op), "%s", op);
    v->can_run = (cpu_need & have) == cpu_need;
    c->at = v;
    c->random = c->seed;
    for (const char *p = op; *p != '\0'; p++)
        c->random = c->random * 31 + (unsigned char)*p;
    return v->can_run ? v : NULL;
}

bool check_that(struct check *c, bool is_ok, const char *claim, const char *detail, ...)
{
    c->at->n_checks++;
    if (is_ok)
        return true;
    if (++c->at->n_failures > FAILURES_PRINTED_MAX)
        return false;

    va_list args;
    va_start(args, detail);
    fprintf(stderr, "FAIL %s.%s: %s: ", c->at->op, c->at->name, claim);
    vfprintf(stderr, detail, args);
    fprintf(stderr, " (seed %llu)\n", (unsigned long long)c->seed);
    va_end(args);
    return false;
}

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

void check_time(struct check *c, void (*call)(void *), void *arg, const char *what)
{
    const double run_ns = 2e7;
    double best_ns = INFINITY;

    call(arg); /* warm */
    for (int run = 0; run < 3; run++) {
        const double start_ns = now_ns();
        double spent_ns = 0;
        uint32_t n = 0;
        do {
            call(arg);
            n++;
            spent_ns = now_ns() - start_ns;
        } while (spent_ns < run_ns);
        best_ns = fmin(best_ns, spent_ns / n);
    }
    c->at->time_ns = best_ns;
    snprintf(c->at->timed, sizeof(c->at->timed), "%s", what);
}

float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* By the definition of the formats, IEEE 754-2019 section 3.4, with e and m bits. */
static double decode(uint32_t bits, int n_exponent_bits, int n_mantissa_bits)
{
    const int bias = (1 << (n_exponent_bits - 1)) - 1;
    const int exponent = (int)(bits >> n_mantissa_bits) & ((1 << n_exponent_bits) - 1);
    const int mantissa = (int)bits & ((1 << n_mantissa_bits) - 1);
    const bool is_negative = (bits >> (n_exponent_bits + n_mantissa_bits) & 1) != 0;
    double x;

    if (exponent == (1 << n_exponent_bits) - 1)
        x = mantissa != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        x = ldexp(mantissa, 1 - bias - n_mantissa_bits);
    else
        x = ldexp((1 << n_mantissa_bits) + mantissa, exponent - bias - n_mantissa_bits);
    return is_negative ? -x : x;
}

double decode_f16(uint32_t bits)
{
    return decode(bits, 5, 10);
}

double decode_bf16(uint32_t bits)
{
    return decode(bits, 8, 7);
}

size_t type_bytes(uint32_t type)
{
    if (type == KVW_NUM_I8)
        return 1;
    return type == KVW_NUM_F32 ? 4 : 2;
}

const char *type_name(uint32_t type)
{
    static const char *const names[] = {
        [KVW_NUM_F32] = "f32",
        [KVW_NUM_BF16] = "bf16",
        [KVW_NUM_F16] = "f16",
        [KVW_NUM_I8] = "i8",
    };

    return names[type];
}

uint32_t type_infinity(uint32_t type)
{
    static const uint32_t bits[] = {
        [KVW_NUM_F32] = 0x7f800000u,
        [KVW_NUM_BF16] = 0x7f80u,
        [KVW_NUM_F16] = 0x7c00u,
    };

    return bits[type];
}

double gamma_of(double n, double u)
{
    return n * u < 1 ? n * u / (1 - n * u) : INFINITY;
}

double variant_roundoff(const char *name)
{
    return strcmp(name, "ref") == 0 ? U_F64 : U_F32;
}

void tensor_init(struct tensor *t, struct check *c, uint32_t type, uint64_t n_rows,
                 uint32_t n_heads, uint32_t n_elems)
{
    const size_t elem_bytes = type_bytes(type);
    const ptrdiff_t unit = (ptrdiff_t)(elem_bytes * (n_elems + random_below(c, 4)));
    const ptrdiff_t pad = (ptrdiff_t)(elem_bytes * random_below(c, 5));
    const bool is_head_major = random_below(c, 2) == 0;

    *t = (struct tensor){
        .n_rows = n_rows, .n_heads = n_heads, .n_elems = n_elems, .type = type};
    if (is_head_major) {
        t->row_stride = unit;
        t->head_stride = (ptrdiff_t)n_rows * unit + pad;
        t->bytes = (size_t)(t->head_stride * (ptrdiff_t)n_heads);
    } else {
        t->head_stride = unit;
        t->row_stride = (ptrdiff_t)n_heads * unit + pad;
        t->bytes = (size_t)(t->row_stride * (ptrdiff_t)n_rows);
    }
    t->bytes += 2 * GUARD_BYTES;
    t->base = malloc(t->bytes);
    if (t->base == NULL)
        abort();
    /* An element may lie anywhere that its own size divides. */
    t->data = t->base + GUARD_BYTES - elem_bytes * random_below(c, 8);
    if (n_rows > 0 && random_below(c, 4) == 0) {
        t->data += ((ptrdiff_t)n_rows - 1) * t->row_stride;
        t->row_stride = -t->row_stride;
    }
    tensor_poison(t);
}

void tensor_fini(struct tensor *t)
{
    free(t->base);
    *t = (struct tensor){0};
}

void tensor_poison(struct tensor *t)
{
    memset(t->base, 0xff, t->bytes);
}

void *tensor_at(const struct tensor *t, uint64_t row, uint32_t head)
{
    return t->data + (ptrdiff_t)row * t->row_stride + (ptrdiff_t)head * t->head_stride;
}

double tensor_get(const struct tensor *t, uint64_t row, uint32_t head, uint32_t elem)
{
    const unsigned char *p = tensor_at(t, row, head);
    float x;
    uint16_t h;

    if (t->type == KVW_NUM_F32) {
        memcpy(&x, p + elem * sizeof(x), sizeof(x));
        return (double)x;
    }
    if (t->type == KVW_NUM_I8)
        return (double)(int8_t)p[elem];
    memcpy(&h, p + elem * sizeof(h), sizeof(h));
    return t->type == KVW_NUM_F16 ? decode_f16(h) : decode_bf16(h);
}

void tensor_set_bits(struct tensor *t, uint64_t row, uint32_t head, uint32_t elem,
                     uint32_t bits)
{
    unsigned char *p = tensor_at(t, row, head);
    const uint16_t h = (uint16_t)bits;

    if (t->type == KVW_NUM_F32)
        memcpy(p + elem * sizeof(bits), &bits, sizeof(bits));
    else if (t->type == KVW_NUM_I8)
        p[elem] = (unsigned char)bits;
    else
        memcpy(p + elem * sizeof(h), &h, sizeof(h));
}

void tensor_set_f32(struct tensor *t, uint64_t row, uint32_t head, uint32_t elem,
                    float x)
{
    tensor_set_bits(t, row, head, elem, bits_of(x));
}

/* A random sign and mantissa with a random exponent in the range that fill names. */
static uint32_t random_number(struct check *c, uint32_t type, enum fill fill)
{
    static const struct {
        uint32_t n_mantissa_bits;
        uint32_t bias;
        uint32_t sign_bit;
    } formats[] = {
        [KVW_NUM_F32] = {23, 127, 31},
        [KVW_NUM_BF16] = {7, 127, 15},
        [KVW_NUM_F16] = {10, 15, 15},
    };
    const uint64_t bits = random_bits(c);

    if (type == KVW_NUM_I8)
        return (uint32_t)(bits % 255) - 127;
    const uint32_t n_mantissa_bits = formats[type].n_mantissa_bits;
    const uint32_t bias = formats[type].bias;
    const uint32_t mantissa = (uint32_t)bits & ((1u << n_mantissa_bits) - 1u);
    const uint32_t sign = (uint32_t)(bits >> 63) << formats[type].sign_bit;
    uint32_t exponent = 0;

    if (fill == FILL_PLAIN)
        exponent = bias - 1 - (uint32_t)(bits >> 32) % 6;
    else if (fill == FILL_BIG)
        exponent = bias + (uint32_t)(bits >> 32) % 8;
    return sign | exponent << n_mantissa_bits | mantissa;
}

void tensor_fill_row(struct tensor *t, struct check *c, uint64_t row, enum fill fill)
{
    for (uint32_t head = 0; head < t->n_heads; head++) {
        for (uint32_t elem = 0; elem < t->n_elems; elem++)
            tensor_set_bits(t, row, head, elem, random_number(c, t->type, fill));
    }
}

void tensor_fill(struct tensor *t, struct check *c, enum fill fill)
{
    for (uint64_t row = 0; row < t->n_rows; row++)
        tensor_fill_row(t, c, row, fill);
}

void tensor_copy_row(struct tensor *dst, uint64_t dst_row, const struct tensor *src,
                     uint64_t src_row)
{
    for (uint32_t head = 0; head < src->n_heads; head++)
        memcpy(tensor_at(dst, dst_row, head), tensor_at(src, src_row, head),
               src->n_elems * type_bytes(src->type));
}

bool tensors_are_same(const struct tensor *a, const struct tensor *b)
{
    const size_t row_bytes = a->n_elems * type_bytes(a->type);

    for (uint64_t row = 0; row < a->n_rows; row++) {
        for (uint32_t head = 0; head < a->n_heads; head++) {
            if (memcmp(tensor_at(a, row, head), tensor_at(b, row, head), row_bytes) !=
                0)
                return false;
        }
    }
    return true;
}

bool tensor_gaps_are_intact(const struct tensor *t)
{
    const size_t row_bytes = t->n_elems * type_bytes(t->type);
    bool is_intact = true;
    unsigned char *rest = malloc(t->bytes);
    if (rest == NULL)
        abort();

    memcpy(rest, t->base, t->bytes);
    for (uint64_t row = 0; row < t->n_rows; row++) {
        for (uint32_t head = 0; head < t->n_heads; head++)
            memset(rest + ((unsigned char *)tensor_at(t, row, head) - t->base), 0xff,
                   row_bytes);
    }
    for (size_t i = 0; i < t->bytes; i++)
        is_intact &= rest[i] == 0xff;
    free(rest);
    return is_intact;
}

bool tensor_is_untouched(const struct tensor *t)
{
    for (size_t i = 0; i < t->bytes; i++) {
        if (t->base[i] != 0xff)
            return false;
    }
    return true;
}
