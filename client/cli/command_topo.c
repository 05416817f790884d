/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel topo: machine, caches and ranks, as text. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cli.h"
#include "client/cli/machine.h"
#include "client/cli/numa.h"
#include "client/cli/output.h"
#include "client/cli/stat.h"
#include "proto/base/cleanup.h"

/* Caches drawn; more are counted. */
#define CACHES_MAX 64u

struct drawn_rank {
    uint32_t node; /* all ones: several */
    uint32_t pid;  /* of who holds it; 0 = nobody */
    char cpus[64]; /* that it may run on */
};

struct drawn_cache {
    char name[KVW_NAME_MAX + 1];
    uint32_t n_ranks;
    struct drawn_rank rank[KVW_RANKS_MAX];
};

struct drawing {
    struct machine machine;
    bool has_daemon;
    uint32_t n_caches; /* of these, CACHES_MAX are drawn */
    struct drawn_cache cache[CACHES_MAX];
};

/* -------------------------------------------------------------- looking ---------- */

static void read_cpus(uint32_t pid, char cpus[64])
{
    char path[64];
    char line[256];

    snprintf(cpus, 64, "?");
    snprintf(path, sizeof path, "/proc/%u/status", pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "Cpus_allowed_list: %63s", cpus) == 1)
            break;
    }
    if (file != NULL)
        fclose(file);
}

static int look_at(const struct cli *cli, const struct stat_cache *stat,
                   struct drawn_cache *cache)
{
    struct kvw_message_who_is who;
    struct numa_rank rank_is;
    uint64_t after = 0;
    int found;

    snprintf(cache->name, sizeof cache->name, "%s", stat->stated.name);
    cache->n_ranks = stat->geometry.n_ranks;
    for (uint32_t rank = 0; rank < cache->n_ranks; rank++) {
        int result = numa_ask(cli, cache->name, rank, false, &rank_is);
        cache->rank[rank].node = result == 0 ? rank_is.node : UINT32_MAX;
    }
    while ((found = stat_who(cli, stat->stated.cache, after, &who)) == 1) {
        after = who.attachment;
        if (who.rank >= cache->n_ranks)
            continue;
        cache->rank[who.rank].pid = who.pid;
        read_cpus(who.pid, cache->rank[who.rank].cpus);
    }
    return found;
}

/* Without a daemon the machine alone is drawn. */
static int look(struct cli *cli, struct drawing *drawing)
{
    struct stat_cache stat;
    uint64_t after = 0;
    int found = 0;

    int result = machine_load(&drawing->machine);
    if (result < 0)
        return result;
    result = client_open(cli->socket_path, false, &cli->client);
    if (result == -ENOENT || result == -ECONNREFUSED)
        return 0;
    if (result < 0)
        return result;
    drawing->has_daemon = true;
    while ((found = stat_next(cli, after, &stat)) == 1) {
        after = stat.stated.cache;
        if (drawing->n_caches < CACHES_MAX) {
            result = look_at(cli, &stat, &drawing->cache[drawing->n_caches]);
            if (result < 0)
                return result;
        }
        drawing->n_caches++;
    }
    return found;
}

static uint32_t n_drawn(const struct drawing *drawing)
{
    return drawing->n_caches < CACHES_MAX ? drawing->n_caches : CACHES_MAX;
}

/* -------------------------------------------------------------- drawing ---------- */

static void draw_ranks(const struct drawn_cache *cache, uint32_t node,
                       const char *indent)
{
    for (uint32_t rank = 0; rank < cache->n_ranks; rank++) {
        const struct drawn_rank *drawn = &cache->rank[rank];
        if (drawn->node != node)
            continue;
        printf("%s%s rank %u", indent, cache->name, rank);
        if (drawn->pid != 0)
            printf("  pid %u on CPUs %s", drawn->pid, drawn->cpus);
        printf("\n");
    }
}

static void draw_node(const struct drawing *drawing, uint32_t i)
{
    const struct kvw_topology_node *node = &drawing->machine.nodes.node[i];
    char total[TEXT_BYTES], give[TEXT_BYTES];

    printf("  +- node %u: %s%s, %s, can give %s", node->number,
           node->n_cpus > 0 ? "CPUs " : "no CPUs", node->cpus,
           text_bytes(total, node->total_bytes), text_bytes(give, node->give_bytes));
    if (drawing->machine.n_huge[i] > 0)
        printf(" and %llu pages of 2 MiB",
               (unsigned long long)drawing->machine.n_huge[i]);
    printf("; distances");
    for (uint32_t j = 0; j < drawing->machine.nodes.n_nodes; j++)
        printf(" %u", node->distance[j]);
    printf("\n");
    for (uint32_t c = 0; c < n_drawn(drawing); c++)
        draw_ranks(&drawing->cache[c], node->number, "  |    ");
}

static void draw(const struct drawing *drawing)
{
    const struct kvw_topology *nodes = &drawing->machine.nodes;
    uint32_t n_packages = 0;

    printf("%s%s\n", drawing->machine.words,
           drawing->machine.is_this_system ? "" : " (made up, by hwloc's variables)");
    if (drawing->machine.left_out[0] != 0)
        printf("%s\n", drawing->machine.left_out);
    for (uint32_t i = 0; i < nodes->n_nodes; i++) {
        if (nodes->node[i].package >= n_packages)
            n_packages = nodes->node[i].package + 1;
    }
    for (uint32_t package = 0; package < n_packages; package++) {
        printf("package %u\n", package);
        for (uint32_t i = 0; i < nodes->n_nodes; i++) {
            if (nodes->node[i].package == package)
                draw_node(drawing, i);
        }
    }
    if (!drawing->has_daemon)
        printf("no daemon is running\n");
    for (uint32_t c = 0; c < n_drawn(drawing); c++) {
        for (uint32_t rank = 0; rank < drawing->cache[c].n_ranks; rank++) {
            if (drawing->cache[c].rank[rank].node == UINT32_MAX) {
                printf("on several nodes\n");
                draw_ranks(&drawing->cache[c], UINT32_MAX, "       ");
                break;
            }
        }
    }
    if (drawing->n_caches > CACHES_MAX)
        printf("and %u more caches\n", drawing->n_caches - CACHES_MAX);
}

static json_t *drawing_json(const struct drawing *drawing)
{
    json_t *list = json_array();
    json_t *ranks = json_array();

    for (uint32_t i = 0; i < drawing->machine.nodes.n_nodes; i++) {
        json_t *node = machine_node_json(&drawing->machine, i);
        json_object_set_new(node, "huge_free",
                            json_integer((json_int_t)drawing->machine.n_huge[i]));
        json_array_append_new(list, node);
    }
    for (uint32_t c = 0; c < n_drawn(drawing); c++) {
        const struct drawn_cache *cache = &drawing->cache[c];
        for (uint32_t rank = 0; rank < cache->n_ranks; rank++) {
            const struct drawn_rank *drawn = &cache->rank[rank];
            json_array_append_new(
                ranks,
                json_pack("{s:s, s:i, s:o, s:i, s:s}", "cache", cache->name, "rank",
                          (int)rank, "node",
                          drawn->node == UINT32_MAX ? json_null()
                                                    : json_integer((int)drawn->node),
                          "pid", (int)drawn->pid, "cpus", drawn->cpus));
        }
    }
    return json_pack("{s:s, s:s, s:b, s:b, s:o, s:o}", "machine",
                     drawing->machine.words, "left_out", drawing->machine.left_out,
                     "this_system", (int)drawing->machine.is_this_system, "daemon",
                     (int)drawing->has_daemon, "nodes", list, "ranks", ranks);
}

int command_topo(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_OPTIONS};
    KVW_CLEANUP(kvw_free_cleanup)
    struct drawing *drawing = calloc(1, sizeof *drawing);

    if (drawing == NULL)
        return cli_fail(cli, fail(-ENOMEM, "no memory"));
    int option = cli_option(cli, argc, argv, ":h", options);
    if (option != CLI_END)
        return cli_option_exit(option);
    if (optind != argc)
        return cli_usage(cli, "topo takes no arguments; have '%s'", argv[optind]);
    int result = look(cli, drawing);
    if (result < 0)
        return cli_fail(cli, result);
    if (cli->is_json)
        output_json(drawing_json(drawing));
    else
        draw(drawing);
    return CLI_OK;
}
