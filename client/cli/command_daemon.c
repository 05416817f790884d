/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel start, stop, status: the daemon itself. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "client/cli/doctor.h"
#include "client/cli/hosts.h"
#include "client/cli/output.h"
#include "client/outside.h"
#include "client/start.h"

#define HOSTS_START_MS 30000u /* for all daemons to answer */
#define STOP_MS 10000u        /* for the processes to end; freeing memory takes time */
#define NS_PER_MS 1000000ull

/* ----------------------------------------------------------------- start ---------- */

struct start_flags {
    bool is_foreground;
    const char *list; /* of hosts; NULL: here */
    const char *agent;
    uint32_t n_arguments;
    const char *arguments[START_ARGUMENTS_MAX + 1]; /* for kvwheeld */
};

static int print_started(const struct cli *cli, const struct start_flags *flags,
                         bool is_new)
{
    const struct kvw_client *client = cli->client;

    if (cli->is_json)
        output_json(json_pack("{s:b, s:i, s:s, s:b}", "started", (int)is_new, "pid",
                              (int)client->daemon_pid, "socket", client->socket_path,
                              "embedded", (int)client->is_embedded));
    else
        printf("%s: pid %u, socket %s%s%s\n", is_new ? "started" : "is running already",
               client->daemon_pid, client->socket_path,
               client->is_embedded ? ", embedded" : "",
               !is_new && (flags->n_arguments > 0 || flags->is_foreground)
                   ? "; the options given now change nothing"
                   : "");
    return CLI_OK;
}

/* Become the daemon. Returns only if that fails. */
static int exec_daemon(const struct cli *cli, const struct start_flags *flags)
{
    const char *arguments[START_ARGUMENTS_MAX + 4] = {"kvwheeld", "--socket",
                                                      cli->socket_path};
    char path[KVW_SOCKET_PATH_MAX + 1];
    char program[PATH_MAX];

    int result = start_find(program);
    if (result == 0 && cli->socket_path == NULL) {
        result = client_default_path(path);
        arguments[2] = path;
    }
    if (result < 0)
        return cli_fail(cli, result);
    memcpy(arguments + 3, flags->arguments, flags->n_arguments * sizeof arguments[0]);
    execv(program, (char *const *)arguments);
    return cli_fail(cli, fail(-errno, "%s: %s", program, kvw_strerror(-errno)));
}

static int parse_start(struct cli *cli, int argc, char **argv,
                       struct start_flags *flags)
{
    static const struct option options[] = {
        {"foreground", no_argument, NULL, 'F'},
        {"quota", required_argument, NULL, 'q'},
        {"quota-user", required_argument, NULL, 'u'},
        {"log-level", required_argument, NULL, 'l'},
        {"hosts", required_argument, NULL, 'H'},
        {"agent", required_argument, NULL, 'a'},
        CLI_OPTIONS};
    int option;

    while ((option = cli_option(cli, argc, argv, ":h", options)) > 0) {
        if (option == 'H' || option == 'a') {
            *(option == 'H' ? &flags->list : &flags->agent) = optarg;
            continue;
        }
        if (option == 'F') {
            flags->is_foreground = true;
            continue;
        }
        if (flags->n_arguments + 2 > START_ARGUMENTS_MAX)
            return cli_usage(cli, "start: an option is given too often");
        flags->arguments[flags->n_arguments++] = option == 'q'   ? "--quota"
                                                 : option == 'u' ? "--quota-user"
                                                                 : "--log-level";
        flags->arguments[flags->n_arguments++] = optarg;
    }
    if (option == CLI_END && optind != argc)
        return cli_usage(cli, "start takes no arguments; have '%s'", argv[optind]);
    return option == CLI_END ? CLI_END : cli_option_exit(option);
}

/* One line, or one object, for each host. */
static int print_hosts(const struct cli *cli, const struct hosts *hosts)
{
    json_t *list = cli->is_json ? json_array() : NULL;
    int exit_code = CLI_OK;

    for (uint32_t i = 0; i < hosts->n; i++) {
        const struct host *host = &hosts->host[i];
        if (host->exit_code != 0)
            exit_code = CLI_FAILED;
        if (list != NULL)
            (void)json_array_append_new(
                list, json_pack("{s:s, s:b, s:s}", "host", host->name, "ok",
                                host->exit_code == 0, "text", host->said));
        else
            fprintf(host->exit_code == 0 ? stdout : stderr, "%s: %s\n", host->name,
                    host->said[0] != 0 ? host->said : "failed without a word");
    }
    if (list != NULL)
        output_json(list);
    return exit_code;
}

/* Start one on every host: this command, by the launch agent. */
static int start_on_hosts(struct cli *cli, const struct start_flags *flags)
{
    char words[HOSTS_WORDS_BYTES] = "";
    struct hosts hosts;
    bool fits = true;

    if (flags->is_foreground)
        return cli_usage(cli, "start: --foreground is for this host alone");
    if (!hosts_parse(cli, flags->list, flags->agent, &hosts))
        return CLI_USAGE;
    if (cli->socket_path != NULL)
        fits = hosts_quote(words, "--socket") && hosts_quote(words, cli->socket_path);
    fits = fits && hosts_quote(words, "start");
    for (uint32_t i = 0; i < flags->n_arguments && fits; i++)
        fits = hosts_quote(words, flags->arguments[i]);
    if (!fits)
        return cli_usage(cli, "start: the options are too long");
    int result = hosts_run(&hosts, words, HOSTS_START_MS);
    return result < 0 ? cli_fail(cli, result) : print_hosts(cli, &hosts);
}

int command_start(struct cli *cli, int argc, char **argv)
{
    struct start_flags flags = {0};

    int exit_code = parse_start(cli, argc, argv, &flags);
    if (exit_code != CLI_END)
        return exit_code;
    if (flags.list != NULL)
        return start_on_hosts(cli, &flags);
    int result = client_open(cli->socket_path, false, &cli->client);
    if (result == 0)
        return print_started(cli, &flags, false);
    if (result != -ENOENT && result != -ECONNREFUSED)
        return cli_fail(cli, result);
    if (flags.is_foreground)
        return exec_daemon(cli, &flags);
    result = client_start(cli->socket_path, flags.arguments, &cli->client);
    if (result < 0)
        return cli_fail(cli, result);
    return print_started(cli, &flags, true);
}

/* ------------------------------------------------------------------ stop ---------- */

static int ask_status(const struct cli *cli, struct kvw_message_status_is *status)
{
    struct kvw_message request = {.type = KVW_MESSAGE_STATUS};
    struct kvw_message answer;

    int result = cli_ask(cli, &request, &answer);
    if (result == 0)
        *status = answer.status_is;
    return result;
}

/* Wait for processes to end. A pidfd of -1 (ended already) is passed over. */
static bool wait_ended(struct pollfd *ended, nfds_t n_processes)
{
    uint64_t deadline_ns = outside_now_ns(CLOCK_MONOTONIC) + STOP_MS * NS_PER_MS;

    for (nfds_t i = 0; i < n_processes; i++) {
        while (ended[i].fd >= 0) {
            uint64_t now_ns = outside_now_ns(CLOCK_MONOTONIC);
            if (now_ns >= deadline_ns)
                return false;
            uint64_t left_ms = (deadline_ns - now_ns) / NS_PER_MS + 1;
            if (poll(&ended[i], 1, (int)left_ms) > 0) {
                close(ended[i].fd);
                ended[i].fd = -1;
            }
        }
    }
    return true;
}

int command_stop(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {{"force", no_argument, NULL, 'f'},
                                            CLI_OPTIONS};
    struct kvw_message request = {.type = KVW_MESSAGE_SHUTDOWN};
    struct kvw_message answer = {0};
    struct kvw_message_status_is status = {0};
    int option;

    while ((option = cli_option(cli, argc, argv, ":fh", options)) == 'f')
        request.shutdown.is_forced = 1;
    if (option != CLI_END)
        return cli_option_exit(option);
    if (optind != argc)
        return cli_usage(cli, "stop takes no arguments; have '%s'", argv[optind]);
    int result = cli_connect(cli);
    if (result != CLI_OK)
        return result;
    result = ask_status(cli, &status);
    if (result < 0)
        return cli_fail(cli, result);
    struct pollfd ended[] = {
        {.fd = (int)syscall(SYS_pidfd_open, status.pid, 0), .events = POLLIN},
        {.fd = (int)syscall(SYS_pidfd_open, status.keeper_pid, 0), .events = POLLIN},
    };
    result = cli_ask(cli, &request, &answer);
    /* It may be gone before its answer is sent. */
    if (result < 0 && result != -EPIPE)
        return cli_fail(cli, result);
    if (!wait_ended(ended, 2))
        return cli_fail(cli, fail(-ETIMEDOUT,
                                  "stop: pid %u or its keeper, pid %u, has not "
                                  "ended within %u s",
                                  status.pid, status.keeper_pid, STOP_MS / 1000));
    if (cli->is_json)
        output_json(json_pack("{s:i, s:i}", "pid", (int)status.pid, "caches",
                              (int)answer.stopping.n_caches));
    else
        printf("stopped: pid %u, with %u %s\n", status.pid, answer.stopping.n_caches,
               answer.stopping.n_caches == 1 ? "cache" : "caches");
    return CLI_OK;
}

/* ---------------------------------------------------------------- status ---------- */

static void print_status(const struct kvw_message_status_is *status, bool is_embedded)
{
    char text[TEXT_BYTES], more[TEXT_BYTES];

    printf("daemon       pid %u, keeper pid %u, version %s%s\n", status->pid,
           status->keeper_pid, status->version, is_embedded ? ", embedded" : "");
    printf("socket       %s\n", status->socket);
    printf("running      for %s, %u restarts\n", text_age(text, status->started_ns),
           status->n_restarts);
    printf("caches       %u, %u attachments, %u clients\n", status->n_caches,
           status->n_attachments, status->n_clients);
    printf("memory       %s of %s", text_bytes(text, status->bytes_used),
           text_bytes(more, status->bytes_quota));
    printf(", %s for each user; the host has %s\n",
           text_bytes(text, status->bytes_quota_user),
           text_bytes(more, status->bytes_available));
    printf("numa         %s\n", status->numa);
    if (doctor_is_unprotected(status->pid))
        printf("note         not protected from the OOM killer: choom -n -900 -p %u\n",
               status->pid);
    printf("degraded     %s\n",
           status->degraded[0] != 0 ? status->degraded : "nothing");
}

static json_t *status_json(const struct kvw_message_status_is *status, bool is_embedded)
{
    char epoch[TEXT_BYTES];

    const long score = doctor_oom_score(status->pid);

    snprintf(epoch, sizeof epoch, "%016llx", (unsigned long long)status->daemon_epoch);
    return json_pack(
        "{s:i, s:i, s:b, s:s, s:I, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:i, s:s, s:s, "
        "s:s, s:s, s:o}",
        "pid", (int)status->pid, "keeper_pid", (int)status->keeper_pid, "embedded",
        (int)is_embedded, "daemon_epoch", epoch, "started_ns",
        (json_int_t)status->started_ns, "caches", (int)status->n_caches, "attachments",
        (int)status->n_attachments, "clients", (int)status->n_clients, "bytes_used",
        (json_int_t)status->bytes_used, "bytes_quota", (json_int_t)status->bytes_quota,
        "bytes_quota_user", (json_int_t)status->bytes_quota_user, "bytes_available",
        (json_int_t)status->bytes_available, "restarts", (int)status->n_restarts,
        "degraded", status->degraded, "numa", status->numa, "socket", status->socket,
        "version", status->version, "oom_score_adj",
        score == DOCTOR_OOM_UNKNOWN ? json_null() : json_integer(score));
}

int command_status(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_OPTIONS};
    struct kvw_message_status_is status;

    int option = cli_option(cli, argc, argv, ":h", options);
    if (option != CLI_END)
        return cli_option_exit(option);
    if (optind != argc)
        return cli_usage(cli, "status takes no arguments; have '%s'", argv[optind]);
    int result = cli_connect(cli);
    if (result != CLI_OK)
        return result;
    result = ask_status(cli, &status);
    if (result < 0)
        return cli_fail(cli, result);
    if (cli->is_json)
        output_json(status_json(&status, cli->client->is_embedded));
    else
        print_status(&status, cli->client->is_embedded);
    return status.degraded[0] != 0 ? CLI_DEGRADED : CLI_OK;
}
