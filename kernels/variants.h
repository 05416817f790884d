/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every variant of every operation, for the tables. Each is of the function type that
 * kvwheel/kernels.h gives the operation and trusts its arguments.
 */
#ifndef KVW_KERNELS_VARIANTS_H
#define KVW_KERNELS_VARIANTS_H

#include "kvwheel/kernels.h"

/* What the rows of a table need beside the operation's function. */
#define NEEDS_AVX2 (KVW_CPU_AVX2 | KVW_CPU_FMA | KVW_CPU_F16C)
#if defined(__x86_64__)
#define TABLE_OF(operation)                                                      \
    {                                                                            \
        {"avx512", KVW_CPU_AVX512, operation##_avx512},                          \
            {"avx2", NEEDS_AVX2, operation##_avx2}, {"ref", 0, operation##_ref}, \
    }
#else
#define TABLE_OF(operation)          \
    {                                \
        {"ref", 0, operation##_ref}, \
    }
#endif

/* Serve all types. */
kvw_attn_fn attn_ref;
kvw_attn_fn attn_avx2;
kvw_attn_fn attn_avx512;
kvw_attn_fn attn_avx512_bf16; /* of BF16 */
kvw_attn_fn attn_avx512_vnni; /* of I8 */
kvw_rope_fn rope_ref;
kvw_rope_fn rope_avx2;
kvw_rope_fn rope_avx512;

kvw_merge_fn merge_ref;
kvw_merge_fn merge_avx2;
kvw_merge_fn merge_avx512;

kvw_convert_fn convert_copy_ref;
kvw_convert_fn convert_f32_f16_ref;
kvw_convert_fn convert_f32_f16_avx2;
kvw_convert_fn convert_f32_f16_avx512;
kvw_convert_fn convert_f32_bf16_ref;
kvw_convert_fn convert_f32_bf16_avx2;
kvw_convert_fn convert_f32_bf16_avx512;
kvw_convert_fn convert_f16_f32_ref;
kvw_convert_fn convert_f16_f32_avx2;
kvw_convert_fn convert_f16_f32_avx512;
kvw_convert_fn convert_bf16_f32_ref;
kvw_convert_fn convert_bf16_f32_avx2;
kvw_convert_fn convert_bf16_f32_avx512;
kvw_convert_fn convert_f32_i8_ref;
kvw_convert_fn convert_f32_i8_avx2;
kvw_convert_fn convert_f32_i8_avx512;
kvw_convert_fn convert_i8_f32_ref;
kvw_convert_fn convert_i8_f32_avx2;
kvw_convert_fn convert_i8_f32_avx512;

kvw_linear_update_fn linear_update_ref;
kvw_linear_update_fn linear_update_avx2;
kvw_linear_update_fn linear_update_avx512;
kvw_linear_use_fn linear_use_ref;
kvw_linear_use_fn linear_use_avx2;
kvw_linear_use_fn linear_use_avx512;

#endif /* KVW_KERNELS_VARIANTS_H */
