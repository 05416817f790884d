/* SPDX-License-Identifier: Apache-2.0 */
/* Threads on the CPUs of their shard's node. A launcher's mask is only ever narrowed. */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "client/cache.h"
#include "client/client.h"
#include "client/outside.h"
#include "proto/cpus.h"

int kvw_bind_thread(const struct kvw_cache *cache)
{
    cpu_set_t cpus;

    if (CPU_COUNT(&cache->node_cpus) == 0) {
        (void)fail(0, "bind: kvw_bind_self() has bound no thread");
        return 0;
    }
    if (sched_getaffinity(0, sizeof cpus, &cpus) < 0)
        return fail(-errno, "bind: this thread's CPUs: %s", strerror(errno));
    const int n_had = CPU_COUNT(&cpus);
    CPU_AND(&cpus, &cpus, &cache->node_cpus);
    if (CPU_COUNT(&cpus) == 0)
        return fail(
            -ERANGE,
            "bind: none of the %d CPUs that this thread may run on is of NUMA "
            "node %u, where rank %u of '%s' lies: bind it there by the launcher, "
            "or move the part (kvwheel move)",
            n_had, cache->node, cache->rank, cache->name);
    if (sched_setaffinity(0, sizeof cpus, &cpus) < 0)
        return fail(-errno, "bind: to the CPUs of node %u: %s", cache->node,
                    strerror(errno));
    return CPU_COUNT(&cpus);
}

int kvw_bind_self(struct kvw_cache *cache)
{
    struct kvw_message request = {.type = KVW_MESSAGE_NUMA,
                                  .numa = {.rank = cache->rank, .is_counted = 0}};
    struct kvw_message answer;

    if (cache->rank == KVW_READER)
        return fail(-EINVAL, "bind: a reader of '%s' has no part", cache->name);
    memcpy(request.numa.name, cache->name, sizeof request.numa.name);
    int result = client_call(cache->client, &request, &answer, NULL, 0, NULL, NULL);
    if (result < 0)
        return result;
    CPU_ZERO(&cache->node_cpus);
    cache->node = answer.numa_is.node;
    if (cache->node == UINT32_MAX) {
        (void)fail(0, "bind: the part of rank %u of '%s' lies on several NUMA nodes",
                   cache->rank, cache->name);
        return 0;
    }
    if (!outside_has_nodes()) {
        (void)fail(0, "bind: there is one NUMA node only");
        return 0;
    }
    if (!outside_cpus_near(cache->node, &cache->node_cpus))
        return fail(-EPERM,
                    "bind: the CPUs of NUMA node %u cannot be told: "
                    "/sys/devices/system/node is not there",
                    cache->node);
    return kvw_bind_thread(cache);
}
