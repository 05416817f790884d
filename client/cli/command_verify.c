/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel verify: is a cache what its writers left? */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/stat.h"

#define FINDINGS_MAX 1000u /* that are told one by one */

struct findings {
    const struct cli *cli;
    const struct kvw_spec *spec; /* NULL: it could not be attached */
    json_t *list;
    uint64_t n;
};

static const char *kind_name(uint32_t kind)
{
    switch (kind) {
    case KVW_DAMAGE_HEADER:
        return "header";
    case KVW_DAMAGE_SEGMENT:
        return "segment";
    case KVW_DAMAGE_BOARD:
        return "board";
    case KVW_DAMAGE_DIVERGED:
        return "diverged";
    case KVW_DAMAGE_ROWS:
        return "rows";
    default:
        return "?";
    }
}

static void set_number(json_t *value, const char *key, uint64_t number, uint64_t none)
{
    json_object_set_new(
        value, key, number == none ? json_null() : json_integer((json_int_t)number));
}

static json_t *damage_json(const struct findings *findings,
                           const struct kvw_damage *damage)
{
    json_t *value =
        json_pack("{s:s, s:s}", "kind", kind_name(damage->kind), "text", damage->text);
    const struct kvw_spec *spec = findings->spec;

    set_number(value, "rank", damage->rank, UINT32_MAX);
    set_number(value, "lane", damage->lane, UINT32_MAX);
    set_number(value, "layer", damage->layer, UINT32_MAX);
    set_number(value, "head", damage->head, UINT32_MAX);
    set_number(value, "row", damage->row, UINT64_MAX);
    set_number(value, "rows", damage->n_rows, UINT64_MAX);
    if (damage->kind != KVW_DAMAGE_ROWS || spec == NULL)
        return value;
    uint32_t g = 0;
    uint32_t first = 0;
    for (; damage->layer >= first + spec->group[g].n_layers; g++)
        first += spec->group[g].n_layers;
    json_object_set_new(value, "group", json_string(spec->group[g].name));
    json_object_set_new(value, "model_layer",
                        json_integer(spec->model_layer[damage->layer]));
    json_object_set_new(value, "plane",
                        json_string(spec->group[g].plane[damage->plane].name));
    return value;
}

static void find(void *context, const struct kvw_damage *damage)
{
    struct findings *findings = context;

    if (findings->n++ >= FINDINGS_MAX)
        return;
    if (findings->cli->is_json)
        json_array_append_new(findings->list, damage_json(findings, damage));
    else
        printf("%s\n", damage->text);
}

static void print_result(const struct findings *findings, const char *name,
                         const struct kvw_verified *verified)
{
    if (findings->cli->is_json) {
        output_json(json_pack(
            "{s:s, s:b, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:O}", "name", name,
            "damaged", (int)(findings->n > 0), "damages_total", (json_int_t)findings->n,
            "checksums", (int)verified->has_checksums, "boards",
            (json_int_t)verified->n_boards, "boards_skipped",
            (json_int_t)verified->n_boards_skipped, "rows",
            (json_int_t)verified->n_rows, "rows_damaged",
            (json_int_t)verified->n_rows_damaged, "rows_skipped",
            (json_int_t)verified->n_rows_skipped, "damages", findings->list));
        return;
    }
    if (findings->n > FINDINGS_MAX)
        printf("and %" PRIu64 " more\n", findings->n - FINDINGS_MAX);
    printf("%s: %s; %" PRIu64 " boards, %" PRIu64 " skipped; ", name,
           findings->n > 0 ? "DAMAGED" : "nothing is wrong", verified->n_boards,
           verified->n_boards_skipped);
    if (verified->has_checksums)
        printf("rows of a plane and head: %" PRIu64 " right, %" PRIu64
               " damaged, %" PRIu64 " overwritten meanwhile\n",
               verified->n_rows, verified->n_rows_damaged, verified->n_rows_skipped);
    else
        printf("rows not looked at: it was created without --checksums\n");
}

/* The header is so wrong that nothing can be mapped by it: that is a finding, too. */
static bool is_damage(int error)
{
    return !client_failure().is_refused &&
           (error == -KVW_EGONE || error == -KVW_ELAYOUT);
}

static int verify(struct cli *cli, const char *name)
{
    struct findings findings = {.cli = cli, .list = json_array()};
    struct kvw_verified verified = {0};
    struct kvw_cache *cache = NULL;

    int result = kvw_attach(cli->client, name, KVW_READER, NULL, &cache);
    if (result == 0) {
        findings.spec = kvw_cache_spec(cache);
        result = kvw_verify(cache, find, &findings, &verified);
    } else if (is_damage(result)) {
        const struct kvw_damage damage = {
            KVW_DAMAGE_HEADER, UINT32_MAX, UINT32_MAX, UINT32_MAX,      UINT32_MAX,
            UINT32_MAX,        UINT64_MAX, UINT64_MAX, kvw_last_error()};
        find(&findings, &damage);
        result = 1;
    }
    int exit_code = result > 0 ? CLI_DAMAGED : CLI_OK;
    if (result < 0)
        exit_code = cli_fail(cli, result);
    else
        print_result(&findings, name, &verified);
    kvw_detach(cache);
    json_decref(findings.list);
    return exit_code;
}

int command_verify(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_OPTIONS};
    char name[KVW_NAME_MAX + 1];
    struct stat_cache stat;

    int option = cli_option(cli, argc, argv, ":h", options);
    if (option != CLI_END)
        return cli_option_exit(option);
    if (argc - optind != 1)
        return cli_usage(cli, "verify: one name; see kvwheel ls");
    if (!cli_name(cli, argv[optind], name))
        return CLI_USAGE;
    int result = cli_connect(cli);
    if (result != CLI_OK)
        return result;
    result = stat_name(cli, name, &stat);
    if (result < 0)
        return cli_fail(cli, result);
    if (stat_ends_with_a_look(&stat))
        return cli_fail(cli, fail(-EBUSY,
                                  "verify '%s': nobody is attached, and a look would "
                                  "end a cache of lifetime job",
                                  name));
    return verify(cli, name);
}
