/* SPDX-License-Identifier: Apache-2.0 */
/* See kernels_call.h. */
#include "bench/kernels_call.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES ((size_t)2 << 20)

static size_t bytes_of(uint32_t type)
{
    if (type == KVW_NUM_F32)
        return 4;
    return type == KVW_NUM_I8 ? 1 : 2;
}

static void *allocate(size_t n_bytes)
{
    const size_t rounded = (n_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    void *memory = aligned_alloc(PAGE_BYTES, rounded);

    if (memory != NULL)
        (void)madvise(memory, rounded, MADV_HUGEPAGE);
    return memory;
}

/* Numbers of about -1 .. 1 of any type, by the library's own conversion. */
static int fill(void *to, uint32_t type, size_t n)
{
    float part[1024];
    uint32_t state = 1;

    for (size_t at = 0; at < n; at += 1024) {
        const size_t left = n - at < 1024 ? n - at : 1024;
        float scale;
        for (size_t i = 0; i < left; i++) {
            state = state * 1664525u + 1013904223u;
            part[i] = (float)(int32_t)state * 0x1p-31f;
        }
        int error = kvw_rows_convert(&(struct kvw_convert_args){
            .src = part,
            .dst = (char *)to + at * bytes_of(type),
            .n_rows = 1,
            .n_heads = 1,
            .n_elems = (uint32_t)left,
            .src_type = KVW_NUM_F32,
            .dst_type = type,
            .scales = type == KVW_NUM_I8 ? &scale : NULL,
        });
        if (error != 0)
            return error;
    }
    return 0;
}

void call_fini(struct call *c)
{
    free(c->k);
    free(c->v);
    free(c->scales);
    free(c->q);
    free(c->out);
}

static void call_bind(struct call *c)
{
    const struct shape *s = &c->shape;
    const ptrdiff_t row_bytes = (ptrdiff_t)(s->head_dim * bytes_of(c->type));
    const ptrdiff_t q_bytes = (ptrdiff_t)(s->head_dim * sizeof(float));

    c->piece[0] = (struct kvw_attn_piece){
        .k = c->k,
        .v = c->v,
        .k_row_stride = row_bytes,
        .v_row_stride = row_bytes,
        .k_head_stride = row_bytes * (ptrdiff_t)s->n_rows,
        .v_head_stride = row_bytes * (ptrdiff_t)s->n_rows,
        .n_rows = s->n_rows,
    };
    if (c->type == KVW_NUM_I8) {
        c->piece[0].k_scales = c->scales;
        c->piece[0].v_scales = c->scales;
        c->piece[0].k_scales_row_stride = 4;
        c->piece[0].v_scales_row_stride = 4;
    }
    c->args = (struct kvw_attn_args){
        .q = c->q,
        .q_row_stride = q_bytes,
        .q_head_stride = q_bytes * (ptrdiff_t)s->n_q,
        .n_q = s->n_q,
        .n_q_heads = s->n_q_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim_k = s->head_dim,
        .head_dim_v = s->head_dim,
        .kv_type = c->type,
        .pieces = c->piece,
        .n_pieces = 1,
        .scale = (float)(1 / sqrt(s->head_dim)),
        .out = c->out,
        .out_row_stride = q_bytes,
        .out_head_stride = q_bytes * (ptrdiff_t)s->n_q,
        .n_threads = 1,
    };
}

int call_init(struct call *c, const struct shape *shape, uint32_t type)
{
    const size_t n = (size_t)shape->n_rows * shape->n_kv_heads * shape->head_dim;
    const size_t n_q = (size_t)shape->n_q * shape->n_q_heads * shape->head_dim;

    *c =
        (struct call){.shape = *shape, .type = type, .plane_bytes = n * bytes_of(type)};
    c->flops = 4.0 * (double)n_q * shape->n_rows;
    c->k = allocate(c->plane_bytes);
    c->v = allocate(c->plane_bytes);
    c->scales = allocate(shape->n_rows * sizeof(float));
    c->q = allocate(n_q * sizeof(float));
    c->out = allocate(n_q * sizeof(float));
    if (c->k == NULL || c->v == NULL || c->scales == NULL || c->q == NULL ||
        c->out == NULL)
        return -ENOMEM;
    memset(c->out, 0, n_q * sizeof(float));
    for (uint32_t i = 0; i < shape->n_rows; i++)
        c->scales[i] = 1.0f / 127;
    int error = fill(c->k, type, n);
    if (error == 0)
        error = fill(c->v, type, n);
    if (error == 0)
        error = fill(c->q, KVW_NUM_F32, n_q);
    call_bind(c);
    return error;
}

struct turn turn_of(const struct call *c, uint32_t n_threads)
{
    struct turn t = {.call = c, .args = c->args};

    memcpy(t.piece, c->piece, sizeof(t.piece));
    t.args.n_threads = n_threads;
    return t;
}

/* The rows of a turn as a ring that wraps in the middle, or as a sink and the rest. */
void turn_cut(struct turn *t, uint64_t at, bool is_swapped)
{
    const struct kvw_attn_piece whole = t->piece[0];
    struct kvw_attn_piece *first = &t->piece[is_swapped ? 1 : 0];
    struct kvw_attn_piece *second = &t->piece[is_swapped ? 0 : 1];

    *first = whole;
    *second = whole;
    first->n_rows = at;
    second->n_rows = whole.n_rows - at;
    second->k = (const char *)whole.k + (ptrdiff_t)at * whole.k_row_stride;
    second->v = (const char *)whole.v + (ptrdiff_t)at * whole.v_row_stride;
    if (whole.k_scales != NULL) {
        second->k_scales = whole.k_scales + at;
        second->v_scales = whole.v_scales + at;
    }
    t->args.n_pieces = 2;
}
