/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of conversion. Narrowing is compared with a search: the nearest of all numbers
 * of the format, in a table of their values, the even one of two that are equally near.
 * Results must be the same bit for bit in every variant, so there are no bounds.
 */
#include "tests/kernels/check.h"

#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define N_CODES 65536u
#define BATCH 4096u

/* Values of codes 0 .. infinity, infinity counted as the next power of two: that makes
 * "nearest" mean what IEEE 754 section 4.3.1 says about overflow. */
struct format {
    uint32_t type;
    uint32_t infinity; /* code */
    uint32_t quiet;    /* bit */
    uint32_t n_dropped;
    double values[0x7f81];
};

static struct format formats[2];

static void formats_init(void)
{
    formats[0].type = KVW_NUM_F16;
    formats[0].infinity = 0x7c00;
    formats[0].quiet = 0x200;
    formats[0].n_dropped = 13;
    formats[1].type = KVW_NUM_BF16;
    formats[1].infinity = 0x7f80;
    formats[1].quiet = 0x40;
    formats[1].n_dropped = 16;
    for (uint32_t i = 0; i < formats[0].infinity; i++)
        formats[0].values[i] = decode_f16(i);
    formats[0].values[formats[0].infinity] = 0x1p16;
    for (uint32_t i = 0; i < formats[1].infinity; i++)
        formats[1].values[i] = decode_bf16(i);
    formats[1].values[formats[1].infinity] = 0x1p128;
}

static uint32_t narrowed(const struct format *f, uint32_t bits)
{
    const double x = fabs((double)float_of(bits));
    const uint32_t sign = (bits >> 31) << 15;
    uint32_t low = 0;
    uint32_t high = f->infinity;

    if (isnan(x))
        return sign | f->infinity | f->quiet |
               ((bits & 0x7fffffu) >> f->n_dropped & (f->infinity ^ 0x7fffu));
    if (x >= f->values[high])
        return sign | f->infinity;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (f->values[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    const double below = x - f->values[low];
    const double above = f->values[high] - x;
    if (below < above || (below == above && low % 2 == 0))
        return sign | low;
    return sign | high;
}

static uint32_t widened(const struct format *f, uint32_t code)
{
    const double x = f->type == KVW_NUM_F16 ? decode_f16(code) : decode_bf16(code);

    if (!isnan(x))
        return bits_of((float)x);
    const uint32_t bits = (code & 0x8000u) << 16 | 0x7f800000u |
                          (code & (f->infinity ^ 0x7fffu)) << f->n_dropped;
    return f->type == KVW_NUM_F16 ? bits | 0x400000u : bits;
}

static void convert(kvw_convert_fn *fn, uint32_t src_type, const void *src,
                    uint32_t dst_type, void *dst, uint32_t n)
{
    const struct kvw_convert_args args = {
        .src = src,
        .dst = dst,
        .n_rows = 1,
        .n_heads = 1,
        .n_elems = n,
        .src_type = src_type,
        .dst_type = dst_type,
    };

    fn(&args);
}

static bool batch_narrows(struct check *c, kvw_convert_fn *fn, const struct format *f,
                          const uint32_t *bits, uint32_t n)
{
    uint16_t got[BATCH];

    convert(fn, KVW_NUM_F32, bits, f->type, got, n);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t want = narrowed(f, bits[i]);
        if (!check_that(c, got[i] == want, "narrowing gives the nearest number",
                        "f32 %08x gives %04x, not %04x", bits[i], got[i], want))
            return false;
    }
    return true;
}

/* All numbers of the format, all midpoints between neighbours, and what is one f32
 * above and below each of these, with both signs. */
static void ties_go_to_even(struct check *c, kvw_convert_fn *fn, const struct format *f)
{
    uint32_t bits[BATCH];
    uint32_t n = 0;

    for (uint32_t code = 0; code < f->infinity; code++) {
        const float exact = (float)f->values[code];
        const float tie = (float)((f->values[code] + f->values[code + 1]) / 2);
        const uint32_t middle[2] = {bits_of(exact), bits_of(tie)};
        for (uint32_t i = 0; i < 12; i++) {
            const uint32_t sign = (i & 1u) << 31;
            /* Below zero there is nothing: the step down wraps into a NaN, fine too. */
            bits[n++] = (middle[i / 6] + (i / 2 % 3) - 1u) ^ sign;
        }
        if (n + 12 > BATCH || code + 1 == f->infinity) {
            if (!batch_narrows(c, fn, f, bits, n))
                return;
            n = 0;
        }
    }
}

static void random_floats_narrow(struct check *c, kvw_convert_fn *fn,
                                 const struct format *f)
{
    uint32_t bits[BATCH];

    for (uint32_t batch = 0; batch < 128; batch++) {
        for (uint32_t i = 0; i < BATCH; i++) {
            const uint64_t r = random_bits(c);
            bits[i] = (uint32_t)r;
            /* Every other one with an exponent near the range of f16. */
            if ((r >> 40) % 2 == 0)
                bits[i] = (bits[i] & 0x807fffffu) |
                          (uint32_t)(127 - 30 + (r >> 48) % 52) << 23;
        }
        if (!batch_narrows(c, fn, f, bits, BATCH))
            return;
    }
}

static void all_codes_widen(struct check *c, kvw_convert_fn *fn, const struct format *f)
{
    static uint16_t codes[N_CODES];
    static uint32_t got[N_CODES];

    for (uint32_t i = 0; i < N_CODES; i++)
        codes[i] = (uint16_t)i;
    convert(fn, f->type, codes, KVW_NUM_F32, got, N_CODES);
    for (uint32_t i = 0; i < N_CODES; i++) {
        if (!check_that(c, got[i] == widened(f, i), __func__,
                        "%04x gives %08x, not %08x", i, got[i], widened(f, i)))
            return;
    }
}

static void all_codes_come_back(struct check *c, kvw_convert_fn *widen,
                                kvw_convert_fn *narrow, const struct format *f)
{
    static uint16_t codes[N_CODES];
    static uint16_t back[N_CODES];
    static uint32_t wide[N_CODES];

    for (uint32_t i = 0; i < N_CODES; i++)
        codes[i] = (uint16_t)i;
    convert(widen, f->type, codes, KVW_NUM_F32, wide, N_CODES);
    convert(narrow, KVW_NUM_F32, wide, f->type, back, N_CODES);
    for (uint32_t i = 0; i < N_CODES; i++) {
        const bool is_nan = (i & 0x7fffu) > f->infinity;
        const uint32_t want = is_nan ? i | f->quiet : i;
        if (!check_that(c, back[i] == want, __func__, "%04x comes back as %04x", i,
                        back[i]))
            return;
    }
}

static struct kvw_convert_args args_of(const struct tensor *src, struct tensor *dst)
{
    return (struct kvw_convert_args){
        .src = src->data,
        .src_row_stride = src->row_stride,
        .src_head_stride = src->head_stride,
        .dst = dst->data,
        .dst_row_stride = dst->row_stride,
        .dst_head_stride = dst->head_stride,
        .n_rows = src->n_rows,
        .n_heads = src->n_heads,
        .n_elems = src->n_elems,
        .src_type = src->type,
        .dst_type = dst->type,
    };
}

static void strides_are_kept(struct check *c, kvw_convert_fn *fn, uint32_t src_type,
                             uint32_t dst_type)
{
    static const uint32_t shapes[][3] = {{1, 1, 1},  {3, 2, 7},   {2, 3, 8},
                                         {5, 1, 15}, {4, 2, 16},  {2, 2, 17},
                                         {1, 5, 33}, {3, 2, 128}, {0, 2, 16}};

    for (uint32_t i = 0; i < 4 * sizeof(shapes) / sizeof(shapes[0]); i++) {
        const uint32_t *s = shapes[i / 4];
        struct tensor src;
        struct tensor dst;
        tensor_init(&src, c, src_type, s[0], s[1], s[2]);
        tensor_init(&dst, c, dst_type, s[0], s[1], s[2]);
        tensor_fill(&src, c, FILL_PLAIN);
        const struct kvw_convert_args args = args_of(&src, &dst);

        fn(&args);

        check_that(c, tensor_gaps_are_intact(&dst), __func__, "shape %u writes beside",
                   i / 4);
        const double u = dst_type == KVW_NUM_F16 ? U_F16 : U_BF16;
        for (uint64_t row = 0; row < s[0]; row++) {
            for (uint32_t at = 0; at < s[1] * s[2]; at++) {
                const double x = tensor_get(&src, row, at / s[2], at % s[2]);
                const double y = tensor_get(&dst, row, at / s[2], at % s[2]);
                const bool is_exact = src_type == dst_type || dst_type == KVW_NUM_F32;
                check_that(c, fabs(x - y) <= (is_exact ? 0 : u * fabs(x)), __func__,
                           "shape %u row %u at %u", i / 4, (unsigned)row, at);
            }
        }
        tensor_fini(&src);
        tensor_fini(&dst);
    }
}

static void thread_modes_do_not_matter(struct check *c, kvw_convert_fn *fn,
                                       const struct format *f, bool is_narrowing)
{
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO, FE_TONEAREST};
    static uint32_t wide[3][N_CODES];
    static uint16_t codes[2][N_CODES];

    for (uint32_t i = 0; i < N_CODES; i++) {
        wide[0][i] = (uint32_t)random_bits(c) >> (i % 9);
        codes[0][i] = (uint16_t)i;
    }
    if (is_narrowing)
        convert(fn, KVW_NUM_F32, wide[0], f->type, codes[0], N_CODES);
    else
        convert(fn, f->type, codes[0], KVW_NUM_F32, wide[1], N_CODES);
    for (uint32_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        fesetround(modes[i]);
#if defined(__x86_64__)
        const uint32_t before = _mm_getcsr();
        _mm_setcsr(before | 0x8040u); /* flush results and operands to zero */
#endif
        if (is_narrowing)
            convert(fn, KVW_NUM_F32, wide[0], f->type, codes[1], N_CODES);
        else
            convert(fn, f->type, codes[0], KVW_NUM_F32, wide[2], N_CODES);
#if defined(__x86_64__)
        _mm_setcsr(before);
#endif
        fesetround(FE_TONEAREST);
        const bool is_same = is_narrowing
                                 ? memcmp(codes[0], codes[1], sizeof(codes[0])) == 0
                                 : memcmp(wide[1], wide[2], sizeof(wide[1])) == 0;
        check_that(c, is_same, __func__, "mode %u", i);
    }
}

static void bad_arguments_are_refused(struct check *c)
{
    float src[4] = {1, 2, 3, 4};
    uint16_t dst[4] = {7, 7, 7, 7};
    const struct kvw_convert_args good = {
        .src = src,
        .dst = dst,
        .n_rows = 1,
        .n_heads = 1,
        .n_elems = 4,
        .src_type = KVW_NUM_F32,
        .dst_type = KVW_NUM_BF16,
    };
    struct kvw_convert_args bad[11];
    int want[11];
    uint32_t n = 0;

#define BAD(error, member, value) \
    do {                          \
        bad[n] = good;            \
        bad[n].member = (value);  \
        want[n++] = (error);      \
    } while (0)
    BAD(-EINVAL, src, NULL);
    BAD(-EINVAL, dst, NULL);
    BAD(-EINVAL, n_heads, 0);
    BAD(-EINVAL, n_elems, 0);
    BAD(-EINVAL, src_row_stride, 2);
    BAD(-EINVAL, dst_head_stride, 1);
    BAD(-EINVAL, src, (const char *)src + 2);
    BAD(-ENOTSUP, src_type, KVW_NUM_F16);
    BAD(-EINVAL, dst_type, KVW_NUM_I8); /* without scales */
    BAD(-EINVAL, scales, src);          /* with another type */
    BAD(-ENOTSUP, dst_type, 99);
#undef BAD
    for (uint32_t i = 0; i < n; i++)
        check_that(c, kvw_rows_convert(&bad[i]) == want[i], __func__, "number %u", i);
    check_that(c, kvw_rows_convert(NULL) == -EINVAL, __func__, "no arguments");
    check_that(c, dst[0] == 7 && dst[3] == 7, __func__, "something was written");
    check_that(c, kvw_rows_convert(&good) == 0, __func__, "good ones are not");
    check_that(c, dst[1] == 0x4000, __func__, "2.0 is 0x4000 in bf16");
}

struct timed {
    kvw_convert_fn *fn;
    struct kvw_convert_args args;
};

static void call_timed(void *arg)
{
    struct timed *timed = arg;

    timed->fn(&timed->args);
}

static void time_convert(struct check *c, kvw_convert_fn *fn, uint32_t src_type,
                         uint32_t dst_type)
{
    struct tensor src;
    struct tensor dst;

    tensor_init(&src, c, src_type, 256, 8, 128);
    tensor_init(&dst, c, dst_type, 256, 8, 128);
    tensor_fill(&src, c, FILL_PLAIN);
    struct timed timed = {.fn = fn, .args = args_of(&src, &dst)};
    check_time(c, call_timed, &timed, "256 rows x 8 heads x 128");
    tensor_fini(&src);
    tensor_fini(&dst);
}

static void check_pair(struct check *c, uint32_t src_type, uint32_t dst_type)
{
    char op[32];
    uint32_t n;
    const struct kvw_convert_variant *v = kvw_convert_variants(src_type, dst_type, &n);

    snprintf(op, sizeof(op), "convert_%s_%s", type_name(src_type), type_name(dst_type));
    for (uint32_t i = 0; i < n; i++, v++) {
        if (check_begin(c, op, v->name, v->cpu_need) == NULL)
            continue;
        strides_are_kept(c, v->fn, src_type, dst_type);
        if (src_type == KVW_NUM_F32 && dst_type != KVW_NUM_F32) {
            const struct format *f = &formats[dst_type == KVW_NUM_BF16];
            ties_go_to_even(c, v->fn, f);
            random_floats_narrow(c, v->fn, f);
            thread_modes_do_not_matter(c, v->fn, f, true);
            all_codes_come_back(c, kvw_convert_select(dst_type, src_type, 0)->fn, v->fn,
                                f);
        } else if (src_type != dst_type) {
            const struct format *f = &formats[src_type == KVW_NUM_BF16];
            all_codes_widen(c, v->fn, f);
            thread_modes_do_not_matter(c, v->fn, f, false);
        }
        if (c->is_timed)
            time_convert(c, v->fn, src_type, dst_type);
    }
}

void check_convert(struct check *c)
{
    formats_init();
    for (uint32_t src = KVW_NUM_F32; src <= KVW_NUM_I8; src++) {
        for (uint32_t dst = KVW_NUM_F32; dst <= KVW_NUM_I8; dst++) {
            if (src == KVW_NUM_I8 || dst == KVW_NUM_I8)
                continue; /* check_quantise.c */
            if (kvw_convert_select(src, dst, 0) != NULL)
                check_pair(c, src, dst);
        }
    }
    if (check_begin(c, "convert", "errors", 0) != NULL)
        bad_arguments_are_refused(c);
}
