/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which variants of the kernels a run uses: those that the library chooses, or those of
 * a CPU that can do no more than a named one needs.
 */
#ifndef GENERATE_KERNELS_H
#define GENERATE_KERNELS_H

#include <stdint.h>

#include <kvwheel/kernels.h>

#include "examples/common/fail.h"

struct kernels {
    const char *name; /* of the variant of attention, such as "avx512" */
    /* NULL: the library's public functions, which check their arguments and choose. */
    kvw_attn_fn *attn;
    kvw_rope_fn *rope;
    kvw_convert_fn *convert;
};

/** Check a name given on the command line: that of a variant of attention over any type,
 *  which this CPU can run. @return 0 or -EINVAL, with a list of those. */
int kernels_check(const char *name, struct fail *fail);

/** The variants for keys and values of a type. `name` was checked; NULL: the best.
 *  Where the type has no variant of that name, it is the next simpler one. */
struct kernels kernels_choose(const char *name, uint32_t type);

/** As kvw_attn_run(), kvw_rope_apply() and kvw_rows_convert(), by the chosen variants.
 *  @return what they return; 0 by a variant of a name. */
int kernels_attend(const struct kernels *kernels, const struct kvw_attn_args *args);
int kernels_rotate(const struct kernels *kernels, const struct kvw_rope_args *args);
int kernels_convert(const struct kernels *kernels, const struct kvw_convert_args *args);

#endif
