/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel restart: another daemon, the same caches. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/outside.h"

/* The new program is given ten seconds, and the one before it a moment to come back. */
#define RESTART_NS 20000000000ull
#define PAUSE_MS 20

static void print_restarted(const struct cli *cli,
                            const struct kvw_message_restarting *before,
                            const struct kvw_message_restarting *after)
{
    if (cli->is_json)
        output_json(json_pack("{s:{s:i, s:s}, s:{s:i, s:s}, s:i}", "old", "pid",
                              (int)before->pid, "version", before->version, "new",
                              "pid", (int)after->pid, "version", after->version,
                              "keeper_pid", (int)after->keeper_pid));
    else
        printf("restarted: pid %u, version %s (was pid %u, version %s)\n", after->pid,
               after->version, before->pid, before->version);
}

/* Ask until the daemon that answers is another one. */
static int wait_restarted(const struct cli *cli, struct kvw_message *request,
                          struct kvw_message *answer)
{
    uint64_t deadline_ns = outside_now_ns(CLOCK_MONOTONIC) + RESTART_NS;

    for (;;) {
        int result = cli_ask(cli, request, answer);
        bool is_late = outside_now_ns(CLOCK_MONOTONIC) >= deadline_ns;
        if (result == 0 && answer->restarting.is_done != 0)
            return 0;
        if (result < 0 && (is_late || client_failure().is_refused ||
                           (result != -EPIPE && result != -ETIMEDOUT &&
                            result != -ECONNREFUSED && result != -EAGAIN)))
            return result;
        if (is_late)
            return fail(-ETIMEDOUT, "restart: pid %u has not ended",
                        answer->restarting.pid);
        poll(NULL, 0, PAUSE_MS);
    }
}

int command_restart(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_OPTIONS};
    struct kvw_message request = {.type = KVW_MESSAGE_RESTART};
    struct kvw_message answer = {0};

    int option = cli_option(cli, argc, argv, ":h", options);
    if (option != CLI_END)
        return cli_option_exit(option);
    if (optind != argc)
        return cli_usage(cli, "restart takes no arguments; have '%s'", argv[optind]);
    int result = cli_connect(cli);
    if (result != CLI_OK)
        return result;
    request.restart.daemon_epoch = cli->client->daemon_epoch;
    result = cli_ask(cli, &request, &answer);
    if (result < 0)
        return cli_fail(cli, result);
    const struct kvw_message_restarting before = answer.restarting;
    result = wait_restarted(cli, &request, &answer);
    if (result < 0)
        return cli_fail(cli, result);
    print_restarted(cli, &before, &answer.restarting);
    return CLI_OK;
}
