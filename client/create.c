/* SPDX-License-Identifier: Apache-2.0 */
/* Caches as a whole: making and removing them. All of it is the daemon's work. */
#include <errno.h>
#include <string.h>

#include "client/client.h"
#include "client/spec.h"

int kvw_create(struct kvw_client *client, const struct kvw_spec *spec,
               kvw_progress_fn *progress, void *context)
{
    struct kvw_placement_wish wish;
    struct kvw_geometry geometry;
    struct kvw_message request = {.type = KVW_MESSAGE_CREATE};
    struct kvw_message answer;

    int result = spec_to_geometry(spec, &geometry);
    if (result < 0)
        return result;
    spec_wish(spec, &wish);
    memcpy(request.create.name, spec->name, sizeof request.create.name);
    request.create.lifetime = spec->lifetime;
    request.create.ttl_seconds = spec->ttl_seconds;
    request.create.mode = spec->mode;
    request.create.placement = wish.policy;
    request.create.nodes = (const uint8_t *)wish.node;
    request.create.nodes_bytes = wish.n_nodes * (uint32_t)sizeof wish.node[0];
    request.create.geometry = (const uint8_t *)&geometry;
    request.create.geometry_bytes = sizeof geometry;
    result = client_call(client, &request, &answer, NULL, 0, progress, context);
    if (result < 0)
        return result;
    return answer.created.existed != 0 ? 1 : 0;
}

int kvw_remove(struct kvw_client *client, const char *name, int is_forced)
{
    struct kvw_message request = {.type = KVW_MESSAGE_REMOVE};
    struct kvw_message answer;

    if (strlen(name) > KVW_NAME_MAX)
        return fail(-ENOENT, "remove: no cache has a name of more than %u bytes",
                    KVW_NAME_MAX);
    memcpy(request.remove.name, name, strlen(name) + 1);
    request.remove.is_forced = is_forced != 0;
    return client_call(client, &request, &answer, NULL, 0, NULL, NULL);
}
