/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a job that generates numbers: each step writes keys and values that are a
 * function of lane, layer, head and row, attends to them over all ranks, and compares with
 * attention over plain arrays in this process. Rank 0 prints one line:
 *
 *     from ROW to ROW digest D rows-digest D new N places P... bytes B
 *
 * The digest is the same for every partition if every bit of every result is. Exit codes: 0;
 * 1 a result was wrong; 2 kvwheel refused (its words on stderr); 104 a peer was late.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <kvwheel/mpi.h>

#define LAYERS 3u
#define KV_HEADS_MAX 16u
#define Q_PER_KV 2u
#define DIM 16u
#define CHUNK_MAX 8u
#define ROWS_MAX 4096u

struct setup {
    const char *name;
    uint32_t parts[4]; /* lane, layer, head, row */
    uint32_t block;
    uint32_t n_heads;
    uint32_t n_lanes;
    uint64_t window, sink;
    uint32_t kind, positions;
    uint64_t rows_end;
    uint64_t rows_max; /* of the group ids */
    uint32_t flags;    /* of attend */
    uint32_t by_cycle;
    uint32_t pause_ms;
    bool is_kept;
    struct kvw_mpi_options options;
};

struct run {
    struct setup setup;
    struct kvw_mpi *mpi;
    struct kvw_mpi_place place;
    int rank;
    float *k, *v; /* [kv head][ROWS_MAX][DIM] of one lane and layer */
    uint64_t digest, rows_digest;
    uint64_t n_wrong;
    double worst;
};

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

/* A number between -1 and 1. */
static float number(uint64_t what, uint32_t lane, uint32_t layer, uint32_t head,
                    uint64_t row, uint32_t d)
{
    uint64_t x = mix(what * 1000003 + lane);

    x = mix(x * 31 + layer);
    x = mix(x * 31 + head);
    x = mix(x * 31 + row);
    x = mix(x * 31 + d);
    return (float)((double)(x >> 40) / (double)(1u << 23) - 1.0);
}

static int refused(struct run *run, const char *what, int error)
{
    fprintf(stderr, "player: %s: %s (%d)\n", what, kvw_mpi_last_error(), error);
    if (error == -ETIMEDOUT || error == -EPIPE)
        MPI_Abort(MPI_COMM_WORLD, KVW_MPI_EXIT_TIMEOUT);
    (void)run;
    return 2;
}

static void make_spec(const struct setup *setup, struct kvw_spec *spec,
                      const char *name)
{
    struct kvw_spec_group *self, *ids;

    kvw_spec_init(spec, name);
    spec->n_lanes = setup->n_lanes;
    spec->lane_parts = setup->parts[0];
    spec->layer_parts = setup->parts[1];
    spec->head_parts = setup->parts[2];
    spec->row_parts = setup->parts[3];
    spec->row_block = setup->parts[3] > 1 ? setup->block : 0;
    spec->n_ranks =
        setup->parts[0] * setup->parts[1] * setup->parts[2] * setup->parts[3];
    spec->lifetime = setup->is_kept ? KVW_LIFETIME_KEEP : KVW_LIFETIME_JOB;
    self = kvw_spec_add_group(spec, "self", LAYERS, NULL);
    self->n_heads = setup->n_heads;
    self->window_rows = setup->window;
    self->sink_rows = setup->sink;
    self->chunk_rows_max = CHUNK_MAX;
    self->window_kind = setup->kind;
    self->positions = setup->positions;
    if (kvw_spec_add_plane(self, "k", KVW_F32, DIM) == NULL ||
        kvw_spec_add_plane(self, "v", KVW_F32, DIM) == NULL)
        abort();
    ids = kvw_spec_add_group(spec, "ids", LAYERS, NULL); /* on every layer part */
    ids->window_rows = setup->rows_max;
    ids->chunk_rows_max = CHUNK_MAX;
    ids->policy = KVW_REFUSE;
    if (kvw_spec_add_plane(ids, "ids", KVW_U32, 1) == NULL)
        abort();
}

/* Rows of a step: they follow from the first one, so that every run takes the same. */
static uint64_t rows_of_step(const struct run *run, uint64_t row)
{
    static const uint64_t cycle[] = {CHUNK_MAX, 1, 3, 1, 1, 5};
    const uint64_t n = run->setup.by_cycle ? cycle[row % 6] : CHUNK_MAX;

    return n < run->setup.rows_end - row ? n : run->setup.rows_end - row;
}

/* -------------------------------------------------------------------- write ------- */

static int write_layer(struct run *run, uint32_t lane, uint32_t layer, uint64_t row,
                       uint64_t n, const struct kvw_part *part)
{
    const size_t floats = (size_t)n * part->n_heads * DIM;
    float *rows = malloc(2 * floats * sizeof(float));
    const int64_t row_bytes = (int64_t)(part->n_heads * DIM * sizeof(float));
    struct kvw_source sources[2] = {{rows, row_bytes, DIM * sizeof(float)},
                                    {rows + floats, row_bytes, DIM * sizeof(float)}};

    for (uint64_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < part->n_heads; h++)
            for (uint32_t d = 0; d < DIM; d++) {
                const size_t at = (i * part->n_heads + h) * DIM + d;
                rows[at] = number(1, lane, layer, part->head_first + h, row + i, d);
                rows[floats + at] =
                    number(2, lane, layer, part->head_first + h, row + i, d);
            }
    int error =
        kvw_mpi_update(run->mpi, lane, (struct kvw_layer){layer}, 0, n, sources);
    free(rows);
    return error;
}

static int write_ids(struct run *run, uint32_t lane, uint64_t row, uint64_t n)
{
    const struct kvw_cache *cache = kvw_mpi_cache(run->mpi);
    struct kvw_part part, of_box;
    uint32_t ids[CHUNK_MAX];
    const struct kvw_source source = {ids, sizeof ids[0], 0};
    int error = kvw_mpi_part(run->mpi, 1, KVW_READER, &part);

    if (error == 0)
        error = kvw_cache_part(cache, 1, kvw_cache_rank(cache), &of_box);
    for (uint64_t i = 0; i < n; i++)
        ids[i] = (uint32_t)(row + i) * 7 + lane;
    for (uint32_t l = 0; error == 0 && l < part.n_layers && of_box.n_heads > 0; l++)
        error = kvw_mpi_update(run->mpi, lane, (struct kvw_layer){part.layer_first + l},
                               0, n, &source);
    return error;
}

/* ------------------------------------------------------------------- expect ------- */

/* The plain arrays of all rows up to `end`. */
static void fill_rows(struct run *run, uint32_t lane, uint32_t layer,
                      const struct kvw_part *part, uint64_t end)
{
    for (uint32_t h = 0; h < part->n_heads; h++)
        for (uint64_t row = 0; row < end; row++)
            for (uint32_t d = 0; d < DIM; d++) {
                const size_t at = ((size_t)h * ROWS_MAX + row) * DIM + d;
                run->k[at] = number(1, lane, layer, part->head_first + h, row, d);
                run->v[at] = number(2, lane, layer, part->head_first + h, row, d);
            }
}

/* The window as one rank has it: sink and recent rows. */
static uint32_t plain_pieces(const struct run *run, uint64_t row, uint64_t n,
                             struct kvw_attn_piece piece[2])
{
    const struct setup *setup = &run->setup;
    const uint64_t end = row + n, recent = setup->window - setup->sink;
    const uint64_t seen_end = setup->kind == KVW_WINDOW_ROW ? row + 1 : end;
    uint64_t low = seen_end > recent ? seen_end - recent : 0;
    const uint64_t sink = setup->sink < end ? setup->sink : end;
    const uint64_t range[2][2] = {{0, sink}, {low > sink ? low : sink, end}};

    for (int i = 0; i < 2; i++)
        piece[i] = (struct kvw_attn_piece){
            .k = run->k + range[i][0] * DIM,
            .v = run->v + range[i][0] * DIM,
            .k_row_stride = DIM * sizeof(float),
            .k_head_stride = ROWS_MAX * DIM * sizeof(float),
            .v_row_stride = DIM * sizeof(float),
            .v_head_stride = ROWS_MAX * DIM * sizeof(float),
            .n_rows = range[i][1] - range[i][0],
            .first_row = range[i][0],
        };
    return 2;
}

static int expect(const struct run *run, uint64_t row, uint64_t n, const float *q,
                  uint32_t n_kv, float *out)
{
    const struct setup *setup = &run->setup;
    const bool is_row = setup->kind == KVW_WINDOW_ROW;
    struct kvw_attn_piece piece[2];
    const uint32_t n_q_heads = n_kv * Q_PER_KV;
    const ptrdiff_t row_bytes = (ptrdiff_t)(n_q_heads * DIM * sizeof(float));

    return kvw_attn_run(&(struct kvw_attn_args){
        .q = q,
        .q_row_stride = row_bytes,
        .q_head_stride = DIM * sizeof(float),
        .n_q = (uint32_t)n,
        .n_q_heads = n_q_heads,
        .n_kv_heads = n_kv,
        .head_dim_k = DIM,
        .head_dim_v = DIM,
        .kv_type = KVW_NUM_F32,
        .pieces = piece,
        .n_pieces = plain_pieces(run, row, n, piece),
        .mask = is_row ? KVW_ATTN_CAUSAL : KVW_ATTN_NONE,
        .q_first_row = row,
        .window_rows = is_row ? setup->window : 0,
        .sink_rows = is_row ? setup->sink : 0,
        .scale = 0.25f,
        .out = out,
        .out_row_stride = row_bytes,
        .out_head_stride = DIM * sizeof(float),
    });
}

/* ------------------------------------------------------------------- attend ------- */

static void compare(struct run *run, const float *have, const float *need, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double off = fabs((double)have[i] - (double)need[i]);
        if (!(off <= 1e-5))
            run->n_wrong++;
        if (run->setup.parts[3] == 1 && memcmp(&have[i], &need[i], sizeof have[i]) != 0)
            run->n_wrong++;
        run->worst = off > run->worst ? off : run->worst;
    }
}

/* Add results to the digest, in any order; each head once. */
static void digest(struct run *run, uint32_t lane, uint32_t layer, uint64_t row,
                   uint64_t n, const float *out, uint32_t head_first, uint32_t n_heads)
{
    for (uint64_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < n_heads; h++)
            for (uint32_t d = 0; d < DIM; d++) {
                uint32_t bits;
                memcpy(&bits, &out[(i * n_heads + h) * DIM + d], sizeof bits);
                run->digest +=
                    mix(mix(mix(mix(mix(lane) + layer) + head_first + h) + row + i) +
                        d) *
                    (bits | 1);
            }
}

/* One layer: queries, the result over all ranks, the expectation. */
static int attend_layer(struct run *run, uint32_t lane, uint32_t layer, uint64_t row,
                        uint64_t n, const struct kvw_part *part)
{
    const uint32_t n_q_heads = part->n_heads * Q_PER_KV;
    const size_t floats = (size_t)n * n_q_heads * DIM;
    float *memory = malloc(3 * floats * sizeof(float));
    float *q = memory, *out = memory + floats, *need = memory + 2 * floats;
    uint32_t in_first = 0, in_n = n_q_heads, out_first = 0, out_n = n_q_heads;

    for (uint64_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < n_q_heads; h++)
            for (uint32_t d = 0; d < DIM; d++)
                q[(i * n_q_heads + h) * DIM + d] =
                    3 *
                    number(3, lane, layer, part->head_first * Q_PER_KV + h, row + i, d);
    fill_rows(run, lane, layer, part, row + n);
    int error = expect(run, row, n, q, part->n_heads, need);
    if (run->setup.flags & KVW_MPI_QUERIES_BY_HEADS)
        kvw_mpi_share(n_q_heads, run->place.row_parts, run->place.row_part, &in_first,
                      &in_n);
    if (run->setup.flags & KVW_MPI_RESULT_BY_HEADS)
        kvw_mpi_share(n_q_heads, run->place.row_parts, run->place.row_part, &out_first,
                      &out_n);
    if (error == 0)
        error = kvw_mpi_attend(
            run->mpi, &(struct kvw_mpi_attend){
                          .lane = lane,
                          .layer = {layer},
                          .flags = run->setup.flags,
                          .n_q_heads = n_q_heads,
                          .n_q = (uint32_t)n,
                          .q = q + in_first * DIM,
                          .q_row_stride = (ptrdiff_t)(n_q_heads * DIM * sizeof(float)),
                          .q_head_stride = DIM * sizeof(float),
                          .q_first_row = row,
                          .scale = 0.25f,
                          .out = out,
                          .out_row_stride = (ptrdiff_t)(out_n * DIM * sizeof(float)),
                          .out_head_stride = DIM * sizeof(float),
                      });
    for (uint64_t i = 0; error == 0 && i < n; i++)
        compare(run, out + i * out_n * DIM, need + (i * n_q_heads + out_first) * DIM,
                (size_t)out_n * DIM);
    /* A head that is gathered is on every rank of the row group, a repeated one on more. */
    if (error == 0 && (out_n < n_q_heads || run->place.row_part == 0))
        digest(run, lane, layer, row, n, out, part->head_first * Q_PER_KV + out_first,
               out_n);
    if (error == 0 && out_n == n_q_heads && run->place.row_parts > 1) {
        uint64_t sum = 0;
        for (size_t i = 0; i < floats; i++) {
            uint32_t bits;
            memcpy(&bits, &out[i], sizeof bits);
            sum = mix(sum + bits);
        }
        run->rows_digest = mix(run->rows_digest + sum);
    }
    free(memory);
    return error;
}

static int step(struct run *run, uint32_t lane, uint64_t row, uint64_t n)
{
    const struct kvw_item items[2] = {{.group = 0, .row = row, .n = n},
                                      {.group = 1, .row = row, .n = n}};
    struct kvw_part part;
    int error = kvw_mpi_begin(run->mpi, lane, items, 2, NULL);

    if (error != 0)
        return refused(run, "begin", error);
    error = kvw_mpi_part(run->mpi, 0, KVW_READER, &part);
    if (error == 0)
        error = write_ids(run, lane, row, n);
    for (uint32_t l = 0; error == 0 && l < part.n_layers; l++) {
        error = write_layer(run, lane, part.layer_first + l, row, n, &part);
        if (error == 0)
            error = attend_layer(run, lane, part.layer_first + l, row, n, &part);
    }
    if (error == 0)
        error = kvw_mpi_commit(run->mpi, lane);
    return error == 0 ? 0 : refused(run, "step", error);
}

/* ------------------------------------------------------------------- replay ------- */

/* Fill the boxes that are new, and compare the others. */
static int rebuild(struct run *run, uint32_t lane, uint64_t rows, uint64_t at_step)
{
    struct run scratch = *run;
    char name[64];
    struct kvw_spec spec;
    uint64_t n_rows = 0, n_wrong = 0;

    snprintf(name, sizeof name, "%s.replay", run->setup.name);
    scratch.setup.name = name;
    scratch.setup.is_kept = false;
    scratch.setup.rows_end = rows;
    scratch.setup.by_cycle = 0;
    make_spec(&scratch.setup, &spec, name);
    int error = kvw_mpi_init(MPI_COMM_WORLD, &spec, &run->setup.options, &scratch.mpi);
    if (error != 0)
        return refused(run, "scratch", error);
    error = kvw_mpi_place(scratch.mpi, KVW_READER, &scratch.place);
    for (uint64_t row = 0, n; row < rows && error == 0; row += n) {
        n = rows_of_step(&scratch, row);
        error = step(&scratch, lane, row, n);
        if (error == 0)
            error = kvw_mpi_follow(run->mpi, scratch.mpi, lane);
    }
    if (error == 0)
        error = kvw_mpi_compare(run->mpi, scratch.mpi, lane, &n_rows, &n_wrong);
    if (error == 0)
        error = kvw_mpi_fill(run->mpi, lane, at_step);
    run->n_wrong = scratch.n_wrong + n_wrong + (n_rows == 0);
    kvw_mpi_fini(scratch.mpi);
    return error == 0 ? 0 : refused(run, "replay", error);
}

/* ---------------------------------------------------------------------- main ------ */

/* Where the lane stands: all ranks ask, whoever holds it answers. */
static int stand(struct run *run, uint32_t lane, uint64_t *at_step, uint64_t *row)
{
    struct kvw_lane_state state;
    const bool is_here =
        kvw_mpi_here(run->mpi, lane, (struct kvw_layer){0}, NULL, NULL) == 0;
    int error = 0;

    *at_step = *row = 0;
    if (is_here)
        error = kvw_mpi_recover(run->mpi, lane, at_step);
    if (is_here && error == 0)
        error = kvw_mpi_state(run->mpi, lane, &state);
    if (is_here && error == 0 && !run->place.is_new)
        *row = state.group[0].rows;
    MPI_Allreduce(MPI_IN_PLACE, row, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    return error;
}

static int go_on(struct run *run, uint32_t lane, uint64_t *from)
{
    const struct timespec pause = {run->setup.pause_ms / 1000,
                                   (long)(run->setup.pause_ms % 1000) * 1000000};
    uint64_t at_step;

    int error = stand(run, lane, &at_step, from);
    if (error != 0)
        return refused(run, "recover", error);
    if (kvw_mpi_here(run->mpi, lane, (struct kvw_layer){0}, NULL, NULL) != 0)
        return 0;
    if (at_step > 0 && run->place.n_new > 0)
        error = rebuild(run, lane, *from, at_step);
    for (uint64_t at = *from, n; at < run->setup.rows_end && error == 0; at += n) {
        n = rows_of_step(run, at);
        error = step(run, lane, at, n);
        if (run->setup.pause_ms > 0)
            (void)nanosleep(&pause, NULL);
    }
    return error;
}

/* All ranks of a row group have the same bits; so has any number of runs, by the line that
 * is printed. */
static int finish(struct run *run, uint64_t from)
{
    struct kvw_mpi_counters counters;
    uint64_t mine[4], sum[4], low = run->rows_digest, high = low;
    int rank_of[64] = {0};

    kvw_mpi_counters(run->mpi, &counters);
    mine[0] = run->digest;
    mine[1] = run->n_wrong;
    mine[2] = counters.partial_bytes + counters.query_bytes;
    mine[3] = counters.step_bytes;
    MPI_Allreduce(mine, sum, 4, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &low, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &high, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &run->worst, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    for (uint32_t p = 0; p < run->place.n_places; p++) {
        struct kvw_mpi_place place;
        if (kvw_mpi_place(run->mpi, p, &place) == 0)
            rank_of[p] = (int)place.rank;
    }
    /* One row group has one result; several have different ones. */
    const bool is_one_group = run->place.row_parts == run->place.n_places;
    if (is_one_group && low != high)
        sum[1]++;
    if (run->rank == 0) {
        printf("from %" PRIu64 " to %" PRIu64 " digest %016" PRIx64 " wrong %" PRIu64
               " worst %.1e new %u bytes %" PRIu64 " step-bytes %" PRIu64 " ranks",
               from, run->setup.rows_end, sum[0], sum[1], run->worst, run->place.n_new,
               sum[2], sum[3]);
        for (uint32_t p = 0; p < run->place.n_places; p++)
            printf(" %d", rank_of[p]);
        printf("\n");
        fflush(stdout);
    }
    return sum[1] == 0 ? 0 : 1;
}

static int run_all(struct run *run)
{
    struct kvw_spec spec;
    uint64_t from = 0;

    make_spec(&run->setup, &spec, run->setup.name);
    int error = kvw_mpi_init(MPI_COMM_WORLD, &spec, &run->setup.options, &run->mpi);
    if (error != 0) {
        if (run->rank == 0)
            return refused(run, "init", error);
        return error == -ETIMEDOUT ? refused(run, "init", error) : 2;
    }
    error = kvw_mpi_place(run->mpi, KVW_READER, &run->place);
    run->k = calloc((size_t)KV_HEADS_MAX * ROWS_MAX * DIM, sizeof(float));
    run->v = calloc((size_t)KV_HEADS_MAX * ROWS_MAX * DIM, sizeof(float));
    for (uint32_t lane = 0; error == 0 && lane < run->setup.n_lanes; lane++)
        error = go_on(run, lane, &from);
    if (error == 0)
        error = finish(run, from);
    kvw_mpi_fini(run->mpi);
    free(run->k);
    free(run->v);
    return error;
}

static uint64_t parse_number(const char *text, uint64_t most)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || value > most)
        exit(2);
    return value;
}

static const struct setup defaults = {.name = "player",
                                      .parts = {1, 1, 1, 1},
                                      .block = 4,
                                      .n_heads = 4,
                                      .n_lanes = 1,
                                      .window = 40,
                                      .sink = 4,
                                      .kind = KVW_WINDOW_ROW,
                                      .positions = KVW_POSITIONS_ABSOLUTE,
                                      .rows_end = 100,
                                      .rows_max = 128,
                                      .options = KVW_MPI_OPTIONS_INIT};

static void parse(int argc, char **argv, struct setup *setup)
{
    int option;

    *setup = defaults;
    setup->options.timeout_ns = 5000000000u;
    setup->options.whole_groups = 2;
    while ((option = getopt(argc, argv, "n:p:b:H:l:W:S:cr:f:B:yw:kt:s")) != -1) {
        switch (option) {
        case 'n':
            setup->name = optarg;
            break;
        case 'p':
            if (sscanf(optarg, "%u,%u,%u,%u", &setup->parts[0], &setup->parts[1],
                       &setup->parts[2], &setup->parts[3]) != 4)
                exit(2);
            break;
        case 'b':
            setup->block = (uint32_t)parse_number(optarg, UINT32_MAX);
            break;
        case 'H':
            setup->n_heads = (uint32_t)parse_number(optarg, UINT32_MAX);
            break;
        case 'l':
            setup->n_lanes = (uint32_t)parse_number(optarg, UINT32_MAX);
            break;
        case 'W':
            setup->window = parse_number(optarg, UINT64_MAX);
            break;
        case 'S':
            setup->sink = parse_number(optarg, UINT64_MAX);
            break;
        case 'c':
            setup->kind = KVW_WINDOW_CHUNK;
            break;
        case 'r':
            setup->rows_end = parse_number(optarg, UINT64_MAX);
            break;
        case 'f':
            setup->flags = (uint32_t)parse_number(optarg, UINT32_MAX);
            break;
        case 'B':
            setup->options.box_ranks = (uint32_t)parse_number(optarg, UINT32_MAX);
            break;
        case 'y':
            setup->by_cycle = 1;
            break;
        case 'w':
            setup->pause_ms = (uint32_t)parse_number(optarg, UINT32_MAX);
            break;
        case 'k':
            setup->is_kept = true;
            break;
        case 't':
            setup->options.timeout_ns = parse_number(optarg, UINT64_MAX) * 1000000;
            break;
        case 's':
            setup->options.flags = KVW_MPI_START;
            break;
        default:
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    struct run run = {.n_wrong = 0};

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    parse(argc, argv, &run.setup);
    int result = run_all(&run);
    MPI_Finalize();
    return result;
}
