/* SPDX-License-Identifier: Apache-2.0 */
/* One cache of one run. */
#include "examples/common/cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OWNER_NS 10000000000ull /* a rank of a job that is being killed may linger */
#define RECOVER_NS 30000000000ull

int cache_refused(struct fail *fail, const char *what, int error)
{
    const char *words = kvw_last_error();

    return fail_set(fail, FAIL_CACHE, "kvwheel: %s: %s", what,
                    words[0] != '\0' ? words : kvw_strerror(error));
}

void cache_make_name(const char *prefix, char name[CACHE_NAME_BYTES])
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(name, CACHE_NAME_BYTES, "%s-%ld-%lld", prefix, (long)getpid(),
             (long long)now.tv_sec * 1000000000 + now.tv_nsec);
}

int cache_add_rows(struct kvw_spec *spec, const char *name, uint64_t rows_max,
                   uint32_t type, uint32_t elems)
{
    struct kvw_spec_group *group = kvw_spec_add_group(spec, name, 1, NULL);

    if (group == NULL)
        return -EINVAL;
    group->window_rows = rows_max;
    group->chunk_rows_max = rows_max;
    group->policy = KVW_REFUSE;
    return kvw_spec_add_plane(group, name, type, elems) != NULL ? 0 : -EINVAL;
}

const struct kvw_spec_group *cache_group(const struct kvw_spec *spec, const char *name)
{
    for (uint32_t i = 0; i < spec->n_groups; i++) {
        if (strcmp(spec->group[i].name, name) == 0)
            return &spec->group[i];
    }
    return NULL;
}

int cache_take_name(const char *given, char name[CACHE_NAME_BYTES], struct fail *fail)
{
    if (strlen(given) >= CACHE_NAME_BYTES)
        return fail_set(fail, FAIL_USAGE, "--resume: a name has at most %u letters",
                        CACHE_NAME_BYTES - 1);
    snprintf(name, CACHE_NAME_BYTES, "%s", given);
    return 0;
}

int cache_look(struct kvw_client *client, const char *name, struct kvw_cache **reader,
               struct fail *fail)
{
    int result = kvw_attach(client, name, KVW_READER, NULL, reader);

    if (result == -ENOENT)
        return 0;
    return result < 0 ? cache_refused(fail, "look at the cache", result) : 1;
}

int cache_attach(const char *socket, struct kvw_client **client, const char *name,
                 uint32_t rank, struct kvw_cache **cache, struct fail *fail)
{
    struct kvw_attach_options options = KVW_ATTACH_OPTIONS_INIT;
    int result = *client == NULL ? kvw_connect(socket, client) : 0;

    if (result < 0)
        return cache_refused(fail, "connect", result);
    options.owner_timeout_ns = OWNER_NS;
    result = kvw_attach(*client, name, rank, &options, cache);
    return result < 0 ? cache_refused(fail, "attach", result) : 0;
}

int cache_heads(const struct kvw_cache *cache, uint32_t group, uint32_t rank,
                struct share *heads, struct fail *fail)
{
    struct kvw_part part;
    int result = kvw_cache_part(cache, group, rank, &part);

    if (result < 0)
        return cache_refused(fail, "heads of a rank", result);
    *heads = (struct share){part.head_first, part.n_heads};
    return 0;
}

uint64_t cache_rolls(uint64_t rows, uint64_t window, uint64_t sink)
{
    return rows <= window ? 0 : (rows - window) / (window - sink);
}

int cache_settle(struct kvw_cache *cache, uint32_t rank, bool was_there,
                 struct kvw_lane_state *state, struct fail *fail)
{
    int result = 0;

    if (was_there)
        result = kvw_recover(cache, 0, RECOVER_NS, NULL);
    if (result < 0)
        return cache_refused(fail, "recover", result);
    result = kvw_state(cache, 0, rank, state);
    return result < 0 ? cache_refused(fail, "state", result) : 0;
}

/* What of a piece is wanted: whole rows, which follow each other in memory. */
static uint64_t read_piece(const struct kvw_view *view, uint32_t i, uint64_t row,
                           uint64_t n, size_t row_bytes, char *out)
{
    const struct kvw_piece *piece = &view->piece[i];
    const uint64_t end = piece->row + piece->n_rows;
    const char *from = kvw_piece_at(&view->plane[0], piece, 0);
    uint64_t done = 0;

    for (; done < n && row + done >= piece->row && row + done < end; done++)
        memcpy(out + done * row_bytes,
               from + (row + done - piece->row) * view->plane[0].row_bytes, row_bytes);
    return done;
}

int cache_read_rows(struct kvw_cache *cache, struct kvw_layer layer, const char *what,
                    uint64_t first, uint64_t n, size_t row_bytes, void *out,
                    struct fail *fail)
{
    struct kvw_view view;
    uint64_t done = 0;
    int result = kvw_get(cache, 0, layer, KVW_COMMITTED, &view);

    if (result < 0)
        return cache_refused(fail, what, result);
    for (uint32_t i = 0; i < view.n_pieces && done < n; i++)
        done += read_piece(&view, i, first + done, n - done, row_bytes,
                           (char *)out + done * row_bytes);
    result = kvw_release(cache, &view);
    if (result < 0)
        return cache_refused(fail, what, result);
    if (done != n)
        return fail_set(fail, FAIL_CACHE,
                        "kvwheel: %s: need %" PRIu64 " rows from %" PRIu64
                        " on, have %" PRIu64,
                        what, n, first, view.end_row);
    return 0;
}
