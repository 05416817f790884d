/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What proto/base/atomic.h becomes in the interleaving tests: every operation on a
 * shared word, every copy of rows and every sleep of the real sources is a call of the
 * explorer (explore.h), which decides who goes on. Included with KVW_ATOMIC_SHIM only.
 *
 * The calls of libc below are replaced too: rows are copied with memcpy(), waiting is a
 * system call, and what a process allocates must vanish when an execution is abandoned.
 */
#ifndef KVW_TESTS_RACE_SHIM_H
#define KVW_TESTS_RACE_SHIM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/race/shim_calls.h"

#define SHIM_LOAD(word, order) \
    _Generic((word), shared_u32 *          \
             : shim_load_32,               \
               const shared_u32 *          \
             : shim_load_32, shared_u64 *  \
             : shim_load_64,               \
               const shared_u64 *          \
             : shim_load_64)((word), order)
#define SHIM_STORE(word, value, order)     \
    _Generic((word), shared_u32 *          \
             : shim_store_32, shared_u64 * \
             : shim_store_64)((word), (value), order)

#define load_relaxed(word) SHIM_LOAD(word, SHIM_RELAXED)
#define load_acquire(word) SHIM_LOAD(word, SHIM_ACQUIRE)
#define store_relaxed(word, value) SHIM_STORE(word, value, SHIM_RELAXED)
#define store_release(word, value) SHIM_STORE(word, value, SHIM_RELEASE)
#define add_seq_cst(word, value) shim_add_32(word, value)
#define fence_acquire() shim_fence(SHIM_ACQUIRE)
#define fence_release() shim_fence(SHIM_RELEASE)
#define fence_full() shim_fence(SHIM_FULL)

#define memcpy(to, from, n_bytes) shim_memcpy(to, from, n_bytes)
#define syscall(...) shim_syscall(__VA_ARGS__)
#define nanosleep(pause, rest) shim_nanosleep(pause, rest)
#define calloc(n, n_bytes) shim_calloc(n, n_bytes)
#define free(memory) shim_free(memory)
#define snprintf(...) shim_snprintf(__VA_ARGS__)

#endif
