/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attention call with random inputs, and what it must give: the oracle of
 * checkkern. The oracle works row by row from the definition, in double, on numbers it
 * decodes itself, and shares no code with the kernels.
 */
#ifndef KVW_TESTS_KERNELS_ATTN_CASE_H
#define KVW_TESTS_KERNELS_ATTN_CASE_H

#include "tests/kernels/check.h"

#define PIECES_MAX 320
#define PIECES_BUILT_MAX 96 /* by case_init(); cutting each in three then has room */
#define ROWS_MAX 6000

/* What to build. */
struct attn_plan {
    uint32_t n_q;
    uint32_t n_q_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim_k;
    uint32_t head_dim_v;
    uint32_t kv_type;
    uint32_t mask;
    bool is_windowed;
    uint32_t n_sink;
    uint32_t n_kept; /* rows in an ALWAYS piece */
    uint32_t n_past;
    bool is_future; /* all past rows lie behind the queries: nobody sees them */
    bool has_bias;
    bool has_softcap;
    bool has_sink_logits;
    bool has_raw_keys;
    uint32_t rope_layout;
    uint32_t cuts; /* pieces are cut about so many times each */
    enum fill fill;
};

struct attn_case {
    struct attn_plan plan;
    struct kvw_attn_args args;
    struct kvw_attn_piece pieces[PIECES_MAX];
    struct tensor k[PIECES_MAX]; /* of piece i */
    struct tensor v[PIECES_MAX];
    struct tensor k_scales[PIECES_MAX]; /* of I8; n_elems 1 */
    struct tensor v_scales[PIECES_MAX];
    struct tensor q;
    struct tensor out;
    struct tensor lse; /* n_elems 1 */
    float sink_logits[64];
    struct kvw_rope_table rope;
    float *cos;
    float *sin;
};

/* Rows that no query sees stay poisoned. */
void case_init(struct attn_case *a, struct check *c, const struct attn_plan *plan);
void case_fini(struct attn_case *a);

/* The same rows, cut and laid out in another way, with empty pieces among them.
 * Queries, tables and results of dst are its own. */
void case_init_recut(struct attn_case *dst, struct check *c,
                     const struct attn_case *src);

/* Point the arguments at piece tensors again after they were changed. */
void case_bind_piece(struct attn_case *a, uint32_t piece);

/* Whether query q sees row i of a piece, by design: the window of that query. */
bool case_sees(const struct attn_case *a, uint64_t q, uint32_t piece, uint64_t i);

/* An element of a key or value: of I8 with its scale. */
double case_key(const struct attn_case *a, uint32_t piece, uint64_t i, uint32_t head,
                uint32_t elem);
double case_value(const struct attn_case *a, uint32_t piece, uint64_t i, uint32_t head,
                  uint32_t elem);

/* Run a variant and check gaps, all outputs and their bounds. */
void case_check(struct attn_case *a, struct check *c, const struct kvw_attn_variant *v,
                const char *claim);

/* Check that out holds what merging of the results of two parts of the rows may give. */
void case_check_merged(const struct attn_case *a, struct check *c,
                       const struct kvw_attn_variant *v, const char *claim);

#endif /* KVW_TESTS_KERNELS_ATTN_CASE_H */
