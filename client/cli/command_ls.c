/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel ls, rm, gc: caches as a whole. */
#include <errno.h>
#include <stdio.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/stat.h"
#include "proto/layout.h"

/* -------------------------------------------------------------------- ls ---------- */

static void add_row(struct table *table, const struct stat_cache *cache)
{
    const struct kvw_message_stated *stated = &cache->stated;
    char text[TEXT_BYTES];

    table_add(table, "%s", stated->name);
    table_add(table, "%s", text_bytes(text, stated->total_bytes));
    table_add(table, "%u/%u", stated->n_owned, cache->geometry.n_ranks);
    table_add(table, "%u", cache->geometry.n_lanes);
    table_add(table, "%u", stated->n_attachments);
    table_add(table, "%s", text_age(text, stated->created_ns));
    table_add(table, "%s", text_age(text, stated->used_ns));
    table_add(table, "%s",
              stated->state == KVW_CONTROL_REMOVED
                  ? "removed" /* but somebody is attached yet */
                  : text_lifetime(text, stated->lifetime, stated->ttl_seconds));
    table_add(table, "%04o", stated->mode);
    table_add(table, "%s", text_user(text, stated->uid));
}

int command_ls(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_OPTIONS};
    struct stat_cache cache = {0};
    struct table table;
    int result;

    int option = cli_option(cli, argc, argv, ":h", options);
    if (option != CLI_END)
        return cli_option_exit(option);
    if (optind != argc)
        return cli_usage(cli, "ls takes no arguments; see kvwheel show NAME");
    result = cli_connect(cli);
    if (result != CLI_OK)
        return result;
    json_t *list = json_array();
    table_init(&table,
               "NAME|>BYTES|>OWNED|>LANES|>ATTACHED|>AGE|>USED|LIFETIME|MODE|OWNER");
    while ((result = stat_next(cli, cache.stated.cache, &cache)) > 0) {
        if (cli->is_json)
            json_array_append_new(list, stat_json(&cache));
        else
            add_row(&table, &cache);
    }
    if (result < 0) {
        json_decref(list);
        table_fini(&table);
        return cli_fail(cli, result);
    }
    if (cli->is_json)
        output_json(list);
    else
        table_print(&table);
    if (!cli->is_json)
        json_decref(list);
    table_fini(&table);
    return CLI_OK;
}

/* -------------------------------------------------------------------- rm ---------- */

/* Remove one. @return an exit code, told in words unless it goes to `list`. */
static int remove_one(const struct cli *cli, const char *name, bool is_forced,
                      json_t *list)
{
    struct kvw_message request = {.type = KVW_MESSAGE_REMOVE};
    struct kvw_message answer;
    char text[TEXT_BYTES];

    snprintf(request.remove.name, sizeof request.remove.name, "%s", name);
    request.remove.is_forced = is_forced;
    int result = cli_ask(cli, &request, &answer);
    if (result < 0 && !cli->is_json)
        return cli_fail(cli, result);
    if (result < 0) {
        json_t *error = output_error(result);
        json_object_set_new(error, "name", json_string(name));
        json_array_append_new(list, error);
        return client_failure().is_refused ? CLI_REFUSED : CLI_FAILED;
    }
    if (cli->is_json)
        json_array_append_new(list, json_pack("{s:s, s:I}", "name", name, "freed_bytes",
                                              (json_int_t)answer.removed.freed_bytes));
    else if (answer.removed.freed_bytes == 0)
        printf("removed %s; its bytes are freed when the last process detaches\n",
               name);
    else
        printf("removed %s, %s\n", name, text_bytes(text, answer.removed.freed_bytes));
    return CLI_OK;
}

int command_rm(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {{"force", no_argument, NULL, 'f'},
                                            CLI_OPTIONS};
    char name[KVW_NAME_MAX + 1];
    bool is_forced = false;
    int option;

    while ((option = cli_option(cli, argc, argv, ":fh", options)) == 'f')
        is_forced = true;
    if (option != CLI_END)
        return cli_option_exit(option);
    if (optind == argc)
        return cli_usage(cli, "rm: which cache? See kvwheel ls");
    for (int i = optind; i < argc; i++) {
        if (!cli_name(cli, argv[i], name))
            return CLI_USAGE;
    }
    int exit_code = cli_connect(cli);
    if (exit_code != CLI_OK)
        return exit_code;
    json_t *list = json_array();
    for (int i = optind; i < argc; i++) {
        int result = remove_one(cli, argv[i], is_forced, list);
        if (result != CLI_OK)
            exit_code = result;
    }
    if (cli->is_json)
        output_json(list);
    else
        json_decref(list);
    return exit_code;
}

/* -------------------------------------------------------------------- gc ---------- */

int command_gc(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {{"idle", required_argument, NULL, 'i'},
                                            {"dry-run", no_argument, NULL, 'n'},
                                            CLI_OPTIONS};
    struct kvw_message request = {.type = KVW_MESSAGE_GC,
                                  .gc = {.idle_seconds = UINT64_MAX}};
    struct kvw_message answer;
    char text[TEXT_BYTES];
    int option;

    while ((option = cli_option(cli, argc, argv, ":nh", options)) > 0) {
        if (option == 'n')
            request.gc.is_dry_run = 1;
        else if (!cli_number(optarg, KVW_TTL_SECONDS_MAX, &request.gc.idle_seconds))
            return cli_usage(cli,
                             "gc: --idle: need whole seconds, at most %llu; have '%s'",
                             (unsigned long long)KVW_TTL_SECONDS_MAX, optarg);
    }
    if (option != CLI_END)
        return cli_option_exit(option);
    if (optind != argc)
        return cli_usage(cli, "gc takes no arguments; see kvwheel rm NAME");
    int result = cli_connect(cli);
    if (result != CLI_OK)
        return result;
    result = cli_ask(cli, &request, &answer);
    if (result < 0)
        return cli_fail(cli, result);
    if (cli->is_json)
        output_json(json_pack("{s:i, s:I, s:b}", "caches", (int)answer.gc_done.n_caches,
                              "freed_bytes", (json_int_t)answer.gc_done.freed_bytes,
                              "dry_run", (int)request.gc.is_dry_run));
    else
        printf("%s %u %s, %s\n", request.gc.is_dry_run ? "would remove" : "removed",
               answer.gc_done.n_caches,
               answer.gc_done.n_caches == 1 ? "cache" : "caches",
               text_bytes(text, answer.gc_done.freed_bytes));
    return CLI_OK;
}
