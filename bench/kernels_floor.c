/* SPDX-License-Identifier: Apache-2.0 */
/* See kernels.h. 24 chains of instructions hide the latency of each. */
#include "bench/kernels.h"

#include <stdint.h>

#include <kvwheel/kernels.h>

#ifdef __x86_64__
#include <immintrin.h>

#define CHAINS_8(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
#define CHAINS_24(f)                                                                  \
    CHAINS_8(f)                                                                       \
    f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15) f(16) f(17) f(18) f(19) f(20) f(21) \
        f(22) f(23)
#define ZERO_512(i) "vpxord %%zmm" #i ", %%zmm" #i ", %%zmm" #i "\n\t"
#define FMA_512(i) "vfmadd231ps %%zmm31, %%zmm30, %%zmm" #i "\n\t"
#define DOT_512(i) "vdpbf16ps %%zmm31, %%zmm30, %%zmm" #i "\n\t"
#define ZERO_256(i) "vxorps %%ymm" #i ", %%ymm" #i ", %%ymm" #i "\n\t"
#define FMA_256(i) "vfmadd231ps %%ymm15, %%ymm14, %%ymm" #i "\n\t"
#define CLOBBERED                                                                 \
    "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
        "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16",    \
        "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm30",   \
        "xmm31"

/* In assembly, for a compiler would see that nothing is done with the result. */
__attribute__((target("avx512f"))) static void fma_512(uint64_t n)
{
    __asm__ volatile(CHAINS_24(ZERO_512) ZERO_512(30)
                         ZERO_512(31) "1:\n\t" CHAINS_24(FMA_512) "dec %0\n\tjnz 1b"
                     : "+r"(n)
                     :
                     : CLOBBERED);
}

__attribute__((target("avx512f"))) static void dot_512(uint64_t n)
{
    __asm__ volatile(CHAINS_24(ZERO_512) ZERO_512(30)
                         ZERO_512(31) "1:\n\t" CHAINS_24(DOT_512) "dec %0\n\tjnz 1b"
                     : "+r"(n)
                     :
                     : CLOBBERED);
}

__attribute__((target("avx2"))) static void fma_256(uint64_t n)
{
    __asm__ volatile(CHAINS_8(ZERO_256) ZERO_256(14)
                         ZERO_256(15) "1:\n\t" CHAINS_8(FMA_256) "dec %0\n\tjnz 1b"
                     : "+r"(n)
                     :
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",
                       "xmm7", "xmm14", "xmm15");
}

static void peak_f32(double flops)
{
    const uint32_t have = kvw_cpu_flags();

    if ((have & KVW_CPU_AVX512) != 0)
        fma_512((uint64_t)(flops / (24 * 32)) + 1);
    else if ((have & KVW_CPU_FMA) != 0)
        fma_256((uint64_t)(flops / (8 * 16)) + 1);
}

bool kernels_has_bf16(void)
{
    return (kvw_cpu_flags() & KVW_CPU_AVX512_BF16) != 0;
}

static void peak_bf16(double flops)
{
    if (kernels_has_bf16())
        dot_512((uint64_t)(flops / (24 * 64)) + 1);
}

/* Loads of 64 bytes, and what comes 2 KiB behind is asked for: the fastest we know. */
__attribute__((target("avx512f"))) static void read_512(const char *p, size_t n_bytes)
{
    __m512i sum[8];

    for (size_t j = 0; j < 8; j++)
        sum[j] = _mm512_setzero_si512();
    for (size_t i = 0; i + 512 <= n_bytes; i += 512) {
        for (size_t j = 0; j < 8; j++) {
            _mm_prefetch(p + i + 64 * j + 2048, _MM_HINT_T0);
            sum[j] = _mm512_add_epi64(sum[j], _mm512_loadu_si512(p + i + 64 * j));
        }
    }
    bench_touch(sum);
}

#else

static void peak_f32(double flops)
{
    (void)flops;
}

bool kernels_has_bf16(void)
{
    return false;
}

static void peak_bf16(double flops)
{
    (void)flops;
}

#endif

void kernels_peak_f32(double flops, uint32_t n_threads)
{
#pragma omp parallel num_threads((int)n_threads)
    peak_f32(flops / n_threads);
}

void kernels_peak_bf16(double flops, uint32_t n_threads)
{
#pragma omp parallel num_threads((int)n_threads)
    peak_bf16(flops / n_threads);
}

/* 32 numbers at once, so that it is memory that limits. */
static void read_plain(const char *from, size_t n_bytes)
{
    const uint64_t *p = (const uint64_t *)(const void *)from;
    uint64_t sum[32] = {0};

    for (size_t i = 0; i + 32 <= n_bytes / sizeof(*p); i += 32) {
        for (size_t j = 0; j < 32; j++)
            sum[j] += p[i + j];
    }
    bench_touch(sum);
}

void kernels_read(const void *memory, size_t n_bytes, uint32_t n_threads)
{
    const size_t part = n_bytes / n_threads;

#pragma omp parallel for num_threads((int)n_threads)
    for (uint32_t i = 0; i < n_threads; i++) {
        const char *from = (const char *)memory + i * part;
#ifdef __x86_64__
        if ((kvw_cpu_flags() & KVW_CPU_AVX512) != 0) {
            read_512(from, part);
            continue;
        }
#endif
        read_plain(from, part);
    }
}
