/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvwheeld [--serve N | --keep N | --keep-on N] OPTIONS: the words in brackets are for
 * the program's own use, come first and carry the number of restarts; the rest is passed
 * on as it is.
 */
#include "daemon/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/host.h"

#define LINGER_SECONDS_DEFAULT 60
#define QUOTA_PERCENT_DEFAULT 80
#define USER_ARGV_MAX 64

static const char help[] =
    "usage: kvwheeld [options]\n"
    "\n"
    "Owns rolling KV caches in shared memory and serves them to processes of this "
    "node.\n"
    "\n"
    "  --socket PATH           listen here (default: $KVWHEEL_SOCKET, else\n"
    "                          $XDG_RUNTIME_DIR/kvwheel/kvwheeld.sock, else\n"
    "                          /tmp/kvwheel-UID/kvwheeld.sock)\n"
    "  --quota SIZE|PERCENT%   most bytes of all caches (default 80% of memory)\n"
    "  --quota-user SIZE|PERCENT%\n"
    "                          most bytes of one user's caches (default 80% of "
    "memory)\n"
    "  --embedded              end by itself once nobody needs it\n"
    "  --systemd               take the socket from systemd and keep the caches in "
    "its\n"
    "                          descriptor store (deploy/systemd has the units)\n"
    "  --log                   log to PATH.log, not to stderr; at 1 MiB it is renamed "
    "to\n"
    "                          PATH.log.1\n"
    "  --log-level LEVEL       error, warn, info (default) or debug\n"
    "  --check-host            try what the host must give, print a line for each, "
    "end\n"
    "                          (kvwheel doctor shows it to people)\n"
    "  --topology              print the NUMA nodes and what each can give, end "
    "(kvwheel\n"
    "                          plan and topo show it to people)\n"
    "  --help, --version\n"
    "\n"
    "SIZE is in bytes or with a suffix K, M, G, T (powers of 1024).\n"
    "Exit codes: 0 stopped, 1 failed, 2 wrong usage, 3 another daemon serves the "
    "socket,\n"
    "4 the socket's path cannot be used, 5 the host does not permit io_uring,\n"
    "6 the caches that are kept have another layout, 7 to be started again "
    "(systemd).\n";

const char *options_log_path(const struct options *options)
{
    return options->log_path[0] == 0 ? NULL : options->log_path;
}

const char *options_help(void)
{
    return help;
}

static bool parse_number(const char *text, uint64_t *number, const char **end)
{
    char *stop;

    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, &stop, 10);
    if (errno != 0)
        return false;
    *number = value;
    *end = stop;
    return true;
}

/* SIZE or PERCENT% of memory. */
static bool parse_size(const char *text, uint64_t total_bytes, uint64_t *bytes)
{
    static const char suffixes[] = "KMGT";
    const char *end;
    uint64_t number;

    if (!parse_number(text, &number, &end))
        return false;
    if (strcmp(end, "%") == 0) {
        if (number < 1 || number > 100)
            return false;
        *bytes = total_bytes / 100 * number;
        return true;
    }
    if (*end != 0) {
        const char *suffix = strchr(suffixes, *end);
        if (suffix == NULL || end[1] != 0)
            return false;
        unsigned shift = 10 * (unsigned)(suffix - suffixes + 1);
        if (number > UINT64_MAX >> shift)
            return false;
        number <<= shift;
    }
    *bytes = number;
    return true;
}

static int set_path(struct options *options, const char *path,
                    struct kvw_refusal *refusal)
{
    size_t length = strlen(path);

    if (length == 0 || length > KVW_SOCKET_PATH_MAX)
        return refuse(refusal, -EINVAL, length, KVW_SOCKET_PATH_MAX,
                      "socket path: 1 to %u bytes, has %zu", KVW_SOCKET_PATH_MAX,
                      length);
    memcpy(options->socket_path, path, length + 1);
    return 0;
}

static int set_default_path(struct options *options, struct kvw_refusal *refusal)
{
    char path[KVW_SOCKET_PATH_MAX + 64];
    const char *run = host_environment("XDG_RUNTIME_DIR");
    const char *given = host_environment("KVWHEEL_SOCKET");
    int length;

    if (given != NULL)
        return set_path(options, given, refusal);
    options->is_default_path = true;
    if (run != NULL)
        length = snprintf(path, sizeof path, "%s/kvwheel/kvwheeld.sock", run);
    else
        length = snprintf(path, sizeof path, "/tmp/kvwheel-%u/kvwheeld.sock",
                          (unsigned)getuid());
    if (length >= (int)sizeof path)
        return refuse(refusal, -EINVAL, (uint64_t)length, KVW_SOCKET_PATH_MAX,
                      "socket path: $XDG_RUNTIME_DIR is too long");
    return set_path(options, path, refusal);
}

/* One option with a value. */
static int set_value(struct options *options, const char *name, const char *value,
                     struct kvw_refusal *refusal)
{
    const char *end;
    uint64_t seconds;
    int level = log_level_of(value);

    if (strcmp(name, "--socket") == 0)
        return set_path(options, value, refusal);
    if (strcmp(name, "--quota") == 0 &&
        parse_size(value, options->memory_bytes, &options->quota_bytes))
        return 0;
    if (strcmp(name, "--quota-user") == 0 &&
        parse_size(value, options->memory_bytes, &options->quota_user_bytes))
        return 0;
    if (strcmp(name, "--log-level") == 0 && level >= 0) {
        options->log_level = (enum log_level)level;
        return 0;
    }
    /* For tests: the real one is a minute. */
    if (strcmp(name, "--linger") == 0 && parse_number(value, &seconds, &end) &&
        *end == 0 && seconds <= 3600) {
        options->linger_ns = seconds * 1000000000ull;
        return 0;
    }
    return refuse(refusal, -EINVAL, 0, 0, "option %s: '%s' is no value for it", name,
                  value);
}

static bool takes_value(const char *name)
{
    static const char *const names[] = {"--socket", "--quota", "--quota-user",
                                        "--log-level", "--linger"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

static int parse_user(struct options *options, struct kvw_refusal *refusal)
{
    for (int i = 0; i < options->n_user_argv; i++) {
        const char *name = options->user_argv[i];

        if (strcmp(name, "--help") == 0) {
            options->wants_help = true;
        } else if (strcmp(name, "--version") == 0) {
            options->wants_version = true;
        } else if (strcmp(name, "--check-host") == 0) {
            options->wants_survey = true;
        } else if (strcmp(name, "--topology") == 0) {
            options->wants_topology = true;
        } else if (strcmp(name, "--embedded") == 0) {
            options->is_embedded = true;
        } else if (strcmp(name, "--log") == 0) {
            options->is_logging = true;
        } else if (strcmp(name, "--systemd") == 0) {
            options->is_systemd = true;
        } else if (!takes_value(name)) {
            return refuse(refusal, -EINVAL, 0, 0,
                          "there is no option '%s'; kvwheeld --help lists them", name);
        } else if (i + 1 == options->n_user_argv) {
            return refuse(refusal, -EINVAL, 1, 0, "option %s: needs a value", name);
        } else {
            int error = set_value(options, name, options->user_argv[++i], refusal);
            if (error != 0)
                return error;
        }
    }
    return 0;
}

static void parse_role(struct options *options, int argc, char **argv)
{
    const char *end;
    uint64_t n_restarts;

    options->user_argv = argv + (argc > 0);
    options->n_user_argv = argc - (argc > 0);
    if (argc < 3 || !parse_number(argv[2], &n_restarts, &end) || *end != 0)
        return;
    if (strcmp(argv[1], "--serve") == 0)
        options->role = ROLE_SERVE;
    else if (strcmp(argv[1], "--keep") == 0 || strcmp(argv[1], "--keep-on") == 0)
        options->role = ROLE_KEEP;
    else
        return;
    options->is_keeping_on = strcmp(argv[1], "--keep-on") == 0;
    options->n_restarts = (uint32_t)n_restarts;
    options->user_argv = argv + 3;
    options->n_user_argv = argc - 3;
}

/* systemd starts the daemon itself; its descriptors begin with the number 3 as well. */
static int check_systemd(struct options *options, struct kvw_refusal *refusal)
{
    if (options->is_embedded || options->role != ROLE_START)
        return refuse(refusal, -EINVAL, 0, 0,
                      "option --systemd: not together with --embedded");
    if (host_environment("LISTEN_FDS") == NULL ||
        host_environment("NOTIFY_SOCKET") == NULL)
        return refuse(refusal, -EINVAL, 0, 0,
                      "option --systemd: needs LISTEN_FDS and NOTIFY_SOCKET, which "
                      "systemd sets for the units in deploy/systemd");
    options->role = ROLE_SERVE;
    return 0;
}

int options_parse(struct options *options, int argc, char **argv,
                  struct kvw_refusal *refusal)
{
    struct host_memory memory;
    int error = host_memory(&memory);

    *options = (struct options){
        .log_level = LOG_INFO,
        .linger_ns = LINGER_SECONDS_DEFAULT * 1000000000ull,
        .memory_bytes = memory.total,
        .quota_bytes = memory.total / 100 * QUOTA_PERCENT_DEFAULT,
        .quota_user_bytes = memory.total / 100 * QUOTA_PERCENT_DEFAULT,
    };
    parse_role(options, argc, argv);
    if (error != 0)
        return refuse(refusal, error, 0, 0, "memory: cannot be looked at: %s",
                      strerrordesc_np(-error));
    if (options->n_user_argv > USER_ARGV_MAX)
        error = refuse(refusal, -EINVAL, (uint64_t)options->n_user_argv, USER_ARGV_MAX,
                       "at most %d arguments, have %d", USER_ARGV_MAX,
                       options->n_user_argv);
    if (error == 0)
        error = parse_user(options, refusal);
    if (error == 0 && options->socket_path[0] == 0)
        error = set_default_path(options, refusal);
    if (error == 0 && options->is_logging)
        (void)snprintf(options->log_path, sizeof options->log_path, "%s.log",
                       options->socket_path);
    if (error == 0 && options->is_systemd && !options->wants_help &&
        !options->wants_version && !options->wants_survey && !options->wants_topology)
        error = check_systemd(options, refusal);
    return error;
}
