/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a cache over all ranks: who is where, do all agree, who takes which place. Until
 * places are dealt, place and rank are the same number.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/mpi/inside.h"
#include "proto/layout.h"

#define NAME_LETTERS_MAX 50u
#define DEFAULT_TIMEOUT_NS 30000000000ull
#define HAVE_HALF UINT64_MAX /* a box that was never filled */

/* What each rank says of itself first. */
struct hello {
    uint64_t spec_digest;
    uint64_t layout;
    char version[16];
    char host[HOST_BYTES];
    uint32_t node_first; /* lowest rank of its node */
    uint32_t is_started;
    int32_t error;
    char text[TEXT_BYTES - 128];
};

static uint64_t digest_more(uint64_t digest, const void *data, size_t n_bytes)
{
    const unsigned char *bytes = data;

    for (size_t i = 0; i < n_bytes; i++) /* FNV-1a */
        digest = (digest ^ bytes[i]) * 0x100000001b3u;
    return digest;
}

/* Of spec and options, both of which have no padding that counts: the spec is zeroed by
 * kvw_spec_init(). */
static uint64_t digest_of(const struct kvw_mpi *mpi)
{
    uint64_t digest = digest_more(0xcbf29ce484222325u, &mpi->spec, sizeof mpi->spec);

    digest = digest_more(digest, &mpi->box_ranks, sizeof mpi->box_ranks);
    return digest_more(digest, &mpi->whole_groups, sizeof mpi->whole_groups);
}

uint64_t places_of_lane(const struct kvw_mpi *mpi, uint32_t lane)
{
    uint64_t places = 0;

    for (uint32_t place = 0; place < mpi->n_places; place++) {
        const uint32_t part = box_part(&mpi->grid, place, AXIS_LANE);
        const struct interval lanes = box_lanes(&mpi->spec, &mpi->grid, part, 1);
        if (lane - lanes.first < lanes.n)
            places |= 1ull << place;
    }
    return places;
}

/* ---------------------------------------------------------------- meeting --------- */

/* The lowest rank of this rank's node. */
static int find_node(MPI_Comm comm, uint32_t *node_first)
{
    MPI_Comm node;
    MPI_Group all_group, node_group;
    const int zero = 0;
    int first = 0;

    int error =
        MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    if (error != MPI_SUCCESS)
        return told(-EIO, "init: MPI_Comm_split_type failed (%d)", error);
    MPI_Comm_group(comm, &all_group);
    MPI_Comm_group(node, &node_group);
    MPI_Group_translate_ranks(node_group, 1, &zero, all_group, &first);
    MPI_Group_free(&all_group);
    MPI_Group_free(&node_group);
    MPI_Comm_free(&node);
    *node_first = (uint32_t)first;
    return 0;
}

static int set_options(struct kvw_mpi *mpi, const struct kvw_mpi_options *options)
{
    static const struct kvw_mpi_options defaults = KVW_MPI_OPTIONS_INIT;

    if (options == NULL)
        options = &defaults;
    if (options->size != sizeof *options || (options->flags & ~(uint32_t)KVW_MPI_START))
        return told(-EINVAL,
                    "init: options: need size %zu and known flags, have %u, %#x",
                    sizeof *options, options->size, options->flags);
    if ((options->flags & KVW_MPI_START) && options->socket_path != NULL)
        return told(-EINVAL, "init: KVW_MPI_START starts at the default socket only");
    mpi->flags = options->flags;
    mpi->timeout_ns =
        options->timeout_ns != 0 ? options->timeout_ns : DEFAULT_TIMEOUT_NS;
    mpi->box_ranks = max_u32(options->box_ranks, 1);
    mpi->whole_groups = options->whole_groups;
    return 0;
}

static int check_spec(struct kvw_mpi *mpi, const struct kvw_spec *spec)
{
    if (spec == NULL || spec->size != sizeof *spec || spec->n_groups > KVW_GROUPS_MAX ||
        spec->n_layers > KVW_LAYERS_MAX)
        return told(-EINVAL, "init: the spec was not made by kvw_spec_init()");
    mpi->spec = *spec;
    if (spec->n_ranks != mpi->n_places || mpi->n_places > KVW_RANKS_MAX)
        return told(
            -EINVAL,
            "init: the spec has %u ranks, the communicator %u, and %u are the most",
            spec->n_ranks, mpi->n_places, KVW_RANKS_MAX);
    if (mpi->n_places % mpi->box_ranks != 0)
        return told(-EINVAL, "init: box_ranks: need a divisor of %u ranks, have %u",
                    mpi->n_places, mpi->box_ranks);
    mpi->n_boxes = mpi->n_places / mpi->box_ranks;
    if (mpi->n_boxes > 1 &&
        strnlen(spec->name, NAME_LETTERS_MAX + 1) > NAME_LETTERS_MAX)
        return told(-EINVAL, "init: the name has at most %u letters", NAME_LETTERS_MAX);
    return box_grid(spec, mpi->whole_groups, mpi->box_ranks, &mpi->grid);
}

static int find_daemon(struct kvw_mpi *mpi, const char *socket_path)
{
    int error = kvw_connect_running(socket_path, &mpi->client);

    if ((error == -ENOENT || error == -ECONNREFUSED) && (mpi->flags & KVW_MPI_START)) {
        error = kvw_connect(NULL, &mpi->client);
        mpi->is_started = error == 0;
    }
    return error == 0 ? 0 : told_by_kvw(error, "init: connect");
}

/* What a host without a daemon wants. */
static int told_absent(const struct kvw_mpi *mpi, const struct hello *hellos,
                       uint32_t rank, const char *socket_path)
{
    char hosts[256] = "";
    size_t at = 0;
    uint32_t n_nodes = 0;

    for (uint32_t r = 0; r < mpi->n_places; r++) {
        if (hellos[r].node_first != r)
            continue;
        n_nodes++;
        int n = snprintf(hosts + at, sizeof hosts - at, "%s%s", at > 0 ? "," : "",
                         hellos[r].host);
        at += n > 0 && (size_t)n < sizeof hosts - at ? (size_t)n : 0;
    }
    return told(
        hellos[rank].error,
        "rank %u on %s: %.200s; start a daemon on every node: kvwheel start --hosts "
        "%s%s%s (under Slurm, in the background for the whole job: srun --overlap "
        "--nodes %u --ntasks-per-node 1 kvwheel start --foreground)",
        rank, hellos[rank].host, hellos[rank].text, hosts,
        socket_path != NULL ? " --socket " : "", socket_path != NULL ? socket_path : "",
        n_nodes);
}

static int compare(const struct hello *first, const struct hello *hello, uint32_t rank)
{
    if (strcmp(first->version, hello->version) != 0 || first->layout != hello->layout)
        return told(
            -KVW_ELAYOUT,
            "rank %u on %s: kvwheel %s, layout %016llx; rank 0 on %s: kvwheel %s, "
            "layout %016llx: install the same version on every node",
            rank, hello->host, hello->version, (unsigned long long)hello->layout,
            first->host, first->version, (unsigned long long)first->layout);
    if (first->spec_digest != hello->spec_digest)
        return told(
            -EINVAL,
            "rank %u on %s: its spec or options (digest %016llx) differ from those "
            "of rank 0 on %s (%016llx)",
            rank, hello->host, (unsigned long long)hello->spec_digest, first->host,
            (unsigned long long)first->spec_digest);
    return 0;
}

static int judge(struct kvw_mpi *mpi, struct hello *hellos, const char *socket_path)
{
    for (uint32_t rank = 0; rank < mpi->n_places; rank++) {
        struct hello *hello = &hellos[rank];
        hello->host[sizeof hello->host - 1] = 0;
        hello->text[sizeof hello->text - 1] = 0;
        hello->version[sizeof hello->version - 1] = 0;
        memcpy(mpi->peer[rank].host, hello->host, HOST_BYTES);
        if (hello->node_first > rank)
            return told(-EPROTO, "rank %u: a message that makes no sense", rank);
        mpi->peer[rank].node = hello->node_first == rank
                                   ? mpi->n_nodes++
                                   : mpi->peer[hello->node_first].node;
    }
    for (uint32_t rank = 0; rank < mpi->n_places; rank++) {
        const struct hello *hello = &hellos[rank];
        if (hello->error == -ENOENT || hello->error == -ECONNREFUSED)
            return told_absent(mpi, hellos, rank, socket_path);
        if (hello->error != 0)
            return told(hello->error, "rank %u on %s: %s", rank, hello->host,
                        hello->text);
        int error = compare(&hellos[0], hello, rank);
        if (error != 0)
            return error;
    }
    return 0;
}

static int meet(struct kvw_mpi *mpi, const struct kvw_spec *spec,
                const struct kvw_mpi_options *options)
{
    const char *socket_path = options != NULL ? options->socket_path : NULL;
    struct hello mine = {.layout = layout_hash()};
    struct hello *all = calloc(KVW_RANKS_MAX, sizeof *all);

    if (all == NULL) /* the others find out by their deadline */
        return told(-ENOMEM, "init: no memory");
    snprintf(mine.version, sizeof mine.version, "%s", kvw_version());
    (void)gethostname(mine.host, sizeof mine.host - 1);
    int error = set_options(mpi, options);
    mpi->timeout_ns = mpi->timeout_ns != 0 ? mpi->timeout_ns : DEFAULT_TIMEOUT_NS;
    int node_error = find_node(mpi->comm, &mine.node_first);
    if (error == 0)
        error = node_error;
    if (error == 0)
        error = check_spec(mpi, spec);
    if (error == 0)
        error = find_daemon(mpi, socket_path);
    if (error != 0)
        snprintf(mine.text, sizeof mine.text, "%s", kvw_mpi_last_error());
    mine.error = error;
    mine.is_started = mpi->is_started;
    mine.spec_digest = digest_of(mpi);
    error = exchange_all(mpi, UINT64_MAX, TAG_HELLO, &mine, all, sizeof mine,
                         "init: meeting");
    if (error == 0)
        error = judge(mpi, all, socket_path);
    free(all);
    return error;
}

/* ---------------------------------------------------------------- placing --------- */

/* The newest step of a box + 1. */
static int look_at_box(const struct kvw_mpi *mpi, const struct kvw_spec *spec,
                       uint64_t *have)
{
    struct kvw_cache *reader = NULL;
    struct kvw_lane_state state;

    int error = kvw_attach(mpi->client, spec->name, KVW_READER, NULL, &reader);
    if (error == -ENOENT)
        return 0;
    if (error != 0)
        return told_by_kvw(error, "init: look for a box");
    const uint32_t n_lanes = kvw_cache_spec(reader)->n_lanes;
    *have = 1;
    for (uint32_t lane = 0; lane < n_lanes && error == 0; lane++) {
        error = kvw_state(reader, lane, KVW_ALL_RANKS, &state);
        if (error == 0 && state.step + 1 > *have)
            *have = state.step + 1;
    }
    if (error != 0)
        error = told_by_kvw(error, "init: look at a box");
    kvw_detach(reader);
    return error;
}

/* Which boxes this node has: 0, HAVE_HALF, or the newest step + 1. What cannot be looked at is an error:
 * a box that counts as lost is made anew. */
static int look_for_boxes(struct kvw_mpi *mpi, uint64_t have[KVW_RANKS_MAX])
{
    struct kvw_spec *spec = malloc(sizeof *spec);
    struct box_group group[KVW_GROUPS_MAX];
    int error = spec == NULL ? told(-ENOMEM, "init: no memory") : 0;

    for (uint32_t box = 0; box < mpi->n_boxes && error == 0; box++) {
        error = box_spec(&mpi->spec, &mpi->grid, mpi->whole_groups, box, spec, group);
        if (error == 0 && lost_is_marked(mpi, spec->name))
            have[box] = HAVE_HALF;
        else if (error == 0)
            error = look_at_box(mpi, spec, &have[box]);
    }
    free(spec);
    return error;
}

static int find_places(struct kvw_mpi *mpi)
{
    uint64_t mine[KVW_RANKS_MAX] = {0};
    struct placing *placing = calloc(1, sizeof *placing);
    uint64_t(*all)[KVW_RANKS_MAX] = calloc(KVW_RANKS_MAX, sizeof *all);
    bool is_first = true;
    int error = placing == NULL || all == NULL ? told(-ENOMEM, "init: no memory") : 0;

    for (uint32_t rank = 0; rank < mpi->rank; rank++)
        is_first = is_first && mpi->peer[rank].node != mpi->peer[mpi->rank].node;
    if (error == 0 && is_first)
        error = look_for_boxes(mpi, mine);
    error = kvw_mpi_agree(mpi, error, kvw_mpi_last_error());
    if (error == 0)
        error = exchange_all(mpi, UINT64_MAX, TAG_BOXES, mine, all, sizeof mine,
                             "init: looking for boxes");
    if (error == 0) {
        placing->n_ranks = mpi->n_places;
        placing->box_ranks = mpi->box_ranks;
        placing->n_nodes = mpi->n_nodes;
        for (uint32_t rank = 0; rank < mpi->n_places; rank++) {
            const uint32_t node = mpi->peer[rank].node;
            placing->node[rank] = node;
            for (uint32_t box = 0; box < mpi->n_boxes; box++) {
                if (all[rank][box] != HAVE_HALF &&
                    all[rank][box] > placing->have[node][box])
                    placing->have[node][box] = all[rank][box];
            }
        }
        error = place_all(placing, &mpi->grid, mpi->rank_of, mpi->is_new);
    }
    for (uint32_t place = 0; place < mpi->n_places && error == 0; place++)
        if (mpi->rank_of[place] == (int)mpi->rank)
            mpi->place = place;
    mpi->box = box_of_place(&mpi->grid, mpi->place, &mpi->box_rank);
    for (uint32_t rank = 0; rank < mpi->n_places && error == 0; rank++) {
        if (mpi->peer[rank].node == mpi->peer[mpi->rank].node &&
            all[rank][mpi->box] != 0)
            mpi->is_left = mpi->is_new[mpi->box];
    }
    free(placing);
    free(all);
    return error;
}

/* --------------------------------------------------------------- attaching -------- */

/* Attach; the owner of a job that is being killed is waited for (bounded). */
static int attach(struct kvw_mpi *mpi, const char *name,
                  const struct kvw_attach_options *given)
{
    struct kvw_attach_options options = KVW_ATTACH_OPTIONS_INIT;

    options.timeout_ns = mpi->timeout_ns;
    options.owner_timeout_ns = mpi->timeout_ns;
    const int error = kvw_attach(mpi->client, name, mpi->box_rank,
                                 given != NULL ? given : &options, &mpi->cache);
    return error == 0 ? 0 : told_by_kvw(error, "init: attach");
}

/* The rules of the whole cache's rows, for positions and windows. */
static void set_rules(struct kvw_mpi *mpi)
{
    for (uint32_t g = 0; g < mpi->spec.n_groups; g++) {
        const struct kvw_spec_group *group = &mpi->spec.group[g];
        mpi->rules[g] = (struct kvw_geometry_group){
            .window_rows = group->window_rows,
            .sink_rows = group->sink_rows,
            .chunk_rows_max = group->chunk_rows_max,
            .policy = (uint8_t)group->policy,
            .kind = (uint8_t)group->window_kind,
            .positions = (uint8_t)group->positions,
        };
    }
}

static int prepare_box(struct kvw_mpi *mpi)
{
    struct kvw_spec spec;

    int error = box_spec(&mpi->spec, &mpi->grid, mpi->whole_groups, mpi->box, &spec,
                         mpi->group);
    if (error != 0)
        return error;
    set_rules(mpi);
    const uint32_t lane_part =
        box_part(&mpi->grid, box_place(&mpi->grid, mpi->box, 0), AXIS_LANE);
    mpi->lane_first = box_lanes(&mpi->spec, &mpi->grid, lane_part, 1).first;
    mpi->n_lanes = spec.n_lanes;
    mpi->lane = calloc(spec.n_lanes, sizeof mpi->lane[0]);
    mpi->passes = calloc(spec.n_layers, sizeof mpi->passes[0]);
    if (mpi->lane == NULL || mpi->passes == NULL)
        return told(-ENOMEM, "init: no memory");
    for (uint32_t i = 0; i < spec.n_lanes; i++)
        mpi->lane[i].is_empty = mpi->is_new[mpi->box];
    return lost_begin(mpi, &spec);
}

static int open_box(struct kvw_mpi *mpi, const struct kvw_attach_options *options)
{
    struct box_group group[KVW_GROUPS_MAX];
    struct kvw_spec spec;

    int error =
        box_spec(&mpi->spec, &mpi->grid, mpi->whole_groups, mpi->box, &spec, group);
    if (error != 0)
        return error;
    error = kvw_create(mpi->client, &spec, NULL, NULL);
    if (error < 0)
        return told_by_kvw(error, "init: create");
    return attach(mpi, spec.name, options);
}

static int read_steps(struct kvw_mpi *mpi)
{
    int error = 0;

    for (uint32_t lane = 0; lane < mpi->spec.n_lanes && error == 0; lane++) {
        if (kvw_mpi_here(mpi, lane, (struct kvw_layer){0}, NULL, NULL) == 0)
            error = step_read(mpi, lane);
    }
    return error;
}

static int open_all(struct kvw_mpi *mpi, const struct kvw_spec *spec,
                    const struct kvw_mpi_options *options)
{
    int error = meet(mpi, spec, options);

    if (error == 0)
        error = find_places(mpi);
    if (error != 0)
        return error;
    error = prepare_box(mpi);
    error = kvw_mpi_agree(mpi, error, kvw_mpi_last_error());
    if (error != 0)
        return error;
    error = open_box(mpi, options != NULL ? options->attach : NULL);
    if (error == 0)
        error = read_steps(mpi);
    return kvw_mpi_agree(mpi, error, kvw_mpi_last_error());
}

int kvw_mpi_init(MPI_Comm comm, const struct kvw_spec *spec,
                 const struct kvw_mpi_options *options, struct kvw_mpi **out)
{
    int n_ranks = 0, rank = 0;
    struct kvw_mpi *mpi = calloc(1, sizeof *mpi);

    if (mpi == NULL)
        return told(-ENOMEM, "init: no memory");
    mpi->comm = MPI_COMM_NULL;
    if (MPI_Comm_size(comm, &n_ranks) != MPI_SUCCESS || n_ranks > (int)KVW_RANKS_MAX) {
        free(mpi);
        return told(-EINVAL, "init: at most %u ranks, have %d", KVW_RANKS_MAX, n_ranks);
    }
    MPI_Comm_rank(comm, &rank);
    mpi->n_places = (uint32_t)n_ranks;
    mpi->rank = mpi->place = (uint32_t)rank;
    for (int i = 0; i < n_ranks; i++)
        mpi->rank_of[i] = i;
    if (MPI_Comm_dup(comm, &mpi->comm) != MPI_SUCCESS) {
        free(mpi);
        return told(-EIO, "init: MPI_Comm_dup failed");
    }
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    int error = open_all(mpi, spec, options);
    if (error != 0) {
        kvw_mpi_fini(mpi);
        return error;
    }
    *out = mpi;
    return 0;
}

void kvw_mpi_fini(struct kvw_mpi *mpi)
{
    if (mpi == NULL)
        return;
    for (uint32_t i = 0; i < mpi->n_lanes && mpi->lane != NULL; i++) {
        if (mpi->is_broken || exchange_wait(mpi, &mpi->lane[i].exchange, "end") != 0)
            exchange_drop(&mpi->lane[i].exchange);
    }
    kvw_detach(mpi->cache);
    kvw_disconnect(mpi->client);
    if (mpi->comm != MPI_COMM_NULL && !mpi->is_broken)
        MPI_Comm_free(&mpi->comm);
    free(mpi->lane);
    free(mpi->passes);
    free(mpi->memory);
    free(mpi->piece);
    free(mpi);
}

/* -------------------------------------------------------------- looking up -------- */

int kvw_mpi_place(const struct kvw_mpi *mpi, uint32_t place, struct kvw_mpi_place *out)
{
    if (place == KVW_READER)
        place = mpi->place;
    if (place >= mpi->n_places)
        return told(-ERANGE, "place: need less than %u, have %u", mpi->n_places, place);
    const uint32_t rank = (uint32_t)mpi->rank_of[place];
    *out = (struct kvw_mpi_place){
        .rank = rank,
        .place = place,
        .n_places = mpi->n_places,
        .node = mpi->peer[rank].node,
        .n_nodes = mpi->n_nodes,
        .n_boxes = mpi->n_boxes,
        .box_ranks = mpi->box_ranks,
        .row_part = box_part(&mpi->grid, place, AXIS_ROW),
        .row_parts = mpi->grid.parts[AXIS_ROW],
        .is_started = mpi->is_started,
    };
    out->box = box_of_place(&mpi->grid, place, &out->box_rank);
    out->is_new = mpi->is_new[out->box];
    for (uint32_t box = 0; box < mpi->n_boxes; box++)
        out->n_new += mpi->is_new[box];
    memcpy(out->host, mpi->peer[rank].host, sizeof out->host);
    return 0;
}

int kvw_mpi_part(const struct kvw_mpi *mpi, uint32_t group, uint32_t place,
                 struct kvw_part *part)
{
    if (place == KVW_READER)
        place = mpi->place;
    if (group >= mpi->spec.n_groups || place >= mpi->n_places)
        return told(-ERANGE, "part: need group < %u and place < %u, have %u and %u",
                    mpi->spec.n_groups, mpi->n_places, group, place);
    const struct grid *grid = &mpi->grid;
    const uint32_t head_part = box_part(grid, place, AXIS_HEAD);
    struct interval heads = {0, mpi->spec.group[group].n_heads};
    if ((mpi->whole_groups >> group & 1) == 0)
        heads = box_heads(&mpi->spec, grid, group, head_part, 1);
    const struct interval layers =
        box_layers(&mpi->spec, grid, group, box_part(grid, place, AXIS_LAYER), 1);
    const struct interval lanes =
        box_lanes(&mpi->spec, grid, box_part(grid, place, AXIS_LANE), 1);
    *part = (struct kvw_part){heads.first, heads.n,     layers.first,
                              layers.n,    lanes.first, lanes.n};
    return 0;
}

const struct kvw_spec *kvw_mpi_spec(const struct kvw_mpi *mpi)
{
    return &mpi->spec;
}

struct kvw_cache *kvw_mpi_cache(const struct kvw_mpi *mpi)
{
    return mpi->cache;
}

int kvw_mpi_here(const struct kvw_mpi *mpi, uint32_t lane, struct kvw_layer layer,
                 uint32_t *lane_at, struct kvw_layer *layer_at)
{
    struct kvw_part part;

    const int error = kvw_mpi_part(mpi, 0, KVW_READER, &part);
    if (error != 0 || lane - part.lane_first >= part.n_lanes)
        return told(-ERANGE, "lane %u is not of rank %u", lane, mpi->rank);
    if (lane_at != NULL)
        *lane_at = lane - mpi->lane_first;
    if (layer_at == NULL)
        return 0;
    for (uint32_t g = 0; g < mpi->spec.n_groups; g++) {
        const struct box_group *group = &mpi->group[g];
        if (kvw_mpi_part(mpi, g, KVW_READER, &part) == 0 &&
            layer.index - part.layer_first < part.n_layers) {
            layer_at->index = group->layer_here + layer.index - group->layers.first;
            return 0;
        }
    }
    return told(-ERANGE, "layer %u is not of rank %u", layer.index, mpi->rank);
}

uint64_t kvw_mpi_rows_before(const struct kvw_mpi *mpi, uint32_t group, uint64_t row)
{
    return group < mpi->spec.n_groups ? box_rows_before(&mpi->group[group].rows, row)
                                      : 0;
}

uint64_t kvw_mpi_row(const struct kvw_mpi *mpi, uint32_t group, uint64_t row_here)
{
    return group < mpi->spec.n_groups ? box_row(&mpi->group[group].rows, row_here) : 0;
}

void kvw_mpi_counters(const struct kvw_mpi *mpi, struct kvw_mpi_counters *counters)
{
    *counters = mpi->counters;
}
