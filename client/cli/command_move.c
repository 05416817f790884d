/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel move: the part of a rank to a NUMA node. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"

static void show_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    const struct cli *cli = context;
    char done[TEXT_BYTES], total[TEXT_BYTES];

    if (cli->is_json || !isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\r\033[K%s of %s", text_bytes(done, done_bytes),
            text_bytes(total, total_bytes));
}

static int print_moved(const struct cli *cli, const struct kvw_message_move *move,
                       const struct kvw_message_moved *moved)
{
    if (cli->is_json)
        output_json(json_pack("{s:s, s:i, s:i, s:I, s:I, s:I}", "name", move->name,
                              "rank", (int)move->rank, "node", (int)move->node, "pages",
                              (json_int_t)moved->n_pages, "moved",
                              (json_int_t)moved->n_moved, "misplaced",
                              (json_int_t)moved->n_misplaced));
    else
        printf("rank %u of %s is on node %u: %llu pages, %llu moved, %llu misplaced\n",
               move->rank, move->name, move->node, (unsigned long long)moved->n_pages,
               (unsigned long long)moved->n_moved,
               (unsigned long long)moved->n_misplaced);
    if (moved->n_misplaced == 0)
        return CLI_OK;
    if (!cli->is_json)
        fprintf(stderr,
                "kvwheel: the kernel did not move all: node %u has no room, or "
                "somebody holds the pages\n",
                move->node);
    return CLI_FAILED;
}

int command_move(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {{"rank", required_argument, NULL, 'r'},
                                            {"node", required_argument, NULL, 'n'},
                                            CLI_OPTIONS};
    struct kvw_message request = {.type = KVW_MESSAGE_MOVE};
    struct kvw_message answer;
    uint64_t rank = UINT64_MAX;
    uint64_t node = UINT64_MAX;
    int option;

    while ((option = cli_option(cli, argc, argv, ":h", options)) > 0) {
        if (!cli_number(optarg, option == 'r' ? KVW_RANKS_MAX - 1 : UINT16_MAX,
                        option == 'r' ? &rank : &node))
            return cli_usage(cli, "--%s: need a whole number; have '%s'",
                             option == 'r' ? "rank" : "node", optarg);
    }
    if (option != CLI_END)
        return cli_option_exit(option);
    if (argc - optind != 1 || rank == UINT64_MAX || node == UINT64_MAX)
        return cli_usage(cli, "move: need NAME --rank R --node N");
    if (!cli_name(cli, argv[optind], request.move.name))
        return CLI_USAGE;
    request.move.rank = (uint32_t)rank;
    request.move.node = (uint32_t)node;
    int result = cli_connect(cli);
    if (result != CLI_OK)
        return result;
    result = client_call(cli->client, &request, &answer, NULL, 0, show_progress, cli);
    if (!cli->is_json && isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr); /* what became of it is said in its place */
    return result < 0 ? cli_fail(cli, result)
                      : print_moved(cli, &request.move, &answer.moved);
}
