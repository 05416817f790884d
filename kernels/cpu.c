/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this CPU can do, found once and kept in one word. All threads that race to find
 * it find the same. Bits: Intel 64 and IA-32 Architectures Software Developer's Manual,
 * volume 2, CPUID, and volume 1, section 13.3 (XCR0).
 *
 * Built with KVW_TEST_HOOKS, the environment variable KVW_CPU_MASK (names of flags with
 * commas between) takes flags away, so that a program can be made to run as on a lesser
 * CPU. A library that is shipped reads no environment.
 */
#include "kvwheel/kernels.h"

#include <stdatomic.h>
#include <stddef.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#ifdef KVW_TEST_HOOKS
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#endif

static const struct {
    uint32_t flag;
    const char *name;
} flag_names[] = {
    {KVW_CPU_AVX2, "avx2"},
    {KVW_CPU_FMA, "fma"},
    {KVW_CPU_F16C, "f16c"},
    {KVW_CPU_AVX512, "avx512"},
    {KVW_CPU_AVX512_VNNI, "avx512_vnni"},
    {KVW_CPU_AVX512_BF16, "avx512_bf16"},
    {KVW_CPU_AVX512_FP16, "avx512_fp16"},
};

#define N_FLAGS (sizeof(flag_names) / sizeof(flag_names[0]))

#if defined(__x86_64__)

static uint64_t xcr0(void)
{
    uint32_t low;
    uint32_t high;

    /* Spelt out because the intrinsic needs -mxsave for the whole file. */
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static uint32_t take(uint32_t reg, uint32_t bits, uint32_t flag)
{
    return (reg & bits) == bits ? flag : 0;
}

static uint32_t flags_find(void)
{
    const uint32_t ymm = 0x06;
    const uint32_t zmm = 0xe6;
    uint32_t a;
    uint32_t b;
    uint32_t c;
    uint32_t d;
    uint32_t flags = 0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0)
        return 0;
    const uint64_t saved = xcr0();
    if ((saved & ymm) != ymm || (c & bit_AVX) == 0)
        return 0;
    flags |= take(c, bit_FMA, KVW_CPU_FMA);
    flags |= take(c, bit_F16C, KVW_CPU_F16C);

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return flags;
    flags |= take(b, 1u << 5, KVW_CPU_AVX2);
    if ((saved & zmm) != zmm)
        return flags;
    flags |= take(b, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, KVW_CPU_AVX512);
    if ((flags & KVW_CPU_AVX512) == 0)
        return flags;
    flags |= take(c, 1u << 11, KVW_CPU_AVX512_VNNI);
    flags |= take(d, 1u << 23, KVW_CPU_AVX512_FP16);

    const uint32_t subleaf_max = a;
    if (subleaf_max >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        flags |= take(a, 1u << 5, KVW_CPU_AVX512_BF16);
    return flags;
}

#else

static uint32_t flags_find(void)
{
    return 0;
}

#endif

#ifdef KVW_TEST_HOOKS

static uint32_t flag_by_name(const char *name, size_t length)
{
    for (size_t i = 0; i < N_FLAGS; i++) {
        if (strlen(flag_names[i].name) == length &&
            memcmp(flag_names[i].name, name, length) == 0)
            return flag_names[i].flag;
    }
    fprintf(stderr, "KVW_CPU_MASK: unknown flag \"%.*s\"\n", (int)length, name);
    abort();
}

static uint32_t flags_masked(uint32_t flags)
{
    const char *mask = getenv("KVW_CPU_MASK");

    while (mask != NULL && *mask != '\0') {
        const size_t length = strcspn(mask, ",");
        flags &= ~flag_by_name(mask, length);
        mask += length + (mask[length] == ',');
    }
    return flags;
}

#else

static uint32_t flags_masked(uint32_t flags)
{
    return flags;
}

#endif

uint32_t kvw_cpu_flags(void)
{
    static const uint32_t found = 1u << 31;
    static _Atomic uint32_t cache;

    /* Relaxed: the word is the whole message, and any thread would write the same. */
    uint32_t flags = atomic_load_explicit(&cache, memory_order_relaxed);
    if (flags == 0) {
        flags = flags_masked(flags_find()) | found;
        atomic_store_explicit(&cache, flags, memory_order_relaxed);
    }
    return flags & ~found;
}

const char *kvw_cpu_flag_name(uint32_t flag)
{
    for (size_t i = 0; i < N_FLAGS; i++) {
        if (flag_names[i].flag == flag)
            return flag_names[i].name;
    }
    return NULL;
}
