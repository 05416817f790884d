/* SPDX-License-Identifier: Apache-2.0 */
/* What kvw_attn_run() refuses, and that it has then written nothing. */
#include "tests/kernels/check_attn.h"

#include <errno.h>
#include <math.h>

#define REFUSED(error, what)                                                         \
    do {                                                                             \
        const int r = kvw_attn_run(&bad);                                            \
        check_that(c, r == (error), "bad arguments are refused", "%s: %d", what, r); \
    } while (0)
#define BAD(error, member, value)           \
    do {                                    \
        bad = a->args;                      \
        bad.member = (value);               \
        REFUSED(error, #member " " #value); \
    } while (0)
#define BAD_PIECE(error, piece, member, value)               \
    do {                                                     \
        const struct kvw_attn_piece kept = a->pieces[piece]; \
        bad = a->args;                                       \
        a->pieces[piece].member = (value);                   \
        REFUSED(error, "piece " #member " " #value);         \
        a->pieces[piece] = kept;                             \
    } while (0)
#define BAD_ROPE(error, member, value)              \
    do {                                            \
        const struct kvw_rope_table kept = a->rope; \
        bad = a->args;                              \
        a->rope.member = (value);                   \
        REFUSED(error, "rope " #member " " #value); \
        a->rope = kept;                             \
    } while (0)

static void bad_shapes(struct check *c, struct attn_case *a)
{
    struct kvw_attn_args bad;

    BAD(-EINVAL, n_q_heads, 0);
    BAD(-EINVAL, n_kv_heads, 0);
    BAD(-EINVAL, n_q_heads, 5);
    BAD(-EINVAL, head_dim_k, 0);
    BAD(-EINVAL, head_dim_v, 0);
    BAD(-ERANGE, head_dim_k, KVW_HEAD_DIM_MAX + 1);
    BAD(-ERANGE, head_dim_v, KVW_HEAD_DIM_MAX + 1);
    BAD(-EINVAL, kv_type, KVW_NUM_I8); /* without scales */
    BAD(-ENOTSUP, kv_type, 0);
    BAD(-ENOTSUP, kv_type, 99);
    BAD(-EINVAL, scale, NAN);
    BAD(-EINVAL, scale, INFINITY);
    BAD(-EINVAL, softcap, -1.0f);
    BAD(-EINVAL, softcap, NAN);
    BAD(-EINVAL, softcap, INFINITY);
}

static void bad_masks(struct check *c, struct attn_case *a)
{
    struct kvw_attn_args bad;

    BAD(-EINVAL, mask, 3);
    BAD(-EINVAL, mask, KVW_ATTN_NONE); /* with a window */
    BAD(-EINVAL, sink_rows, a->args.window_rows);
    BAD(-EINVAL, q_first_row, (uint64_t)1 << 63);
    BAD(-EINVAL, q_first_row, UINT64_MAX);
    a->args.mask = KVW_ATTN_BLOCK_CAUSAL;
    BAD(-EINVAL, block_rows, 0);
    BAD(-EINVAL, block_rows, UINT64_MAX);
    BAD(-EINVAL, block_first_row, UINT64_MAX);
    a->args.mask = KVW_ATTN_CAUSAL;
}

static void bad_memory(struct check *c, struct attn_case *a)
{
    struct kvw_attn_args bad;

    BAD(-EINVAL, q, NULL);
    BAD(-EINVAL, out, NULL);
    BAD(-EINVAL, pieces, NULL);
    BAD(-EINVAL, q_row_stride, 2);
    BAD(-EINVAL, q_head_stride, -3);
    BAD(-EINVAL, out_row_stride, 1);
    BAD(-EINVAL, out_head_stride, 1);
    BAD(-EINVAL, lse_row_stride, 2);
    BAD(-EINVAL, lse, (void *)((char *)a->args.lse + 1));
    BAD(-EINVAL, sink_logits, (void *)((char *)a->sink_logits + 2));
}

static void bad_pieces(struct check *c, struct attn_case *a)
{
    struct kvw_attn_args bad;
    const uint64_t first = a->pieces[2].first_row;

    BAD_PIECE(-EINVAL, 2, k, NULL);
    BAD_PIECE(-EINVAL, 2, v, NULL);
    BAD_PIECE(-EINVAL, 2, k, (const char *)kept.k + 1);
    BAD_PIECE(-EINVAL, 2, k_row_stride, 3);
    BAD_PIECE(-EINVAL, 2, k_head_stride, 3);
    BAD_PIECE(-EINVAL, 2, v_row_stride, 3);
    BAD_PIECE(-EINVAL, 2, v_head_stride, 3);
    BAD_PIECE(-EINVAL, 2, flags, 4);
    BAD_PIECE(-EINVAL, 2, bias, NAN);
    BAD_PIECE(-EINVAL, 2, bias, INFINITY);
    BAD_PIECE(-EINVAL, 2, first_row, 1);         /* in the sink */
    BAD_PIECE(-EINVAL, 2, first_row, first + 1); /* over the current ones */
    BAD_PIECE(-EINVAL, 2, first_row, UINT64_MAX);
    BAD_PIECE(-EINVAL, 3, first_row, ((uint64_t)1 << 63) - 1);
    BAD_PIECE(-EINVAL, 2, n_rows, UINT64_MAX);
    BAD_PIECE(-EINVAL, 2, k_scales, a->sink_logits);
    BAD_PIECE(-EINVAL, 2, v_scales, a->sink_logits);
}

static void bad_ropes(struct check *c, struct attn_case *a)
{
    struct kvw_attn_args bad;

    BAD(-EINVAL, rope, NULL);
    BAD_ROPE(-EINVAL, cos, NULL);
    BAD_ROPE(-EINVAL, sin, NULL);
    BAD_ROPE(-EINVAL, row_stride, 7);
    BAD_ROPE(-EINVAL, n_pairs, 0);
    BAD_ROPE(-EINVAL, layout, 2);
    BAD_ROPE(-ERANGE, n_pairs, kept.n_pairs + 1);
    BAD_PIECE(-ERANGE, 3, pos_base, a->rope.n_positions - 1); /* of two rows */
    BAD_PIECE(-ERANGE, 3, pos_base, a->rope.n_positions);
    BAD_PIECE(-ERANGE, 3, pos_base, UINT64_MAX);
}

/* Reserved or unused members may hold anything where they have no meaning. */
static void good_arguments_are_taken(struct check *c, struct attn_case *a)
{
    struct kvw_attn_args bad; /* not so bad */

    BAD(0, n_threads, 64);
    BAD(0, lse, NULL);
    BAD(0, n_pieces, 0);
    BAD(0, block_rows, UINT64_MAX);
    BAD_PIECE(0, 3, pos_base, a->rope.n_positions - 2);
    BAD_PIECE(0, 1, first_row, UINT64_MAX); /* always visible */
    bad = a->args;
    bad.n_q = 0;
    bad.q = NULL;
    bad.out = NULL;
    REFUSED(0, "no queries");
}

void attn_bad_arguments_are_refused(struct check *c)
{
    const struct attn_plan plan = {
        .n_q = 2,
        .n_q_heads = 4,
        .n_kv_heads = 2,
        .head_dim_k = 8,
        .head_dim_v = 8,
        .kv_type = KVW_NUM_BF16,
        .mask = KVW_ATTN_CAUSAL,
        .is_windowed = true,
        .n_sink = 2,
        .n_kept = 1,
        .n_past = 1,
        .has_raw_keys = true,
    };
    struct attn_case a;

    case_init(&a, c, &plan);
    bad_shapes(c, &a);
    bad_masks(c, &a);
    bad_memory(c, &a);
    bad_pieces(c, &a);
    bad_ropes(c, &a);
    check_that(c, kvw_attn_run(NULL) == -EINVAL, __func__, "NULL");
    check_that(c, tensor_is_untouched(&a.out), __func__, "out was written");
    check_that(c, tensor_is_untouched(&a.lse), __func__, "lse was written");
    good_arguments_are_taken(c, &a);
    check_that(c, kvw_attn_run(&a.args) == 0, __func__, "good ones are not");
    check_that(c, !tensor_is_untouched(&a.out), __func__, "nothing was written");
    case_fini(&a);
}
