/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The atomic operations on shared words, behind a handful of names, so that the
 * protocol can also be run over a shim that explores schedules and store buffers.
 *
 * acquire: later loads and stores stay behind it. release: earlier ones stay before it.
 * fence_full also keeps an earlier store before a later load, which neither does; it is
 * what pairs a writer's claim with a reader's pin. Every use names its partner.
 */
#ifndef KVW_BASE_ATOMIC_H
#define KVW_BASE_ATOMIC_H

#include <stdatomic.h>
#include <stdint.h>

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "shared atomics must be address-free");
_Static_assert(sizeof(_Atomic uint64_t) == 8, "shared words are 8 bytes");
_Static_assert(sizeof(_Atomic uint32_t) == 4, "shared half words are 4 bytes");

typedef _Atomic uint64_t shared_u64;
typedef _Atomic uint32_t shared_u32;

/* Keeps the compiler in order, not the processor: only beside another's membarrier(2). */
#define fence_compiler() atomic_signal_fence(memory_order_seq_cst)

#ifdef KVW_ATOMIC_SHIM
#include KVW_ATOMIC_SHIM
#else

/* Casts drop const: a reader's mapping is read-only and a relaxed load writes nothing.
 */
#define load_relaxed(word) atomic_load_explicit(word, memory_order_relaxed)
#define load_acquire(word) atomic_load_explicit(word, memory_order_acquire)
#define store_relaxed(word, value) \
    atomic_store_explicit(word, value, memory_order_relaxed)
#define store_release(word, value) \
    atomic_store_explicit(word, value, memory_order_release)
#define add_seq_cst(word, value) \
    atomic_fetch_add_explicit(word, value, memory_order_seq_cst)
#define fence_acquire() atomic_thread_fence(memory_order_acquire)
#define fence_release() atomic_thread_fence(memory_order_release)
#define fence_full() atomic_thread_fence(memory_order_seq_cst)

#endif

/* Order streamed (non-temporal) stores of earlier code before later stores. */
static inline void fence_streamed(void)
{
#ifdef __x86_64__
    __builtin_ia32_sfence();
#endif
}

/* Tell the CPU that this is a spin loop. */
static inline void spin_pause(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

#endif
