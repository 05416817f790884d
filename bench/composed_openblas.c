/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See composed.h: products by OpenBLAS, which is loaded when it is asked for, so that this
 * program does not need it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "bench/composed.h"

/* Of cblas.h. */
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
typedef void sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k,
                      float alpha, const float *a, int lda, const float *b, int ldb,
                      float beta, float *c, int ldc);
typedef void threads_fn(int n);

static sgemm_fn *sgemm;

struct state {
    struct composed_tile tile;
    const float *k;
    const float *v;
};

static int open_tile(void **state, const struct composed_tile *tile)
{
    struct state *s = calloc(1, sizeof *s);

    *state = s;
    if (s == NULL)
        return -ENOMEM;
    s->tile = *tile;
    return tile->is_bf16 ? -ENOTSUP : 0;
}

static int pack(void *state, const void *k, const void *v)
{
    struct state *s = state;

    s->k = k;
    s->v = v;
    return 0;
}

static int score(void *state, uint32_t tile, const void *q, float *to)
{
    const struct state *s = state;
    const struct composed_tile *t = &s->tile;
    const int d = (int)t->head_dim;

    sgemm(ROW_MAJOR, NO_TRANS, TRANS, (int)t->n_q, (int)t->n_rows, d, 1, q, d,
          s->k + (size_t)tile * t->n_rows * t->head_dim, d, 0, to, (int)t->n_rows);
    return 0;
}

static int value(void *state, uint32_t tile, const void *p, float *to)
{
    const struct state *s = state;
    const struct composed_tile *t = &s->tile;
    const int d = (int)t->head_dim;

    sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, (int)t->n_q, d, (int)t->n_rows, 1, p,
          (int)t->n_rows, s->v + (size_t)tile * t->n_rows * t->head_dim, d, 1, to, d);
    return 0;
}

static bool load(void)
{
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return false;
    sgemm = (sgemm_fn *)(uintptr_t)dlsym(library, "cblas_sgemm");
    threads_fn *threads =
        (threads_fn *)(uintptr_t)dlsym(library, "openblas_set_num_threads");
    if (threads != NULL)
        threads(1);
    return sgemm != NULL;
}

const struct composed_products *composed_openblas(void)
{
    static const struct composed_products products = {
        .open = open_tile, .close = free, .pack = pack, .score = score, .value = value};

    return sgemm != NULL || load() ? &products : NULL;
}
