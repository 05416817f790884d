/* SPDX-License-Identifier: Apache-2.0 */
/* Each answer says where the next question goes on, so that nothing is kept for us. */
#include "client/cli/stat.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/output.h"
#include "client/cli/spec_flags.h"
#include "proto/layout.h"
#include "proto/placement.h"

static int take_stated(const struct kvw_message_stated *stated,
                       struct stat_cache *cache)
{
    struct kvw_refusal refusal;

    if (stated->geometry_bytes != sizeof cache->geometry || stated->uuid_bytes != 16)
        return fail(-EPROTO, "stat: a geometry of %u bytes, need %zu",
                    stated->geometry_bytes, sizeof cache->geometry);
    memcpy(&cache->geometry, stated->geometry, sizeof cache->geometry);
    if (geometry_check(&cache->geometry, &refusal) < 0)
        return fail(-EPROTO, "stat: the geometry of '%s': %s", stated->name,
                    refusal.text);
    for (int i = 0; i < 16; i++)
        snprintf(cache->uuid + 2 * i, 3, "%02x", stated->uuid[i]);
    cache->stated = *stated;
    cache->stated.geometry = NULL;
    cache->stated.uuid = NULL;
    return 0;
}

int stat_name(const struct cli *cli, const char *name, struct stat_cache *cache)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STAT};
    struct kvw_message answer;

    snprintf(request.stat.name, sizeof request.stat.name, "%s", name);
    int result = cli_ask(cli, &request, &answer);
    return result < 0 ? result : take_stated(&answer.stated, cache);
}

int stat_next(const struct cli *cli, uint64_t after, struct stat_cache *cache)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STAT, .stat = {.after = after}};
    struct kvw_message answer;

    int result = cli_ask(cli, &request, &answer);
    if (result == -ENOENT)
        return 0;
    if (result == 0)
        result = take_stated(&answer.stated, cache);
    return result < 0 ? result : 1;
}

int stat_who(const struct cli *cli, uint64_t cache, uint64_t after,
             struct kvw_message_who_is *who)
{
    struct kvw_message request = {.type = KVW_MESSAGE_WHO,
                                  .who = {.cache = cache, .after = after}};
    struct kvw_message answer;

    int result = cli_ask(cli, &request, &answer);
    if (result < 0)
        return result == -ENOENT ? 0 : result;
    *who = answer.who_is;
    return 1;
}

bool stat_ends_with_a_look(const struct stat_cache *cache)
{
    return cache->stated.lifetime == KVW_LIFETIME_JOB &&
           cache->stated.n_attachments == 0;
}

json_t *stat_json(const struct stat_cache *cache)
{
    const struct kvw_message_stated *stated = &cache->stated;
    char lifetime[TEXT_BYTES], user[TEXT_BYTES], mode[TEXT_BYTES];

    snprintf(mode, sizeof mode, "%04o", stated->mode);
    return json_pack(
        "{s:s, s:I, s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:I, s:I, s:s, s:s, s:i, s:s, "
        "s:b, s:I, s:b, s:s, s:s, s:I, s:I, s:s}",
        "name", stated->name, "id", (json_int_t)stated->cache, "uuid", cache->uuid,
        "data_bytes", (json_int_t)stated->data_bytes, "total_bytes",
        (json_int_t)stated->total_bytes, "ranks", (int)cache->geometry.n_ranks, "owned",
        (int)stated->n_owned, "attachments", (int)stated->n_attachments, "lanes",
        (int)cache->geometry.n_lanes, "created_ns", (json_int_t)stated->created_ns,
        "used_ns", (json_int_t)stated->used_ns, "lifetime",
        text_lifetime(lifetime, stated->lifetime, stated->ttl_seconds), "owner",
        text_user(user, stated->uid), "uid", (int)stated->uid, "mode", mode, "removed",
        (int)(stated->state == KVW_CONTROL_REMOVED), "misplaced_pages",
        (json_int_t)stated->misplaced_pages, "checksums",
        (int)cache->geometry.has_checksums, "placement",
        placement_policy_name(stated->placement), "pages",
        spec_name_pages(stated->pages), "huge_bytes", (json_int_t)stated->huge_bytes,
        "padding_bytes", (json_int_t)stated->padding_bytes, "note", stated->note);
}
