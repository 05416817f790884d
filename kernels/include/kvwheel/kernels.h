/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvwheel kernels: attention over a rolling window of keys and values, merging of
 * partial results, rotary embedding, and conversion of rows between number formats.
 *
 * The kernels know pointers, strides and counts, and nothing of caches or processes.
 * Every function is a pure function of its arguments: it allocates nothing, prints
 * nothing, makes no system call and keeps no state, except that the first call of an
 * operation remembers which variant fits this CPU. Any number of threads may call at
 * once as long as nobody writes what another one reads. No call uses more than 256 KiB
 * of stack, except attention: 1.5 MiB in each thread.
 *
 * Words used below
 *   row      one token of a cache. A row has a number that counts tokens since the
 *            sequence began; rows never move and numbers are never reused.
 *   piece    a run of rows with consecutive numbers that lies in memory with one row
 *            stride. A rolling window is a few pieces: sink, kept, past, current.
 *   stride   a distance in BYTES, always, possibly negative. The elements of one row of
 *            one head lie side by side. Pointers and strides are multiples of the
 *            element size; nothing more is asked of alignment.
 *   group    n_q_heads / n_kv_heads query heads that share one KV head (GQA): query
 *            head h uses KV head h / group.
 *
 * Structures that describe a call are to be filled with designated initialisers, so
 * that members that are not named are zero. Zero always means "not used" or "the usual
 * thing", and members added later keep to that.
 *
 * Return values: 0, or a negative errno that each function lists. A call that returns
 * an error has written nothing. The contents of the numbers are never an error: NaN in,
 * NaN out.
 *
 * Reproducible: a result depends on the values, on the variant and on the C library's
 * exp, log and tanh; not on how rows are cut into pieces, on the strides, on the number
 * of queries, heads or threads in the call, nor, with another mask than NONE, on rows
 * that the query does not see. So R ranks that each compute some of the heads give, bit
 * for bit, what one rank gives, if they run the same variant.
 */
#ifndef KVWHEEL_KERNELS_H
#define KVWHEEL_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef KVW_NODISCARD
#define KVW_NODISCARD __attribute__((warn_unused_result))
#endif
#define KVW_KERNELS_API __attribute__((visibility("default")))

/* Largest head_dim_k, head_dim_v and 2 * n_pairs, elements. */
#define KVW_HEAD_DIM_MAX 1024

/** Number formats of rows: the numbers that enum kvw_type of kvwheel.h has for them. */
enum kvw_num {
    KVW_NUM_F32 = 1,  /* IEEE 754 binary32 */
    KVW_NUM_BF16 = 2, /* the upper half of a binary32 */
    KVW_NUM_F16 = 3,  /* IEEE 754 binary16 */
    KVW_NUM_I8 = 4    /* int8; an element is worth its number times the row's scale */
};

/* ------------------------------------------------------------------ rotary tables */

/** Which two elements of a head form the pair that is rotated by angle j. */
enum kvw_rope_layout {
    KVW_ROPE_HALF_SPLIT = 0, /* x[j] and x[j + n_pairs]: GPT-NeoX, Llama */
    KVW_ROPE_INTERLEAVED = 1 /* x[2j] and x[2j + 1]: the paper, GPT-J, Wan */
};

/**
 * Cosines and sines for n_positions positions x n_pairs pairs, f32.
 *
 * cos and sin are [n_positions, n_pairs], rows row_stride bytes apart in both. Only the
 * first 2 * n_pairs elements of a head are rotated (partial rotary), the others pass.
 * The tables are the caller's and must stay while a call that names them runs. A
 * flattened table (one table row for each token of a frame) gives 2-D and 3-D rotary.
 */
struct kvw_rope_table {
    const float *cos;
    const float *sin;
    ptrdiff_t row_stride; /* bytes */
    uint64_t n_positions; /* positions 0 .. n_positions - 1 can be looked up */
    uint32_t n_pairs;     /* 1 <= n_pairs <= KVW_HEAD_DIM_MAX / 2 */
    uint32_t layout;      /* enum kvw_rope_layout */
};

/** What to fill a pair of tables with: see kvw_rope_fill(). */
struct kvw_rope_spec {
    float *cos; /* [out] [n_positions, n_pairs] */
    float *sin; /* [out] the same shape and stride */
    ptrdiff_t row_stride;
    uint64_t n_positions;
    uint32_t n_pairs;
    double theta; /* base of the frequencies, > 0, e.g. 10000; not used with inv_freq */
    const double *inv_freq; /* NULL, or n_pairs frequencies (Llama-3, YaRN ...) */
    double position_scale;  /* positions are multiplied by it; 0 means 1 */
    double magnitude;       /* cos and sin are multiplied by it (YaRN); 0 means 1 */
};

/**
 * Fill rotary tables.
 *
 *   angle(p, j) = p * position_scale * inv_freq[j],  inv_freq[j] = theta^(-j / n_pairs)
 *   cos[p][j] = magnitude * cos(angle), sin[p][j] = magnitude * sin(angle)
 *
 * computed in double and rounded once. Source: Su et al., "RoFormer: Enhanced
 * Transformer with Rotary Position Embedding" (arXiv 2104.09864), section 3.2.2.
 *
 * @return 0; -EINVAL for a null or misaligned pointer or stride, n_pairs 0, or theta
 * not > 0 where it is used; -ERANGE if 2 * n_pairs > KVW_HEAD_DIM_MAX.
 */
KVW_KERNELS_API KVW_NODISCARD int kvw_rope_fill(const struct kvw_rope_spec *spec);

#define KVW_ROPE_AXES_MAX 3u

/** A grid of tokens (frames x rows x columns): see kvw_rope_fill_grid(). */
struct kvw_rope_grid {
    float *cos; /* [out] [product of size, sum of n_pairs] */
    float *sin; /* [out] the same shape and stride */
    ptrdiff_t row_stride;
    uint32_t n_axes;                     /* 1 .. KVW_ROPE_AXES_MAX, the slowest first */
    uint64_t size[KVW_ROPE_AXES_MAX];    /* tokens along each axis */
    double begin[KVW_ROPE_AXES_MAX];     /* position of the first along each axis */
    uint32_t n_pairs[KVW_ROPE_AXES_MAX]; /* pairs that turn with each axis, in order */
    double theta;                        /* base of the frequencies, > 0 */
};

/**
 * Fill rotary tables for tokens on a grid: 2-D and 3-D rotary with splits.
 *
 * A table row is a token, the last axis fastest. Its pairs are split among the axes: pair
 * j of axis a, at position p of that axis, has
 *   angle = p * theta^(-j / n_pairs[a]),  p = begin[a] + index along a
 * computed in double and rounded once. With one axis and begin 0 that is kvw_rope_fill().
 * A grid of one token with begin = (delta, 0, 0) is the table that moves rotated keys by
 * delta frames: kvw_rope_apply() with position 0 and position_step 0.
 *
 * @return 0; -EINVAL for a null or misaligned pointer or stride, n_axes or a pair count of
 *         0 or too great, or theta not > 0; -ERANGE if 2 * sum of n_pairs >
 *         KVW_HEAD_DIM_MAX.
 */
KVW_KERNELS_API KVW_NODISCARD int kvw_rope_fill_grid(const struct kvw_rope_grid *grid);

/** Rows to rotate in place: see kvw_rope_apply(). */
struct kvw_rope_args {
    void *rows;           /* [n_rows, n_heads, >= 2 * n_pairs] of type */
    ptrdiff_t row_stride; /* bytes */
    ptrdiff_t head_stride;
    uint64_t n_rows;
    uint32_t n_heads;
    uint32_t type;                      /* enum kvw_num: F32, F16 or BF16 */
    const struct kvw_rope_table *table; /* required */
    int64_t position;                   /* of row 0; may be negative */
    int64_t position_step; /* from one row to the next: 1, or 0 for a shift */
};

/**
 * Rotate rows in place.
 *
 * Row i is rotated by position p = position + i * position_step. For each pair (a, b):
 *   a' = a * cos[p] - b * sin[p],  b' = b * cos[p] + a * sin[p]
 * A negative p uses table row -p with sin negated: the rotation back. So
 *   - queries and new keys:  position = first position, position_step = 1;
 *   - rotated keys moved by delta positions:  position = delta, position_step = 0
 *     (exact but for rounding; with magnitude 1 only).
 *
 * The elements behind the first 2 * n_pairs are neither read nor written. F16 and BF16
 * rows are rounded once to f32 and then to the type: rotate before converting where it
 * can be chosen.
 *
 * @return 0; -EINVAL for a null or misaligned pointer or stride, n_heads or n_pairs 0,
 *         or an unknown layout; -ERANGE if some |p| >= n_positions or 2 * n_pairs >
 *         KVW_HEAD_DIM_MAX; -ENOTSUP for another type.
 */
KVW_KERNELS_API KVW_NODISCARD int kvw_rope_apply(const struct kvw_rope_args *args);

/* ---------------------------------------------------------------------- attention */

/* Flags of a piece. */
#define KVW_ATTN_ALWAYS 1u   /* every query sees these rows, whatever the mask */
#define KVW_ATTN_RAW_KEYS 2u /* keys are stored unrotated: rotate them on read */

/** Which rows a query at row r sees, beside pieces flagged KVW_ATTN_ALWAYS. */
enum kvw_attn_mask {
    KVW_ATTN_NONE = 0,        /* all: end(r) is past every row */
    KVW_ATTN_CAUSAL = 1,      /* rows <= r: end(r) = r + 1 */
    KVW_ATTN_BLOCK_CAUSAL = 2 /* all rows up to the end of the block that r is in */
};

/** A run of rows. k and v may be NULL if n_rows is 0. */
struct kvw_attn_piece {
    const void *k;           /* [n_rows, n_kv_heads, head_dim_k] of kv_type */
    const void *v;           /* [n_rows, n_kv_heads, head_dim_v] of kv_type */
    ptrdiff_t k_row_stride;  /* bytes */
    ptrdiff_t k_head_stride; /* bytes */
    ptrdiff_t v_row_stride;
    ptrdiff_t v_head_stride;
    uint64_t n_rows;
    uint64_t first_row; /* number of the first row; not used with KVW_ATTN_NONE */
    uint64_t pos_base;  /* position of the first row; row i is at pos_base + i */
    float bias;         /* added to the scores of these rows; -INFINITY hides them */
    uint32_t flags;     /* KVW_ATTN_ALWAYS | KVW_ATTN_RAW_KEYS */

    /* One scale per row and head. Required for I8, must be NULL for other types. */
    const float *k_scales; /* f32 [n_rows, n_kv_heads] */
    const float *v_scales; /* f32 [n_rows, n_kv_heads] */
    ptrdiff_t k_scales_row_stride;
    ptrdiff_t k_scales_head_stride;
    ptrdiff_t v_scales_row_stride;
    ptrdiff_t v_scales_head_stride;
};

/** One attention call: see kvw_attn_run(). */
struct kvw_attn_args {
    /* Queries, f32 [n_q, n_q_heads, head_dim_k]. */
    const float *q;
    ptrdiff_t q_row_stride; /* bytes */
    ptrdiff_t q_head_stride;
    uint32_t n_q;
    uint32_t n_q_heads; /* a multiple of n_kv_heads */
    uint32_t n_kv_heads;
    uint32_t head_dim_k; /* 1 .. KVW_HEAD_DIM_MAX */
    uint32_t head_dim_v; /* 1 .. KVW_HEAD_DIM_MAX */

    /* Keys and values. */
    uint32_t kv_type; /* enum kvw_num */
    const struct kvw_attn_piece *pieces;
    uint32_t n_pieces; /* 0 is allowed */

    /* Who sees what. Query i is at row q_first_row + i. */
    uint32_t mask;            /* enum kvw_attn_mask */
    uint64_t q_first_row;     /* not used with KVW_ATTN_NONE */
    uint64_t window_rows;     /* W, sink and end(r)'s own rows included; 0: no limit */
    uint64_t sink_rows;       /* S < W; used with window_rows */
    uint64_t block_rows;      /* of BLOCK_CAUSAL: rows of a block, > 0 */
    uint64_t block_first_row; /* where a block starts; all rows before are a block */

    /* Scores. */
    float scale;              /* e.g. 1 / sqrt(head_dim_k); given, never implied */
    float softcap;            /* 0: none; else > 0 */
    const float *sink_logits; /* NULL, or f32 [n_q_heads] */
    /* For pieces flagged KVW_ATTN_RAW_KEYS, else NULL; 2 * n_pairs <= head_dim_k. */
    const struct kvw_rope_table *rope;

    /* Results. */
    float *out; /* [out] f32 [n_q, n_q_heads, head_dim_v] */
    ptrdiff_t out_row_stride;
    ptrdiff_t out_head_stride;
    float *lse; /* [out] NULL, or f32 [n_q, n_q_heads] */
    ptrdiff_t lse_row_stride;
    ptrdiff_t lse_head_stride;

    uint32_t n_threads; /* most threads to use; 0 and 1: only the calling thread */
};

/**
 * Attend from n_q queries to the rows of some pieces.
 *
 * For each query i and query head h, over the rows j that query i sees:
 *   s[j] = cap(scale * dot(q[i][h], key[j][h / group])) + bias(piece of j)
 *   cap(x) = x, or softcap * tanh(x / softcap)
 *   lse[i][h] = log(sum over j of exp(s[j]), plus exp(sink_logits[h]) if given)
 *   out[i][h] = sum over j of exp(s[j] - lse[i][h]) * value[j][h / group]
 * Sources: Vaswani et al., "Attention Is All You Need" (arXiv 1706.03762), section
 * 3.2.1; softcap: "Gemma 2" (arXiv 2408.00118), section 2; sink logits: the gpt-oss
 * model card (arXiv 2508.10925); StreamingLLM for windows with a sink:
 * Xiao et al. (arXiv 2309.17453), section 3.
 *
 * What a query sees. With end(r) of the mask and lo = end(r) - (W - S), at least 0, a
 * query at row r sees row j if
 *   mask is NONE, or the piece is flagged KVW_ATTN_ALWAYS, or
 *   j < end(r) and (W is 0 or j < S or j >= lo).
 * With CAUSAL this is the sink, kept rows, and the W - S rows that end at r itself: the
 * same for any chunking of the queries (window kind `row`). For window kind `chunk` the
 * pieces are what all queries see: NONE; or BLOCK_CAUSAL to compute several chunks in
 * one call. Rows that no query sees may hold anything, NaN included: they have no
 * influence. They may be read, so they must be mapped.
 *
 * Order of pieces. Rows are summed in the order in which the pieces list them. With
 * another mask than NONE, pieces that are not flagged KVW_ATTN_ALWAYS must be in
 * increasing order of rows and must not overlap. A row that is listed twice counts
 * twice, so rows of an ALWAYS piece must not be in another piece as well.
 *
 * Rotation on read. Keys of a piece flagged KVW_ATTN_RAW_KEYS are rotated by pos_base +
 * i, looked up in rope. Queries are never rotated here: the caller has rotated them (by
 * kvw_rope_apply()). For positions relative to the window (StreamingLLM) a row's
 * position is its index among the visible rows, in the order of the pieces: pos_base is
 * the number of rows of the pieces before, and the query sits at that of its own row.
 * With window kind `row` and several queries in a call that holds for the last query
 * only, since a row has one position in a call.
 *
 * Nothing to see. Where a query sees no row (or only rows with score -inf) out is 0 and
 * lse is -INFINITY, or sink_logits[h]. Empty pieces and n_pieces 0 are allowed; with
 * n_q 0 nothing is written.
 *
 * Special numbers. Scores may be of any size: nothing overflows on the way while, for
 * each query and head, the sums over d of |q[d] * key[d]| and of that times scale, and
 * the sums over rows of |value|, stay below FLT_MAX. An lse over FLT_MAX is infinite. A
 * score of -inf (from the bias or the key) takes the row out as if masked. A NaN or
 * +inf among the scores makes out and lse of that query and head NaN. NaN or infinity
 * in a visible value reaches that element of out and no other, except that a row whose
 * weight underflows to zero may or may not count. Subnormal numbers are kept.
 *
 * Precision. The reference rotates, multiplies and sums in double, in the order of d
 * modulo 8 and then of rows, and rounds once to f32. Variants sum in float; avx512_bf16
 * rounds queries, weights and keys that are rotated on read to bf16 and flushes subnormal
 * numbers; avx512_vnni rounds queries to 8 bits with a scale per row and head, and weights
 * to bf16. They agree within the bounds that tests/kernels/attn_oracle.c derives. Scores
 * must stay below FLT_MAX / 2.
 *
 * Threads. Up to n_threads of OpenMP's share KV heads and blocks of queries, or runs of
 * rows where there are few queries and heads. A library that was built without OpenMP uses
 * the calling thread.
 *
 * Ownership: everything is borrowed for the call. out and lse must not overlap each
 * other nor anything that is read.
 *
 * @return 0; -EINVAL for a null or misaligned pointer or stride that is needed, a count
 *         of heads that is 0 or not a multiple, head dimensions 0, an unknown mask or
 *         flag, window_rows with NONE, S >= W, block_rows 0 where needed, a scale or
 *         softcap that is not finite, softcap < 0, a bias that is NaN or +inf, pieces
 *         out of order, row numbers over 2^63, KVW_ATTN_RAW_KEYS without rope, scales
 *         with another type than I8 or missing with it; -ERANGE for a head dimension over KVW_HEAD_DIM_MAX, 2 * n_pairs over head_dim_k, or a position
 *         outside rope; -ENOTSUP for another kv_type.
 */
KVW_KERNELS_API KVW_NODISCARD int kvw_attn_run(const struct kvw_attn_args *args);

/* -------------------------------------------------------------------------- merge */

/** A partial result of attention: out and lse of kvw_attn_run() over some rows. */
struct kvw_attn_part {
    const float *out; /* f32 [n_q, n_heads, head_dim] */
    const float *lse; /* f32 [n_q, n_heads] */
    ptrdiff_t out_row_stride;
    ptrdiff_t out_head_stride;
    ptrdiff_t lse_row_stride;
    ptrdiff_t lse_head_stride;
};

/** Partial results to merge: see kvw_attn_merge(). */
struct kvw_merge_args {
    const struct kvw_attn_part *parts;
    uint32_t n_parts; /* 0 is allowed */
    uint32_t n_q;
    uint32_t n_heads;
    uint32_t head_dim; /* 1 .. KVW_HEAD_DIM_MAX */
    float *out;        /* [out] f32 [n_q, n_heads, head_dim] */
    ptrdiff_t out_row_stride;
    ptrdiff_t out_head_stride;
    float *lse; /* [out] NULL, or f32 [n_q, n_heads] */
    ptrdiff_t lse_row_stride;
    ptrdiff_t lse_head_stride;
};

/**
 * Merge attention over disjoint sets of rows into attention over their union.
 *
 *   lse = log(sum over parts of exp(lse_p))
 *   out = sum over parts of out_p * exp(lse_p - lse)
 *
 * in the order of the parts. Source: Dao et al., "FlashAttention" (arXiv 2205.14135),
 * section 3.1, as used for split rows.
 *
 * A part whose lse is -INFINITY saw nothing: its out isn't looked at. If all parts saw
 * nothing (or n_parts is 0), out is 0 and lse is -INFINITY. A NaN or +inf lse makes out
 * and lse NaN. Sink logits must have been given to exactly one of the parts.
 *
 * Equal to one attention call over all rows but for rounding: lse_p is an f32, so
 * weights carry a relative error of up to 2^-24 * |lse_p|.
 *
 * Everything is borrowed for the call. out and lse may be those of one part (same
 * pointer and strides); otherwise nothing may overlap.
 *
 * @return 0; -EINVAL for a null or misaligned pointer or stride or a zero n_heads or
 *         head_dim; -ERANGE if head_dim > KVW_HEAD_DIM_MAX.
 */
KVW_KERNELS_API KVW_NODISCARD int kvw_attn_merge(const struct kvw_merge_args *args);

/* --------------------------------------------------------------- linear attention */

/** The state of linear attention: what a chunk's rows add up to. */
struct kvw_linear_state {
    float *vk;                /* f32 [n_heads, head_dim_v, head_dim_k]: sums of v x k */
    float *k_sum;             /* f32 [n_heads, head_dim_k] */
    ptrdiff_t vk_head_stride; /* bytes */
    ptrdiff_t vk_row_stride;
    ptrdiff_t k_sum_head_stride;
};

/** Rows to add up: see kvw_linear_update(). */
struct kvw_linear_update_args {
    const float *k; /* f32 [n_rows, n_heads, head_dim_k]: features, such as relu */
    const float *k_rotated; /* NULL: k; else the same shape and strides, for vk alone */
    const float *v;         /* f32 [n_rows, n_heads, head_dim_v] */
    ptrdiff_t k_row_stride; /* bytes */
    ptrdiff_t k_head_stride;
    ptrdiff_t v_row_stride;
    ptrdiff_t v_head_stride;
    uint64_t n_rows;
    uint32_t n_heads;
    uint32_t head_dim_k; /* 1 .. KVW_HEAD_DIM_MAX */
    uint32_t head_dim_v; /* 1 .. KVW_HEAD_DIM_MAX */
    uint32_t is_added;   /* 0: the state begins at zero; 1: at what it holds */
    struct kvw_linear_state state; /* [out] */
};

/**
 * Add rows up to a state of linear attention.
 *
 *   vk[h][c][d] = (vk[h][c][d] or 0) + sum over rows i of v[i][h][c] * k_rotated[i][h][d]
 *   k_sum[h][d] = (k_sum[h][d] or 0) + sum over rows i of k[i][h][d]
 *
 * Source: Katharopoulos et al., "Transformers are RNNs" (arXiv 2006.16236), section 3.3;
 * with rotated keys in the numerator alone: SANA-Video (arXiv 2509.24695), section 2.
 * Rows are added in order, so that the result does not depend on how many heads a call
 * has; it does on how rows are divided among calls. The reference sums in double.
 *
 * Everything is borrowed for the call; the state must not overlap what is read.
 *
 * @return 0; -EINVAL for a null or misaligned pointer or stride, n_heads or a head
 *         dimension 0, or another is_added; -ERANGE for a head dimension over
 *         KVW_HEAD_DIM_MAX.
 */
KVW_KERNELS_API KVW_NODISCARD int
kvw_linear_update(const struct kvw_linear_update_args *args);

/** Queries of linear attention: see kvw_linear_use(). */
struct kvw_linear_use_args {
    const float *q;         /* f32 [n_q, n_heads, head_dim_k]: features */
    const float *q_rotated; /* NULL: q; else the same shape and strides, for vk alone */
    ptrdiff_t q_row_stride; /* bytes */
    ptrdiff_t q_head_stride;
    const struct kvw_linear_state *states; /* that count as their sum; only read */
    uint32_t n_states;                     /* 0 is allowed */
    uint32_t n_q;
    uint32_t n_heads;
    uint32_t head_dim_k;
    uint32_t head_dim_v;
    float eps;  /* added to the denominator */
    float *out; /* [out] f32 [n_q, n_heads, head_dim_v] */
    ptrdiff_t out_row_stride;
    ptrdiff_t out_head_stride;
};

/**
 * Attend to the sum of some states, such as those of a window's chunks.
 *
 *   out[i][h][c] = (sum over states, d of vk[h][c][d] * q_rotated[i][h][d])
 *                  / (sum over states, d of k_sum[h][d] * q[i][h][d] + eps)
 *
 * in the order of the states. A denominator of 0 gives what division gives.
 *
 * Everything is borrowed for the call; out must not overlap what is read.
 *
 * @return as kvw_linear_update(); -EINVAL also for an eps that is not finite.
 */
KVW_KERNELS_API KVW_NODISCARD int
kvw_linear_use(const struct kvw_linear_use_args *args);

/* --------------------------------------------------------------------- conversion */

/** Rows to convert: see kvw_rows_convert(). */
struct kvw_convert_args {
    const void *src; /* [n_rows, n_heads, n_elems] of src_type */
    ptrdiff_t src_row_stride;
    ptrdiff_t src_head_stride;
    void *dst; /* [out] the same shape, of dst_type */
    ptrdiff_t dst_row_stride;
    ptrdiff_t dst_head_stride;
    uint64_t n_rows;
    uint32_t n_heads;
    uint32_t n_elems; /* of a row of a head; any number > 0 */
    uint32_t src_type;
    uint32_t dst_type;
    /* f32 [n_rows, n_heads]: [out] for I8 as dst_type, read for I8 as src_type; must be
     * NULL for other types. */
    float *scales;
    ptrdiff_t scales_row_stride;
    ptrdiff_t scales_head_stride;
};

/**
 * Copy rows into slots, converting F32 to F16, BF16 or I8 or back; F32, F16 and BF16 are
 * also copied as they are.
 *
 * I8: a row of a head has scale = max |x| / 127, or 2^-126 if that is less, or 0 for a row
 * of zeros; element = x / scale, rounded to the nearest whole number, ties to even in the
 * usual rounding mode; back it is element * scale. A row with a NaN or an infinity gets
 * scale NaN and zeros: all of it is NaN when it is read.
 *
 * Narrowing rounds to nearest, ties to even; what is too large becomes infinite;
 * subnormal results are kept; a NaN keeps its sign and its upper payload bits and
 * becomes quiet. Widening is exact; F16 signalling NaNs become quiet. All of this holds
 * in every variant bit for bit, whatever the rounding mode and the flush-to-zero bits
 * of the thread say. Source: IEEE 754-2019, sections 3.4, 4.3.1 and 6.2.
 *
 * Everything is borrowed for the call; src and dst must not overlap.
 *
 * @return 0; -EINVAL for a null or misaligned pointer or stride or a zero n_heads or
 *         n_elems, or scales that are missing with I8 or given without it; -ENOTSUP for
 *         another pair of types.
 */
KVW_KERNELS_API KVW_NODISCARD int kvw_rows_convert(const struct kvw_convert_args *args);

/* ----------------------------------------------------------------------- dispatch */

/* What the CPU and the operating system can do. A bit is set only if the system saves
 * the registers as well. */
#define KVW_CPU_AVX2 (1u << 0)
#define KVW_CPU_FMA (1u << 1)
#define KVW_CPU_F16C (1u << 2)
#define KVW_CPU_AVX512 (1u << 3) /* F, BW, DQ and VL */
#define KVW_CPU_AVX512_VNNI (1u << 4)
#define KVW_CPU_AVX512_BF16 (1u << 5)
#define KVW_CPU_AVX512_FP16 (1u << 6)

/** The KVW_CPU_ bits of this machine, found once. */
KVW_KERNELS_API uint32_t kvw_cpu_flags(void);

/** Name of one KVW_CPU_ bit, such as "avx2"; NULL for any other number. */
KVW_KERNELS_API const char *kvw_cpu_flag_name(uint32_t flag);

/*
 * Each operation has a table of variants: best first, the reference ("ref", which
 * needs nothing) last. The public functions check their arguments and call the first
 * row whose needs this CPU meets, chosen once. Tests and tools may call any row that
 * the CPU can run. Its fn takes arguments that the public function would accept and
 * checks nothing. Tables are constant and live as long as the library.
 */
typedef void kvw_attn_fn(const struct kvw_attn_args *args);
typedef void kvw_merge_fn(const struct kvw_merge_args *args);
typedef void kvw_rope_fn(const struct kvw_rope_args *args);
typedef void kvw_convert_fn(const struct kvw_convert_args *args);
typedef void kvw_linear_update_fn(const struct kvw_linear_update_args *args);
typedef void kvw_linear_use_fn(const struct kvw_linear_use_args *args);

struct kvw_attn_variant {
    const char *name;
    uint32_t cpu_need; /* all of these KVW_CPU_ bits */
    kvw_attn_fn *fn;
};

struct kvw_merge_variant {
    const char *name;
    uint32_t cpu_need;
    kvw_merge_fn *fn;
};

struct kvw_rope_variant {
    const char *name;
    uint32_t cpu_need;
    kvw_rope_fn *fn;
};

struct kvw_convert_variant {
    const char *name;
    uint32_t cpu_need;
    kvw_convert_fn *fn;
};

struct kvw_linear_variant {
    const char *name;
    uint32_t cpu_need;
    kvw_linear_update_fn *update;
    kvw_linear_use_fn *use;
};

/**
 * The table of an operation, and how many rows it has. Attention has a table per type of
 * keys and values, conversion one per pair of types.
 *
 * @param n_variants  [out] number of rows; 0 with a NULL return for unknown types.
 */
KVW_KERNELS_API const struct kvw_attn_variant *kvw_attn_variants(uint32_t kv_type,
                                                                 uint32_t *n_variants);
KVW_KERNELS_API const struct kvw_merge_variant *
kvw_merge_variants(uint32_t *n_variants);
KVW_KERNELS_API const struct kvw_rope_variant *kvw_rope_variants(uint32_t *n_variants);
KVW_KERNELS_API const struct kvw_convert_variant *
kvw_convert_variants(uint32_t src_type, uint32_t dst_type, uint32_t *n_variants);
KVW_KERNELS_API const struct kvw_linear_variant *
kvw_linear_variants(uint32_t *n_variants);

/** The row that a CPU with these KVW_CPU_ bits gets; NULL only for unknown types. With
 *  kvw_cpu_flags() it is the one that the public function uses. */
KVW_KERNELS_API const struct kvw_attn_variant *kvw_attn_select(uint32_t kv_type,
                                                               uint32_t cpu_have);
KVW_KERNELS_API const struct kvw_merge_variant *kvw_merge_select(uint32_t cpu_have);
KVW_KERNELS_API const struct kvw_rope_variant *kvw_rope_select(uint32_t cpu_have);
KVW_KERNELS_API const struct kvw_convert_variant *
kvw_convert_select(uint32_t src_type, uint32_t dst_type, uint32_t cpu_have);
KVW_KERNELS_API const struct kvw_linear_variant *kvw_linear_select(uint32_t cpu_have);

#ifdef __cplusplus
}
#endif

#endif /* KVWHEEL_KERNELS_H */
