/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel who, kick: the processes behind a cache. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/stat.h"
#include "client/outside.h"

/* ------------------------------------------------------------------- who ---------- */

/* Names of caches by id: the daemon gives both in ascending order of ids. */
struct names {
    uint32_t n_names;
    struct {
        uint64_t cache;
        char name[KVW_NAME_MAX + 1];
    } name[KVW_CACHES_MAX];
};

static int read_names(const struct cli *cli, struct names *names)
{
    struct stat_cache cache = {0};
    int result = 0;

    names->n_names = 0;
    while (names->n_names < KVW_CACHES_MAX &&
           (result = stat_next(cli, cache.stated.cache, &cache)) > 0) {
        names->name[names->n_names].cache = cache.stated.cache;
        memcpy(names->name[names->n_names++].name, cache.stated.name,
               sizeof cache.stated.name);
    }
    return result < 0 ? result : 0;
}

/* "-" for one that was made since the names were read. */
static const char *name_of(const struct names *names, uint64_t cache)
{
    for (uint32_t i = 0; i < names->n_names; i++) {
        if (names->name[i].cache == cache)
            return names->name[i].name;
    }
    return "-";
}

/* How long the oldest pin is held; pins carry CLOCK_MONOTONIC. */
static uint64_t pinned_ns(const struct kvw_message_who_is *who)
{
    uint64_t now_ns = outside_now_ns(CLOCK_MONOTONIC);

    return who->n_pins > 0 && now_ns > who->pinned_since_ns
               ? now_ns - who->pinned_since_ns
               : 0;
}

#define COMMAND_BYTES 160u

/* A process's file in /proc as printable text; false if it cannot be read. */
static bool read_proc(uint32_t pid, const char *file, char text[COMMAND_BYTES])
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%u/%s", pid, file);
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return false;
    size_t n_bytes = fread(text, 1, COMMAND_BYTES - 1, stream);
    fclose(stream);
    while (n_bytes > 0 && (text[n_bytes - 1] == 0 || text[n_bytes - 1] == '\n'))
        n_bytes--;
    for (size_t i = 0; i < n_bytes; i++) {
        if (!isprint((unsigned char)text[i]))
            text[i] = text[i] == 0 ? ' ' : '?';
    }
    text[n_bytes] = 0;
    return n_bytes > 0;
}

/* The daemon tells a process's name alone. The command line lies in its memory, where a
 * look can take as long as the process likes: it is ours to take, if this is the same
 * process to us. */
static const char *command_of(const struct kvw_message_who_is *who,
                              char text[COMMAND_BYTES])
{
    if (read_proc(who->pid, "comm", text) && strcmp(text, who->command) == 0 &&
        read_proc(who->pid, "cmdline", text))
        return text;
    return who->command;
}

static void add_row(struct table *table, const struct kvw_message_who_is *who,
                    const char *name)
{
    char text[TEXT_BYTES];
    char command[COMMAND_BYTES];

    table_add(table, "%s", name);
    table_add(table, "%s", text_rank(text, who->rank));
    table_add(table, "%llu", (unsigned long long)who->attachment);
    table_add(table, "%u", who->pid);
    table_add(table, "%s", text_user(text, who->uid));
    table_add(table, "%s", text_age(text, who->since_ns));
    table_add(table, "%s", who->is_connected ? "yes" : "no");
    table_add(table, "%u", who->n_pins);
    table_add(table, "%s", who->n_pins > 0 ? text_span(text, pinned_ns(who)) : "-");
    table_add(table, "%s", command_of(who, command));
}

static json_t *to_json(const struct kvw_message_who_is *who, const char *name)
{
    char user[TEXT_BYTES];
    char command[COMMAND_BYTES];
    bool is_reader = who->rank == KVW_READER;

    return json_pack(
        "{s:s, s:I, s:I, s:o, s:b, s:i, s:i, s:s, s:I, s:b, s:i, s:I, s:s}", "name",
        name, "id", (json_int_t)who->cache, "attachment", (json_int_t)who->attachment,
        "rank", is_reader ? json_null() : json_integer(who->rank), "reader",
        (int)is_reader, "pid", (int)who->pid, "uid", (int)who->uid, "user",
        text_user(user, who->uid), "since_ns", (json_int_t)who->since_ns, "connected",
        (int)(who->is_connected != 0), "pins", (int)who->n_pins, "pinned_for_ns",
        (json_int_t)pinned_ns(who), "command", command_of(who, command));
}

/* Everybody at the cache `id`, or anywhere; told in words if it fails. */
static int print_who(const struct cli *cli, uint64_t id, const struct names *names)
{
    struct kvw_message_who_is who = {0};
    struct table table;
    json_t *list = json_array();
    int result;

    table_init(&table,
               "CACHE|>RANK|>ATTACHMENT|>PID|USER|>SINCE|CONNECTED|>PINS|>PINNED|"
               "COMMAND");
    while ((result = stat_who(cli, id, who.attachment, &who)) > 0) {
        const char *name = name_of(names, who.cache);
        if (cli->is_json)
            json_array_append_new(list, to_json(&who, name));
        else
            add_row(&table, &who, name);
    }
    if (result == 0 && !cli->is_json)
        table_print(&table);
    table_fini(&table);
    if (result == 0 && cli->is_json)
        output_json(json_incref(list));
    json_decref(list);
    return result < 0 ? cli_fail(cli, result) : CLI_OK;
}

int command_who(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_OPTIONS};
    struct names names; /* 72 KiB */
    struct stat_cache cache = {0};
    char name[KVW_NAME_MAX + 1] = "";

    int option = cli_option(cli, argc, argv, ":h", options);
    if (option != CLI_END)
        return cli_option_exit(option);
    if (argc - optind > 1)
        return cli_usage(cli, "who: one name, or none");
    if (argc - optind == 1 && !cli_name(cli, argv[optind], name))
        return CLI_USAGE;
    int result = cli_connect(cli);
    if (result != CLI_OK)
        return result;
    result = read_names(cli, &names);
    if (result == 0 && name[0] != 0)
        result = stat_name(cli, name, &cache);
    if (result < 0)
        return cli_fail(cli, result);
    return print_who(cli, cache.stated.cache, &names);
}

/* ------------------------------------------------------------------ kick ---------- */

int command_kick(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {
        {"rank", required_argument, NULL, 'r'},
        {"attachment", required_argument, NULL, 'a'},
        CLI_OPTIONS};
    struct kvw_message request = {.type = KVW_MESSAGE_KICK,
                                  .kick = {.rank = KVW_READER}};
    struct kvw_message answer;
    uint64_t rank = KVW_READER;
    int option;

    while ((option = cli_option(cli, argc, argv, ":h", options)) > 0) {
        bool is_rank = option == 'r';
        uint64_t max = is_rank ? KVW_RANKS_MAX - 1 : UINT64_MAX;
        if (!cli_number(optarg, max, is_rank ? &rank : &request.kick.attachment))
            return cli_usage(
                cli, "kick: --%s: need a whole number, at most %llu; have '%s'",
                is_rank ? "rank" : "attachment", (unsigned long long)max, optarg);
    }
    if (option != CLI_END)
        return cli_option_exit(option);
    if (argc - optind != 1 || (rank == KVW_READER) == (request.kick.attachment == 0))
        return cli_usage(cli, "kick: NAME, and either --rank or --attachment");
    if (!cli_name(cli, argv[optind], request.kick.name))
        return CLI_USAGE;
    request.kick.rank = (uint32_t)rank;
    int result = cli_connect(cli);
    if (result != CLI_OK)
        return result;
    result = cli_ask(cli, &request, &answer);
    if (result < 0)
        return cli_fail(cli, result);
    if (cli->is_json)
        output_json(json_pack("{s:i}", "pid", (int)answer.kicked.pid));
    else
        printf("killed process %u\n", answer.kicked.pid);
    return CLI_OK;
}
