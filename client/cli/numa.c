/* SPDX-License-Identifier: Apache-2.0 */
/* A table, a picture, or JSON of each rank's pages by node. */
#include "client/cli/numa.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/output.h"
#include "client/cli/spec_flags.h"
#include "client/cli/stat.h"
#include "proto/base/cleanup.h"
#include "proto/placement.h"

#define BAR_WIDTH 40u

struct shown {
    struct stat_cache stat;
    uint32_t n_ranks;
    struct numa_rank rank[KVW_RANKS_MAX];
    struct numa_nodes all; /* nodes of any rank, ascending; pages found */
};

static void unpack(const uint8_t *bytes, uint32_t n_bytes, struct numa_nodes *nodes)
{
    nodes->n = 0;
    while (nodes->n < KVW_NODES_MAX && (nodes->n + 1) * 16 <= n_bytes) {
        uint64_t pair[2];
        memcpy(pair, bytes + nodes->n * 16ul, sizeof pair);
        nodes->number[nodes->n] = (uint32_t)pair[0];
        nodes->n_pages[nodes->n++] = pair[1];
    }
}

int numa_ask(const struct cli *cli, const char *name, uint32_t rank, bool is_counted,
             struct numa_rank *rank_is)
{
    struct kvw_message request = {.type = KVW_MESSAGE_NUMA,
                                  .numa = {.rank = rank, .is_counted = is_counted}};
    struct kvw_message answer;

    snprintf(request.numa.name, sizeof request.numa.name, "%s", name);
    int result = cli_ask(cli, &request, &answer);
    if (result < 0)
        return result;
    const struct kvw_message_numa_is *is = &answer.numa_is;
    rank_is->rank = rank;
    rank_is->node = is->node;
    rank_is->n_pages = is->n_pages;
    rank_is->n_misplaced = is->n_misplaced;
    rank_is->n_unknown = is->n_unknown;
    memcpy(rank_is->why, is->why, sizeof rank_is->why);
    unpack(is->wanted, is->wanted_bytes, &rank_is->wanted);
    unpack(is->found, is->found_bytes, &rank_is->found);
    return 0;
}

static uint64_t pages_on(const struct numa_nodes *nodes, uint32_t number)
{
    for (uint32_t i = 0; i < nodes->n; i++) {
        if (nodes->number[i] == number)
            return nodes->n_pages[i];
    }
    return 0;
}

/* Add the nodes of `more` in ascending order. */
static void merge(struct numa_nodes *all, const struct numa_nodes *more, bool is_found)
{
    for (uint32_t i = 0; i < more->n; i++) {
        uint32_t at = 0;
        while (at < all->n && all->number[at] < more->number[i])
            at++;
        if (at == all->n || all->number[at] != more->number[i]) {
            if (all->n == KVW_NODES_MAX)
                continue;
            memmove(&all->number[at + 1], &all->number[at],
                    (all->n - at) * sizeof all->number[0]);
            memmove(&all->n_pages[at + 1], &all->n_pages[at],
                    (all->n - at) * sizeof all->n_pages[0]);
            all->number[at] = more->number[i];
            all->n_pages[at] = 0;
            all->n++;
        }
        all->n_pages[at] += is_found ? more->n_pages[i] : 0;
    }
}

static const char *text_nodes(char text[TEXT_BYTES], const struct numa_rank *rank)
{
    size_t length = 0;

    if (rank->node != UINT32_MAX)
        snprintf(text, TEXT_BYTES, "%u", rank->node);
    else
        snprintf(text, TEXT_BYTES, "-");
    for (uint32_t i = 0;
         rank->node == UINT32_MAX && i < rank->wanted.n && length + 12 < TEXT_BYTES;
         i++)
        length += (size_t)snprintf(text + length, TEXT_BYTES - length, "%s%u",
                                   i > 0 ? "," : "", rank->wanted.number[i]);
    return text;
}

/* ------------------------------------------------------------- in words ---------- */

static void print_table(const struct shown *shown)
{
    struct table table;
    char titles[512];
    char text[TEXT_BYTES];
    /* The table has columns for so many nodes; all are in the picture. */
    const uint32_t n_nodes =
        shown->all.n < TABLE_COLUMNS_MAX - 5 ? shown->all.n : TABLE_COLUMNS_MAX - 5;
    size_t length = (size_t)snprintf(titles, sizeof titles, ">RANK|PLANNED|>PAGES");

    for (uint32_t i = 0; i < n_nodes; i++)
        length += (size_t)snprintf(titles + length, sizeof titles - length,
                                   "|>ON NODE %u", shown->all.number[i]);
    snprintf(titles + length, sizeof titles - length, "|>MISPLACED|WHY THERE");
    table_init(&table, titles);
    for (uint32_t r = 0; r < shown->n_ranks; r++) {
        const struct numa_rank *rank = &shown->rank[r];
        table_add(&table, "%u", rank->rank);
        table_add(&table, "%s", text_nodes(text, rank));
        table_add(&table, "%llu", (unsigned long long)rank->n_pages);
        for (uint32_t i = 0; i < n_nodes; i++)
            table_add(&table, "%llu",
                      (unsigned long long)pages_on(&rank->found, shown->all.number[i]));
        if (rank->n_unknown > 0)
            table_add(&table, "unknown");
        else
            table_add(&table, "%llu", (unsigned long long)rank->n_misplaced);
        table_add(&table, "%s", rank->why);
    }
    table_print(&table);
    table_fini(&table);
}

/* One character for each fortieth of a rank's part: the last digit of its node. */
static void print_picture(const struct shown *shown)
{
    printf("\n");
    for (uint32_t r = 0; r < shown->n_ranks; r++) {
        const struct numa_rank *rank = &shown->rank[r];
        char bar[BAR_WIDTH + 1];
        uint32_t used = 0;
        uint64_t before = 0;
        for (uint32_t i = 0; i < shown->all.n; i++) {
            before += pages_on(&rank->found, shown->all.number[i]);
            const uint64_t end =
                rank->n_pages == 0 ? 0 : before * BAR_WIDTH / rank->n_pages;
            while (used < end)
                bar[used++] = (char)('0' + shown->all.number[i] % 10);
        }
        memset(bar + used, '?', BAR_WIDTH - used);
        bar[BAR_WIDTH] = 0;
        printf("rank %2u |%s|%s\n", rank->rank, bar,
               rank->n_misplaced > 0 ? " misplaced!" : "");
    }
    printf("each sign is 1/%u of a rank's pages, and the last digit of their node\n",
           BAR_WIDTH);
}

/* -------------------------------------------------------------- as JSON ---------- */

static json_t *nodes_json(const struct numa_nodes *nodes)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < nodes->n; i++)
        json_array_append_new(list,
                              json_pack("{s:i, s:I}", "node", (int)nodes->number[i],
                                        "pages", (json_int_t)nodes->n_pages[i]));
    return list;
}

static json_t *shown_json(const struct shown *shown)
{
    json_t *ranks = json_array();
    uint64_t n_misplaced = 0;

    for (uint32_t r = 0; r < shown->n_ranks; r++) {
        const struct numa_rank *rank = &shown->rank[r];
        json_t *node =
            rank->node == UINT32_MAX ? json_null() : json_integer((int)rank->node);
        n_misplaced += rank->n_misplaced;
        json_array_append_new(ranks,
                              json_pack("{s:i, s:o, s:s, s:I, s:I, s:I, s:o, s:o}",
                                        "rank", (int)rank->rank, "node", node, "why",
                                        rank->why, "pages", (json_int_t)rank->n_pages,
                                        "misplaced", (json_int_t)rank->n_misplaced,
                                        "unknown", (json_int_t)rank->n_unknown,
                                        "planned", nodes_json(&rank->wanted), "found",
                                        nodes_json(&rank->found)));
    }
    return json_pack("{s:s, s:s, s:s, s:I, s:o}", "name", shown->stat.stated.name,
                     "placement", placement_policy_name(shown->stat.stated.placement),
                     "pages", spec_name_pages(shown->stat.stated.pages), "misplaced",
                     (json_int_t)n_misplaced, "ranks", ranks);
}

int numa_show(struct cli *cli, const char *name)
{
    KVW_CLEANUP(kvw_free_cleanup)
    struct shown *shown = calloc(1, sizeof *shown);

    if (shown == NULL)
        return cli_fail(cli, fail(-ENOMEM, "no memory"));
    int result = stat_name(cli, name, &shown->stat);
    if (result < 0)
        return cli_fail(cli, result);
    const struct kvw_geometry *geometry = &shown->stat.geometry;
    for (uint32_t rank = 0; rank < geometry->n_ranks;
         rank += geometry->partition.row_parts) {
        struct numa_rank *answer = &shown->rank[shown->n_ranks];
        result = numa_ask(cli, name, rank, true, answer);
        if (result < 0)
            return cli_fail(cli, result);
        merge(&shown->all, &answer->wanted, false);
        merge(&shown->all, &answer->found, true);
        shown->n_ranks++;
    }
    if (cli->is_json) {
        output_json(shown_json(shown));
        return CLI_OK;
    }
    printf("%s: placement %s, pages %s\n\n", name,
           placement_policy_name(shown->stat.stated.placement),
           spec_name_pages(shown->stat.stated.pages));
    print_table(shown);
    print_picture(shown);
    return CLI_OK;
}
