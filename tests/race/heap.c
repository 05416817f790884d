/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What scenes and the sources have beside the segments: allocations, which vanish with
 * the execution that made them, and memory that must be as the setup left it. What a setup
 * allocates comes first, then what an execution does.
 */
#include "tests/race/core.h"

#include <stdlib.h>
#include <string.h>

#include "tests/race/shim_calls.h"

enum { HEAP_BYTES = 1 << 20, RESTORED_MAX = 256 };

static _Alignas(64) unsigned char heap[HEAP_BYTES];
static size_t heap_used;
static size_t heap_setup;
static struct {
    void *memory;
    size_t n_bytes;
    void *copy;
} restored[RESTORED_MAX];
static uint32_t n_restored;

void heap_restore(void)
{
    for (uint32_t i = 0; i < n_restored; i++)
        memcpy(restored[i].memory, restored[i].copy, restored[i].n_bytes);
    heap_used = heap_setup;
}

void heap_forget(void)
{
    for (uint32_t i = 0; i < n_restored; i++)
        free(restored[i].copy);
    n_restored = 0;
    heap_used = 0;
    heap_setup = HEAP_BYTES; /* everything belongs to the setup until it has ended */
}

void heap_setup_ends(void)
{
    heap_setup = heap_used;
    for (uint32_t i = 0; i < n_restored; i++) {
        restored[i].copy = malloc(restored[i].n_bytes);
        if (restored[i].copy == NULL)
            abort();
        memcpy(restored[i].copy, restored[i].memory, restored[i].n_bytes);
    }
}

size_t heap_save(char *to)
{
    size_t n_bytes = 0;

    for (uint32_t i = 0; i < n_restored; i++) {
        if (to != NULL)
            memcpy(to + n_bytes, restored[i].memory, restored[i].n_bytes);
        n_bytes += restored[i].n_bytes;
    }
    if (to != NULL) {
        memcpy(to + n_bytes, &heap_used, sizeof heap_used);
        memcpy(to + n_bytes + sizeof heap_used, heap + heap_setup,
               heap_used - heap_setup);
    }
    return n_bytes + sizeof heap_used + heap_used - heap_setup;
}

void heap_load(const char *from)
{
    for (uint32_t i = 0; i < n_restored; i++) {
        memcpy(restored[i].memory, from, restored[i].n_bytes);
        from += restored[i].n_bytes;
    }
    memcpy(&heap_used, from, sizeof heap_used);
    memcpy(heap + heap_setup, from + sizeof heap_used, heap_used - heap_setup);
}

void explore_restore(void *memory, size_t n_bytes)
{
    if (n_restored == RESTORED_MAX)
        abort();
    restored[n_restored].memory = memory;
    restored[n_restored].n_bytes = n_bytes;
    n_restored++;
}

void *shim_calloc(size_t n, size_t n_bytes)
{
    const size_t all_bytes = (n * n_bytes + 63) / 64 * 64;

    if (all_bytes > HEAP_BYTES - heap_used)
        abort();
    void *memory = heap + heap_used;
    heap_used += all_bytes;
    memset(memory, 0, all_bytes);
    /* Large ones do not change, save where the scene says so. */
    if (!core.is_running && all_bytes <= 8192)
        explore_restore(memory, all_bytes);
    return memory;
}

void shim_free(void *memory)
{
    (void)memory;
}

int shim_snprintf(char *to, size_t n_bytes, const char *format, ...)
{
    (void)format;
    if (n_bytes > 0)
        to[0] = 0;
    return 0;
}
