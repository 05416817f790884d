/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of CPU flags, of what the tables promise, and of the choice made from them.
 */
#include "tests/kernels/check.h"

#include <stdio.h>
#include <string.h>

/* Names of the features as Linux lists them; the system's word on registers is in it.
 */
static const struct {
    uint32_t flag;
    const char *features[4];
} linux_names[] = {
    {KVW_CPU_AVX2, {"avx2"}},
    {KVW_CPU_FMA, {"fma"}},
    {KVW_CPU_F16C, {"f16c"}},
    {KVW_CPU_AVX512, {"avx512f", "avx512bw", "avx512dq", "avx512vl"}},
    {KVW_CPU_AVX512_VNNI, {"avx512_vnni"}},
    {KVW_CPU_AVX512_BF16, {"avx512_bf16"}},
    {KVW_CPU_AVX512_FP16, {"avx512_fp16"}},
};

#define N_LINUX_NAMES (sizeof(linux_names) / sizeof(linux_names[0]))

static bool has_word(const char *line, const char *word)
{
    const size_t length = strlen(word);

    for (const char *p = strstr(line, word); p != NULL; p = strstr(p + 1, word)) {
        if (p[-1] == ' ' && (p[length] == ' ' || p[length] == '\n'))
            return true;
    }
    return false;
}

static void flags_are_those_that_linux_lists(struct check *c)
{
    static char line[16384];
    bool is_found = false;
    FILE *f = fopen("/proc/cpuinfo", "r");

    while (f != NULL && !is_found && fgets(line, sizeof(line), f) != NULL)
        is_found = strncmp(line, "flags", 5) == 0;
    if (f != NULL)
        fclose(f);
    if (!is_found)
        return; /* another architecture */
    for (size_t i = 0; i < N_LINUX_NAMES; i++) {
        const uint32_t flag = linux_names[i].flag;
        bool is_listed = true;
        for (size_t j = 0; j < 4 && linux_names[i].features[j] != NULL; j++)
            is_listed &= has_word(line, linux_names[i].features[j]);
        check_that(c, is_listed == ((kvw_cpu_flags() & flag) != 0), __func__,
                   "%s is %slisted", kvw_cpu_flag_name(flag), is_listed ? "" : "not ");
    }
}

static void each_flag_has_one_name(struct check *c)
{
    for (uint32_t bit = 0; bit < 32; bit++) {
        const char *name = kvw_cpu_flag_name(1u << bit);
        const bool is_known = bit < N_LINUX_NAMES;
        check_that(c, (name != NULL) == is_known, __func__, "bit %u", bit);
    }
    check_that(c, kvw_cpu_flag_name(0) == NULL, __func__, "no bit");
    check_that(c, kvw_cpu_flag_name(3) == NULL, __func__, "two bits");
}

/* The same claims on each kind of table, whose rows are of different types. */
#define CHECK_TABLE(c, what, rows, n, select_none, select_all, select_here)            \
    do {                                                                               \
        const uint32_t have = kvw_cpu_flags();                                         \
        if (!check_that(c, (rows) != NULL && (n) > 0, what, "no table"))               \
            break;                                                                     \
        check_that(c, strcmp((rows)[(n)-1].name, "ref") == 0, what, "ref is last");    \
        check_that(c, (rows)[(n)-1].cpu_need == 0, what, "ref needs nothing");         \
        check_that(c, (select_none) == &(rows)[(n)-1], what, "no CPU flag gives ref"); \
        check_that(c, (select_all) == &(rows)[0], what,                                \
                   "all flags give the first row");                                    \
        check_that(c, ((select_here)->cpu_need & ~have) == 0, what, "fits this CPU");  \
    } while (0)

static void tables_end_in_the_reference(struct check *c)
{
    const uint32_t all = UINT32_MAX;
    const uint32_t here = kvw_cpu_flags();
    uint32_t n;

    for (uint32_t t = KVW_NUM_F32; t <= KVW_NUM_I8; t++) {
        const struct kvw_attn_variant *rows = kvw_attn_variants(t, &n);
        CHECK_TABLE(c, "attn table", rows, n, kvw_attn_select(t, 0),
                    kvw_attn_select(t, all), kvw_attn_select(t, here));
    }
    for (uint32_t t = 0; t < 16; t++) {
        const uint32_t src = KVW_NUM_F32 + t / 4;
        const uint32_t dst = KVW_NUM_F32 + t % 4;
        const struct kvw_convert_variant *rows = kvw_convert_variants(src, dst, &n);
        const bool is_i8_only = src == KVW_NUM_I8 && dst == KVW_NUM_I8;
        if (is_i8_only || (src != dst && src != KVW_NUM_F32 && dst != KVW_NUM_F32)) {
            check_that(c, rows == NULL && n == 0, __func__, "a pair without table");
            check_that(c, kvw_convert_select(src, dst, all) == NULL, __func__, "none");
            continue;
        }
        CHECK_TABLE(c, "convert table", rows, n, kvw_convert_select(src, dst, 0),
                    kvw_convert_select(src, dst, all),
                    kvw_convert_select(src, dst, here));
    }
    const struct kvw_merge_variant *merge_rows = kvw_merge_variants(&n);
    CHECK_TABLE(c, "merge table", merge_rows, n, kvw_merge_select(0),
                kvw_merge_select(all), kvw_merge_select(here));
    const struct kvw_rope_variant *rope_rows = kvw_rope_variants(&n);
    CHECK_TABLE(c, "rope table", rope_rows, n, kvw_rope_select(0), kvw_rope_select(all),
                kvw_rope_select(here));
}

static void unknown_types_have_no_table(struct check *c)
{
    uint32_t n = 7;

    check_that(c, kvw_attn_variants(0, &n) == NULL, __func__, "attn");
    check_that(c, n == 0, __func__, "count");
    check_that(c, kvw_attn_select(0, 0) == NULL, __func__, "attn select");
    check_that(c, kvw_attn_select(99, 0) == NULL, __func__, "attn select 99");
    check_that(c, kvw_convert_select(99, 0, 0) == NULL, __func__, "convert from 99");
    check_that(c, kvw_convert_select(0, 99, 0) == NULL, __func__, "convert to 99");
}

void check_cpu(struct check *c)
{
    if (check_begin(c, "cpu", "all", 0) == NULL)
        return;
    flags_are_those_that_linux_lists(c);
    each_flag_has_one_name(c);
    tables_end_in_the_reference(c);
    unknown_types_have_no_table(c);
}
