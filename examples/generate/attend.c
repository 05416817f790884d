/* SPDX-License-Identifier: Apache-2.0 */
/* Positions, slots and pieces: what lies between the decoder and the shared rows. */
#include "examples/generate/attend.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/cache.h"

/* A query's rows are at most all pieces twice: sink and recent. */
#define PIECES_MAX (2 * KVW_VIEW_PIECES_MAX)

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

int attend_init(struct attend *attend, struct session *session, struct fail *fail)
{
    const struct model_config *config = &session->config;
    const struct settings *settings = &session->plan.settings;
    const uint32_t n_pairs = config->head_dim / 2;
    uint64_t n_window = 0;

    *attend = (struct attend){
        .session = session,
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
    int result = kvw_rope_apply(&(struct kvw_rope_args){
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

/* Convert rows into the slots of one plane. */
static int convert(const struct attend *attend, const struct kvw_slots *slots,
                   uint32_t plane, const float *rows, struct fail *fail)
{
    const struct kvw_plane *to = &slots->plane[plane];
    const size_t head_bytes = sizeof(float) * attend->head_dim;
    const size_t row_bytes = head_bytes * attend->n_kv_heads;

    for (uint32_t i = 0; i < slots->n_pieces; i++) {
        const struct kvw_piece *piece = &slots->piece[i];
        size_t first = (size_t)(piece->row - attend->session->rows);
        int result = kvw_rows_convert(&(struct kvw_convert_args){
            .src = rows + first * attend->n_kv_heads * attend->head_dim,
            .src_row_stride = (ptrdiff_t)row_bytes,
            .src_head_stride = (ptrdiff_t)head_bytes,
            .dst = kvw_piece_at(to, piece, 0),
            .dst_row_stride = (ptrdiff_t)to->row_bytes,
            .dst_head_stride = (ptrdiff_t)to->head_bytes,
            .n_rows = piece->n_rows,
            .n_heads = attend->n_kv_heads,
            .n_elems = attend->head_dim,
            .src_type = KVW_NUM_F32,
            .dst_type = to->type,
        });
        if (result != 0)
            return fail_set(fail, FAIL_CACHE, "kernels: conversion refused (%d)",
                            result);
        attend->session->bytes_written += (uint64_t)piece->n_rows * attend->n_kv_heads *
                                          attend->head_dim *
                                          (to->type == KVW_F32 ? 4 : 2);
    }
    return 0;
}

int attend_write(const struct attend *attend, uint32_t layer, float *k, const float *v,
                 struct fail *fail)
{
    struct session *session = attend->session;
    struct kvw_slots slots;
    int result;

    if (!attend->is_window && rotate(attend, k, attend->n_kv_heads, fail) != 0)
        return -EINVAL;
    result = kvw_slots(session->cache, 0, session->self[layer], 0, session->open_rows,
                       &slots);
    if (result < 0)
        return cache_refused(fail, "slots", result);
    if (convert(attend, &slots, 0, k, fail) != 0 ||
        convert(attend, &slots, 1, v, fail) != 0)
        return -EINVAL;
    result =
        kvw_written(session->cache, 0, session->self[layer], 0, session->open_rows);
    return result < 0 ? cache_refused(fail, "written", result) : 0;
}

/* What one call of the kernel reads. */
struct rows {
    uint32_t n_pieces;
    uint64_t n_rows;
    struct kvw_attn_piece piece[PIECES_MAX];
};

/* Add rows [begin, end) of a view. A row's position is its index in the list. */
static void add_rows(const struct attend *attend, const struct kvw_view *view,
                     uint64_t begin, uint64_t end, struct rows *to)
{
    const struct kvw_plane *k = &view->plane[0], *v = &view->plane[1];

    for (uint32_t i = 0; i < view->n_pieces; i++) {
        const struct kvw_piece *piece = &view->piece[i];
        uint64_t first = piece->row > begin ? piece->row : begin;
        uint64_t last = piece->row + piece->n_rows;

        if (last > end)
            last = end;
        if (first >= last)
            continue;
        to->piece[to->n_pieces++] = (struct kvw_attn_piece){
            .k =
                (char *)kvw_piece_at(k, piece, 0) + (first - piece->row) * k->row_bytes,
            .v =
                (char *)kvw_piece_at(v, piece, 0) + (first - piece->row) * v->row_bytes,
            .k_row_stride = (ptrdiff_t)k->row_bytes,
            .k_head_stride = (ptrdiff_t)k->head_bytes,
            .v_row_stride = (ptrdiff_t)v->row_bytes,
            .v_head_stride = (ptrdiff_t)v->head_bytes,
            .n_rows = last - first,
            .first_row = first,
            .pos_base = to->n_rows,
            .flags = attend->is_window ? KVW_ATTN_RAW_KEYS : 0,
        };
        to->n_rows += last - first;
    }
}

/* Queries [first, first + n) of the step over some rows. */
static int run_kernel(const struct attend *attend, const struct rows *rows,
                      uint32_t first, uint32_t n, const float *q, float *out,
                      struct fail *fail)
{
    const size_t head_bytes = sizeof(float) * attend->head_dim;
    const size_t offset = (size_t)first * attend->n_heads * attend->head_dim;
    int result = kvw_attn_run(&(struct kvw_attn_args){
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
    });

    if (result != 0)
        return fail_set(fail, FAIL_CACHE, "kernels: attention refused (%d)", result);
    return 0;
}

/* Each query over the rows that it sees and no others: sink, then the W - S that end at
 * its own. */
static int run_each(const struct attend *attend, const struct kvw_view *view,
                    const float *q, float *out, struct fail *fail)
{
    const uint64_t sink = settings_of(attend)->sink_rows;
    const uint64_t recent = settings_of(attend)->window_rows - sink;
    struct rows rows; /* large: not worth clearing as a whole */

    for (uint32_t i = 0; i < open_rows(attend); i++) {
        const uint64_t end = attend->session->rows + i + 1;
        rows.n_pieces = 0;
        rows.n_rows = 0;
        add_rows(attend, view, 0, sink < end ? sink : end, &rows);
        add_rows(attend, view, end > recent + sink ? end - recent : sink, end, &rows);
        if (run_kernel(attend, &rows, i, 1, q, out, fail) != 0)
            return -EINVAL;
    }
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
    if (is_one_call(attend)) {
        struct rows rows;
        rows.n_pieces = 0;
        rows.n_rows = 0;
        add_rows(attend, &view, 0, view.end_row, &rows);
        (void)run_kernel(attend, &rows, 0, open_rows(attend), q, out, fail);
    } else {
        (void)run_each(attend, &view, q, out, fail);
    }
    result = kvw_release(session->cache, &view);
    if (result < 0)
        return cache_refused(fail, "release", result);
    return has_failed(fail) ? -EINVAL : 0;
}
