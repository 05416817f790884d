/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of the explorer that shim.h puts in the place of atomics and of libc. */
#ifndef KVW_TESTS_RACE_SHIM_CALLS_H
#define KVW_TESTS_RACE_SHIM_CALLS_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum shim_order {
    SHIM_RELAXED,
    SHIM_ACQUIRE,
    SHIM_RELEASE,
    SHIM_FULL,
};

uint32_t shim_load_32(const void *word, enum shim_order order);
uint64_t shim_load_64(const void *word, enum shim_order order);
void shim_store_32(void *word, uint32_t value, enum shim_order order);
void shim_store_64(void *word, uint64_t value, enum shim_order order);
uint32_t shim_add_32(void *word, uint32_t value);
/* For a mutation; the product has none. */
int shim_swap_64(void *word, uint64_t seen, uint64_t value);

void shim_fence(enum shim_order order);

/* The replaced calls of libc. */
void *shim_memcpy(void *to, const void *from, size_t n_bytes);
long shim_syscall(long number, ...);
int shim_nanosleep(const struct timespec *pause, struct timespec *rest);
void *shim_calloc(size_t n, size_t n_bytes);
void shim_free(void *memory);
int shim_snprintf(char *to, size_t n_bytes, const char *format, ...);

#endif
