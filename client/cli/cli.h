/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command kvwheel: what its subcommands share. One thread, one run. A subcommand
 * parses its options with cli_option(), does its work, prints one table or one JSON
 * value, and returns an exit code; a failure is printed by cli_fail(), once.
 */
#ifndef KVW_CLIENT_CLI_CLI_H
#define KVW_CLIENT_CLI_CLI_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/client.h"

enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,       /* wrong options, or a spec that contradicts itself */
    CLI_NOT_RUNNING = 3, /* no daemon at the socket */
    CLI_REFUSED = 4,     /* by the daemon, in its words */
    CLI_DEGRADED = 5,    /* status, doctor: it works, something of the host does not */
    CLI_DAMAGED = 6,     /* verify: the cache is not what its writers left */
};

struct cli {
    const char *socket_path; /* NULL: the default one */
    bool is_json;
    struct kvw_client *client;
};

struct command {
    const char *name;
    const char *line; /* for the list of commands */
    const char *help; /* usage and options */
    int (*run)(struct cli *cli, int argc, char **argv);
};

/** The command `name`, or NULL. */
const struct command *cli_command(const char *name);

/* Options that every command knows; the last ones of its list. */
#define CLI_OPTIONS                                                             \
    {"socket", required_argument, NULL, 'S'}, {"json", no_argument, NULL, 'J'}, \
        {"help", no_argument, NULL, 'h'},                                       \
    {                                                                           \
        NULL, 0, NULL, 0                                                        \
    }

/* What cli_option() returns beside the command's own options. */
enum {
    CLI_END = -1,   /* what is left is argv[optind] ... */
    CLI_BAD = -2,   /* told already: return CLI_USAGE */
    CLI_HELPED = -3 /* told already: return CLI_OK */
};

/** The next option of a command. Options may stand before and after its arguments. */
int cli_option(struct cli *cli, int argc, char **argv, const char *letters,
               const struct option *options);

/** The exit code of a CLI_BAD or CLI_HELPED. */
int cli_option_exit(int option);

/** Say what is wrong with the command line; returns CLI_USAGE. */
int cli_usage(const struct cli *cli, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Print kvw_last_error(); returns the exit code of a failed call. */
int cli_fail(const struct cli *cli, int error);

/** The same with an exit code of the caller's choice, which is returned. */
int cli_fail_as(const struct cli *cli, int error, int exit_code);

/** Connect to a daemon that runs. @return CLI_OK, or an exit code: told already. */
int cli_connect(struct cli *cli);

/** Ask the daemon. @return as client_call(). */
int cli_ask(const struct cli *cli, struct kvw_message *request,
            struct kvw_message *answer);

/** Copy a name of a cache into a message. @return false if it is none: told already. */
bool cli_name(const struct cli *cli, const char *name, char field[KVW_NAME_MAX + 1]);

/** A whole number in decimal, at most `max`. @return false if it is none. */
bool cli_number(const char *text, uint64_t max, uint64_t *number);

/* The commands. */
int command_start(struct cli *cli, int argc, char **argv);
int command_stop(struct cli *cli, int argc, char **argv);
int command_run(struct cli *cli, int argc, char **argv);
int command_restart(struct cli *cli, int argc, char **argv);
int command_doctor(struct cli *cli, int argc, char **argv);
int command_status(struct cli *cli, int argc, char **argv);
int command_create(struct cli *cli, int argc, char **argv);
int command_plan(struct cli *cli, int argc, char **argv);
int command_size(struct cli *cli, int argc, char **argv);
int command_ls(struct cli *cli, int argc, char **argv);
int command_show(struct cli *cli, int argc, char **argv);
int command_rm(struct cli *cli, int argc, char **argv);
int command_gc(struct cli *cli, int argc, char **argv);
int command_logs(struct cli *cli, int argc, char **argv);
int command_verify(struct cli *cli, int argc, char **argv);
int command_who(struct cli *cli, int argc, char **argv);
int command_move(struct cli *cli, int argc, char **argv);
int command_topo(struct cli *cli, int argc, char **argv);
int command_kick(struct cli *cli, int argc, char **argv);

#endif
