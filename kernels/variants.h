/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every variant of every operation, for the tables. Each is of the function type that
 * kvwheel/kernels.h gives the operation and trusts its arguments.
 */
#ifndef KVW_KERNELS_VARIANTS_H
#define KVW_KERNELS_VARIANTS_H

#include "kvwheel/kernels.h"

/* Serve all types. */
kvw_attn_fn attn_ref;
kvw_attn_fn attn_avx2;
kvw_attn_fn attn_avx512;
kvw_attn_fn attn_avx512_bf16; /* of BF16 */
kvw_attn_fn attn_avx512_vnni; /* of I8 */
kvw_rope_fn rope_ref;

kvw_merge_fn merge_ref;

kvw_convert_fn convert_copy_ref;
kvw_convert_fn convert_f32_f16_ref;
kvw_convert_fn convert_f32_bf16_ref;
kvw_convert_fn convert_f16_f32_ref;
kvw_convert_fn convert_bf16_f32_ref;

#endif /* KVW_KERNELS_VARIANTS_H */
