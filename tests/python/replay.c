/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Do from C what a trace of trace.py says, on a cache of its own, and compare: what begin
 * answers, the pieces of every view, every byte that they show, every result of attention,
 * every rotation, and of linear attention the sums of chunks, of the past and running ones.
 *
 *     replay TRACE NAME        NAME: of the cache to make
 *
 * Exit code 0 if all is the same, else 1 and a line that says where.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvwheel/families.h>
#include <kvwheel/kernels.h>
#include <kvwheel/kvwheel.h>

enum operation {
    BEGIN = 1,
    UPDATE,
    COMMIT,
    ABORT,
    TRUNCATE,
    EVICT,
    KEEP,
    RESET,
    RESET_STATE,
    RESET_LAYER,
    GET,
    RELEASE,
    ATTEND,
    ROTATE,
    LINEAR_SUMS,
    LINEAR_ATTEND,
    SUM_PAST,
    RUNNING,
    END
};

#define NONE UINT32_MAX
#define BLOCKS_MAX 64u
#define RUNNING_LANES_MAX 8u
#define LINEAR_PLANES 2u /* vk and k_sum */

static FILE *trace;
static uint64_t n_records;
static struct kvw_cache *cache;
static struct kvw_view views[KVW_VIEWS_MAX];
static uint32_t view_number[KVW_VIEWS_MAX]; /* 1 + its number in the trace; 0: free */
static float
    *running[RUNNING_LANES_MAX][LINEAR_PLANES]; /* for the next update, or NULL */

static _Noreturn void stop(const char *what)
{
    fprintf(stderr, "replay: record %" PRIu64 ": %s (%s)\n", n_records, what,
            kvw_last_error());
    exit(1);
}

static void need(bool is_so, const char *what)
{
    if (!is_so)
        stop(what);
}

static void read_bytes(void *to, size_t n_bytes)
{
    need(fread(to, 1, n_bytes, trace) == n_bytes, "the trace ends");
}

static uint32_t read_u32(void)
{
    uint32_t value;

    read_bytes(&value, sizeof value);
    return value;
}

static uint64_t read_u64(void)
{
    uint64_t value;

    read_bytes(&value, sizeof value);
    return value;
}

/* A block of bytes behind its length; to be freed. */
static void *read_block(size_t *n_bytes)
{
    *n_bytes = read_u64();
    char *block = malloc(*n_bytes + 1);
    need(block != NULL, "no memory");
    read_bytes(block, *n_bytes);
    return block;
}

static void replay_begin(void)
{
    struct kvw_begun begun[KVW_SPEC_GROUPS_MAX];
    size_t n_bytes;
    const uint32_t lane = read_u32();
    const uint32_t n = read_u32();

    struct kvw_item *items = read_block(&n_bytes);
    struct kvw_begun *want = read_block(&n_bytes);
    need(kvw_begin(cache, lane, items, n, begun) == 0, "begin");
    need(n_bytes == n * sizeof begun[0] && memcmp(begun, want, n_bytes) == 0,
         "begin answers otherwise");
    free(items);
    free(want);
}

static const struct kvw_spec_group *group_of(uint32_t layer)
{
    const struct kvw_spec *spec = kvw_cache_spec(cache);

    for (uint32_t g = 0; g < spec->n_groups; g++) {
        if (layer < spec->group[g].n_layers)
            return &spec->group[g];
        layer -= spec->group[g].n_layers;
    }
    stop("no such layer");
}

/* What the trace stores as a running sum is what it is from C. */
static void compare_running(uint32_t lane, void *const *blocks, const size_t *n_bytes)
{
    if (lane >= RUNNING_LANES_MAX || running[lane][0] == NULL)
        return;
    for (uint32_t p = 0; p < LINEAR_PLANES; p++) {
        need(memcmp(running[lane][p], blocks[p], n_bytes[p]) == 0,
             "a running sum has other bits");
        free(running[lane][p]);
        running[lane][p] = NULL;
    }
}

static void replay_update(void)
{
    struct kvw_source sources[KVW_SPEC_PLANES_MAX] = {{NULL, 0, 0}};
    void *blocks[KVW_SPEC_PLANES_MAX];
    size_t n_bytes[KVW_SPEC_PLANES_MAX];
    const uint32_t lane = read_u32();
    const struct kvw_layer layer = {read_u32()};
    const uint32_t first = read_u32();
    const uint32_t n_rows = read_u32();
    const uint32_t n_planes = read_u32();
    const int64_t n_heads = group_of(layer.index)->n_heads;

    need(n_planes <= KVW_SPEC_PLANES_MAX, "planes");
    for (uint32_t p = 0; p < n_planes; p++) {
        blocks[p] = read_block(&n_bytes[p]);
        const int64_t row_bytes = (int64_t)(n_bytes[p] / n_rows);
        sources[p] = (struct kvw_source){blocks[p], row_bytes, row_bytes / n_heads};
    }
    compare_running(lane, blocks, n_bytes);
    need(kvw_update(cache, lane, layer, first, n_rows, sources) == 0, "update");
    for (uint32_t p = 0; p < n_planes; p++)
        free(blocks[p]);
}

static void replay_commit(void)
{
    size_t n_bytes;
    const uint32_t lane = read_u32();
    const uint32_t n = read_u32();

    struct kvw_item *items = read_block(&n_bytes);
    need(kvw_commit(cache, lane, n == NONE ? NULL : items, n == NONE ? 0 : n) == 0,
         "commit");
    free(items);
}

static void replay_step(enum operation operation)
{
    size_t n_bytes;
    const uint32_t lane = read_u32();
    const uint32_t n = read_u32();
    int error;

    struct kvw_item *items = read_block(&n_bytes);
    if (operation == TRUNCATE)
        error = kvw_truncate(cache, lane, items, n);
    else if (operation == EVICT)
        error = kvw_evict(cache, lane, items, n);
    else if (operation == KEEP)
        error = kvw_keep(cache, lane, items, n);
    else
        error = kvw_reset(cache, lane, items, n);
    need(error == 0, "truncate, evict, keep or reset");
    free(items);
}

static struct kvw_view *find_view(uint32_t number)
{
    for (uint32_t i = 0; i < KVW_VIEWS_MAX; i++) {
        if (view_number[i] == number + 1)
            return &views[i];
    }
    stop("no such view");
}

static void compare_rows(const struct kvw_view *view)
{
    size_t n_bytes;
    char *want = read_block(&n_bytes);
    size_t at = 0;

    for (uint32_t p = 0; p < view->n_planes; p++) {
        for (uint32_t i = 0; i < view->n_pieces; i++) {
            const size_t run = view->piece[i].n_rows * view->plane[p].row_bytes;
            for (uint32_t head = 0; head < view->n_heads; head++) {
                need(at + run <= n_bytes, "a view shows more");
                need(memcmp(want + at,
                            kvw_piece_at(&view->plane[p], &view->piece[i], head),
                            run) == 0,
                     "a view shows other bytes");
                at += run;
            }
        }
    }
    need(at == n_bytes, "a view shows less");
    free(want);
}

static void replay_get(void)
{
    size_t n_bytes;
    uint32_t at = 0;
    const uint32_t number = read_u32();
    const uint32_t lane = read_u32();
    const struct kvw_layer layer = {read_u32()};
    const uint32_t flags = read_u32();
    const uint32_t n_pieces = read_u32();

    while (view_number[at] != 0) {
        at++;
        need(at < KVW_VIEWS_MAX, "too many views");
    }
    need(kvw_get(cache, lane, layer, flags, &views[at]) == 0, "get");
    view_number[at] = number + 1;
    struct kvw_piece *want = read_block(&n_bytes);
    need(views[at].n_pieces == n_pieces && memcmp(views[at].piece, want, n_bytes) == 0,
         "a view has other pieces");
    free(want);
    compare_rows(&views[at]);
}

static void replay_release(void)
{
    struct kvw_view *view = find_view(read_u32());

    need(kvw_release(cache, view) == 0, "release");
    view_number[view - views] = 0;
}

/* Blocks of one attention call, freed after it. */
struct blocks {
    void *block[BLOCKS_MAX];
    uint32_t n;
};

static void *keep_block(struct blocks *blocks, size_t *n_bytes)
{
    need(blocks->n < BLOCKS_MAX, "blocks");
    return blocks->block[blocks->n++] = read_block(n_bytes);
}

static void free_blocks(struct blocks *blocks)
{
    for (uint32_t i = 0; i < blocks->n; i++)
        free(blocks->block[i]);
}

static void *new_bytes(struct blocks *blocks, size_t n_bytes)
{
    need(blocks->n < BLOCKS_MAX, "blocks");
    blocks->block[blocks->n] = malloc(n_bytes + 1);
    need(blocks->block[blocks->n] != NULL, "no memory");
    return blocks->block[blocks->n++];
}

static void read_piece(struct blocks *blocks, const struct kvw_attn_args *args,
                       struct kvw_attn_piece *piece)
{
    size_t n_bytes;

    struct kvw_attn_piece *of_trace = keep_block(blocks, &n_bytes);
    need(n_bytes == sizeof *piece, "a piece of another size");
    *piece = *of_trace;
    const uint32_t number = read_u32();
    if (number != NONE) {
        const struct kvw_view *view = find_view(number);
        piece->k = view->plane[0].base + read_u64();
        piece->v = view->plane[1].base + read_u64();
        return;
    }
    piece->k = keep_block(blocks, &n_bytes);
    piece->v = keep_block(blocks, &n_bytes);
    piece->k_head_stride = args->head_dim_k * (ptrdiff_t)sizeof(float);
    piece->k_row_stride = piece->k_head_stride * args->n_kv_heads;
    piece->v_head_stride = args->head_dim_v * (ptrdiff_t)sizeof(float);
    piece->v_row_stride = piece->v_head_stride * args->n_kv_heads;
}

/* The table, or NULL if there is none. */
static const struct kvw_rope_table *read_rope(struct blocks *blocks,
                                              struct kvw_rope_table *table)
{
    size_t n_bytes;

    if (read_u32() == 0)
        return NULL;
    table->n_positions = read_u32();
    table->n_pairs = read_u32();
    table->layout = read_u32();
    table->row_stride = table->n_pairs * (ptrdiff_t)sizeof(float);
    table->cos = keep_block(blocks, &n_bytes);
    table->sin = keep_block(blocks, &n_bytes);
    return table;
}

static void replay_attend(void)
{
    struct kvw_attn_piece pieces[BLOCKS_MAX];
    struct kvw_attn_args args;
    struct kvw_rope_table table;
    struct blocks blocks = {.n = 0};
    size_t n_bytes;
    const uint32_t n_pieces = read_u32();

    const void *of_trace = keep_block(&blocks, &n_bytes);
    need(n_bytes == sizeof args && n_pieces <= BLOCKS_MAX, "arguments of another size");
    memcpy(&args, of_trace, sizeof args);
    for (uint32_t i = 0; i < n_pieces; i++)
        read_piece(&blocks, &args, &pieces[i]);
    args.pieces = pieces;
    args.q = keep_block(&blocks, &n_bytes);
    args.q_head_stride = args.head_dim_k * (ptrdiff_t)sizeof(float);
    args.q_row_stride = args.q_head_stride * args.n_q_heads;
    args.sink_logits = keep_block(&blocks, &n_bytes);
    if (n_bytes == 0)
        args.sink_logits = NULL;
    args.rope = read_rope(&blocks, &table);
    const void *want = keep_block(&blocks, &n_bytes);
    args.out_head_stride = args.head_dim_v * (ptrdiff_t)sizeof(float);
    args.out_row_stride = args.out_head_stride * args.n_q_heads;
    args.out = new_bytes(&blocks, n_bytes);
    args.lse = NULL;
    need(kvw_attn_run(&args) == 0, "attention");
    need(memcmp(args.out, want, n_bytes) == 0, "attention gives other bits");
    free_blocks(&blocks);
}

static void replay_rotate(void)
{
    struct kvw_rope_args args;
    struct kvw_rope_table table;
    struct blocks blocks = {.n = 0};
    size_t n_bytes;

    const void *of_trace = keep_block(&blocks, &n_bytes);
    need(n_bytes == sizeof args, "arguments of another size");
    memcpy(&args, of_trace, sizeof args);
    args.rows = keep_block(&blocks, &n_bytes);
    args.table = read_rope(&blocks, &table);
    args.head_stride = 2 * (ptrdiff_t)table.n_pairs * (ptrdiff_t)sizeof(float);
    args.row_stride = args.head_stride * args.n_heads;
    const void *want = keep_block(&blocks, &n_bytes);
    need(kvw_rope_apply(&args) == 0, "rotation");
    need(memcmp(args.rows, want, n_bytes) == 0, "rotation gives other bits");
    free_blocks(&blocks);
}

static void replay_linear_sums(void)
{
    struct kvw_linear_update_args args;
    struct blocks blocks = {.n = 0};
    size_t vk_bytes;
    size_t n_bytes;

    const void *of_trace = keep_block(&blocks, &n_bytes);
    need(n_bytes == sizeof args, "arguments of another size");
    memcpy(&args, of_trace, sizeof args);
    args.k = keep_block(&blocks, &n_bytes);
    args.k_rotated = keep_block(&blocks, &n_bytes);
    args.v = keep_block(&blocks, &n_bytes);
    args.k_head_stride = args.head_dim_k * (ptrdiff_t)sizeof(float);
    args.k_row_stride = args.k_head_stride * args.n_heads;
    args.v_head_stride = args.head_dim_v * (ptrdiff_t)sizeof(float);
    args.v_row_stride = args.v_head_stride * args.n_heads;
    const void *want_vk = keep_block(&blocks, &vk_bytes);
    const void *want_k_sum = keep_block(&blocks, &n_bytes);
    args.state = (struct kvw_linear_state){
        new_bytes(&blocks, vk_bytes), new_bytes(&blocks, n_bytes),
        args.k_head_stride * args.head_dim_v, args.k_head_stride, args.k_head_stride};
    need(kvw_linear_update(&args) == 0, "sums");
    need(memcmp(args.state.vk, want_vk, vk_bytes) == 0 &&
             memcmp(args.state.k_sum, want_k_sum, n_bytes) == 0,
         "sums have other bits");
    free_blocks(&blocks);
}

/* Sums, of a view where they lie, or by their bytes. */
static void read_state(struct blocks *blocks, uint32_t head_dim_k, uint32_t head_dim_v,
                       struct kvw_linear_state *state)
{
    size_t n_bytes;

    const void *of_trace = keep_block(blocks, &n_bytes);
    need(n_bytes == sizeof *state, "a state of another size");
    memcpy(state, of_trace, sizeof *state);
    const uint32_t number = read_u32();
    if (number != NONE) {
        const struct kvw_view *view = find_view(number);
        state->vk = (float *)(void *)(view->plane[0].base + read_u64());
        state->k_sum = (float *)(void *)(view->plane[1].base + read_u64());
        return;
    }
    state->vk = keep_block(blocks, &n_bytes);
    state->k_sum = keep_block(blocks, &n_bytes);
    state->vk_row_stride = head_dim_k * (ptrdiff_t)sizeof(float);
    state->vk_head_stride = state->vk_row_stride * head_dim_v;
    state->k_sum_head_stride = state->vk_row_stride;
}

static void replay_linear_attend(void)
{
    struct kvw_linear_state states[BLOCKS_MAX];
    struct kvw_linear_use_args args;
    struct blocks blocks = {.n = 0};
    size_t n_bytes;
    const uint32_t n_states = read_u32();

    const void *of_trace = keep_block(&blocks, &n_bytes);
    need(n_bytes == sizeof args && n_states <= BLOCKS_MAX, "arguments of another size");
    memcpy(&args, of_trace, sizeof args);
    for (uint32_t i = 0; i < n_states; i++)
        read_state(&blocks, args.head_dim_k, args.head_dim_v, &states[i]);
    args.states = states;
    args.q = keep_block(&blocks, &n_bytes);
    args.q_rotated = keep_block(&blocks, &n_bytes);
    args.q_head_stride = args.head_dim_k * (ptrdiff_t)sizeof(float);
    args.q_row_stride = args.q_head_stride * args.n_heads;
    const void *want = keep_block(&blocks, &n_bytes);
    args.out_head_stride = args.head_dim_v * (ptrdiff_t)sizeof(float);
    args.out_row_stride = args.out_head_stride * args.n_heads;
    args.out = new_bytes(&blocks, n_bytes);
    need(kvw_linear_use(&args) == 0, "linear attention");
    need(memcmp(args.out, want, n_bytes) == 0, "linear attention gives other bits");
    free_blocks(&blocks);
}

/* The sum of what a view shows of the past. */
static void replay_sum_past(void)
{
    const struct kvw_view *view = find_view(read_u32());

    for (uint32_t p = 0; p < LINEAR_PLANES; p++) {
        struct blocks blocks = {.n = 0};
        size_t n_bytes;
        const void *want = keep_block(&blocks, &n_bytes);
        float *sum = new_bytes(&blocks, n_bytes);
        need(n_bytes == view->n_heads * view->plane[p].elems * sizeof *sum &&
                 kvw_sum_past(view, p, sum) >= 0,
             "sum of the past");
        need(memcmp(sum, want, n_bytes) == 0, "a sum of the past has other bits");
        free_blocks(&blocks);
    }
}

/* The chunk's own sums, and what is past of the layer in each lane: what is stored next. */
static void replay_running(void)
{
    const struct kvw_layer layer = {read_u32()};
    const uint32_t n_lanes = read_u32();

    need(n_lanes <= RUNNING_LANES_MAX, "lanes of a running sum");
    for (uint32_t lane = 0; lane < n_lanes; lane++) {
        struct kvw_view view;
        need(kvw_get(cache, lane, layer, KVW_STAGED, &view) == 0, "get");
        for (uint32_t p = 0; p < LINEAR_PLANES; p++) {
            size_t n_bytes;
            float *own = read_block(&n_bytes);
            float *sum = running[lane][p] = malloc(n_bytes);
            need(sum != NULL && kvw_sum_past(&view, p, sum) >= 0, "sum of the past");
            for (size_t i = 0; i < n_bytes / sizeof *sum; i++)
                sum[i] += own[i];
            free(own);
        }
        need(kvw_release(cache, &view) == 0, "release");
    }
}

static bool replay_record(void)
{
    const enum operation operation = (enum operation)read_u32();

    switch (operation) {
    case BEGIN:
        replay_begin();
        break;
    case UPDATE:
        replay_update();
        break;
    case COMMIT:
        replay_commit();
        break;
    case ABORT:
        need(kvw_abort(cache, read_u32()) == 0, "abort");
        break;
    case RESET_STATE:
        need(kvw_reset_state(cache) == 0, "reset_state");
        break;
    case RESET_LAYER: {
        const uint32_t lane = read_u32();
        need(kvw_reset_layer(cache, lane, (struct kvw_layer){read_u32()}) == 0,
             "reset_layer");
        break;
    }
    case GET:
        replay_get();
        break;
    case RELEASE:
        replay_release();
        break;
    case ATTEND:
        replay_attend();
        break;
    case ROTATE:
        replay_rotate();
        break;
    case LINEAR_SUMS:
        replay_linear_sums();
        break;
    case LINEAR_ATTEND:
        replay_linear_attend();
        break;
    case SUM_PAST:
        replay_sum_past();
        break;
    case RUNNING:
        replay_running();
        break;
    case END:
        return false;
    default:
        replay_step(operation);
        break;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct kvw_client *client;
    size_t n_bytes;

    if (argc != 3 || (trace = fopen(argv[1], "rb")) == NULL)
        stop("usage: replay TRACE NAME");
    struct kvw_spec *spec = read_block(&n_bytes);
    need(n_bytes == sizeof *spec, "a spec of another size");
    (void)snprintf(spec->name, sizeof spec->name, "%s", argv[2]);
    need(kvw_connect(NULL, &client) == 0, "connect");
    need(kvw_create(client, spec, NULL, NULL) == 0, "create");
    need(kvw_attach(client, spec->name, 0, NULL, &cache) == 0, "attach");
    while (replay_record())
        n_records++;
    kvw_detach(cache);
    kvw_disconnect(client);
    free(spec);
    (void)fclose(trace);
    printf("%" PRIu64 " records are the same\n", n_records);
    return 0;
}
