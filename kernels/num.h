/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversion of single numbers between binary32, binary16 and bfloat16, in plain C.
 * Everything is static inline and stateless, so that each file that includes this, with
 * whatever -m flags, keeps its own copy. Formats: IEEE 754-2019, section 3.4.
 */
#ifndef KVW_KERNELS_NUM_H
#define KVW_KERNELS_NUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kvwheel/kernels.h"

static inline uint32_t f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline float f32_from_bf16(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

/*
 * No branches, so that loops over it vectorise. Every operation on floats is exact and
 * has a normal result, so rounding mode and flush-to-zero do not matter.
 *
 * Exponent field e > 0: shifting the 15 low bits to where binary32 has exponent and
 * mantissa and adding 224 to the exponent gives the value times 2^(224 - 112), infinity
 * and NaN (31 + 224 = 255) included; the factor 2^-112 corrects it, and makes
 * signalling NaNs quiet. e == 0: the ten mantissa bits m, put below the bits of 0.5f,
 * read as 0.5 + m * 2^-24, and subtracting 0.5 leaves the value.
 */
static inline float f32_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t low = h & 0x7fffu;
    const uint32_t normal =
        f32_bits(f32_from_bits((low << 13) + (224u << 23)) * 0x1p-112f);
    const uint32_t subnormal = f32_bits(f32_from_bits(low | 0x3f000000u) - 0.5f);
    const uint32_t mask = low < 0x400u ? UINT32_MAX : 0;

    /* Without the sign of the subnormal: rounding downwards, 0.5f - 0.5f is -0. */
    return f32_from_bits(sign | (subnormal & mask & 0x7fffffffu) | (normal & ~mask));
}

/*
 * Adding 0x7fff plus the lowest kept bit carries into that bit exactly if the dropped
 * half is over one half, or is one half and the kept part is odd. A carry out of the
 * mantissa increments the exponent, up to infinity: that is rounding as well.
 */
static inline uint16_t bf16_from_f32(float x)
{
    const uint32_t bits = f32_bits(x);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Shift right by n, 1 <= n <= 31, rounding to nearest, ties to even. */
static inline uint32_t shift_rne(uint32_t x, uint32_t n)
{
    const uint32_t kept = x >> n;
    const uint32_t dropped = x & ((1u << n) - 1u);
    const uint32_t half = 1u << (n - 1u);

    return kept + (dropped > half || (dropped == half && (kept & 1u) != 0));
}

static inline uint16_t f16_from_f32(float x)
{
    const uint32_t bits = f32_bits(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t exponent = magnitude >> 23; /* biased by 127 */
    uint32_t h;

    if (magnitude > 0x7f800000u) {
        h = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
    } else if (exponent >= 127 + 16) {
        h = 0x7c00u;
    } else if (exponent >= 127 - 14) {
        /* Normal: rebias, then drop 13 bits; a carry may go up to infinity. */
        h = shift_rne(magnitude - ((127u - 15u) << 23), 13);
    } else if (exponent >= 127 - 25) {
        /* Subnormal, in units of 2^-24; 1.5 * 2^-25 rounds to one unit. */
        h = shift_rne((magnitude & 0x7fffffu) | 0x800000u, 126u - exponent);
    } else {
        h = 0;
    }
    return (uint16_t)(sign | h);
}

/* The scale of a row of int8 whose greatest magnitude is span: so that span becomes 127,
 * and not subnormal, for that would make the steps coarse. 0 if all elements are 0. */
static inline float scale_of_span(float span)
{
    const float scale = span / 127.0f;

    if (span == 0)
        return 0;
    return scale < 0x1p-126f ? 0x1p-126f : scale;
}

/* Bytes of an element; 0 for an unknown type. */
static inline size_t num_bytes(uint32_t type)
{
    switch (type) {
    case KVW_NUM_F32:
        return 4;
    case KVW_NUM_F16:
    case KVW_NUM_BF16:
        return 2;
    case KVW_NUM_I8:
        return 1;
    default:
        return 0;
    }
}

#endif /* KVW_KERNELS_NUM_H */
