/* SPDX-License-Identifier: Apache-2.0 */
/* See composed.h: products by oneDNN, if it was there when this was built. Keys and values
 * are packed as its products like them best, once for all queries. */
#include "bench/composed.h"

#ifdef KVW_BENCH_ONEDNN

#include <errno.h>
#include <omp.h>
#include <stdlib.h>

#include <dnnl.h>

/* One product, and its weights: as they lie, and packed. */
struct product {
    dnnl_primitive_t multiply;
    dnnl_primitive_t reorder;
    dnnl_memory_t from;
    dnnl_memory_t to;
    dnnl_memory_t plain;
    dnnl_memory_t packed;
    size_t packed_bytes; /* of a tile */
    char *memory;        /* all tiles */
};

struct state {
    struct composed_tile tile;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct product score;
    struct product value;
};

/* rows x columns of 2-D memory; stride of rows and of columns. */
static dnnl_memory_desc_t matrix(dnnl_data_type_t type, int64_t n_rows,
                                 int64_t n_columns, int64_t row, int64_t column)
{
    dnnl_memory_desc_t desc;
    const dnnl_dims_t dims = {n_rows, n_columns};
    const dnnl_dims_t strides = {row, column};

    (void)dnnl_memory_desc_init_by_strides(&desc, 2, dims, type, strides);
    return desc;
}

static void product_fini(struct product *p)
{
    (void)dnnl_primitive_destroy(p->multiply);
    (void)dnnl_primitive_destroy(p->reorder);
    (void)dnnl_memory_destroy(p->from);
    (void)dnnl_memory_destroy(p->to);
    (void)dnnl_memory_destroy(p->plain);
    (void)dnnl_memory_destroy(p->packed);
    free(p->memory);
}

/* The packing of plain weights as desc wants them. */
static int add_reorder(struct state *s, struct product *p,
                       const dnnl_memory_desc_t *plain, const dnnl_memory_desc_t *desc)
{
    dnnl_primitive_desc_t how = NULL;

    p->packed_bytes = (dnnl_memory_desc_get_size(desc) + 63) / 64 * 64;
    p->memory = aligned_alloc(64, p->packed_bytes * s->tile.n_tiles);
    if (p->memory == NULL)
        return -ENOMEM;
    int bad = dnnl_memory_create(&p->plain, plain, s->engine, DNNL_MEMORY_NONE) ||
              dnnl_memory_create(&p->packed, desc, s->engine, DNNL_MEMORY_NONE) ||
              dnnl_reorder_primitive_desc_create(&how, plain, s->engine, desc,
                                                 s->engine, NULL) ||
              dnnl_primitive_create(&p->reorder, how);
    (void)dnnl_primitive_desc_destroy(how);
    return bad ? -ENOTSUP : 0;
}

/* to = from * weights, or to += where it adds. Weights: K^T or V of a tile. */
static int product_init(struct state *s, struct product *p,
                        const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *plain,
                        const dnnl_memory_desc_t *to, bool is_added)
{
    dnnl_memory_desc_t any;
    dnnl_matmul_desc_t desc;
    dnnl_post_ops_t post = NULL;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t how = NULL;

    int bad = dnnl_memory_desc_init_by_tag(&any, 2, plain->dims, plain->data_type,
                                           dnnl_format_tag_any) ||
              dnnl_matmul_desc_init(&desc, from, &any, NULL, to) ||
              dnnl_primitive_attr_create(&attr) || dnnl_post_ops_create(&post) ||
              (is_added && dnnl_post_ops_append_sum(post, 1)) ||
              dnnl_primitive_attr_set_post_ops(attr, post) ||
              dnnl_primitive_desc_create(&how, &desc, attr, s->engine, NULL) ||
              dnnl_primitive_create(&p->multiply, how) ||
              dnnl_memory_create(&p->from, from, s->engine, DNNL_MEMORY_NONE) ||
              dnnl_memory_create(&p->to, to, s->engine, DNNL_MEMORY_NONE);
    int error =
        bad ? -ENOTSUP
            : add_reorder(s, p, plain,
                          dnnl_primitive_desc_query_md(how, dnnl_query_weights_md, 0));
    (void)dnnl_primitive_desc_destroy(how);
    (void)dnnl_primitive_attr_destroy(attr);
    (void)dnnl_post_ops_destroy(post);
    return error;
}

static void close_state(void *state)
{
    struct state *s = state;

    product_fini(&s->score);
    product_fini(&s->value);
    (void)dnnl_stream_destroy(s->stream);
    (void)dnnl_engine_destroy(s->engine);
    free(s);
}

static int open_state(void **state, const struct composed_tile *tile)
{
    const dnnl_data_type_t type = tile->is_bf16 ? dnnl_bf16 : dnnl_f32;
    const int64_t n_q = tile->n_q;
    const int64_t n_rows = tile->n_rows;
    const int64_t d = tile->head_dim;
    struct state *s = calloc(1, sizeof *s);

    *state = s;
    if (s == NULL)
        return -ENOMEM;
    s->tile = *tile;
    /* For this thread and whatever it makes; kernels say how many they want. */
    omp_set_num_threads(1);
    if (dnnl_engine_create(&s->engine, dnnl_cpu, 0) ||
        dnnl_stream_create(&s->stream, s->engine, dnnl_stream_default_flags))
        return -ENOTSUP;
    const dnnl_memory_desc_t q = matrix(type, n_q, d, d, 1);
    const dnnl_memory_desc_t k = matrix(type, d, n_rows, 1, d);
    const dnnl_memory_desc_t scores = matrix(dnnl_f32, n_q, n_rows, n_rows, 1);
    const dnnl_memory_desc_t weights = matrix(type, n_q, n_rows, n_rows, 1);
    const dnnl_memory_desc_t v = matrix(type, n_rows, d, d, 1);
    const dnnl_memory_desc_t out = matrix(dnnl_f32, n_q, d, d, 1);
    int error = product_init(s, &s->score, &q, &k, &scores, false);
    if (error == 0)
        error = product_init(s, &s->value, &weights, &v, &out, true);
    return error;
}

static int pack_tiles(struct state *s, struct product *p, const void *plain)
{
    const size_t n_bytes =
        (size_t)s->tile.n_rows * s->tile.head_dim * (s->tile.is_bf16 ? 2 : 4);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, p->plain},
                                    {DNNL_ARG_TO, p->packed}};

    for (uint32_t i = 0; i < s->tile.n_tiles; i++) {
        /* It is only read. */
        char *from = (char *)(uintptr_t)plain + i * n_bytes;
        if (dnnl_memory_set_data_handle(p->plain, from) ||
            dnnl_memory_set_data_handle(p->packed, p->memory + i * p->packed_bytes) ||
            dnnl_primitive_execute(p->reorder, s->stream, 2, args))
            return -EIO;
    }
    return 0;
}

static int pack(void *state, const void *k, const void *v)
{
    struct state *s = state;
    int error = pack_tiles(s, &s->score, k);
    return error == 0 ? pack_tiles(s, &s->value, v) : error;
}

static int multiply(struct state *s, struct product *p, uint32_t tile, const void *from,
                    float *to)
{
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->from}, {DNNL_ARG_WEIGHTS, p->packed}, {DNNL_ARG_DST, p->to}};

    if (dnnl_memory_set_data_handle(p->from, (void *)(uintptr_t)from) ||
        dnnl_memory_set_data_handle(p->packed,
                                    p->memory + (size_t)tile * p->packed_bytes) ||
        dnnl_memory_set_data_handle(p->to, to) ||
        dnnl_primitive_execute(p->multiply, s->stream, 3, args))
        return -EIO;
    return 0;
}

static int score(void *state, uint32_t tile, const void *q, float *to)
{
    struct state *s = state;

    return multiply(s, &s->score, tile, q, to);
}

static int value(void *state, uint32_t tile, const void *p, float *to)
{
    struct state *s = state;

    return multiply(s, &s->value, tile, p, to);
}

const struct composed_products *composed_onednn(void)
{
    static const struct composed_products products = {.open = open_state,
                                                      .close = close_state,
                                                      .pack = pack,
                                                      .score = score,
                                                      .value = value};

    return &products;
}

#else

const struct composed_products *composed_onednn(void)
{
    return NULL;
}

#endif
