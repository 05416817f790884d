/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call fails. The programs under test are linked with --wrap: each call that their
 * own objects make of the allocator or of the operating system (shim.c, and of io_uring
 * and hwloc, shim_daemon.c) is counted while their role is armed, and one of them answers
 * an error that the real one can answer, without being made. Test and programs share a
 * page, so that the counting begins when the test says so.
 */
#ifndef KVW_TESTS_FAULTS_PAGE_H
#define KVW_TESTS_FAULTS_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FAULT_PAGE "KVW_FAULT_PAGE" /* the variable with the path of its file */

enum fault_role {
    FAULT_CLIENT = 1, /* the test itself, with the library */
    FAULT_KEEPER = 2, /* of any start: kvwheeld as it was started, or --keep */
    FAULT_DAEMON = 4, /* --serve */
};

struct fault_page {
    _Atomic uint32_t armed;      /* roles that count, 0 = none */
    _Atomic uint32_t n_calls;    /* since then */
    _Atomic uint32_t at;         /* the call that fails, from 1 */
    _Atomic uint32_t variant;    /* which of its errors */
    _Atomic uint32_t n_variants; /* 0 = there was no such call */
    _Atomic int32_t error;       /* that it answered; 0 = it has fewer variants */
    _Atomic uint64_t caller;     /* for addr2line */
    char name[32];               /* of the call */
};

/** Use the page in this file as a role. @return it, or NULL. */
struct fault_page *fault_use(const char *path, enum fault_role role);

/** Count a call. @return true, with errno set, if it is the one that fails. */
bool fault_strikes(const char *name, uintptr_t caller, const int *errors,
                   uint32_t n_errors);

/** Allocations of this program's own objects that were not freed. */
int64_t fault_allocations(void);

/* Of a call and the errors that it can have. */
#define FAULT_STRIKES(name, ...)                                \
    fault_strikes(name, (uintptr_t)__builtin_return_address(0), \
                  (const int[]){__VA_ARGS__},                   \
                  (uint32_t)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))

/* Define the function that stands in for `name`. */
#define FAULTY(type, name, parameters, arguments, failure, ...) \
    type real_##name parameters __asm__("__real_" #name);       \
    type fault_##name parameters __asm__("__wrap_" #name);      \
    type fault_##name parameters                                \
    {                                                           \
        if (FAULT_STRIKES(#name, __VA_ARGS__))                  \
            return failure;                                     \
        return real_##name arguments;                           \
    }

#endif
