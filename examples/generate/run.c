/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop over steps. What a step does follows from the committed rows alone (self and
 * ids), so every rank plans the same step and a resumed run plans the steps that are
 * left:
 *
 *   known ids that have no row yet   are fed, a chunk at most
 *   none is left behind them         the token that follows the last one is chosen, and
 *                                    published in the same step
 */
#include "examples/generate/run.h"

#include <errno.h>
#include <stdlib.h>

#include "examples/generate/decoder.h"
#include "examples/generate/output.h"
#include "examples/generate/sample.h"

struct run {
    const struct options *options;
    struct ranks *ranks;
    struct model model;
    struct prompt prompt; /* of rank 0 */
    struct session session;
    struct decoder decoder;
    struct output output;
    uint64_t rows_end;  /* rows of self when the run is done */
    uint64_t first_ids; /* ids that were there when it began */
    uint64_t *shared;   /* [1 + chunk]: a step's trouble and its ids */
    uint32_t *ids;      /* [chunk] */
    double nll;
    uint64_t n_scored;
};

static bool is_nll(const struct run *run)
{
    return run->options->nll != NULL;
}

static uint64_t smallest(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Ids that the text will have: the prompt's and those to generate. */
static uint64_t ids_end(const struct run *run)
{
    return run->session.plan.prompt_rows + run->options->n_tokens;
}

/* Share the ids of a step, and whether some rank is in trouble. */
static int share_ids(struct run *run, uint32_t n, struct fail *fail)
{
    const struct ranks *ranks = run->ranks;

    for (uint32_t i = 0; i <= n; i++)
        run->shared[i] = 0;
    if (ranks_is_first(ranks) && !has_failed(fail)) {
        if (session_read_ids(&run->session, run->session.rows, n, run->ids, fail) ==
            0) {
            for (uint32_t i = 0; i < n; i++)
                run->shared[1 + i] = run->ids[i];
        }
    }
    run->shared[0] = has_failed(fail);
    ranks_max(ranks, run->shared, n + 1);
    return run->shared[0] != 0 ? -EINVAL : 0;
}

/* Rank 0: what open row i's logits are wanted for, beside choosing a token. */
static void use_logits(struct run *run, uint32_t i, const float *logits,
                       struct fail *fail)
{
    const uint32_t vocab = run->model.config.vocab;
    uint32_t next;

    if (!ranks_is_first(run->ranks) || has_failed(fail))
        return;
    (void)output_logits(&run->output, logits, vocab, fail);
    if (!is_nll(run) ||
        session_read_ids(&run->session, run->session.rows + i + 1, 1, &next, fail) != 0)
        return;
    run->nll += sample_nll(logits, vocab, next);
    run->n_scored++;
}

/* One step of n rows. @return 0 or -EINVAL, when all ranks must stop. */
static int step(struct run *run, uint32_t n, struct fail *fail)
{
    struct session *session = &run->session;
    const bool is_last = session->rows + n == session->ids_rows;
    const bool is_choosing = is_last && session->ids_rows < ids_end(run);
    const bool is_each = is_nll(run) || run->options->logits != NULL;
    const float *logits = NULL;
    uint32_t next;

    if (!has_failed(fail))
        (void)session_begin(session, n, is_choosing ? 1 : 0, fail);
    if (share_ids(run, n, fail) != 0)
        return -EINVAL;
    decoder_feed(&run->decoder, run->shared + 1, fail);
    for (uint32_t i = is_each ? 0 : n - 1; i < n && (is_each || is_choosing); i++) {
        logits = decoder_logits(&run->decoder, i);
        use_logits(run, i, logits, fail);
    }
    if (has_failed(fail))
        return 0; /* the next share_ids() tells the others */
    if (is_choosing && (session->has_ids || ranks_is_first(run->ranks))) {
        next = sample_token(&session->plan.settings.sampling, logits,
                            run->model.config.vocab, session->rows + n - 1);
        if (session->has_ids && session_write_ids(session, &next, fail) != 0)
            return 0;
    }
    if (session_commit(session, fail) == 0 && is_choosing && ranks_is_first(run->ranks))
        (void)output_token(&run->output, session->rows, next, fail);
    return 0;
}

static int loop(struct run *run, struct fail *fail)
{
    struct session *session = &run->session;
    uint64_t rows =
        session->rows; /* counted here: a rank in trouble goes on counting */
    uint64_t ids = session->ids_rows;

    while (rows < run->rows_end) {
        uint64_t n = smallest(session->plan.settings.chunk_rows,
                              smallest(ids, run->rows_end) - rows);
        if (step(run, (uint32_t)n, fail) != 0)
            break;
        rows += n;
        ids += rows == ids && ids < ids_end(run);
        output_progress(&run->output, rows, ids - session->plan.prompt_rows,
                        run->options->n_tokens);
    }
    return ranks_agree(run->ranks, fail);
}

/* Rank 0: the tokens of a text that had begun. */
static int show_resumed(struct run *run, struct fail *fail)
{
    const struct session *session = &run->session;
    const uint64_t end = smallest(session->ids_rows, ids_end(run));

    if (session->plan.is_resumed && run->options->n_tokens > 0)
        output_resumed(&run->output, end - session->plan.prompt_rows,
                       run->options->n_tokens);
    if (run->options->is_json)
        return 0; /* the result has them */
    for (uint64_t row = session->plan.prompt_rows; row < end; row++) {
        uint32_t id;
        if (session_read_ids(session, row, 1, &id, fail) != 0 ||
            output_token(&run->output, row, id, fail) != 0)
            return -EINVAL;
    }
    return 0;
}

/* Feed a session's open step; that of a replay, too. */
static void feed(void *context, struct session *session, const uint64_t *id,
                 struct fail *fail)
{
    struct run *run = context;

    decoder_use(&run->decoder, session);
    decoder_feed(&run->decoder, id, fail);
    decoder_use(&run->decoder, &run->session);
}

static int open_text(struct run *run, struct fail *fail)
{
    const struct options *options = run->options;

    if (model_open(options->model, &run->model, fail) == 0 &&
        ranks_is_first(run->ranks))
        (void)prompt_read(options, run->model.config.vocab, &run->prompt, fail);
    if (!has_failed(fail))
        (void)output_open(&run->output, options, ranks_is_first(run->ranks),
                          run->model.config.vocab, fail);
    if (ranks_agree(run->ranks, fail) != 0 ||
        prompt_share(&run->prompt, run->ranks, fail) != 0)
        return -EINVAL;
    if (session_open(&run->session, options, &run->model, &run->prompt, run->ranks,
                     fail) != 0 ||
        decoder_init(&run->decoder, &run->model, &run->session, options->kernels,
                     run->ranks, fail) != 0)
        return -EINVAL;
    if (!session_has_lost(&run->session))
        return 0;
    return session_rebuild(&run->session, &run->model, feed, run, fail);
}

static int open_run(struct run *run, struct fail *fail)
{
    const uint64_t n_tokens = run->options->n_tokens;

    if (open_text(run, fail) != 0)
        return -EINVAL;

    /* The last token is not fed, nor is the last one of a text that is scored. */
    run->rows_end = ids_end(run) - (n_tokens > 0 || is_nll(run) ? 1 : 0);
    run->first_ids = run->session.ids_rows;
    run->shared = calloc(1 + run->session.plan.settings.chunk_rows, sizeof(uint64_t));
    run->ids = calloc(run->session.plan.settings.chunk_rows, sizeof(uint32_t));
    if (run->shared == NULL || run->ids == NULL)
        (void)fail_memory(fail, "the ids of a step");
    else if (ranks_is_first(run->ranks))
        (void)show_resumed(run, fail);
    return ranks_agree(run->ranks, fail);
}

/* What the rows that this run added need: K and V, ids, and the job once. */
static uint64_t bytes_of_new_rows(const struct run *run)
{
    const struct session *session = &run->session;
    const struct session_plan *plan = &session->plan;
    const uint64_t new_ids =
        session->ids_rows - (plan->is_resumed ? run->first_ids : 0);
    const uint64_t n_copies = plan->is_boxed ? run->ranks->n_ranks : 1;
    const uint64_t words = plan->is_resumed ? 0 : SESSION_JOB_WORDS;

    return session_row_bytes(session, session->rows - plan->resumed_row) +
           (new_ids + words) * n_copies * sizeof(uint32_t);
}

static int report(struct run *run, uint64_t bytes_written, struct fail *fail)
{
    const struct session *session = &run->session;
    const struct session_plan *plan = &session->plan;
    const uint64_t n_tokens =
        smallest(session->ids_rows - plan->prompt_rows, run->options->n_tokens);
    uint32_t *token = malloc(sizeof(token[0]) * (n_tokens + 1));
    struct result result = {
        .token = token,
        .n_tokens = n_tokens,
        .n_new_tokens = session->ids_rows - run->first_ids,
        .prompt_rows = plan->prompt_rows,
        .settings = &plan->settings,
        .kernels = run->decoder.attend.kernels.name,
        .cache = plan->name,
        .socket = run->options->socket,
        .is_kept = plan->is_kept,
        .is_boxed = plan->is_boxed,
        .is_resumed = plan->is_resumed,
        .resumed_row = plan->resumed_row,
        .rows = session->rows,
        .bytes_new_rows = bytes_of_new_rows(run),
        .bytes_written = bytes_written,
        .n_ranks = run->ranks->n_ranks,
        .n_nodes = session->place.n_nodes,
        .n_rebuilt = session_has_lost(session) ? session->place.n_new : 0,
        .is_nll = is_nll(run),
        .nll = run->nll,
        .n_scored = run->n_scored,
    };

    if (token == NULL)
        return fail_memory(fail, "the tokens");
    if (n_tokens == 0 ||
        session_read_ids(session, plan->prompt_rows, n_tokens, token, fail) == 0)
        (void)output_result(&run->output, &result, fail);
    free(token);
    return has_failed(fail) ? -EINVAL : 0;
}

static int finish(struct run *run, struct fail *fail)
{
    const uint64_t bytes_written = ranks_sum(run->session.bytes_written);

    if (ranks_is_first(run->ranks))
        (void)report(run, bytes_written, fail);
    (void)output_close(&run->output, fail);
    return ranks_agree(run->ranks, fail);
}

int run_generate(const void *options, struct ranks *ranks, struct fail *fail)
{
    struct run run = {.options = options, .ranks = ranks};
    struct fail closing = {0};
    int result = open_run(&run, fail);

    if (result == 0)
        result = loop(&run, fail);
    if (result == 0)
        result = finish(&run, fail);
    (void)output_close(&run.output, &closing);
    decoder_fini(&run.decoder);
    session_close(&run.session);
    prompt_free(&run.prompt);
    model_close(&run.model);
    free(run.shared);
    free(run.ids);
    return result;
}
