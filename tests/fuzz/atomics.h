/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What proto/base/atomic.h becomes in fuzz_control: somebody may write between any two
 * loads of shared words. Included with KVW_ATOMIC_SHIM only.
 */
#ifndef KVW_TESTS_FUZZ_ATOMICS_H
#define KVW_TESTS_FUZZ_ATOMICS_H

/** In stage.c: a shared word is about to be loaded. */
void stage_loading(void);

#define load_relaxed(word) \
    (stage_loading(), atomic_load_explicit(word, memory_order_relaxed))
#define load_acquire(word) \
    (stage_loading(), atomic_load_explicit(word, memory_order_acquire))
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
