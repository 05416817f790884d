/* SPDX-License-Identifier: Apache-2.0 */
/* Header, segments, ranks against each other; boards and rows in files of their own. */
#include "client/verify.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/client.h"
#include "client/cut.h"

/* --------------------------------------------------------------- segments -------- */

static void check_header(struct verify *verify)
{
    const struct kvw_cache *cache = verify->cache;
    const struct kvw_control_header *header =
        (const struct kvw_control_header *)(const void *)cache->control;
    struct kvw_geometry geometry;
    struct kvw_layout layout;
    struct kvw_refusal refusal;
    const uint32_t none = UINT32_MAX;

    if (layout_control_read(cache->control, cache->layout.control_bytes,
                            cache->layout.pins_bytes, cache->layout.data_bytes,
                            &geometry, &layout, &refusal) != 0)
        verify_tell(verify, KVW_DAMAGE_HEADER, none, none, "%s", refusal.text);
    else if (memcmp(&geometry, &cache->geometry, sizeof geometry) != 0)
        verify_tell(verify, KVW_DAMAGE_HEADER, none, none,
                    "control segment: its geometry has changed since it was attached");
    const uint32_t state = load_relaxed(&header->state);
    if (state != KVW_CONTROL_LIVE && state != KVW_CONTROL_REMOVED)
        verify_tell(verify, KVW_DAMAGE_HEADER, none, none,
                    "control segment: state: need %u or %u, have %u", KVW_CONTROL_LIVE,
                    KVW_CONTROL_REMOVED, state);
    for (uint32_t rank = 0; rank < cache->geometry.n_ranks; rank++) {
        const uint32_t seat =
            load_relaxed(&layout_seat(cache->control, &cache->layout, rank)->state);
        if (seat > KVW_SEAT_DEAD)
            verify_tell(verify, KVW_DAMAGE_HEADER, rank, none,
                        "seat of rank %u: state: need at most %u, have %u", rank,
                        KVW_SEAT_DEAD, seat);
    }
}

/* A test's own memory has no descriptors, and nothing to be checked here. */
static void check_segments(struct verify *verify)
{
    static const char *const names[3] = {"control", "pins", "data"};
    const struct kvw_cache *cache = verify->cache;
    const uint64_t n_bytes[3] = {cache->layout.control_bytes, cache->layout.pins_bytes,
                                 cache->layout.data_bytes};
    const int needed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const uint32_t none = UINT32_MAX;

    for (int i = 0; i < 3 && cache->client != NULL; i++) {
        struct stat status = {0};
        const int seals = fcntl(cache->fds[i], F_GET_SEALS);
        if (seals < 0 || (seals & needed) != needed)
            verify_tell(verify, KVW_DAMAGE_SEGMENT, none, none,
                        "%s segment: seals: need %#x, have %#x", names[i],
                        (unsigned)needed, seals < 0 ? 0 : (unsigned)seals);
        if (fstat(cache->fds[i], &status) < 0 || status.st_size < 0 ||
            (uint64_t)status.st_size != n_bytes[i])
            verify_tell(verify, KVW_DAMAGE_SEGMENT, none, none,
                        "%s segment: need %" PRIu64 " bytes, have %lld", names[i],
                        n_bytes[i], (long long)status.st_size);
    }
}

/* ------------------------------------------------------------------ lanes -------- */

/* What the ranks of a lane published of the newest step that all of them have. That there
 * is none is no damage: ranks on other nodes may be behind. */
static void check_lane(struct verify *verify, uint32_t lane)
{
    const struct kvw_cache *cache = verify->cache;
    struct cut_of of = {.lane = lane, .ranks = cache->lane_ranks[lane]};
    struct cut cut;

    for (; of.layer < cache->geometry.n_layers && of.ranks != 0; of.layer++) {
        of.group = cache->layers[of.layer].group;
        if (cut_take(cache, &of, &cut) != -KVW_EDIVERGED)
            continue;
        verify_tell(verify, KVW_DAMAGE_DIVERGED, UINT32_MAX, lane, "%s",
                    kvw_last_error());
        return; /* the other layers have diverged with it */
    }
}

/* -------------------------------------------------------------------- all -------- */

int kvw_verify(struct kvw_cache *cache, kvw_damage_fn *tell_fn, void *context,
               struct kvw_verified *verified)
{
    struct verify verify = {.cache = cache, .tell = tell_fn, .context = context};

    verify.record = record_new(cache);
    verify.before = record_new(cache);
    if (verify.record == NULL || verify.before == NULL) {
        free(verify.record);
        free(verify.before);
        return fail(-ENOMEM, "verify '%s': no memory for a record", cache->name);
    }
    verify.counts.has_checksums = cache->geometry.has_checksums;
    check_header(&verify);
    check_segments(&verify);
    for (uint32_t lane = 0; lane < cache->geometry.n_lanes; lane++) {
        FOR_EACH_RANK(rank, cache->lane_ranks[lane])
        {
            verify_board(&verify, (uint32_t)rank, lane);
        }
        check_lane(&verify, lane);
    }
    for (uint32_t rank = 0;
         rank < cache->geometry.n_ranks && cache->geometry.has_checksums; rank++)
        verify_rows(&verify, rank);
    free(verify.record);
    free(verify.before);
    if (verified != NULL)
        *verified = verify.counts;
    return verify.counts.n_damages > 0;
}
