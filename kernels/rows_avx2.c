/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion, rotation and merging of rows, and linear attention, with AVX2: see rows_vec.h, linear_vec.h. */
#include "kernels/linear_vec.h"
#include "kernels/rows_vec.h"

#include "kernels/variants.h"

void convert_f32_f16_avx2(const struct kvw_convert_args *args)
{
    convert_rows(args, KVW_NUM_F32, KVW_NUM_F16);
}

void convert_f32_bf16_avx2(const struct kvw_convert_args *args)
{
    convert_rows(args, KVW_NUM_F32, KVW_NUM_BF16);
}

void convert_f16_f32_avx2(const struct kvw_convert_args *args)
{
    convert_rows(args, KVW_NUM_F16, KVW_NUM_F32);
}

void convert_bf16_f32_avx2(const struct kvw_convert_args *args)
{
    convert_rows(args, KVW_NUM_BF16, KVW_NUM_F32);
}

void convert_f32_i8_avx2(const struct kvw_convert_args *args)
{
    convert_rows(args, KVW_NUM_F32, KVW_NUM_I8);
}

void convert_i8_f32_avx2(const struct kvw_convert_args *args)
{
    convert_rows(args, KVW_NUM_I8, KVW_NUM_F32);
}

void rope_avx2(const struct kvw_rope_args *args)
{
    rotate_rows(args);
}

void merge_avx2(const struct kvw_merge_args *args)
{
    merge_rows(args);
}

void linear_update_avx2(const struct kvw_linear_update_args *args)
{
    linear_update(args);
}

void linear_use_avx2(const struct kvw_linear_use_args *args)
{
    linear_use(args);
}
