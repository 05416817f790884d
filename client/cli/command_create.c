/* SPDX-License-Identifier: Apache-2.0 */
/* kvwheel create, size: from a spec in words to bytes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/parts.h"
#include "client/cli/spec_flags.h"
#include "client/cli/stat.h"
#include "client/outside.h"
#include "client/spec.h"

#define PROGRESS_NS 500000000ull

/* ---------------------------------------------------------------- create ---------- */

struct create_flags {
    struct spec_flags spec;
    const char *name;
    uint32_t lifetime;
    uint64_t ttl_seconds;
    uint64_t mode;
    bool is_quiet;
};

static int take_lifetime(const struct cli *cli, const char *value,
                         struct create_flags *flags)
{
    flags->ttl_seconds = 0;
    if (strcmp(value, "job") == 0) {
        flags->lifetime = KVW_LIFETIME_JOB;
    } else if (strcmp(value, "keep") == 0) {
        flags->lifetime = KVW_LIFETIME_KEEP;
    } else if (strncmp(value, "ttl:", 4) == 0 &&
               cli_number(value + 4, KVW_TTL_SECONDS_MAX, &flags->ttl_seconds) &&
               flags->ttl_seconds > 0) {
        flags->lifetime = KVW_LIFETIME_TTL;
    } else {
        return cli_usage(
            cli, "--lifetime: need job, ttl:SECONDS (1 to %llu) or keep; have '%s'",
            (unsigned long long)KVW_TTL_SECONDS_MAX, value);
    }
    return CLI_OK;
}

static int take_mode(const struct cli *cli, const char *value, uint64_t *mode)
{
    char *end;

    errno = 0;
    unsigned long number = strtoul(value, &end, 8);
    if (value[0] < '0' || value[0] > '7' || *end != 0 || errno != 0 || number > 0777)
        return cli_usage(cli, "--mode: need octal digits, at most 0777; have '%s'",
                         value);
    *mode = number;
    return CLI_OK;
}

static int take_create(const struct cli *cli, int option, struct create_flags *flags)
{
    switch (option) {
    case 'N':
        flags->name = optarg;
        return CLI_OK;
    case 'l':
        return take_lifetime(cli, optarg, flags);
    case 'm':
        return take_mode(cli, optarg, &flags->mode);
    case 'q':
        flags->is_quiet = true;
        return CLI_OK;
    default:
        return spec_flags_take(cli, &flags->spec, option, optarg);
    }
}

/* Nothing for what is done at once. */
struct progress {
    bool is_tty; /* one line that changes, else a line for each tenth */
    bool has_line;
    uint32_t tenths; /* shown last */
    uint64_t begun_ns;
};

static void show_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct progress *progress = context;
    uint32_t tenths = total_bytes == 0
                          ? 10
                          : (uint32_t)((double)done_bytes * 10 / (double)total_bytes);
    char done[TEXT_BYTES], total[TEXT_BYTES];

    if (outside_now_ns(CLOCK_MONOTONIC) - progress->begun_ns < PROGRESS_NS ||
        (!progress->is_tty && tenths <= progress->tenths))
        return;
    progress->tenths = tenths;
    progress->has_line = progress->is_tty;
    fprintf(stderr, "%sallocated %s of %s%s", progress->is_tty ? "\r\033[K" : "",
            text_bytes(done, done_bytes), text_bytes(total, total_bytes),
            progress->is_tty ? "" : "\n");
    fflush(stderr);
}

/* What became of it is said in its place. */
static void clear_progress(const struct progress *progress)
{
    if (progress->has_line)
        fputs("\r\033[K", stderr);
}

static int print_created(const struct cli *cli, const char *name, bool has_existed)
{
    struct stat_cache cache;
    char text[TEXT_BYTES], more[TEXT_BYTES];

    int result = stat_name(cli, name, &cache);
    if (result < 0)
        return cli_fail(cli, result);
    const struct kvw_message_stated *stated = &cache.stated;
    if (cli->is_json) {
        json_t *value = stat_json(&cache);
        json_object_set_new(value, "existed", json_boolean(has_existed));
        output_json(value);
        return CLI_OK;
    }
    printf("%s %s, %s, lifetime %s, mode %04o\n",
           has_existed ? "there is already" : "created", stated->name,
           text_bytes(text, stated->total_bytes),
           text_lifetime(more, stated->lifetime, stated->ttl_seconds), stated->mode);
    if (stated->note[0] != 0)
        printf("note: %s\n", stated->note);
    if (stated->misplaced_pages != 0)
        printf("note: %llu pages lie on another NUMA node than planned: kvwheel show "
               "--numa %s\n",
               (unsigned long long)stated->misplaced_pages, stated->name);
    return CLI_OK;
}

static int create(struct cli *cli, const struct kvw_spec *spec, bool is_quiet)
{
    struct progress progress = {.is_tty = isatty(STDERR_FILENO),
                                .begun_ns = outside_now_ns(CLOCK_MONOTONIC)};

    int result = cli_connect(cli);
    if (result != CLI_OK)
        return result;
    result = kvw_create(cli->client, spec, is_quiet ? NULL : show_progress, &progress);
    clear_progress(&progress);
    return result < 0 ? cli_fail(cli, result)
                      : print_created(cli, spec->name, result == 1);
}

int command_create(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {{"name", required_argument, NULL, 'N'},
                                            {"lifetime", required_argument, NULL, 'l'},
                                            {"mode", required_argument, NULL, 'm'},
                                            {"quiet", no_argument, NULL, 'q'},
                                            SPEC_FLAG_OPTIONS,
                                            CLI_OPTIONS};
    struct create_flags flags = {.lifetime = KVW_LIFETIME_KEEP, .mode = 0600};
    struct kvw_spec spec;
    int option;

    while ((option = cli_option(cli, argc, argv, ":qh", options)) > 0) {
        int result = take_create(cli, option, &flags);
        if (result != CLI_OK)
            return result;
    }
    if (option != CLI_END)
        return cli_option_exit(option);
    if (optind != argc)
        return cli_usage(cli, "create: '%s' is no option; did you mean --name?",
                         argv[optind]);
    bool is_model = flags.spec.preset != NULL || flags.spec.config != NULL;
    int result = spec_flags_spec(cli, &flags.spec, flags.name, &spec);
    if (result != CLI_OK)
        return result;
    if (flags.name == NULL && !is_model)
        return cli_usage(cli, "create: --name is missing");
    spec.lifetime = flags.lifetime;
    spec.ttl_seconds = flags.ttl_seconds;
    spec.mode = (uint32_t)flags.mode;
    return create(cli, &spec, flags.is_quiet);
}

/* ------------------------------------------------------------------ size ---------- */

static void print_size(const struct kvw_spec *spec, const struct kvw_geometry *geometry,
                       const struct kvw_spec_bytes *bytes)
{
    struct table table;
    char text[TEXT_BYTES];

    table_init(&table, "GROUP|>LAYERS|>HEADS|>ROWS|CONTIGUOUS|>A LAYER|>ALL");
    for (uint32_t g = 0; g < spec->n_groups; g++) {
        table_add(&table, "%s", spec->group[g].name);
        table_add(&table, "%u", spec->group[g].n_layers);
        table_add(&table, "%u", spec->group[g].n_heads);
        table_add(&table, "%llu", (unsigned long long)geometry_rows(geometry, g));
        table_add(&table, "%s", spec->group[g].is_contiguous ? "yes" : "no");
        table_add(&table, "%s", text_bytes(text, bytes->layer_bytes[g]));
        table_add(&table, "%s", text_bytes(text, bytes->group_bytes[g]));
    }
    table_print(&table);
    table_fini(&table);
    printf("\n");
    table_init(&table, ">RANK|>BYTES");
    for (uint32_t rank = 0; rank < spec->n_ranks; rank++) {
        table_add(&table, "%u", rank);
        table_add(&table, "%s", text_bytes(text, bytes->rank_bytes[rank]));
    }
    table_print(&table);
    table_fini(&table);
    printf("\n");
    parts_print(geometry);
    printf("lanes      %u\n", spec->n_lanes);
    printf("data       %s\n", text_bytes(text, bytes->data_bytes));
    if (bytes->padding_bytes > 0)
        printf("padding    %s, to whole huge pages\n",
               text_bytes(text, bytes->padding_bytes));
    printf("control    %s\n", text_bytes(text, bytes->control_bytes));
    printf("in all     %s (%llu bytes)\n", text_bytes(text, bytes->total_bytes),
           (unsigned long long)bytes->total_bytes);
}

static json_t *size_json(const struct kvw_spec *spec,
                         const struct kvw_geometry *geometry,
                         const struct kvw_spec_bytes *bytes)
{
    json_t *groups = json_array();
    json_t *ranks = json_array();

    for (uint32_t g = 0; g < spec->n_groups; g++) {
        const struct kvw_spec_group *group = &spec->group[g];
        json_array_append_new(
            groups,
            json_pack("{s:s, s:i, s:i, s:I, s:b, s:I, s:I}", "name", group->name,
                      "layers", (int)group->n_layers, "heads", (int)group->n_heads,
                      "rows", (json_int_t)geometry_rows(geometry, g), "contiguous",
                      (int)group->is_contiguous, "layer_bytes",
                      (json_int_t)bytes->layer_bytes[g], "bytes",
                      (json_int_t)bytes->group_bytes[g]));
    }
    for (uint32_t rank = 0; rank < spec->n_ranks; rank++)
        json_array_append_new(ranks, json_integer((json_int_t)bytes->rank_bytes[rank]));
    return json_pack("{s:s, s:i, s:i, s:o, s:o, s:o, s:I, s:I, s:I, s:I}", "name",
                     spec->name, "lanes", (int)spec->n_lanes, "ranks",
                     (int)spec->n_ranks, "parts", parts_json(geometry), "groups",
                     groups, "rank_bytes", ranks, "data_bytes",
                     (json_int_t)bytes->data_bytes, "padding_bytes",
                     (json_int_t)bytes->padding_bytes, "control_bytes",
                     (json_int_t)bytes->control_bytes, "total_bytes",
                     (json_int_t)bytes->total_bytes);
}

int command_size(struct cli *cli, int argc, char **argv)
{
    struct kvw_geometry geometry;
    struct kvw_spec_bytes bytes;
    struct kvw_spec spec;

    int result = spec_flags_parse(cli, argc, argv, "size", &spec);
    if (result != CLI_OK)
        return result;
    result = kvw_spec_size(&spec, &bytes);
    if (result == 0)
        result = spec_to_geometry(&spec, &geometry);
    if (result < 0)
        return cli_fail(cli, result);
    if (cli->is_json)
        output_json(size_json(&spec, &geometry, &bytes));
    else
        print_size(&spec, &geometry, &bytes);
    return CLI_OK;
}
