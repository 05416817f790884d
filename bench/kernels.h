/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floors of the kernels' case: what this CPU can do at most. Each shares its
 * work evenly among threads and keeps nothing.
 */
#ifndef KVW_BENCH_KERNELS_H
#define KVW_BENCH_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/bench.h"

/** Multiply and add floats: about `flops` operations in registers, by the widest FMA. */
void kernels_peak_f32(double flops, uint32_t n_threads);

/** Whether there is an instruction for products of bf16. */
bool kernels_has_bf16(void);

/** Multiply and add bf16 to floats: about `flops` operations in registers. */
void kernels_peak_bf16(double flops, uint32_t n_threads);

/** Read memory once, from front to back; n_bytes for each thread is a multiple
 *  of 512. */
void kernels_read(const void *memory, size_t n_bytes, uint32_t n_threads);

/** The case: see kernels.c. */
int kernels_run(struct bench *bench);

#endif
