/* SPDX-License-Identifier: Apache-2.0 */
/* Positions, slots and pieces: what lies between the decoder and the shared rows. */
#include "examples/generate/attend.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/cache.h"

/* What one call of the kernel reads. */
struct attend_rows {
    uint32_t n_pieces;
    uint32_t n_pieces_max;
    uint64_t n_rows; /* of all ranks that share them */
    struct kvw_attn_piece piece[];
};

/* The kernels number the types of planes as the library does. */
_Static_assert((int)KVW_NUM_F32 == (int)KVW_F32 && (int)KVW_NUM_BF16 == (int)KVW_BF16 &&
                   (int)KVW_NUM_F16 == (int)KVW_F16 && (int)KVW_NUM_I8 == (int)KVW_I8,
               "one number for a type");

/* Rows of the open step: at most a chunk. */
static uint32_t open_rows(const struct attend *attend)
{
    return (uint32_t)attend->session->open_rows;
}

static const struct settings *settings_of(const struct attend *attend)
{
    return &attend->session->plan.settings;
}

/* Cosines and sines of positions from `position` on, in double, rounded once. */
static void fill_table(const struct attend *attend, const struct kvw_rope_table *table,
                       uint64_t position, uint64_t n)
{
    const uint32_t n_pairs = table->n_pairs;
    float *cosines = (float *)(uintptr_t)table->cos;
    float *sines = (float *)(uintptr_t)table->sin;

    for (uint64_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n_pairs; j++) {
            double angle = (double)(position + i) * attend->inv_freq[j];
            cosines[i * n_pairs + j] = (float)cos(angle);
            sines[i * n_pairs + j] = (float)sin(angle);
        }
    }
}

static struct kvw_rope_table make_table(float *memory, uint64_t n_positions,
                                        uint32_t n_pairs)
{
    return (struct kvw_rope_table){
        .cos = memory,
        .sin = memory + n_positions * n_pairs,
        .row_stride = (ptrdiff_t)(sizeof(float) * n_pairs),
        .n_positions = n_positions,
        .n_pairs = n_pairs,
        .layout = KVW_ROPE_HALF_SPLIT,
    };
}

/* Room for the pieces of a call: those of a view, sink and recent rows apart, and a piece
 * for each block where rows are split. And for partial results. */
static int make_rows(struct attend *attend, struct fail *fail)
{
    const struct settings *settings = settings_of(attend);
    const size_t n_out = (size_t)settings->chunk_rows * attend->n_heads;
    uint64_t n_pieces = 2 * KVW_VIEW_PIECES_MAX;

    if (settings->row_parts > 1)
        n_pieces += 2 * (settings->window_rows + settings->chunk_rows) /
                    ((uint64_t)settings->row_block * settings->row_parts);
    attend->rows =
        malloc(sizeof(*attend->rows) + n_pieces * sizeof(attend->rows->piece[0]));
    if (attend->rows == NULL)
        return fail_memory(fail, "the pieces of a view");
    attend->rows->n_pieces_max = (uint32_t)n_pieces;
    if (settings->row_parts == 1)
        return 0;
    attend->part = malloc(sizeof(float) * n_out * (attend->head_dim + 1u));
    if (attend->part == NULL)
        return fail_memory(fail, "partial results");
    attend->part_lse = attend->part + n_out * attend->head_dim;
    return 0;
}

void attend_use(struct attend *attend, struct session *session)
{
    attend->session = session;
}

int attend_init(struct attend *attend, struct session *session, const char *kernels,
                struct fail *fail)
{
    const struct model_config *config = &session->config;
    const struct settings *settings = &session->plan.settings;
    const uint32_t n_pairs = config->head_dim / 2;
    uint64_t n_window = 0;

    *attend = (struct attend){
        .session = session,
        .kernels = kernels_choose(kernels, settings->type),
        .n_heads = session->kv_heads.n * (config->n_heads / config->n_kv_heads),
        .n_kv_heads = session->kv_heads.n,
        .head_dim = config->head_dim,
        .is_window = settings->positions == KVW_POSITIONS_WINDOW,
    };
    if (attend->is_window)
        n_window = settings->window_rows < session->plan.ids_max
                       ? settings->window_rows
                       : session->plan.ids_max;
    attend->inv_freq = malloc(sizeof(double) * n_pairs);
    attend->tables =
        malloc(sizeof(float) * 2 * n_pairs * (n_window + settings->chunk_rows));
    if (attend->inv_freq == NULL || attend->tables == NULL)
        return fail_memory(fail, "the rotary tables");

    for (uint32_t j = 0; j < n_pairs; j++)
        attend->inv_freq[j] = pow(config->rope_theta, -(double)j / n_pairs);
    if (make_rows(attend, fail) != 0)
        return -EINVAL;
    attend->window = make_table(attend->tables, n_window, n_pairs);
    attend->chunk = make_table(attend->tables + 2 * n_window * n_pairs,
                               settings->chunk_rows, n_pairs);
    fill_table(attend, &attend->window, 0, n_window);
    return 0;
}

void attend_fini(struct attend *attend)
{
    free(attend->inv_freq);
    free(attend->tables);
    free(attend->rows);
    free(attend->part);
    *attend = (struct attend){0};
}

/* Do all queries of the step see every row at one position? With the rule `window` that
 * ends where rows begin to leave. */
static bool is_one_call(const struct attend *attend)
{
    const struct session *session = attend->session;

    return !attend->is_window || session->open_rows == 1 ||
           session->rows + session->open_rows <= settings_of(attend)->window_rows;
}

void attend_step(struct attend *attend)
{
    const uint64_t last = settings_of(attend)->window_rows - 1;
    uint64_t position = attend->session->position;

    if (is_one_call(attend)) {
        fill_table(attend, &attend->chunk, position, open_rows(attend));
        return;
    }
    /* Each query sits at the end of its own window. */
    for (uint32_t i = 0; i < open_rows(attend); i++) {
        struct kvw_rope_table one = attend->chunk;
        uint64_t row = attend->session->rows + i;
        one.cos += (size_t)i * one.n_pairs;
        one.sin += (size_t)i * one.n_pairs;
        fill_table(attend, &one, row < last ? row : last, 1);
    }
}

/* Rotate the open rows by their own positions. */
static int rotate(const struct attend *attend, float *rows, uint32_t n_heads,
                  struct fail *fail)
{
    const size_t head_bytes = sizeof(float) * attend->head_dim;
    int result = kernels_rotate(
        &attend->kernels, &(struct kvw_rope_args){
                              .rows = rows,
                              .row_stride = (ptrdiff_t)(head_bytes * n_heads),
                              .head_stride = (ptrdiff_t)head_bytes,
                              .n_rows = open_rows(attend),
                              .n_heads = n_heads,
                              .type = KVW_NUM_F32,
                              .table = &attend->chunk,
                              .position = 0, /* the table begins at the open rows */
                              .position_step = 1,
                          });

    if (result != 0)
        return fail_set(fail, FAIL_CACHE, "kernels: rotation refused (%d)", result);
    return 0;
}

int attend_rotate_queries(const struct attend *attend, float *q, struct fail *fail)
{
    return rotate(attend, q, attend->n_heads, fail);
}

/* Rows from `row_here` of this rank's box on that the text numbers without a gap: at most n
 * of them. Sets the text's number of the first. */
static uint64_t next_run(const struct session *session, uint64_t row_here, uint64_t n,
                         uint64_t *row)
{
    const uint64_t block = session->plan.settings.row_block;

    *row = kvw_mpi_row(session->mpi, session->group_self, row_here);
    if (session->plan.settings.row_parts == 1)
        return n;
    const uint64_t left = block - row_here % block;
    return left < n ? left : n;
}

/* Convert rows into the slots of one plane. */
static int convert(const struct attend *attend, const struct kvw_slots *slots,
                   uint32_t plane, const float *rows, struct fail *fail)
{
    struct session *session = attend->session;
    const struct kvw_plane *to = &slots->plane[plane];
    const size_t head_bytes = sizeof(float) * attend->head_dim;
    const size_t row_elems = (size_t)attend->n_kv_heads * attend->head_dim;

    for (uint32_t i = 0; i < slots->n_pieces; i++) {
        const struct kvw_piece *piece = &slots->piece[i];
        for (uint64_t done = 0, n; done < piece->n_rows; done += n) {
            uint64_t row;
            n = next_run(session, piece->row + done, piece->n_rows - done, &row);
            int result = kernels_convert(
                &attend->kernels,
                &(struct kvw_convert_args){
                    .src = rows + (row - session->rows) * row_elems,
                    .src_row_stride = (ptrdiff_t)(sizeof(float) * row_elems),
                    .src_head_stride = (ptrdiff_t)head_bytes,
                    .dst = kvw_piece_at(to, piece, 0) + done * to->row_bytes,
                    .dst_row_stride = (ptrdiff_t)to->row_bytes,
                    .dst_head_stride = (ptrdiff_t)to->head_bytes,
                    .n_rows = n,
                    .n_heads = attend->n_kv_heads,
                    .n_elems = attend->head_dim,
                    .src_type = KVW_NUM_F32,
                    .dst_type = to->type,
                });
            if (result != 0)
                return fail_set(fail, FAIL_CACHE, "kernels: conversion refused (%d)",
                                result);
        }
        session->bytes_written +=
            (uint64_t)piece->n_rows * row_elems * (to->type == KVW_F32 ? 4 : 2);
    }
    return 0;
}

/* Rows of the open step that this rank holds. */
static uint64_t rows_here(const struct session *session)
{
    const uint64_t end = session->rows + session->open_rows;

    return kvw_mpi_rows_before(session->mpi, session->group_self, end) -
           kvw_mpi_rows_before(session->mpi, session->group_self, session->rows);
}

int attend_write(const struct attend *attend, uint32_t layer, float *k, const float *v,
                 struct fail *fail)
{
    struct session *session = attend->session;
    const uint64_t n = rows_here(session);
    struct kvw_slots slots;
    int result;

    if (!attend->is_window && rotate(attend, k, attend->n_kv_heads, fail) != 0)
        return -EINVAL;
    if (n == 0)
        return 0;
    result = kvw_slots(session->cache, 0, session->self[layer], 0, n, &slots);
    if (result < 0)
        return cache_refused(fail, "slots", result);
    if (convert(attend, &slots, 0, k, fail) != 0 ||
        convert(attend, &slots, 1, v, fail) != 0)
        return -EINVAL;
    result = kvw_written(session->cache, 0, session->self[layer], 0, n);
    return result < 0 ? cache_refused(fail, "written", result) : 0;
}

/* Add what a piece of a view has of rows [begin, end), whose first position is known. */
static int add_piece(const struct attend *attend, const struct kvw_view *view,
                     const struct kvw_piece *piece, uint64_t begin, uint64_t end,
                     struct fail *fail)
{
    const struct kvw_plane *k = &view->plane[0], *v = &view->plane[1];
    struct attend_rows *to = attend->rows;

    for (uint64_t done = 0, n; done < piece->n_rows; done += n) {
        uint64_t row;
        n = next_run(attend->session, piece->row + done, piece->n_rows - done, &row);
        const uint64_t first = row > begin ? row : begin;
        const uint64_t last = row + n < end ? row + n : end;
        const uint64_t skip = done + (first - row);
        if (first >= last)
            continue;
        if (to->n_pieces == to->n_pieces_max)
            return fail_set(fail, FAIL_CACHE, "kernels: more than %u pieces",
                            to->n_pieces_max);
        to->piece[to->n_pieces++] = (struct kvw_attn_piece){
            .k = kvw_piece_at(k, piece, 0) + skip * k->row_bytes,
            .v = kvw_piece_at(v, piece, 0) + skip * v->row_bytes,
            .k_row_stride = (ptrdiff_t)k->row_bytes,
            .k_head_stride = (ptrdiff_t)k->head_bytes,
            .v_row_stride = (ptrdiff_t)v->row_bytes,
            .v_head_stride = (ptrdiff_t)v->head_bytes,
            .n_rows = last - first,
            .first_row = first,
            .pos_base = to->n_rows + (first - begin),
            .flags = attend->is_window ? KVW_ATTN_RAW_KEYS : 0,
        };
    }
    return 0;
}

/* Rows that queries [first, first + n) of the step see: the sink, then what the first of them
 * finds in the window. A row's position is its index among them. */
static int list_rows(const struct attend *attend, const struct kvw_view *view,
                     uint32_t first, uint32_t n, struct fail *fail)
{
    const uint64_t sink = settings_of(attend)->sink_rows;
    const uint64_t recent = settings_of(attend)->window_rows - sink;
    const uint64_t end = attend->session->rows + first + n;
    const uint64_t seen = attend->session->rows + first + 1;
    const uint64_t range[2][2] = {{0, sink < end ? sink : end},
                                  {seen > recent + sink ? seen - recent : sink, end}};

    attend->rows->n_pieces = 0;
    attend->rows->n_rows = 0;
    for (int i = 0; i < 2; i++) {
        for (uint32_t p = 0; p < view->n_pieces && range[i][0] < range[i][1]; p++) {
            if (add_piece(attend, view, &view->piece[p], range[i][0], range[i][1],
                          fail) != 0)
                return -EINVAL;
        }
        if (range[i][0] < range[i][1])
            attend->rows->n_rows += range[i][1] - range[i][0];
    }
    return 0;
}

/* Queries [first, first + n) of the step over some rows. */
static int run_kernel(const struct attend *attend, uint32_t first, uint32_t n,
                      const float *q, float *out, struct fail *fail)
{
    const struct attend_rows *rows = attend->rows;
    const size_t head_bytes = sizeof(float) * attend->head_dim;
    const size_t offset = (size_t)first * attend->n_heads * attend->head_dim;
    int result = kernels_attend(
        &attend->kernels,
        &(struct kvw_attn_args){
            .q = q + offset,
            .q_row_stride = (ptrdiff_t)(head_bytes * attend->n_heads),
            .q_head_stride = (ptrdiff_t)head_bytes,
            .n_q = n,
            .n_q_heads = attend->n_heads,
            .n_kv_heads = attend->n_kv_heads,
            .head_dim_k = attend->head_dim,
            .head_dim_v = attend->head_dim,
            .kv_type = settings_of(attend)->type,
            .pieces = rows->piece,
            .n_pieces = rows->n_pieces,
            .mask = KVW_ATTN_CAUSAL,
            .q_first_row = attend->session->rows + first,
            .window_rows = settings_of(attend)->window_rows,
            .sink_rows = settings_of(attend)->sink_rows,
            .scale = (float)(1.0 / sqrt(attend->head_dim)),
            .rope = attend->is_window ? &attend->window : NULL,
            .out = out + offset,
            .out_row_stride = (ptrdiff_t)(head_bytes * attend->n_heads),
            .out_head_stride = (ptrdiff_t)head_bytes,
            .lse = attend->part_lse == NULL
                       ? NULL
                       : attend->part_lse + (size_t)first * attend->n_heads,
            .lse_row_stride = (ptrdiff_t)(sizeof(float) * attend->n_heads),
            .lse_head_stride = sizeof(float),
        });

    if (result != 0)
        return fail_set(fail, FAIL_CACHE, "kernels: attention refused (%d)", result);
    return 0;
}

/* All queries in one call, or each over the rows that it sees and no others. */
static int run_kernels(const struct attend *attend, const struct kvw_view *view,
                       const float *q, float *out, struct fail *fail)
{
    const uint32_t n = is_one_call(attend) ? open_rows(attend) : 1;

    for (uint32_t i = 0; i < open_rows(attend); i += n) {
        if (list_rows(attend, view, i, n, fail) != 0 ||
            run_kernel(attend, i, n, q, out, fail) != 0)
            return -EINVAL;
    }
    return 0;
}

/* Put the partial results of the ranks that share the rows together: the same on each. */
static int merge(const struct attend *attend, float *out, struct fail *fail)
{
    const size_t head_bytes = sizeof(float) * attend->head_dim;
    const ptrdiff_t row_bytes = (ptrdiff_t)(head_bytes * attend->n_heads);
    const struct kvw_mpi_merge args = {
        .n_q = open_rows(attend),
        .n_heads = attend->n_heads,
        .head_dim = attend->head_dim,
        .part = {attend->part, attend->part_lse, row_bytes, (ptrdiff_t)head_bytes,
                 (ptrdiff_t)(sizeof(float) * attend->n_heads), sizeof(float)},
        .out = out,
        .out_row_stride = row_bytes,
        .out_head_stride = (ptrdiff_t)head_bytes,
    };
    int result = kvw_mpi_merge(attend->session->mpi, &args);

    if (result < 0)
        return session_refused_mpi(attend->session, fail, "merge", result);
    return 0;
}

int attend_run(const struct attend *attend, uint32_t layer, const float *q, float *out,
               struct fail *fail)
{
    struct session *session = attend->session;
    struct kvw_view view;
    int result = kvw_get(session->cache, 0, session->self[layer], KVW_STAGED, &view);

    if (result < 0)
        return cache_refused(fail, "get", result);
    (void)run_kernels(attend, &view, q, attend->part != NULL ? attend->part : out,
                      fail);
    result = kvw_release(session->cache, &view);
    if (result < 0)
        return cache_refused(fail, "release", result);
    if (has_failed(fail))
        return -EINVAL;
    return attend->part != NULL ? merge(attend, out, fail) : 0;
}
