/* SPDX-License-Identifier: Apache-2.0 */
/* Touvron et al., "LLaMA" (arXiv 2302.13971), section 2.2, in Hugging Face's layout. */
#include "examples/generate/decoder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/buffers.h"
#include "examples/common/matrix.h"
#include "examples/common/ranks.h"

static uint32_t largest_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Who computes which columns of what is exchanged. */
static int set_columns(struct decoder *decoder, struct fail *fail)
{
    const struct model_config *config = &decoder->model->config;
    const struct ranks *ranks = decoder->ranks;
    const uint32_t group_dim = config->n_heads / config->n_kv_heads * config->head_dim;

    for (uint32_t r = 0; r < ranks->n_ranks; r++) {
        struct share hidden = share_of(config->hidden, ranks->n_ranks, r);
        struct share columns = share_of(config->intermediate, ranks->n_ranks, r);
        struct share vocab = share_of(config->vocab, ranks->n_ranks, r);
        struct share heads;
        if (session_heads(decoder->session, r, &heads, fail) != 0)
            return -EINVAL;
        if (!session_gives_heads(decoder->session, r))
            heads.n = 0;
        ranks_columns_set(&decoder->heads, r, heads.first * group_dim,
                          heads.n * group_dim);
        ranks_columns_set(&decoder->hidden, r, hidden.first, hidden.n);
        ranks_columns_set(&decoder->columns, r, columns.first, columns.n);
        ranks_columns_set(&decoder->vocab, r, vocab.first, vocab.n);
    }
    return 0;
}

/* The buffers of a step of n rows. */
static int set_buffers(struct decoder *decoder, size_t n, struct fail *fail)
{
    const struct model_config *config = &decoder->model->config;
    const size_t hidden = config->hidden;
    const size_t q_dim = (size_t)config->n_heads * config->head_dim;
    const size_t kv_dim = (size_t)config->n_kv_heads * config->head_dim;
    const size_t wide =
        largest_of((uint32_t)q_dim, largest_of(config->hidden, config->intermediate));
    const size_t mine = n * wide > config->vocab ? n * wide : config->vocab;
    const size_t sizes[] = {n * hidden, n * hidden, n * q_dim, n * kv_dim,   n * kv_dim,
                            mine,       n * wide,   n * wide,  config->vocab};
    float **buffers[] = {&decoder->x,  &decoder->norm, &decoder->q,
                         &decoder->k,  &decoder->v,    &decoder->mine,
                         &decoder->up, &decoder->all,  &decoder->logits};

    decoder->memory =
        buffers_new(sizes, buffers, sizeof(sizes) / sizeof(sizes[0]), fail);
    return decoder->memory != NULL ? 0 : -EINVAL;
}

int decoder_init(struct decoder *decoder, struct model *model, struct session *session,
                 const char *kernels, struct ranks *ranks, struct fail *fail)
{
    const struct model_config *config = &model->config;
    const uint32_t n = session->plan.settings.chunk_rows;
    const uint32_t wide = largest_of(config->n_heads * config->head_dim,
                                     largest_of(config->hidden, config->intermediate));

    *decoder = (struct decoder){.model = model, .session = session, .ranks = ranks};
    if (model_load(model, ranks->n_ranks, ranks->rank, session->kv_heads, fail) == 0 &&
        attend_init(&decoder->attend, session, kernels, fail) == 0 &&
        set_columns(decoder, fail) == 0 && set_buffers(decoder, n, fail) == 0)
        (void)ranks_reserve(ranks, n, wide, fail);
    return ranks_agree(ranks, fail);
}

void decoder_use(struct decoder *decoder, struct session *session)
{
    decoder->session = session;
    attend_use(&decoder->attend, session);
}

void decoder_fini(struct decoder *decoder)
{
    attend_fini(&decoder->attend);
    free(decoder->memory);
    *decoder = (struct decoder){0};
}

/* This rank's heads over the window; the result is in decoder->mine. */
static int attend_layer(struct decoder *decoder, uint32_t i, uint32_t n,
                        struct fail *fail)
{
    const struct model_layer *layer = &decoder->model->layer[i];
    struct attend *attend = &decoder->attend;

    if (has_failed(fail))
        return -EINVAL;
    matrix_apply(&layer->q, decoder->norm, n, decoder->q);
    matrix_apply(&layer->k, decoder->norm, n, decoder->k);
    matrix_apply(&layer->v, decoder->norm, n, decoder->v);
    if (attend_rotate_queries(attend, decoder->q, fail) != 0 ||
        attend_write(attend, i, decoder->k, decoder->v, fail) != 0)
        return -EINVAL;
    return attend_run(attend, i, decoder->q, decoder->mine, fail);
}

/* Exchange mine into all, apply this rank's rows of `m`, exchange again, and add to the
 * residual stream. */
static void project(struct decoder *decoder, const struct ranks_columns *columns,
                    const struct matrix *m, uint32_t n)
{
    ranks_gather(decoder->ranks, columns, n, decoder->mine, decoder->all);
    matrix_apply(m, decoder->all, n, decoder->mine);
    ranks_gather(decoder->ranks, &decoder->hidden, n, decoder->mine, decoder->all);
    add_to(decoder->x, decoder->all, (size_t)n * decoder->model->config.hidden);
}

static void run_layer(struct decoder *decoder, uint32_t i, uint32_t n,
                      struct fail *fail)
{
    const struct model_config *config = &decoder->model->config;
    const struct model_layer *layer = &decoder->model->layer[i];

    rms_norm(decoder->x, layer->norm_attention, config->rms_eps, n, config->hidden,
             decoder->norm);
    (void)attend_layer(decoder, i, n, fail);
    project(decoder, &decoder->heads, &layer->o, n);

    rms_norm(decoder->x, layer->norm_mlp, config->rms_eps, n, config->hidden,
             decoder->norm);
    matrix_apply(&layer->gate, decoder->norm, n, decoder->mine);
    matrix_apply(&layer->up, decoder->norm, n, decoder->up);
    swiglu(decoder->mine, decoder->up, (size_t)n * layer->gate.n_rows);
    project(decoder, &decoder->columns, &layer->down, n);
}

void decoder_feed(struct decoder *decoder, const uint64_t *id, struct fail *fail)
{
    const struct model_config *config = &decoder->model->config;
    const uint32_t n = (uint32_t)decoder->session->open_rows;

    attend_step(&decoder->attend);
    for (uint32_t t = 0; t < n; t++) {
        if (id[t] >= config->vocab) {
            (void)fail_set(fail, FAIL_CACHE, "ids: need less than %u, have %llu",
                           config->vocab, (unsigned long long)id[t]);
            break;
        }
        (void)model_embed(decoder->model, (uint32_t)id[t],
                          decoder->x + (size_t)t * config->hidden, fail);
    }
    for (uint32_t i = 0; i < config->n_layers; i++)
        run_layer(decoder, i, n, fail);
    rms_norm(decoder->x, decoder->model->norm, config->rms_eps, n, config->hidden,
             decoder->norm);
}

const float *decoder_logits(struct decoder *decoder, uint32_t i)
{
    const float *last = decoder->norm + (size_t)i * decoder->model->config.hidden;

    matrix_apply(&decoder->model->head, last, 1, decoder->mine);
    ranks_gather(decoder->ranks, &decoder->vocab, 1, decoder->mine, decoder->logits);
    return decoder->logits;
}
