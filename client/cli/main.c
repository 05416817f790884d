/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands, and the options before a command's name. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cli.h"
#include "client/cli/help.h"
#include "client/cli/output.h"
#include "proto/layout.h"

static const struct command commands[] = {
    {"start", "start a daemon and wait until it answers", help_start, command_start},
    {"stop", "stop the daemon", help_stop, command_stop},
    {"restart", "replace the daemon by the installed one, caches kept", help_restart,
     command_restart},
    {"run", "run an MPI job, and again on the hosts that are left", help_run,
     command_run},
    {"status", "how the daemon is", help_status, command_status},
    {"logs", "what the daemon has logged", help_logs, command_logs},
    {"doctor", "what is wrong with host or daemon, and what mends it", help_doctor,
     command_doctor},
    {"create", "make a cache", help_create, command_create},
    {"size", "bytes of a cache, before it is made", help_size, command_size},
    {"plan", "the NUMA nodes of a cache, before it is made", help_plan, command_plan},
    {"ls", "list the caches", help_ls, command_ls},
    {"show", "one cache: its groups, and where its lanes stand", help_show,
     command_show},
    {"move", "put a rank's part on a NUMA node, in use or not", help_move,
     command_move},
    {"topo", "draw the machine, its caches and their ranks", help_topo, command_topo},
    {"verify", "check a cache: its boards, and its rows if it has checksums",
     help_verify, command_verify},
    {"who", "who holds and pins what", help_who, command_who},
    {"kick", "kill the process that holds a rank", help_kick, command_kick},
    {"rm", "remove caches", help_rm, command_rm},
    {"gc", "remove the caches that nobody uses", help_gc, command_gc},
};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

const struct command *cli_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

/* ------------------------------------------------------------- failures ---------- */

static const char *error_name(int error)
{
    switch (-error) {
    case KVW_EOVERRUN:
        return "KVW_EOVERRUN";
    case KVW_EDIVERGED:
        return "KVW_EDIVERGED";
    case KVW_EINCOMPLETE:
        return "KVW_EINCOMPLETE";
    case KVW_EGONE:
        return "KVW_EGONE";
    case KVW_ELAYOUT:
        return "KVW_ELAYOUT";
    default:
        break;
    }
    const char *name = strerrorname_np(-error);
    return name != NULL ? name : "unknown";
}

json_t *output_error(int error)
{
    struct client_failure failure = client_failure();
    bool has_numbers = failure.need != 0 || failure.have != 0;

    return json_pack(
        "{s:s, s:s, s:o, s:o}", "error", error_name(error), "text", kvw_last_error(),
        "need", has_numbers ? json_integer((json_int_t)failure.need) : json_null(),
        "have", has_numbers ? json_integer((json_int_t)failure.have) : json_null());
}

int cli_fail_as(const struct cli *cli, int error, int exit_code)
{
    if (cli->is_json)
        output_json(output_error(error));
    else
        fprintf(stderr, "kvwheel: %s\n", kvw_last_error());
    return exit_code;
}

int cli_fail(const struct cli *cli, int error)
{
    return cli_fail_as(cli, error,
                       client_failure().is_refused ? CLI_REFUSED : CLI_FAILED);
}

int cli_usage(const struct cli *cli, const char *format, ...)
{
    char text[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return cli_fail_as(cli, fail(-EINVAL, "%s", text), CLI_USAGE);
}

/* -------------------------------------------------------------- options ---------- */

/* The argument that getopt stumbled on, when it stood at `at` before. */
static const char *option_text(char **argv, int at)
{
    return argv[optind > at ? optind - 1 : at];
}

int cli_option(struct cli *cli, int argc, char **argv, const char *letters,
               const struct option *options)
{
    opterr = 0;
    for (;;) {
        int at = optind > 0 ? optind : 1;
        int option = getopt_long(argc, argv, letters, options, NULL);
        switch (option) {
        case -1:
            return CLI_END;
        case 'S':
            cli->socket_path = optarg;
            break;
        case 'J':
            cli->is_json = true;
            break;
        case 'h':
            fputs(cli_command(argv[0])->help, stdout);
            return CLI_HELPED;
        case ':':
        case '?':
            (void)cli_usage(cli, "%s: option %s %s; see kvwheel %s --help", argv[0],
                            option_text(argv, at),
                            option == ':' ? "lacks its value" : "is unknown", argv[0]);
            return CLI_BAD;
        default:
            return option;
        }
    }
}

int cli_option_exit(int option)
{
    return option == CLI_HELPED ? CLI_OK : CLI_USAGE;
}

bool cli_number(const char *text, uint64_t max, uint64_t *number)
{
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != 0 || value > max)
        return false;
    *number = value;
    return true;
}

/* --------------------------------------------------------------- daemon ---------- */

int cli_connect(struct cli *cli)
{
    int result = client_open(cli->socket_path, false, &cli->client);

    if (result == 0)
        return CLI_OK;
    bool is_absent = result == -ENOENT || result == -ECONNREFUSED;
    return is_absent ? cli_fail_as(cli, result, CLI_NOT_RUNNING)
                     : cli_fail(cli, result);
}

int cli_ask(const struct cli *cli, struct kvw_message *request,
            struct kvw_message *answer)
{
    return client_call(cli->client, request, answer, NULL, 0, NULL, NULL);
}

bool cli_name(const struct cli *cli, const char *name, char field[KVW_NAME_MAX + 1])
{
    if (!geometry_name_ok(name, KVW_NAME_MAX)) {
        (void)cli_usage(cli,
                        "'%.80s' is no name of a cache: 1 to %u of A-Z a-z 0-9 _ - .",
                        name, KVW_NAME_MAX);
        return false;
    }
    memset(field, 0, KVW_NAME_MAX + 1);
    memcpy(field, name, strlen(name) + 1);
    return true;
}

/* ----------------------------------------------------------------- main ---------- */

static void print_help(void)
{
    fputs(help_head, stdout);
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("  %-8s %s\n", commands[i].name, commands[i].line);
    fputs(help_tail, stdout);
}

static int print_version(const struct cli *cli)
{
    char hash[TEXT_BYTES];

    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)layout_hash());
    if (cli->is_json)
        output_json(json_pack("{s:s, s:i, s:s}", "version", kvw_version(), "protocol",
                              (int)KVW_PROTOCOL_VERSION, "layout", hash));
    else
        printf("kvwheel %s (protocol %u, layout %s)\n", kvw_version(),
               KVW_PROTOCOL_VERSION, hash);
    return CLI_OK;
}

static int help_command(const struct cli *cli, const char *name)
{
    const struct command *command = name != NULL ? cli_command(name) : NULL;

    if (name != NULL && command == NULL)
        return cli_usage(cli, "there is no command '%s'; see kvwheel --help", name);
    if (command == NULL)
        print_help();
    else
        fputs(command->help, stdout);
    return CLI_OK;
}

/* Options before the command. CLI_END when a command follows, else an exit code. */
static int parse_global(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {{"version", no_argument, NULL, 'V'},
                                            CLI_OPTIONS};
    bool wants_version = false;
    int option;

    opterr = 0;
    for (;;) {
        int at = optind;
        option = getopt_long(argc, argv, "+:h", options, NULL);
        if (option == -1)
            break;
        switch (option) {
        case 'S':
            cli->socket_path = optarg;
            break;
        case 'J':
            cli->is_json = true;
            break;
        case 'V':
            wants_version = true;
            break;
        case 'h':
            print_help();
            return CLI_OK;
        default:
            return cli_usage(cli, "option %s %s; see kvwheel --help",
                             option_text(argv, at),
                             option == ':' ? "lacks its value" : "is unknown");
        }
    }
    if (wants_version)
        return print_version(cli);
    if (optind == argc)
        return cli_usage(cli, "which command? See kvwheel --help");
    return CLI_END;
}

/* The failures of options that stand before --json are JSON, too. */
static bool wants_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--json") == 0)
            return true;
    }
    return false;
}

static int run(struct cli *cli, int argc, char **argv)
{
    int exit_code = parse_global(cli, argc, argv);

    if (exit_code != CLI_END)
        return exit_code;
    argc -= optind;
    argv += optind;
    const struct command *command = cli_command(argv[0]);
    if (strcmp(argv[0], "help") == 0 && argc <= 2)
        return help_command(cli, argv[1]);
    if (strcmp(argv[0], "help") == 0)
        return cli_usage(cli, "help: one command; have '%s' as well", argv[2]);
    if (command == NULL)
        return help_command(cli, argv[0]);
    optind = 0; /* begin again, with this argv */
    exit_code = command->run(cli, argc, argv);
    return exit_code == CLI_HELPED ? CLI_OK : exit_code;
}

int main(int argc, char **argv)
{
    struct cli cli = {.is_json = wants_json(argc, argv)};
    int exit_code = run(&cli, argc, argv);

    kvw_disconnect(cli.client);
    if (fflush(stdout) != 0 || ferror(stdout))
        return CLI_FAILED;
    return exit_code;
}
