/* SPDX-License-Identifier: Apache-2.0 */
/* The parts that the checks of attention are made of. */
#ifndef KVW_TESTS_KERNELS_CHECK_ATTN_H
#define KVW_TESTS_KERNELS_CHECK_ATTN_H

#include "tests/kernels/attn_case.h"

struct attn_plan plan_random(struct check *c, uint32_t kv_type, uint32_t shape,
                             uint32_t window, uint32_t mask);

void attn_special_numbers(struct check *c, const struct kvw_attn_variant *v,
                          uint32_t kv_type);
void attn_bad_arguments_are_refused(struct check *c);

#endif /* KVW_TESTS_KERNELS_CHECK_ATTN_H */
