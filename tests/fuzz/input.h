/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every fuzz target has: its entry point, a cursor over the fuzzer's bytes, which
 * reads zeros once they are used up, and those bytes as a file. One thread.
 */
#ifndef KVW_TESTS_FUZZ_INPUT_H
#define KVW_TESTS_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/check.h"
#include "proto/geometry.h"

/** One execution; a crash, an abort or a sanitizer's report is a finding. libFuzzer's
 * name for it. @return 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *at;
    size_t left_bytes;
};

uint8_t input_u8(struct input *input);
uint16_t input_u16(struct input *input);
uint64_t input_u64(struct input *input);

/** 0 <= result < end; end > 0. Of one byte up to 256, else of two, else of eight. */
uint64_t input_below(struct input *input, uint64_t end);

/** As many of `n_bytes` bytes as are left; the rest of `to` stays as it is. */
void input_bytes(struct input *input, void *to, size_t n_bytes);

/** A number near a bound: 0, 1, the largest, one near `base`, or any. */
uint64_t input_number(struct input *input, uint64_t base);

/**
 * A small geometry, such that its segments are too: mostly one that geometry_check()
 * takes. Used up bytes give one group of one layer, one rank and one lane.
 */
void input_geometry(struct input *input, struct kvw_geometry *geometry);

/**
 * Any geometry, without the bytes that are zero in nearly every one: its first 48
 * bytes; its groups, of which as many follow as these say; the numbers of their layers.
 */
void input_any_geometry(struct input *input, struct kvw_geometry *geometry);

/** Make `bytes` the contents of a file. @return its path, valid until the next call. */
const char *input_file(const void *bytes, size_t n_bytes);

#endif
