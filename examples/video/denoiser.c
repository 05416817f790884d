/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peebles and Xie, "Scalable Diffusion Models with Transformers" (arXiv 2212.09748): layers
 * that the time shifts, scales and gates. Flow matching: Lipman et al. (arXiv 2210.02747).
 * Positions: Su et al. (arXiv 2104.09864), split over frame, line and column.
 */
#include "examples/video/denoiser.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "examples/common/buffers.h"

#define NORM_EPSILON 1e-5
#define WINDOW_ROWS (VIDEO_WINDOW * VIDEO_ROWS)
#define N_PAIRS (VIDEO_HEAD_DIM / 2)

static const struct {
    uint32_t n_pairs;
    uint32_t rows; /* how many before it goes on by one */
    uint32_t n;    /* places; 0: all */
    double slowest;
} axes[] = {{6, VIDEO_FRAME_ROWS, 0, 0.03},
            {5, VIDEO_SIDE, VIDEO_SIDE, 0.3},
            {5, 1, VIDEO_SIDE, 0.3}};
#define FASTEST 1.5 /* radians a place */

/* Cosines and sines of every row of a window, in double, rounded once. */
static void fill_rope(struct denoiser *denoiser)
{
    for (uint32_t row = 0; row < WINDOW_ROWS; row++) {
        uint32_t pair = 0;
        for (size_t axis = 0; axis < sizeof(axes) / sizeof(axes[0]); axis++) {
            uint32_t place = row / axes[axis].rows;
            if (axes[axis].n != 0)
                place %= axes[axis].n;
            for (uint32_t j = 0; j < axes[axis].n_pairs; j++, pair++) {
                double rate = FASTEST * pow(axes[axis].slowest / FASTEST,
                                            (double)j / (axes[axis].n_pairs - 1));
                denoiser->cos[row * N_PAIRS + pair] = (float)cos(place * rate);
                denoiser->sin[row * N_PAIRS + pair] = (float)sin(place * rate);
            }
        }
    }
    denoiser->rope = (struct kvw_rope_table){
        .cos = denoiser->cos,
        .sin = denoiser->sin,
        .row_stride = (ptrdiff_t)(sizeof(float) * N_PAIRS),
        .n_positions = WINDOW_ROWS,
        .n_pairs = N_PAIRS,
        .layout = KVW_ROPE_HALF_SPLIT,
    };
}

/* The buffers. */
static int set_buffers(struct denoiser *denoiser, struct fail *fail)
{
    const size_t rows = VIDEO_ROWS * VIDEO_HIDDEN, table = WINDOW_ROWS * N_PAIRS;
    const size_t sizes[] = {table,
                            table,
                            rows,
                            rows,
                            rows,
                            rows,
                            rows,
                            VIDEO_ROWS * VIDEO_WIDE,
                            VIDEO_ROWS * VIDEO_WIDE};
    float **buffers[] = {&denoiser->cos,  &denoiser->sin,  &denoiser->x,
                         &denoiser->norm, &denoiser->q,    &denoiser->k,
                         &denoiser->v,    &denoiser->mine, &denoiser->all};

    denoiser->memory =
        buffers_new(sizes, buffers, sizeof(sizes) / sizeof(sizes[0]), fail);
    return denoiser->memory != NULL ? 0 : -EINVAL;
}

/* Who computes which columns of what is exchanged. */
static int set_columns(struct denoiser *denoiser, struct fail *fail)
{
    const uint32_t n_ranks = denoiser->ranks->n_ranks;

    for (uint32_t r = 0; r < n_ranks; r++) {
        struct share hidden = share_of(VIDEO_HIDDEN, n_ranks, r);
        struct share wide = share_of(VIDEO_WIDE, n_ranks, r);
        struct share heads;
        if (cache_heads(denoiser->session->cache, denoiser->session->group_self, r,
                        &heads, fail) != 0)
            return -EINVAL;
        ranks_columns_set(&denoiser->heads, r, heads.first * VIDEO_HEAD_DIM,
                          heads.n * VIDEO_HEAD_DIM);
        ranks_columns_set(&denoiser->hidden, r, hidden.first, hidden.n);
        ranks_columns_set(&denoiser->wide, r, wide.first, wide.n);
    }
    return 0;
}

int denoiser_init(struct denoiser *denoiser, struct video_model *model,
                  struct session *session, struct ranks *ranks, struct fail *fail)
{
    *denoiser = (struct denoiser){.model = model, .session = session, .ranks = ranks};
    if (video_model_load(model, ranks->n_ranks, ranks->rank, session->heads, fail) ==
            0 &&
        set_columns(denoiser, fail) == 0 && set_buffers(denoiser, fail) == 0 &&
        ranks_reserve(ranks, VIDEO_ROWS, VIDEO_WIDE, fail) == 0)
        fill_rope(denoiser);
    return ranks_agree(ranks, fail);
}

void denoiser_fini(struct denoiser *denoiser)
{
    free(denoiser->memory);
    *denoiser = (struct denoiser){0};
}

double denoiser_time(uint32_t pass, uint32_t passes)
{
    double u = 1 - (double)pass / passes;

    return VIDEO_SHIFT * u / (1 + (VIDEO_SHIFT - 1) * u);
}

/* ------------------------------------------------------------------ arithmetic ---- */

/* m * x + bias for one row. */
static void map_row(const struct matrix *m, const float *bias, const float *x,
                    float *out)
{
    matrix_apply(m, x, 1, out);
    add_to(out, bias, m->n_rows);
}

/* What a time does to every layer: step[VIDEO_STEP]. */
static void set_time(struct denoiser *denoiser, double t)
{
    const struct video_model *model = denoiser->model;
    float waves[2 * VIDEO_TIMES], hidden[VIDEO_HIDDEN];

    for (uint32_t i = 0; i < VIDEO_TIMES; i++) {
        double angle = 100 * t * exp(-log(1e3) * i / VIDEO_TIMES);
        waves[i] = (float)cos(angle);
        waves[VIDEO_TIMES + i] = (float)sin(angle);
    }
    map_row(&model->time_in, model->time_in_bias, waves, hidden);
    for (uint32_t i = 0; i < VIDEO_HIDDEN; i++)
        hidden[i] = hidden[i] / (1.0f + expf(-hidden[i]));
    map_row(&model->time_out, model->time_out_bias, hidden, denoiser->step);
}

/* norm = (x - mean) / deviation * (1 + scale) + shift, row by row. */
static void normalize(struct denoiser *denoiser, const float *shift, const float *scale)
{
    for (uint32_t row = 0; row < VIDEO_ROWS; row++) {
        const float *x = denoiser->x + (size_t)row * VIDEO_HIDDEN;
        float *to = denoiser->norm + (size_t)row * VIDEO_HIDDEN;
        double sum = 0, squares = 0;
        for (uint32_t i = 0; i < VIDEO_HIDDEN; i++)
            sum += (double)x[i];
        const double mean = sum / VIDEO_HIDDEN;
        for (uint32_t i = 0; i < VIDEO_HIDDEN; i++)
            squares += ((double)x[i] - mean) * ((double)x[i] - mean);
        const double factor = 1 / sqrt(squares / VIDEO_HIDDEN + NORM_EPSILON);
        for (uint32_t i = 0; i < VIDEO_HIDDEN; i++) {
            float y = (float)(((double)x[i] - mean) * factor);
            to[i] = y * (1 + (scale != NULL ? scale[i] : 0)) +
                    (shift != NULL ? shift[i] : 0);
        }
    }
}

/* Exchange mine into all, apply this rank's rows of `m`, exchange again, and add to the
 * residual stream, through a gate if there is one. */
static void project(struct denoiser *denoiser, const struct ranks_columns *columns,
                    const struct matrix *m, const float *gate)
{
    ranks_gather(denoiser->ranks, columns, VIDEO_ROWS, denoiser->mine, denoiser->all);
    matrix_apply(m, denoiser->all, VIDEO_ROWS, denoiser->mine);
    ranks_gather(denoiser->ranks, &denoiser->hidden, VIDEO_ROWS, denoiser->mine,
                 denoiser->all);
    for (uint32_t i = 0; gate != NULL && i < VIDEO_ROWS * VIDEO_HIDDEN; i++)
        denoiser->all[i] *= gate[i % VIDEO_HIDDEN];
    add_to(denoiser->x, denoiser->all, VIDEO_ROWS * VIDEO_HIDDEN);
}

/* ------------------------------------------------------------------- attention ---- */

/* Write K and V of n rows of the open step into a layer. */
static int write_rows(const struct denoiser *denoiser, struct kvw_layer layer,
                      uint64_t n, const float *k, const float *v, struct fail *fail)
{
    const int64_t head_bytes = sizeof(float) * VIDEO_HEAD_DIM;
    const int64_t row_bytes = head_bytes * denoiser->session->heads.n;
    const struct kvw_source sources[2] = {{k, row_bytes, head_bytes},
                                          {v, row_bytes, head_bytes}};
    int result = kvw_update(denoiser->session->cache, 0, layer, 0, n, sources);

    return result < 0 ? cache_refused(fail, "update", result) : 0;
}

/* List the pieces of a view. A row's position is its index in the list. */
static uint32_t list_pieces(const struct kvw_view *view, uint32_t flags,
                            struct kvw_attn_piece *to)
{
    const struct kvw_plane *k = &view->plane[0], *v = &view->plane[1];
    uint64_t n_rows = 0;

    for (uint32_t i = 0; i < view->n_pieces; i++) {
        const struct kvw_piece *piece = &view->piece[i];
        to[i] = (struct kvw_attn_piece){
            .k = kvw_piece_at(k, piece, 0),
            .v = kvw_piece_at(v, piece, 0),
            .k_row_stride = (ptrdiff_t)k->row_bytes,
            .k_head_stride = (ptrdiff_t)k->head_bytes,
            .v_row_stride = (ptrdiff_t)v->row_bytes,
            .v_head_stride = (ptrdiff_t)v->head_bytes,
            .n_rows = piece->n_rows,
            .first_row = piece->row,
            .pos_base = n_rows,
            .flags = flags,
        };
        n_rows += piece->n_rows;
    }
    return view->n_pieces;
}

/* Attend from q to all that a layer shows; the result is in denoiser->mine. */
static int attend(struct denoiser *denoiser, struct kvw_layer layer,
                  const struct kvw_rope_table *rope, struct fail *fail)
{
    struct session *session = denoiser->session;
    const uint32_t n_heads = session->heads.n;
    const ptrdiff_t head_stride = sizeof(float) * VIDEO_HEAD_DIM;
    struct kvw_attn_piece piece[KVW_VIEW_PIECES_MAX];
    struct kvw_view view;
    int result = kvw_get(session->cache, 0, layer, KVW_STAGED, &view);

    if (result < 0)
        return cache_refused(fail, "get", result);
    result = kvw_attn_run(&(struct kvw_attn_args){
        .q = denoiser->q,
        .q_row_stride = head_stride * n_heads,
        .q_head_stride = head_stride,
        .n_q = VIDEO_ROWS,
        .n_q_heads = n_heads,
        .n_kv_heads = n_heads,
        .head_dim_k = VIDEO_HEAD_DIM,
        .head_dim_v = VIDEO_HEAD_DIM,
        .kv_type = KVW_NUM_F32,
        .n_pieces = list_pieces(&view, rope != NULL ? KVW_ATTN_RAW_KEYS : 0, piece),
        .pieces = piece,
        .mask = KVW_ATTN_NONE,
        .scale = (float)(1 / sqrt(VIDEO_HEAD_DIM)),
        .rope = rope,
        .out = denoiser->mine,
        .out_row_stride = head_stride * n_heads,
        .out_head_stride = head_stride,
    });
    if (result != 0)
        (void)fail_set(fail, FAIL_CACHE, "kernels: attention refused (%d)", result);
    result = kvw_release(session->cache, &view);
    return result < 0 ? cache_refused(fail, "release", result) : 0;
}

static int rotate_queries(struct denoiser *denoiser, struct fail *fail)
{
    const uint32_t n_heads = denoiser->session->heads.n;
    const ptrdiff_t head_stride = sizeof(float) * VIDEO_HEAD_DIM;
    int result = kvw_rope_apply(&(struct kvw_rope_args){
        .rows = denoiser->q,
        .row_stride = head_stride * n_heads,
        .head_stride = head_stride,
        .n_rows = VIDEO_ROWS,
        .n_heads = n_heads,
        .type = KVW_NUM_F32,
        .table = &denoiser->rope,
        .position = (int64_t)denoiser->session->position,
        .position_step = 1,
    });

    return result != 0
               ? fail_set(fail, FAIL_CACHE, "kernels: rotation refused (%d)", result)
               : 0;
}

static void attend_self(struct denoiser *denoiser, uint32_t i, struct fail *fail)
{
    const struct video_layer *layer = &denoiser->model->layer[i];
    const struct kvw_layer rows = denoiser->session->self[i];

    if (has_failed(fail))
        return;
    matrix_apply(&layer->q, denoiser->norm, VIDEO_ROWS, denoiser->q);
    matrix_apply(&layer->k, denoiser->norm, VIDEO_ROWS, denoiser->k);
    matrix_apply(&layer->v, denoiser->norm, VIDEO_ROWS, denoiser->v);
    if (rotate_queries(denoiser, fail) == 0 &&
        write_rows(denoiser, rows, VIDEO_ROWS, denoiser->k, denoiser->v, fail) == 0)
        (void)attend(denoiser, rows, &denoiser->rope, fail);
}

static void attend_prompt(struct denoiser *denoiser, uint32_t i, struct fail *fail)
{
    if (has_failed(fail))
        return;
    matrix_apply(&denoiser->model->layer[i].cross_q, denoiser->norm, VIDEO_ROWS,
                 denoiser->q);
    (void)attend(denoiser, denoiser->session->cross[i], NULL, fail);
}

/* ---------------------------------------------------------------------- passes ---- */

void denoiser_prompt(struct denoiser *denoiser, const struct prompt *prompt,
                     struct fail *fail)
{
    const float *words = denoiser->model->words;
    const uint32_t word[VIDEO_WORDS] = {prompt->balls - 1, VIDEO_BALLS + prompt->speed};
    float text[VIDEO_WORDS * VIDEO_HIDDEN];

    for (uint32_t i = 0; i < VIDEO_WORDS * VIDEO_HIDDEN; i++)
        text[i] = words[word[i / VIDEO_HIDDEN] * VIDEO_HIDDEN + i % VIDEO_HIDDEN];
    for (uint32_t i = 0; i < VIDEO_LAYERS && !has_failed(fail); i++) {
        const struct video_layer *layer = &denoiser->model->layer[i];
        matrix_apply(&layer->cross_k, text, VIDEO_WORDS, denoiser->k);
        matrix_apply(&layer->cross_v, text, VIDEO_WORDS, denoiser->v);
        (void)write_rows(denoiser, denoiser->session->cross[i], VIDEO_WORDS,
                         denoiser->k, denoiser->v, fail);
    }
}

static void run_layer(struct denoiser *denoiser, uint32_t i, struct fail *fail)
{
    const struct video_layer *layer = &denoiser->model->layer[i];
    float m[VIDEO_STEP];

    for (uint32_t j = 0; j < VIDEO_STEP; j++)
        m[j] = denoiser->step[j] + layer->table[j];
    normalize(denoiser, m, m + VIDEO_HIDDEN);
    attend_self(denoiser, i, fail);
    project(denoiser, &denoiser->heads, &layer->out, m + (size_t)2 * VIDEO_HIDDEN);

    normalize(denoiser, NULL, NULL);
    attend_prompt(denoiser, i, fail);
    project(denoiser, &denoiser->heads, &layer->cross_out, NULL);

    normalize(denoiser, m + (size_t)3 * VIDEO_HIDDEN, m + (size_t)4 * VIDEO_HIDDEN);
    matrix_apply(&layer->up, denoiser->norm, VIDEO_ROWS, denoiser->mine);
    for (uint32_t j = 0; j < VIDEO_ROWS * layer->up.n_rows; j++) {
        float y = denoiser->mine[j] > 0 ? denoiser->mine[j] : 0;
        denoiser->mine[j] = y * y;
    }
    project(denoiser, &denoiser->wide, &layer->down, m + (size_t)5 * VIDEO_HIDDEN);
}

void denoiser_pass(struct denoiser *denoiser, const float *tokens, double t,
                   float *said, struct fail *fail)
{
    const struct video_model *model = denoiser->model;
    float m[2 * VIDEO_HIDDEN];

    set_time(denoiser, t);
    matrix_apply(&model->enter, tokens, VIDEO_ROWS, denoiser->x);
    for (uint32_t row = 0; row < VIDEO_ROWS; row++)
        add_to(denoiser->x + (size_t)row * VIDEO_HIDDEN, model->enter_bias,
               VIDEO_HIDDEN);
    add_to(denoiser->x, model->place, VIDEO_ROWS * VIDEO_HIDDEN);
    for (uint32_t i = 0; i < VIDEO_LAYERS; i++)
        run_layer(denoiser, i, fail);
    for (uint32_t i = 0; i < 2 * VIDEO_HIDDEN; i++)
        m[i] = denoiser->step[i] + model->last_table[i];
    normalize(denoiser, m, m + VIDEO_HIDDEN);
    matrix_apply(&model->leave, denoiser->norm, VIDEO_ROWS, said);
    for (uint32_t row = 0; row < VIDEO_ROWS; row++)
        add_to(said + (size_t)row * VIDEO_PIXELS, model->leave_bias, VIDEO_PIXELS);
}
